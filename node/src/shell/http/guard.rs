//! Who may speak to this node: checks that come before a request is looked at.
//!
//! A browser is a stranger's program on the owner's machine. On a loopback address the `Host` must
//! be a loopback name, or a page could reach the node under its own name by DNS rebinding; and a
//! request that a page sends carries an `Origin`, which must be the node's own.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode, Uri, header};

use super::fault::Fault;

/// The rules of one node.
#[derive(Debug, Clone)]
pub struct Guard {
    /// Whether it listens on loopback only.
    pub loopback: bool,
    /// The key that clients must present, if there is one.
    pub key: Option<Key>,
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

impl Guard {
    /// Refuses a request to `uri` with `headers` that may not be served.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Fault> {
        let host = host(uri, headers);
        if self.loopback && !host.is_some_and(is_loopback) {
            let message = "the Host header must name this machine, such as 127.0.0.1 or localhost";
            return Err(Fault::new(StatusCode::FORBIDDEN, "host_refused", message));
        }
        if let Some(origin) = headers.get(header::ORIGIN)
            && !origin.to_str().is_ok_and(|origin| same_origin(origin, host))
        {
            let message = "requests from web pages of another origin are not served";
            return Err(Fault::new(StatusCode::FORBIDDEN, "origin_refused", message));
        }
        match &self.key {
            // Whether the node lives may be asked without a key: supervisors have none.
            Some(key) if !matches!(uri.path(), "/health" | "/ready") => authorised(key, headers),
            _ => Ok(()),
        }
    }
}

fn authorised(key: &Key, headers: &HeaderMap) -> Result<(), Fault> {
    let refused = |message| Err(Fault::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message));
    let Some(given) = headers.get(header::AUTHORIZATION) else {
        return refused("an API key is needed: Authorization: Bearer KEY");
    };
    let given = given.as_bytes();
    // The scheme's case does not matter, the key's does.
    let right = given.split_at_checked(7).is_some_and(|(scheme, text)| {
        scheme.eq_ignore_ascii_case(b"bearer ") && blake3::hash(text.trim_ascii()) == key.0
    });
    match right {
        true => Ok(()),
        false => refused("the API key is not right"),
    }
}

/// The host that the client believes it speaks to, with its port.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // In a request line with an absolute address, that address counts.
    uri.authority().map(|authority| authority.as_str()).or(named)
}

/// Whether `host`, with or without a port, is a name of this machine only.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
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

    fn check(guard: &Guard, path: &str, headers: &[(&str, &str)]) -> Result<(), Fault> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().unwrap();
            map.insert(name, value.parse().unwrap());
        }
        guard.check(&path.parse().unwrap(), &map)
    }

    fn local() -> Guard {
        Guard { loopback: true, key: None }
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
        let guard = Guard { loopback: false, key: Some(Key::new("sesame")) };
        let with = |text| check(&guard, "/v1/models", &[("authorization", text)]);
        assert!(with("Bearer sesame").is_ok() && with("bearer sesame").is_ok());
        for wrong in ["Bearer sesam", "Bearer Sesame", "sesame", "Basic sesame", "Bearer", ""] {
            let fault = with(wrong).unwrap_err();
            assert_eq!(fault.json()["error"]["code"], "invalid_api_key", "{wrong:?}");
        }
        assert!(check(&guard, "/v1/models", &[]).is_err());
        assert!(check(&guard, "/health", &[]).is_ok() && check(&guard, "/ready", &[]).is_ok());
    }
}
