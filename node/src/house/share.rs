//! How many tokens of which sequence are computed in one step.
//!
//! Sequences that answer come first: each waits for one token, and a user watches. What is left of
//! the step goes to prompts, in equal shares, so that a long prompt does not hold up a short one.

/// Prompt tokens below which a share is not worth a step.
const SHARE_MIN: usize = 16;

/// Shares `room` tokens among prompts that want `wanted` tokens each, the first in line first where
/// there is not enough for all.
pub fn share(wanted: &[usize], room: usize) -> Vec<usize> {
    let mut shares = vec![0; wanted.len()];
    let mut left = room;
    loop {
        let hungry = shares.iter().zip(wanted).filter(|(has, wants)| has < wants).count();
        if hungry == 0 || left == 0 {
            return shares;
        }
        let each = (left / hungry).max(SHARE_MIN);
        for (has, wants) in shares.iter_mut().zip(wanted) {
            let more = (wants - *has).min(each).min(left);
            *has += more;
            left -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_prompt_is_done_while_a_long_one_goes_on() {
        assert_eq!(share(&[4000, 20], 256), [236, 20]);
        assert_eq!(share(&[4000, 4000], 256), [128, 128]);
        assert_eq!(share(&[10, 20], 256), [10, 20]);
    }

    #[test]
    fn shares_that_would_be_tiny_go_to_the_first() {
        assert_eq!(share(&[100, 100, 100, 100], 40), [16, 16, 8, 0]);
    }

    proptest! {
        #[test]
        fn room_is_used_and_not_exceeded(wanted in prop::collection::vec(0usize..500, 0..9), room in 0usize..600) {
            let shares = share(&wanted, room);
            prop_assert_eq!(shares.iter().sum::<usize>(), room.min(wanted.iter().sum()));
            prop_assert!(shares.iter().zip(&wanted).all(|(has, wants)| has <= wants));
        }
    }
}
