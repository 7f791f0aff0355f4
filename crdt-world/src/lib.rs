//! Who offers what and how near: latency coordinates and the city, as state that converges.
//!
//! This room is empty so far. It will be pure: no clock, socket, file, thread or dice inside.
