//! How much a seed lends as a ghost player: much while few others are there, nothing in the end.

/// The most of its own capacity that a seed lends, percent. The rest keeps it reachable, which is what
/// it is for.
pub const CAP_PERCENT: u64 = 90;
/// A whole, permille.
const WHOLE: u64 = 1000;

/// The community's share of all work, permille.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Share(u64);

impl Share {
    /// Of `permille`; more than a whole is a whole.
    pub fn permille(permille: u32) -> Self {
        Self(u64::from(permille).min(WHOLE))
    }

    /// Of `community` in all of the work, of which sentinels did `sentinels`. Where nothing was done,
    /// the community has no share yet.
    pub fn of(community: u64, sentinels: u64) -> Self {
        let all = u128::from(community) + u128::from(sentinels);
        Self((u128::from(community) * u128::from(WHOLE) / all.max(1)) as u64)
    }
}

/// What a seed has, or lends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Sequences of others at a time.
    pub sequences: u32,
    /// Memory for parts of models and their caches, bytes.
    pub bytes: u64,
}

/// What a seed that has `own` lends: of itself the share that the community does not have, and at most
/// [`CAP_PERCENT`]. Rounded down, so that a whole community means nothing at all.
pub fn lends(own: Capacity, community: Share) -> Capacity {
    let part = (WHOLE - community.0).min(CAP_PERCENT * 10);
    let of = |whole: u64| (u128::from(whole) * u128::from(part) / u128::from(WHOLE)) as u64;
    Capacity { sequences: of(own.sequences.into()) as u32, bytes: of(own.bytes) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: Capacity = Capacity { sequences: 16, bytes: 8_000_000_000 };

    #[test]
    fn a_seed_lends_most_of_itself_at_first_and_nothing_in_the_end() {
        let at = |permille| lends(OWN, Share::permille(permille));
        assert_eq!(at(0), Capacity { sequences: 14, bytes: 7_200_000_000 });
        assert_eq!(at(100), at(0), "the cap holds until the community has more than a tenth");
        assert_eq!(at(250), Capacity { sequences: 12, bytes: 6_000_000_000 });
        assert_eq!(at(900), Capacity { sequences: 1, bytes: 800_000_000 });
        assert_eq!(at(1000), Capacity::default());
        assert_eq!(at(5000), Capacity::default());
    }

    #[test]
    fn a_share_is_that_of_the_work_done() {
        assert_eq!(Share::of(0, 0), Share::permille(0));
        assert_eq!(Share::of(1, 3), Share::permille(250));
        assert_eq!(Share::of(u64::MAX, u64::MAX), Share::permille(500));
        assert_eq!(Share::of(7, 0), Share::permille(1000));
    }

    proptest! {
        #[test]
        fn a_larger_community_never_means_that_more_is_lent(
            sequences in any::<u32>(), bytes in any::<u64>(), a in 0..=1000u32, b in 0..=1000u32,
        ) {
            let own = Capacity { sequences, bytes };
            let (less, more) = (lends(own, Share::permille(a.max(b))), lends(own, Share::permille(a.min(b))));
            prop_assert!(less.sequences <= more.sequences && less.bytes <= more.bytes);
            let cap = u128::from(CAP_PERCENT);
            prop_assert!(u128::from(more.bytes) * 100 <= u128::from(bytes) * cap);
            prop_assert!(u128::from(more.sequences) * 100 <= u128::from(sequences) * cap);
        }
    }
}
