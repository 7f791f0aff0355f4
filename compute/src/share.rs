//! A buffer that several threads write in turns, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice whose parts are handed out to threads without a lock.
///
/// What makes it sound is the discipline of a step: between two meetings of a `Team` every number
/// of the slice is written by at most one thread and then read by none, or only read.
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: the callers of `write` keep parts apart, and `T` may move between threads.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Takes over `slice` for as long as this lives.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// A part, to be read.
    ///
    /// # Safety
    /// No thread writes to it before the next meeting.
    #[inline(always)]
    pub unsafe fn read(&self, part: Range<usize>) -> &'a [T] {
        assert!(part.start <= part.end && part.end <= self.len);
        // SAFETY: in bounds; not written meanwhile, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(part.start), part.len()) }
    }

    /// A part, to be written.
    ///
    /// # Safety
    /// No other thread reads or writes it before the next meeting.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn write(&self, part: Range<usize>) -> &'a mut [T] {
        assert!(part.start <= part.end && part.end <= self.len);
        // SAFETY: in bounds; not touched by others meanwhile, by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(part.start), part.len()) }
    }
}
