//! `cadencia tokenize`

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use compute::gguf::Gguf;
use compute::tokenizer::{Specials, Tokenizer};

use super::read_text;
use crate::shell::args::Tokenize;
use crate::shell::library;
use crate::shell::settings::Settings;

/// Prints a text's token ids as a JSON array. Needs the file's header only, not its weights.
pub fn tokenize(flags: &Tokenize, settings: &Settings) -> Result<ExitCode> {
    let path = library::find(settings.model.as_deref(), &settings.models_dirs)?;
    let file = Gguf::open(&path)?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())?
        .with_context(|| format!("{} has no tokeniser", path.display()))?;
    let text = match &flags.text {
        Some(text) => text.clone(),
        None => read_text(Path::new("-"))?,
    };
    let specials = if flags.special { Specials::Parse } else { Specials::Plain };
    let ids = serde_json::to_string(&tokenizer.encode(&text, specials))?;
    writeln!(std::io::stdout(), "{ids}")?;
    Ok(ExitCode::SUCCESS)
}
