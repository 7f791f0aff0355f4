//! Where on the web something may be fetched from.
//!
//! **Invariant:** an [`Address`] is https, or http to this very machine, and holds no password.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use thiserror::Error;
use ureq::http::Uri;

/// Bytes of an address; signed ones of storage services have about 2,000.
const BYTES_MAX: usize = 8192;
/// What a name keeps as it is when it becomes part of a path in a URL.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Why something is no address to fetch from.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// It is no URL.
    #[error("{0:?} is no URL; https://HOST/PATH is wanted")]
    Malformed(String),
    /// It is longer than any real one.
    #[error("a URL of {bytes} bytes is refused (at most {max})", max = BYTES_MAX)]
    Long {
        /// Its length, bytes.
        bytes: usize,
    },
    /// What comes over it could be read and changed on the way.
    #[error("{0} is refused: only https is fetched from, and http from this machine alone")]
    Insecure(String),
    /// It has a user name or password in it.
    #[error("a URL with a user name or password in it is refused: it would end up in logs")]
    Password,
}

/// A URL that may be fetched from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(Uri);

impl Address {
    /// Reads a URL.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.len() > BYTES_MAX {
            return Err(AddressError::Long { bytes: text.len() });
        }
        let malformed = || AddressError::Malformed(text.chars().take(200).collect());
        let uri: Uri = text.parse().map_err(|_| malformed())?;
        let authority = uri.authority().ok_or_else(malformed)?;
        if authority.as_str().contains('@') {
            return Err(AddressError::Password);
        }
        let address = Self(uri);
        match address.0.scheme_str() {
            Some("https") if !address.host().is_empty() => Ok(address),
            Some("http") if address.is_loopback() => Ok(address),
            Some(scheme) => Err(AddressError::Insecure(format!("{scheme}://{}", address.host()))),
            None => Err(malformed()),
        }
    }

    /// Where `location`, from an answer to a request for this address, leads.
    ///
    /// # Errors
    /// See [`AddressError`]; also if it is relative to a folder, which no server that holds
    /// models sends.
    pub fn join(&self, location: &str) -> Result<Self, AddressError> {
        let scheme = self.0.scheme_str().unwrap_or("https");
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        if location.starts_with("//") {
            return Self::parse(&format!("{scheme}:{location}"));
        }
        if location.starts_with('/') {
            return Self::parse(&format!("{scheme}://{authority}{location}"));
        }
        Self::parse(location)
    }

    /// As it goes into a request.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// Host, without brackets around an IPv6 address.
    pub fn host(&self) -> &str {
        self.0.host().unwrap_or("").trim_matches(['[', ']'])
    }

    /// Host and port, for messages.
    pub fn place(&self) -> String {
        match self.0.port() {
            Some(port) => format!("{}:{port}", self.0.host().unwrap_or("")),
            None => self.host().to_string(),
        }
    }

    /// Whether it leads to this machine.
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        let ip = host.parse::<std::net::IpAddr>();
        host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// Whether what may be told to `other` may be told here, too.
    pub fn same_place(&self, other: &Self) -> bool {
        self.0.scheme() == other.0.scheme() && self.0.authority() == other.0.authority()
    }

    /// The last part of its path, decoded; empty where it ends in a slash.
    pub fn file_name(&self) -> String {
        let last = self.0.path().rsplit('/').next().unwrap_or("");
        percent_decode_str(last).decode_utf8_lossy().into_owned()
    }

    /// The same with `name` as the last part of its path.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn with_file_name(&self, name: &str) -> Result<Self, AddressError> {
        let path = self.0.path();
        let folder = &path[..path.rfind('/').map_or(0, |at| at + 1)];
        let query = self.0.query().map(|query| format!("?{query}")).unwrap_or_default();
        self.join(&format!("{folder}{}{query}", encode(name)))
    }
}

/// `name` as one part of a path in a URL.
pub fn encode(name: &str) -> String {
    utf8_percent_encode(name, KEPT).to_string()
}

impl std::fmt::Display for Address {
    /// Without the query, which may hold a signature that opens the door.
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        write!(f, "{}://{authority}{}", self.0.scheme_str().unwrap_or("https"), self.0.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_and_this_machine_are_fetched_from() {
        for good in [
            "https://example.org/a.gguf",
            "http://127.0.0.1:80/a",
            "http://[::1]:9/a",
            "http://localhost/a?x=1",
        ] {
            Address::parse(good).unwrap_or_else(|e| panic!("{good}: {e}"));
        }
        for bad in [
            "http://example.org/a.gguf",
            "http://127.0.0.1.example.org/a",
            "ftp://127.0.0.1/a",
            "file:///etc/passwd",
            "https:///a",
            "https://",
            "/a",
            "https://user:secret@example.org/a",
            "https://ex ample.org/",
            "https://example.org/a\nb",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
        assert!(Address::parse(&format!("https://a/{}", "x".repeat(9000))).is_err());
    }

    #[test]
    fn redirects_lead_where_they_may() {
        let from = Address::parse("https://example.org/a/b.gguf?x=1").unwrap();
        let to = |location| from.join(location).map(|address| address.uri().to_string());
        assert_eq!(to("/c?d=2").unwrap(), "https://example.org/c?d=2");
        assert_eq!(to("//cdn.example/c").unwrap(), "https://cdn.example/c");
        assert_eq!(to("https://cdn.example/c").unwrap(), "https://cdn.example/c");
        for bad in ["http://example.org/c", "c", "", "javascript:alert(1)"] {
            assert!(to(bad).is_err(), "{bad:?}");
        }
        let other = from.join("https://example.org:444/c").unwrap();
        assert!(!from.same_place(&other) && from.same_place(&from.join("/c").unwrap()));
    }

    #[test]
    fn the_last_part_of_the_path_is_a_name_as_people_write_it() {
        let address = Address::parse("https://example.org/x/a%20b%2F..gguf?sig=secret").unwrap();
        assert_eq!(address.file_name(), "a b/..gguf");
        assert_eq!(address.to_string(), "https://example.org/x/a%20b%2F..gguf");
        let next = address.with_file_name("c d.gguf").unwrap();
        assert_eq!(next.uri().to_string(), "https://example.org/x/c%20d.gguf?sig=secret");
    }
}
