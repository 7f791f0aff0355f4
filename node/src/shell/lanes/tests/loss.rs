//! Bad weather between two nodes.

use cadencia_tests::udp_proxy::{UdpProxy, Weather};

use super::*;

/// Decode frames through loss and reordering, one way, with as many under way as the path takes.
#[test]
fn frames_arrive_whole_and_in_order_through_loss_and_reordering() {
    run(async {
        let frames = if soak() { 100_000usize } else { 10_000 };
        let weather = Weather {
            delay: Duration::from_micros(500),
            jitter: Duration::from_micros(500),
            lost_per_mille: 50,
            held_per_mille: 50,
            held: Duration::from_millis(2),
        };
        let limits = PipeLimits::default();
        let mut there = start_with(2, Config { limits, ..config() }, yes());
        let (here, _) = start(1);
        let proxy = UdpProxy::start(there.0.address(), weather, 7).unwrap();
        let link = here.link(id(2), &[proxy.address()]).await.unwrap();
        let (mut sender, _back) = link.open().await.unwrap().split();
        let size = |n: usize| 100 + n * 7919 % 2400;
        let sends = here.spawn(async move {
            for n in 0..frames {
                let header = (n as u32).to_le_bytes();
                sender.send(&header, [pattern(n, size(n))]).await.unwrap();
            }
            sender.finish().await.unwrap();
        });
        let (_other, mut receiver) = within(there.1.recv()).await.unwrap().pipe.split();
        let receives = there.0.spawn(async move {
            let mut n = 0usize;
            while let Some(frame) = receiver.recv().await.unwrap() {
                assert_eq!(frame.header[..], (n as u32).to_le_bytes());
                assert_eq!(frame.body, pattern(n, size(n)));
                n += 1;
            }
            n
        });
        sends.await.unwrap();
        assert_eq!(receives.await.unwrap(), frames);
        let passed = proxy.passed();
        assert!(passed.lost > 50 && passed.held > 50, "{passed:?}");
        assert!(link.stats().path.lost_packets > 40);
    });
}

/// A chain of questions and answers, as decoding is one.
#[test]
fn a_frame_that_is_lost_is_sent_again_while_the_other_side_waits() {
    run(async {
        let weather =
            Weather { delay: Duration::from_millis(1), lost_per_mille: 50, ..Weather::default() };
        let there = start_echo(2, config());
        let (here, _) = start(1);
        let proxy = UdpProxy::start(there.address(), weather, 9).unwrap();
        let link = here.link(id(2), &[proxy.address()]).await.unwrap();
        let mut pipe = link.open().await.unwrap();
        for n in 0..500u32 {
            let body = pattern(n as usize, 1170);
            pipe.send(&n.to_le_bytes(), [body.clone()]).await.unwrap();
            let frame = pipe.recv().await.unwrap().unwrap();
            assert_eq!((&frame.header[..], &frame.body), (&n.to_le_bytes()[..], &body));
        }
        assert!(proxy.passed().lost > 10);
    });
}
