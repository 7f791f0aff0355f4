//! The seeds of a network, as far as they are known: the newest record of each.

use std::collections::BTreeMap;

use thiserror::Error;
use wire::{BootstrapRecord, Millis, NetworkId, NodeId, Verified};

/// Seeds that are remembered. Anybody may sign a record, so there must be a bound; a network with more
/// seeds than that has no need of more.
pub const SEEDS_MAX: usize = 64;
/// How far ahead a seed's clock may be, milliseconds. A record from farther in the future would keep
/// its successors out.
const AHEAD_MS_MAX: u64 = 600_000;

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merged {
    /// The seed was not known.
    New,
    /// It took the place of an older record.
    Newer,
    /// One as new was there.
    Known,
}

/// Why a record was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SeedRefusal {
    /// It leads to another network.
    #[error("the record leads to {theirs}, and {ours} is wanted; use a record of that one")]
    Foreign {
        /// Where it leads.
        theirs: NetworkId,
        /// Where it should lead.
        ours: NetworkId,
    },
    /// It holds no longer.
    #[error("the record of {seed} has expired {ago_s} s ago; ask for a new one")]
    Expired {
        /// Whose it is.
        seed: NodeId,
        /// How long ago, seconds.
        ago_s: u64,
    },
    /// It was made in the future.
    #[error("the record of {seed} was made {ahead_s} s from now; set the clock that is wrong")]
    Ahead {
        /// Whose it is.
        seed: NodeId,
        /// How far in the future, seconds.
        ahead_s: u64,
    },
    /// There are too many.
    #[error("{SEEDS_MAX} seeds are known already; forget one first")]
    Full,
}

/// The seeds of one network.
#[derive(Debug, Clone)]
pub struct Seeds {
    network: NetworkId,
    records: BTreeMap<NodeId, Verified<BootstrapRecord>>,
}

impl Seeds {
    /// Of `network`, of which no seed is known.
    pub fn of(network: NetworkId) -> Self {
        Self { network, records: BTreeMap::new() }
    }

    /// Takes a record in if it is newer than what is known of its seed.
    ///
    /// # Errors
    /// See [`SeedRefusal`]; nothing has changed then but that what had expired is forgotten.
    pub fn merge(
        &mut self,
        record: Verified<BootstrapRecord>,
        now: Millis,
    ) -> Result<Merged, SeedRefusal> {
        self.forget_expired(now);
        let (seed, content) = (record.signer(), record.content());
        let (theirs, ours) = (content.network(), self.network);
        if theirs != ours {
            return Err(SeedRefusal::Foreign { theirs, ours });
        }
        if content.expires() <= now {
            return Err(SeedRefusal::Expired { seed, ago_s: now.since(content.expires()) / 1000 });
        }
        if content.made() > now.plus(AHEAD_MS_MAX) {
            return Err(SeedRefusal::Ahead { seed, ahead_s: content.made().since(now) / 1000 });
        }
        match self.records.get(&seed) {
            Some(known) if known.content().made() >= content.made() => return Ok(Merged::Known),
            None if self.records.len() >= SEEDS_MAX => return Err(SeedRefusal::Full),
            _ => {}
        }
        let before = self.records.insert(seed, record);
        Ok(if before.is_some() { Merged::Newer } else { Merged::New })
    }

    /// Forgets what holds no longer at `now`.
    pub fn forget_expired(&mut self, now: Millis) {
        self.records.retain(|_, record| record.content().expires() > now);
    }

    /// Forgets a seed; whether it was known.
    pub fn forget(&mut self, seed: NodeId) -> bool {
        self.records.remove(&seed).is_some()
    }

