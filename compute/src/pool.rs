//! Threads that compute one step together.
//!
//! A step is one closure run by every thread at once. Inside it threads share work by [`Team::each`]
//! and meet at [`Team::meet`]; both cost well under a microsecond while all threads are running,
//! which is what lets a small model's hundred matrices be computed one after another.
//!
//! **Invariant:** there are as many threads as were asked for, the caller included; between steps
//! they spin for a moment, then sleep.

#[cfg(target_os = "linux")]
mod spread;
#[cfg(not(target_os = "linux"))]
#[path = "pool/spread_nowhere.rs"]
mod spread;

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spread::Spread;

/// How long a thread spins for the next step before it sleeps: the time between two tokens.
const SPIN_MAX: Duration = Duration::from_micros(60);
/// Spins at a meeting before a thread sleeps: some twenty microseconds, more than meetings take where
/// each thread has a processor. Where it has not, whoever spins only keeps the others from theirs.
const SPINS_BEFORE_SLEEP: u32 = 4_000;

/// A step, with its lifetime erased: valid until the last thread has reported back.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(&Team) + Sync));

// SAFETY: the closure is Sync, and `Pool::run` keeps it alive until every thread is done.
unsafe impl Send for Job {}

struct Shared {
    /// Steps begun so far; threads wait for it to change.
    step: AtomicUsize,
    job: Mutex<Option<Job>>,
    wake: Condvar,
    stop: AtomicBool,
    /// Threads that have finished this step.
    finished: AtomicUsize,
    meeting: Meeting,
    panicked: AtomicBool,
    spread: Spread,
}

/// A barrier and the counter that work is claimed from.
struct Meeting {
    count: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    next: AtomicUsize,
    broken: AtomicBool,
    /// Threads that sleep, or are about to, until something above changes.
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
}

impl Meeting {
    /// Waits until `over`, spinning first. Who makes it over must call [`Meeting::ring`] afterwards.
    fn wait(&self, over: impl Fn() -> bool) {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if over() {
                return;
            }
            std::hint::spin_loop();
        }
        // Sequentially consistent, as in `ring`: of the two, one sees what the other did.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut bed = self.bed.lock().expect("no thread panics in its sleep");
        while !over() {
            bed = self.bell.wait(bed).expect("no thread panics in its sleep");
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes those who sleep, to look again.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Under the lock, or one could miss it between its last look and its sleep.
            drop(self.bed.lock().expect("no thread panics in its sleep"));
            self.bell.notify_all();
        }
    }
}

/// One thread's view of a step.
pub struct Team<'a> {
    /// This thread's number, below `count`.
    pub id: usize,
    /// Threads in the step.
    pub count: usize,
    meeting: &'a Meeting,
}

impl Team<'_> {
    /// Waits until all threads are here. What they wrote before is visible to all after.
    ///
    /// # Panics
    /// When another thread of the step has panicked.
    pub fn meet(&self) {
        let meeting = self.meeting;
        if self.count == 1 {
            meeting.next.store(0, Ordering::Relaxed);
            return;
        }
        let round = meeting.round.load(Ordering::Acquire);
        if meeting.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            meeting.arrived.store(0, Ordering::Relaxed);
            meeting.next.store(0, Ordering::Relaxed);
            meeting.round.store(round.wrapping_add(1), Ordering::Release);
            meeting.ring();
            return;
        }
        let met = || meeting.round.load(Ordering::Acquire) != round;
        meeting.wait(|| met() || meeting.broken.load(Ordering::Relaxed));
        assert!(met(), "another thread of the step panicked");
    }

    /// Shares `0..count` out among the threads, `chunk` at a time; each number is given to exactly
    /// one thread. Only one call between two meetings.
    pub fn each(&self, count: usize, chunk: usize, mut work: impl FnMut(usize)) {
        if self.count == 1 {
            (0..count).for_each(work);
            return;
        }
        loop {
            let start = self.meeting.next.fetch_add(chunk, Ordering::Relaxed);
            if start >= count {
                return;
            }
            (start..count.min(start + chunk)).for_each(&mut work);
        }
    }
}

/// A fixed set of threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// One step at a time.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.count())
    }
}

