//! Bounds on connections.

use futures_util::StreamExt;
use libp2p::swarm::SwarmEvent;
use libp2p::{Swarm as Raw, ping};

use super::*;

/// A stranger that connects and says nothing.
fn stranger() -> Raw<ping::Behaviour> {
    libp2p::SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_quic()
        .with_behaviour(|_| ping::Behaviour::default())
        .unwrap()
        .with_swarm_config(|config| config.with_idle_connection_timeout(PATIENCE))
        .build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_refused_and_those_within_it_go_on() {
    const STRANGERS: u64 = 24;
    let limits = Limits { in_max: 8, ..Limits::default() };
    let mut host = start(Config { limits, ..config(1) });
    let address = host.address().await;
    let friend = start(config(2));
    soon("a dial", friend.swarm.dial(address.clone())).await.unwrap();
    let (host, _task) = host.serve();

    let (closed, mut closings) = mpsc::channel(64);
    let mut crowd = Vec::new();
    for _ in 0..STRANGERS {
        let (mut stranger, closed) = (stranger(), closed.clone());
        stranger.dial(address.clone()).unwrap();
        crowd.push(tokio::spawn(async move {
            loop {
                match stranger.select_next_some().await {
                    SwarmEvent::ConnectionClosed { .. }
                    | SwarmEvent::OutgoingConnectionError { .. } => {
                        let _ = closed.send(()).await;
                    }
                    _ => {}
                }
            }
        }));
    }
    // One place is the friend's, so seven strangers find one, until they are sent away for
    // saying nothing.
    for _ in 0..STRANGERS - 7 {
        soon("a refusal", closings.recv()).await.unwrap();
    }
    let refused = host.counts().connections_refused;
    assert!(refused >= STRANGERS - 7, "{refused}");
    assert_eq!(host.peers().await.unwrap().len(), 1, "only the friend counts");
    let echo = friend.swarm.ask(host.me(), Bytes::from_static(b"still?")).await.unwrap();
    assert_eq!(&echo[..], b"still?");
    crowd.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_peer_cannot_hold_more_connections_than_its_share() {
    let limits = Limits { per_peer_max: 2, ..Limits::default() };
    let mut host = start(Config { limits, ..config(1) });
    let address = host.address().await;
    let mut greedy = stranger();
    for _ in 0..5 {
        let bare = libp2p::swarm::dial_opts::DialOpts::unknown_peer_id();
        greedy.dial(bare.address(without_name(address.clone())).build()).unwrap();
    }
    let mut closed = 0;
    soon("three refusals", async {
        while closed < 3 {
            match greedy.select_next_some().await {
                SwarmEvent::ConnectionClosed { .. }
                | SwarmEvent::OutgoingConnectionError { .. } => closed += 1,
                _ => {}
            }
        }
    })
    .await;
    assert_eq!(host.swarm.counts().connections_refused, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_asks_for_too_much_is_refused_with_the_numbers() {
    let join = vec![quic(1); 65];
    let error = Swarm::start(Config { join, ..config(1) }, &Handle::current()).err().unwrap();
    let expected = "65 addresses to join by are given, and 64 fit; leave some out";
    assert_eq!(error.to_string(), expected);
    let listen = vec!["/ip4/203.0.113.7/udp/0/quic-v1".parse().unwrap()];
    let error = Swarm::start(Config { listen, ..config(1) }, &Handle::current()).err().unwrap();
    assert!(error.to_string().contains("203.0.113.7"), "{error}");
}
