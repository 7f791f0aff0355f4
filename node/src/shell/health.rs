//! How this node is, measured: what others are told of it in offers.
//!
//! [`Meter::start`] measures rates, once and for some 0.6 s; [`Meter::health`] reads what is cheap to
//! read, at most each [`REFRESH`]; [`Meter::observe`] takes in what real work took.
//!
//! **Invariant:** nothing here is a guess: what the system does not say is left out, and a machine on
//! which rates cannot be measured says none.

mod heat;
mod power;
mod rates;
mod uptime;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use compute::engine::KernelChoice;
use wire::{Health, Millis, Neighbour};

pub use self::power::Power;
pub use self::rates::measure;

use self::heat::Heat;
use self::uptime::Log;
use super::machine;
use crate::house::fitness::{Rates, Resource};

/// How old what is told may be: offers are made each 20 s, and a laptop that was unplugged should be
/// known as such in the next.
pub const REFRESH: Duration = Duration::from_secs(15);
/// How often is written down that this node is up: what a crash may cost it.
const KEEP_EVERY_MS: u64 = 60_000;
/// An observation counts so much of what is known: one that was disturbed changes little.
const OBSERVED_SHARE: u32 = 16;

/// How a meter is set up.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// Folder of what the node remembers.
    pub state: &'a Path,
    /// Root of the system's sensors, `/sys`.
    pub sensors: &'a Path,
    /// Threads that compute.
    pub threads: usize,
    /// Which kernels.
    pub kernels: KernelChoice,
}

/// Measures this node.
#[derive(Debug)]
pub struct Meter {
    threads: u32,
    told: Mutex<Told>,
}

#[derive(Debug)]
struct Told {
    rates: Rates,
    heat: Heat,
    log: Log,
    kept: Millis,
    read: Option<(Instant, Cheap)>,
}

/// What is cheap to read.
#[derive(Debug, Clone, Copy)]
struct Cheap {
    power: Power,
    ram_free_mb: u32,
    throttled_permille: u32,
}

impl Meter {
    /// Measures rates and begins to watch.
    pub fn start(setting: Setting, now: Millis) -> Self {
        let rates = measure(setting.threads, setting.kernels).unwrap_or_else(|error| {
            tracing::warn!(%error, "no memory to measure this machine; others will not rely on it");
            Rates::default()
        });
        tracing::info!(
            int8_gops = rates.int8_gops,
            read_mb_s = rates.read_mb_s,
            threads = setting.threads,
            "this machine was measured"
        );
        Self::with(rates, setting, now)
    }

    fn with(rates: Rates, setting: Setting, now: Millis) -> Self {
        let heat = Heat::begin(setting.sensors);
        let log = Log::begin(setting.state, now);
        let told = Told { rates, heat, log, kept: Millis(0), read: None };
        Self { threads: setting.threads as u32, told: Mutex::new(told) }
    }

    /// How fast this machine is, as far as is known now.
    pub fn rates(&self) -> Rates {
        self.told().rates
    }

    /// Takes in that real work of this node went at `rate`, in the unit of [`Rates`]. A stage tells so
    /// when it had work without a break.
    pub fn observe(&self, resource: Resource, rate: u32) {
        let mut told = self.told();
        let known = match resource {
            Resource::Read => &mut told.rates.read_mb_s,
            Resource::Compute => &mut told.rates.int8_gops,
        };
        // What was never measured is taken as it is seen.
        *known = match *known {
            0 => rate,
            before => {
                let rest = u64::from(before) * u64::from(OBSERVED_SHARE - 1);
                ((rest + u64::from(rate)) / u64::from(OBSERVED_SHARE)) as u32
            }
        };
    }

