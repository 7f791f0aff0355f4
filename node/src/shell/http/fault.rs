//! What a client is told when its request is refused: an HTTP status and OpenAI's JSON shape.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::shell::line::Turned;

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<u64>,
}

impl Fault {
    /// The client's mistake, of `status`, with a `code` that programs can tell apart.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let kind = match status.is_server_error() {
            true => "server_error",
            false => "invalid_request_error",
        };
        let message = message.into();
        Self { status, kind, message, param: None, code: Some(code), retry_after: None }
    }

    /// The field `param` of the request is wrong.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_value", message).about(param)
    }

    /// The field `param` asks for what this node cannot do.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message).about(param)
    }

    /// Come back in `seconds`.
    pub fn later(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Of another type than its status says.
    pub fn of_kind(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }

    /// About the field `param`.
    pub fn about(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    /// The word by which programs tell it apart.
    pub fn code(&self) -> &'static str {
        self.code.unwrap_or("unknown")
    }

    /// OpenAI's shape.
    pub fn json(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

/// The code of a refusal, kept with its response.
#[derive(Debug, Clone, Copy)]
pub struct Code(pub &'static str);

/// Why a request may not wait for its answer.
pub fn turned(turned: Turned) -> Fault {
    let message = turned.to_string();
    match turned {
        Turned::Full { retry_seconds, .. } => {
            Fault::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message)
                .of_kind("rate_limit_error")
                .later(retry_seconds)
        }
        Turned::TooMany { .. } => Fault::field("n", message),
        Turned::Closed => stopping(),
    }
}

/// The node is stopping.
pub fn stopping() -> Fault {
    let message = Turned::Closed.to_string();
    Fault::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message).later(5)
}

/// Something went wrong that is not the client's mistake.
pub fn internal(message: &str) -> Fault {
    Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

/// Other nodes do not do their part of an answer.
pub fn unreachable(message: String) -> Fault {
    Fault::new(StatusCode::SERVICE_UNAVAILABLE, "no_route", message).later(5)
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.json());
        response.extensions_mut().insert(Code(self.code()));
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What a client wrote, quoted for a message; no more of it than a reader needs.
pub fn quoted(text: &str) -> String {
    const LETTERS_MAX: usize = 64;
    match text.char_indices().nth(LETTERS_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// A response that is `value`.
pub fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_the_shape_that_clients_know() {
        let fault = Fault::field("messages[0].role", "a role is wanted");
        let shape = json!({"error": {
            "message": "a role is wanted",
            "type": "invalid_request_error",
            "param": "messages[0].role",
            "code": "invalid_value",
        }});
        assert_eq!(fault.json(), shape);
        assert_eq!(fault.into_response().status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn what_is_absent_is_null() {
        let fault = Fault::new(StatusCode::NOT_FOUND, "unknown_route", "no");
        assert!(fault.json()["error"]["param"].is_null());
        assert_eq!(fault.json()["error"]["type"], "invalid_request_error");
    }

    #[test]
    fn only_the_beginning_of_a_long_text_is_quoted() {
        assert_eq!(quoted("a\n"), "\"a\\n\"");
        assert_eq!(quoted(&"é".repeat(65)), format!("\"{}\"...", "é".repeat(64)));
    }

    #[test]
    fn a_busy_node_says_when_to_come_back() {
        let fault = Fault::new(StatusCode::TOO_MANY_REQUESTS, "full", "no").later(3);
        let response = fault.into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    }
}
