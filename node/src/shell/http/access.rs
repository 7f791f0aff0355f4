//! One log line for each request, written when its last byte has been produced or its client has
//! gone. It has ids, counts and times, and nothing of what was said.

use std::sync::Mutex;
use std::time::Instant;

use axum::http::{HeaderMap, Method, StatusCode};

use crate::shell::ask::Outcome;

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
    facts: Mutex<Facts>,
}

#[derive(Debug, Default)]
struct Facts {
    status: Option<StatusCode>,
    outcome: Option<Outcome>,
}

impl Access {
    /// A request that begins now. A client's own `x-request-id` is kept if it is plain.
    pub fn new(method: Method, path: &str, headers: &HeaderMap) -> Self {
        let given = headers.get("x-request-id").and_then(|id| id.to_str().ok());
        let plain = |id: &&str| {
            let letter = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            (1..=ID_MAX).contains(&id.len()) && id.bytes().all(letter)
        };
        let id = given.filter(plain).map_or_else(random_id, str::to_string);
        let path = path.chars().take(PATH_LOGGED_MAX).collect();
        Self { id, method, path, start: Instant::now(), facts: Mutex::default() }
    }

    /// The request's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The response begins with `status`.
    pub fn status(&self, status: StatusCode) {
        self.facts.lock().expect("no holder panics").status = Some(status);
    }

    /// The answer is complete.
    pub fn outcome(&self, outcome: Outcome) {
        self.facts.lock().expect("no holder panics").outcome = Some(outcome);
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let Ok(facts) = self.facts.lock() else { return };
        // 499 is the custom for a client that went away before the response began.
        let status = facts.status.map_or(499, |status| status.as_u16());
        let ms = self.start.elapsed().as_millis();
        let (id, method, path) = (&self.id, &self.method, &self.path);
        match &facts.outcome {
            None => tracing::info!(id, %method, ?path, status, ms, "request"),
            Some(outcome) => tracing::info!(
                id, %method, ?path, status, ms,
                prompt = outcome.prompt,
                kept = outcome.kept,
                tokens = outcome.tokens.len(),
                finish = outcome.finish.word(),
                prompt_ms = outcome.prompt_time.as_millis(),
                tps = format_args!("{:.1}", outcome.answer_tps()),
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
            Access::new(Method::GET, "/", &headers).id().to_string()
        };
        assert_eq!(id("abc-1.2_3"), "abc-1.2_3");
        for bad in ["", "a b", "a\"b", &"x".repeat(65)] {
            assert_eq!(id(bad).len(), 16, "{bad:?}");
        }
    }
}
