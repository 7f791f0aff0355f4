//! How fit a node is for a kind of work, from how it says it is, how near it is, and how far it is
//! believed.
//!
//! [`fitness`] is for sorting: which nodes a planner looks at. What a plan will take is computed from
//! [`Rates`], see [`super::place`].
//!
//! **Invariant:** whole numbers, and no claim makes the sum exceed [`FIT`].

mod belief;
mod uptime;

pub use belief::{Belief, Beliefs, NEWCOMER_PERMILLE, Observed, Resource};
pub use uptime::{Temperature, Uptime, throttled_by_frequency, throttled_by_heat};

use wire::Health;

/// The largest fitness: everything at its best.
pub const FIT: u32 = 1000;
/// Rate of 8-bit operations that counts half, 10^9 a second: some eight laptop cores.
const HALF_GOPS: u64 = 500;
/// Rate of reading that counts half, MB/s: two channels of memory.
const HALF_READ_MB_S: u64 = 20_000;
/// Free memory that counts half, MB.
const HALF_MEMORY_MB: u64 = 8_000;
/// Round trip that counts half, microseconds: across a country.
const HALF_RTT_US: u64 = 10_000;

/// Kinds of work, which want different nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Reading a prompt: many rows at a time, bound by arithmetic.
    Prefill,
    /// Answering: a row at a time, bound by reading weights and by distance.
    Decode,
    /// Attention halves alone (alpha): they keep the caches, so memory and staying count.
    Attention,
    /// Feed-forward halves alone (beta): they remember nothing, and may run on a phone.
    FeedForward,
}

/// How fast a node computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    /// 8-bit operations, 10^9 a second, two a multiply-add.
    pub int8_gops: u32,
    /// Reading of weights, MB/s.
    pub read_mb_s: u32,
}

impl Rates {
    /// What a node claims, less what heat takes.
    pub fn claimed(health: &Health) -> Self {
        let left = 1000_u32.saturating_sub(health.throttled_permille);
        let cooled = |rate: u32| (u64::from(rate) * u64::from(left) / 1000) as u32;
        Self { int8_gops: cooled(health.int8_gops), read_mb_s: cooled(health.read_mb_s) }
    }
}

/// What counts how much; each row sums to [`FIT`].
struct Weights {
    compute: u32,
    read: u32,
    memory: u32,
    battery: u32,
    near: u32,
    stability: u32,
}

impl Purpose {
    fn weights(self) -> Weights {
        let [compute, read, memory, battery, near, stability] = match self {
            Self::Prefill => [450, 100, 100, 100, 100, 150],
            Self::Decode => [50, 350, 100, 50, 300, 150],
            Self::Attention => [50, 200, 300, 150, 150, 150],
            Self::FeedForward => [250, 250, 50, 100, 250, 100],
        };
        Weights { compute, read, memory, battery, near, stability }
    }
}

/// How fit a node in this `health` is, that is `rtt_us` away and believed to have `rates`: 0 to
/// [`FIT`].
pub fn fitness(health: &Health, rates: Rates, rtt_us: u64, purpose: Purpose) -> u32 {
    let weights = purpose.weights();
    let battery = match (health.mains, health.battery_percent) {
        (true, _) | (false, None) => FIT,
        (false, Some(percent)) => percent.min(100) * 10,
    };
    let sum = weights.compute * more(rates.int8_gops.into(), HALF_GOPS)
        + weights.read * more(rates.read_mb_s.into(), HALF_READ_MB_S)
        + weights.memory * more(health.ram_free_mb.into(), HALF_MEMORY_MB)
        + weights.battery * battery
        + weights.near * (FIT - more(rtt_us, HALF_RTT_US))
        + weights.stability * health.stability_permille.min(FIT);
    sum / FIT
}

/// More is better, but ever less so: `half` gives 500, and nothing gives more than [`FIT`]. So a node
/// that claims the moon is placed little before one that is good.
fn more(value: u64, half: u64) -> u32 {
    (u128::from(value) * u128::from(FIT) / (u128::from(value) + u128::from(half))) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn desk() -> Health {
        let (int8_gops, read_mb_s, ram_free_mb) = (400, 20_000, 16_000);
        Health {
            int8_gops,
            read_mb_s,
            ram_free_mb,
            mains: true,
            stability_permille: 950,
            ..Health::default()
        }
    }

    fn fit(health: &Health, rtt_us: u64, purpose: Purpose) -> u32 {
        fitness(health, Rates::claimed(health), rtt_us, purpose)
    }

    #[test]
    fn the_weights_of_each_purpose_make_a_whole() {
        use Purpose::*;
        for purpose in [Prefill, Decode, Attention, FeedForward] {
            let w = purpose.weights();
            let sum = w.compute + w.read + w.memory + w.battery + w.near + w.stability;
            assert_eq!(sum, FIT, "{purpose:?}");
        }
    }

    #[test]
    fn a_phone_is_fitter_for_feed_forward_than_for_attention() {
        let phone = Health {
            int8_gops: 300,
            ram_free_mb: 2_000,
            mains: false,
            battery_percent: Some(60),
            stability_permille: 500,
            ..desk()
        };
        let lost = |purpose| fit(&desk(), 3_000, purpose) - fit(&phone, 3_000, purpose);
        assert!(lost(Purpose::FeedForward) < lost(Purpose::Attention));
    }

    #[test]
    fn a_far_node_is_fitter_for_prompts_than_for_answers() {
        let lost = |purpose| fit(&desk(), 1_000, purpose) - fit(&desk(), 100_000, purpose);
        assert!(lost(Purpose::Prefill) < lost(Purpose::Decode));
    }

    #[test]
    fn heat_makes_a_node_slower_and_less_fit() {
        let hot = Health { throttled_permille: 500, ..desk() };
        assert_eq!(Rates::claimed(&hot), Rates { int8_gops: 200, read_mb_s: 10_000 });
        assert!(fit(&hot, 1_000, Purpose::Decode) < fit(&desk(), 1_000, Purpose::Decode));
    }

    proptest! {
        #[test]
        fn whatever_is_claimed_fitness_has_its_bounds(numbers in any::<[u32; 7]>(), rtt in any::<u64>(), mains: bool) {
            let [int8_gops, read_mb_s, ram_free_mb, battery, stability_permille, throttled_permille, _] = numbers;
            let health = Health {
                int8_gops, read_mb_s, ram_free_mb, battery_percent: Some(battery), mains,
                stability_permille, throttled_permille, ..Health::default()
            };
            for purpose in [Purpose::Prefill, Purpose::Decode, Purpose::Attention, Purpose::FeedForward] {
                prop_assert!(fit(&health, rtt, purpose) <= FIT);
            }
        }
    }
}
