//! Sources that send what is wrong, too little, or nothing, and manifests that lie.

use wire::{Manifest, Work};

use super::*;

fn is_chunk(want: &Want) -> bool {
    matches!(want.piece, Some(Piece::Chunk(_)))
}

/// Fetches a model from a node with these manners and, once that one was dropped, from an honest one;
/// returns what the first was dropped for.
fn dropped(manners: Manners, waits: Waits) -> Arc<Fault> {
    run(async {
        let path = fixture(LLAMA);
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        net.add_with(1, &giver.store, manners);
        net.add(2, &giver.store);
        let home = Home::new(limits());
        let fetcher = Fetcher::new(Arc::clone(&home.store), net.dial(), waits);
        let fetch = fetcher.fetch(id, all_of(&path), vec![hop(1)]);
        let error = fetch.done().await.unwrap_err();
        assert!(matches!(error, FetchError::NoSource { .. }), "{error}");
        assert!(error.to_string().contains(&node(1).to_string()), "{error}");
        let faults = fetch.dropped().0;
        // The work that was asked of it is done by another.
        fetch.add(hop(2));
        let ready = fetch.done().await.unwrap();
        load(ready.path(), None);
        assert_eq!(std::fs::read(ready.path()).unwrap(), std::fs::read(&path).unwrap());
        assert_eq!(faults.len(), 1);
        Arc::clone(&faults[0])
    })
}

#[test]
fn a_source_with_a_wrong_chunk_is_dropped_and_named() {
    let fault = dropped(
        Box::new(|count, want, say, body| {
            let mut bytes = body.to_vec();
            if is_chunk(want) && count == 5 {
                bytes[0] ^= 1;
            }
            Deed::Say(say, bytes.into())
        }),
        waits(),
    );
    assert!(matches!(&*fault, Fault::WrongChunk { peer, .. } if *peer == node(1)), "{fault}");
}

#[test]
fn a_source_with_a_wrong_proof_is_dropped_and_named() {
    let fault = dropped(
        Box::new(|count, want, say, body| match say {
            Say::Have(mut have) if is_chunk(want) && count >= 3 && !have.proof.is_empty() => {
                have.proof[0] ^= 1;
                Deed::Say(Say::Have(have), body)
            }
            say => Deed::Say(say, body),
        }),
        waits(),
    );
    assert!(matches!(&*fault, Fault::WrongChunk { .. }), "{fault}");
}

#[test]
fn a_source_that_sends_another_chunk_or_less_of_it_is_dropped() {
    for cut in [0, 1, 31] {
        let fault = dropped(
            Box::new(move |count, want, say, body| {
                let less =
                    if is_chunk(want) && count == 4 { body.len().min(cut) } else { body.len() };
                Deed::Say(say, body.slice(..less))
            }),
            waits(),
        );
        assert!(matches!(&*fault, Fault::WrongChunk { .. }), "{fault}");
    }
}

#[test]
fn a_source_with_another_manifest_is_dropped_and_named() {
    let other: Bytes = wire::encode(&manifest(&fixture(QWEN)).unwrap()).into();
    let fault = dropped(
        Box::new(move |_, want, say, body| match want.piece {
            Some(Piece::Manifest(())) => Deed::Say(say, other.clone()),
            _ => Deed::Say(say, body),
        }),
        waits(),
    );
    assert!(matches!(&*fault, Fault::WrongManifest { .. }), "{fault}");
    let fault = dropped(
        Box::new(move |_, want, say, body| match want.piece {
            Some(Piece::Manifest(())) => Deed::Say(say, Bytes::from_static(b"\xff\xff")),
            _ => Deed::Say(say, body),
        }),
        waits(),
    );
    assert!(matches!(&*fault, Fault::Nonsense { .. }), "{fault}");
}

#[test]
fn a_silent_source_is_dropped_at_its_deadline_and_named() {
    for silent_at in [0, 3] {
        let fault = dropped(
            Box::new(move |count, want, say, body| match is_chunk(want) && count > silent_at {
                true => Deed::Silent,
                false => Deed::Say(say, body),
            }),
            Waits { answer: Duration::from_millis(300), ..waits() },
        );
        assert!(matches!(&*fault, Fault::Silent { unanswered, .. } if *unanswered > 0), "{fault}");
    }
}

#[test]
fn a_source_that_vanishes_midway_loses_its_work_to_others() {
    let fault = dropped(
        Box::new(|count, _, say, body| match count > 6 {
            true => Deed::Vanish,
            false => Deed::Say(say, body),
        }),
        waits(),
    );
    let ended = matches!(&*fault, Fault::Ended { .. } | Fault::Pipe { .. });
    assert!(ended, "{fault}");
}

#[test]
fn a_reply_that_is_cut_within_a_frame_is_no_reply() {
    run(async {
        let home = Home::new(limits());
        let dial: Dial = Arc::new(|hop| {
            Box::pin(async move {
                let (one, two) = tokio::io::duplex(1 << 10);
                tokio::spawn(async move {
                    use tokio::io::{AsyncReadExt, AsyncWriteExt};
                    let mut two = two;
                    let mut begin = [0; 8];
                    two.read_exact(&mut begin).await.unwrap();
                    // Lengths of a header and a body, and then not all of them.
                    two.write_all(&[5, 0, 0, 0, 100, 0, 0, 0, 1, 2, 3]).await.unwrap();
                });
                Ok(Pipe::opened_over(hop.node(), Foreign(one), PipeLimits::default()))
            }) as BoxFuture<'static, _>
        });
        let fetcher = Fetcher::new(Arc::clone(&home.store), dial, waits());
        let fetch = fetcher.fetch(ManifestId([1; 32]), [], vec![hop(1)]);
        fetch.done().await.unwrap_err();
        let faults = fetch.dropped().0;
        assert!(matches!(&*faults[0], Fault::Pipe { .. }), "{:?}", faults[0]);
    });
}

