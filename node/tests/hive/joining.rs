//! Who comes in, and with what.

use std::process::Command;
use std::time::{Duration, Instant};

use cadencia_tests::udp_proxy::Weather;

use crate::nest::{Behind, Hive, Member, greedy, smollm2, text};
use crate::process::{DEADLINE, cadencia, toy_path};

/// lumabri PR#111: nodes need no file, and fetch no more than their part.
#[test]
fn nodes_without_the_file_fetch_just_their_layers_and_answer() {
    let Some(model) = smollm2() else { return };
    let path = model.to_str().unwrap();
    let mut workers = vec![Member::start(&["--lend-mb", "400"])];
    let seed = workers[0].address.clone();
    workers.push(Member::start(&["--lend-mb", "400", "--join", &seed]));
    workers.iter_mut().for_each(|worker| {
        worker.ready();
    });
    let mut requester = Hive::requester(path, &seed, 2, &["--spares", "0"]);
    let api = requester.ready();
    let mut solo = Member::start(&["--model", path]);
    let prompt = text(30);
    assert_eq!(api.continued(&prompt, 24), solo.ready().continued(&prompt, 24));
    let whole = model.metadata().unwrap().len();
    for worker in &workers {
        let fetched = on_disk(&worker.home.path().join("state").join("weights"));
        assert!(fetched > 0 && fetched < whole / 2 + (8 << 20), "{fetched} of {whole} bytes");
    }
}

/// lumabri PR#111
#[test]
fn who_asks_before_the_stages_are_ready_is_told_how_far_they_are() {
    let Some(model) = smollm2() else { return };
    let path = model.to_str().unwrap();
    // Its part comes over a way that takes some seconds for it.
    let weather =
        Weather { delay: Duration::from_millis(5), lost_per_mille: 20, ..Weather::default() };
    let mut worker = Behind::start(&["--lend-mb", "400"], weather);
    worker.member.ready();
    let flags = ["--spares", "0"];
    let mut requester = Hive::requester(path, &worker.member.address, 1, &flags);
    let api = requester.bound;
    let end = Instant::now() + DEADLINE;
    let on_the_way = loop {
        let refused = api.post("/v1/completions", &greedy("A", 1));
        let message = refused.error("message");
        if message.contains("s are left") {
            assert_eq!((refused.status, &*refused.error("code")), (503, "loading"));
            assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
            break message;
        }
        assert!(Instant::now() < end, "{message}");
    };
    let percent: u64 = on_the_way
        .split_once(" %")
        .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{on_the_way}"));
    assert!(percent < 100, "{on_the_way}");
    assert!(api.get("/ready").error("message").contains("stages get ready"));
    let stand = api.get("/v1/hive").json()["hive"]["models"][0].clone();
    assert_eq!(stand["stand"], "preparing", "{stand}");
    assert!(stand["done_bytes"].as_u64() < stand["whole_bytes"].as_u64(), "{stand}");
    let status = cadencia(&requester.home).args(["status", "--api", &api.0.to_string()]).output();
    let status = String::from_utf8(status.unwrap().stdout).unwrap();
    assert!(status.contains("stages get ready"), "{status}");
    requester.log.wait_for("s are left");
    let api = requester.ready();
    let mut solo = Member::start(&["--model", path]);
    assert_eq!(api.continued("A", 16), solo.ready().continued("A", 16));
}

/// Bytes that the files in a folder take on disk: holes do not count.
fn on_disk(folder: &std::path::Path) -> u64 {
    let output = Command::new("du").args(["-s", "-B1"]).arg(folder).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_private_hive_lets_in_who_was_invited_and_nobody_else() {
    let toy = toy_path();
    let path = toy.to_str().unwrap();
    let mut founder = Member::start(&["--model", path, "--private", "--lend-mb", "200"]);
    let api = founder.ready();
    let state = founder.home.path().join("state");
    let invite = || {
        let mut command = cadencia(&founder.home);
        command.args(["invite", "--api", &api.0.to_string()]);
        let output = command.args(["--state-dir", state.to_str().unwrap()]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let line = invite();
    // It splits the toy over the founder, though it could do without.
    let flags = ["--stages", "1", "--spares", "0"];
    let mut guest = Hive::requester(path, &line, 1, &flags);
    let mut solo = Member::start(&["--model", path]);
    let prompt = text(20);
    assert_eq!(guest.ready().continued(&prompt, 16), solo.ready().continued(&prompt, 16));
    // The invitation was for one.
    let refused = Hive::requester_ends(path, &line, &flags);
    assert!(refused.contains("invitation"), "{refused}");
    // Who has no invitation finds nobody.
    let stranger = Hive::requester(path, &founder.address, 1, &flags);
    let answer = stranger.bound.get("/ready");
    assert_eq!(answer.status, 503, "{answer:?}");
    let peers = api.get("/v1/hive").json()["hive"]["peers"].as_array().unwrap().len();
    assert_eq!(peers, 1, "only the guest is connected");
}
