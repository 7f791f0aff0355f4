//! `cadencia hive`: several nodes on this machine, with one model split over them.

mod nest;
mod shares;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use compute::blueprint::Blueprint;
use serde_json::Value;

use self::nest::{Nest, News};
use self::shares::Shares;
use super::remote::{Remote, list, text};
use crate::shell::args::Hive as Flags;
use crate::shell::daemon::Signals;
use crate::shell::http::random;
use crate::shell::library;
use crate::shell::settings::{CONTEXT_DEFAULT, Layer, Settings};

/// Where nodes of a local hive listen.
const LOOPBACK: &str = "127.0.0.1:0";
/// What nodes log. That the first of them knows nobody at its start is no news.
const LOG: &str = "warn,libp2p_kad=error";
/// How often it is said that the model is still not ready.
const SAY_EVERY: Duration = Duration::from_secs(30);
/// How long a node may take to stop beyond the time that its answers have.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Runs a local hive until it is told to stop.
pub fn hive(flags: &Flags, settings: &Settings) -> Result<ExitCode> {
    let path = library::find(settings.model.as_deref(), &settings.models_dirs)?;
    let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
    let model =
        Blueprint::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let positions = settings.ctx.unwrap_or(CONTEXT_DEFAULT).min(model.context_length);
    let shares = Shares::of(&model, flags.nodes, positions as u64, settings.spares);
    let folder = Folder::new()?;
    let mut nest = Nest::new(folder.0.clone());
    watch_signals(&nest)?;
    let plan = Local { flags, settings, path, shares };
    let first = plan.start(&mut nest)?;
    let line = match until_ready(&mut nest, first)? {
        Outcome::Ready(line) => line,
        Outcome::Stopped => return end(&mut nest, first, settings),
    };
    let line = headline(&nest, &line, settings);
    // Who started us may have closed our stdout; that is no reason to stop.
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
    match until_stopped(&mut nest, first)? {
        true => end(&mut nest, first, settings),
        false => Ok(ExitCode::FAILURE),
    }
}

/// What is to be started.
struct Local<'a> {
    flags: &'a Flags,
    settings: &'a Settings,
    path: PathBuf,
    shares: Option<Shares>,
}

impl Local<'_> {
    /// Starts all nodes, the one with the API last, when all others can be reached: its number.
    fn start(&self, nest: &mut Nest) -> Result<usize> {
        let mut join: Vec<String> = Vec::new();
        let mut others = Vec::new();
        if let Some(shares) = &self.shares {
            for name in 1..self.flags.nodes as usize {
                let known = join.first().cloned().into_iter().collect();
                others.push(nest.start(name, self.other(shares, known), None, &[])?);
                if join.is_empty() {
                    join.push(nest.address(others[0])?);
                }
            }
        }
        // The first knows all of them, so that none is lost to it with another.
        for number in others.into_iter().skip(1) {
            join.push(nest.address(number)?);
        }
        let port_file = self.flags.port_file.as_deref().map(Path::to_string_lossy);
        let flags = port_file.as_deref().map_or(vec![], |file| vec!["--port-file", file]);
        nest.start(0, self.first(join), self.settings.api_key.as_ref(), &flags)
    }

    /// What holds for every node.
    fn every(&self) -> Layer {
        let settings = self.settings;
        // Each has all the cores: for one answer they compute in turns.
        let threads = settings.threads;
        Layer {
            models_dirs: Some(settings.models_dirs.clone()),
            threads: Some(threads),
            kernels: Some(settings.kernels),
            mdns: Some(false),
            drain_seconds: Some(settings.drain_seconds),
            log: Some(settings.log.clone().unwrap_or_else(|| LOG.into())),
            ..Layer::default()
        }
    }

    /// The node with the API.
    fn first(&self, join: Vec<String>) -> Layer {
        let settings = self.settings;
        let layer = Layer {
            model: Some(self.path.to_string_lossy().into_owned()),
            api: Some(settings.api.clone()),
            allowed_hosts: Some(settings.allowed_hosts.clone()),
            cors_origins: Some(settings.cors_origins.clone()),
            keep_alive_ms: Some(settings.keep_alive_ms),
            api_keys_file: Some(settings.api_keys_file.clone()),
            ctx: settings.ctx,
            queue: Some(settings.queue),
            parallel: Some(settings.parallel),
            kv_mb: settings.kv_mb,
            guessing: Some(settings.guessing),
            ..self.every()
        };
        let Some(shares) = &self.shares else { return layer };
        Layer {
            join: Some(join),
            listen: Some(LOOPBACK.into()),
            stages: Some(shares.stages),
            stage_layers: Some(shares.stage_layers),
            spares: Some(settings.spares),
            own_mb: Some(settings.own_mb.unwrap_or(shares.own_mb)),
            lend_mb: Some(0),
            ..layer
        }
    }

    /// One that computes for it.
    fn other(&self, shares: &Shares, join: Vec<String>) -> Layer {
        Layer {
            api: Some(LOOPBACK.into()),
            join: Some(join),
            listen: Some(LOOPBACK.into()),
            lend: Some(vec![self.path.to_string_lossy().into_owned()]),
            lend_mb: Some(self.settings.lend_mb.unwrap_or(shares.lend_mb)),
            ..self.every()
        }
    }
}

