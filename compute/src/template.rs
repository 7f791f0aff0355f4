//! Renders a conversation into the text that a model was trained on.
//!
//! Model files carry a Jinja template for this, written for the `transformers` library; it is
//! rendered here as it would be there.
//!
//! **Invariant:** templates come from strangers. What one may compute, keep and write is bounded by
//! fuel, and it reads nothing but its arguments: the time of day, too, is one of them.

mod json;
mod tags;
mod time;
mod weigh;

use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value, context};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::tokenizer::Tokenizer;

pub use time::CivilTime;

/// Longest template, bytes; the longest known have 20,000.
const SOURCE_BYTES_MAX: usize = 1 << 17;

/// What any rendering may use; a unit is an instruction or 64 bytes made or looked through, so
/// this is 32 MB at most. Real templates take under 20,000 with ten tools.
const FUEL_BASE: u64 = 500_000;

/// What each message adds.
const FUEL_PER_MESSAGE: u64 = 2_000;

/// Each byte of the conversation may be looked through or copied 64 times so many times.
const FUEL_PER_BYTE: u64 = 1;

/// Most of all of these together: 256 MB.
const FUEL_MAX: u64 = 4_000_000;

/// Templates are compiled and rendered on a stack of their own, which holds as many levels as an
/// expression can have. Only what is used of it takes memory.
const STACK_BYTES: usize = 32 << 20;

/// The format that models without a template of their own are given, if they have its tokens.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + \
    message.content + '<|im_end|>' + '\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Why a conversation cannot be rendered.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TemplateError {
    /// The model has no template, and its vocabulary has not the tokens of ChatML either.
    #[error("the model file has no chat template; use it for plain completion, or give a template")]
    Absent,
    /// The template is longer than any real one.
    #[error("the chat template has {bytes} bytes, more than {SOURCE_BYTES_MAX}")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// The template is no valid Jinja.
    #[error("the chat template is malformed in line {line}: {detail}")]
    Syntax {
        /// Where.
        line: usize,
        /// What is wrong.
        detail: String,
    },
    /// The template refuses the conversation: roles that do not alternate, say.
    #[error("the model's chat template refuses these messages: {message}")]
    Refused {
        /// In the template's own words.
        message: String,
    },
    /// The template does something that cannot be done.
    #[error("the chat template fails in line {line}: {detail}")]
    Failed {
        /// Where.
        line: usize,
        /// What is wrong.
        detail: String,
    },
    /// The template would take too long or write too much.
    #[error("the chat template takes more work than a conversation of this size may")]
    TooMuch,
}

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or whatever the template knows.
    pub role: String,
    /// What is said; empty where an assistant only calls tools. Templates print it unasked, so
    /// there is always text.
    #[serde(default)]
    pub content: String,
    /// The speaker's name, or the tool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The calls that an assistant makes, in OpenAI's form, but with `arguments` as an object where
    /// the template wants one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<serde_json::Value>,
    /// Which call a tool answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// What an assistant thought before it spoke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

/// Where a template comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The model file, or whoever gave it.
    Given,
    /// ChatML, since the model has none and knows `<|im_start|>`.
    ChatMl,
}

/// A chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    origin: Origin,
}

const NAME: &str = "chat template";

