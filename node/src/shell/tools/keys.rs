//! `cadencia keys`

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use compute::template::CivilTime;
use serde_json::{Value, json};

use crate::shell::args::{Keys as Flags, KeysAction};
use crate::shell::keys::{self, Keys};
use crate::shell::settings::Settings;
use crate::shell::speaker::unix_now;

/// Bytes of a key that is read from stdin, with white space around it.
const STDIN_BYTES_MAX: u64 = 4096;

/// Makes, lists, tries and revokes API keys.
pub fn keys(flags: &Flags, settings: &Settings) -> Result<ExitCode> {
    let path = settings.api_keys_file.as_path();
    match &flags.action {
        KeysAction::Add { name } => add(path, name)?,
        KeysAction::List { json } => list(path, *json)?,
        KeysAction::Check => check(path)?,
        KeysAction::Revoke { name } => {
            let left = keys::revoke(path, name)?;
            eprintln!("revoked; {left} left. A running node lets it in until it is restarted");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn add(path: &Path, name: &str) -> Result<()> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).context("the system gives no random bytes")?;
    let key = keys::add(path, name, unix_now(), random)?;
    writeln!(std::io::stdout(), "{key}")?;
    eprintln!("this is the only time it is shown; its hash is in {}", path.display());
    Ok(())
}

fn list(path: &Path, as_json: bool) -> Result<()> {
    let keys = Keys::load(path)?;
    let mut out = std::io::stdout().lock();
    if as_json {
        let rows = keys.entries().iter();
        let rows: Vec<Value> =
            rows.map(|entry| json!({"name": entry.name, "created": entry.created})).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(());
    }
    if keys.is_empty() {
        eprintln!("no keys in {}; `cadencia keys add NAME` makes one", path.display());
        return Ok(());
    }
    let width = keys.entries().iter().map(|entry| entry.name.len()).max().unwrap_or(0).max(4);
    writeln!(out, "{:width$}  CREATED", "NAME")?;
    for entry in keys.entries() {
        writeln!(out, "{:width$}  {}", entry.name, date(entry.created))?;
    }
    Ok(())
}

fn check(path: &Path) -> Result<()> {
    let mut text = String::new();
    std::io::stdin().take(STDIN_BYTES_MAX).read_to_string(&mut text).context("no key on stdin")?;
    let keys = Keys::load(path)?;
    match keys.find(text.trim().as_bytes()) {
        Some(name) => writeln!(std::io::stdout(), "{name}")?,
        None => bail!("that is none of the {} keys in {}", keys.len(), path.display()),
    }
    Ok(())
}

/// A day in UTC, such as 2026-11-30.
fn date(unix: u64) -> String {
    CivilTime::from_unix(i64::try_from(unix).unwrap_or(i64::MAX)).format("%Y-%m-%d")
}
