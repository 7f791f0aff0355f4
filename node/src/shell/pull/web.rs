//! Fetches from the web: over TLS, with a deadline for every wait, and no more than was asked for.
//!
//! **Invariant:** every hop of a redirect is an [`Address`], and a token is shown only to the place
//! that it is for.

use std::cell::OnceCell;
use std::io::{ErrorKind, Read};
use std::time::Duration;

use serde::de::DeserializeOwned;
use thiserror::Error;
use ureq::config::ConfigBuilder;
use ureq::http::{HeaderMap, Response, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;
use ureq::{Agent, Body, BodyReader};

use super::address::{Address, AddressError};
use crate::shell::settings::Secret;

/// Redirects that are followed; Hugging Face needs two.
const HOPS_MAX: usize = 6;
/// How long an answer of metadata may take in all, however lively its server.
const METADATA_TIME_MAX: Duration = Duration::from_secs(120);

/// Why nothing came, or not all of it.
#[derive(Debug, Error)]
pub enum WebError {
    /// The name of the host leads nowhere.
    #[error("no address is known for {0}; check the name, and the network")]
    NoHost(String),
    /// The host did not say a word in time.
    #[error("{host} was silent for {seconds} s; try again, or wait longer with --patience")]
    Silent {
        /// Who was silent.
        host: String,
        /// For how long, seconds.
        seconds: u64,
    },
    /// There is no connection.
    #[error("cannot reach {host}: {message}; check the network (and HTTPS_PROXY, if you need one)")]
    Unreachable {
        /// Who was to be reached.
        host: String,
        /// What the system or TLS said.
        message: String,
    },
    /// There is no connection that nobody else can read.
    #[error(
        "no safe connection to {host}: {message}; if a proxy stands between, let this system trust \
         its certificate (SSL_CERT_FILE names a file of those that are trusted)"
    )]
    Untrusted {
        /// Who was to be reached.
        host: String,
        /// What TLS said.
        message: String,
    },
    /// The connection broke.
    #[error("{host} hung up: {message}")]
    HungUp {
        /// Who hung up.
        host: String,
        /// What was seen of it.
        message: String,
    },
    /// The server is busy or broken for the moment.
    #[error("{host} answers {status}; try again later")]
    Busy {
        /// The server.
        host: String,
        /// HTTP status.
        status: u16,
        /// How long it wants to be left alone.
        after: Option<Duration>,
    },
    /// The server wants to know who asks.
    #[error(
        "{host} answers {status}: there is no such thing, or it wants a token for it; for Hugging \
         Face check the name, accept the model's terms on its page, and set HF_TOKEN"
    )]
    Forbidden {
        /// The server.
        host: String,
        /// HTTP status.
        status: u16,
    },
    /// It is not there.
    #[error(
        "{host} has no {path} (status {status}); check the name, its upper case and its revision"
    )]
    Missing {
        /// The server.
        host: String,
        /// Path of the URL.
        path: String,
        /// HTTP status.
        status: u16,
    },
    /// Any other answer.
    #[error("{host} answers {status}, which is of no use here; is it the right address?")]
    Status {
        /// The server.
        host: String,
        /// HTTP status.
        status: u16,
    },
    /// A redirect to where nothing is fetched from.
    #[error("{host} redirects to where nothing is fetched from")]
    Redirect {
        /// The server.
        host: String,
        /// What is wrong with the place.
        source: AddressError,
    },
    /// A redirect without an end.
    #[error("{host} redirects on and on (more than {max} times); is it the right address?", max = HOPS_MAX)]
    Maze {
        /// The last server.
        host: String,
    },
    /// An answer that breaks HTTP, or our agreement.
    #[error("{host} gives no sound answer: {message}; is it the right address?")]
    Unsound {
        /// The server.
        host: String,
        /// What is wrong.
        message: String,
    },
}

impl WebError {
    /// Whether it may be gone at the next try.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::NoHost(_)
                | Self::Silent { .. }
                | Self::Unreachable { .. }
                | Self::HungUp { .. }
                | Self::Busy { .. }
        )
    }
}

/// Who may read what is behind an address.
#[derive(Debug, Clone)]
pub struct Token {
    /// Where it may be shown.
    pub place: Address,
    /// What is shown.
    pub secret: Secret,
}

/// From where a file is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Rest<'a> {
    /// How many bytes are here already.
    pub from: u64,
    /// The version they are of, as its server names it.
    pub tag: Option<&'a str>,
}

