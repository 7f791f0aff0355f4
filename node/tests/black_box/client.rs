//! A plain HTTP/1.1 client, so that a test decides about every byte and when to hang up.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::process::DEADLINE;

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
    host: String,
}

/// A complete response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Response {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The answer's text.
    #[track_caller]
    pub fn text(&self) -> String {
        assert_eq!(self.status, 200, "{self:?}");
        let choice = &self.json()["choices"][0];
        let text = choice["message"]["content"].as_str().or(choice["text"].as_str());
        text.unwrap_or_else(|| panic!("no text in {self:?}")).to_string()
    }

    /// A member of the error.
    #[track_caller]
    pub fn error(&self, member: &str) -> String {
        let value = self.json();
        let member = &value["error"][member];
        member.as_str().unwrap_or_else(|| panic!("{member} in {self:?}")).to_string()
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, DEADLINE).unwrap();
        // Long prompts are read for minutes.
        let soak = std::env::var_os("CADENCIA_SOAK").is_some();
        let patience = DEADLINE * if soak { 10 } else { 1 };
        stream.set_read_timeout(Some(patience)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self { stream: BufReader::new(stream), host: address.to_string() }
    }

    /// Sends a request; a header given here stands for the usual one of that name.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let length = body.len().to_string();
        let mut all = vec![("host", self.host.as_str()), ("content-length", length.as_str())];
        all.retain(|(name, _)| !headers.iter().any(|(given, _)| given == name));
        all.extend(headers);
        let lines: String =
            all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("{method} {path} HTTP/1.1\r\n{lines}\r\n");
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes()).unwrap();
        // A server that refuses a body need not read all of it.
        let _ = stream.write_all(body);
    }

    /// Sends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Reads a status and headers.
    pub fn head(&mut self) -> (u16, BTreeMap<String, String>) {
        let first = self.line();
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{first:?} is no status line"));
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line();
            match line.split_once(": ") {
                Some((name, value)) => headers.insert(name.to_lowercase(), value.to_string()),
                None => return (status, headers),
            };
        }
    }

    /// Reads a whole response.
    pub fn receive(&mut self) -> Response {
        let (status, headers) = self.head();
        let mut body = Vec::new();
        if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            while let Some(chunk) = self.chunk() {
                body.extend(chunk);
            }
        } else {
            let length = headers.get("content-length").map_or("0", String::as_str);
            body = self.bytes(length.parse().unwrap());
        }
        Response { status, headers, body: String::from_utf8(body).unwrap() }
    }

    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        self.send(method, path, headers, body);
        self.receive()
    }

    /// Sends `body` to `path`, and reads up to the first byte of the streamed answer.
    pub fn stream(mut self, path: &str, body: &Value) -> Stream {
        self.send("POST", path, &[], body.to_string().as_bytes());
        let (status, headers) = self.head();
        assert_eq!(status, 200, "{headers:?}");
        let kind = &headers["content-type"];
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        Stream { client: self, headers, buffer: String::new() }
    }

    /// All events of a streamed answer whose head was read.
    #[allow(dead_code, reason = "the tests of hives use it")]
    pub fn events(self) -> Vec<String> {
        let headers = BTreeMap::new();
        Stream { client: self, headers, buffer: String::new() }.rest()
    }

    /// The next chunk of a chunked body; `None` at its end.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = self.line();
        let size = usize::from_str_radix(&size, 16).unwrap_or_else(|_| panic!("{size:?}"));
        let bytes = self.bytes(size);
        assert_eq!(self.line(), "");
        (size > 0).then_some(bytes)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        assert!(line.ends_with("\r\n"), "the connection ended after {line:?}");
        line.truncate(line.len() - 2);
        line
    }
}

/// An answer that comes in server-sent events. Dropping it hangs up.
#[derive(Debug)]
pub struct Stream {
    client: Client,
    pub headers: BTreeMap<String, String>,
    buffer: String,
}

impl Stream {
    /// What the next `data:` holds; `None` at the end of the body.
    pub fn next(&mut self) -> Option<String> {
        loop {
            let event = self.next_block()?;
            if let Some(data) = event.strip_prefix("data: ") {
                return Some(data.to_string());
            }
            assert!(event.starts_with(':'), "{event:?} is neither an event nor a comment");
        }
    }

    /// The next event or comment as it is; `None` at the end of the body.
    pub fn next_block(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let (event, rest) = (event.to_string(), rest.to_string());
                self.buffer = rest;
                return Some(event);
            }
            let chunk = self.client.chunk()?;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// All events that are left, up to the end of the body.
    pub fn rest(mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// The text that a list of events amounts to.
pub fn text_of(events: &[String]) -> String {
    text_of_choice(events, 0)
}

/// The text that a list of events amounts to for one choice.
pub fn text_of_choice(events: &[String], index: usize) -> String {
    let texts = choices_of(events).into_iter().filter(|choice| choice["index"] == index);
    let text = |choice: Value| {
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        text.unwrap_or("").to_string()
    };
    texts.map(text).collect()
}

/// All choices in a list of events, in order.
pub fn choices_of(events: &[String]) -> Vec<Value> {
    let each = events.iter().filter(|event| *event != "[DONE]").flat_map(|event| {
        let value: Value = serde_json::from_str(event).unwrap();
        value["choices"].as_array().unwrap_or_else(|| panic!("{event}")).clone()
    });
    each.collect()
}