    /// How this node is.
    pub fn health(&self, neighbours: Vec<Neighbour>, now: Millis) -> Health {
        let mut told = self.told();
        let cheap = told.cheap(Instant::now(), Cheap::read);
        if now.since(told.kept) >= KEEP_EVERY_MS {
            told.kept = now;
            if let Err(error) = told.log.keep(now) {
                tracing::warn!(%error, "cannot write down that this node is up");
            }
        }
        Health {
            int8_gops: told.rates.int8_gops,
            read_mb_s: told.rates.read_mb_s,
            ram_free_mb: cheap.ram_free_mb,
            battery_percent: cheap.power.battery_percent,
            mains: cheap.power.mains,
            stability_permille: told.log.permille(now),
            throttled_permille: cheap.throttled_permille,
            neighbours,
            threads: self.threads,
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // Each change is one assignment.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// What `read` says, or what it said less than [`REFRESH`] ago.
    fn cheap(&mut self, now: Instant, read: impl FnOnce(&mut Heat) -> Cheap) -> Cheap {
        match self.read {
            Some((at, cheap)) if now.duration_since(at) < REFRESH => cheap,
            _ => {
                let cheap = read(&mut self.heat);
                self.read = Some((now, cheap));
                cheap
            }
        }
    }
}

impl Cheap {
    fn read(heat: &mut Heat) -> Self {
        let free = machine::memory_available().unwrap_or(0) / 1_000_000;
        Self {
            power: Power::now(),
            ram_free_mb: u32::try_from(free).unwrap_or(u32::MAX),
            throttled_permille: heat.look(),
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::Word;

    use super::*;

    const NOW: Millis = Millis(1_700_000_000_000);
    const RATES: Rates = Rates { int8_gops: 160, read_mb_s: 8_000 };

    fn meter(folder: &Path) -> Meter {
        let kernels = KernelChoice::Auto;
        let setting = Setting { state: folder, sensors: folder, threads: 2, kernels };
        Meter::with(RATES, setting, NOW)
    }

    #[test]
    fn health_is_what_was_measured_and_fits_in_an_offer() {
        let folder = tempfile::tempdir().unwrap();
        let health = meter(folder.path()).health(Vec::new(), NOW);
        assert_eq!((health.int8_gops, health.read_mb_s, health.threads), (160, 8_000, 2));
        assert_eq!((health.stability_permille, health.throttled_permille), (500, 0));
        let offer = wire::Offer { life_ms: 1, health: Some(health), ..Default::default() };
        assert_eq!(offer.check(), Ok(()));
    }

    #[test]
    fn sensors_are_read_again_only_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let meter = meter(folder.path());
        let mut told = meter.told();
        let power = Power { battery_percent: None, mains: true };
        let begun = Instant::now();
        let mut read = |after: Duration, ram_free_mb| {
            let cheap = Cheap { power, ram_free_mb, throttled_permille: 0 };
            told.cheap(begun + after, |_| cheap).ram_free_mb
        };
        let seconds = Duration::from_secs;
        assert_eq!([read(seconds(0), 1), read(seconds(14), 2), read(REFRESH, 3)], [1, 1, 3]);
    }

    #[test]
    fn real_work_moves_rates_slowly_and_both_ways() {
        let folder = tempfile::tempdir().unwrap();
        let meter = meter(folder.path());
        meter.observe(Resource::Read, 4_000);
        assert_eq!(meter.rates().read_mb_s, 7_750);
        (0..200).for_each(|_| meter.observe(Resource::Read, 9_000));
        assert!((8_900..=9_000).contains(&meter.rates().read_mb_s), "{:?}", meter.rates());
        assert_eq!(meter.rates().int8_gops, 160, "of arithmetic nothing was seen");
    }

    #[test]
    fn that_it_is_up_is_on_disk_once_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let meter = meter(folder.path());
        let file = || std::fs::read_to_string(folder.path().join("uptime")).unwrap_or_default();
        meter.health(Vec::new(), NOW);
        let first = file();
        assert!(!first.is_empty());
        meter.health(Vec::new(), NOW.plus(KEEP_EVERY_MS - 1));
        assert_eq!(file(), first);
        meter.health(Vec::new(), NOW.plus(KEEP_EVERY_MS));
        assert_ne!(file(), first);
    }
}
