//! `cadencia pull`

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::shell::args::Pull;
use crate::shell::pull::{
    DigestRule, ModelName, PullError, Source, TakenRule, Wish, pull as bring,
};
use crate::shell::settings::Settings;

/// Brings a model into the first models folder.
pub fn pull(flags: &Pull, settings: &Settings) -> Result<ExitCode> {
    let folder = settings.models_dirs.first().context("no models folder is set")?;
    let name = flags.name.as_deref().map(ModelName::parse).transpose();
    let wish = Wish {
        source: Source::parse(&flags.source)?,
        name: name.map_err(PullError::Name)?,
        sha256: flags.sha256.clone(),
        digest: match flags.insecure_no_checksum {
            true => DigestRule::Waived,
            false => DigestRule::Needed,
        },
        taken: if flags.force { TakenRule::Replace } else { TakenRule::Keep },
        keep_free: flags.keep_free.saturating_mul(1_000_000),
        patience: Duration::from_secs(flags.patience),
        tries: flags.tries,
    };
    let pulled = bring(&wish, folder, &|line| eprintln!("{line}"))?;
    let state = if pulled.was_here { "was here already" } else { "is here" };
    eprintln!("{} {state}; use it with: cadencia up -m '{}'", pulled.path.display(), pulled.name);
    if let Some(why) = pulled.unrunnable {
        eprintln!("this version of cadencia cannot run it: {why}");
    }
    writeln!(std::io::stdout(), "{}", pulled.name)?;
    Ok(ExitCode::SUCCESS)
}
