//! `cadencia plan`

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::remote::{Remote, in_query};
use crate::shell::args::Plan as Flags;
use crate::shell::library;
use crate::shell::settings::Settings;

/// Shows what a running node would plan for a model now.
pub fn plan(flags: &Flags, settings: &Settings) -> Result<ExitCode> {
    let remote = Remote::of(settings);
    let path = match flags.model.as_deref() {
        Some(model) => format!("/v1/hive/plan?model={}", in_query(&called(model))),
        None => "/v1/hive/plan".to_owned(),
    };
    let answer = remote.get(&path)?;
    let code = ExitCode::from(u8::from(answer["plan"].is_null()));
    let mut out = std::io::stdout().lock();
    if flags.asking.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
        return Ok(code);
    }
    let model = answer["model"].as_str().unwrap_or_default();
    if let Some(why) = answer["why_not"].as_str() {
        writeln!(out, "{model}: no plan, for {why}")?;
        return Ok(code);
    }
    writeln!(out, "{model}: {}", answer["plan"]["words"].as_str().unwrap_or_default())?;
    for line in answer["explanation"].as_array().into_iter().flatten() {
        writeln!(out, "{}", line.as_str().unwrap_or_default())?;
    }
    Ok(code)
}

/// What a node calls a model that is named here, perhaps by the path of its file.
fn called(model: &str) -> String {
    let path = Path::new(model);
    let is_file = path.extension().is_some_and(|end| end == "gguf");
    if is_file { library::name(path) } else { model.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_called_by_its_files_name() {
        assert_eq!(called("/a/b/Some-1.5B.Q4_0.gguf"), "Some-1.5B.Q4_0");
        assert_eq!(called("Some-1.5B.Q4_0"), "Some-1.5B.Q4_0");
    }
}
