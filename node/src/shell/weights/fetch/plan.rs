//! Who is asked for which chunk next. Pure: time comes in as data.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Who is asked: the number of a source.
pub type Source = u64;
/// A chunk: its part and its number there.
pub type Spot = (u32, u32);

/// After how long another is asked, too, for what a source has not sent yet: so the last chunks do
/// not wait for the slowest.
const HEDGE_AFTER: Duration = Duration::from_secs(2);
/// How many are asked for one chunk at a time.
const ASKED_MAX: usize = 2;

/// The chunks that are missing, and whom they were asked of.
#[derive(Debug, Default)]
pub struct Plan {
    parts: BTreeMap<u32, BTreeMap<u32, Vec<(Source, Instant)>>>,
}

impl Plan {
    /// These chunks of `part` are missing, too.
    pub fn add(&mut self, part: u32, chunks: &[u32]) {
        let missing = self.parts.entry(part).or_default();
        for chunk in chunks {
            missing.entry(*chunk).or_default();
        }
    }

    /// Nobody wants `part` any more.
    pub fn remove(&mut self, part: u32) {
        self.parts.remove(&part);
    }

    /// What `source` should be asked for next, given the `parts` that it has. It counts as asked.
    pub fn take(&mut self, source: Source, parts: &[u8], now: Instant) -> Option<Spot> {
        let spot = self.unasked(parts).or_else(|| self.late(source, parts, now))?;
        let asked = self.parts.get_mut(&spot.0)?.get_mut(&spot.1)?;
        asked.push((source, now));
        Some(spot)
    }

    /// A chunk is here.
    pub fn done(&mut self, spot: Spot) {
        if let Some(missing) = self.parts.get_mut(&spot.0) {
            missing.remove(&spot.1);
        }
    }

    /// `source` will not send this one.
    pub fn give_back(&mut self, source: Source, spot: Spot) {
        if let Some(asked) = self.parts.get_mut(&spot.0).and_then(|part| part.get_mut(&spot.1)) {
            asked.retain(|(other, _)| *other != source);
        }
    }

    /// `source` is gone.
    pub fn leave(&mut self, source: Source) {
        for asked in self.parts.values_mut().flat_map(BTreeMap::values_mut) {
            asked.retain(|(other, _)| *other != source);
        }
    }

    fn unasked(&self, parts: &[u8]) -> Option<Spot> {
        self.of(parts).find(|(_, asked)| asked.is_empty()).map(|(spot, _)| spot)
    }

    /// The chunk that others have been asked for longest, and too long.
    fn late(&self, source: Source, parts: &[u8], now: Instant) -> Option<Spot> {
        let late = self.of(parts).filter(|(_, asked)| {
            let others = asked.iter().all(|(other, _)| *other != source);
            others && asked.len() < ASKED_MAX
        });
        let since = late.filter_map(|(spot, asked)| {
            let (_, first) = asked.first()?;
            (now.saturating_duration_since(*first) >= HEDGE_AFTER).then_some((*first, spot))
        });
        since.min().map(|(_, spot)| spot)
    }

    /// What is missing of `parts`, bits from the lowest of the first byte.
    fn of<'a>(
        &'a self,
        parts: &'a [u8],
    ) -> impl Iterator<Item = (Spot, &'a Vec<(Source, Instant)>)> {
        let own = self.parts.iter().filter(|(part, _)| has(parts, **part));
        own.flat_map(|(part, chunks)| {
            chunks.iter().map(move |(chunk, asked)| ((*part, *chunk), asked))
        })
    }
}

/// Whether `part` is among `parts`.
pub fn has(parts: &[u8], part: u32) -> bool {
    parts.get(part as usize / 8).is_some_and(|byte| byte & (1 << (part % 8)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[u8] = &[0xff];

    #[test]
    fn each_chunk_is_asked_of_one_who_has_it() {
        let (mut plan, now) = (Plan::default(), Instant::now());
        plan.add(0, &[0, 1]);
        plan.add(3, &[7]);
        assert_eq!(plan.take(1, &[0b1000], now), Some((3, 7)));
        assert_eq!(plan.take(1, &[0b1000], now), None);
        assert_eq!(plan.take(2, ALL, now), Some((0, 0)));
        assert_eq!(plan.take(2, ALL, now), Some((0, 1)));
        assert_eq!(plan.take(2, ALL, now), None);
        assert_eq!(plan.take(2, &[], now), None);
    }

    #[test]
    fn what_one_does_not_send_is_asked_of_another() {
        let (mut plan, now) = (Plan::default(), Instant::now());
        plan.add(0, &[0, 1]);
        let first = plan.take(1, ALL, now).unwrap();
        plan.take(1, ALL, now).unwrap();
        plan.give_back(1, first);
        assert_eq!(plan.take(2, ALL, now), Some((0, 0)));
        plan.leave(1);
        assert_eq!(plan.take(2, ALL, now), Some((0, 1)));
        plan.leave(2);
        plan.done((0, 0));
        assert_eq!(plan.take(3, ALL, now), Some((0, 1)));
    }

    #[test]
    fn a_late_chunk_is_asked_of_one_more_and_no_others() {
        let (mut plan, now) = (Plan::default(), Instant::now());
        plan.add(0, &[0]);
        assert_eq!(plan.take(1, ALL, now), Some((0, 0)));
        assert_eq!(plan.take(2, ALL, now + HEDGE_AFTER / 2), None);
        assert_eq!(plan.take(1, ALL, now + HEDGE_AFTER), None);
        assert_eq!(plan.take(2, ALL, now + HEDGE_AFTER), Some((0, 0)));
        assert_eq!(plan.take(3, ALL, now + 5 * HEDGE_AFTER), None);
        plan.done((0, 0));
        assert_eq!(plan.take(3, ALL, now + 5 * HEDGE_AFTER), None);
    }

    #[test]
    fn nothing_is_asked_of_a_part_that_nobody_wants() {
        let (mut plan, now) = (Plan::default(), Instant::now());
        plan.add(0, &[0]);
        plan.remove(0);
        plan.done((0, 0));
        assert_eq!(plan.take(1, ALL, now), None);
    }
}
