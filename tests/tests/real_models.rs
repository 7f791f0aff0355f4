//! Quality gates on two real models, against llama.cpp's answers from the same files.
//!
//! They skip, with a printed line, where the models have not been fetched.

use std::path::Path;
use std::sync::Arc;

use cadencia_tests::{Greedy, Real, Tokenised, fixture, tokenised};
use compute::engine::{KernelChoice, LoadOptions, Model};
use compute::tokenizer::{Specials, Tokenizer};
use oracle::Oracle;

/// Below this distance between the best and the second logit, rounding may pick either.
const NEAR_TIE: f32 = 0.5;
/// The same in exact arithmetic. llama.cpp rounds too, so a margin that it tells can be wider than
/// the true one: on one prompt of Gemma-3 it tells 0.511 where floats without any rounding of
/// activations give 0.116. Such a step is a near-tie whoever widened it, and is printed.
const NEAR_TIE_EXACT: f32 = 0.25;
/// Tokens in one window of the perplexity measurement; the second half is scored.
const WINDOW: usize = 512;
/// How far perplexity may lie from llama.cpp's, as a fraction.
const PERPLEXITY_TOLERANCE: f64 = 0.0075;

#[test]
fn smollm2_tokenises_exactly() {
    check_tokenizer(Real::SmolLm2);
}

#[test]
fn gemma3_tokenises_exactly() {
    check_tokenizer(Real::Gemma3);
}

#[test]
fn smollm2_continues_as_llama_cpp_does() {
    check_greedy(Real::SmolLm2);
}

#[test]
fn gemma3_continues_as_llama_cpp_does() {
    check_greedy(Real::Gemma3);
}

#[test]
fn smollm2_predicts_a_text_as_well_as_llama_cpp() {
    check_perplexity(Real::SmolLm2, 18.35);
}

#[test]
fn gemma3_predicts_a_text_as_well_as_llama_cpp() {
    check_perplexity(Real::Gemma3, 13.88);
}

fn check_tokenizer(real: Real) {
    let Some(path) = real.find() else { return };
    let file = compute::gguf::Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap().expect("it has a tokeniser");
    let texts = tokenised(real.fixtures());
    for Tokenised { text, plain, special } in &texts {
        assert_eq!(&tokenizer.encode(text, Specials::Plain), plain, "plain: {text:?}");
        assert_eq!(&tokenizer.encode(text, Specials::Parse), special, "special: {text:?}");
    }
    println!("{}: {} texts exact", real.file(), texts.len());
}

/// Equal tokens are wanted up to the first near-tie. llama.cpp's own tokens are fed all the way, so
/// how often the later steps agree is told too.
fn check_greedy(real: Real) {
    let Some(path) = real.find() else { return };
    let model = load(&path);
    let answers = Greedy::read(real.fixtures());
    let wrong: Vec<_> = answers.iter().filter_map(|a| first_wrong_step(&model, &path, a)).collect();
    assert!(wrong.is_empty(), "{}:\n{}", real.file(), wrong.join("\n"));
}

/// The first step before any near-tie that gives another token than llama.cpp does, if one does.
fn first_wrong_step(model: &Arc<Model>, path: &Path, answer: &Greedy) -> Option<String> {
    let tokenizer = model.tokenizer().expect("it has a tokeniser");
    let prompt = tokenizer.encode(&answer.prompt, Specials::Parse);
    assert_eq!(prompt, answer.prompt_tokens, "{:?}", answer.prompt);
    let near_tie = answer.margins.iter().position(|&margin| margin < NEAR_TIE);
    let steps = answer.tokens.len();
    let must_agree = near_tie.unwrap_or(steps);
    let mut session = model.session(prompt.len() + steps);
    let (mut fed, mut agreed, mut wrong) = (prompt, 0, None);
    for (step, &token) in answer.tokens.iter().enumerate() {
        let ours = likeliest(session.logits(&fed).unwrap());
        agreed += usize::from(ours == token);
        if ours != token && step < must_agree && wrong.is_none() {
            wrong = Some((step, ours));
        }
        fed = vec![token];
    }
    println!("{:?}: {agreed} of {steps} equal, {must_agree} of them must be", answer.prompt);
    wrong.and_then(|(step, ours)| explain(path, answer, step, ours))
}

/// What exact arithmetic says of a step on which we and llama.cpp differ: both round, and a margin
/// that is much smaller there than llama.cpp tells was made by llama.cpp's rounding. `None` where it
/// is a near-tie.
fn explain(path: &Path, answer: &Greedy, step: usize, ours: u32) -> Option<String> {
    let (token, margin) = (answer.tokens[step], answer.margins[step]);
    let before = [&answer.prompt_tokens[..], &answer.tokens[..step]].concat();
    let oracle = Oracle::load(path).unwrap();
    let hidden = oracle.hidden(&before).unwrap();
    let logits = oracle.head(&hidden[hidden.len() - hidden.len() / before.len()..]);
    let exact = logits[token as usize] - logits[ours as usize];
    let prompt = &answer.prompt;
    let told = format!(
        "{prompt:?}, step {step}: {ours}, not {token} (margin {margin}, exactly {exact:.3})"
    );
    println!("{told}");
    (exact >= NEAR_TIE_EXACT).then_some(told)
}

fn check_perplexity(real: Real, theirs: f64) {
    let Some(path) = real.find() else { return };
    let model = load(&path);
    let text = std::fs::read_to_string(fixture("text/gpl-3.txt")).unwrap();
    let tokenizer = model.tokenizer().expect("it has a tokeniser");
    let tokens = tokenizer.encode(&text, Specials::Parse);
    // Where the model wants BOS in front of a text, it wants it in front of each window.
    let plain = tokenizer.encode(&text, Specials::Plain);
    let begins_with = (tokens.len() > plain.len()).then(|| tokens[0]);
    let mut session = model.session(WINDOW);
    let (mut nats, mut scored, mut windows) = (0.0, 0, 0);
    for window in tokens.chunks_exact(WINDOW) {
        let mut window = window.to_vec();
        window[0] = begins_with.unwrap_or(window[0]);
        let (context, second) = window.split_at(WINDOW / 2);
        session.rewind(0);
        session.feed(context).unwrap();
        let mut each = |index: usize, logits: &[f32]| {
            if let Some(&next) = second.get(index + 1) {
                nats += surprise(logits, next);
                scored += 1;
            }
        };
        session.logits_each(second, &mut each).unwrap();
        windows += 1;
    }
    assert_eq!(windows, 14, "llama.cpp's figure is over 14 windows");
    assert_eq!(scored, windows * (WINDOW / 2 - 1));
    let ours = (nats / scored as f64).exp();
    let apart = ours / theirs - 1.0;
    println!("{}: perplexity {ours:.3}, llama.cpp {theirs} ({:+.2} %)", real.file(), apart * 100.0);
    assert!(apart.abs() <= PERPLEXITY_TOLERANCE, "{ours:.4} against {theirs}");
}

/// Minus the logarithm of the probability of `token`, in nats.
fn surprise(logits: &[f32], token: u32) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - most).exp()).sum();
    most + sum.ln() - f64::from(logits[token as usize])
}

/// The index of the greatest; of equals, the first.
fn likeliest(logits: &[f32]) -> u32 {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (0..logits.len()).reduce(better).expect("there is a vocabulary") as u32
}

fn load(path: &Path) -> Arc<Model> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = LoadOptions { threads, kernels: KernelChoice::Auto, part: None };
    Model::load(path, &options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}
