//! The JSON that answers are sent as, in one piece or as server-sent events.

mod log_probs;

use std::time::Duration;

use serde_json::{Value, json};

use crate::house::Finish;
use crate::shell::ask::Outcome;

use super::choice::{Call, Delta};

/// Answers of the same fingerprint and seed have the same bits.
pub const FINGERPRINT: &str = concat!("cadencia-", env!("CARGO_PKG_VERSION"), "-int8x-v1");

/// What a client asked through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// What all parts of one reply have in common.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Which shape it has.
    pub route: Route,
    /// The reply's id, without its prefix.
    pub id: String,
    /// Unix time, seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The seed of the first choice; the next ones have the next.
    pub seed: u64,
    /// Whether tokens are sent with their probabilities.
    pub log_probs: bool,
    /// Whether token counts are sent at the end of a stream.
    pub usage: bool,
}

/// One complete answer.
#[derive(Debug, Clone)]
pub struct Answered {
    /// Which of the request's prompts it answers.
    pub prompt: usize,
    /// All that it has.
    pub said: Delta,
    /// Why it ended, in a word.
    pub finish: &'static str,
    /// How it went.
    pub outcome: Outcome,
}

impl Reply {
    /// The reply in one piece: all choices, one or more.
    pub fn whole(&self, answers: &[Answered]) -> Value {
        let choice = |(index, answer): (usize, &Answered)| {
            let said = &answer.said;
            let mut choice = match self.route {
                Route::Chat => json!({"index": index, "message": message(said)}),
                Route::Completion => json!({"index": index, "text": said.text}),
            };
            choice["logprobs"] = self.log_probs(said);
            choice["finish_reason"] = answer.finish.into();
            choice
        };
        let object = match self.route {
            Route::Chat => "chat.completion",
            Route::Completion => "text_completion",
        };
        let mut value = self.frame(object, answers.iter().enumerate().map(choice).collect());
        let outcomes: Vec<_> = answers.iter().map(|a| (a.prompt, &a.outcome)).collect();
        value["usage"] = usage(&outcomes);
        value["seed"] = self.seed.into();
        value["timings"] = timings(&together(&outcomes));
        value
    }

    /// The first event of a choice, if its shape has one: who speaks.
    pub fn first(&self, index: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        match self.route {
            Route::Chat => Some(self.event(index, delta, &Delta::default(), Value::Null)),
            Route::Completion => None,
        }
    }

    /// The event that a choice has grown by `said`.
    pub fn grown(&self, index: usize, said: &Delta) -> Value {
        self.event(index, delta(said), said, Value::Null)
    }

    /// The event that a choice is complete, and why.
    pub fn end(&self, index: usize, finish: &'static str, outcome: &Outcome) -> Value {
        let mut end = self.event(index, json!({}), &Delta::default(), finish.into());
        end["seed"] = self.seed.wrapping_add(index as u64).into();
        end["timings"] = timings(outcome);
        end
    }

    /// The last event, where wanted: token counts of all choices, each with its prompt's number.
    pub fn counts(&self, outcomes: &[(usize, &Outcome)]) -> Option<Value> {
        self.usage.then(|| {
            let mut counts = self.frame(self.event_object(), json!([]));
            counts["usage"] = usage(outcomes);
            counts
        })
    }

    fn event(&self, index: usize, delta: Value, said: &Delta, finish: Value) -> Value {
        let log_probs = match said.spelled.is_empty() {
            true => Value::Null,
            false => self.log_probs(said),
        };
        let mut choice = match self.route {
            Route::Chat => json!({"index": index, "delta": delta}),
            Route::Completion => json!({"index": index, "text": said.text}),
        };
        choice["logprobs"] = log_probs;
        choice["finish_reason"] = finish;
        let mut value = self.frame(self.event_object(), json!([choice]));
        if self.usage {
            value["usage"] = Value::Null;
        }
        value
    }

    fn log_probs(&self, said: &Delta) -> Value {
        match (self.log_probs, self.route) {
            (false, _) => Value::Null,
            (true, Route::Chat) => log_probs::chat(&said.spelled),
            (true, Route::Completion) => log_probs::completion(&said.spelled),
        }
    }

    fn event_object(&self) -> &'static str {
        match self.route {
            Route::Chat => "chat.completion.chunk",
            Route::Completion => "text_completion",
        }
    }

    fn frame(&self, object: &str, choices: Value) -> Value {
        let prefix = match self.route {
            Route::Chat => "chatcmpl",
            Route::Completion => "cmpl",
        };
        json!({
            "id": format!("{prefix}-{}", self.id),
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        })
    }
}

/// The message that a chat's answer is. One that only calls tools has no content.
fn message(said: &Delta) -> Value {
    let content = match said.text.is_empty() && !said.calls.is_empty() {
        true => Value::Null,
        false => said.text.as_str().into(),
    };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !said.calls.is_empty() {
        message["tool_calls"] = said.calls.iter().map(call).collect();
    }
    message
}

