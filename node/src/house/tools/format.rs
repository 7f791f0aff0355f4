//! How families of models write calls.

/// How a model writes a call of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>` around `{"name": .., "arguments": {..}}`: Hermes, Qwen 2.5 and 3, SmolLM 3.
    Hermes,
    /// `{"name": .., "parameters": {..}}` and nothing else, perhaps after `<|python_tag|>`:
    /// Llama 3.1 to 3.3.
    Llama,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}]`: Mistral up to version 7.
    MistralList,
    /// `[TOOL_CALLS]name[ARGS]{..}` for each call: Mistral from version 11 on.
    MistralNamed,
    /// The template tells the model of tools, and how it writes calls is not known here: what it
    /// writes is left as text, unless it is [forced](Self::forced) to call.
    Unknown,
}

impl ToolFormat {
    /// The format of an answer that must be a call: the model's own, or Hermes where that is not
    /// known. The grammar and the parser of one answer must be of the same format.
    pub fn forced(self) -> Self {
        match self {
            ToolFormat::Unknown => ToolFormat::Hermes,
            known => known,
        }
    }

    /// The texts that mark calls. Where the vocabulary has one as a token of its own, answers have
    /// to be decoded so that this token is shown.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => &[HERMES_OPEN, HERMES_CLOSE],
            ToolFormat::Llama => &[LLAMA_OPEN],
            ToolFormat::MistralList => &[MISTRAL_OPEN],
            ToolFormat::MistralNamed => &[MISTRAL_OPEN, MISTRAL_ARGUMENTS, MISTRAL_ID],
            ToolFormat::Unknown => &[],
        }
    }
}

pub(super) const HERMES_OPEN: &str = "<tool_call>";
pub(super) const HERMES_CLOSE: &str = "</tool_call>";
pub(super) const LLAMA_OPEN: &str = "<|python_tag|>";
pub(super) const MISTRAL_OPEN: &str = "[TOOL_CALLS]";
pub(super) const MISTRAL_ARGUMENTS: &str = "[ARGS]";
pub(super) const MISTRAL_ID: &str = "[CALL_ID]";

/// The id of a call, made of `dice`, which should be random. Nine letters and digits: templates of
/// Mistral's models refuse anything else, and no other one minds.
pub fn call_id(dice: u64) -> String {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let digits = std::iter::successors(Some(dice), |rest| Some(rest / 36)).take(9);
    digits.map(|rest| char::from(LETTERS[(rest % 36) as usize])).collect()
}
