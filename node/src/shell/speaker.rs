//! A loaded model together with what it needs to speak: its tokeniser and its chat template.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use compute::engine::{LoadError, LoadOptions, Model, Part};
use compute::template::{ChatTemplate, CivilTime, Message, TemplateError};
use compute::tokenizer::{Specials, Tokenizer};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::house::tools::ToolFormat;

use super::constraint::{ConstraintError, ConstraintFactory};
use super::library;
use super::settings::{CONTEXT_DEFAULT, Settings};

/// Why a model cannot say something.
#[derive(Debug, Error)]
pub enum SpeechError {
    /// The file has no tokeniser.
    #[error("{0} has no tokeniser, so it takes token ids only (see `cadencia logits`)")]
    Mute(String),
    /// The file has no chat template, or one that cannot be read.
    #[error("{0} cannot chat: {1}")]
    NoTemplate(String, String),
    /// Its answers cannot be held to a form.
    #[error("{0} cannot keep to a form: {1}")]
    Unbound(String, String),
    /// The template refuses these messages.
    #[error(transparent)]
    Refused(#[from] TemplateError),
}

/// Why a conversation cannot have that much context.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ContextError {
    /// More than the model was trained for.
    #[error("a context of {wanted} tokens is wanted and the model was trained for {trained}")]
    Untrained {
        /// Tokens asked for.
        wanted: usize,
        /// Tokens that it can attend over.
        trained: usize,
    },
    /// More than memory holds.
    #[error(
        "a context of {tokens} tokens takes {needed_mb} MB and {available_mb} MB are free; \
         ask for less with --ctx, or free memory"
    )]
    NoMemory {
        /// Tokens.
        tokens: usize,
        /// Megabytes that they take.
        needed_mb: u64,
        /// Megabytes that there are.
        available_mb: u64,
    },
}

/// A context shorter than this, tokens, is of no use for talking, so it is refused and not chosen.
const CONTEXT_USEFUL: usize = 512;

/// How many tokens a conversation may hold: `wanted`, or what is usual for a model that was
/// `trained` for so many tokens, that takes `kv_bytes` for each, on a machine with `memory` bytes
/// free (`None` if it does not say).
pub fn context(
    wanted: Option<usize>,
    trained: usize,
    kv_bytes: u64,
    memory: Option<u64>,
) -> Result<usize, ContextError> {
    let memory = memory.unwrap_or(u64::MAX);
    let no_memory = |tokens: usize| ContextError::NoMemory {
        tokens,
        needed_mb: kv_bytes.saturating_mul(tokens as u64) / 1_000_000,
        available_mb: memory / 1_000_000,
    };
    if let Some(wanted) = wanted {
        if wanted > trained {
            return Err(ContextError::Untrained { wanted, trained });
        }
        if kv_bytes.saturating_mul(wanted as u64) > memory {
            return Err(no_memory(wanted));
        }
        return Ok(wanted);
    }
    let usual = trained.min(CONTEXT_DEFAULT);
    // Half of what is free: the rest of the machine wants to live, too.
    let affordable = usize::try_from(memory / 2 / kv_bytes.max(1)).unwrap_or(usize::MAX);
    match usual.min(affordable) {
        tokens if tokens >= CONTEXT_USEFUL.min(trained) => Ok(tokens),
        _ => Err(no_memory(CONTEXT_USEFUL.min(trained))),
    }
}

/// Unix time, seconds.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Unix time, milliseconds.
pub fn unix_now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// What a template is given.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    /// What was said.
    pub messages: &'a [Message],
    /// Descriptions of functions, in OpenAI's form.
    pub tools: Option<&'a Value>,
    /// Variables of the template's own.
    pub variables: &'a Map<String, Value>,
    /// What comes after the messages.
    pub end: ScriptEnd,
}

/// What comes after the messages of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptEnd {
    /// The words that open the assistant's answer.
    Opened,
    /// Nothing.
    Bare,
}

/// A model that can be spoken to.
#[derive(Debug)]
pub struct Speaker {
    model: Arc<Model>,
    name: String,
    template: Result<ChatTemplate, TemplateError>,
    /// How it writes calls of tools, if its template knows tools.
    tools: Option<ToolFormat>,
    /// Made when the first answer needs it, for most need none.
    constraints: OnceLock<Result<ConstraintFactory, ConstraintError>>,
}

impl Speaker {
    /// Loads the file at `path`; `progress` hears (bytes done, bytes in all).
    pub fn load(
        path: &Path,
        settings: &Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        Self::load_part(path, settings, None, progress)
    }

    /// As [`Speaker::load`], of a part of the model that has both ends; `None` for all of it.
    pub fn load_part(
        path: &Path,
        settings: &Settings,
        part: Option<Part>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let options =
            LoadOptions { threads: settings.threads, kernels: settings.kernels.into(), part };
        Ok(Self::of(Model::load(path, &options, progress)?, path))
    }

