//! Several sources, fetches that share, stop and go on.

use super::*;

fn honest(_: usize, _: &Want, say: Say, body: Bytes) -> Deed {
    Deed::Say(say, body)
}

/// Rounds until all parts are here, if each node sends a chunk a round.
async fn rounds(nodes: u8) -> usize {
    let path = fixture(QWEN);
    let (giver, id) = Home::with(&path);
    let (net, changed) = (Net::default(), Arc::new(Notify::new()));
    for number in 1..=nodes {
        let given = tokio::sync::Semaphore::new(0);
        let permits = Permits { given, waiting: Mutex::new(0), changed: Arc::clone(&changed) };
        net.add_paced(number, &giver.store, Box::new(honest), Some(permits));
    }
    let home = Home::new(limits());
    let fetcher = net.fetcher(&home.store);
    let fetch = fetcher.fetch(id, all_of(&path), (1..=nodes).map(hop).collect());
    let total = chunks_of(&path, &all_of(&path));
    let counted = std::cell::Cell::new(0);
    let pace = async {
        loop {
            let node = |number| net.node(number);
            let waits =
                |number: &u8| *node(*number).permits.as_ref().unwrap().waiting.lock().unwrap() > 0;
            let asked: usize = (1..=nodes).map(|number| net.asked(number).len()).sum();
            let ready: Vec<u8> = (1..=nodes).filter(waits).collect();
            // The head comes first, and has too few chunks for all of them.
            let beginning = asked <= chunks_of(&path, &[FilePart::Head]);
            let all = ready.len() == usize::from(nodes) || asked >= total || beginning;
            if ready.is_empty() || !all {
                changed.notified().await;
                continue;
            }
            for number in ready {
                let node = node(number);
                let permits = node.permits.as_ref().unwrap();
                *permits.waiting.lock().unwrap() -= 1;
                permits.given.add_permits(1);
            }
            counted.set(counted.get() + 1);
        }
    };
    tokio::select! {
        ready = fetch.done() => { ready.unwrap(); }
        () = pace => {}
    }
    counted.get()
}

#[test]
fn three_sources_of_one_pace_take_half_the_time_of_one_at_most() {
    let (one, three) = run(async { (rounds(1).await, rounds(3).await) });
    assert!(2 * three <= one, "{one} rounds with one, {three} with three");
}

#[test]
fn fetches_of_one_model_share_their_work() {
    run(async {
        let path = fixture(LLAMA);
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        net.add(1, &giver.store);
        let home = Home::new(limits());
        let fetcher = net.fetcher(&home.store);
        let (one, two) =
            (vec![FilePart::Ends, FilePart::Half(0)], vec![FilePart::Half(0), FilePart::Half(1)]);
        let first = fetcher.fetch(id, one, vec![hop(1)]);
        let second = fetcher.fetch(id, two, vec![hop(1)]);
        let (first, second) = tokio::join!(first.done(), second.done());
        assert_eq!(first.unwrap().path(), second.unwrap().path());
        let both = [FilePart::Head, FilePart::Ends, FilePart::Half(0), FilePart::Half(1)];
        assert_eq!(net.asked(1).len(), chunks_of(&path, &both), "nothing is asked for twice");
        assert_eq!(net.node(1).open.subscribe().borrow().to_owned(), 1, "one pipe serves both");
    });
}

