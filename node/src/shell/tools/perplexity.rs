//! `cadencia perplexity`

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use compute::engine::StepError;
use compute::tokenizer::Specials;
use serde_json::json;

use super::{load, read_text};
use crate::shell::args::Perplexity;
use crate::shell::progress::{Progress, Unit};
use crate::shell::settings::Settings;
use crate::shell::speaker::Speaker;

/// Measures how well a model predicts a text.
pub fn perplexity(flags: &Perplexity, settings: &Settings) -> Result<ExitCode> {
    let text = read_text(&flags.file)?;
    let speaker = load(settings)?;
    let trained = speaker.model().summary().context_length;
    let window = flags.ctx as usize;
    ensure!(window <= trained, "--ctx {window}: the model was trained for {trained} tokens");
    let tokens = speaker.tokenizer()?.encode(&text, Specials::Parse);
    let most = flags.windows.map_or(usize::MAX, |n| n as usize);
    let count = (tokens.len() / window).min(most);
    ensure!(count > 0, "the text has {} tokens, and one window takes {window}", tokens.len());

    let start = Instant::now();
    let mut score = Score::default();
    let mut progress = Progress::new("scoring", Unit::Tokens);
    for (n, tokens) in tokens.chunks_exact(window).take(count).enumerate() {
        score.add(&score_window(&speaker, tokens)?);
        progress.set(((n + 1) * window) as u64, (count * window) as u64);
    }
    drop(progress);
    let seconds = start.elapsed().as_secs_f64();
    let (ppl, error) = (score.perplexity(), score.error());
    let mut out = std::io::stdout();
    if flags.json {
        let value = json!({
            "ppl": ppl, "error": error, "windows": count, "ctx": window,
            "scored": score.count, "tokens": tokens.len(), "seconds": seconds,
        });
        writeln!(out, "{value}")?;
    } else {
        let scored = score.count;
        writeln!(
            out,
            "perplexity {ppl:.4} +/- {error:.4} ({count} windows of {window}, {scored} tokens scored, {seconds:.1} s)"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Scores one window: the tokens of its second half, each from all tokens before it.
fn score_window(speaker: &Speaker, tokens: &[u32]) -> Result<Score, StepError> {
    let mut fed = tokens.to_vec();
    let tokenizer = speaker.model().tokenizer();
    if let Some(bos) = tokenizer.filter(|t| t.adds_bos()).and_then(|t| t.bos()) {
        fed[0] = bos;
    }
    let half = tokens.len() / 2;
    let mut session = speaker.model().session(tokens.len());
    session.feed(&fed[..half])?;
    let mut score = Score::default();
    session.logits_each(&fed[half..tokens.len() - 1], &mut |n, logits| {
        score.take(surprise(logits, tokens[half + n + 1]));
    })?;
    Ok(score)
}

/// -ln of the probability that `logits` give to `token`.
fn surprise(logits: &[f32], token: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from((x - most).exp())).sum();
    sum.ln() - f64::from(logits[token as usize] - most)
}

/// A running sum of surprises.
#[derive(Debug, Default, Clone, Copy)]
struct Score {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Score {
    fn take(&mut self, surprise: f64) {
        self.count += 1;
        self.sum += surprise;
        self.squares += surprise * surprise;
    }

    fn add(&mut self, other: &Score) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    fn perplexity(&self) -> f64 {
        (self.sum / self.count as f64).exp()
    }

    /// One standard error of the perplexity.
    fn error(&self) -> f64 {
        let n = self.count as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        self.perplexity() * (variance / (n - 1.0).max(1.0)).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_surprise_by_the_logarithm_of_their_number() {
        assert!((surprise(&[3.0; 8], 5) - 8f64.ln()).abs() < 1e-12);
        assert!((surprise(&[1000.0, 0.0], 0)).abs() < 1e-12);
        assert!((surprise(&[-1e30, 0.0], 0) - 1e30).abs() < 1e24);
    }

    #[test]
    fn perplexity_is_the_exponential_of_the_mean_surprise() {
        let mut score = Score::default();
        for surprise in [1.0, 2.0, 3.0] {
            score.take(surprise);
        }
        assert!((score.perplexity() - 2f64.exp()).abs() < 1e-12);
        let expected = 2f64.exp() * (2.0f64 / 3.0 / 2.0).sqrt();
        assert!((score.error() - expected).abs() < 1e-9);
    }
}
