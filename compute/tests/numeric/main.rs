//! Laws of the numeric class, on every valid input that chance and malice come up with.
//!
//! Golden vectors say what the answers are; these say what they have in common: nothing panics
//! (tests are built with overflow checks), whatever leaves a function is a valid encoding, and
//! sums do not depend on their order.

mod activations;
mod attention;
mod blocks;
mod crossing;
mod functions;
mod given;
mod matrices;
mod rows;
