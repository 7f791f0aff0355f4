//! The numeric class `int8x-v1`: what every number in a forward pass is, exactly.
//!
//! `NUMERICS.md` beside this crate is the same text for people. The functions here are the
//! definition: plain Rust, one operation after another, total on every input. Fast kernels live in
//! `kernels` and must equal these bit for bit.
//!
//! **Invariant:** no float takes part in anything that a peer could check. Floats appear only where
//! a model file's constants become integers at load, by IEEE operations that are exact or
//! correctly rounded (`+ - * / sqrt` and conversions), and where logits leave the class.
//!
//! **Invariant:** nothing here depends on batch size, thread count, tile or device.

pub mod activation;
pub mod attention;
pub mod bits;
pub mod block;
pub mod embedding;
pub mod functions;
pub mod matmul;
pub mod norm;
pub mod rows;
pub mod scalar;
pub mod weights;

/// The name of the class; peers of different classes never share work.
pub const CLASS: &str = "int8x-v1";
