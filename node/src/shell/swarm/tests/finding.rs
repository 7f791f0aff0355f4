//! Finding others: providers through a third node, and the network through the peer cache.

use std::time::Instant;

use super::*;

/// Looks until somebody is found.
async fn find(swarm: &Swarm, key: [u8; 32]) -> Vec<NodeId> {
    soon("a provider", async {
        loop {
            let found = swarm.providers(key).await.unwrap();
            if !found.is_empty() {
                return found;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_is_found_through_a_third_node_and_can_be_asked() {
    let mut third = start(config(1));
    let address = third.address().await;
    // Neither of the two answers look-ups, so neither is in a routing table.
    let client = |secret| Config { dht: DhtRole::WhenReachable, ..config(secret) };
    let provider = start(client(2));
    let seeker = start(client(3));
    soon("a dial", provider.swarm.dial(address.clone())).await.unwrap();
    soon("a dial", seeker.swarm.dial(address)).await.unwrap();
    provider.swarm.provide([9; 32]).await.unwrap();
    let (provider, _task) = provider.serve();

    assert_eq!(find(&seeker.swarm, [9; 32]).await, [provider.me()]);
    let echo = soon("a reply", seeker.swarm.ask(provider.me(), Bytes::from_static(b"you?"))).await;
    assert_eq!(&echo.unwrap()[..], b"you?");
    assert!(seeker.swarm.providers([8; 32]).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_announced_to_nobody_is_announced_again_when_somebody_comes() {
    let provider = start(Config { dht: DhtRole::WhenReachable, ..config(1) });
    provider.swarm.provide([9; 32]).await.unwrap();
    let mut third = start(config(2));
    let address = third.address().await;
    soon("a dial", provider.swarm.dial(address.clone())).await.unwrap();
    let seeker = start(config(3));
    soon("a dial", seeker.swarm.dial(address)).await.unwrap();
    assert_eq!(find(&seeker.swarm, [9; 32]).await, [provider.swarm.me()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_joined_by_one_soon_know_each_other_though_nobody_was_probed() {
    let mut seed = start(Config { dht: DhtRole::WhenReachable, ..config(1) });
    let join = vec![seed.address().await];
    let began = Instant::now();
    let others: Vec<_> = (2..6)
        .map(|n| start(Config { dht: DhtRole::WhenReachable, join: join.clone(), ..config(n) }))
        .collect();
    soon("all know all", async {
        for node in &others {
            while node.swarm.peers().await.unwrap().len() < 4 {
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
    // Probes are begun when so much has passed, and walks after those.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_provides_a_bounded_number_of_keys() {
    let node = start(config(1));
    for key in 0..64 {
        node.swarm.provide([key; 32]).await.unwrap();
    }
    let error = node.swarm.provide([64; 32]).await.unwrap_err();
    assert!(matches!(error, LookupError::TooManyKeys { max: 64 }), "{error:?}");
    node.swarm.stop_providing([0; 32]).await.unwrap();
    node.swarm.provide([64; 32]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_finds_its_network_by_its_cache_when_all_seeds_are_dead() {
    let folder = TempDir::new().unwrap();
    let cache = Some(folder.path().join("peers.json"));
    let mut seed = start(config(1));
    let seed_address = seed.address().await;
    let join = vec![seed_address];
    let mut other = start(Config { join: join.clone(), ..config(2) });
    let node = start(Config { join: join.clone(), cache: cache.clone(), ..config(3) });
    // The seed tells them of each other.
    soon("both", async {
        while node.swarm.peers().await.unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    node.swarm.shutdown().await.unwrap();
    seed.swarm.shutdown().await.unwrap();
    other.waiting();

    let mut node = start(Config { join, cache, ..config(3) });
    assert_eq!(node.connected().await, other.swarm.me());
    assert_eq!(other.connected().await, node.swarm.me());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_cache_does_not_keep_a_node_from_starting_and_is_replaced() {
    let folder = TempDir::new().unwrap();
    let cache = folder.path().join("peers.json");
    std::fs::write(&cache, b"{\"form\":1,\"netw").unwrap();
    let mut host = start(config(1));
    let node = start(Config { cache: Some(cache.clone()), ..config(2) });
    soon("a dial", node.swarm.dial(host.address().await)).await.unwrap();
    node.swarm.shutdown().await.unwrap();
    assert_eq!(Book::read(&cache, "public", clock()).unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_hundred_and_fifty_dead_records_hinder_neither_start_nor_service() {
    let folder = TempDir::new().unwrap();
    let cache = folder.path().join("peers.json");
    let dead = (0..650).map(|at| {
        serde_json::json!({
            "id": libp2p::PeerId::random().to_base58(),
            "seen_ms": at,
            "addresses": [quic(free_port()).to_string()],
        })
    });
    let page = serde_json::json!({
        "form": 1, "network": "public", "peers": dead.collect::<Vec<_>>(),
    });
    std::fs::write(&cache, page.to_string()).unwrap();

    let started = std::time::Instant::now();
    let mut host = start(Config { cache: Some(cache), ..config(1) });
    let address = host.address().await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");

    let (host, _task) = host.serve();
    let guest = start(config(2));
    soon("a dial", guest.swarm.dial(address)).await.unwrap();
    let echo = soon("a reply", guest.swarm.ask(host.me(), Bytes::from_static(b"up?"))).await;
    assert_eq!(&echo.unwrap()[..], b"up?");
}
