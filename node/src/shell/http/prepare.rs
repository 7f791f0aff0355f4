//! Turns what is wanted into requests to a model: tokens, limits, and one request for each answer.

use std::sync::Arc;

use axum::http::StatusCode;
use compute::sample::{Sampler, SamplerOptions};
use compute::tokenizer::Tokenizer;

use serde_json::Value;

use crate::house::tools::{Calls, Tool, ToolParser};
use crate::shell::ask::{AnswerError, Ask, Goal, Manner, Owner};
use crate::shell::constraint::{Constraint, ConstraintError};
use crate::shell::speaker::{Script, ScriptEnd, SpeechError, unix_now};
use crate::shell::worker::{Served, Serving};

use super::choice::Choice;
use super::fault::{Fault, internal, quoted};
use super::wanted::{Echo, Form, Input, Opening, Options, Prompt, Talk, Wanted, refused};
use super::{Api, no_route};

/// A model that is served, and its place among them.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its place.
    pub place: usize,
    /// It.
    pub serving: Arc<Serving>,
}

impl Target {
    /// The model that a request names; the first where it names none. Refuses for one that nobody
    /// computes.
    pub fn find(served: &Served, asked: Option<&str>) -> Result<Self, Fault> {
        let found = served.find(asked);
        let found = found.map(|(place, serving)| Self { place, serving: serving.clone() });
        let found = found.ok_or_else(|| {
            let message = format!(
                "the model {} is not served here; {} is",
                quoted(asked.unwrap_or_default()),
                served.names().join(", ")
            );
            Fault::new(StatusCode::NOT_FOUND, "model_not_found", message).about("model")
        })?;
        found.serving.admits().map_err(|why| no_route(&found.serving, &why))?;
        Ok(found)
    }
}

/// Requests to a model, and the choices that grow from their answers.
#[derive(Debug)]
pub struct Prepared {
    /// Requests.
    pub asks: Vec<Ask>,
    /// As many choices.
    pub choices: Vec<Choice>,
}

/// Requests for all answers that are wanted of `target`, for `owner`; refuses what does not fit.
pub async fn prepare(
    api: &Api,
    target: &Target,
    owner: Owner,
    wanted: Wanted,
) -> Result<Prepared, Fault> {
    let target = target.clone();
    read(api, move || prepared(&target, owner, wanted)).await
}

/// Runs `work`, which reads prompts, where it hinders nobody.
pub async fn read<T: Send + 'static>(
    api: &Api,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let permit = api.readers.clone().acquire_owned().await.expect("it is never closed");
    let reading = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    reading.await.unwrap_or_else(|_| Err(internal("reading the prompt failed")))
}

fn prepared(target: &Target, owner: Owner, wanted: Wanted) -> Result<Prepared, Fault> {
    let serving = &target.serving;
    let tokenizer = serving.speaker.tokenizer().map_err(|error| unsaid("model", error))?;
    let options = wanted.options;
    check_tokens(&options, serving.speaker.model().summary().vocabulary)?;
    let mut form = Rules { constraint: constraint(serving, &options)?, ..Rules::default() };
    let (prompts, echoes) = match wanted.input {
        Input::Chat(talk) => {
            if !talk.tools.is_empty() {
                form = tool_rules(serving, &talk)?;
            }
            (vec![("messages".to_string(), conversation(serving, &talk)?)], vec![String::new()])
        }
        Input::Prompts(prompts) => {
            let echo = |prompt: &Prompt| match (options.echo, prompt) {
                (Echo::Nothing, _) => String::new(),
                (Echo::Prompt, Prompt::Text(text)) => text.clone(),
                (Echo::Prompt, Prompt::Tokens(tokens)) => tokenizer.decode(tokens),
            };
            let echoes = prompts.iter().map(echo).collect();
            (tokens(serving, "prompt", prompts)?, echoes)
        }
    };
    let (mut asks, mut choices) = (Vec::new(), Vec::new());
    for (number, ((param, prompt), echo)) in prompts.into_iter().zip(echoes).enumerate() {
        for n in 0..options.choices {
            let index = asks.len() as u64;
            let goal = Goal::Answer(Box::new(manner(&options, &form, index)));
            let ask = Ask { model: target.place, owner, prompt: prompt.clone(), goal };
            if n == 0 {
                check(&ask, serving.context, &param)?;
            }
            asks.push(ask);
            let choice = Choice::new(serving.clone(), number, echo.clone());
            choices.push(choice.calling(form.parser.clone(), form.calls));
        }
    }
    Ok(Prepared { asks, choices })
}

