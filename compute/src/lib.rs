//! Language models in integer arithmetic: GGUF files in, the same bits out on every machine.

pub mod arch;
pub mod blueprint;
pub mod engine;
mod forward;
pub mod gguf;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod kernels;
mod kv;
pub mod matrix;
pub mod numeric;
pub mod parts;
mod pool;
pub mod sample;
mod share;
pub mod template;
pub mod tokenizer;
mod weights;
