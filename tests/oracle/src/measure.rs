//! How far one model's logits are from another's.

use serde::Serialize;

/// What a comparison found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Difference {
    /// Positions compared.
    pub positions: usize,
    /// Mean over positions of KL(reference || other), nats.
    pub kl_mean: f64,
    /// The 99th percentile of the same: the least value that 99 % of positions do not exceed.
    pub kl_p99: f64,
    /// The largest of the same.
    pub kl_max: f64,
    /// Share of positions where both put the same token first, 0 to 1.
    pub top1: f64,
    /// Perplexity of the reference on the positions whose next token is known.
    pub reference_ppl: f64,
    /// Perplexity of the other on the same.
    pub other_ppl: f64,
}

/// Gathers positions.
#[derive(Debug, Default)]
pub struct Tally {
    divergences: Vec<f64>,
    agreements: usize,
    scored: usize,
    reference_loss: f64,
    other_loss: f64,
}

impl Tally {
    /// Takes one position's logits; `next` is the token that follows in the text.
    ///
    /// # Panics
    /// If the two are not of one length or `next` is not an index of them.
    pub fn add(&mut self, reference: &[f32], other: &[f32], next: u32) {
        assert_eq!(reference.len(), other.len());
        let (p, q) = (Distribution::of(reference), Distribution::of(other));
        // Sum of p (ln p - ln q), where ln p = logit - p.log_sum.
        let mut weighted = 0.0;
        for (&a, &b) in reference.iter().zip(other) {
            weighted += f64::from((a - p.max).exp()) * (f64::from(a) - f64::from(b));
        }
        let divergence = weighted / p.sum - p.log_sum + q.log_sum;
        // Rounding can leave it a hair below zero.
        self.divergences.push(if divergence < 0.0 { 0.0 } else { divergence });
        self.agreements += usize::from(p.first == q.first);
        self.scored += 1;
        self.reference_loss += p.log_sum - f64::from(reference[next as usize]);
        self.other_loss += q.log_sum - f64::from(other[next as usize]);
    }

    /// What all positions say together; `None` where there was none.
    pub fn finish(mut self) -> Option<Difference> {
        let positions = self.divergences.len();
        if positions == 0 {
            return None;
        }
        self.divergences.sort_by(f64::total_cmp);
        // NaN sorts last, so a broken position cannot hide from the maximum or the mean.
        let rank = (positions * 99).div_ceil(100) - 1;
        Some(Difference {
            positions,
            kl_mean: self.divergences.iter().sum::<f64>() / positions as f64,
            kl_p99: self.divergences[rank],
            kl_max: self.divergences[positions - 1],
            top1: self.agreements as f64 / positions as f64,
            reference_ppl: (self.reference_loss / self.scored as f64).exp(),
            other_ppl: (self.other_loss / self.scored as f64).exp(),
        })
    }
}

/// What softmax needs to know of logits.
struct Distribution {
    /// The largest logit.
    max: f32,
    /// Where it is first found.
    first: usize,
    /// Sum of `exp(logit - max)`.
    sum: f64,
    /// Logarithm of the sum of `exp(logit)`.
    log_sum: f64,
}

impl Distribution {
    fn of(logits: &[f32]) -> Self {
        let (mut first, mut max) = (0, f32::NEG_INFINITY);
        for (i, &logit) in logits.iter().enumerate() {
            if logit > max {
                (first, max) = (i, logit);
            }
        }
        let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
        Self { max, first, sum, log_sum: f64::from(max) + sum.ln() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(reference: &[f32], other: &[f32]) -> Difference {
        let mut tally = Tally::default();
        tally.add(reference, other, 0);
        tally.finish().unwrap()
    }

    #[test]
    fn equal_logits_do_not_diverge() {
        let found = compare(&[1.0, 2.0, -3.0], &[1.0, 2.0, -3.0]);
        assert_eq!((found.kl_mean, found.top1), (0.0, 1.0));
        assert_eq!(found.reference_ppl, found.other_ppl);
    }

    #[test]
    fn a_constant_added_to_all_logits_changes_nothing() {
        let found = compare(&[1.0, 2.0, -3.0], &[101.0, 102.0, 97.0]);
        assert!(found.kl_mean < 1e-6);
    }

    #[test]
    fn divergence_is_the_sum_of_p_times_the_log_ratio() {
        // p = (3/4, 1/4), q = (1/2, 1/2).
        let found = compare(&[3f32.ln(), 0.0], &[0.0, 0.0]);
        let expected = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((found.kl_mean - expected).abs() < 1e-7, "{found:?}");
        assert!((found.reference_ppl - 4.0 / 3.0).abs() < 1e-6);
        assert!((found.other_ppl - 2.0).abs() < 1e-6);
    }

    #[test]
    fn ranks_count_from_the_smallest() {
        let mut tally = Tally::default();
        for i in 0..200 {
            let other = if i < 3 { [5.0, 0.0] } else { [0.0, 0.0] };
            tally.add(&[0.0, 0.0], &other, 1);
        }
        let found = tally.finish().unwrap();
        // Three of 200 are above: the 99th percentile, rank 198, is one of them.
        assert_eq!(found.kl_p99, found.kl_max);
        assert!(found.kl_max > 1.0);
        assert_eq!(found.positions, 200);
    }

    #[test]
    fn broken_logits_are_not_good_ones() {
        let found = compare(&[1.0, 0.0], &[f32::NAN, 0.0]);
        assert!(found.kl_mean.is_nan() && found.kl_max.is_nan());
    }

    #[test]
    fn nothing_compared_is_no_result() {
        assert_eq!(Tally::default().finish(), None);
    }
}
