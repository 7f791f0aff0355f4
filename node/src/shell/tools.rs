//! The commands that do one thing and end.

mod bench;
mod chat;
mod doctor;
mod generate;
mod hive;
mod invite;
mod keys;
mod logits;
mod models;
mod peers;
mod perplexity;
mod plan;
mod pull;
mod remote;
mod status;
mod tokenize;

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};

use super::library;
use super::progress::{Progress, Unit};
use super::settings::Settings;
use super::speaker::Speaker;

pub use bench::bench;
pub use chat::chat;
pub use doctor::doctor;
pub use generate::generate;
pub use hive::hive;
pub use invite::invite;
pub use keys::keys;
pub use logits::logits;
pub use models::models;
pub use peers::peers;
pub use perplexity::perplexity;
pub use plan::plan;
pub use pull::pull;
pub use status::status;
pub use tokenize::tokenize;

/// Loads the model that the settings name, with progress on stderr.
fn load(settings: &Settings) -> Result<Speaker> {
    let path = library::find(settings.model.as_deref(), &settings.models_dirs)?;
    let mut progress = Progress::new("loading", Unit::Bytes);
    Speaker::load(&path, settings, &mut |done, whole| progress.set(done, whole))
        .with_context(|| format!("cannot load {}", path.display()))
}

/// The text of the file at `path`, or of stdin where it is `-`.
fn read_text(path: &Path) -> Result<String> {
    if path != Path::new("-") {
        return std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()));
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read text from stdin")?;
    Ok(text)
}

/// Bytes in the unit that a reader has a feeling for.
fn megabytes(bytes: u64) -> String {
    match bytes {
        0..10_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        10_000_000..10_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
