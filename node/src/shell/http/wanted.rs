//! What a client wants, read from its JSON and checked field by field.
//!
//! A field that would change the answer and is not supported is refused by name: ignoring it would
//! give an answer to another question. Fields that are not known are ignored, as clients of many
//! servers send them.

mod form;
#[cfg(test)]
mod fuzz;
mod prompts;
mod sampling;
mod talk;
mod unsupported;

use compute::sample::SamplerOptions;
use serde_json::Value;

use crate::shell::ask::EndTokens;

use super::fault::Fault;
use super::fields::Fields;

pub use form::Form;
pub use prompts::{Prompt, prompts};
pub use talk::{Opening, Talk, refused};

/// Answers that one request may ask for, over all of its prompts.
pub const CHOICES_MAX: usize = 16;

/// A request for answers.
#[derive(Debug)]
pub struct Wanted {
    /// What is to be answered.
    pub input: Input,
    /// The model asked for, if one was.
    pub model: Option<String>,
    /// How it is to be answered.
    pub options: Options,
}

/// What is to be answered.
#[derive(Debug)]
pub enum Input {
    /// A conversation.
    Chat(Box<Talk>),
    /// Text or tokens to be continued, each for itself.
    Prompts(Vec<Prompt>),
}

/// How it is to be answered.
#[derive(Debug)]
pub struct Options {
    /// Answers to each prompt, 1 or more; with all prompts at most [`CHOICES_MAX`].
    pub choices: usize,
    /// Tokens at most; `None` for as many as the context holds.
    pub tokens_max: Option<usize>,
    /// Strings that end the answer.
    pub stops: Vec<String>,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// What the model's own end tokens do.
    pub end: EndTokens,
    /// How tokens are picked.
    pub sampler: SamplerOptions,
    /// With each token its probability, and those of so many others.
    pub log_probs: Option<usize>,
    /// What the answer must look like.
    pub form: Form,
    /// The field that asked for `form`.
    pub form_field: &'static str,
    /// Whether the answer's text begins with the prompt.
    pub echo: Echo,
    /// How the answer is sent.
    pub delivery: Delivery,
}

/// Whether an answer's text begins with its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// It does.
    Prompt,
    /// It does not.
    Nothing,
}

/// How the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In one piece.
    Whole,
    /// As it grows.
    Stream,
    /// As it grows, with its token counts at the end.
    StreamWithUsage,
}

impl Wanted {
    /// A request to `/v1/chat/completions`; `seed` is used where it brings none.
    pub fn chat(body: &[u8], seed: u64) -> Result<Self, Fault> {
        let mut fields = Fields::parse(body)?;
        let talk = Talk::take(&mut fields)?;
        let log_probs = chat_log_probs(&mut fields)?;
        for name in ["echo", "best_of"] {
            if fields.take(name).is_some_and(|value| value != Value::Bool(false) && value != 1) {
                let message = format!("{name} is a parameter of /v1/completions");
                return Err(Fault::unsupported(name, message));
            }
        }
        let has_tools = !talk.tools.is_empty();
        let forced = talk.choice.forces();
        let input = Input::Chat(Box::new(talk));
        let wanted = Self::rest(fields, input, 1, (log_probs, Echo::Nothing), seed)?;
        let options = &wanted.options;
        if has_tools && options.form != Form::Free {
            let message = "an answer of a set form cannot call tools; ask for it with tool_choice \
                none, or without tools";
            return Err(Fault::unsupported(options.form_field, message));
        }
        if forced && options.end == EndTokens::Forbidden {
            return Err(Fault::unsupported("ignore_eos", FORM_ENDS));
        }
        Ok(wanted)
    }

    /// A request to `/v1/completions`; `seed` is used where it brings none.
    pub fn completion(body: &[u8], seed: u64) -> Result<Self, Fault> {
        let mut fields = Fields::parse(body)?;
        let prompts = prompts(&mut fields, "prompt", CHOICES_MAX)?;
        let log_probs = completion_log_probs(&mut fields)?;
        let echo = match fields.flag("echo")? {
            Some(true) if log_probs.is_some() => {
                let message = "echo with logprobs is not supported; ask for one of them";
                return Err(Fault::unsupported("echo", message));
            }
            Some(true) => Echo::Prompt,
            _ => Echo::Nothing,
        };
        for name in ["tools", "tool_choice"] {
            let idle = |value: &Value| {
                value.as_array().is_some_and(Vec::is_empty) || value == "none" || value == "auto"
            };
            if fields.take(name).is_some_and(|value| !idle(&value)) {
                let message = format!("{name} is a parameter of /v1/chat/completions");
                return Err(Fault::unsupported(name, message));
            }
        }
        let count = prompts.len();
        Self::rest(fields, Input::Prompts(prompts), count, (log_probs, echo), seed)
    }

