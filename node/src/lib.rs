//! The node: `house` decides and touches nothing; `shell` does everything that has an effect.

pub mod house;
mod shell;

pub use shell::{lanes, run, weights};
