//! The words that two rooms share: identities, time, amounts, jobs, routes and cut ranges.
//!
//! This room is empty so far. It will hold data and its one canonical encoding, and no behaviour;
//! the first word moves in when a second room needs it.