    /// What both routes have in common, for a request of `count` prompts.
    fn rest(
        mut fields: Fields,
        input: Input,
        count: usize,
        (log_probs, echo): (Option<usize>, Echo),
        seed: u64,
    ) -> Result<Self, Fault> {
        unsupported::refuse(&mut fields)?;
        let model = fields.text("model")?;
        let (form, form_field) = form::form(&mut fields)?;
        let options = Options {
            choices: choices(&mut fields, count)?,
            tokens_max: sampling::tokens_max(&mut fields)?,
            stops: sampling::stops(&mut fields)?,
            stop_tokens: sampling::stop_tokens(&mut fields)?,
            end: sampling::end(&mut fields)?,
            sampler: sampling::sampler(&mut fields, seed)?,
            log_probs,
            form,
            form_field,
            echo,
            delivery: delivery(&mut fields)?,
        };
        if options.form != Form::Free && options.end == EndTokens::Forbidden {
            return Err(Fault::unsupported("ignore_eos", FORM_ENDS));
        }
        Ok(Self { input, model, options })
    }
}

/// Why an answer of a set form is not to go on and on.
const FORM_ENDS: &str = "an answer of a set form ends with it, so ignore_eos cannot be had beside";

/// How many answers each of `count` prompts gets.
fn choices(fields: &mut Fields, count: usize) -> Result<usize, Fault> {
    let most = CHOICES_MAX / count.max(1);
    let wanted = i64::try_from(most).unwrap_or(i64::MAX);
    let choices = fields.whole("n", 1..=wanted)?.unwrap_or(1);
    match fields.whole("best_of", 1..=i64::MAX)? {
        Some(best_of) if best_of != choices => {
            let message = "best_of is not supported with another value than n; ask for n answers \
                 with logprobs and take the best";
            Err(Fault::unsupported("best_of", message))
        }
        _ => Ok(usize::try_from(choices).unwrap_or(1)),
    }
}

/// Chat has two fields: whether, and how many others.
fn chat_log_probs(fields: &mut Fields) -> Result<Option<usize>, Fault> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let others = fields.whole("top_logprobs", 0..=20)?;
    match (wanted, others) {
        (true, others) => Ok(Some(usize::try_from(others.unwrap_or(0)).unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(fields.wrong("top_logprobs", "absent unless logprobs is true")),
    }
}

/// Completions have one number.
fn completion_log_probs(fields: &mut Fields) -> Result<Option<usize>, Fault> {
    match fields.take("logprobs") {
        None | Some(Value::Bool(false)) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(others @ 0..=5) => Ok(Some(others as usize)),
            _ => Err(fields.wrong("logprobs", "a whole number from 0 to 5")),
        },
    }
}

