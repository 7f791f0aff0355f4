//! Versions and networks: who talks with whom, and what the others do not learn.

use futures_util::StreamExt;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{identify, kad};

use super::*;

fn hive(id: u8, members: &[NodeId]) -> Network {
    Network::Private { hive: [id; 32], members: members.to_vec() }
}

fn node_with(secret: u8) -> NodeId {
    let keys = Keypair::ed25519_from_bytes([secret; 32]).unwrap();
    node_of(&keys.public().to_peer_id()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_two_versions_part_and_both_say_which_they_speak() {
    let mut newer = start(Config { version: 2, ..config(1) });
    let mut older = start(config(2));
    let address = newer.address().await;
    let error = soon("a refusal", older.swarm.dial(address)).await.unwrap_err();
    let expected = format!(
        "peer {} speaks cadencia/2 and this node cadencia/1; update the older one",
        newer.swarm.me()
    );
    assert_eq!(error.to_string(), expected);

    let pick = |event| match event {
        Event::Mismatch(mismatch) => Some(mismatch.to_string()),
        Event::Connected { peer, .. } => panic!("{peer} is of another version"),
        _ => None,
    };
    assert_eq!(older.until("a mismatch", pick).await, expected);
    let theirs = newer.until("a mismatch", pick).await;
    assert!(theirs.contains("speaks cadencia/1 and this node cadencia/2"), "{theirs}");
    for node in [&newer, &older] {
        assert!(node.swarm.peers().await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_private_network_talk_with_each_other() {
    let members = [node_with(1), node_with(2)];
    let mut first = start(Config { network: hive(5, &members), ..config(1) });
    let second = start(Config { network: hive(5, &members), ..config(2) });
    soon("a dial", second.swarm.dial(first.address().await)).await.unwrap();
    assert_eq!(first.connected().await, second.swarm.me());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_allowed_later_gets_in() {
    let mut first = start(Config { network: hive(5, &[]), ..config(1) });
    let second = start(Config { network: hive(5, &[node_with(1)]), ..config(2) });
    let address = first.address().await;
    assert!(soon("a refusal", second.swarm.dial(address.clone())).await.is_err());
    first.swarm.allow(second.swarm.me()).await.unwrap();
    soon("a dial", second.swarm.dial(address)).await.unwrap();
}

/// What a curious stranger brings along.
#[derive(NetworkBehaviour)]
struct Curious {
    identify: identify::Behaviour,
    dht: kad::Behaviour<kad::store::MemoryStore>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_learns_nothing_from_a_private_network_nor_it_from_the_stranger() {
    let network = hive(5, &[node_with(2)]);
    let mut host = start(Config { network: network.clone(), ..config(1) });
    let address = host.address().await;
    // Even the names of all protocols do not help.
    let names = Names::new(WIRE_VERSION, &network);
    let mut stranger = libp2p::SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_quic()
        .with_behaviour(|keys| Curious {
            identify: identify::Behaviour::new(identify::Config::new(
                names.speech.clone(),
                keys.public(),
            )),
            dht: kad::Behaviour::with_config(
                keys.public().to_peer_id(),
                kad::store::MemoryStore::new(keys.public().to_peer_id()),
                kad::Config::new(names.dht.clone()),
            ),
        })
        .unwrap()
        .build();
    let peer = peer_of(host.swarm.me()).unwrap();
    stranger.behaviour_mut().dht.add_address(&peer, without_name(address.clone()));
    stranger.dial(address).unwrap();
    let mut learnt = Vec::new();
    soon("the end of the connection", async {
        loop {
            match stranger.select_next_some().await {
                SwarmEvent::ConnectionClosed { .. }
                | SwarmEvent::OutgoingConnectionError { .. } => return,
                SwarmEvent::Behaviour(CuriousEvent::Identify(event)) => match event {
                    identify::Event::Received { .. } => learnt.push(format!("{event:?}")),
                    identify::Event::Sent { .. } => learnt.push("it asked who we are".into()),
                    _ => {}
                },
                _ => {}
            }
        }
    })
    .await;
    assert!(learnt.is_empty(), "{learnt:?}");
    soon("a refusal", async {
        while host.swarm.counts().connections_refused == 0 {
            host.swarm.peers().await.unwrap();
        }
    })
    .await;
    assert!(host.swarm.peers().await.unwrap().is_empty());
    let told = host.waiting();
    assert!(told.is_empty(), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_two_networks_that_connect_by_mistake_exchange_no_record_and_part() {
    // Each is on the other's list, so the lists do not keep them apart.
    let mut first = start(Config { network: hive(5, &[node_with(2)]), ..config(1) });
    let second = start(Config { network: hive(6, &[node_with(1)]), ..config(2) });
    second.swarm.provide([9; 32]).await.unwrap();
    let error = soon("a refusal", second.swarm.dial(first.address().await)).await.unwrap_err();
    assert!(
        matches!(&error, DialError::Mismatch(Mismatch::Network { peer, .. })
            if *peer == first.swarm.me()),
        "{error:?}"
    );
    assert!(first.swarm.providers([9; 32]).await.unwrap().is_empty());
    let request = second.swarm.ask(first.swarm.me(), Bytes::from_static(b"psst")).await;
    assert!(request.is_err());
    assert!(first.waiting().iter().all(|event| matches!(event, Event::Mismatch(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_not_ours_is_sent_away() {
    let mut host = start(config(1));
    let address = host.address().await;
    let mut stranger = libp2p::SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_quic()
        .with_behaviour(|keys| {
            let speech = format!("ipfs/0.1.0\u{1b}[31m{}", "x".repeat(1000));
            identify::Behaviour::new(identify::Config::new(speech, keys.public()))
        })
        .unwrap()
        .build();
    stranger.dial(address).unwrap();
    let polling = tokio::spawn(async move {
        while !matches!(stranger.select_next_some().await, SwarmEvent::ConnectionClosed { .. }) {}
    });
    let mismatch = host.until("a mismatch", |event| match event {
        Event::Mismatch(mismatch) => Some(mismatch),
        _ => None,
    });
    let Mismatch::Version { theirs, .. } = mismatch.await else { panic!("a wrong reason") };
    assert!(theirs.starts_with("ipfs/0.1.0") && theirs.len() <= 64, "{theirs:?}");
    assert!(!theirs.contains('\u{1b}'));
    soon("the end of the connection", polling).await.unwrap();
}
