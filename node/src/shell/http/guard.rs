//! Who may speak to this node: checks that come before a request is looked at.
//!
//! A browser is a stranger's program on the owner's machine. On a loopback address the `Host` must
//! be a loopback name, or a page could reach the node under its own name by DNS rebinding; and a
//! request that a page sends carries an `Origin`, which must be the node's own.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};

use crate::shell::ask::Owner;

use super::fault::Fault;
use super::ring::Ring;

/// The rules of one node.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Whether it listens on loopback only.
    pub loopback: bool,
    /// Names, beside those of this machine, that clients may know the node by; lower case, without
    /// port. Where there are any, other names are refused on every address.
    pub hosts: Vec<String>,
    /// Origins whose pages may use the node, such as `https://chat.example`.
    pub origins: Vec<String>,
    /// The key that clients must present, if there is one.
    pub key: Option<Key>,
    /// Keys with names, any of which is as good.
    pub keys: Arc<Ring>,
}

/// A key, kept as its hash: comparing hashes takes the same time wherever they differ.
#[derive(Debug, Clone)]
pub struct Key(blake3::Hash);

impl Key {
    /// Of the key's text.
    pub fn new(text: &str) -> Self {
        Self(blake3::hash(text.as_bytes()))
    }
}

/// Who sends a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Whose share of the node it takes.
    pub owner: Owner,
    /// The name of the key that was shown, where keys have names.
    pub name: Option<String>,
}

impl Caller {
    /// The holder of the key called `name`.
    fn named(name: &str) -> Self {
        let hash = blake3::hash(name.as_bytes());
        let first = hash.as_bytes().first_chunk().expect("a hash has 32 bytes");
        Self { owner: Owner(u64::from_le_bytes(*first)), name: Some(name.to_string()) }
    }
}

impl Guard {
    /// Refuses a request to `uri` with `headers` that comes under a strange name or from a strange
    /// page.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Fault> {
        let host = host(uri, headers);
        if !self.knows_host(host) {
            let message = "the Host header must name this machine, such as 127.0.0.1 or \
                localhost; other names are set by allowed_hosts";
            return Err(Fault::new(StatusCode::FORBIDDEN, "host_refused", message));
        }
        if let Some(origin) = headers.get(header::ORIGIN)
            && self.granted(headers).is_none()
            && !origin.to_str().is_ok_and(|origin| same_origin(origin, host))
        {
            let message = "requests from web pages of another origin are not served, unless \
                cors_origins has it";
            return Err(Fault::new(StatusCode::FORBIDDEN, "origin_refused", message));
        }
        Ok(())
    }

    /// Who sends a request to `uri` with `headers`; refuses one without a key where one is needed.
    pub fn caller(&self, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Fault> {
        // Whether the node lives may be asked without a key: supervisors have none.
        if self.is_open() || matches!(uri.path(), "/health" | "/ready") {
            return Ok(Caller::default());
        }
        self.authorised(headers)
    }

    /// The request's origin, if pages of it may use the node from elsewhere.
    pub fn granted(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let known = self.origins.iter().any(|known| known.as_bytes() == origin.as_bytes());
        known.then(|| origin.clone())
    }

    /// Whether no key is needed.
    pub fn is_open(&self) -> bool {
        self.key.is_none() && !self.keys.is_closed()
    }

    /// Whether answers differ by the origin that asks, so that caches must know it.
    pub fn has_origins(&self) -> bool {
        !self.origins.is_empty()
    }

    fn knows_host(&self, host: Option<&str>) -> bool {
        if !self.loopback && self.hosts.is_empty() {
            return true;
        }
        let Some(host) = host else { return false };
        let name = host_name(host);
        is_loopback(name) || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    fn authorised(&self, headers: &HeaderMap) -> Result<Caller, Fault> {
        let refused =
            |message| Err(Fault::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message));
        let Some(given) = headers.get(header::AUTHORIZATION) else {
            return refused("an API key is needed: Authorization: Bearer KEY");
        };
        // The scheme's case does not matter, the key's does.
        let shown = given.as_bytes().split_at_checked(7);
        let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        match shown.and_then(|(_, text)| self.holder(text.trim_ascii())) {
            Some(caller) => Ok(caller),
            None => refused("the API key is not right"),
        }
    }

    /// Who holds the key `shown`.
    fn holder(&self, shown: &[u8]) -> Option<Caller> {
        let only = self.key.as_ref().is_some_and(|key| blake3::hash(shown) == key.0);
        match only {
            true => Some(Caller::named(ONLY_KEY)),
            false => self.keys.find(shown).map(|name| Caller::named(&name)),
        }
    }
}

/// What the log calls the key that has no name.
const ONLY_KEY: &str = "api_key";

