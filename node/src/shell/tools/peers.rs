//! `cadencia peers`

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::models::table;
use super::remote::{Remote, list, text};
use crate::shell::args::Peers as Flags;
use crate::shell::settings::Settings;

/// Shows the other nodes of a running node's hive.
pub fn peers(flags: &Flags, settings: &Settings) -> Result<ExitCode> {
    let answer = Remote::of(settings).get("/v1/hive")?;
    let hive = &answer["hive"];
    if hive.is_null() {
        bail!("{}", answer["why"].as_str().unwrap_or("this node is in no hive"));
    }
    let mut out = std::io::stdout().lock();
    if flags.asking.json {
        let value = json!({"peers": hive["peers"], "offers": hive["offers"]});
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = rows(hive);
    if rows.len() == 1 {
        eprintln!("no other node is known yet");
        return Ok(ExitCode::SUCCESS);
    }
    write!(out, "{}", table(&rows))?;
    Ok(ExitCode::SUCCESS)
}

/// A heading, and a line for each node that is connected or offers something.
fn rows(hive: &Value) -> Vec<[String; 7]> {
    let mut nodes: BTreeMap<&str, (Option<&Value>, Option<&Value>)> = BTreeMap::new();
    for peer in list(&hive["peers"]) {
        nodes.entry(peer["id"].as_str().unwrap_or_default()).or_default().0 = Some(peer);
    }
    for offer in list(&hive["offers"]) {
        nodes.entry(offer["node"].as_str().unwrap_or_default()).or_default().1 = Some(offer);
    }
    let head = ["NODE", "PATH", "ROUND TRIP", "FREE", "HOLDS", "PROGRAM", "ADDRESS"];
    let mut rows = vec![head.map(String::from)];
    rows.extend(nodes.values().map(|(peer, offer)| row(*peer, *offer)));
    rows
}

fn row(peer: Option<&Value>, offer: Option<&Value>) -> [String; 7] {
    let none = Value::Null;
    let (peer, offer) = (peer.unwrap_or(&none), offer.unwrap_or(&none));
    let shown = |value: &Value| value.as_str().map_or("-".into(), |_| text(value));
    let either = |key| if peer[key].is_string() { text(&peer[key]) } else { shown(&offer[key]) };
    let rtt = peer["rtt_ms"].as_f64().map_or("-".into(), |ms| format!("{ms:.1} ms"));
    let free = offer["memory_free_mb"].as_u64().map_or("-".into(), |mb| format!("{mb} MB"));
    let held: Vec<_> = list(&offer["held"])
        .map(|part| format!("{} {}", text(&part["model"]), text(&part["layers"])))
        .collect();
    let held = if held.is_empty() { "-".into() } else { held.join(", ") };
    let address = shown(&peer["addresses"][0]);
    [either("name"), shown(&peer["path"]), rtt, free, held, either("program"), address]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_shown_once_whether_it_is_connected_or_offers_or_both() {
        let hive = json!({
            "peers": [
                {"id": "a", "name": "A", "path": "direct", "rtt_ms": 1.26, "program": "p/1",
                 "addresses": ["/x"]},
                {"id": "b", "name": "B", "path": "relayed", "rtt_ms": null, "addresses": []},
            ],
            "offers": [
                {"node": "a", "name": "A", "memory_free_mb": 5, "program": "p 1",
                 "held": [{"model": "m", "layers": "0-1"}, {"model": "m", "layers": "2-3"}]},
                {"node": "c", "name": "C", "memory_free_mb": 7, "program": "p 2", "held": []},
            ],
        });
        let rows = rows(&hive);
        let lines: Vec<_> = rows[1..].iter().map(|row| row.join("|")).collect();
        assert_eq!(lines[0], "A|direct|1.3 ms|5 MB|m 0-1, m 2-3|p/1|/x");
        assert_eq!(lines[1], "B|relayed|-|-|-|-|-");
        assert_eq!(lines[2], "C|-|-|7 MB|-|p 2|-");
    }
}
