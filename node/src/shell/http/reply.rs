//! The JSON that an answer is sent as, in one piece or as server-sent events.

use serde_json::{Value, json};

use crate::shell::ask::Outcome;

/// Answers of the same fingerprint and seed have the same bits.
const FINGERPRINT: &str = concat!("cadencia-", env!("CARGO_PKG_VERSION"), "-int8x-v1");

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
    /// Whether token counts are sent at the end of a stream.
    pub usage: bool,
}

impl Reply {
    /// The reply in one piece.
    pub fn whole(&self, text: &str, outcome: &Outcome) -> Value {
        let finish = outcome.finish.word();
        let (object, choice) = match self.route {
            Route::Chat => {
                let message = json!({"role": "assistant", "content": text, "refusal": null});
                let choice = json!({"index": 0, "message": message, "logprobs": null,
                                    "finish_reason": finish});
                ("chat.completion", choice)
            }
            Route::Completion => {
                let choice = json!({"index": 0, "text": text, "logprobs": null,
                                    "finish_reason": finish});
                ("text_completion", choice)
            }
        };
        let mut value = self.frame(object, json!([choice]));
        value["usage"] = usage(outcome);
        value["timings"] = timings(outcome);
        value
    }

    /// The first event of a stream, if its shape has one: who speaks.
    pub fn first(&self) -> Option<Value> {
        match self.route {
            Route::Chat => {
                Some(self.event(json!({"role": "assistant", "content": ""}), None, Value::Null))
            }
            Route::Completion => None,
        }
    }

    /// The event that carries `text`.
    pub fn text(&self, text: &str) -> Value {
        self.event(json!({"content": text}), Some(text), Value::Null)
    }

    /// The events that end a stream: why it ended and, where wanted, token counts.
    pub fn last(&self, outcome: &Outcome) -> Vec<Value> {
        let finish = Value::from(outcome.finish.word());
        let mut end = self.event(json!({}), None, finish);
        end["timings"] = timings(outcome);
        let mut events = vec![end];
        if self.usage {
            let mut counts = self.frame(self.event_object(), json!([]));
            counts["usage"] = usage(outcome);
            events.push(counts);
        }
        events
    }

    fn event(&self, delta: Value, text: Option<&str>, finish: Value) -> Value {
        let choice = match self.route {
            Route::Chat => json!({"index": 0, "delta": delta, "logprobs": null,
                                  "finish_reason": finish}),
            Route::Completion => json!({"index": 0, "text": text.unwrap_or(""),
                                        "logprobs": null, "finish_reason": finish}),
        };
        let mut value = self.frame(self.event_object(), json!([choice]));
        if self.usage {
            value["usage"] = Value::Null;
        }
        value
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

/// One server-sent event. JSON has no raw line breaks, so one `data:` line holds it.
pub fn sse(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// The event that says that no other follows.
pub const SSE_DONE: &str = "data: [DONE]\n\n";

/// A comment that keeps a silent connection alive.
pub const SSE_ALIVE: &str = ": computing\n\n";

fn usage(outcome: &Outcome) -> Value {
    let answer = outcome.tokens.len();
    json!({
        "prompt_tokens": outcome.prompt,
        "completion_tokens": answer,
        "total_tokens": outcome.prompt + answer,
        "prompt_tokens_details": {"cached_tokens": outcome.kept},
    })
}

/// How long it took, in the words of llama-server.
pub fn timings(outcome: &Outcome) -> Value {
    let ms = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::house::Finish;

    use super::*;

    fn reply(route: Route, usage: bool) -> Reply {
        Reply { route, id: "7".into(), created: 5, model: "m".into(), usage }
    }

    fn outcome() -> Outcome {
        Outcome {
            prompt: 10,
            kept: 4,
            tokens: vec![1, 2, 3],
            finish: Finish::Stop,
            queue_time: Duration::ZERO,
            drafted: 0,
            accepted: 0,
            prompt_time: Duration::from_millis(500),
            answer_time: Duration::from_millis(100),
        }
    }

    #[test]
    fn a_whole_reply_has_text_reason_and_counts() {
        let value = reply(Route::Chat, false).whole("hi", &outcome());
        assert_eq!(value["object"], "chat.completion");
        assert_eq!(value["id"], "chatcmpl-7");
        assert_eq!(value["choices"][0]["message"]["content"], "hi");
        assert_eq!(value["choices"][0]["finish_reason"], "stop");
        assert_eq!(value["usage"]["prompt_tokens"], 10);
        assert_eq!(value["usage"]["total_tokens"], 13);
        assert_eq!(value["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
        assert_eq!(value["timings"]["prompt_per_second"], 12.0);
        assert_eq!(value["timings"]["predicted_per_second"], 20.0);
        let value = reply(Route::Completion, false).whole("hi", &outcome());
        assert_eq!(value["choices"][0]["text"], "hi");
    }

    #[test]
    fn a_stream_begins_with_who_speaks_and_ends_with_why() {
        let reply = reply(Route::Chat, true);
        assert_eq!(reply.first().unwrap()["choices"][0]["delta"]["role"], "assistant");
        let event = reply.text("hi");
        assert_eq!(event["choices"][0]["delta"]["content"], "hi");
        assert!(event["choices"][0]["finish_reason"].is_null() && event["usage"].is_null());
        let last = reply.last(&outcome());
        assert_eq!(last[0]["choices"][0]["finish_reason"], "stop");
        assert_eq!(last[1]["choices"], json!([]));
        assert_eq!(last[1]["usage"]["completion_tokens"], 3);
    }

    #[test]
    fn without_a_wish_no_counts_are_sent() {
        let reply = reply(Route::Completion, false);
        assert_eq!(reply.first(), None);
        assert_eq!(reply.text("hi")["choices"][0]["text"], "hi");
        assert!(reply.text("hi").get("usage").is_none());
        assert_eq!(reply.last(&outcome()).len(), 1);
    }

    #[test]
    fn an_event_is_one_line_whatever_the_text() {
        let event = sse(&reply(Route::Chat, false).text("a\n\ndata: [DONE]\r\n\u{2028}b"));
        assert!(event.starts_with("data: {") && event.ends_with("}\n\n"));
        assert_eq!(event.matches(['\n', '\r']).count(), 2);
    }
}
