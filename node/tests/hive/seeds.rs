//! A hive is found through its seeds, and outlives them.

use std::time::Instant;

use tempfile::TempDir;

use crate::nest::{Api, BETWEEN, Hive, Member, deep_toy, text};
use crate::process::DEADLINE;

/// Waits until something is so; looks again and again, since nobody tells.
#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(BETWEEN);
    }
}

/// Waits until a node has offers of these.
#[track_caller]
fn knows(api: Api, others: &[&str]) {
    until(&format!("{others:?} are known"), || {
        let hive = api.get("/v1/hive").json()["hive"].clone();
        let offers = hive["offers"].as_array().unwrap();
        let known: Vec<&str> = offers.iter().map(|it| it["node"].as_str().unwrap()).collect();
        others.iter().all(|other| known.contains(other))
    });
}

/// rl-swarm#251, hivemind#657
#[test]
fn a_hive_outlives_all_its_seeds_and_still_takes_in_old_and_new_nodes() {
    let (_folder, model) = deep_toy(4);
    let path = model.to_str().unwrap();
    let records = TempDir::new().unwrap();
    let record = |n: usize| records.path().join(format!("seed-{n}.txt"));
    let record = [record(0), record(1)];
    let [first, second] = [record[0].to_str().unwrap(), record[1].to_str().unwrap()];
    let mut seeds = vec![Member::sentinel(&["--record", first])];
    let known = seeds[0].address.clone();
    seeds.push(Member::sentinel(&["--record", second, "--join", &known]));
    until("the seeds have written their records", || record.iter().all(|path| path.exists()));
    let text_of = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();

    // One knows a record as text, one as a file, one the address of a seed.
    let line = text_of(first);
    let lent = ["--lend", path, "--lend-mb", "400"];
    let worker = |join: &str| {
        let mut worker = Member::start(&[&lent[..], &["--join", join]].concat());
        worker.ready();
        worker
    };
    let stays = worker(&line);
    let leaves = worker(second);
    let flags = ["--stages", "2", "--spares", "0"];
    let mut requester = Hive::requester(path, &known, 2, &flags);
    let api = requester.ready();
    let mut solo = Member::start(&["--model", path]);
    let expected = solo.ready().continued(&text(20), 16);
    assert_eq!(api.continued(&text(20), 16), expected);
    knows(leaves.bound, &[&stays.id, &requester.id]);
    knows(stays.bound, &[&leaves.id]);

    // All seeds die at once.
    drop(seeds);
    assert_eq!(api.continued(&text(21), 16), solo.bound.continued(&text(21), 16));

    // A node dies and comes back, elsewhere; all that it was told to join is gone.
    let id = leaves.id.clone();
    let book = leaves.home.path().join("state/peers.json");
    until("the address book names the others", || {
        let book = std::fs::read_to_string(&book).unwrap_or_default();
        book.contains(&stays.id) && book.contains(&requester.id)
    });
    let home = leaves.killed();
    let mut back = Member::start_in(home, &[&lent[..], &["--join", &line]].concat());
    back.ready();
    assert_eq!(back.id, id);
    knows(back.bound, &[&stays.id, &requester.id]);

    // A fresh one knows nobody but one of the hive.
    let fresh = worker(&back.address);
    knows(fresh.bound, &[&stays.id, &requester.id, &id]);
    let mut asks = Hive::requester(path, &fresh.address, 3, &["--spares", "0"]);
    assert_eq!(asks.ready().continued(&text(20), 16), expected);
}
