//! A plain HTTP/1.1 server on the loopback address that does as a test tells it, and counts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

use crate::process::DEADLINE;

/// What was asked for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// How many were asked before it.
    pub number: usize,
    /// Path and query.
    pub target: String,
    pub headers: BTreeMap<String, String>,
}

impl Asked {
    /// Where the wanted range begins.
    pub fn from(&self) -> Option<usize> {
        self.headers.get("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What is answered.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body that are really sent.
    pub sent: usize,
    pub end: End,
}

/// What happens after the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    HangUp,
    /// Nothing more is said, and the connection stays.
    Silence,
    /// The same, without even an answer.
    SilenceAtOnce,
}

impl Answer {
    pub fn new(status: u16, body: &[u8]) -> Self {
        let (body, sent) = (body.to_vec(), body.len());
        Self { status, headers: Vec::new(), body, sent, end: End::HangUp }
    }

    /// The file, or what is left of it if a part of this version was asked for.
    pub fn file(asked: &Asked, file: &[u8], tag: &str) -> Self {
        let version = asked.headers.get("if-range");
        match asked.from().filter(|from| *from < file.len() && version.is_none_or(|v| v == tag)) {
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", file.len() - 1, file.len());
                Self::new(206, &file[from..]).with("content-range", &range).with("etag", tag)
            }
            None => Self::new(200, file).with("etag", tag),
        }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Only `bytes` of the body, and then `end`.
    pub fn after(mut self, bytes: usize, end: End) -> Self {
        (self.sent, self.end) = (bytes, end);
        self
    }
}

/// What the server has seen and done.
#[derive(Debug, Default)]
struct Seen {
    asked: Vec<Asked>,
    bytes: usize,
    /// Connections that are kept open in silence.
    kept: Vec<TcpStream>,
}

/// The server. It lives as long as the test's process.
#[derive(Debug, Clone)]
pub struct Origin {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl Origin {
    pub fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let origin = Self { address: listener.local_addr().unwrap(), seen: seen.clone() };
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, answer) = (seen.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        origin
    }

    /// One that serves `file` under every path.
    pub fn of(file: Vec<u8>) -> Self {
        Self::start(move |asked| Answer::file(asked, &file, "\"v1\""))
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.seen.lock().unwrap().asked.clone()
    }

    /// Bytes of bodies that were sent.
    pub fn bytes(&self) -> usize {
        self.seen.lock().unwrap().bytes
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Seen>, answer: &dyn Fn(&Asked) -> Answer) {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut reader = BufReader::new(stream);
    let Some(mut asked) = read_request(&mut reader) else { return };
    asked.number = {
        let mut seen = seen.lock().unwrap();
        seen.asked.push(asked.clone());
        seen.asked.len() - 1
    };
    let answer = answer(&asked);
    let mut stream = reader.into_inner();
    if answer.end != End::SilenceAtOnce {
        let length = answer.body.len().to_string();
        let usual = [("content-length", length.as_str()), ("connection", "close")];
        let own = answer.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let lines: String = usual
            .into_iter()
            .chain(own)
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        // Counted before they can arrive, so that whoever has them finds them counted.
        seen.lock().unwrap().bytes += answer.sent;
        let head = format!("HTTP/1.1 {} Thus\r\n{lines}\r\n", answer.status);
        // A client that has seen enough may be gone.
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&answer.body[..answer.sent]);
    }
    if answer.end != End::HangUp {
        seen.lock().unwrap().kept.push(stream);
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let target = line.split(' ').nth(1)?.to_string();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.to_string()),
            None => return Some(Asked { number: 0, target, headers }),
        };
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
