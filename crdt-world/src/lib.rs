//! Who offers what and how near it is: state that converges whatever the order in which news comes.
//!
//! * [`Offers`] is the table of what nodes offer; [`Taken`] is what became of a piece of news.
//! * [`Rtt`] is how far two nodes are from each other, and how that is known: [`Source`].
//!
//! The city will come here, too.
//!
//! **Invariant:** no clock, socket, file, thread or dice. Every table has a bound.

mod near;
mod offers;

pub use near::{Near, RTT_ASSUMED_US, Road, Rtt, Source};
pub use offers::{GONE_MAX, NODE_BYTES_MAX, NODES_MAX, Offers, SKEW_MS_MAX, Taken};