/// A client.
#[derive(Debug)]
pub struct Web {
    /// For the rest of the world. Made when it is first needed, since reading the certificates
    /// that the system trusts takes a while.
    far: OnceCell<Agent>,
    /// For this machine, which no proxy stands before.
    near: Agent,
    patience: Duration,
}

/// A file on its way.
pub struct Download {
    /// Where it begins: where it was asked to, or at 0 if the server has another version or does
    /// not know of parts.
    pub at: u64,
    /// Bytes of the whole file, where the server says it.
    pub whole: Option<u64>,
    /// The version, as its server names it.
    pub tag: Option<String>,
    body: BodyReader<'static>,
    host: String,
    patience: Duration,
}

impl Web {
    /// A client that waits `patience` for each connection and each silence.
    pub fn new(patience: Duration) -> Self {
        let near = settings(patience).proxy(None).build().new_agent();
        Self { far: OnceCell::new(), near, patience }
    }

    fn agent(&self, place: &Address) -> &Agent {
        if place.is_loopback() {
            return &self.near;
        }
        self.far.get_or_init(|| {
            let trusted = TlsConfig::builder().root_certs(trusted()).build();
            settings(self.patience).tls_config(trusted).build().new_agent()
        })
    }

    /// An answer in JSON of at most `bytes_max`.
    ///
    /// # Errors
    /// See [`WebError`].
    pub fn json<T: DeserializeOwned>(
        &self,
        address: &Address,
        token: Option<&Token>,
        bytes_max: u64,
    ) -> Result<T, WebError> {
        let (place, response) = self.follow(address, token, &[], Some(METADATA_TIME_MAX))?;
        let (host, status) = (place.place(), response.status().as_u16());
        if status != 200 {
            return Err(refusal(&place, status, response.headers()));
        }
        let mut bytes = Vec::new();
        let mut body = response.into_body().into_reader().take(bytes_max + 1);
        body.read_to_end(&mut bytes).map_err(|error| broken(&host, self.patience, error.into()))?;
        if bytes.len() as u64 > bytes_max {
            let message = format!("it tells more than {bytes_max} bytes about one model");
            return Err(WebError::Unsound { host, message });
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| WebError::Unsound { host, message: error.to_string() })
    }

    /// The file at `address`, from `rest` on if the server can do that.
    ///
    /// # Errors
    /// See [`WebError`].
    pub fn download(
        &self,
        address: &Address,
        token: Option<&Token>,
        rest: Rest,
    ) -> Result<Download, WebError> {
        let mut headers = Vec::new();
        if rest.from > 0 {
            headers.push((header::RANGE, format!("bytes={}-", rest.from)));
            if let Some(tag) = rest.tag {
                headers.push((header::IF_RANGE, tag.to_string()));
            }
        }
        let (place, response) = self.follow(address, token, &headers, None)?;
        let status = response.status().as_u16();
        if status == 416 && rest.from > 0 {
            // What is here is longer than what is there, so it is of something else.
            return self.download(address, token, Rest { from: 0, tag: None });
        }
        let host = place.place();
        let unsound =
            |message: &str| WebError::Unsound { host: host.clone(), message: message.into() };
        let (at, whole) = match status {
            200 => (0, number(response.headers(), header::CONTENT_LENGTH)),
            206 if rest.from > 0 => {
                let range = text(response.headers(), header::CONTENT_RANGE);
                let (at, whole) = range
                    .as_deref()
                    .and_then(content_range)
                    .ok_or_else(|| unsound("it sends a part of the file and does not say which"))?;
                if at != rest.from {
                    return Err(unsound("it sends another part of the file than was asked for"));
                }
                (at, whole)
            }
            _ => return Err(refusal(&place, status, response.headers())),
        };
        let coding = text(response.headers(), header::CONTENT_ENCODING);
        if coding.is_some_and(|coding| coding != "identity") {
            return Err(unsound("it compresses the file, though it was asked not to"));
        }
        // Only a strong tag promises the same bytes.
        let tag = text(response.headers(), header::ETAG);
        let tag = tag.filter(|tag| tag.starts_with('"') && tag.len() <= 256);
        let body = response.into_body().into_reader();
        Ok(Download { at, whole, tag, body, host, patience: self.patience })
    }

