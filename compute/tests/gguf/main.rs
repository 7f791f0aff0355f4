//! The GGUF reader and writer, at their doors.

mod allocation;
mod fixtures;
mod hostile;
mod mutation;
mod raw;
mod round_trip;
mod split;