/// How waiting for the first answer ended.
enum Outcome {
    /// With the line of the node that has the API.
    Ready(String),
    /// Somebody asked for an end.
    Stopped,
}

fn until_ready(nest: &mut Nest, first: usize) -> Result<Outcome> {
    loop {
        match nest.hear(SAY_EVERY)? {
            Some(News::Said(who, line)) if who == first => return Ok(Outcome::Ready(line)),
            Some(News::Said(..)) => {}
            Some(News::Ended(who)) => {
                bail!(
                    "node {} ended before the model was ready: {}",
                    name(who, first),
                    nest.farewell(who)
                );
            }
            Some(News::Stop(_)) => return Ok(Outcome::Stopped),
            None => eprintln!("node 0 is still not ready to answer"),
        }
    }
}

/// Which layers are on which node, after what the node with the API says itself.
fn headline(nest: &Nest, said: &str, settings: &Settings) -> String {
    let Some((_, api)) = said.rsplit_once("http://") else { return said.to_owned() };
    let remote = Remote::at(api, settings.api_key.clone());
    let hive = remote.get("/v1/hive").map(|answer| answer["hive"].clone());
    let split = hive.map(|hive| hive["models"][0].clone()).unwrap_or_default();
    let (model, plan) = (text(&split["name"]), &split["plan"]);
    // It may have been asked by somebody else for a key of its own; its own line is true, too.
    if plan.is_null() {
        return said.to_owned();
    }
    let named = |id: &Value| id.as_str().and_then(|id| nest.named(id)).unwrap_or("?".into());
    let mut parts = vec![format!("layers {} on node 0", text(&plan["front"]["layers"]))];
    for stage in list(&plan["stages"]) {
        let spares: Vec<_> = list(&stage["spares"]).map(named).collect();
        let spare = if spares.is_empty() {
            String::new()
        } else {
            format!(" (spare {})", spares.join(", "))
        };
        parts.push(format!("{} on node {}{spare}", text(&stage["layers"]), named(&stage["node"])));
    }
    let nodes = nest.running();
    format!("{model} over {nodes} nodes: {}, listening on http://{api}", parts.join(", "))
}

/// Goes on until somebody asks for an end (`true`) or the hive is no more.
fn until_stopped(nest: &mut Nest, first: usize) -> Result<bool> {
    loop {
        match nest.hear(SAY_EVERY)? {
            Some(News::Ended(who)) if who == first => {
                eprintln!("node 0, which has the API, ended: {}", nest.farewell(who));
                return Ok(false);
            }
            Some(News::Ended(who)) => {
                let (how, name) = (nest.farewell(who), name(who, first));
                eprintln!("node {name} ended: {how}; {} go on", nest.running());
            }
            Some(News::Stop(_)) => return Ok(true),
            Some(News::Said(..)) | None => {}
        }
    }
}

/// Stops the node with the API, so that its answers finish, and then the others.
fn end(nest: &mut Nest, first: usize, settings: &Settings) -> Result<ExitCode> {
    let patience = Duration::from_secs(settings.drain_seconds) + STOP_WITHIN;
    nest.release(first);
    let others: Vec<usize> = (0..first).collect();
    for wave in [vec![first], others] {
        wave.iter().for_each(|who| nest.release(*who));
        let until = Instant::now() + patience;
        while !wave.iter().all(|who| nest.has_ended(*who)) {
            match nest.hear(until.saturating_duration_since(Instant::now()))? {
                Some(News::Ended(who)) => drop(nest.farewell(who)),
                Some(News::Stop(_)) => return Ok(ExitCode::from(130)),
                Some(News::Said(..)) => {}
                None => {
                    let late = wave.iter().filter(|who| !nest.has_ended(**who));
                    let late: Vec<_> = late.map(|who| name(*who, first).to_string()).collect();
                    bail!(
                        "no end of node {} within {} s; killed",
                        late.join(", "),
                        patience.as_secs()
                    );
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What people call a node: the first has the API and is started last.
fn name(who: usize, first: usize) -> usize {
    if who == first { 0 } else { who + 1 }
}

/// Tells of signals from now on.
fn watch_signals(nest: &Nest) -> Result<()> {
    let tell = nest.teller();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start what listens for signals")?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let listen = move || {
        runtime.block_on(async { while tell.send(News::Stop(signals.next().await)).is_ok() {} });
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(listen).context("cannot start the thread that hears signals")?;
    Ok(())
}

/// A folder of our own that is gone in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("cadencia-hive-{:016x}", random()));
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
