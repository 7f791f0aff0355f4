//! Language models in integer arithmetic: GGUF files in, the same bits out on every machine.

pub mod arch;
pub mod engine;
pub mod gguf;
pub mod kernels;
pub mod matrix;
pub mod numeric;
pub mod sample;
pub mod template;
pub mod tokenizer;
