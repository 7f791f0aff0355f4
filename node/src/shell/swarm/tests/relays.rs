//! Nodes that cannot dial each other and meet through a third.

use super::*;

fn ends_in(address: Multiaddr, node: NodeId) -> Multiaddr {
    address.with_p2p(peer_of(node).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_that_nobody_can_dial_meet_through_a_relay() {
    let port = free_port();
    let relay = start(Config {
        listen: vec![quic(port)],
        external: vec![quic(port)],
        relay_server: true,
        ..config(1)
    });
    let hidden = |secret, relay_use| Config { listen: Vec::new(), relay_use, ..config(secret) };
    let place = ends_in(quic(port), relay.swarm.me());
    let mut host = start(Config { join: vec![place.clone()], ..hidden(2, RelayUse::Always) });
    let pick = |event| match event {
        Event::Listening { address } => Some(address),
        _ => None,
    };
    let circuit = host.until("a circuit", pick).await;
    assert!(address::is_circuit(&circuit), "{circuit}");
    assert!(host.swarm.addresses().await.unwrap().contains(&circuit));

    let guest = start(hidden(3, RelayUse::Never));
    let met = soon("a dial", guest.swarm.dial(ends_in(circuit, host.swarm.me()))).await.unwrap();
    assert_eq!(met, host.swarm.me());
    let pick = |event| match event {
        Event::Connected { peer, path, direction } if peer == guest.swarm.me() => {
            Some((path, direction))
        }
        _ => None,
    };
    assert_eq!(host.until("the guest", pick).await, (Path::Relayed, Direction::Inbound));
    let peers = guest.swarm.peers().await.unwrap();
    let info = peers.iter().find(|peer| peer.id == host.swarm.me()).unwrap();
    assert_eq!(info.path, Path::Relayed);

    let (host, _task) = host.serve();
    let echo = soon("a reply", guest.swarm.ask(host.me(), Bytes::from_static(b"over?"))).await;
    assert_eq!(&echo.unwrap()[..], b"over?");
    let mut stream = soon("a stream", guest.swarm.open_stream(host.me())).await.unwrap();
    stream.write_all(b"and out").await.unwrap();
    stream.close().await.unwrap();
    let mut back = Vec::new();
    soon("the echo", stream.read_to_end(&mut back)).await.unwrap();
    assert_eq!(back, b"and out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_told_that_it_can_be_reached_is_public_from_the_beginning() {
    let port = free_port();
    let mut node = start(Config { external: vec![quic(port)], ..config(1) });
    let pick = |event| match event {
        Event::Reachability(reachability) => Some(reachability),
        _ => None,
    };
    assert_eq!(node.until("a judgement", pick).await, Reachability::Public);
}