fn delivery(fields: &mut Fields) -> Result<Delivery, Fault> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let Some(options) = fields.take("stream_options") else {
        return Ok(if stream { Delivery::Stream } else { Delivery::Whole });
    };
    if !stream {
        return Err(Fault::field("stream_options", "stream_options needs stream to be true"));
    }
    let usage = Fields::of("stream_options", options)?.flag("include_usage")?;
    Ok(if usage == Some(true) { Delivery::StreamWithUsage } else { Delivery::Stream })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(extra: Value) -> Result<Wanted, Fault> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Wanted::chat(body.to_string().as_bytes(), 7)
    }

    #[track_caller]
    fn check_refused(extra: Value, param: &str) {
        let fault = chat(extra.clone()).expect_err(&extra.to_string()).json();
        assert_eq!(fault["error"]["param"], param, "{extra}");
    }

    #[test]
    fn wrong_fields_are_refused_by_name() {
        for (extra, param) in [
            (json!({"messages": "hi"}), "messages"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": ["hi"]}), "messages[0]"),
            (json!({"messages": [{"content": "hi"}]}), "messages[0].role"),
            (json!({"messages": [{"role": "king", "content": "hi"}]}), "messages[0].role"),
            (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
            (json!({"messages": [{"role": "user", "content": 3}]}), "messages[0].content"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_completion_tokens": "many"}), "max_completion_tokens"),
            (json!({"max_tokens": 3, "max_completion_tokens": 4}), "max_tokens"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": -0.5}), "temperature"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"top_k": 1.5}), "top_k"),
            (json!({"min_p": true}), "min_p"),
            (json!({"seed": "x"}), "seed"),
            (json!({"logit_bias": [1]}), "logit_bias"),
            (json!({"logit_bias": {"the": 1}}), "logit_bias"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias"),
            (json!({"stop": 3}), "stop"),
            (json!({"stop": [""]}), "stop"),
            (json!({"stop": vec!["x"; 17]}), "stop"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"stream": true, "stream_options": 3}), "stream_options"),
            (json!({"model": 3}), "model"),
            (json!({"n": 0}), "n"),
            (json!({"n": 17}), "n"),
            (json!({"n": 1.5}), "n"),
            (json!({"logprobs": 3}), "logprobs"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (json!({"stop_token_ids": [-1]}), "stop_token_ids"),
            (json!({"stop_token_ids": vec![1; 17]}), "stop_token_ids"),
            (json!({"ignore_eos": 1}), "ignore_eos"),
            (json!({"chat_template_kwargs": []}), "chat_template_kwargs"),
            (json!({"chat_template_kwargs": {"x": "y".repeat(20_000)}}), "chat_template_kwargs"),
            (json!({"continue_final_message": true}), "continue_final_message"),
            (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].tool_call_id"),
            (
                json!({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}),
                "messages[0].tool_calls",
            ),
        ] {
            check_refused(extra, param);
        }
    }

    #[test]
    fn what_would_change_the_answer_and_is_not_supported_is_refused_by_name() {
        for (extra, param) in [
            (json!({"functions": [{}]}), "functions"),
            (json!({"best_of": 2}), "best_of"),
            (json!({"min_tokens": 2}), "min_tokens"),
            (json!({"store": true}), "store"),
            (json!({"service_tier": "priority"}), "service_tier"),
            (json!({"reasoning_effort": "high"}), "reasoning_effort"),
            (json!({"grammar": "root ::= x"}), "grammar"),
            (json!({"audio": {}}), "audio"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                "messages[0].content[0].type",
            ),
        ] {
            check_refused(extra.clone(), param);
            let fault = chat(extra).unwrap_err().json();
            assert_eq!(fault["error"]["code"], "unsupported_parameter");
        }
    }

    #[test]
    fn harmless_values_and_unknown_fields_are_accepted() {
        let wanted = chat(json!({
            "n": 1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"},
            "logprobs": false, "logit_bias": {"5": -100}, "user": "someone", "never_heard_of": 1,
            "temperature": null, "top_k": -1, "seed": -1, "store": false,
        }))
        .unwrap();
        assert_eq!(wanted.options.delivery, Delivery::Whole);
        assert_eq!((wanted.options.tokens_max, wanted.model), (None, None));
    }

    #[test]
    fn content_may_come_in_parts_and_a_developer_speaks_as_the_system() {
        let wanted = chat(json!({"messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"},
                                              {"type": "text", "text": "b"}]},
        ]}));
        let Input::Chat(talk) = wanted.unwrap().input else { panic!("it is a chat") };
        let first = &talk.messages[0];
        assert_eq!((first.role.as_str(), first.content.as_str()), ("system", "ab"));
    }

    #[test]
    fn an_answer_opens_as_it_is_asked_to() {
        let last = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]);
        for (extra, opening) in [
            (json!({}), Opening::Message),
            (json!({"add_generation_prompt": false}), Opening::Nothing),
            (json!({"messages": last, "continue_final_message": true}), Opening::LastMessage),
        ] {
            let Input::Chat(talk) = chat(extra).unwrap().input else { panic!("it is a chat") };
            assert_eq!(talk.opening, opening);
        }
    }

    fn completion(extra: Value) -> Result<Wanted, String> {
        let mut body = json!({"prompt": "hi"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let param = |fault: Fault| fault.json()["error"]["param"].as_str().unwrap().to_string();
        Wanted::completion(body.to_string().as_bytes(), 7).map_err(param)
    }

    #[test]
    fn completions_have_their_own_words() {
        let wanted = completion(json!({"prompt": ["a", "b"], "n": 8, "best_of": 8, "logprobs": 0}));
        let options = wanted.unwrap().options;
        assert_eq!((options.choices, options.log_probs), (8, Some(0)));
        assert_eq!(completion(json!({"echo": true})).unwrap().options.echo, Echo::Prompt);
        for (extra, param) in [
            (json!({"prompt": ["a", "b"], "n": 9}), "n"),
            (json!({"prompt": vec!["a"; 17]}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"logprobs": 6}), "logprobs"),
            (json!({"logprobs": true}), "logprobs"),
            (json!({"echo": true, "logprobs": 1}), "echo"),
            (json!({"suffix": "x"}), "suffix"),
            (json!({"max_tokens": 0, "echo": true}), "max_tokens"),
            (json!({"n": 2, "best_of": 3}), "best_of"),
            (json!({"tools": [{}]}), "tools"),
        ] {
            assert_eq!(completion(extra.clone()).unwrap_err(), param, "{extra}");
        }
    }

    #[test]
    fn delivery_is_read_from_two_fields() {
        let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
        assert_eq!(chat(stream).unwrap().options.delivery, Delivery::StreamWithUsage);
        assert_eq!(chat(json!({"stream": true})).unwrap().options.delivery, Delivery::Stream);
    }
}
