//! What this machine has: cores, memory, and how fast memory is read.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Physical cores that this process may use: two threads of one core share the units that compute.
pub fn cores() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    num_cpus::get_physical().clamp(1, allowed)
}

/// Memory that could be had now without swapping, bytes: the less of what the system and the
/// control group allow. `None` where the system does not say.
pub fn memory_available() -> Option<u64> {
    let system = kib_line("/proc/meminfo", "MemAvailable:")?;
    Some(group_available().map_or(system, |group| group.min(system)))
}

/// Memory in all, bytes.
pub fn memory_total() -> Option<u64> {
    kib_line("/proc/meminfo", "MemTotal:")
}

/// The most memory that this process has had resident, bytes.
pub fn peak_rss() -> Option<u64> {
    kib_line("/proc/self/status", "VmHWM:")
}

/// The memory that this process has resident now, bytes.
pub fn rss() -> Option<u64> {
    kib_line("/proc/self/status", "VmRSS:")
}

/// Reads `bytes` of memory with `threads` threads, best of several passes, bytes per second. The
/// buffer must be larger than every cache; it is freed before this returns.
pub fn read_bandwidth(threads: usize, bytes: usize) -> f64 {
    const PASSES: usize = 5;
    // Written, not only reserved: pages never written are all the same page of zeros.
    let words = vec![1u64; bytes / 8];
    let part = words.len().div_ceil(threads).max(1);
    let barrier = Barrier::new(words.chunks(part).len());
    let times: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let readers: Vec<_> =
            words.chunks(part).map(|chunk| scope.spawn(|| read(chunk, &barrier, PASSES))).collect();
        readers.into_iter().map(|reader| reader.join().expect("it only adds")).collect()
    });
    // A pass is over when its slowest reader is; the best pass is the one least disturbed.
    let pass = |n: usize| times.iter().map(|reader| reader[n]).fold(0.0, f64::max);
    let best = (0..PASSES).map(pass).fold(f64::INFINITY, f64::min);
    (words.len() * 8) as f64 / best
}

/// How long each pass over `words` took, seconds; all readers begin each pass together.
fn read(words: &[u64], barrier: &Barrier, passes: usize) -> Vec<f64> {
    let pass = |_| {
        barrier.wait();
        let start = Instant::now();
        black_box(sum(black_box(words)));
        start.elapsed().as_secs_f64()
    };
    (0..passes).map(pass).collect()
}

/// Adds in sixteen independent lanes, so that memory is what it waits for.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 16];
    for chunk in words.chunks_exact(16) {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
}

/// What the control group (version 2) still allows, bytes.
fn group_available() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let most: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // Cached files count as used, and give way when memory is wanted.
    let stat = read("memory.stat")?;
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let cached: u64 = cached.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    Some(most.saturating_sub(used.saturating_sub(cached)))
}

/// The number after `key` in a file of lines such as `VmHWM:   1234 kB`, bytes.
fn kib_line(path: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_takes_time_and_uses_every_thread() {
        let speed = read_bandwidth(3, 1 << 20);
        assert!(speed.is_finite() && speed > 1e6, "{speed}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_says_what_memory_there_is() {
        let total = memory_total().unwrap();
        assert!(memory_available().unwrap() <= total);
        assert!((1..=total).contains(&peak_rss().unwrap()));
        assert!(cores() >= 1);
    }
}
