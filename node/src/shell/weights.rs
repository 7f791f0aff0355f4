//! Weights travel: nodes give each other the parts of models that they lack.
//!
//! A model is known by its [`wire::Manifest`], which [`manifest`] makes of its files. Each part has
//! a Merkle root there, and so each chunk can be proven alone, whoever sends it. A [`Store`] has what
//! is here, a [`Server`] gives it to others, and a [`Fetcher`] brings what is missing:
//!
//! ```text
//! let store = Store::open(folder, Limits::new(bytes_max))?;
//! store.add_library(path)?;
//! let server = Server::new(store.clone());       // then, on the lanes' thread:
//! server.serve(peer, want, pipe).await;
//! let fetcher = Fetcher::new(store, over(lanes), Waits::default());
//! let ready = fetcher.fetch(id, FileParts::needed(&part), sources).done().await?;
//! let model = ready.load(&options, &mut progress)?;
//! ```
//!
//! **Invariant:** nobody who sends weights is trusted. A chunk counts only once it was proven
//! against the manifest, and a manifest only once it was proven against its id.

mod error;
mod fetch;
mod kept;
mod lead;
mod plausible;
mod record;
mod serve;
mod stock;
mod store;
mod survey;
mod tree;

pub use error::StoreError;
pub use fetch::{
    Dial, DialError, Fault, Faults, Fetch, FetchError, Fetcher, Progress, Ready, Waits, over,
};
pub use serve::Server;
pub use stock::{Hold, Stock, WriteAt, Writing};
pub use store::{Limits, Store};
pub use survey::{Survey, SurveyError, manifest, part_number, survey, survey_with};
pub use tree::{Leaf, Tree};

#[cfg(test)]
mod tests;
