//! A running node, asked through its API.

use std::io::Read;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;
use ureq::Agent;

use crate::shell::settings::{Secret, Settings};

/// How long a node may take to answer what needs no model: its hive is asked for 5 s at most.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of an answer; the offers of a large hive take a few megabytes.
const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// Why a node cannot be asked.
#[derive(Debug, Error)]
pub enum RemoteError {
    /// Nobody is there.
    #[error(
        "no node answers at {api} ({message}); start one with `cadencia up -m MODEL`, or say where \
         it is with --api HOST:PORT"
    )]
    Nobody {
        /// Where.
        api: String,
        /// What the system said.
        message: String,
    },
    /// It says nothing.
    #[error("the node at {api} was silent for {seconds} s; look at its log, or start it again")]
    Silent {
        /// Where.
        api: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// It wants to know who asks.
    #[error(
        "the node at {api} wants an API key; set CADENCIA_API_KEY, or api_key in the config file"
    )]
    Stranger {
        /// Where.
        api: String,
    },
    /// It refuses.
    #[error("the node at {api} answers {status}: {message}")]
    Refused {
        /// Where.
        api: String,
        /// HTTP status.
        status: u16,
        /// What it says.
        message: String,
    },
    /// It is no node of ours.
    #[error("what answers at {api} is no cadencia node of this version; is the address right?")]
    Foreign {
        /// Where.
        api: String,
    },
}

/// A running node.
#[derive(Debug)]
pub struct Remote {
    agent: Agent,
    api: String,
    key: Option<Secret>,
}

impl Remote {
    /// The one that the settings name.
    pub fn of(settings: &Settings) -> Self {
        Self::at(&settings.api, settings.api_key.clone())
    }

    /// The one at `api`, which is shown `key`.
    pub fn at(api: &str, key: Option<Secret>) -> Self {
        let config = Agent::config_builder()
            // Whoever asks their own node wants no proxy in between.
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(ANSWER_WITHIN))
            .build();
        Self { agent: config.new_agent(), api: dialled(api), key }
    }

    /// Where it is.
    pub fn api(&self) -> &str {
        &self.api
    }

    /// What it answers to `GET path`, where it answers with success.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn get(&self, path: &str) -> Result<Value, RemoteError> {
        let (status, value) = self.ask(path)?;
        match status {
            200 => Ok(value),
            _ => Err(RemoteError::Refused {
                api: self.api.clone(),
                status,
                message: message(&value),
            }),
        }
    }

    /// The status and what it answers to `GET path`.
    ///
    /// # Errors
    /// See [`RemoteError`]; a status is none.
    pub fn ask(&self, path: &str) -> Result<(u16, Value), RemoteError> {
        let api = || self.api.clone();
        let mut request = self.agent.get(format!("http://{}{path}", self.api));
        if let Some(Secret(key)) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = request.call().map_err(|error| self.unanswered(&error))?;
        let status = response.status().as_u16();
        if status == 401 {
            return Err(RemoteError::Stranger { api: api() });
        }
        let mut text = String::new();
        let body = response.into_body().into_reader().take(ANSWER_BYTES_MAX);
        { body }.read_to_string(&mut text).map_err(|_| RemoteError::Foreign { api: api() })?;
        let value: Option<Value> = serde_json::from_str(&text).ok();
        // A program that has no such route is another, or older than this one.
        let known = value.filter(|value| value["error"]["code"] != "unknown_route");
        Ok((status, known.ok_or_else(|| RemoteError::Foreign { api: api() })?))
    }

    fn unanswered(&self, error: &ureq::Error) -> RemoteError {
        let api = self.api.clone();
        match error {
            ureq::Error::Timeout(_) => {
                RemoteError::Silent { api, seconds: ANSWER_WITHIN.as_secs() }
            }
            ureq::Error::Protocol(_) => RemoteError::Foreign { api },
            ureq::Error::Io(error) => RemoteError::Nobody { api, message: error.to_string() },
            error => RemoteError::Nobody { api, message: error.to_string() },
        }
    }
}

/// The message of a refusal.
pub fn message(value: &Value) -> String {
    value["error"]["message"].as_str().unwrap_or("it does not say why").to_owned()
}

/// The members of a list; none where it is no list.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A text as a terminal may show it: some of these are what strangers say of themselves.
pub fn text(value: &Value) -> String {
    const LETTERS_MAX: usize = 500;
    let letters = value.as_str().unwrap_or_default().chars().filter(|c| !c.is_control());
    letters.take(LETTERS_MAX).collect()
}

/// Where an API that listens on `api` is dialled from this machine.
fn dialled(api: &str) -> String {
    match api.rsplit_once(':') {
        Some(("0.0.0.0", port)) => format!("127.0.0.1:{port}"),
        Some(("[::]", port)) => format!("[::1]:{port}"),
        _ => api.to_owned(),
    }
}

/// `text` as a value in a query.
pub fn in_query(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_listens_everywhere_is_dialled_here() {
        assert_eq!(dialled("0.0.0.0:8080"), "127.0.0.1:8080");
        assert_eq!(dialled("[::]:80"), "[::1]:80");
        assert_eq!(dialled("192.0.2.1:80"), "192.0.2.1:80");
    }

    #[test]
    fn what_strangers_say_cannot_command_the_terminal() {
        assert_eq!(text(&Value::from("a\u{1b}[2Jb\n\u{9b}c")), "a[2Jbc");
        assert_eq!(text(&Value::Null), "");
    }

    #[test]
    fn what_is_special_in_a_query_is_not_there() {
        assert_eq!(in_query("a b/c&d=é"), "a%20b%2Fc%26d%3D%C3%A9");
    }
}
