//! Picks the next token from logits.
