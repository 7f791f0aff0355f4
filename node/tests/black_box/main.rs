//! The built binary, seen from outside: its commands, its API, and how it stops.
//!
//! Each test starts its own node on a free port of the loopback address, with a toy model and an
//! empty home folder. Nothing sleeps: what is waited for is an event, with a deadline.

mod api;
mod chat;
mod client;
mod commands;
mod errors;
mod hub;
mod keys;
mod origin;
mod process;
mod pull;
mod queue;
mod stopping;
#[path = "../../src/shell/toy.rs"]
mod toy;
