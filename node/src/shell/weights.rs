//! Weights travel: nodes give each other the parts of models that they lack.
//!
//! A model is known by its [`wire::Manifest`], which [`manifest`] makes of its files. Each part has
//! a Merkle root there, and so each chunk can be proven alone, whoever sends it.
//!
//! **Invariant:** nobody who sends weights is trusted. A chunk counts only once it was proven
//! against the manifest, and a manifest only once it was proven against its id.

mod survey;
mod tree;

pub use survey::{Survey, SurveyError, manifest, survey};
pub use tree::{Leaf, Tree};