    /// Records that hold at `now`, the newest first: who spoke last is likeliest still there.
    pub fn newest(&self, now: Millis) -> Vec<&Verified<BootstrapRecord>> {
        let holding = self.records.values().filter(|record| record.content().expires() > now);
        let mut all: Vec<_> = holding.collect();
        all.sort_by_key(|record| (std::cmp::Reverse(record.content().made()), record.signer()));
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::{Key, SEED_LIFE_MAX};

    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn record(seed: u8, network: NetworkId, made: u64, life: u64) -> Verified<BootstrapRecord> {
        let record = BootstrapRecord {
            network: network.bytes(),
            addresses: vec![format!("/ip4/192.0.2.{seed}/udp/4610/quic-v1")],
            made_ms: made,
            expires_ms: made + life,
            ..Default::default()
        };
        Verified::sign(record, &Key::new([seed; 32])).unwrap()
    }

    fn public(seed: u8, made: u64, life: u64) -> Verified<BootstrapRecord> {
        record(seed, NetworkId::Public, made, life)
    }

    #[test]
    fn the_newest_record_of_each_seed_is_kept_until_it_expires() {
        let mut seeds = Seeds::of(NetworkId::Public);
        let mut merge = |record| seeds.merge(record, Millis(NOW));
        assert_eq!(merge(public(1, NOW - 50, 100)), Ok(Merged::New));
        assert_eq!(merge(public(2, NOW - 40, 200)), Ok(Merged::New));
        assert_eq!(merge(public(1, NOW - 60, 500)), Ok(Merged::Known));
        assert_eq!(merge(public(1, NOW - 10, 100)), Ok(Merged::Newer));
        assert_eq!(merge(public(1, NOW - 10, 100)), Ok(Merged::Known));
        let made = |now| -> Vec<_> {
            seeds.newest(Millis(now)).iter().map(|r| r.content().made_ms).collect()
        };
        assert_eq!(made(NOW), [NOW - 10, NOW - 40]);
        assert_eq!(made(NOW + 90), [NOW - 40]);
        assert!(seeds.forget(Key::new([2; 32]).id()) && !seeds.forget(Key::new([2; 32]).id()));
    }

    #[test]
    fn records_of_other_networks_and_other_times_are_refused() {
        let mut seeds = Seeds::of(NetworkId::Public);
        let (ours, theirs) = (NetworkId::Public, NetworkId::Private(Key::new([9; 32]).id()));
        let mut refused = |record| seeds.merge(record, Millis(NOW)).unwrap_err();
        assert_eq!(refused(record(1, theirs, NOW, 9)), SeedRefusal::Foreign { theirs, ours });
        let seed = Key::new([1; 32]).id();
        let expired = refused(public(1, NOW - 9_000, 4_000));
        assert_eq!(expired, SeedRefusal::Expired { seed, ago_s: 5 });
        let ahead = refused(public(1, NOW + AHEAD_MS_MAX + 1_000, SEED_LIFE_MAX));
        assert_eq!(ahead, SeedRefusal::Ahead { seed, ahead_s: 601 });
        assert!(seeds.newest(Millis(NOW)).is_empty());
    }

    #[test]
    fn a_flood_of_seeds_keeps_none_out_that_is_known() {
        let mut seeds = Seeds::of(NetworkId::Public);
        for seed in 0..SEEDS_MAX as u8 {
            seeds.merge(public(seed, NOW, 1_000), Millis(NOW)).unwrap();
        }
        assert_eq!(seeds.merge(public(200, NOW, 5_000), Millis(NOW)), Err(SeedRefusal::Full));
        assert_eq!(seeds.merge(public(7, NOW + 1, 5_000), Millis(NOW)), Ok(Merged::Newer));
        let later = Millis(NOW + 2_000);
        assert_eq!(seeds.merge(public(200, NOW, 5_000), later), Ok(Merged::New), "others expired");
        assert_eq!(seeds.newest(later).len(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn in_whatever_order_records_come_the_same_are_kept(
            all in prop::collection::vec((0..4u8, 0..1_000u64), 1..12), seed in any::<u64>(),
        ) {
            let fold = |order: &[usize]| {
                let mut seeds = Seeds::of(NetworkId::Public);
                for n in order {
                    seeds.merge(public(all[*n].0, NOW - all[*n].1, 5_000), Millis(NOW)).unwrap();
                }
                seeds.records
            };
            let order: Vec<usize> = (0..all.len()).collect();
            let mut shuffled = order.clone();
            shuffled.sort_by_key(|n| (*n as u64 + 1).wrapping_mul(seed | 1));
            prop_assert_eq!(fold(&order), fold(&shuffled));
        }
    }
}
