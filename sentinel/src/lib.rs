//! How a network starts and outlives its founders: bootstrap records, phases and retirement.
//!
//! This room is empty so far. It will be pure: no clock, socket, file, thread or dice inside.
