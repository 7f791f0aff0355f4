//! The largest of many logits, without sorting them all.

use std::cmp::Ordering;

/// A token and its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    /// Never NaN.
    pub logit: f32,
    pub token: u32,
}

impl Candidate {
    /// Likelier first; among equals, lower tokens.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

/// Puts the `count` likeliest tokens into `out`, in order. `count` is 1 or more.
pub(super) fn largest(logits: &[f32], count: usize, out: &mut Vec<Candidate>) {
    out.clear();
    // Once there are `count`, only what beats the least of them can enter. The bar rises each time
    // that as many again have come in, so each token costs one comparison, mostly.
    let full = count.saturating_mul(2).max(64);
    let mut bar = None;
    for (token, logit) in (0..).zip(logits) {
        if bar.is_some_and(|bar| *logit <= bar) {
            continue;
        }
        out.push(Candidate { logit: *logit, token });
        if out.len() == full {
            bar = Some(cut(out, count));
        }
    }
    if out.len() > count {
        cut(out, count);
    }
    out.sort_unstable_by(Candidate::order);
}

/// Keeps the likeliest `count`, fewer than there are; the least logit among them.
fn cut(out: &mut Vec<Candidate>, count: usize) -> f32 {
    let (_, least, _) = out.select_nth_unstable_by(count - 1, Candidate::order);
    let least = least.logit;
    out.truncate(count);
    least
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_largest_are_the_first_of_all_sorted(
            logits in prop::collection::vec((-6i8..6).prop_map(|x| f32::from(x) / 2.0), 1..400),
            count in 1usize..130,
        ) {
            let mut all: Vec<Candidate> =
                (0..).zip(&logits).map(|(token, logit)| Candidate { logit: *logit, token }).collect();
            all.sort_by(Candidate::order);
            all.truncate(count);
            let mut found = Vec::new();
            largest(&logits, count, &mut found);
            prop_assert_eq!(found, all);
        }
    }
}