/// What a chat's answer has grown by.
fn delta(said: &Delta) -> Value {
    let mut delta = json!({});
    if !said.text.is_empty() || said.calls.is_empty() {
        delta["content"] = said.text.as_str().into();
    }
    if !said.calls.is_empty() {
        let calls = said.calls.iter().map(|one| {
            let mut value = call(one);
            value["index"] = one.index.into();
            value
        });
        delta["tool_calls"] = calls.collect();
    }
    delta
}

fn call(call: &Call) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

/// One server-sent event. JSON has no raw line breaks, so one `data:` line holds it.
pub fn sse(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// The event that says that no other follows.
pub const SSE_DONE: &str = "data: [DONE]\n\n";

/// A comment that keeps a silent connection alive, and says how far the prompt is.
pub fn sse_alive(progress: Option<(usize, usize)>) -> String {
    match progress {
        Some((done, whole)) if done < whole => format!(": prompt {done}/{whole}\n\n"),
        _ => ": computing\n\n".to_string(),
    }
}

/// Token counts of answers, each with its prompt's number. A prompt counts once, however many
/// answers it has; what was in memory before the request came is what its first answer found.
fn usage(outcomes: &[(usize, &Outcome)]) -> Value {
    let (mut prompt, mut kept) = (0, 0);
    let prompts = outcomes.iter().map(|(number, _)| *number).max().map_or(0, |last| last + 1);
    for number in 0..prompts {
        let own = || outcomes.iter().filter(|(other, _)| *other == number);
        prompt += own().map(|(_, outcome)| outcome.prompt).max().unwrap_or(0);
        kept += own().map(|(_, outcome)| outcome.kept).min().unwrap_or(0);
    }
    let sum = |part: fn(&Outcome) -> usize| outcomes.iter().map(|(_, o)| part(o)).sum::<usize>();
    let answer = sum(|outcome| outcome.tokens.len());
    let accepted = sum(|outcome| outcome.accepted);
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": kept},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(|outcome| outcome.drafted).saturating_sub(accepted),
        },
    })
}

/// Several answers as if they were one: tokens added, and the longest times.
pub fn together(outcomes: &[(usize, &Outcome)]) -> Outcome {
    let each = || outcomes.iter().map(|(_, outcome)| *outcome);
    let sum = |part: fn(&Outcome) -> usize| each().map(part).sum::<usize>();
    let longest = |part: fn(&Outcome) -> Duration| each().map(part).max().unwrap_or_default();
    Outcome {
        prompt: sum(|outcome| outcome.prompt),
        kept: sum(|outcome| outcome.kept),
        tokens: each().flat_map(|outcome| outcome.tokens.iter().copied()).collect(),
        finish: each().next().map_or(Finish::Halted, |outcome| outcome.finish),
        queue_time: longest(|outcome| outcome.queue_time),
        prompt_time: longest(|outcome| outcome.prompt_time),
        answer_time: longest(|outcome| outcome.answer_time),
        drafted: sum(|outcome| outcome.drafted),
        accepted: sum(|outcome| outcome.accepted),
    }
}

/// How long it took, in the words of llama-server.
pub fn timings(outcome: &Outcome) -> Value {
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let rounded = |x: f64| (x * 100.0).round() / 100.0;
    json!({
        "cache_n": outcome.kept,
        "prompt_n": outcome.prompt - outcome.kept,
        "prompt_ms": ms(outcome.prompt_time),
        "prompt_per_second": rounded(outcome.prompt_tps()),
        "predicted_n": outcome.tokens.len(),
        "predicted_ms": ms(outcome.answer_time),
        "predicted_per_second": rounded(outcome.answer_tps()),
    })
}

