//! Many who knock, few who mean well.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Strangers of many names come and are refused, some of them in the middle of their hello, while
/// one honest peer works and another comes.
#[test]
fn a_crowd_of_strangers_costs_no_memory_and_no_honest_peer() {
    run(async {
        let attempts = if soak() { 10_000 } else { 300 };
        let judge: Judge = Arc::new(|hello| match hello.body == "good day" {
            true => Ok(()),
            false => Err("say good day first".into()),
        });
        let (there, pipes) = start_with(2, config(), judge);
        echo(&there, pipes);
        let (friend, _) = start(1);
        let link = friend.link(id(2), &[there.address()]).await.unwrap();
        let mut pipe = link.open().await.unwrap();
        round_trip(&mut pipe).await;

        let counts = Arc::new([const { AtomicUsize::new(0) }; 3]);
        let crowd: Vec<_> = (0..4u8).map(|n| stranger(100 + n)).collect();
        knock(&crowd, &there, 40, &counts).await;
        let before = resident();
        let asked = async { knock(&crowd, &there, attempts, &counts).await };
        let works = async {
            for _ in 0..50 {
                round_trip(&mut pipe).await;
            }
            let (newcomer, _) = start(3);
            let link = come(&newcomer, &there).await;
            round_trip(&mut link.open().await.unwrap()).await;
            newcomer
        };
        let ((), newcomer) = tokio::join!(asked, works);
        let [refused, busy, other] = [0, 1, 2].map(|n| counts[n].load(Ordering::Relaxed));
        assert_eq!((refused + busy, other), (attempts + 40, 0), "{refused} {busy} {other}");
        let grown = resident().saturating_sub(before);
        assert!(grown < 48 << 20, "{grown} bytes for {attempts} attempts");
        assert_eq!(there.links().len(), 2);
        drop(newcomer);
    });
}

/// Half the places at the door are taken by some who never finish their handshake; they are sent
/// away in time, and nobody else has to wait for that.
#[test]
fn those_who_stand_in_the_door_do_not_keep_others_out() {
    run(async {
        let there = start_echo(2, config());
        let mut idlers = Vec::new();
        for n in 0..24u8 {
            let (idler, pipes) = start(50 + n);
            let (tls, _) = idler.core.identity.client(id(2)).unwrap();
            let mut quic = quinn::ClientConfig::new(Arc::new(tls));
            quic.transport_config(idler.core.transports.to(there.address().ip()));
            let connecting = idler.core.endpoint.connect_with(quic, there.address(), "l");
            // Admitted by TLS, it never says hello.
            idlers.push((connecting.unwrap().await.unwrap(), idler, pipes));
        }
        let (friend, _) = start(1);
        let link = come(&friend, &there).await;
        round_trip(&mut link.open().await.unwrap()).await;
        for (connection, ..) in &idlers {
            within(connection.closed()).await;
        }
        assert_eq!(there.links().len(), 1);
    });
}

fn stranger(n: u8) -> Lanes {
    let rude = Config { hello: Bytes::from_static(b"hand it over"), ..config() };
    start_with(n, rude, yes()).0
}

/// `attempts` links are asked for by a crowd, each member one at a time.
async fn knock(crowd: &[Lanes], there: &Lanes, attempts: usize, counts: &Arc<[AtomicUsize; 3]>) {
    let each = attempts / crowd.len();
    let members = crowd.iter().map(|member| {
        let (member, counts) = (member.clone(), Arc::clone(counts));
        let (peer, address) = (there.id(), [there.address()]);
        async move {
            for _ in 0..each {
                let kind = match member.link(peer, &address).await.unwrap_err() {
                    LinkError::RefusedThere { .. } => 0,
                    LinkError::Busy { .. } => 1,
                    error => {
                        eprintln!("{error}");
                        2
                    }
                };
                counts[kind].fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    futures_util::future::join_all(members).await;
}

/// Asks again while the door is full, as an honest node would.
async fn come(who: &Lanes, there: &Lanes) -> Link {
    loop {
        match who.link(there.id(), &[there.address()]).await {
            Ok(link) => return link,
            Err(LinkError::Busy { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn round_trip(pipe: &mut Pipe) {
    pipe.send(b"work", [pattern(1, 1170)]).await.unwrap();
    let frame = pipe.recv().await.unwrap().unwrap();
    assert_eq!(frame.body, pattern(1, 1170));
}
