//! Counts what one thread asks of the allocator, so that a test can bound it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counted;

#[global_allocator]
static COUNTED: Counted = Counted;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // A thread that is ending frees memory after its counters are gone.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is handed to the system's allocator unchanged, and counting neither
// allocates nor unwinds.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs `work` and says how many bytes this thread held at most, beyond what it held before.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let made = work();
    (made, (PEAK.get() - before).max(0) as usize)
}

/// The most memory that reading a file of `len` bytes may take. An array of bytes becomes one of
/// 64-bit integers, eight times as long; tensors and keys take six to seven times their bytes.
pub fn allowed(len: usize) -> usize {
    (16 << 10) + 9 * len
}

#[test]
fn the_peak_is_what_was_held_at_once() {
    let (_, held) = peak(|| (vec![0u8; 1000], vec![0u8; 500]));
    assert_eq!(held, 1500);
    let ((), held) = peak(|| {
        drop(std::hint::black_box(vec![0u8; 1000]));
        drop(std::hint::black_box(vec![0u8; 700]));
    });
    assert_eq!(held, 1000);
}
