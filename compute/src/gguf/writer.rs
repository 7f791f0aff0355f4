//! Writes GGUF files.
