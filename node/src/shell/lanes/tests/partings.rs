//! How links end, and what is heard of it.

use cadencia_tests::udp_proxy::{UdpProxy, Weather};

use super::*;

#[test]
fn a_peer_that_vanishes_is_noticed_in_time_and_named() {
    run(async {
        let (here, _) = start(1);
        let mut there = start(2);
        let (link, mut pipe, _other) = connected(&here, &mut there).await;
        there.0.vanish();
        let began = tokio::time::Instant::now();
        let error = pipe.recv().await.unwrap_err();
        assert!(began.elapsed() < config().silence_max + Duration::from_secs(2));
        let PipeError::Lost(lost) = &error else { panic!("{error}") };
        assert!(matches!(lost, Lost::Silent { .. } | Lost::Restarted { .. }), "{error}");
        assert!(error.to_string().contains(&id(2).to_string()), "{error}");
        link.ended().await;
        assert!(!link.is_open());
    });
}

#[test]
fn a_cut_line_is_noticed_as_silence_and_a_mended_one_carries_new_links() {
    run(async {
        let (there, pipes) = start(2);
        echo(&there, pipes);
        let (here, _) = start(1);
        let proxy = UdpProxy::start(there.address(), Weather::default(), 1).unwrap();
        let link = here.link(id(2), &[proxy.address()]).await.unwrap();
        let mut pipe = link.open().await.unwrap();
        pipe.send(b"one", []).await.unwrap();
        assert_eq!(pipe.recv().await.unwrap().unwrap().header, "one");
        proxy.cut();
        let error = pipe.recv().await.unwrap_err();
        let PipeError::Lost(Lost::Silent { peer, silence }) = error else { panic!("{error}") };
        assert_eq!((peer, silence), (id(2), config().silence_max));
        proxy.restore();
        let link = here.link(id(2), &[proxy.address()]).await.unwrap();
        let mut pipe = link.open().await.unwrap();
        pipe.send(b"two", []).await.unwrap();
        assert_eq!(pipe.recv().await.unwrap().unwrap().header, "two");
    });
}

#[test]
fn a_node_that_leaves_says_so() {
    run(async {
        let (here, _) = start(1);
        let mut there = start(2);
        let (link, mut pipe, other) = connected(&here, &mut there).await;
        drop(other);
        assert_eq!(pipe.recv().await.unwrap(), None);
        there.0.stop();
        let lost = link.ended().await;
        assert!(matches!(lost, Lost::Closed { why: Goodbye::Leaving, .. }), "{lost}");
    });
}

#[test]
fn a_link_lives_with_its_pipes_and_ends_after_them() {
    run(async {
        let brief = Config { idle_max: Duration::from_millis(200), ..config() };
        let (here, _) = start_with(1, brief, yes());
        let mut there = start(2);
        let (link, pipe, _other) = connected(&here, &mut there).await;
        let same = there.0.links().remove(0);
        // Longer than idleness and silence are borne, were there no pipe.
        let ended = tokio::time::timeout(Duration::from_secs(3), link.ended()).await;
        assert!(ended.is_err() && link.pipes() == 1);
        drop(pipe);
        let lost = link.ended().await;
        assert!(matches!(lost, Lost::Here { .. }), "{lost}");
        let lost = same.ended().await;
        assert!(matches!(lost, Lost::Closed { why: Goodbye::Idle, .. }), "{lost}");
    });
}

#[test]
fn pipes_are_bounded_and_the_bound_is_named() {
    run(async {
        let few = Config { pipes_per_link_max: 3, ..config() };
        let (here, _) = start_with(1, few.clone(), yes());
        let mut there = start_with(2, few, yes());
        let (link, first, _other) = connected(&here, &mut there).await;
        let _more = (link.open().await.unwrap(), link.open().await.unwrap());
        let error = link.open().await.unwrap_err();
        assert!(matches!(error, PipeError::NoPipe { pipes_max: 3, .. }), "{error}");
        assert_eq!(link.pipes(), 3);
        drop(first);
        assert_eq!(link.pipes(), 2);
    });
}

#[test]
fn pipes_that_nobody_takes_are_refused() {
    run(async {
        let (there, _pipes) = start(2);
        let (one, two) = (start(1).0, start(3).0);
        let mut pipes = Vec::new();
        for node in [&one, &two] {
            let link = node.link(id(2), &[there.address()]).await.unwrap();
            // Together more than wait in the queue, and less than each may open.
            for _ in 0..INCOMING_MAX * 3 / 4 {
                let mut pipe = link.open().await.unwrap();
                pipe.send(b"look", []).await.unwrap();
                pipes.push(pipe);
            }
        }
        let answers = pipes.iter_mut().map(|pipe| Box::pin(pipe.recv()));
        let (first, ..) = futures_util::future::select_all(answers).await;
        let error = first.unwrap_err();
        assert!(matches!(error, PipeError::GivenUp { why: Objection::Busy, .. }), "{error}");
    });
}

#[test]
fn a_full_node_drops_an_unused_link_and_else_refuses() {
    run(async {
        let small = Config { links_max: 2, ..config() };
        let mut there = start_with(9, small, yes());
        let nodes: Vec<_> = (1..=3).map(start).collect();
        let (_, _pipe_one, other_one) = connected(&nodes[0].0, &mut there).await;
        let unused = nodes[1].0.link(id(9), &[there.0.address()]).await.unwrap();
        // Two of two are there; the second is of no use to anybody and makes room.
        let (_, _pipe_three, other_three) = connected(&nodes[2].0, &mut there).await;
        let lost = unused.ended().await;
        assert!(matches!(lost, Lost::Closed { why: Goodbye::Idle, .. }), "{lost}");
        // Now both are in use.
        let error = nodes[1].0.link(id(9), &[there.0.address()]).await.unwrap_err();
        assert!(matches!(error, LinkError::Busy { .. }), "{error}");
        drop((other_one, other_three));
    });
}
