//! `cadencia status`

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::remote::{Remote, list, message, text};
use crate::shell::args::Status as Flags;
use crate::shell::settings::Settings;

/// Shows how a running node is.
pub fn status(flags: &Flags, settings: &Settings) -> Result<ExitCode> {
    let remote = Remote::of(settings);
    let (ready, said) = remote.ask("/ready")?;
    let why_not = (ready != 200).then(|| message(&said));
    let (models, hive) = (remote.get("/v1/models")?, remote.get("/v1/hive")?);
    let value = json!({
        "api": format!("http://{}", remote.api()),
        "ready": ready == 200,
        "why_not": why_not,
        "models": models["data"],
        "hive": hive["hive"],
        "memory": hive["memory"],
    });
    let mut out = std::io::stdout().lock();
    if flags.asking.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
    } else {
        for (name, line) in lines(&value) {
            writeln!(out, "{name:8} {line}")?;
        }
    }
    Ok(ExitCode::from(u8::from(ready != 200)))
}

/// What is told of a node, each line with its subject.
fn lines(value: &Value) -> Vec<(&'static str, String)> {
    let hive = &value["hive"];
    let mut lines = Vec::new();
    match hive["node"]["id"].as_str() {
        Some(id) => lines.push(("node", format!("{id}, {}", text(&hive["node"]["program"])))),
        None => lines.push(("node", "in no hive".to_owned())),
    }
    lines.push(("api", text(&value["api"])));
    let ready = value["why_not"].as_str().map_or("yes".into(), |why| format!("no: {why}"));
    lines.push(("ready", ready));
    for model in list(&value["models"]) {
        let context = &model["meta"]["n_ctx"];
        lines.push(("model", format!("{}, context {context}", text(&model["id"]))));
    }
    for model in list(&hive["models"]) {
        let plan = &model["plan"]["words"];
        let how = text(if plan.is_null() { &model["why"] } else { plan });
        lines.push(("split", format!("{}: {how}", text(&model["name"]))));
    }
    if !hive.is_null() {
        lines.extend(in_hive(hive));
    }
    if let Some(mb) = value["memory"]["resident_mb"].as_u64() {
        let free = value["memory"]["available_mb"].as_u64();
        let free = free.map_or(String::new(), |free| format!(", {free} MB are free"));
        lines.push(("memory", format!("{mb} MB in use here{free}")));
    }
    lines
}

fn in_hive(hive: &Value) -> Vec<(&'static str, String)> {
    let (node, lends) = (&hive["node"], &hive["node"]["lends"]);
    let (peers, offers) = (list(&hive["peers"]).count(), list(&hive["offers"]).count());
    let mut lines = vec![("hive", format!("{peers} peers connected, {offers} offers known"))];
    lines.extend(list(&node["addresses"]).map(|at| ("reached", text(at))));
    let seats = node["seats_taken"].as_u64().unwrap_or(0);
    lines.push(("seats", format!("{seats} sequences of others are computed here")));
    let (free, all) = (&lends["memory_free_mb"], &lends["memory_mb"]);
    let parts = list(&lends["parts"]);
    let parts: Vec<_> =
        parts.map(|it| format!("{} {}", text(&it["model"]), text(&it["layers"]))).collect();
    let parts = if parts.is_empty() { String::new() } else { format!("; {}", parts.join(", ")) };
    lines.push(("lends", format!("{all} MB, of which {free} MB are free{parts}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_hive_says_so_and_one_that_is_not_ready_says_why() {
        let value = json!({
            "api": "http://127.0.0.1:1", "ready": false, "why_not": "loading", "models": [],
            "hive": null, "memory": {"resident_mb": 7, "available_mb": null},
        });
        let lines = lines(&value);
        assert!(lines.contains(&("node", "in no hive".into())));
        assert!(lines.contains(&("ready", "no: loading".into())));
        assert!(lines.contains(&("memory", "7 MB in use here".into())));
        assert!(!lines.iter().any(|(name, _)| *name == "seats"));
    }
}