/// What holds for all answers to a request.
#[derive(Debug, Default)]
struct Rules {
    /// What they may say.
    constraint: Option<Constraint>,
    /// Special tokens whose text is shown.
    shown_specials: Vec<u32>,
    /// What finds calls in them.
    parser: Option<ToolParser>,
    /// How many calls each may have.
    calls: Option<Calls>,
}

/// What keeps an answer to the form that was asked for.
fn constraint(serving: &Serving, options: &Options) -> Result<Option<Constraint>, Fault> {
    if options.form == Form::Free {
        return Ok(None);
    }
    let factory = serving.speaker.constraints().map_err(|error| unsaid("model", error))?;
    let made = match &options.form {
        Form::Free => return Ok(None),
        Form::JsonObject => factory.any_json_object(),
        Form::Schema(schema) => factory.for_json_schema(schema),
        Form::Regex(regex) => factory.for_regex(regex),
        Form::Choice(texts) => factory.for_choice(texts),
    };
    made.map(Some).map_err(|error| unbound(options.form_field, &error))
}

/// What tools mean for the answers of a conversation that has some.
fn tool_rules(serving: &Serving, talk: &Talk) -> Result<Rules, Fault> {
    let speaker = &serving.speaker;
    let Some(format) = speaker.tools() else {
        let message = format!("the chat template of {} does not know tools", speaker.name());
        return Err(Fault::unsupported("tools", message));
    };
    let tokenizer = speaker.tokenizer().map_err(|error| unsaid("model", error))?;
    let format = if talk.choice.forces() { format.forced() } else { format };
    let special = |text: &str| tokenizer.id_of(text).filter(|id| tokenizer.is_control(*id));
    let grammar = format.grammar(&talk.tools, &talk.choice, talk.calls, special);
    let constraint = match grammar.map_err(|error| refused("", &error))? {
        None => None,
        Some(lark) => {
            let factory = speaker.constraints().map_err(|error| unsaid("model", error))?;
            let made = factory.for_lark(&lark);
            Some(made.map_err(|error| unbound("tool_choice", &error))?)
        }
    };
    Ok(Rules {
        constraint,
        shown_specials: format.markers().iter().filter_map(|text| special(text)).collect(),
        parser: Some(ToolParser::new(format, &talk.tools)),
        calls: Some(talk.calls),
    })
}

/// The refusal of a form that cannot be kept to.
fn unbound(param: &str, error: &ConstraintError) -> Fault {
    match error {
        ConstraintError::Thread(error) => internal(&error.to_string()),
        ConstraintError::Schema(error) if !matches!(error.path(), "" | "schema") => {
            Fault::unsupported(format!("{param}.{}", error.path()), error.to_string())
        }
        error => Fault::unsupported(param, error.to_string()),
    }
}

/// Refuses a prompt that leaves no room, with the numbers.
pub fn check(ask: &Ask, context: usize, param: &str) -> Result<(), Fault> {
    ask.check(context).map_err(|error| match error {
        AnswerError::Long { .. } => {
            let code = "context_length_exceeded";
            Fault::new(StatusCode::BAD_REQUEST, code, error.to_string()).about(param)
        }
        error => Fault::field(param, error.to_string()),
    })
}

/// How the request's answer number `index` is given.
fn manner(options: &Options, rules: &Rules, index: u64) -> Manner {
    let seed = options.sampler.seed.wrapping_add(index);
    let sampler = SamplerOptions { seed, ..options.sampler.clone() };
    Manner {
        tokens_max: options.tokens_max.unwrap_or(usize::MAX),
        stops: options.stops.clone(),
        stop_tokens: options.stop_tokens.clone(),
        end: options.end,
        shown_specials: rules.shown_specials.clone(),
        sampler: Sampler::new(sampler).expect("it was checked with another seed"),
        log_probs: options.log_probs,
        constraint: rules.constraint.clone(),
    }
}

