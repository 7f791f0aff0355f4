//! The yardstick: a plain floating-point forward pass of the models that `compute` runs, to
//! measure what the integer class costs in quality.
//!
//! It shares with the engine the GGUF reader and the description of the model ([`compute::arch`])
//! and nothing else: weights are decoded to f32, activations and the KV cache are never rounded,
//! angles come from the mathematical formula and not from the engine's integer phases.
//!
//! **Invariant:** this is a test tool. No crate of the product depends on it.

mod attention;
pub mod decode;
mod forward;
mod matmul;
pub mod measure;
pub mod quality;

pub use forward::{Oracle, OracleError};