impl Pool {
    /// `count` threads, of which the one that calls [`Pool::run`] is the first.
    ///
    /// # Errors
    /// What the system says when it gives no more threads.
    pub fn new(count: NonZeroUsize) -> std::io::Result<Self> {
        let count = count.get();
        let shared = Arc::new(Shared {
            step: AtomicUsize::new(0),
            job: Mutex::new(None),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            finished: AtomicUsize::new(0),
            meeting: Meeting {
                count,
                arrived: AtomicUsize::new(0),
                round: AtomicUsize::new(0),
                next: AtomicUsize::new(0),
                broken: AtomicBool::new(false),
                sleepers: AtomicUsize::new(0),
                bed: Mutex::new(()),
                bell: Condvar::new(),
            },
            panicked: AtomicBool::new(false),
            spread: Spread::new(count),
        });
        let mut pool = Self { shared: shared.clone(), threads: vec![], turn: Mutex::new(()) };
        for id in 1..count {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("compute-{id}"));
            pool.threads.push(thread.spawn(move || work(&shared, id))?);
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub fn count(&self) -> usize {
        self.shared.meeting.count
    }

    /// Runs `step` on every thread and returns when all are done. Callers take turns.
    ///
    /// # Panics
    /// When `step` panics on any thread; the pool stays usable.
    pub fn run(&self, step: &(dyn Fn(&Team) + Sync)) {
        let _turn = self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let shared = &*self.shared;
        shared.finished.store(0, Ordering::Relaxed);
        shared.meeting.next.store(0, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. The pointer is used until `finished` counts all other
        // threads, which is awaited below before `step` can end, on every path.
        let job = Job(unsafe {
            std::mem::transmute::<*const (dyn Fn(&Team) + Sync), *const (dyn Fn(&Team) + Sync)>(
                step,
            )
        });
        if self.count() > 1 {
            shared.spread.part();
            let mut slot = shared.job.lock().expect("no thread panics while it holds the job");
            *slot = Some(job);
            // Under the lock, or a thread could miss it between its last look and its sleep.
            shared.step.fetch_add(1, Ordering::Release);
            drop(slot);
            shared.wake.notify_all();
        }
        let team = Team { id: 0, count: self.count(), meeting: &shared.meeting };
        let mine = catch_unwind(AssertUnwindSafe(|| step(&team)));
        if mine.is_err() {
            shared.meeting.broken.store(true, Ordering::Relaxed);
            shared.meeting.ring();
        }
        shared.meeting.wait(|| shared.finished.load(Ordering::Acquire) + 1 >= self.count());
        shared.meeting.arrived.store(0, Ordering::Relaxed);
        shared.meeting.broken.store(false, Ordering::Relaxed);
        let theirs = shared.panicked.swap(false, Ordering::Relaxed);
        match mine {
            Err(cause) => resume_unwind(cause),
            Ok(()) => assert!(!theirs, "a compute thread panicked"),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.step.fetch_add(1, Ordering::Release);
        drop(self.shared.job.lock());
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A thread's life: wait for a step, run it, report.
fn work(shared: &Shared, id: usize) {
    let mut seen = 0;
    shared.spread.enter(id);
    loop {
        seen = wait(shared, id, seen);
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let job = *shared.job.lock().expect("no thread panics while it holds the job");
        let Some(Job(step)) = job else { continue };
        let team = Team { id, count: shared.meeting.count, meeting: &shared.meeting };
        // SAFETY: `Pool::run` keeps the closure alive until `finished` has counted this thread.
        let step = unsafe { &*step };
        if catch_unwind(AssertUnwindSafe(|| step(&team))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
            shared.meeting.broken.store(true, Ordering::Relaxed);
            shared.meeting.ring();
        }
        shared.finished.fetch_add(1, Ordering::AcqRel);
        shared.meeting.ring();
    }
}

/// Waits, as thread `id`, for a step after `seen`, spinning first.
fn wait(shared: &Shared, id: usize, seen: usize) -> usize {
    let begun = Instant::now();
    let mut spins = 0u32;
    loop {
        let step = shared.step.load(Ordering::Acquire);
        if step != seen {
            return step;
        }
        std::hint::spin_loop();
        spins += 1;
        // The clock is read now and then: asking it costs as much as fifty spins.
        if spins.is_multiple_of(256) && begun.elapsed() > SPIN_MAX {
            break;
        }
    }
    shared.spread.sleep(id);
    let mut job = shared.job.lock().expect("no thread panics while it holds the job");
    loop {
        let step = shared.step.load(Ordering::Acquire);
        if step != seen {
            drop(job);
            shared.spread.wake(id);
            return step;
        }
        job = shared.wake.wait(job).expect("no thread panics while it holds the job");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: usize) -> Pool {
        Pool::new(NonZeroUsize::new(count).unwrap()).unwrap()
    }

    #[test]
    fn every_number_is_given_to_one_thread() {
        for threads in 1..4 {
            let pool = pool(threads);
            for count in [0, 1, 7, 1000] {
                let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                pool.run(&|team| {
                    for _ in 0..3 {
                        team.each(count, 3, |i| {
                            hits[i].fetch_add(1, Ordering::Relaxed);
                        });
                        team.meet();
                    }
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 3));
            }
        }
    }

    #[test]
    fn after_a_meeting_all_writes_are_seen() {
        let pool = pool(3);
        let marks: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        pool.run(&|team| {
            for round in 1..1000 {
                marks[team.id].store(round, Ordering::Relaxed);
                team.meet();
                assert!(marks.iter().all(|m| m.load(Ordering::Relaxed) == round));
                team.meet();
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = pool(3);
        for culprit in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|team| {
                    assert!(team.id != culprit, "as the test wants");
                    team.meet();
                });
            }));
            assert!(result.is_err());
        }
        let hits = AtomicUsize::new(0);
        pool.run(&|_| {
            hits.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(hits.load(Ordering::Relaxed), 3);
    }
}