#[test]
fn whoever_cannot_even_be_dialled_in_time_is_named() {
    run(async {
        let home = Home::new(limits());
        let never: Dial = Arc::new(|_| Box::pin(std::future::pending()));
        let brief = Waits { dial: Duration::from_millis(50), ..waits() };
        let fetcher = Fetcher::new(Arc::clone(&home.store), never, brief);
        let fetch = fetcher.fetch(ManifestId([1; 32]), [], vec![hop(1)]);
        let error = fetch.done().await.unwrap_err();
        assert!(
            matches!(*fetch.dropped().0[0], Fault::NotReached { peer, .. } if peer == node(1)),
            "{error}"
        );
    });
}

#[test]
fn sources_that_have_nothing_of_use_end_a_fetch_in_time() {
    run(async {
        let path = fixture(QWEN);
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        net.add(1, &giver.store);
        let some = Home::new(limits());
        net.fetcher(&some.store).fetch(id, [], vec![hop(1)]).done().await.unwrap();
        net.add(2, &some.store);
        let home = Home::new(limits());
        let brief = Waits { stall: Duration::from_millis(200), ..waits() };
        let fetcher = Fetcher::new(Arc::clone(&home.store), net.dial(), brief);
        let fetch = fetcher.fetch(id, all_of(&path), vec![hop(2)]);
        let error = fetch.done().await.unwrap_err();
        assert!(matches!(error, FetchError::Stalled { .. }), "{error}");
        assert!(error.to_string().contains(&node(2).to_string()), "{error}");
    });
}

/// Fetches a model by a manifest that lies; what the lie is answered with.
fn lied(lie: impl FnOnce(&mut Manifest)) -> Arc<StoreError> {
    let path = fixture(LLAMA);
    let mut manifest = manifest(&path).unwrap();
    lie(&mut manifest);
    let (id, encoded) = (manifest.id(), Bytes::from(wire::encode(&manifest)));
    run(async move {
        let (giver, honest) = Home::with(&path);
        let net = Net::default();
        net.add_with(
            1,
            &giver.store,
            Box::new(move |_, _, say, _| Deed::Say(say, encoded.clone())),
        );
        let home = Home::new(limits());
        let fetcher = Fetcher::new(Arc::clone(&home.store), lying_dial(&net, id, honest), waits());
        let fetch = fetcher.fetch(id, all_of(&path), vec![hop(1)]);
        let error = fetch.done().await.unwrap_err();
        let FetchError::Store(error) = error else { panic!("{error}") };
        assert!(home.store.find(id).is_none() && !home.folder(id).exists());
        error
    })
}

/// Dials a node that answers questions about `id` as if they were about `honest`, but for the manifest.
fn lying_dial(net: &Net, id: ManifestId, honest: ManifestId) -> Dial {
    let net = net.clone();
    Arc::new(move |hop| {
        let net = net.clone();
        Box::pin(async move {
            let (here, mut there) = pair(node(0), hop.node());
            let node = net.node(1);
            tokio::spawn(async move {
                while let Ok(Some(frame)) = there.recv().await {
                    let line = wire::decode::<Line>(&frame.header).unwrap();
                    let Some(Say::Want(want)) = line.say else { panic!("{line:?}") };
                    assert_eq!(want.manifest, id.0);
                    let piece = want.piece;
                    let as_honest = Want { manifest: honest.0.to_vec(), piece };
                    let (say, body) = node.server.answer(as_honest).await;
                    let deed = match piece {
                        Some(Piece::Manifest(())) => (node.manners)(0, &want, say, body),
                        _ => Deed::Say(say, body),
                    };
                    let Deed::Say(say, body) = deed else { return };
                    let header = wire::encode(&Line::from(say));
                    if there.send(&header, [body]).await.is_err() {
                        return;
                    }
                }
            });
            Ok(here)
        }) as BoxFuture<'static, _>
    })
}

#[test]
fn a_manifest_that_no_model_can_have_is_refused_before_anything_is_reserved() {
    let error = lied(|manifest| manifest.halves[0].chunks = manifest.halves[0].bytes as u32);
    assert!(matches!(*error, StoreError::Implausible { .. }), "{error}");
    let error = lied(|manifest| manifest.files[0].bytes = 1 << 44);
    assert!(matches!(*error, StoreError::Implausible { .. }), "{error}");
    let error = lied(|manifest| manifest.halves[0].bytes += 1);
    assert!(matches!(*error, StoreError::Implausible { .. }), "{error}");
    let error = lied(|manifest| manifest.class = "int8x-v9".into());
    assert!(matches!(*error, StoreError::OtherClass { .. }), "{error}");
}

#[test]
fn a_manifest_that_its_own_header_denies_is_refused() {
    let lies: [fn(&mut Manifest); 5] = [
        |manifest| manifest.halves.swap(0, 1),
        |manifest| manifest.halves[2].work = Some(Work { memory: 1, macs: 1 }),
        |manifest| manifest.kv_bytes *= 2,
        |manifest| {
            manifest.halves[0].bytes += 5;
            manifest.halves[1].bytes -= 5;
        },
        |manifest| manifest.context += 1,
    ];
    for lie in lies {
        let error = lied(lie);
        assert!(matches!(*error, StoreError::Untrue { .. }), "{error}");
    }
    let error = lied(|manifest| manifest.files[0].header_bytes -= 32);
    let refused = matches!(
        *error,
        StoreError::Untrue { .. } | StoreError::Header { .. } | StoreError::Implausible { .. }
    );
    assert!(refused, "{error}");
}