#[test]
fn work_stops_with_the_last_fetch_and_goes_on_where_it_stopped() {
    run(async {
        let path = fixture(QWEN);
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        let total = chunks_of(&path, &all_of(&path));
        let enough = total / 2;
        net.add_with(
            1,
            &giver.store,
            Box::new(
                move |count, _, say, body| {
                    if count > enough { Deed::Silent } else { Deed::Say(say, body) }
                },
            ),
        );
        net.add(2, &giver.store);
        let mut small = limits();
        small.writing.sync_bytes = 1;
        let home = Home::new(small);
        let fetcher = net.fetcher(&home.store);
        let fetch = fetcher.fetch(id, all_of(&path), vec![hop(1)]);
        let mut progress = fetch.progress();
        let stock = async {
            loop {
                if let Some(stock) = home.store.find(id) {
                    let here: u64 = (0..11).map(|part| stock.bytes_here(part)).sum();
                    let chunks = net.asked(1).len();
                    if chunks >= enough && here > 0 && written(&home, id) == enough {
                        return;
                    }
                }
                progress.changed().await.unwrap();
            }
        };
        tokio::select! {
            done = fetch.done() => panic!("half of it is missing: {done:?}"),
            () = stock => {}
        }
        drop(fetch);
        let mut open = net.node(1).open.subscribe();
        open.wait_for(|open| *open == 0).await.unwrap();
        // As if the program had been killed just then.
        let again = home.killed();
        let fetch = net.fetcher(&again.store).fetch(id, all_of(&path), vec![hop(2)]);
        fetch.done().await.unwrap();
        assert_eq!(net.asked(2).len(), total - enough, "what was here is not fetched again");
        // And in the store that lived on.
        let fetch = fetcher.fetch(id, all_of(&path), vec![hop(2)]);
        fetch.done().await.unwrap();
        assert_eq!(net.asked(2).len(), 2 * (total - enough));
        let ready = fetch.done().await.unwrap();
        assert_eq!(net.asked(2).len(), 2 * (total - enough), "nothing is asked for what is here");
        load(ready.path(), None);
    });
}

/// Chunks that the record of a model has.
fn written(home: &Home, id: ManifestId) -> usize {
    record::Record::read(&home.folder(id), id).unwrap().len()
}

#[test]
fn sources_that_come_later_are_asked_and_those_that_have_a_part_for_that_part_alone() {
    run(async {
        let path = fixture(QWEN);
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        net.add(1, &giver.store);
        let some = Home::new(limits());
        let part = [FilePart::Head, FilePart::Half(1)];
        net.fetcher(&some.store).fetch(id, part, vec![hop(1)]).done().await.unwrap();
        let before = net.asked(1).len();
        net.add(2, &some.store);
        let home = Home::new(limits());
        let fetcher = net.fetcher(&home.store);
        let fetch = fetcher.fetch(id, all_of(&path), vec![hop(2)]);
        let mut progress = fetch.progress();
        let had = bytes_of(&path, &part);
        let come = progress.wait_for(|progress| progress.done == had);
        tokio::select! {
            done = fetch.done() => panic!("the rest is missing: {done:?}"),
            come = come => { come.unwrap(); }
        }
        fetch.add(hop(1));
        fetch.done().await.unwrap();
        let of_part = net.asked(2).iter().all(|at| [0, 3].contains(&at.part));
        assert!(of_part && net.asked(2).len() == chunks_of(&path, &part));
        let rest = chunks_of(&path, &all_of(&path)) - net.asked(2).len();
        assert_eq!(net.asked(1).len() - before, rest);
    });
}

#[test]
fn progress_is_told_until_all_is_here() {
    run(async {
        let path = fixture(LLAMA);
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        net.add(1, &giver.store);
        let home = Home::new(limits());
        let fetch = net.fetcher(&home.store).fetch(id, all_of(&path), vec![hop(1)]);
        let mut progress = fetch.progress();
        let whole = bytes_of(&path, &all_of(&path));
        let watched = async {
            let mut last = 0;
            loop {
                progress.changed().await.unwrap();
                let now = *progress.borrow_and_update();
                assert!(now.done >= last && now.done <= now.whole, "{now:?}");
                assert!(now.whole == 0 || now.whole == whole, "{now:?}");
                last = now.done;
                if now.done == whole {
                    return now;
                }
            }
        };
        let (end, ready) = tokio::join!(watched, fetch.done());
        ready.unwrap();
        assert_eq!((end.sources, end.eta_s), (1, Some(0)));
        assert!(end.rate > 0);
    });
}

#[test]
fn without_sources_only_what_is_here_is_ready() {
    run(async {
        let path = fixture(LLAMA);
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        let fetch = net.fetcher(&giver.store).fetch(id, all_of(&path), vec![]);
        assert_eq!(fetch.done().await.unwrap().path(), &path);
        let home = Home::new(limits());
        let fetch = net.fetcher(&home.store).fetch(id, all_of(&path), vec![hop(9)]);
        let error = fetch.done().await.unwrap_err();
        assert!(matches!(error, FetchError::NoSource { .. }), "{error}");
        assert!(error.to_string().contains(&node(9).to_string()), "{error}");
    });
}
