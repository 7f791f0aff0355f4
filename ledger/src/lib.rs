//! Who is owed what: entries, single-writer feeds, and the fold from entries to balances.
//!
//! This room is empty so far. It will be pure: no clock, socket, file, thread or dice inside.