    /// The answer at the end of all redirects, and where that was.
    fn follow(
        &self,
        address: &Address,
        token: Option<&Token>,
        headers: &[(header::HeaderName, String)],
        time_max: Option<Duration>,
    ) -> Result<(Address, Response<Body>), WebError> {
        let mut place = address.clone();
        for _ in 0..=HOPS_MAX {
            let mut request = self.agent(&place).get(place.uri().clone());
            for (name, value) in headers {
                request = request.header(name, value);
            }
            if let Some(token) = token.filter(|token| token.place.same_place(&place)) {
                request =
                    request.header(header::AUTHORIZATION, format!("Bearer {}", token.secret.0));
            }
            let request = request.config().timeout_global(time_max).build();
            let host = place.place();
            let response =
                request.call().map_err(|error| unreached(&host, self.patience, error))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((place, response));
            }
            let location = text(response.headers(), header::LOCATION).unwrap_or_default();
            place = place.join(&location).map_err(|source| WebError::Redirect { host, source })?;
        }
        Err(WebError::Maze { host: place.place() })
    }
}

impl Download {
    /// Reads what has come; 0 at the end.
    ///
    /// # Errors
    /// If the server is silent, or hangs up before its end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, WebError> {
        self.body.read(buffer).map_err(|error| broken(&self.host, self.patience, error.into()))
    }

    /// Who sends it.
    pub fn host(&self) -> &str {
        &self.host
    }
}

fn settings(patience: Duration) -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        .user_agent(concat!("cadencia/", env!("CARGO_PKG_VERSION")))
        // Files come as they are: parts of a compressed stream could not be continued.
        .accept_encoding("identity")
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_resolve(Some(patience))
        .timeout_connect(Some(patience))
        .timeout_send_request(Some(patience))
        .timeout_recv_response(Some(patience))
        .timeout_per_read(Some(patience))
}

/// The certificates that this system trusts, or `SSL_CERT_FILE` names; where there are none, as in
/// a bare container, those that Mozilla trusts.
fn trusted() -> RootCerts {
    let found = rustls_native_certs::load_native_certs().certs;
    let certs: Vec<_> = found.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    if certs.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&certs) }
}

/// A header's text.
fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_string)
}

/// A header's number.
fn number(headers: &HeaderMap, name: header::HeaderName) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

/// Start and whole length of `bytes 3-9/10`; the length may be `*`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
    let whole = match whole {
        "*" => None,
        digits => Some(digits.parse().ok()?),
    };
    // A part that ends early is no harm: what is left is asked for afterwards.
    (start <= end && whole.is_none_or(|whole: u64| end < whole)).then_some((start, whole))
}

/// An answer that is no success, as an error.
fn refusal(place: &Address, status: u16, headers: &HeaderMap) -> WebError {
    let host = place.place();
    match status {
        401 | 403 => WebError::Forbidden { host, status },
        404 | 410 => WebError::Missing { host, path: place.uri().path().into(), status },
        408 | 425 | 429 | 500 | 502..=504 => {
            let after = number(headers, header::RETRY_AFTER).map(Duration::from_secs);
            WebError::Busy { host, status, after }
        }
        _ => WebError::Status { host, status },
    }
}

/// A request that got no answer.
fn unreached(host: &str, patience: Duration, error: ureq::Error) -> WebError {
    let host = host.to_string();
    match error {
        ureq::Error::HostNotFound => WebError::NoHost(host),
        ureq::Error::Timeout(_) => WebError::Silent { host, seconds: patience.as_secs() },
        ureq::Error::Protocol(error) => WebError::Unsound { host, message: error.to_string() },
        ureq::Error::LargeResponseHeader(..) => {
            WebError::Unsound { host, message: "its header is too large".into() }
        }
        // What TLS refuses comes as data that makes no sense.
        ureq::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            WebError::Untrusted { host, message: error.to_string() }
        }
        ureq::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
            WebError::HungUp { host, message: error.to_string() }
        }
        ureq::Error::Io(error) => WebError::Unreachable { host, message: error.to_string() },
        error => WebError::Unreachable { host, message: error.to_string() },
    }
}

/// An answer that broke off.
fn broken(host: &str, patience: Duration, error: ureq::Error) -> WebError {
    let host = host.to_string();
    match error {
        ureq::Error::Timeout(_) => WebError::Silent { host, seconds: patience.as_secs() },
        error => WebError::HungUp { host, message: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_says_where_a_part_lies() {
        assert_eq!(content_range("bytes 3-9/10"), Some((3, Some(10))));
        assert_eq!(content_range("bytes 3-9/*"), Some((3, None)));
        for bad in [
            "",
            "bytes",
            "bytes 3-9",
            "bytes */10",
            "bytes 3-10/10",
            "bytes 9-3/10",
            "bytes a-9/10",
            "bytes 3-9/x",
            "items 3-9/10",
            "bytes 0-0/0",
            "bytes 3-99999999999999999999/*",
        ] {
            assert_eq!(content_range(bad), None, "{bad:?}");
        }
    }
}
