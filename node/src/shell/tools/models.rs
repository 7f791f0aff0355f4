//! `cadencia models`

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::megabytes;
use crate::shell::Usage;
use crate::shell::args::{Models, ModelsAction};
use crate::shell::library::{self, Description};
use crate::shell::settings::Settings;

/// Lists the models in the models folders, or removes one.
pub fn models(flags: &Models, settings: &Settings) -> Result<ExitCode> {
    if let Some(ModelsAction::Rm { name, yes }) = &flags.action {
        return remove(name, *yes, settings);
    }
    let files = library::list(&settings.models_dirs);
    let described = files.iter().map(|path| (path, library::describe(path)));
    let mut out = std::io::stdout().lock();
    if flags.json {
        let list: Vec<Value> = described
            .map(|(path, description)| match description {
                Ok(description) => json!(description),
                Err(error) => broken(path, &error.to_string()),
            })
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if files.is_empty() {
        let folders: Vec<_> =
            settings.models_dirs.iter().map(|f| f.display().to_string()).collect();
        eprintln!("no .gguf files in {}", folders.join(", "));
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![
        ["NAME", "SIZE", "MEMORY", "ARCHITECTURE", "WEIGHTS", "PARAMETERS", "CONTEXT", "CHAT"]
            .map(String::from),
    ];
    let mut refused = Vec::new();
    for (path, description) in described {
        match description {
            Ok(description) => rows.push(row(&description)),
            Err(error) => refused.push(format!("{}: {error}", path.display())),
        }
    }
    write!(out, "{}", table(&rows))?;
    for line in refused {
        writeln!(out, "cannot be read: {line}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes all files of the model `name`, after a question unless `yes` was said already.
fn remove(name: &str, yes: bool, settings: &Settings) -> Result<ExitCode> {
    let files = library::files_of(name, &settings.models_dirs)?;
    let bytes = files.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
    let what = match files.as_slice() {
        [file] => file.display().to_string(),
        [first, rest @ ..] => format!("{} and {} more files", first.display(), rest.len()),
        [] => bail!("{name} has no files"),
    };
    if !yes {
        if !std::io::stdin().is_terminal() {
            return Err(Usage(format!("{what} would be removed; say --yes to do it")).into());
        }
        eprint!("remove {what} ({})? [y/N] ", megabytes(bytes));
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).context("no answer")?;
        if !matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
            eprintln!("nothing was removed");
            return Ok(ExitCode::FAILURE);
        }
    }
    // The first file goes first: without it nobody takes the others for a model.
    for file in &files {
        std::fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    eprintln!("removed {what} ({})", megabytes(bytes));
    Ok(ExitCode::SUCCESS)
}

fn broken(path: &Path, error: &str) -> Value {
    json!({"name": library::name(path), "path": path, "error": error})
}

fn row(description: &Description) -> [String; 8] {
    let d = description;
    [
        d.name.clone(),
        megabytes(d.bytes),
        d.memory.map_or("-".into(), megabytes),
        d.architecture.clone(),
        d.weights.clone(),
        format!("{:.0}M", d.parameters as f64 / 1e6),
        d.context.to_string(),
        if d.chat { "yes" } else { "no" }.into(),
    ]
}

/// Columns as wide as their widest cell.
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tables_columns_are_aligned() {
        let rows = [["NAME", "N"], ["a", "1"], ["abcdef", "22"]].map(|row| row.map(String::from));
        assert_eq!(table(&rows), "NAME    N\na       1\nabcdef  22\n");
    }
}
