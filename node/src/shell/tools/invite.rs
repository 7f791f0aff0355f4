//! `cadencia invite`

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::json;
use wire::{Address, Millis};

use super::remote::{Remote, list, text};
use crate::shell::Usage;
use crate::shell::admission::{Admission, InviteId, Wish};
use crate::shell::args::Invite as Flags;
use crate::shell::identity;
use crate::shell::settings::Settings;
use crate::shell::speaker::unix_now_ms;

const HOUR_MS: u64 = 3_600_000;

/// Makes, lists or takes back invitations of the node whose state is here.
pub fn invite(flags: &Flags, settings: &Settings) -> Result<ExitCode> {
    let key = identity::load_or_create(&settings.state_dir)?;
    let now = Millis(unix_now_ms());
    let admission = Admission::open(&settings.state_dir, &key, now)?;
    if flags.list {
        return all(flags, &admission, now);
    }
    if flags.leave {
        admission.leave()?;
        eprintln!("this node is of the public network from its next start on");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(id) = &flags.withdraw {
        return withdraw(&admission, id);
    }
    let answer = Remote::of(settings).get("/v1/hive")?;
    let node = &answer["hive"]["node"];
    if node.is_null() {
        bail!("{}", answer["why"].as_str().unwrap_or("this node is in no hive"));
    }
    let me = key.id().to_string();
    if node["id"] != me {
        bail!(Usage(format!(
            "the node at {} is {}, and the state in {} is of {me}; say which with --state-dir",
            settings.api,
            text(&node["id"]),
            settings.state_dir.display()
        )));
    }
    let addresses = list(&node["addresses"]).map(text).map(|at| format!("{at}/p2p/{me}"));
    let lanes = list(&node["lanes"]).filter_map(|at| at.as_str()?.parse::<SocketAddr>().ok());
    let wish = Wish {
        uses: flags.uses,
        lasts_ms: u64::from(flags.hours) * HOUR_MS,
        may_invite: flags.may_invite,
        addresses: addresses.take(8).collect(),
        lanes: lanes.map(Address::new).take(8).collect(),
    };
    let invite = admission.invite(&wish, now)?;
    let mut out = std::io::stdout().lock();
    match flags.asking.json {
        true => writeln!(out, "{}", json!({"invite": invite.to_string()}))?,
        false => writeln!(out, "{invite}")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn all(flags: &Flags, admission: &Admission, now: Millis) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let open = admission.invites(now)?;
    if flags.asking.json {
        let each = open.iter().map(|(id, open)| {
            let came: Vec<_> = open.came.keys().map(ToString::to_string).collect();
            json!({"id": hex(id), "uses": open.uses, "came": came, "expires_ms": open.expires.0})
        });
        writeln!(out, "{}", json!({"invites": each.collect::<Vec<_>>()}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if open.is_empty() {
        eprintln!("no invitation is open");
    }
    for (id, open) in open {
        let hours = open.expires.since(now) / HOUR_MS;
        writeln!(out, "{}  {} of {} came, {hours} h left", hex(&id), open.came.len(), open.uses)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn withdraw(admission: &Admission, id: &str) -> Result<ExitCode> {
    let Some(id) = parse(id) else {
        bail!(Usage("an invitation's id has 32 digits; see `cadencia invite --list`".into()));
    };
    if !admission.withdraw(&id)? {
        bail!("there is no such invitation; see `cadencia invite --list`");
    }
    eprintln!("nobody can come with it any more");
    Ok(ExitCode::SUCCESS)
}

fn hex(id: &InviteId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str) -> Option<InviteId> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut id = InviteId::default();
    for (i, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id: InviteId = std::array::from_fn(|i| 17 * i as u8);
        assert_eq!(parse(&hex(&id)), Some(id));
        for wrong in ["", "5f", &"g".repeat(32), &"\u{e9}".repeat(16)] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
