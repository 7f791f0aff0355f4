//! Who is right: commitments, audits, challenges, committee votes and epochs.
//!
//! This room is empty so far. It will be pure: no clock, socket, file, thread or dice inside.
