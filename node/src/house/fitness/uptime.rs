//! How much of lately a node was up, and by how much it is slowed: from events and readings that come
//! as data.

use wire::Millis;

/// After this long what was counts a half: a day. So a week of good days makes up for a bad one.
const HALF_LIFE_MS: u64 = 24 * 3600 * 1000;
/// What nothing is known of counts as half up, for so long: a newcomer is no rock, and no ruin.
const PRIOR_MS: u64 = 3600 * 1000;
/// From so many degrees on the machine is taken to be slowed, millidegrees Celsius.
const WARM_MC: i32 = 80_000;
/// From so many on to stand still.
const HOT_MC: i32 = 105_000;

/// The share of lately that a node was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uptime {
    /// Time up and time known, milliseconds, both decayed.
    up_ms: u64,
    known_ms: u64,
    at: Millis,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Down,
}

impl Uptime {
    /// A node that came up at `now` for the first time.
    pub fn begun(now: Millis) -> Self {
        Self { up_ms: PRIOR_MS / 2, known_ms: PRIOR_MS, at: now, state: State::Up }
    }

    /// It came up.
    pub fn up(&mut self, now: Millis) {
        *self = Self { state: State::Up, ..self.until(now) };
    }

    /// It went down.
    pub fn down(&mut self, now: Millis) {
        *self = Self { state: State::Down, ..self.until(now) };
    }

    /// The share as of `now`, permille.
    pub fn permille(&self, now: Millis) -> u32 {
        let then = self.until(now);
        let share = u128::from(then.up_ms) * 1000 / u128::from(then.known_ms.max(1));
        share.min(1000) as u32
    }

    fn until(&self, now: Millis) -> Self {
        let passed = now.since(self.at);
        let known_ms = decayed(self.known_ms, passed).saturating_add(lived(passed));
        let up_ms = decayed(self.up_ms, passed);
        let up_ms = match self.state {
            State::Up => up_ms.saturating_add(lived(passed)),
            State::Down => up_ms,
        };
        Self { up_ms: up_ms.min(known_ms), known_ms, at: self.at.max(now), state: self.state }
    }
}

/// What `ms` counts after `passed`: half for each half-life, and linear between two.
fn decayed(ms: u64, passed: u64) -> u64 {
    let halvings = passed / HALF_LIFE_MS;
    if halvings >= 64 {
        return 0;
    }
    let ms = ms >> halvings;
    let rest = u128::from(passed % HALF_LIFE_MS);
    ms - (u128::from(ms) * rest / (2 * u128::from(HALF_LIFE_MS))) as u64
}

/// What a span of `passed` that has just ended counts: the sum of its parts, each decayed. With the
/// linear decay above, a half-life leaves three quarters of itself, and all time twice that.
fn lived(passed: u64) -> u64 {
    let halvings = passed / HALF_LIFE_MS;
    let whole = 3 * HALF_LIFE_MS / 2;
    let whole = whole - whole.checked_shr(halvings.min(63) as u32).unwrap_or(0);
    let rest = u128::from(passed % HALF_LIFE_MS);
    let young = rest - rest * rest / (4 * u128::from(HALF_LIFE_MS));
    decayed(whole, passed % HALF_LIFE_MS).saturating_add(young as u64)
}

/// By how much a machine that runs at `now_mhz` instead of `nominal_mhz` is slowed, permille. A
/// frequency that nobody knows slows nothing.
pub fn throttled_by_frequency(now_mhz: u32, nominal_mhz: u32) -> u32 {
    if now_mhz == 0 || now_mhz >= nominal_mhz {
        return 0;
    }
    1000 - (u64::from(now_mhz) * 1000 / u64::from(nominal_mhz)) as u32
}

/// A reading of a sensor, millidegrees Celsius.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Temperature(pub i32);

/// By how much a machine with these readings, the latest last, is taken to be slowed, permille: where
/// no frequency can be read. The middle one of the last five counts, so that one odd reading does
/// not.
pub fn throttled_by_heat(readings: &[Temperature]) -> u32 {
    let mut last = readings[readings.len().saturating_sub(5)..].to_vec();
    last.sort_unstable();
    let Some(Temperature(middle)) = last.get(last.len() / 2) else { return 0 };
    let over = (*middle).clamp(WARM_MC, HOT_MC) - WARM_MC;
    (over as u32) * 1000 / (HOT_MC - WARM_MC) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: u64 = 3600 * 1000;
    const DAY: u64 = 24 * HOUR;

    #[test]
    fn a_node_that_stays_up_becomes_steady() {
        let uptime = Uptime::begun(Millis(0));
        assert_eq!(uptime.permille(Millis(0)), 500);
        assert!(uptime.permille(Millis(9 * HOUR)) > 900);
        assert!(uptime.permille(Millis(7 * DAY)) > 995);
    }

    #[test]
    fn half_of_each_hour_is_half() {
        let mut uptime = Uptime::begun(Millis(0));
        for hour in 0..200 {
            uptime.up(Millis(hour * HOUR));
            uptime.down(Millis(hour * HOUR + HOUR / 2));
        }
        let share = uptime.permille(Millis(200 * HOUR));
        assert!((480..=510).contains(&share), "{share}");
    }

    #[test]
    fn what_is_long_ago_counts_less() {
        let mut bad_once = Uptime::begun(Millis(0));
        bad_once.down(Millis(0));
        bad_once.up(Millis(DAY));
        let next_day = bad_once.permille(Millis(2 * DAY));
        let next_week = bad_once.permille(Millis(9 * DAY));
        assert!(next_day < 700 && next_week > 980, "{next_day} {next_week}");
    }

    #[test]
    fn slowness_is_read_from_frequency_or_from_heat() {
        assert_eq!(throttled_by_frequency(1500, 3000), 500);
        assert_eq!(throttled_by_frequency(3500, 3000), 0);
        assert_eq!(throttled_by_frequency(0, 3000), 0);
        assert_eq!(throttled_by_frequency(10, 0), 0);
        let readings = |all: &[i32]| all.iter().map(|mc| Temperature(*mc)).collect::<Vec<_>>();
        assert_eq!(throttled_by_heat(&readings(&[])), 0);
        assert_eq!(throttled_by_heat(&readings(&[60_000, 60_000, 130_000, 61_000, 60_000])), 0);
        assert_eq!(throttled_by_heat(&readings(&[20_000, 92_500, 92_500, 92_500])), 500);
        assert_eq!(throttled_by_heat(&readings(&[i32::MAX])), 1000);
        assert_eq!(throttled_by_heat(&readings(&[i32::MIN])), 0);
    }

    proptest! {
        #[test]
        fn a_share_is_a_share_whatever_the_times(times in prop::collection::vec((any::<u64>(), any::<bool>()), 0..20), end in any::<u64>()) {
            let mut uptime = Uptime::begun(Millis(times.first().map_or(0, |(at, _)| *at)));
            for (at, up) in times {
                if up { uptime.up(Millis(at)) } else { uptime.down(Millis(at)) }
                prop_assert!(uptime.permille(Millis(end)) <= 1000);
            }
        }

        #[test]
        fn asking_in_between_changes_little(a in 0..20 * DAY, b in 0..20 * DAY) {
            let whole = Uptime::begun(Millis(0));
            let mut parts = whole;
            parts.up(Millis(a.min(b)));
            parts.up(Millis(a.max(b)));
            let end = Millis(a.max(b));
            prop_assert!(whole.permille(end).abs_diff(parts.permille(end)) <= 30);
        }
    }
}
