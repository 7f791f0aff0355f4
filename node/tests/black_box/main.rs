//! The built binary, seen from outside: its commands, its API, and how it stops.
//!
//! Each test starts its own node on a free port of the loopback address, with a toy model and an
//! empty home folder. Nothing sleeps: what is waited for is an event, with a deadline.

mod api;
mod chat;
mod choices;
mod client;
mod commands;
mod embeddings;
mod errors;
mod hub;
mod keys;
mod letters;
mod load;
mod logprobs;
mod metrics;
mod origin;
mod process;
mod pull;
mod queue;
mod schema;
mod security;
mod seen;
mod stopping;
mod streams;
mod tools;
#[path = "../../src/shell/toy.rs"]
mod toy;
