//! Systems on which threads of a pool stay where the system puts them.

/// Does nothing.
pub(super) struct Spread;

impl Spread {
    /// For any number of threads.
    pub(super) fn new(_count: usize) -> Self {
        Self
    }

    /// A thread introduces itself.
    pub(super) fn enter(&self, _id: usize) {}

    /// A thread is about to sleep.
    pub(super) fn sleep(&self, _id: usize) {}

    /// A thread is awake.
    pub(super) fn wake(&self, _id: usize) {}

    /// The others are about to be woken.
    pub(super) fn part(&self) {}
}