    /// The model that was loaded from `path`.
    pub fn of(model: Arc<Model>, path: &Path) -> Self {
        let template = match model.tokenizer() {
            Some(tokenizer) => ChatTemplate::for_model(model.chat_template(), tokenizer),
            None => Err(TemplateError::Absent),
        };
        let tools = model.chat_template().and_then(ToolFormat::of_template);
        let constraints = OnceLock::new();
        Self { model, name: library::name(path), template, tools, constraints }
    }

    /// The model's name: that of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model itself.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Its tokeniser.
    pub fn tokenizer(&self) -> Result<&Tokenizer, SpeechError> {
        self.model.tokenizer().ok_or_else(|| SpeechError::Mute(self.name.clone()))
    }

    /// Whether it knows how a conversation is written; if not, why.
    pub fn can_chat(&self) -> Result<&ChatTemplate, SpeechError> {
        self.tokenizer()?;
        self.template
            .as_ref()
            .map_err(|why| SpeechError::NoTemplate(self.name.clone(), why.to_string()))
    }

    /// The tokens of a conversation that waits for an answer. `now` is Unix time, seconds.
    pub fn conversation(&self, messages: &[Message], now: u64) -> Result<Vec<u32>, SpeechError> {
        let now = CivilTime::from_unix(i64::try_from(now).unwrap_or(i64::MAX));
        let text = self.can_chat()?.render(messages, None, true, now)?;
        Ok(self.tokenizer()?.encode_chat(&text))
    }

    /// How it writes calls of tools; `None` if its template knows none.
    pub fn tools(&self) -> Option<ToolFormat> {
        self.tools
    }

    /// What makes constraints for its answers. The first call takes a tenth of a second.
    pub fn constraints(&self) -> Result<&ConstraintFactory, SpeechError> {
        let tokenizer = self.tokenizer()?;
        let made = self.constraints.get_or_init(|| ConstraintFactory::new(tokenizer));
        let unfit =
            |why: &ConstraintError| SpeechError::Unbound(self.name.clone(), why.to_string());
        made.as_ref().map_err(unfit)
    }

    /// The text of a conversation as the model's template writes it, by Unix time `now`, seconds.
    pub fn written(&self, script: &Script, now: u64) -> Result<String, SpeechError> {
        let now = CivilTime::from_unix(i64::try_from(now).unwrap_or(i64::MAX));
        let opens = script.end == ScriptEnd::Opened;
        let Script { messages, tools, variables, .. } = script;
        Ok(self.can_chat()?.render_with(messages, *tools, opens, now, variables)?)
    }

    /// The tokens of raw text, with special tokens parsed and added as the model wants.
    pub fn raw(&self, text: &str) -> Result<Vec<u32>, SpeechError> {
        Ok(self.tokenizer()?.encode(text, Specials::Parse))
    }

    /// Computes one token: a model that cannot do that must not be called ready.
    pub fn probe(&self) -> Result<()> {
        let token = self.model.tokenizer().and_then(|tokenizer| tokenizer.bos()).unwrap_or(0);
        let mut session = self.model.session(1);
        let logits = session.logits(&[token]).context("the model does not answer a probe")?;
        let whole = logits.len() == self.model.summary().vocabulary && !logits.is_empty();
        let sound = whole && logits.iter().all(|logit| logit.is_finite());
        ensure!(sound, "what the model answers to a probe is no set of logits");
        Ok(())
    }

    /// How many tokens a conversation may hold.
    pub fn context(&self, settings: &Settings) -> Result<usize, ContextError> {
        let summary = self.model.summary();
        let memory = super::machine::memory_available();
        context(settings.ctx, summary.context_length, summary.kv_bytes_per_token, memory)
    }
}

/// A message of `role`.
pub fn message(role: impl Into<String>, content: impl Into<String>) -> Message {
    Message { role: role.into(), content: content.into(), ..Message::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    #[test]
    fn the_usual_context_is_bounded_by_training_habit_and_memory() {
        assert_eq!(context(None, 2048, 1000, Some(MB * 1000)), Ok(2048));
        assert_eq!(context(None, 131_072, 1000, Some(MB * 1000)), Ok(CONTEXT_DEFAULT));
        assert_eq!(context(None, 131_072, 100_000, Some(MB * 400)), Ok(2000));
        assert_eq!(context(None, 64, 1000, None), Ok(64));
        let error = context(None, 131_072, MB, Some(MB * 100)).unwrap_err();
        let expected = ContextError::NoMemory { tokens: 512, needed_mb: 512, available_mb: 100 };
        assert_eq!(error, expected);
    }

    #[test]
    fn a_wish_is_granted_or_refused_never_changed() {
        assert_eq!(context(Some(16_384), 32_768, 1000, Some(MB * 17)), Ok(16_384));
        let error = context(Some(4096), 2048, 1, None).unwrap_err();
        assert_eq!(error, ContextError::Untrained { wanted: 4096, trained: 2048 });
        assert!(context(Some(2048), 2048, MB, Some(MB)).is_err());
    }
}
