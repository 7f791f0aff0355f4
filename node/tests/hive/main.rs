//! Several nodes as real processes, seen from outside: one model over all of them.
//!
//! Each test starts its own hive on free ports of the loopback address, each node with an empty home.
//! What is waited for is an event, with a deadline; where nobody tells of it, it is asked for again and
//! again.

mod answers;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../black_box/client.rs"]
mod client;
mod crowd;
mod ends;
mod hostile;
mod joining;
mod leaving;
mod local;
mod losses;
#[cfg(target_os = "linux")]
mod nat;
mod nest;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../black_box/process.rs"]
mod process;
mod seeds;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../src/shell/toy.rs"]
mod toy;
