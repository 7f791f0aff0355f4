//! How far a fetch is, and how fast it goes. Pure: time comes in as data.

use std::time::{Duration, Instant};

/// How long is measured before the rate is told anew.
const WINDOW: Duration = Duration::from_secs(1);

/// How far a fetch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes that are here, of the parts that are wanted.
    pub done: u64,
    /// Bytes in all; 0 while the manifest is not here.
    pub whole: u64,
    /// Bytes a second, of late.
    pub rate: u64,
    /// How long the rest takes, seconds; `None` while that cannot be told.
    pub eta_s: Option<u32>,
    /// How many send.
    pub sources: usize,
}

/// Measures.
#[derive(Debug)]
pub struct Pace {
    since: Instant,
    bytes: u64,
    rate: u64,
}

impl Pace {
    /// From `now` on.
    pub fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0, rate: 0 }
    }

    /// So many bytes have come.
    pub fn add(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        let passed = now.saturating_duration_since(self.since);
        if passed < WINDOW {
            return;
        }
        let measured = per_second(self.bytes, passed);
        // Half of it is the past, so that the rate told does not jump.
        self.rate = if self.rate == 0 { measured } else { self.rate / 2 + measured / 2 };
        (self.since, self.bytes) = (now, 0);
    }

    /// Bytes a second.
    pub fn rate(&self, now: Instant) -> u64 {
        match self.rate {
            0 => per_second(self.bytes, now.saturating_duration_since(self.since)),
            rate => rate,
        }
    }

    /// How long `bytes` will take, seconds.
    pub fn eta_s(&self, bytes: u64, now: Instant) -> Option<u32> {
        let rate = self.rate(now);
        (rate > 0).then(|| bytes.div_ceil(rate)).and_then(|seconds| u32::try_from(seconds).ok())
    }
}

fn per_second(bytes: u64, passed: Duration) -> u64 {
    let ms = passed.as_millis().max(1);
    u64::try_from(u128::from(bytes) * 1000 / ms).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_what_comes_and_tells_how_long_the_rest_takes() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::new(start);
        assert_eq!((pace.rate(start), pace.eta_s(5, start)), (0, None));
        pace.add(500, at(500));
        assert_eq!(pace.rate(at(500)), 1000);
        assert_eq!(pace.eta_s(2500, at(500)), Some(3));
        pace.add(500, at(1000));
        assert_eq!(pace.rate(at(1000)), 1000);
        pace.add(3000, at(2000));
        assert_eq!(pace.rate(at(2000)), 2000);
        assert_eq!(pace.eta_s(0, at(2000)), Some(0));
    }
}