/// Whether a browser asks, before it sends a page's request, if it may.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The host that the client believes it speaks to, with its port.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // In a request line with an absolute address, that address counts.
    uri.authority().map(|authority| authority.as_str()).or(named)
}

/// A `Host` without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Whether `name` is a name of this machine only.
fn is_loopback(name: &str) -> bool {
    let address = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    address || name.eq_ignore_ascii_case("localhost")
}

/// Whether a page of `origin` came from this node, which the client calls `host`.
fn same_origin(origin: &str, host: Option<&str>) -> bool {
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    matches!((rest, host), (Some(origin), Some(host)) if origin.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &Guard, path: &str, headers: &[(&str, &str)]) -> Result<Caller, Fault> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().unwrap();
            map.insert(name, value.parse().unwrap());
        }
        let uri = path.parse().unwrap();
        guard.check(&uri, &map).and_then(|()| guard.caller(&uri, &map))
    }

    fn local() -> Guard {
        Guard { loopback: true, ..Guard::default() }
    }

    #[test]
    fn on_loopback_only_loopback_names_are_served() {
        for host in ["127.0.0.1:8080", "localhost", "LocalHost:1", "[::1]:8080", "127.9.9.9"] {
            assert!(check(&local(), "/", &[("host", host)]).is_ok(), "{host}");
        }
        for host in
            ["evil.example:8080", "127.0.0.1.evil.example", "localhost.evil", "", "10.0.0.1"]
        {
            assert!(check(&local(), "/", &[("host", host)]).is_err(), "{host}");
        }
        assert!(check(&local(), "/", &[]).is_err());
        assert!(check(&local(), "http://evil.example/", &[("host", "localhost")]).is_err());
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let from = |origin| check(&local(), "/", &[("host", "localhost:80"), ("origin", origin)]);
        assert!(from("http://localhost:80").is_ok());
        for origin in ["http://evil.example", "null", "http://localhost:81", "file://localhost:80"]
        {
            assert!(from(origin).is_err(), "{origin}");
        }
    }

    #[test]
    fn a_key_must_be_right_where_there_is_one() {
        let guard = Guard { key: Some(Key::new("sesame")), ..Guard::default() };
        let with = |text| check(&guard, "/v1/models", &[("authorization", text)]);
        assert!(with("Bearer sesame").is_ok() && with("bearer sesame").is_ok());
        for wrong in ["Bearer sesam", "Bearer Sesame", "sesame", "Basic sesame", "Bearer", ""] {
            let fault = with(wrong).unwrap_err();
            assert_eq!(fault.json()["error"]["code"], "invalid_api_key", "{wrong:?}");
        }
        assert!(check(&guard, "/v1/models", &[]).is_err());
        assert!(check(&guard, "/health", &[]).is_ok() && check(&guard, "/ready", &[]).is_ok());
    }

    #[test]
    fn names_that_are_set_are_served_and_then_no_others() {
        let hosts = vec!["node.example".to_string()];
        let local = Guard { loopback: true, hosts: hosts.clone(), ..Guard::default() };
        let open = Guard { hosts, ..Guard::default() };
        for guard in [&local, &open] {
            for host in ["node.example", "Node.Example:443", "127.0.0.1:1", "localhost"] {
                assert!(check(guard, "/", &[("host", host)]).is_ok(), "{host}");
            }
            for host in ["evil.example", "node.example.evil", "192.0.2.1"] {
                assert!(check(guard, "/", &[("host", host)]).is_err(), "{host}");
            }
            assert!(check(guard, "/", &[]).is_err());
        }
        assert!(check(&Guard::default(), "/", &[("host", "any.example")]).is_ok());
    }

    #[test]
    fn pages_of_origins_that_are_set_are_served() {
        let origins = vec!["https://chat.example".to_string()];
        let guard = Guard { loopback: true, origins, ..Guard::default() };
        let from = |origin| check(&guard, "/", &[("host", "localhost:80"), ("origin", origin)]);
        assert!(from("https://chat.example").is_ok() && from("http://localhost:80").is_ok());
        for origin in ["http://chat.example", "https://chat.example:444", "https://chat.exampl"] {
            assert!(from(origin).is_err(), "{origin}");
        }
    }

    #[test]
    fn each_key_is_an_owner_of_its_own() {
        let guard = Guard { key: Some(Key::new("sesame")), ..Guard::default() };
        let caller = check(&guard, "/", &[("authorization", "Bearer sesame")]).unwrap();
        assert_eq!(caller, Caller::named("api_key"));
        assert_ne!(Caller::named("a").owner, Caller::named("b").owner);
        assert_eq!(check(&local(), "/", &[("host", "localhost")]).unwrap(), Caller::default());
    }
}
