//! A split model answers as a whole one.

use std::path::PathBuf;

use cadencia_tests::Real;

use crate::nest::{Hive, Member, greedy, smollm2, text};
use crate::process::toy_path;

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
    // 4,000 tokens take a minute for each of three answers on a busy machine.
    let long = if std::env::var_os("CADENCIA_SOAK").is_some() { 2_600 } else { 900 };
    check(model, 4, &[0, 330, long], &["--spares", "0"]);
}

#[test]
fn four_nodes_answer_as_one_with_gemma() {
    let Some(model) = Real::Gemma3.find() else { return };
    check(model, 4, &[0, 330], &["--spares", "0", "--own-mb", "320"]);
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
    assert!(right > 5, "{right} guesses were right");
}
