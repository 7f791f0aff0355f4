//! Everything that has an effect: files, threads, terminals, sockets, clocks and dice.

mod admission;
mod args;
mod ask;
mod constraint;
mod daemon;
mod durable;
mod engine;
mod health;
mod hive;
mod http;
mod identity;
mod keys;
pub mod lanes;
mod library;
mod line;
mod machine;
mod memory;
mod progress;
mod pull;
mod settings;
mod speaker;
mod stats;
#[allow(dead_code, unused_imports, reason = "its tests use the rest of what it offers")]
mod swarm;
mod tools;
mod toy;
pub mod weights;
mod worker;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use etcetera::BaseStrategy;
use thiserror::Error;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use self::args::{Command, CommandLine};
use self::library::FindError;
use self::pull::{PullError, SourceError};
use self::settings::{Layer, Settings, SettingsError, Sources};

/// Exit code of what was asked wrongly; clap uses it, too.
const EXIT_USAGE: u8 = 2;

/// Something was asked wrongly, in a way that clap cannot know.
#[derive(Debug, Error)]
#[error("{0}")]
struct Usage(String);

/// Runs the program; its exit code.
pub fn run() -> ExitCode {
    match dispatch(&CommandLine::parse()) {
        Ok(code) => code,
        // Whoever read our output has enough of it, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cadencia: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

fn dispatch(line: &CommandLine) -> Result<ExitCode> {
    let settings = settings(line)?;
    let usual =
        if matches!(line.command, Command::Up(_) | Command::Sentinel(_)) { "info" } else { "warn" };
    start_log(settings.log.as_deref(), usual)?;
    match &line.command {
        Command::Up(flags) => daemon::up(flags, settings),
        Command::Hive(flags) => tools::hive(flags, &settings),
        Command::Status(flags) => tools::status(flags, &settings),
        Command::Peers(flags) => tools::peers(flags, &settings),
        Command::Invite(flags) => tools::invite(flags, &settings),
        Command::Sentinel(flags) => daemon::up(&flags.up, settings),
        Command::Plan(flags) => tools::plan(flags, &settings),
        Command::Chat(flags) => tools::chat(flags, &settings),
        Command::Pull(flags) => tools::pull(flags, &settings),
        Command::Keys(flags) => tools::keys(flags, &settings),
        Command::Models(flags) => tools::models(flags, &settings),
        Command::Tokenize(flags) => tools::tokenize(flags, &settings),
        Command::Generate(flags) => tools::generate(flags, &settings),
        Command::Logits(flags) => tools::logits(flags, &settings),
        Command::Perplexity(flags) => tools::perplexity(flags, &settings),
        Command::Bench(flags) => tools::bench(flags, &settings),
        Command::Doctor(flags) => tools::doctor(flags, &settings),
    }
}

/// Defaults, under the config file, under the environment, under the flags.
fn settings(line: &CommandLine) -> Result<Settings> {
    let env = |name: &str| std::env::var(name).ok();
    let folders = etcetera::choose_base_strategy().context("this user has no home folder")?;
    let asked = line.everywhere.config.clone();
    let asked =
        asked.or_else(|| env("CADENCIA_CONFIG").filter(|p| !p.is_empty()).map(PathBuf::from));
    let usual = folders.config_dir().join("cadencia").join("config.toml");
    let file = match asked {
        Some(path) => (path.clone(), Layer::read(&path, true)?),
        None => (usual.clone(), Layer::read(&usual, false)?),
    };
    let sources = Sources { file, env: Layer::from_env(&env)?, flags: line.layer() };
    let models_dir = folders.data_dir().join("cadencia").join("models");
    Ok(Settings::of(sources, machine::cores(), models_dir)?)
}

/// Logs to stderr what `filter` lets through; what others write with RUST_LOG counts, too.
fn start_log(filter: Option<&str>, usual: &str) -> Result<()> {
    let rust_log = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let text = filter.map(str::to_string).or(rust_log).unwrap_or_else(|| usual.into());
    let targets: Targets = text.parse().map_err(|error| {
        Usage(format!("log filter {text:?}: {error}; try info, or warn,cadencia=debug"))
    })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(targets).init();
    Ok(())
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let unsaid = matches!(error.downcast_ref(), Some(FindError::Unsaid(_) | FindError::NoName(_)));
    let pull = error.downcast_ref().is_some_and(PullError::is_usage) || error.is::<SourceError>();
    match unsaid || pull || error.is::<Usage>() || error.is::<SettingsError>() {
        true => EXIT_USAGE,
        false => 1,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.into_iter().any(|io| io.kind() == ErrorKind::BrokenPipe)
}