/// The value of a `Server-Timing` header: milliseconds of each part.
pub fn server_timing(parts: &[(&str, Duration)]) -> String {
    let part =
        |(name, time): &(&str, Duration)| format!("{name};dur={:.1}", time.as_secs_f64() * 1e3);
    parts.iter().map(part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(route: Route, usage: bool) -> Reply {
        Reply {
            route,
            id: "7".into(),
            created: 5,
            model: "m".into(),
            seed: 9,
            log_probs: false,
            usage,
        }
    }

    fn outcome() -> Outcome {
        Outcome {
            prompt: 10,
            kept: 4,
            tokens: vec![1, 2, 3],
            finish: Finish::Stop,
            queue_time: Duration::ZERO,
            drafted: 3,
            accepted: 1,
            prompt_time: Duration::from_millis(500),
            answer_time: Duration::from_millis(100),
        }
    }

    fn said(text: &str) -> Delta {
        Delta { text: text.into(), ..Delta::default() }
    }

    fn answered(prompt: usize, text: &str) -> Answered {
        Answered { prompt, said: said(text), finish: "stop", outcome: outcome() }
    }

    #[test]
    fn a_whole_reply_has_text_reason_and_counts() {
        let value = reply(Route::Chat, false).whole(&[answered(0, "hi")]);
        assert_eq!(value["object"], "chat.completion");
        assert_eq!(value["id"], "chatcmpl-7");
        assert_eq!(value["choices"][0]["message"]["content"], "hi");
        assert_eq!(value["choices"][0]["finish_reason"], "stop");
        assert_eq!(value["seed"], 9);
        assert_eq!(value["usage"]["prompt_tokens"], 10);
        assert_eq!(value["usage"]["total_tokens"], 13);
        assert_eq!(value["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
        let details = json!({"accepted_prediction_tokens": 1, "rejected_prediction_tokens": 2});
        assert_eq!(value["usage"]["completion_tokens_details"], details);
        assert_eq!(value["timings"]["prompt_per_second"], 12.0);
        assert_eq!(value["timings"]["predicted_per_second"], 20.0);
        let value = reply(Route::Completion, false).whole(&[answered(0, "hi")]);
        assert_eq!(value["choices"][0]["text"], "hi");
    }

    #[test]
    fn a_prompt_counts_once_however_many_answers_it_has() {
        let mut warm = answered(0, "b");
        warm.outcome.kept = 9;
        let answers = [answered(0, "a"), warm, answered(1, "c")];
        let value = reply(Route::Completion, false).whole(&answers);
        assert_eq!(
            value["choices"][2],
            json!({
            "index": 2, "text": "c", "logprobs": null, "finish_reason": "stop"})
        );
        assert_eq!(value["usage"]["prompt_tokens"], 20);
        assert_eq!(value["usage"]["completion_tokens"], 9);
        assert_eq!(value["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
    }

    #[test]
    fn a_stream_begins_with_who_speaks_and_ends_with_why() {
        let reply = reply(Route::Chat, true);
        assert_eq!(reply.first(1).unwrap()["choices"][0]["delta"]["role"], "assistant");
        let event = reply.grown(1, &said("hi"));
        assert_eq!(event["choices"][0]["delta"]["content"], "hi");
        assert_eq!(event["choices"][0]["index"], 1);
        assert!(event["choices"][0]["finish_reason"].is_null() && event["usage"].is_null());
        let end = reply.end(1, "stop", &outcome());
        assert_eq!(
            (&end["choices"][0]["finish_reason"], &end["seed"]),
            (&json!("stop"), &json!(10))
        );
        let counts = reply.counts(&[(0, &outcome())]).unwrap();
        assert_eq!(counts["choices"], json!([]));
        assert_eq!(counts["usage"]["completion_tokens"], 3);
    }

    #[test]
    fn calls_are_told_beside_the_text() {
        let call = Call { index: 0, id: "c".into(), name: "f".into(), arguments: "{}".into() };
        let calling = Delta { calls: vec![call], ..Delta::default() };
        let answer = Answered { said: calling.clone(), finish: "tool_calls", ..answered(0, "") };
        let choice = &reply(Route::Chat, false).whole(&[answer])["choices"][0];
        let told = json!({"id": "c", "type": "function",
                          "function": {"name": "f", "arguments": "{}"}});
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(
            choice["message"],
            json!({
            "role": "assistant", "content": null, "refusal": null, "tool_calls": [told]})
        );
        let event = reply(Route::Chat, false).grown(2, &calling);
        let mut told = told;
        told["index"] = 0.into();
        assert_eq!(event["choices"][0]["delta"], json!({"tool_calls": [told]}));
    }

    #[test]
    fn without_a_wish_no_counts_are_sent() {
        let reply = reply(Route::Completion, false);
        assert_eq!(reply.first(0), None);
        assert_eq!(reply.grown(0, &said("hi"))["choices"][0]["text"], "hi");
        assert!(reply.grown(0, &said("hi")).get("usage").is_none());
        assert_eq!(reply.counts(&[(0, &outcome())]), None);
    }

    #[test]
    fn an_event_is_one_line_whatever_the_text() {
        let text = said("a\n\ndata: [DONE]\r\n\u{2028}b");
        let event = sse(&reply(Route::Chat, false).grown(0, &text));
        assert!(event.starts_with("data: {") && event.ends_with("}\n\n"));
        assert_eq!(event.matches(['\n', '\r']).count(), 2);
    }

    #[test]
    fn a_silent_stream_says_how_far_the_prompt_is() {
        assert_eq!(sse_alive(Some((512, 4096))), ": prompt 512/4096\n\n");
        assert_eq!(sse_alive(Some((9, 9))), sse_alive(None));
        let parts = [("queue", Duration::from_micros(1250)), ("answer", Duration::ZERO)];
        assert_eq!(server_timing(&parts), "queue;dur=1.2, answer;dur=0.0");
    }
}