impl ChatTemplate {
    /// Compiles `source`. `bos` and `eos` are the texts of the tokens, empty where there is none.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TemplateError> {
        Self::compile(source, bos, eos, Origin::Given)
    }

    /// The template of a model: `source` if its file has one, or else ChatML if its vocabulary has
    /// the tokens. [`origin`](Self::origin) tells which.
    pub fn for_model(source: Option<&str>, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let text = |id: Option<u32>| id.map_or_else(String::new, |id| tokenizer.token_text(id));
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let chatml = ["<|im_start|>", "<|im_end|>"].map(|text| tokenizer.id_of(text));
        match source {
            Some(source) => Self::compile(source, &bos, &eos, Origin::Given),
            None if chatml.iter().all(Option::is_some) => {
                Self::compile(CHATML, &bos, &eos, Origin::ChatMl)
            }
            None => Err(TemplateError::Absent),
        }
    }

    fn compile(source: &str, bos: &str, eos: &str, origin: Origin) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::TooLong { bytes: source.len() });
        }
        let source = tags::fit(source).map_err(|unfit| TemplateError::Syntax {
            line: unfit.line,
            detail: unfit.what.to_owned(),
        })?;
        let compiled = on_deep_stack(|| {
            let mut environment = environment();
            environment.add_template_owned(NAME, source).map(|()| environment)
        })?;
        let environment = compiled.map_err(|error| TemplateError::Syntax {
            line: error.line().unwrap_or(0),
            detail: words(&error),
        })?;
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned(), origin })
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The text of a conversation. `tools` are function descriptions in OpenAI's form;
    /// `add_generation_prompt` opens the assistant's answer.
    pub fn render(
        &self,
        messages: &[Message],
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
        now: CivilTime,
    ) -> Result<String, TemplateError> {
        self.render_with(messages, tools, add_generation_prompt, now, &serde_json::Map::new())
    }

    /// [`render`](Self::render) with variables of the template's own, such as `enable_thinking`.
    pub fn render_with(
        &self,
        messages: &[Message],
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
        now: CivilTime,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TemplateError> {
        let conversation = serde_json::to_string(&(messages, tools, variables));
        let bytes = conversation.map_or(0, |text| text.len() as u64);
        let fuel = FUEL_BASE + FUEL_PER_MESSAGE * messages.len() as u64 + FUEL_PER_BYTE * bytes;
        on_deep_stack(|| {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(fuel.min(FUEL_MAX)));
            let given = context! {
                messages => Value::from(Serde(messages)),
                tools => tools.map_or(Value::from(()), |tools| Value::from(Serde(tools))),
                documents => Value::from(()),
                add_generation_prompt,
                bos_token => self.bos.as_str(),
                eos_token => self.eos.as_str(),
                strftime_now => Value::from_function(move |format: &str| now.format(format)),
            };
            let context = context! { ..given, ..Value::from(Serde(variables)) };
            let template = environment.get_template(NAME).expect("compiled when it was made");
            template.render(context).map_err(|error| failure(&error))
        })?
    }
}

/// Runs `work` on a thread with a large stack, and waits for it.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    let broken = |detail: String| TemplateError::Failed { line: 0, detail };
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| broken(format!("no thread to render it on: {error}")))?
            .join()
            .map_err(|_| broken("it broke the template engine".to_owned()))
    })
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(
        minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .expect("the usual delimiters"),
    );
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(weigh::method);
    environment.set_formatter(weigh::formatter);
    environment.add_filter(tags::WEIGHED, weigh::weighed);
    environment.add_filter("string", weigh::string);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json);
    environment
}

/// What a template says when it refuses, kept apart from what goes wrong in it.
#[derive(Debug, Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(state: &State, message: &Value) -> Result<Value, minijinja::Error> {
    weigh::weigh(state, message)?;
    let message = message.to_string();
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Refusal(message)))
}

fn to_json(state: &State, value: &Value, kwargs: Kwargs) -> Result<String, minijinja::Error> {
    let layout = json::Layout::from_kwargs(&kwargs)?;
    kwargs.assert_all_used()?;
    json::dumps(value, &layout, &mut |bytes| state.consume_fuel(bytes / 64 + 1))
}

fn failure(error: &minijinja::Error) -> TemplateError {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = source {
        if let Some(Refusal(message)) = inner.downcast_ref() {
            return TemplateError::Refused { message: message.clone() };
        }
        let spent = inner.downcast_ref::<minijinja::Error>().map(minijinja::Error::kind);
        if spent == Some(ErrorKind::OutOfFuel) {
            return TemplateError::TooMuch;
        }
        source = inner.source();
    }
    TemplateError::Failed { line: error.line().unwrap_or(0), detail: words(error) }
}

/// What went wrong, without the place, which is told apart.
fn words(error: &minijinja::Error) -> String {
    let kind = error.kind().to_string();
    match error.detail() {
        Some(detail) => format!("{kind}: {detail}"),
        None => kind,
    }
}
