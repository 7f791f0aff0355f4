//! Nodes as child processes, and what is heard of them.
//!
//! **Invariant:** no child outlives this process. Each ends when its stdin does, and the system ends
//! that with us, however we end. None is in our process group, so that Ctrl-C reaches us alone and
//! the node with the API can finish its answers while the others still compute.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::shell::settings::{Layer, Secret};

/// News that wait to be heard; whoever has more waits.
const NEWS_MAX: usize = 64;
/// How long a node may take until others can reach it: it binds, and measures its memory.
const REACHABLE_WITHIN: Duration = Duration::from_secs(60);
/// How often it is looked whether it can be.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What is heard.
#[derive(Debug)]
pub enum News {
    /// A node has said a line on stdout.
    Said(usize, String),
    /// A node has ended.
    Ended(usize),
    /// We are asked to stop.
    Stop(&'static str),
}

/// The nodes.
#[derive(Debug)]
pub struct Nest {
    folder: PathBuf,
    members: Vec<Member>,
    tell: SyncSender<News>,
    news: Receiver<News>,
}

/// A node.
#[derive(Debug)]
struct Member {
    child: Child,
    /// What people call it.
    name: usize,
    /// Its id, once others can reach it.
    id: Option<String>,
    /// Closed, it asks the node to stop.
    stdin: Option<ChildStdin>,
    /// Passes its log on.
    log: Option<JoinHandle<()>>,
    hive_file: PathBuf,
    /// How it ended.
    end: Option<ExitStatus>,
}

impl Nest {
    /// None yet; `folder` is for what they keep.
    pub fn new(folder: PathBuf) -> Self {
        let (tell, news) = sync_channel(NEWS_MAX);
        Self { folder, members: Vec::new(), tell, news }
    }

    /// Where news are told, for those who tell others than nodes'.
    pub fn teller(&self) -> SyncSender<News> {
        self.tell.clone()
    }

    /// Starts a node with these settings and `flags`; its number.
    pub fn start(
        &mut self,
        name: usize,
        layer: Layer,
        key: Option<&Secret>,
        flags: &[&str],
    ) -> Result<usize> {
        let number = self.members.len();
        let own = self.folder.join(format!("node-{name}"));
        std::fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
        let (config, hive_file) = (own.join("config.toml"), own.join("addresses"));
        let layer = Layer { state_dir: Some(own.join("state")), ..layer };
        let text = toml::to_string(&layer).context("settings of a node have no TOML form")?;
        std::fs::write(&config, text)
            .with_context(|| format!("cannot write {}", config.display()))?;
        let mut command = command(&config)?;
        if let Some(Secret(key)) = key {
            command.env("CADENCIA_API_KEY", key);
        }
        if layer.listen.is_some() {
            command.arg("--hive-file").arg(&hive_file);
        }
        let mut child = command.args(flags).spawn().context("cannot start a node")?;
        let stdin = child.stdin.take();
        let log = child.stderr.take().map(|log| pass_on(name, log)).transpose()?;
        let out = child.stdout.take().expect("it was asked for");
        self.members.push(Member { child, name, id: None, stdin, log, hive_file, end: None });
        listen(number, out, self.tell.clone())?;
        Ok(number)
    }

    /// Waits until others can reach a node: its address.
    pub fn address(&mut self, number: usize) -> Result<String> {
        let end = Instant::now() + REACHABLE_WITHIN;
        loop {
            let file = &self.members[number].hive_file;
            if let Ok(text) = std::fs::read_to_string(file) {
                let first = text.lines().next().context("a node says that it has no address")?;
                let (first, id) = (first.to_owned(), first.rsplit('/').next().map(str::to_owned));
                self.members[number].id = id;
                return Ok(first);
            }
            match self.hear(LOOK_EVERY)? {
                Some(News::Stop(signal)) => bail!("stopped by {signal} while nodes were started"),
                Some(News::Ended(who)) => bail!("a node ended at once: {}", self.farewell(who)),
                Some(News::Said(..)) | None => {}
            }
            if Instant::now() >= end {
                let waited = REACHABLE_WITHIN.as_secs();
                bail!("node {number} cannot be reached {waited} s after it was started");
            }
        }
    }

    /// The next that is heard, within `patience`.
    pub fn hear(&mut self, patience: Duration) -> Result<Option<News>> {
        match self.news.recv_timeout(patience) {
            Ok(news) => Ok(Some(news)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("nobody tells anything any more"),
        }
    }

    /// What people call the node with this id.
    pub fn named(&self, id: &str) -> Option<String> {
        let member = self.members.iter().find(|member| member.id.as_deref() == Some(id))?;
        Some(member.name.to_string())
    }

    /// How many nodes run.
    pub fn running(&self) -> usize {
        self.members.iter().filter(|member| member.end.is_none()).count()
    }

    /// How a node that has ended has done so, in words.
    pub fn farewell(&mut self, number: usize) -> String {
        match self.members[number].reap() {
            Ok(status) => status.to_string(),
            Err(error) => format!("how is not known: {error}"),
        }
    }

    /// Whether a node has ended, by itself or otherwise.
    pub fn has_ended(&self, number: usize) -> bool {
        self.members[number].end.is_some()
    }

    /// Asks a node to stop in good order.
    pub fn release(&mut self, number: usize) {
        self.members[number].stdin = None;
    }
}

impl Member {
    /// Waits for its end, which has come or is about to, and for the last of its log.
    fn reap(&mut self) -> std::io::Result<ExitStatus> {
        if let Some(end) = self.end {
            return Ok(end);
        }
        let end = self.child.wait()?;
        self.end = Some(end);
        if let Some(log) = self.log.take() {
            let _ = log.join();
        }
        Ok(end)
    }
}

impl Drop for Nest {
    /// Whoever still runs is ended the hard way: in good order they were released before.
    fn drop(&mut self) {
        for member in &mut self.members {
            if member.end.is_none() {
                let _ = member.child.kill();
                let _ = member.reap();
            }
        }
    }
}

/// A node with a config file of its own and nothing else of the user's settings.
fn command(config: &Path) -> Result<Command> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let mut command = Command::new(own);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CADENCIA_") {
            command.env_remove(name);
        }
    }
    command.args(["up", "--stay-with-stdin", "--config"]).arg(config);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Ok(command)
}

/// Tells what a node says on stdout, and when it ends.
fn listen(number: usize, out: impl Read + Send + 'static, tell: SyncSender<News>) -> Result<()> {
    let read = move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if tell.send(News::Said(number, line)).is_err() {
                return;
            }
        }
        let _ = tell.send(News::Ended(number));
    };
    let thread = std::thread::Builder::new().name(format!("node {number}"));
    thread.spawn(read).context("cannot start a thread that listens to a node")?;
    Ok(())
}

/// Passes a node's log on to ours, with its number.
fn pass_on(name: usize, log: impl Read + Send + 'static) -> Result<JoinHandle<()>> {
    let read = move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            eprintln!("[node {name}] {line}");
        }
    };
    let thread = std::thread::Builder::new().name(format!("log of node {name}"));
    thread.spawn(read).context("cannot start a thread that reads a node's log")
}
