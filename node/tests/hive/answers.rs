//! A split model answers as a whole one.

use std::path::PathBuf;

use cadencia_tests::Real;

use crate::nest::{Hive, Member, deep_toy, greedy, smollm2, text};
use crate::process::toy_path;

/// Whether prompts of 4,000 and 8,000 tokens are tried, too (exo#2270): each answer takes minutes.
fn soak() -> bool {
    std::env::var_os("CADENCIA_SOAK").is_some()
}

/// Compares answers of a hive of `nodes` with those of one node, for prompts of so many words.
fn check(model: PathBuf, nodes: usize, words: &[usize], flags: &[&str]) {
    let path = model.to_str().unwrap();
    let hive = Hive::start(&model, nodes - 1, flags, &[]);
    let mut solo = Member::start(&["--model", path, "--lend-mb", "0"]);
    let alone = solo.ready();
    for &words in words {
        let prompt = if words == 0 { "A".to_owned() } else { text(words) };
        let expected = alone.continued(&prompt, 24);
        let cold = hive.api.post("/v1/completions", &greedy(&prompt, 24));
        assert_eq!(cold.text(), expected, "{words} words, cold");
        let again = hive.api.post("/v1/completions", &greedy(&prompt, 24));
        assert_eq!(again.text(), expected, "{words} words, with what was kept");
        if words > 100 {
            let usage = &again.json()["usage"];
            let kept = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            let prompt = usage["prompt_tokens"].as_u64().unwrap();
            assert!(kept + 64 > prompt, "{kept} of {prompt} tokens were kept");
        }
    }
}

#[test]
fn the_toy_split_in_two_answers_as_one() {
    check(toy_path(), 2, &[0, 40, 300], &["--spares", "0"]);
}

#[test]
fn four_nodes_answer_as_one_with_smollm2() {
    let Some(model) = smollm2() else { return };
    let words = if soak() { &[0, 330, 650, 2_600, 5_200][..] } else { &[0, 330, 900] };
    check(model, 4, words, &["--spares", "0"]);
}

#[test]
fn four_nodes_answer_as_one_with_gemma() {
    let Some(model) = Real::Gemma3.find() else { return };
    let words = if soak() { &[0, 330, 2_600][..] } else { &[0, 330] };
    check(model, 4, words, &["--spares", "0", "--own-mb", "320"]);
}

#[test]
fn a_model_cut_at_any_half_block_answers_as_one() {
    let (_folder, model) = deep_toy(4);
    let path = model.to_str().unwrap();
    let mut solo = Member::start(&["--model", path, "--lend-mb", "0"]);
    let alone = solo.ready();
    let (short, long) = ("A".to_owned(), text(60));
    let expected = [alone.continued(&short, 24), alone.continued(&long, 24)];
    // The others stay, and compute for one requester after the other.
    let mut workers = vec![Member::start(&["--lend", path])];
    let seed = workers[0].address.clone();
    for _ in 0..5 {
        workers.push(Member::start(&["--lend", path, "--join", &seed]));
    }
    workers.iter_mut().for_each(|worker| {
        worker.ready();
    });
    let each = (2..8).map(|cut: u32| cut.to_string());
    for cuts in each.chain(["2,3".into(), "3,4,7".into(), "2,3,4,5,6,7".into()]) {
        let flags = ["--cuts", &cuts, "--stages", "0", "--spares", "0"];
        let mut requester = Hive::requester(path, &seed, 0, &flags);
        let api = requester.ready();
        let found = [api.continued(&short, 24), api.continued(&long, 24)];
        assert_eq!(found, expected, "cut before {cuts}");
        let plan = api.get("/v1/hive").json()["hive"]["models"][0]["plan"].clone();
        let stages = plan["stages"].as_array().unwrap().len();
        assert_eq!(stages, cuts.split(',').count(), "{plan}");
    }
    let mut apart = Hive::requester(path, &seed, 0, &["--cuts", "alpha-beta", "--stages", "0"]);
    let api = apart.ready();
    assert_eq!([api.continued(&short, 24), api.continued(&long, 24)], expected);
    let plan = api.get("/v1/hive").json()["hive"]["models"][0]["plan"].clone();
    assert_eq!(plan["stages"].as_array().unwrap().len(), 6, "{plan}");
}

#[test]
fn guesses_travel_along_the_route_and_change_nothing() {
    let Some(model) = smollm2() else { return };
    let hive = Hive::start(&model, 2, &["--spares", "0"], &[]);
    let mut solo = Member::start(&["--model", model.to_str().unwrap(), "--guessing", "off"]);
    let alone = solo.ready();
    // A text that repeats itself, so that what follows is easily guessed.
    let prompt = text(60).repeat(3);
    let found = hive.api.post("/v1/completions", &greedy(&prompt, 64));
    assert_eq!(found.text(), alone.continued(&prompt, 64));
    let details = &found.json()["usage"]["completion_tokens_details"];
    let right = details["accepted_prediction_tokens"].as_u64().unwrap();
    assert!(right > 0, "no guess was right");
}
