//! Gossip: how far it goes, who may stop it, and what a slow owner costs.

use super::*;

/// Publishes as soon as somebody listens.
async fn publish(swarm: &Swarm, text: &str) {
    let bytes = Bytes::from(text.to_string());
    soon("a listener", async {
        while swarm.publish(NEWS, bytes.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// What was said, beside probes.
fn text(event: &Event) -> Option<String> {
    match event {
        Event::Gossip { bytes, .. } if !bytes.starts_with(PROBE) => {
            Some(String::from_utf8(bytes.to_vec()).unwrap())
        }
        _ => None,
    }
}

const PROBE: &[u8] = b"probe";

/// Publishes until `to` hears it: then `from` knows what `to` listens to. Nobody tells when that is so,
/// and what is published before goes no further.
async fn probe(from: &Swarm, to: &mut Node) {
    soon("a probe", async {
        for n in 0_u32.. {
            let bytes = [PROBE, from.me().to_string().as_bytes(), &n.to_le_bytes()].concat();
            let _ = from.publish(NEWS, bytes.into()).await;
            let heard = async {
                while let Some(event) = to.events.recv().await {
                    if matches!(&event, Event::Gossip { bytes, .. } if bytes.starts_with(PROBE)) {
                        return;
                    }
                }
            };
            if tokio::time::timeout(Duration::from_millis(50), heard).await.is_ok() {
                return;
            }
        }
    })
    .await;
}

/// Four nodes of which each may connect to its neighbours only, and knows that they listen.
async fn row() -> Vec<Node> {
    let mut nodes: Vec<Node> = (1..=4).map(|secret| start(config(secret))).collect();
    for at in 0..4_usize {
        for other in (0..4_usize).filter(|other| at.abs_diff(*other) > 1) {
            nodes[at].swarm.block(nodes[other].swarm.me()).await.unwrap();
        }
    }
    for at in 0..3 {
        let address = nodes[at + 1].address().await;
        soon("a dial", nodes[at].swarm.dial(address)).await.unwrap();
        let (until, from) = nodes.split_at_mut(at + 1);
        probe(&until[at].swarm, &mut from[0]).await;
    }
    nodes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gossip_reaches_a_node_three_hops_away_and_names_its_author() {
    let mut nodes = row().await;
    let mut last = nodes.pop().unwrap();
    let first = nodes[0].swarm.clone();
    let _between: Vec<_> = nodes.into_iter().map(Node::serve).collect();
    publish(&first, "hello").await;
    let pick = |event: Event| match event {
        Event::Gossip { topic, author, bytes, .. } if !bytes.starts_with(PROBE) => {
            Some((topic, author, bytes))
        }
        _ => None,
    };
    let (topic, author, bytes) = last.until("the message", pick).await;
    assert_eq!((topic, author, &bytes[..]), (NEWS, first.me(), &b"hello"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_owner_rejects_goes_no_further() {
    let mut nodes = row().await;
    nodes.truncate(3);
    let mut far = nodes.pop().unwrap();
    let mut middle = nodes.pop().unwrap();
    let first = nodes.pop().unwrap();
    let judge = tokio::spawn(async move {
        while let Some(event) = middle.events.recv().await {
            let is_bad = text(&event).is_some_and(|text| text == "bad");
            match event {
                Event::Gossip { verdict, .. } if is_bad => verdict.reject(),
                Event::Gossip { verdict, .. } => verdict.accept(),
                _ => {}
            }
        }
    });
    publish(&first.swarm, "bad").await;
    publish(&first.swarm, "good").await;
    // Both went the same way in turn, so the bad one would have come before.
    let heard = far.until("a message", |event| text(&event)).await;
    assert_eq!(heard, "good");
    judge.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_too_slow_loses_gossip_and_not_memory() {
    let mut slow = start(config(1));
    let talker = start(config(2));
    soon("a dial", talker.swarm.dial(slow.address().await)).await.unwrap();
    let mut said = 0;
    soon("a drop", async {
        while slow.swarm.counts().gossip_dropped == 0 {
            let news = Bytes::from(format!("news {said}"));
            said += u32::from(talker.swarm.publish(NEWS, news).await.is_ok());
            tokio::task::yield_now().await;
        }
    })
    .await;
    let kept = slow.waiting().iter().filter(|event| text(event).is_some()).count();
    assert_eq!(kept, 256, "of {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_too_long_and_topics_unknown_are_refused_before_they_are_sent() {
    let node = start(config(1));
    let long = Bytes::from(vec![0; GOSSIP_BYTES_MAX + 1]);
    let error = node.swarm.publish(NEWS, long).await.unwrap_err();
    assert!(matches!(error, PublishError::TooLong { given: 16_385, max: 16_384 }), "{error:?}");
    let error = node.swarm.publish(Topic("other"), Bytes::new()).await.unwrap_err();
    assert!(matches!(error, PublishError::Unknown(Topic("other"))), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_message_arrives() {
    let mut host = start(config(1));
    let talker = start(config(2));
    soon("a dial", talker.swarm.dial(host.address().await)).await.unwrap();
    publish(&talker.swarm, &"x".repeat(GOSSIP_BYTES_MAX)).await;
    assert_eq!(host.until("it", |event| text(&event)).await.len(), GOSSIP_BYTES_MAX);
}
