//! How likely tokens were, for those who ask.

use super::exp::exp_sum;
use super::select::largest;

/// Natural logarithms of probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProbs {
    /// Of the token that was picked.
    pub chosen: f32,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// The probabilities that a model's own `logits` give, before any bias, penalty or temperature:
/// that of `chosen`, and the `top` likeliest. What is no number has probability 0.
pub fn log_probs(logits: &[f32], chosen: u32, top: usize) -> LogProbs {
    let number = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x.min(f32::MAX) };
    let cleaned: Vec<f32>;
    let logits = match logits.iter().all(|x| number(*x) == *x) {
        true => logits,
        false => {
            cleaned = logits.iter().copied().map(number).collect();
            &cleaned
        }
    };
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if best == f32::NEG_INFINITY {
        return LogProbs { chosen: best, top: Vec::new() };
    }
    let log_sum = exp_sum(logits.iter().copied(), best).ln();
    let log_prob = |logit: f32| (f64::from(logit) - f64::from(best) - log_sum) as f32;
    let mut likeliest = Vec::new();
    if top > 0 {
        largest(logits, top.min(logits.len()), &mut likeliest);
    }
    LogProbs {
        chosen: logits.get(chosen as usize).map_or(f32::NEG_INFINITY, |logit| log_prob(*logit)),
        top: likeliest.iter().map(|one| (one.token, log_prob(one.logit))).collect(),
    }
}
