//! Renders a conversation into the text that a model was trained on.
