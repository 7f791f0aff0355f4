//! Keeps the threads of a pool on different processors.
//!
//! Linux wakes a thread where it slept last unless it sees an idle processor, and in a virtual machine
//! an idle processor counts as taken away by the host and is not seen. Two threads of a pool that once
//! share a processor then stay there for milliseconds, each waiting while the other spins: a step takes
//! three times as long. So whoever begins a step looks where the others slept, and sends those whose
//! place is taken elsewhere before it wakes them.
//!
//! A thread is bound until it next sleeps between two steps. Where the system does not allow it, or is
//! not Linux, threads stay where they are: this changes speed, never results.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Not known, or not asleep.
const NOWHERE: usize = usize::MAX;

/// Where the threads of a pool slept last, all but the first, which is whoever begins a step.
pub(super) struct Spread {
    sleepers: Box<[Sleeper]>,
}

struct Sleeper {
    thread: Mutex<Option<Pid>>,
    processor: AtomicUsize,
    /// Whether it was bound, and where it may run when it is not.
    bound: AtomicBool,
    usual: Mutex<Option<CpuSet>>,
}

impl Spread {
    /// For `count` threads, the first included.
    pub(super) fn new(count: usize) -> Self {
        let sleeper = |_| Sleeper {
            thread: Mutex::new(None),
            processor: AtomicUsize::new(NOWHERE),
            bound: AtomicBool::new(false),
            usual: Mutex::new(None),
        };
        Self { sleepers: (1..count).map(sleeper).collect() }
    }

    /// Thread `id`, above 0, introduces itself.
    pub(super) fn enter(&self, id: usize) {
        *lock(&self.sleepers[id - 1].thread) = Some(gettid());
    }

    /// Thread `id` is about to sleep, and may run wherever it usually may after that.
    pub(super) fn sleep(&self, id: usize) {
        let sleeper = &self.sleepers[id - 1];
        if sleeper.bound.swap(false, Ordering::Relaxed)
            && let Some(usual) = lock(&sleeper.usual).take()
        {
            // What was allowed before is allowed again, or nothing can be done.
            sched_setaffinity(None, &usual).ok();
        }
        sleeper.processor.store(sched_getcpu(), Ordering::Relaxed);
    }

    /// Thread `id` is awake.
    pub(super) fn wake(&self, id: usize) {
        self.sleepers[id - 1].processor.store(NOWHERE, Ordering::Relaxed);
    }

    /// Sends those who sleep where another of the pool runs or slept elsewhere. Called by the first
    /// thread before it wakes the others.
    pub(super) fn part(&self) {
        let place = |sleeper: &Sleeper| sleeper.processor.load(Ordering::Relaxed);
        if self.sleepers.iter().all(|sleeper| place(sleeper) == NOWHERE) {
            return;
        }
        let mut taken = vec![sched_getcpu()];
        for sleeper in &self.sleepers {
            let processor = place(sleeper);
            if processor == NOWHERE {
                continue;
            }
            if taken.contains(&processor) {
                sleeper.send_elsewhere(&taken);
            } else {
                taken.push(processor);
            }
        }
    }
}

impl Sleeper {
    fn send_elsewhere(&self, taken: &[usize]) {
        let Some(thread) = *lock(&self.thread) else { return };
        let mut usual = lock(&self.usual);
        let Ok(allowed) = sched_getaffinity(Some(thread)) else { return };
        let mut elsewhere = allowed;
        for processor in taken.iter().filter(|&&processor| processor < CpuSet::MAX_CPU) {
            elsewhere.unset(*processor);
        }
        // With more threads than processors some have to share.
        if elsewhere.count() > 0 && sched_setaffinity(Some(thread), &elsewhere).is_ok() {
            // One that was bound and has not woken since keeps what it had before that.
            usual.get_or_insert(allowed);
            self.bound.store(true, Ordering::Relaxed);
        }
    }
}

/// Nobody panics while holding one of these.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_slept_where_another_runs_wakes_elsewhere_and_is_free_again() {
        let usual = sched_getaffinity(None).unwrap();
        if usual.count() < 2 {
            return;
        }
        // This thread plays the sleeper, too, and may be moved between two lines: then it tries again.
        let spread = Spread::new(2);
        spread.enter(1);
        let bound = (0..100).find_map(|_| {
            spread.sleep(1);
            spread.part();
            let bound = sched_getaffinity(None).unwrap();
            (bound != usual).then_some(bound)
        });
        assert_eq!(bound.map(|bound| bound.count()), Some(usual.count() - 1));
        spread.wake(1);
        assert_ne!(sched_getaffinity(None).unwrap(), usual);
        spread.sleep(1);
        assert_eq!(sched_getaffinity(None).unwrap(), usual);
    }
}
