//! The two real models, where this machine has them.

use std::path::{Path, PathBuf};

/// A model that is fetched, not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Real {
    /// SmolLM2-135M-Instruct, Q4_1: llama architecture, byte-level BPE, chats.
    SmolLm2,
    /// Gemma-3-270M, Q4_K_M: gemma3 architecture, SentencePiece, a base model.
    Gemma3,
}

impl Real {
    /// The name of its file.
    pub fn file(self) -> &'static str {
        match self {
            Real::SmolLm2 => "SmolLM2-135M-Instruct.Q4_1.gguf",
            Real::Gemma3 => "gemma-3-270m-q4_k_m.gguf",
        }
    }

    /// The name of its fixtures.
    pub fn fixtures(self) -> &'static str {
        match self {
            Real::SmolLm2 => "smollm2",
            Real::Gemma3 => "gemma3",
        }
    }

    /// Where its file is: in the folder that `CADENCIA_MODELS` names, or else in `models` at the
    /// workspace's root. Where it is not, says so and answers `None`, and the caller skips; with
    /// `CADENCIA_MODELS_REQUIRED` set that is a failure instead.
    pub fn find(self) -> Option<PathBuf> {
        let folder = std::env::var_os("CADENCIA_MODELS")
            .map_or_else(|| workspace().join("models"), PathBuf::from);
        let path = folder.join(self.file());
        if path.is_file() {
            return Some(path);
        }
        let missing = format!("{} is not in {}", self.file(), folder.display());
        let fetch = "scripts/fetch-models.sh models all";
        assert!(std::env::var_os("CADENCIA_MODELS_REQUIRED").is_none(), "{missing}: run {fetch}");
        println!("SKIPPED: {missing}; to run this test: {fetch}");
        None
    }
}

/// The workspace's root.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is a folder of the workspace")
}
