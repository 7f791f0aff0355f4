//! By how much heat slows this machine, as Linux tells it in `/sys`.
//!
//! The frequency at which a processor runs says nothing while it rests. What the kernel lets it run at
//! most says something: it lowers that when it is hot. Where the processor protects itself, it counts
//! how often; then, and where no frequency is said at all, the temperature decides.

use std::fs;
use std::path::{Path, PathBuf};

use crate::house::fitness::{Temperature, throttled_by_frequency, throttled_by_heat};

/// Processors and sensors that are looked at: more than any machine for the home has.
const ENTRIES_MAX: usize = 256;
/// Readings that are kept: as many as count.
const READINGS: usize = 5;
/// What sensors of processors are called, among those of batteries, disks and radios.
const OF_PROCESSORS: [&str; 6] = ["x86_pkg_temp", "cpu", "soc", "coretemp", "k10temp", "acpitz"];

/// Sensors, and what they told before.
#[derive(Debug)]
pub struct Heat {
    root: PathBuf,
    /// What the kernel allowed when rates were measured, MHz of all processors.
    nominal_mhz: u32,
    events: u64,
    readings: Vec<Temperature>,
}

impl Heat {
    /// Of the system whose `/sys` is at `root`. What it is now counts as not slowed, for rates are
    /// measured now.
    pub fn begin(root: &Path) -> Self {
        let mut heat = Self { root: root.into(), nominal_mhz: 0, events: 0, readings: Vec::new() };
        heat.nominal_mhz = heat.allowed_mhz();
        heat.events = heat.count_events();
        heat
    }

    /// By how much it is slowed now, permille.
    pub fn look(&mut self) -> u32 {
        if let Some(warmest) = self.warmest() {
            if self.readings.len() == READINGS {
                self.readings.remove(0);
            }
            self.readings.push(warmest);
        }
        let events = self.count_events();
        let protects_itself = events > self.events;
        self.events = events;
        let by_kernel = throttled_by_frequency(self.allowed_mhz(), self.nominal_mhz);
        if self.nominal_mhz == 0 || protects_itself {
            return by_kernel.max(throttled_by_heat(&self.readings));
        }
        by_kernel
    }

    /// What the kernel allows all processors together, MHz; 0 where it does not say.
    fn allowed_mhz(&self) -> u32 {
        let khz = self.processors().map(|cpu| number(&cpu.join("cpufreq/scaling_max_freq")));
        let sum: u64 = khz.map(|khz| khz.unwrap_or(0).max(0) as u64).sum();
        u32::try_from(sum / 1000).unwrap_or(u32::MAX)
    }

    /// How often processors have slowed themselves since the system began.
    fn count_events(&self) -> u64 {
        let each = self.processors().flat_map(|cpu| {
            let counts = cpu.join("thermal_throttle");
            ["core_throttle_count", "package_throttle_count"].map(|name| number(&counts.join(name)))
        });
        each.map(|count| count.unwrap_or(0).max(0) as u64).sum()
    }

    fn warmest(&self) -> Option<Temperature> {
        let zones = entries(&self.root.join("class/thermal"), "thermal_zone");
        let of_processors = zones.filter(|zone| {
            let kind = fs::read_to_string(zone.join("type")).unwrap_or_default().to_lowercase();
            OF_PROCESSORS.iter().any(|name| kind.contains(name))
        });
        let readings = of_processors.filter_map(|zone| number(&zone.join("temp")));
        readings.filter_map(|mc| i32::try_from(mc).ok()).max().map(Temperature)
    }

    fn processors(&self) -> impl Iterator<Item = PathBuf> {
        let all = entries(&self.root.join("devices/system/cpu"), "cpu");
        all.filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name["cpu".len()..].parse::<u32>().is_ok()
        })
    }
}

/// What in `folder` has a name that begins with `prefix`.
fn entries(folder: &Path, prefix: &'static str) -> impl Iterator<Item = PathBuf> + use<> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = all.filter(move |entry| entry.file_name().to_string_lossy().starts_with(prefix));
    named.take(ENTRIES_MAX).map(|entry| entry.path())
}

fn number(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn set(&self, file: &str, text: impl ToString) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text.to_string() + "\n").unwrap();
        }

        fn allow(&self, cpu: usize, khz: u32) {
            self.set(&format!("devices/system/cpu/cpu{cpu}/cpufreq/scaling_max_freq"), khz);
        }

        fn zone(&self, n: usize, kind: &str, mc: i32) {
            self.set(&format!("class/thermal/thermal_zone{n}/type"), kind);
            self.set(&format!("class/thermal/thermal_zone{n}/temp"), mc);
        }

        fn begin(&self) -> Heat {
            Heat::begin(self.0.path())
        }
    }

    #[test]
    fn a_machine_that_tells_nothing_is_not_slowed() {
        let sys = Sys::new();
        assert_eq!(sys.begin().look(), 0);
        sys.set("devices/system/cpu/cpufreq/boost", 1);
        sys.set("class/thermal/thermal_zone0/type", "x86_pkg_temp");
        sys.set("class/thermal/thermal_zone0/temp", "hot");
        assert_eq!(sys.begin().look(), 0);
    }

    #[test]
    fn what_the_kernel_takes_from_some_processors_is_taken_from_the_whole() {
        let sys = Sys::new();
        (0..4).for_each(|cpu| sys.allow(cpu, 3_000_000));
        let mut heat = sys.begin();
        sys.zone(0, "x86_pkg_temp", 104_000);
        assert_eq!(heat.look(), 0, "warm and not slowed");
        (0..2).for_each(|cpu| sys.allow(cpu, 1_500_000));
        assert_eq!(heat.look(), 250);
        (0..2).for_each(|cpu| sys.allow(cpu, 3_000_000));
        assert_eq!(heat.look(), 0);
    }

    #[test]
    fn a_processor_that_protects_itself_is_slowed_as_far_as_it_is_hot() {
        let sys = Sys::new();
        sys.allow(0, 3_000_000);
        let count = "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count";
        sys.set(count, 7);
        sys.zone(0, "x86_pkg_temp", 92_500);
        let mut heat = sys.begin();
        assert_eq!(heat.look(), 0);
        sys.set(count, 9);
        assert_eq!(heat.look(), 500);
        assert_eq!(heat.look(), 0, "nothing has happened since");
    }

    #[test]
    fn without_frequencies_the_middle_of_the_last_temperatures_of_processors_decides() {
        let sys = Sys::new();
        sys.zone(0, "cpu-thermal", 60_000);
        sys.zone(1, "iwlwifi_1", 110_000);
        let mut heat = sys.begin();
        (0..9).for_each(|_| assert_eq!(heat.look(), 0));
        sys.zone(0, "cpu-thermal", 92_500);
        let looks: Vec<_> = (0..4).map(|_| heat.look()).collect();
        assert_eq!(looks, [0, 0, 500, 500]);
        assert_eq!(heat.readings.len(), READINGS);
    }
}
