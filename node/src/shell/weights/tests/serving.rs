//! What a server says to questions of every kind.

use proptest::prelude::*;
use wire::lane::{Reason, Refused};

use super::*;
use crate::shell::lanes::Frame;

fn want(id: ManifestId, piece: Piece) -> Want {
    Want { manifest: id.0.to_vec(), piece: Some(piece) }
}

fn chunk(part: u32, chunk: u32) -> Piece {
    Piece::Chunk(ChunkAt { part, chunk })
}

/// Asks in one pipe, one after the other.
async fn ask(server: &Server, wants: Vec<Want>) -> Vec<(Say, Bytes)> {
    let (mut here, there) = pair(node(1), node(2));
    let mut wants = wants.into_iter();
    let first = wants.next().unwrap();
    let own = server.clone();
    let serving = tokio::spawn(async move { own.serve(node(1), first, there).await });
    let mut answers = vec![read(here.recv().await.unwrap().unwrap())];
    for want in wants {
        here.send(&wire::encode(&Line::from(Say::Want(want))), []).await.unwrap();
        answers.push(read(here.recv().await.unwrap().unwrap()));
    }
    drop(here);
    serving.await.unwrap();
    answers
}

fn read(frame: Frame) -> (Say, Bytes) {
    (wire::decode::<Line>(&frame.header).unwrap().say.unwrap(), frame.body)
}

fn reason(say: &Say) -> Option<Reason> {
    match say {
        Say::Refused(Refused { reason, .. }) => Reason::try_from(*reason).ok(),
        _ => None,
    }
}

#[test]
fn questions_in_one_pipe_are_answered_in_their_order() {
    run(async {
        let path = fixture(LLAMA);
        let (giver, id) = Home::with(&path);
        let server = Server::new(Arc::clone(&giver.store));
        let layout = FileParts::read(&path).unwrap();
        let file = std::fs::read(&path).unwrap();
        let wants = vec![
            want(id, Piece::Manifest(())),
            want(id, Piece::Parts(())),
            want(id, chunk(1, 0)),
            want(id, chunk(2, 3)),
            want(id, chunk(1, 0)),
        ];
        let answers = ask(&server, wants).await;
        let manifest = wire::decode::<wire::Manifest>(&answers[0].1).unwrap();
        assert_eq!(manifest.id(), id);
        let parts = layout.all().count();
        let bits: u32 = answers[1].1.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!((bits as usize, answers[1].1.len()), (parts, parts.div_ceil(8)));
        for (answer, (part, number)) in [(2, (FilePart::Ends, 0)), (3, (FilePart::Half(0), 3))] {
            let at = layout.chunks(part).nth(number).unwrap().range;
            let Say::Have(have) = &answers[answer].0 else { panic!("{answers:?}") };
            assert_eq!(answers[answer].1, file[at.start as usize..at.end as usize]);
            let told = survey::told(&manifest, part).unwrap();
            let leaf = tree::leaf(&answers[answer].1);
            let count = told.chunks as usize;
            assert!(tree::proves(&have.proof, &told.root, leaf, number, count));
        }
        assert_eq!(answers[2], answers[4]);
    });
}

#[test]
fn what_is_not_here_is_refused_as_such_and_the_pipe_goes_on() {
    run(async {
        let (giver, id) = Home::with(&fixture(LLAMA));
        let server = Server::new(Arc::clone(&giver.store));
        let other = ManifestId([9; 32]);
        let wants = vec![
            want(other, Piece::Manifest(())),
            want(other, Piece::Parts(())),
            want(id, chunk(u32::MAX, 0)),
            want(id, chunk(0, u32::MAX)),
            want(other, chunk(0, 0)),
            want(id, Piece::Parts(())),
        ];
        let answers = ask(&server, wants).await;
        let reasons: Vec<_> = answers.iter().map(|(say, _)| reason(say)).collect();
        assert_eq!(reasons[..5], [Some(Reason::NotHeld); 5]);
        assert_eq!(reasons[5], None);
    });
}

#[test]
fn a_part_that_is_not_whole_is_not_served() {
    run(async {
        let path = fixture(QWEN);
        let (giver, id) = Home::with(&path);
        let home = Home::new(limits());
        let given = giver.store.find(id).unwrap();
        let place = home.store.begin(given.manifest().clone()).unwrap();
        let parts = [0, 2].into();
        let _hold = home.store.reserve(place.stock(), &parts).unwrap();
        let server = Server::new(Arc::clone(&home.store));
        for (part, number) in [(0, 0), (2, 0)] {
            let (bytes, proof) = given.serve(part, number).unwrap();
            place.stock().accept(part, number, &bytes, &proof).unwrap();
        }
        let wants = vec![want(id, Piece::Parts(())), want(id, chunk(0, 0)), want(id, chunk(2, 0))];
        let answers = ask(&server, wants).await;
        assert_eq!(answers[0].1[0], 1, "only the head is whole");
        assert!(matches!(answers[1].0, Say::Have(_)));
        assert_eq!(reason(&answers[2].0), Some(Reason::NotHeld));
    });
}

