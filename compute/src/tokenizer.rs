//! Text to token ids and back, from what the model file itself says.

use thiserror::Error;

use crate::gguf::Metadata;

/// Why a tokeniser was refused.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// A needed key is absent or malformed.
    #[error("the model file has no usable {0}")]
    Missing(&'static str),
}

/// A model's tokeniser.
#[derive(Debug)]
pub struct Tokenizer {}

impl Tokenizer {
    /// From a file's metadata; `Ok(None)` where the file says that it has no tokeniser.
    pub fn from_metadata(_metadata: &Metadata) -> Result<Option<Self>, TokenizerError> {
        Ok(None)
    }
}
