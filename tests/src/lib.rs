//! Right answers from outside, and where to find them; the tests themselves are in `tests/`.
//!
//! `fixtures/` holds tiny models and what llama.cpp computed from them: see its README. The two
//! real models are too large for the repository: `scripts/fetch-models.sh models all` gets them.

mod answers;
mod models;
pub mod udp_proxy;

pub use answers::{Greedy, Tokenised, fixture, logits, tiny_models, token_ids, tokenised};
pub use models::{Real, workspace};
