//! How a network starts and outlives its founders: the seeds by which it is found, and how much of
//! themselves they lend while the community is small.
//!
//! * [`Seeds`] keeps the newest record of each seed, so that any node can pass them on;
//! * [`lends`] says how much a seed computes for others as the community's share grows.
//!
//! **Invariant:** no clock, socket, file, thread or dice. Phases, retirement and recall are not here
//! yet.

mod ghost;
mod seeds;

pub use ghost::{CAP_PERCENT, Capacity, Share, lends};
pub use seeds::{Merged, SEEDS_MAX, SeedRefusal, Seeds};
