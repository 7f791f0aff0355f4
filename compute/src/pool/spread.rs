//! Keeps the threads of a pool on different processors.
//!
//! Linux wakes a thread where it slept last, or where it is woken from, unless it sees an idle processor;
//! in a virtual machine an idle processor counts as taken away by the host and is not seen. Two threads of
//! a pool that once share a processor then stay there for milliseconds, each waiting while the other
//! runs: a step takes three times as long, and each one after a pause does. So whoever begins a step
//! forbids those that sleep the processor that it runs on itself.
//!
//! That holds until a step begins elsewhere. Where the system does not allow it, or is not Linux, threads
//! go where they are sent: this changes speed, never results.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Not known, or not asleep.
const NOWHERE: usize = usize::MAX;

/// Where the threads of a pool sleep, all but the first, which is whoever begins a step.
pub(super) struct Spread {
    sleepers: Box<[Sleeper]>,
}

struct Sleeper {
    place: Mutex<Option<Place>>,
    /// Where it sleeps.
    processor: AtomicUsize,
}

/// Where a thread may run.
struct Place {
    thread: Pid,
    /// As it was when it began.
    allowed: CpuSet,
    /// Now.
    may: CpuSet,
}

impl Spread {
    /// For `count` threads, the first included.
    pub(super) fn new(count: usize) -> Self {
        let sleeper = |_| Sleeper { place: Mutex::new(None), processor: AtomicUsize::new(NOWHERE) };
        Self { sleepers: (1..count).map(sleeper).collect() }
    }

    /// Thread `id`, above 0, introduces itself.
    pub(super) fn enter(&self, id: usize) {
        let place = sched_getaffinity(None).ok().map(|allowed| Place {
            thread: gettid(),
            allowed,
            may: allowed,
        });
        *lock(&self.sleepers[id - 1].place) = place;
    }

    /// Thread `id` is about to sleep.
    pub(super) fn sleep(&self, id: usize) {
        self.sleepers[id - 1].processor.store(sched_getcpu(), Ordering::Relaxed);
    }

    /// Thread `id` is awake.
    pub(super) fn wake(&self, id: usize) {
        self.sleepers[id - 1].processor.store(NOWHERE, Ordering::Relaxed);
    }

    /// Keeps those who sleep from waking where the caller runs or another of them slept. Called by the
    /// first thread before it wakes the others.
    pub(super) fn part(&self) {
        let mut taken = [NOWHERE; TAKEN_MAX];
        taken[0] = sched_getcpu();
        let mut count = 1;
        for sleeper in &self.sleepers {
            let processor = sleeper.processor.load(Ordering::Relaxed);
            if processor == NOWHERE {
                continue;
            }
            let others = &taken[..count];
            let meets = others.contains(&processor);
            sleeper.keep_away(others, meets);
            if !meets && count < TAKEN_MAX {
                taken[count] = processor;
                count += 1;
            }
        }
    }
}

/// Processors of a pool that are told apart; a pool with more threads fills the machine anyway.
const TAKEN_MAX: usize = 64;

impl Sleeper {
    /// Forbids the first of the `taken` processors, and all of them if it `meets` another there.
    fn keep_away(&self, taken: &[usize], meets: bool) {
        let mut place = lock(&self.place);
        let Some(place) = place.as_mut() else { return };
        let known = |processor: &&usize| **processor < CpuSet::MAX_CPU;
        let first = taken.iter().take(1).filter(known);
        if !meets && first.into_iter().all(|processor| !place.may.is_set(*processor)) {
            return;
        }
        let mut may = place.allowed;
        for processor in taken.iter().filter(known) {
            may.unset(*processor);
        }
        // With more threads than processors some have to share.
        if may.count() > 0 && sched_setaffinity(Some(place.thread), &may).is_ok() {
            place.may = may;
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
    fn who_sleeps_wakes_nowhere_where_a_step_begins() {
        let usual = sched_getaffinity(None).unwrap();
        if usual.count() < 2 {
            return;
        }
        let spread = Spread::new(2);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let spread = &spread;
            scope.spawn(move || {
                spread.enter(1);
                spread.sleep(1);
                ready.send(gettid()).unwrap();
                // Until the other has looked.
                let _ = goes.recv();
            });
            let sleeper = is_ready.recv().unwrap();
            // This thread may be moved between two lines: then it tries again.
            let parted = (0..100).any(|_| {
                let before = sched_getcpu();
                spread.part();
                let may = sched_getaffinity(Some(sleeper)).unwrap();
                assert_eq!(may.count(), usual.count() - 1);
                !may.is_set(before) && sched_getcpu() == before
            });
            drop(go);
            assert!(parted);
        });
        assert_eq!(
            sched_getaffinity(None).unwrap(),
            usual,
            "who begins a step runs where it likes"
        );
    }
}
