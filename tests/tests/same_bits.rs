//! Whole models give the same bits whatever computes them, and however their tokens are fed.
//!
//! `==` on logits, never a tolerance: this equality is what lets one node check another.

use std::path::Path;
use std::sync::Arc;

use cadencia_tests::{Real, tiny_models, token_ids};
use compute::engine::{KernelChoice, LoadOptions, Model, Session};

/// The definition of the numeric class, computed in the plainest way.
const DEFINITION: LoadOptions = LoadOptions { threads: 1, kernels: KernelChoice::Reference };

#[test]
fn all_kernels_and_thread_counts_equal_the_definition() {
    for path in tiny_models() {
        let tokens = token_ids();
        let defined = whole(&load(&path, DEFINITION), &tokens);
        for kernels in [KernelChoice::Auto, KernelChoice::Portable] {
            for threads in [1, 2, 3] {
                let found = whole(&load(&path, LoadOptions { threads, kernels }), &tokens);
                let place = first_difference(&found, &defined);
                assert_eq!(place, None, "{path:?}, {kernels:?}, {threads} threads: (row, column)");
            }
        }
    }
}

#[test]
fn decoding_equals_prefill_in_pieces_of_any_size() {
    for path in tiny_models() {
        let model = load(&path, LoadOptions { threads: 2, kernels: KernelChoice::Auto });
        let tokens = token_ids();
        let at_once = whole(&model, &tokens);
        for piece in [1, 2, 5, 8, 31, 47] {
            let mut session = model.session(tokens.len());
            let rows = tokens.chunks(piece).flat_map(|piece| rows(&mut session, piece)).collect();
            let place = first_difference(&rows, &at_once);
            assert_eq!(place, None, "{path:?} in pieces of {piece}: (row, column)");
        }
    }
}

#[test]
fn feeding_without_logits_changes_nothing_after_it() {
    for path in tiny_models() {
        let model = load(&path, LoadOptions { threads: 1, kernels: KernelChoice::Auto });
        let tokens = token_ids();
        let at_once = whole(&model, &tokens);
        let mut session = model.session(tokens.len());
        let (quiet, told) = tokens.split_at(29);
        session.feed(quiet).unwrap();
        let last = session.logits(told).unwrap().to_vec();
        assert_eq!(Some(&last), at_once.last(), "{path:?}");
    }
}

#[test]
fn a_rewound_session_forgets_what_it_heard() {
    for path in tiny_models() {
        let model = load(&path, LoadOptions { threads: 1, kernels: KernelChoice::Auto });
        let tokens = token_ids();
        let at_once = whole(&model, &tokens);
        let mut session = model.session(tokens.len());
        let (kept, again) = tokens.split_at(17);
        session.feed(kept).unwrap();
        // Another branch of the conversation, then back to the fork.
        let other: Vec<u32> = again.iter().rev().copied().collect();
        session.feed(&other).unwrap();
        session.rewind(kept.len());
        let rows = rows(&mut session, again);
        assert_eq!(first_difference(&rows, &at_once[kept.len()..].to_vec()), None, "{path:?}");
    }
}

#[test]
fn a_real_model_equals_the_definition() {
    for real in [Real::SmolLm2, Real::Gemma3] {
        let Some(path) = real.find() else { continue };
        let tokens: Vec<u32> = token_ids().into_iter().take(4).collect();
        let defined = whole(&load(&path, DEFINITION), &tokens);
        for kernels in [KernelChoice::Auto, KernelChoice::Portable] {
            let found = whole(&load(&path, LoadOptions { threads: 2, kernels }), &tokens);
            let place = first_difference(&found, &defined);
            assert_eq!(place, None, "{}, {kernels:?}: (row, column)", real.file());
        }
    }
}

/// One row of logits for each token.
type Rows = Vec<Vec<f32>>;

fn load(path: &Path, options: LoadOptions) -> Arc<Model> {
    Model::load(path, &options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

fn whole(model: &Arc<Model>, tokens: &[u32]) -> Rows {
    rows(&mut model.session(tokens.len()), tokens)
}

fn rows(session: &mut Session, tokens: &[u32]) -> Rows {
    let mut rows = Rows::new();
    session.logits_each(tokens, &mut |_, logits| rows.push(logits.to_vec())).unwrap();
    assert_eq!(rows.len(), tokens.len(), "a row for each token");
    rows
}

/// Where two answers first differ in a bit, as (row, column); a missing row differs at column 0.
fn first_difference(a: &Rows, b: &Rows) -> Option<(usize, usize)> {
    let bits = |row: &Vec<f32>| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (row, (a, b)) in a.iter().zip(b).enumerate() {
        let (a, b) = (bits(a), bits(b));
        if let Some(column) = a.iter().zip(&b).position(|(a, b)| a != b) {
            return Some((row, column));
        }
        if a.len() != b.len() || a.is_empty() {
            return Some((row, a.len().min(b.len())));
        }
    }
    (a.len() != b.len()).then(|| (a.len().min(b.len()), 0))
}