#[test]
fn pipes_are_few_in_all_and_fewer_for_one_node() {
    run(async {
        let (giver, id) = Home::with(&fixture(QWEN));
        let server = Server::new(Arc::clone(&giver.store));
        let mut open = Vec::new();
        let mut asked = 0;
        let mut refused = 0;
        for number in 0..serve::PIPES_MAX + 4 {
            // Each node opens one more than it may have.
            let peer = node((number / (serve::PIPES_PER_NODE_MAX + 1)) as u8);
            let (mut here, there) = pair(peer, node(200));
            let own = server.clone();
            tokio::spawn(async move { own.serve(peer, want(id, Piece::Parts(())), there).await });
            asked += 1;
            let (say, _) = read(here.recv().await.unwrap().unwrap());
            match reason(&say) {
                None => open.push(here),
                Some(reason) => {
                    assert_eq!(reason, Reason::Full);
                    refused += 1;
                }
            }
        }
        assert!(open.len() <= serve::PIPES_MAX && refused >= asked / 5, "{refused} of {asked}");
        // When they are gone there is room again.
        drop(open);
        loop {
            let answers = ask(&server, vec![want(id, Piece::Parts(()))]).await;
            if reason(&answers[0].0).is_none() {
                return;
            }
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_source_that_is_full_is_asked_again() {
    run(async {
        let path = fixture(QWEN);
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        let tries = std::sync::atomic::AtomicUsize::new(0);
        net.add_with(
            1,
            &giver.store,
            Box::new(move |_, want, say, body| {
                let first = matches!(want.piece, Some(Piece::Manifest(())))
                    && tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
                let full =
                    Refused { reason: Reason::Full as i32, text: String::new(), retry_ms: 1 };
                match first {
                    true => Deed::Say(Say::Refused(full), Bytes::new()),
                    false => Deed::Say(say, body),
                }
            }),
        );
        let home = Home::new(limits());
        let soon = Waits { again: Duration::from_millis(1), ..waits() };
        let fetcher = Fetcher::new(Arc::clone(&home.store), net.dial(), soon);
        fetcher.fetch(id, all_of(&path), vec![hop(1)]).done().await.unwrap();
    });
}

#[test]
fn weights_travel_over_real_lanes() {
    use crate::shell::lanes::{Config, Incoming, Lanes, node_of_key};
    use libp2p::identity::Keypair;

    let path = fixture(LLAMA);
    let (giver, id) = Home::with(&path);
    let server = Server::new(Arc::clone(&giver.store));
    let start = |number: u8| {
        let key = Keypair::ed25519_from_bytes([number; 32]).unwrap();
        let config = Config::new(([127, 0, 0, 1], 0).into(), Bytes::from_static(b"hello"));
        let lanes = Lanes::start(&key, config, Arc::new(|_| Ok(()))).unwrap();
        (node_of_key(&key).unwrap(), lanes)
    };
    let (peer, (lanes, mut incoming)) = start(1);
    let at = wire::Address::new(lanes.address());
    lanes.spawn(async move {
        while let Some(Incoming { peer, mut pipe }) = incoming.recv().await {
            let server = server.clone();
            tokio::spawn(async move {
                let (say, _) = read(pipe.recv().await.unwrap().unwrap());
                let Say::Want(want) = say else { panic!("{say:?}") };
                server.serve(peer, want, pipe).await;
            });
        }
    });
    let (_, (own, _incoming)) = start(2);
    let home = Home::new(limits());
    run(async {
        let fetcher = Fetcher::new(Arc::clone(&home.store), over(own.clone()), waits());
        let source = Hop { node: peer.0.to_vec(), lanes: vec![at], leg: 0 };
        let ready = fetcher.fetch(id, all_of(&path), vec![source]).done().await.unwrap();
        assert_eq!(std::fs::read(ready.path()).unwrap(), std::fs::read(&path).unwrap());
        let nowhere = fetcher.fetch(ManifestId([3; 32]), [], vec![hop(7)]);
        let error = nowhere.done().await.unwrap_err();
        assert!(matches!(&*nowhere.dropped().0[0], Fault::Dial { .. }), "{error}");
    });
    own.stop();
    lanes.stop();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_frame_makes_a_server_do_more_than_refuse(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 1..5),
    ) {
        let (giver, id) = (GIVER.store.clone(), giver_id());
        run(async {
            let server = Server::new(giver);
            let (mut here, there) = pair(node(1), node(2));
            let own = server.clone();
            let first = want(id, Piece::Parts(()));
            let serving = tokio::spawn(async move { own.serve(node(1), first, there).await });
            here.recv().await.unwrap().unwrap();
            for frame in frames {
                if here.send(&frame, []).await.is_err() {
                    break;
                }
                match here.recv().await.unwrap() {
                    Some(answer) => { read(answer); }
                    None => break,
                }
            }
            drop(here);
            serving.await.unwrap();
        });
    }

    #[test]
    fn no_chunk_is_taken_that_is_not_the_one(
        part in 0u32..20,
        chunk in 0u32..20,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        proof in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let home = Home::new(limits());
        let manifest = GIVER.store.find(giver_id()).unwrap().manifest().clone();
        let place = home.store.begin(manifest).unwrap();
        let _hold = home.store.reserve(place.stock(), &[0, 2].into()).unwrap();
        let refused = place.stock().accept(part, chunk, &bytes, &proof).unwrap_err();
        prop_assert!(matches!(refused, stock::Refusal::Unproven));
    }

    #[test]
    fn questions_and_answers_of_any_shape_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for tag in [13u8 << 3 | 2, 14 << 3 | 2] {
            let mut header = vec![tag, bytes.len() as u8 & 0x7f];
            header.extend(&bytes);
            if let Ok(line) = wire::decode::<Line>(&header) {
                prop_assert_eq!(wire::encode(&line), header);
            }
        }
    }
}

/// One for all cases: making it takes longer than asking it.
static GIVER: std::sync::LazyLock<Home> = std::sync::LazyLock::new(|| Home::with(&fixture(QWEN)).0);

fn giver_id() -> ManifestId {
    GIVER.store.all()[0].id()
}
