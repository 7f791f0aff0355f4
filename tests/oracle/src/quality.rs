//! The quality gate: what an engine's answers to a text lose against the oracle's.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use compute::engine::{KernelChoice, LoadOptions, Model};
use compute::tokenizer::{Specials, Tokenizer};
use serde::Serialize;

use crate::Oracle;
use crate::measure::{Difference, Tally};

/// Tokens in a window.
pub const WINDOW: usize = 512;
/// Windows of a full measurement.
pub const WINDOWS_FULL: usize = 14;
/// Positions whose logits the oracle holds at a time: 64 MiB for a vocabulary of 262,144.
const HELD: usize = 64;

/// What may be lost, on the mean over windows.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Gates {
    /// Most mean divergence, nats.
    pub kl_mean_max: f64,
    /// Most divergence at the 99th percentile, nats.
    pub kl_p99_max: f64,
    /// Least share of positions with the same first token.
    pub top1_min: f64,
}

/// The gates of the numeric class `int8x-v1`.
pub const GATES: Gates = Gates { kl_mean_max: 0.005, kl_p99_max: 0.035, top1_min: 0.95 };

impl Gates {
    /// What `found` violates, in words; empty where it passes. NaN passes nothing.
    pub fn violations(&self, found: &Difference) -> Vec<String> {
        // A comparison with NaN is false, so it is asked whether the value is good.
        let at_most = |name, value: f64, max: f64| {
            let good = value <= max;
            (!good).then(|| format!("{name} is {value:.5}, more than {max}"))
        };
        let agrees = found.top1 >= self.top1_min;
        let top1 = (!agrees)
            .then(|| format!("top-1 agreement is {:.4}, less than {}", found.top1, self.top1_min));
        [
            at_most("mean KL", found.kl_mean, self.kl_mean_max),
            at_most("KL at the 99th percentile", found.kl_p99, self.kl_p99_max),
            top1,
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Cuts a text into at most `count` windows of [`WINDOW`] tokens, as llama.cpp's perplexity tool
/// does: special tokens are not looked for in it, the rest is dropped, and where the model wants
/// BOS, that begins the text and takes the place of every window's first token.
pub fn windows(tokenizer: &Tokenizer, text: &str, count: usize) -> Vec<Vec<u32>> {
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let mut tokens: Vec<u32> = bos.into_iter().collect();
    tokens.extend(tokenizer.encode(text, Specials::Plain));
    cut(&tokens, bos, count)
}

fn cut(tokens: &[u32], bos: Option<u32>, count: usize) -> Vec<Vec<u32>> {
    let begin = |window: &[u32]| {
        let mut window = window.to_vec();
        window[0] = bos.unwrap_or(window[0]);
        window
    };
    tokens.chunks_exact(WINDOW).take(count).map(begin).collect()
}

/// An engine under test: runs a fresh sequence of the first tokens, then of the second, and hands
/// over the logits after each of the second, in order, with its index among them.
pub type Engine<'a> = dyn FnMut(&[u32], &[u32], &mut dyn FnMut(usize, &[f32])) -> Result<()> + 'a;

/// Loads the model at `path` into the oracle and into the engine, and compares the two over at
/// most `windows_max` windows of `text`. The engine computes with `threads` threads.
pub fn measure(path: &Path, text: &str, windows_max: usize, threads: usize) -> Result<Difference> {
    let oracle = Oracle::load(path)?;
    let options = LoadOptions { threads, kernels: KernelChoice::Auto, part: None };
    let model = Model::load(path, &options, &mut |_, _| {})?;
    let tokenizer = model.tokenizer().context("the file has no tokeniser to read a text with")?;
    let windows = windows(tokenizer, text, windows_max);
    compare(&oracle, &windows, &mut |context, scored, each| {
        let mut session = model.session(context.len() + scored.len());
        session.feed(context)?;
        session.logits_each(scored, each)?;
        Ok(())
    })
}

/// Compares an engine with the oracle over the second half of each window, where both have
/// context to go by; the last position's next token lies outside the window.
pub fn compare(oracle: &Oracle, windows: &[Vec<u32>], engine: &mut Engine) -> Result<Difference> {
    let mut tally = Tally::default();
    for window in windows {
        compare_window(oracle, window, engine, &mut tally)?;
    }
    tally.finish().ok_or_else(|| anyhow!("the text is shorter than a window of {WINDOW} tokens"))
}

fn compare_window(
    oracle: &Oracle,
    window: &[u32],
    engine: &mut Engine,
    tally: &mut Tally,
) -> Result<()> {
    let (width, vocab) = (oracle.arch().width, oracle.arch().vocab);
    let (context, rest) = window.split_at(window.len() / 2);
    let (next, scored) = (&rest[1..], &rest[..rest.len() - 1]);
    let hidden = oracle.hidden(window)?;
    let hidden = &hidden[context.len() * width..];
    let mut held = Vec::new();
    let mut heard = 0;
    let mut broken = None;
    engine(context, scored, &mut |index, logits| {
        if broken.is_some() || index != heard || index >= scored.len() || logits.len() != vocab {
            broken.get_or_insert((index, logits.len()));
            return;
        }
        if index % HELD == 0 {
            let until = (index + HELD).min(scored.len());
            held = oracle.head(&hidden[index * width..until * width]);
        }
        tally.add(&held[index % HELD * vocab..][..vocab], logits, next[index]);
        heard += 1;
    })?;
    if let Some((index, count)) = broken {
        bail!("the engine gave {count} logits for token {index}; due were {vocab} for {heard}");
    }
    ensure!(heard == scored.len(), "the engine answered {heard} of {} tokens", scored.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_as_the_model_asks_and_are_whole() {
        let tokens: Vec<u32> = (10..10 + 3 * WINDOW as u32 - 1).collect();
        let plain = cut(&tokens, None, 14);
        assert_eq!(plain.len(), 2);
        assert_eq!(plain[1], tokens[WINDOW..2 * WINDOW]);
        let begun = cut(&tokens, Some(2), 1);
        assert_eq!(begun.len(), 1);
        assert_eq!((begun[0][0], &begun[0][1..]), (2, &tokens[1..WINDOW]));
    }

    fn small() -> (Oracle, Vec<Vec<u32>>) {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/gguf/llama-Q4_0.gguf");
        let window: Vec<u32> = (0..WINDOW as u32).map(|i| i * i % 251).collect();
        (Oracle::load(Path::new(file)).unwrap(), vec![window])
    }

    #[test]
    fn an_engine_that_is_the_oracle_loses_nothing() {
        let (oracle, windows) = small();
        let found = compare(&oracle, &windows, &mut |context, scored, each| {
            let all = oracle.logits(&[context, scored].concat())?;
            let vocab = oracle.arch().vocab;
            let second = all[context.len() * vocab..].chunks(vocab).enumerate();
            second.for_each(|(index, logits)| each(index, logits));
            Ok(())
        });
        let found = found.unwrap();
        assert_eq!(found.positions, WINDOW / 2 - 1);
        assert_eq!((found.top1, found.reference_ppl), (1.0, found.other_ppl));
        assert!(found.kl_max < 1e-9, "{found:?}");
    }

    #[test]
    fn an_engine_that_leaves_out_tokens_is_no_good_one() {
        let (oracle, windows) = small();
        let silent = compare(&oracle, &windows, &mut |_, _, _| Ok(()));
        assert!(silent.unwrap_err().to_string().contains("0 of 255"));
        let narrow = compare(&oracle, &windows, &mut |_, _, each| {
            each(0, &[0.0; 3]);
            Ok(())
        });
        assert!(narrow.unwrap_err().to_string().contains("3 logits for token 0"));
        let skipping = compare(&oracle, &windows, &mut |_, _, each| {
            each(1, &[0.0; 256]);
            Ok(())
        });
        assert!(skipping.unwrap_err().to_string().contains("for token 1"));
    }

    #[test]
    fn gates_name_what_is_violated() {
        let good = Difference {
            positions: 1,
            kl_mean: 0.005,
            kl_p99: 0.035,
            kl_max: 1.0,
            top1: 0.95,
            reference_ppl: 18.0,
            other_ppl: 18.1,
        };
        assert!(GATES.violations(&good).is_empty());
        let bad = Difference { kl_mean: f64::NAN, top1: 0.94, ..good };
        let said = GATES.violations(&bad);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("mean KL") && said[1].contains("0.9400"));
    }
}
