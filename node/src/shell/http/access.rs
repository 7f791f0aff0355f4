//! One log line for each request, written when its last byte has been produced or its client has
//! gone. It has ids, counts and times, and nothing of what was said. The same facts are counted
//! for `/metrics`.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, Method, StatusCode};

use crate::shell::ask::Outcome;

use super::metrics::{Metrics, Operation};

/// Bytes of a path that are logged.
const PATH_LOGGED_MAX: usize = 128;
/// Bytes of a client's own request id.
const ID_MAX: usize = 64;

/// The record of one request. Dropping the last holder writes the line.
#[derive(Debug)]
pub struct Access {
    id: String,
    method: Method,
    path: String,
    start: Instant,
    metrics: Arc<Metrics>,
    facts: Mutex<Facts>,
}

#[derive(Debug, Default)]
struct Facts {
    status: Option<StatusCode>,
    /// The name of the key that was shown.
    key: Option<String>,
    asked: Option<Asked>,
    /// How long it waited for its turn.
    queue: Option<Duration>,
    /// When the first token of the answer came, since the start.
    first: Option<Duration>,
    outcomes: Vec<Outcome>,
}

/// What was asked of a model.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What kind of answer.
    pub operation: Operation,
    /// The model's name.
    pub model: String,
    /// Answers.
    pub choices: usize,
}

impl Access {
    /// A request that begins now. A client's own `x-request-id` is kept if it is plain.
    pub fn new(method: Method, path: &str, headers: &HeaderMap, metrics: Arc<Metrics>) -> Self {
        let given = headers.get("x-request-id").and_then(|id| id.to_str().ok());
        let plain = |id: &&str| {
            let letter = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            (1..=ID_MAX).contains(&id.len()) && id.bytes().all(letter)
        };
        let id = given.filter(plain).map_or_else(random_id, str::to_string);
        let path = path.chars().take(PATH_LOGGED_MAX).collect();
        Self { id, method, path, start: Instant::now(), metrics, facts: Mutex::default() }
    }

    /// The request's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The response begins with `status`.
    pub fn status(&self, status: StatusCode) {
        self.facts().status = Some(status);
    }

    /// The key called `name` was shown.
    pub fn key(&self, name: Option<String>) {
        self.facts().key = name;
    }

    /// This was asked.
    pub fn asked(&self, asked: Asked) {
        self.facts().asked = Some(asked);
    }

    /// Its turn came after `time`.
    pub fn queued(&self, time: Duration) {
        self.facts().queue = Some(time);
    }

    /// How long it waited for its turn.
    pub fn queue_time(&self) -> Duration {
        self.facts().queue.unwrap_or_default()
    }

    /// A token of an answer came; only the first counts.
    pub fn token(&self) {
        let now = self.start.elapsed();
        self.facts().first.get_or_insert(now);
    }

    /// An answer is complete.
    pub fn outcome(&self, outcome: Outcome) {
        self.facts().outcomes.push(outcome);
    }

    /// The request was refused with `code`, or its stream was broken off with it.
    pub fn refused(&self, code: &'static str) {
        self.metrics.refused(code);
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().expect("no holder panics")
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let Ok(facts) = self.facts.lock() else { return };
        // 499 is the custom for a client that went away before the response began.
        let status = facts.status.map_or(499, |status| status.as_u16());
        let time = self.start.elapsed();
        self.metrics.request(&self.path, status);
        let (id, method, path, ms) = (&self.id, &self.method, &self.path, time.as_millis());
        let key = facts.key.as_deref();
        let Some(asked) = &facts.asked else {
            tracing::info!(id, %method, ?path, status, ms, key, "request");
            return;
        };
        // What was turned away took no time worth knowing.
        if facts.first.is_some() || !facts.outcomes.is_empty() {
            self.metrics.answered(asked, time, facts.first, &facts.outcomes);
        }
        let (model, n) = (&asked.model, asked.choices);
        let queue_ms = facts.queue.map(|time| time.as_millis());
        match facts.outcomes.first() {
            None => tracing::info!(
                id, %method, ?path, status, ms, key, model, n, queue_ms, "request"
            ),
            Some(first) => tracing::info!(
                id, %method, ?path, status, ms, key, model, n, queue_ms,
                prompt = first.prompt,
                kept = first.kept,
                tokens = facts.outcomes.iter().map(|outcome| outcome.tokens.len()).sum::<usize>(),
                finish = first.finish.word(),
                ttft_ms = facts.first.map(|time| time.as_millis()),
                prompt_ms = first.prompt_time.as_millis(),
                tps = format_args!("{:.1}", first.answer_tps()),
                "request"
            ),
        }
    }
}

/// 64 random bits in hexadecimal.
pub fn random_id() -> String {
    format!("{:016x}", random())
}

/// 64 random bits.
pub fn random() -> u64 {
    getrandom::u64().expect("the system has random bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_id_is_kept_only_if_it_is_plain() {
        let id = |given: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-request-id", given.parse().unwrap());
            let metrics = Metrics::new(None, None);
            Access::new(Method::GET, "/", &headers, metrics).id().to_string()
        };
        assert_eq!(id("abc-1.2_3"), "abc-1.2_3");
        for bad in ["", "a b", "a\"b", &"x".repeat(65)] {
            assert_eq!(id(bad).len(), 16, "{bad:?}");
        }
    }
}