/// Refuses tokens that the model does not have, where something is said about them.
fn check_tokens(options: &Options, vocabulary: usize) -> Result<(), Fault> {
    let biased = options.sampler.logit_bias.keys().map(|token| ("logit_bias", *token));
    let ending = options.stop_tokens.iter().map(|token| ("stop_token_ids", *token));
    match biased.chain(ending).find(|(_, token)| *token as usize >= vocabulary) {
        Some((field, token)) => Err(outside(field, token, vocabulary)),
        None => Ok(()),
    }
}

fn outside(param: &str, token: u32, vocabulary: usize) -> Fault {
    Fault::field(param, format!("token {token} is outside the vocabulary of {vocabulary}"))
}

/// The tokens of each of `prompts`, with the name that the field `name` has for it.
pub fn tokens(
    serving: &Serving,
    name: &str,
    prompts: Vec<Prompt>,
) -> Result<Vec<(String, Vec<u32>)>, Fault> {
    let vocabulary = serving.speaker.model().summary().vocabulary;
    let alone = prompts.len() == 1;
    let each = prompts.into_iter().enumerate().map(|(n, prompt)| {
        let param = if alone { name.to_string() } else { format!("{name}[{n}]") };
        let tokens = match prompt {
            Prompt::Text(text) => serving.speaker.raw(&text).map_err(|e| unsaid(&param, e))?,
            Prompt::Tokens(tokens) => tokens,
        };
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(token) => Err(outside(&param, *token, vocabulary)),
            None => Ok((param, tokens)),
        }
    });
    each.collect()
}

/// The tokens of a conversation.
fn conversation(serving: &Serving, talk: &Talk) -> Result<Vec<u32>, Fault> {
    let speaker = &serving.speaker;
    let called = talk.messages.iter().position(|message| message.tool_calls.is_some());
    if let Some(n) = called.filter(|_| speaker.tools().is_none()) {
        let message =
            format!("the chat template of {} does not know calls of tools", speaker.name());
        return Err(Fault::unsupported(format!("messages[{n}].tool_calls"), message));
    }
    let tools: Vec<Value> = talk.tools.iter().map(Tool::for_template).collect();
    let tools = Value::Array(tools);
    let script = Script {
        messages: &talk.messages,
        tools: (!talk.tools.is_empty()).then_some(&tools),
        variables: &talk.variables,
        end: match talk.opening {
            Opening::Message => ScriptEnd::Opened,
            Opening::Nothing | Opening::LastMessage => ScriptEnd::Bare,
        },
    };
    let mut text = speaker.written(&script, unix_now()).map_err(|e| unsaid("messages", e))?;
    if talk.opening == Opening::LastMessage {
        cut_after_last(&mut text, talk)?;
    }
    let tokenizer: &Tokenizer = speaker.tokenizer().map_err(|error| unsaid("model", error))?;
    Ok(tokenizer.encode_chat(&text))
}

/// Takes off what the template wrote after the last message's text, so that it can go on.
fn cut_after_last(text: &mut String, talk: &Talk) -> Result<(), Fault> {
    let last = talk.messages.last().map_or("", |message| message.content.trim_end());
    match text.rfind(last) {
        Some(start) => {
            text.truncate(start + last.len());
            Ok(())
        }
        None => {
            let message =
                "the model's template changes the last message, so it cannot be continued";
            Err(Fault::unsupported("continue_final_message", message))
        }
    }
}

/// Why a model cannot be spoken to like that.
fn unsaid(param: &str, error: SpeechError) -> Fault {
    match error {
        SpeechError::Refused(error) => Fault::field(param, error.to_string()),
        error => Fault::new(StatusCode::BAD_REQUEST, "unsupported_by_model", error.to_string())
            .about("model"),
    }
}
