//! Runs the binary: to its end, or as a node.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Client, Response};
use crate::toy;

/// How long anything may take before a test calls it stuck. Machines that test are busy.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// The toy model's file, written once for all tests.
pub fn toy_path() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("toy.gguf");
    // One that is older than these tests may be another toy.
    let written = |path: &std::path::Path| path.metadata().and_then(|data| data.modified()).ok();
    let tests = std::env::current_exe().ok().and_then(|tests| written(&tests));
    if written(&path).is_none_or(|toy| tests.is_some_and(|tests| toy < tests)) {
        // Tests of several processes may be here at once: each writes its own, the last one stays.
        let own = folder.join(format!(
            "toy-{}-{:?}.part",
            std::process::id(),
            std::thread::current().id()
        ));
        toy::write(&own).expect("the toy can be written");
        std::fs::rename(&own, &path).expect("the toy can be moved into place");
    }
    path
}

/// The binary with an empty home and none of the settings of whoever runs the tests.
pub fn cadencia(home: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cadencia"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CADENCIA_")) {
        command.env_remove(name);
    }
    command.env("HOME", home.path()).env_remove("RUST_LOG");
    for name in ["HF_ENDPOINT", "HF_HOME", "HF_TOKEN"] {
        command.env_remove(name);
    }
    for name in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
        command.env(name, home.path());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a command that ran to its end has left.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ended {
    /// Its output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command with `args` and `input` to its end.
pub fn run(args: &[&str], input: &str) -> Ended {
    run_at(&TempDir::new().unwrap(), args, input)
}

/// The same with `home` as the user's home folder.
pub fn run_at(home: &TempDir, args: &[&str], input: &str) -> Ended {
    use std::io::Write;
    let mut child = cadencia(home).args(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // A command that does not read its input may be gone already.
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Ended {
        code: output.status.code().expect("it was not killed"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The lines of a pipe, as they come.
#[derive(Debug)]
pub struct Lines {
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Lines {
    pub fn new(pipe: impl Read + Send + 'static) -> Self {
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Self { lines, seen: Vec::new() }
    }

    /// The next line that holds `text`.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no line with {text:?} in time; there were {:#?}", self.seen)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without a line with {text:?}; there were {:#?}", self.seen)
                }
            }
        }
    }

    /// Waits until nobody holds the other end any more.
    #[allow(dead_code, reason = "the tests of hives use it")]
    #[track_caller]
    pub fn wait_for_end(&mut self) {
        let end = Instant::now() + DEADLINE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("somebody still holds it; there were {:#?}", self.seen)
                }
            }
        }
    }

    /// All lines that have come.
    #[allow(dead_code, reason = "the tests of hives use it")]
    pub fn so_far(&mut self) -> Vec<String> {
        self.seen.extend(self.lines.try_iter());
        self.seen.clone()
    }

    /// All lines up to the end.
    pub fn rest(&mut self) -> Vec<String> {
        self.seen.extend(self.lines.iter());
        self.seen.clone()
    }
}

/// A running node. It is killed when the test is over, however it ends.
#[derive(Debug)]
pub struct Node {
    child: Child,
    pub address: SocketAddr,
    pub log: Lines,
    _home: TempDir,
}

impl Node {
    /// A node on a free port that serves the toy, with more flags; ready.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", flags)
    }

    /// The same on `api`.
    pub fn start_at(api: &str, flags: &[&str]) -> Self {
        Self::start_with(toy_path().to_str().unwrap(), api, flags)
    }

    /// The same with another model.
    pub fn start_with(model: &str, api: &str, flags: &[&str]) -> Self {
        let (mut child, log, home) = spawn_with(model, api, flags);
        let mut out = Lines::new(child.stdout.take().unwrap());
        let line = out.wait_for("listening on http://");
        let address = line.rsplit("http://").next().unwrap().parse().unwrap();
        Self { child, address, log, _home: home }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Posts `body` to `path` on a connection of its own.
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.client().request("POST", path, &[], body.to_string().as_bytes())
    }

    pub fn get(&self, path: &str) -> Response {
        self.client().request("GET", path, &[], b"")
    }

    pub fn chat(&self, body: &Value) -> Response {
        self.post("/v1/chat/completions", body)
    }

    /// Sends it `signal`, such as `TERM`.
    pub fn signal(&self, signal: &str) {
        send_signal(self.child.id(), signal);
    }

    /// Kills it the hard way.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a node and does not wait for it to be ready: the process, its log and its home.
pub fn spawn(api: &str, flags: &[&str]) -> (Child, Lines, TempDir) {
    spawn_with(toy_path().to_str().unwrap(), api, flags)
}

fn spawn_with(model: &str, api: &str, flags: &[&str]) -> (Child, Lines, TempDir) {
    let home = TempDir::new().unwrap();
    let mut child = cadencia(&home)
        .args(["up", "--model", model, "--api", api, "--threads", "1"])
        .args(flags)
        .spawn()
        .unwrap();
    let log = Lines::new(child.stderr.take().unwrap());
    (child, log, home)
}

/// Sends `signal` to the process `id`.
pub fn send_signal(id: u32, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &id.to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Waits for a child's end, and kills it if it does not come in time.
pub fn wait(child: &mut Child) -> ExitStatus {
    let id = child.id();
    let (done, watch) = channel::<()>();
    let watcher = std::thread::spawn(move || {
        let late = matches!(watch.recv_timeout(DEADLINE), Err(RecvTimeoutError::Timeout));
        if late {
            send_signal(id, "KILL");
        }
        late
    });
    let status = child.wait().unwrap();
    drop(done);
    assert!(!watcher.join().unwrap(), "it did not end in time");
    status
}
