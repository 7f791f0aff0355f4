//! Requests, replies and streams, and peers that do not keep to the rules.

use futures_util::StreamExt;

use super::super::codec::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use super::*;

async fn pair(asker: Config, host: Config) -> (Node, Node) {
    let (asker, mut host) = (start(asker), start(host));
    let address = host.address().await;
    soon("a dial", asker.swarm.dial(address)).await.unwrap();
    (asker, host)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_answered_up_to_the_longest() {
    let (asker, mut host) = pair(config(1), config(2)).await;
    let me = host.swarm.me();
    let long = Bytes::from(vec![7; REPLY_BYTES_MAX]);
    let replies = [Bytes::new(), long.clone()];
    let owner = tokio::spawn(async move {
        for bytes in replies {
            let pick = |event| match event {
                Event::Request { bytes, reply, .. } => Some((bytes, reply)),
                _ => None,
            };
            let (asked, reply) = host.until("a request", pick).await;
            assert_eq!(asked.len(), REQUEST_BYTES_MAX);
            reply.send(bytes).unwrap();
        }
        host
    });
    let request = Bytes::from(vec![1; REQUEST_BYTES_MAX]);
    assert_eq!(asker.swarm.ask(me, request.clone()).await.unwrap(), Bytes::new());
    assert_eq!(asker.swarm.ask(me, request).await.unwrap(), long);
    owner.await.unwrap();

    let longer = Bytes::from(vec![1; REQUEST_BYTES_MAX + 1]);
    let error = asker.swarm.ask(me, longer).await.unwrap_err();
    assert!(matches!(error, AskError::TooLong { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_answer_is_named_when_the_time_is_up() {
    let ask_wait_max = Duration::from_millis(300);
    let (asker, mut host) = pair(Config { ask_wait_max, ..config(1) }, config(2)).await;
    let asking = asker.swarm.ask(host.swarm.me(), Bytes::from_static(b"well?"));
    let kept = host.until("a request", |event| match event {
        Event::Request { reply, .. } => Some(reply),
        _ => None,
    });
    let (error, kept) = tokio::join!(asking, kept);
    let error = error.unwrap_err();
    assert!(matches!(error, AskError::Silent { peer, waited }
        if peer == host.swarm.me() && waited == ask_wait_max));
    assert!(error.to_string().contains(&host.swarm.me().to_string()), "{error}");
    drop(kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_drops_a_request_lets_the_asker_know_at_once() {
    let (asker, mut host) = pair(config(1), config(2)).await;
    let asking = asker.swarm.ask(host.swarm.me(), Bytes::from_static(b"well?"));
    let dropping = host.until("a request", |event| match event {
        Event::Request { .. } => Some(()),
        _ => None,
    });
    let (error, ()) = soon("an error", async { tokio::join!(asking, dropping) }).await;
    assert!(matches!(error.unwrap_err(), AskError::Unanswered { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_reads_nothing_is_said_to_be_busy_and_keeps_a_bounded_number() {
    let hosts_asks = Config { ask_wait_max: Duration::from_secs(20), ..config(2) };
    let mut host = start(hosts_asks);
    let address = host.address().await;
    let (done, mut results) = mpsc::channel(1024);
    // One connection carries sixteen requests at a time, so it takes many askers to be too many.
    for secret in 10..30 {
        let asker = start(Config { ask_wait_max: Duration::from_secs(20), ..config(secret) });
        soon("a dial", asker.swarm.dial(address.clone())).await.unwrap();
        for _ in 0..16 {
            let (asker, done, host) = (asker.swarm.clone(), done.clone(), host.swarm.me());
            tokio::spawn(async move {
                let _ = done.send(asker.ask(host, Bytes::from_static(b"?")).await).await;
            });
        }
    }
    let first = soon("an answer", results.recv()).await.unwrap();
    assert!(matches!(first, Err(AskError::Busy { .. })), "{first:?}");
    let requests = host.waiting();
    let requests = requests.iter().filter(|event| matches!(event, Event::Request { .. })).count();
    assert!(requests <= 256, "{requests}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_request_protocol_harms_nobody() {
    let mut host = start(config(1));
    let address = host.address().await;
    let (host, _task) = host.serve();
    let name = Names::new(WIRE_VERSION, &Network::Public).ask;

    let mut stranger = libp2p::SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_quic()
        .with_behaviour(|_| libp2p_stream::Behaviour::new())
        .unwrap()
        .build();
    let mut streams = stranger.behaviour().new_control();
    stranger.dial(address.clone()).unwrap();
    let polling = tokio::spawn(async move {
        loop {
            stranger.next().await;
        }
    });
    let lies: [&[u8]; 5] =
        [b"", &[0], &[0xff; 4096], &[0, 0, 1, 0, 9, 9], b"GET / HTTP/1.1\r\n\r\n"];
    for bytes in lies {
        let opening = streams.open_stream(peer_of(host.me()).unwrap(), name.clone());
        let mut stream = soon("a stream", opening).await.unwrap();
        // The host may hang up before it has read all.
        let _ = stream.write_all(bytes).await;
        let _ = stream.close().await;
        let mut answer = Vec::new();
        let _ = soon("the end", stream.read_to_end(&mut answer)).await;
        assert!(answer.is_empty(), "{answer:?}");
    }
    polling.abort();

    let guest = start(config(2));
    soon("a dial", guest.swarm.dial(address)).await.unwrap();
    let echo = guest.swarm.ask(host.me(), Bytes::from_static(b"still there?")).await.unwrap();
    assert_eq!(&echo[..], b"still there?");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_carries_bytes_both_ways() {
    let (asker, host) = pair(config(1), config(2)).await;
    let (host, _task) = host.serve();
    let mut stream = soon("a stream", asker.swarm.open_stream(host.me())).await.unwrap();
    let sent = vec![42; 3 << 20];
    let (mut reading, mut writing) = AsyncReadExt::split(&mut stream);
    let write = async {
        writing.write_all(&sent).await.unwrap();
        writing.close().await.unwrap();
    };
    let mut back = Vec::new();
    let both = async { tokio::join!(write, reading.read_to_end(&mut back)) };
    soon("the bytes", both).await.1.unwrap();
    assert!(back == sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_nobody_knows_cannot_be_asked_or_streamed_to() {
    let node = start(config(1));
    let stranger = start(config(2)).swarm.me();
    let error = soon("an error", node.swarm.ask(stranger, Bytes::new())).await.unwrap_err();
    assert!(matches!(error, AskError::Unreachable { peer } if peer == stranger), "{error:?}");
    let error = soon("an error", node.swarm.open_stream(stranger)).await.unwrap_err();
    assert!(matches!(error, StreamError::Dial(DialError::Unreachable { .. })), "{error:?}");
}
