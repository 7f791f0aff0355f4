//! Rules of the house that no compiler checks. STYLE.md and ARCHITECTURE.md say why they are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cadencia_tests::workspace;

/// Crates that decide and never act: no clock, socket, file, thread or dice.
const PURE: [&str; 5] = ["wire", "ledger", "consensus", "crdt-world", "sentinel"];
/// Crates that may know of `wire` and of no other crate here.
const ROOMS: [&str; 5] = ["ledger", "consensus", "compute", "crdt-world", "sentinel"];
/// Folders that git ignores, or that are not ours.
const NOT_OURS: [&str; 5] = [".git", "target", "models", "corpus", "artifacts"];
/// Names that fit anything, and so collect everything.
const VAGUE: [&str; 8] =
    ["util", "utils", "common", "helper", "helpers", "manager", "managers", "misc"];

#[test]
fn the_project_speaks_only_of_itself() {
    // Joined here, so that this file does not hold what it looks for.
    let forbidden = [["/wor", "k/"].concat(), ["/roo", "t/"].concat(), ["../sha", "red"].concat()];
    let holds = |text: &str| forbidden.iter().find(|word| text.contains(*word)).cloned();
    let found: Vec<_> = texts()
        .flat_map(|(path, text)| {
            let lines = text.lines().enumerate();
            let hits = lines.filter_map(|(n, line)| holds(line).map(|word| (n + 1, word)));
            hits.map(|(n, word)| format!("{}:{n} holds {word}", path.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(found.is_empty(), "paths of one machine:\n{}", found.join("\n"));
}

#[test]
fn no_file_has_a_name_that_fits_anything() {
    let vague: Vec<_> = files()
        .filter(|path| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
            VAGUE.contains(&stem.as_str()) || path.ends_with("mod.rs")
        })
        .collect();
    assert!(vague.is_empty(), "name them for what they hold (x.rs beside x/): {vague:?}");
}

#[test]
fn pure_code_reads_no_clock_file_socket_or_thread() {
    let acts = [
        "Instant",
        "SystemTime",
        "std::net",
        "std::fs",
        "std::thread",
        "std::env",
        "std::process",
        "tokio",
        "async fn",
        "rand::",
        "getrandom",
        "HashMap",
        "HashSet",
    ];
    let pure = |path: &Path| {
        PURE.iter().any(|room| path.starts_with(format!("{room}/src")))
            || path.starts_with("node/src/house")
            || path == Path::new("node/src/house.rs")
    };
    assert_absent(pure, &acts);
}

#[test]
fn compute_knows_no_network_clock_or_async() {
    // A file's date is no clock, so the type `SystemTime` may be named.
    let acts = ["std::net", "Instant", "SystemTime::now", "tokio", "async fn"];
    // The pool times its spinning, and nothing that it computes depends on that.
    let pool = Path::new("compute/src/pool.rs");
    assert_absent(|path| path.starts_with("compute/src") && path != pool, &acts);
}

#[test]
fn no_test_is_switched_off() {
    let ignore = ["#[ign", "ore"].concat();
    assert_absent(|path| path.extension().is_some_and(|e| e == "rs"), &[&ignore]);
}

#[test]
fn rooms_depend_on_wire_alone() {
    let crates = crates();
    for room in ROOMS {
        assert!(crates.contains(room), "{room} is a crate of the workspace");
        let others: Vec<_> = dependencies(room)
            .into_iter()
            .filter(|name| crates.contains(name) && name != "wire")
            .collect();
        assert!(others.is_empty(), "{room} depends on {others:?}; rooms meet in node's house");
    }
    let below: Vec<_> = dependencies("wire").into_iter().filter(|n| crates.contains(n)).collect();
    assert!(below.is_empty(), "wire depends on {below:?}, and everything on wire");
}

#[test]
fn every_crate_takes_on_the_workspace_lints() {
    for folder in folders() {
        let manifest = read(&folder.join("Cargo.toml"));
        let inherits = manifest.split("[lints]").nth(1).is_some_and(|rest| {
            rest.lines().find(|line| !line.is_empty()) == Some("workspace = true")
        });
        assert!(inherits, "{} lacks [lints] workspace = true", folder.display());
    }
}

/// Fails if the code of a chosen Rust file, comments aside, holds one of `words`.
fn assert_absent(chosen: impl Fn(&Path) -> bool, words: &[&str]) {
    let mut found = Vec::new();
    for (path, text) in texts().filter(|(path, _)| chosen(path)) {
        for (n, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if let Some(word) = words.iter().find(|word| holds_word(code, word)) {
                found.push(format!("{}:{} holds {word}", path.display(), n + 1));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Whether `word` stands in `code` and is not part of a longer name.
fn holds_word(code: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        let open = word.ends_with(part_of_name) && after.is_some_and(part_of_name);
        !open && !before.is_some_and(part_of_name)
    })
}

/// Names that a crate's manifest depends on outside its tests, renamed ones under both names.
fn dependencies(folder: &str) -> BTreeSet<String> {
    let manifest = read(&workspace().join(folder).join("Cargo.toml"));
    let mut section = String::new();
    let mut names = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_string();
        }
        if section.contains("dev-dependencies") || !section.contains("dependencies") {
            continue;
        }
        if let Some((_, name)) = section.split_once("dependencies.") {
            names.insert(name.to_string());
        }
        if let Some((name, value)) = line.split_once('=') {
            let name = name.split('.').next().unwrap_or_default();
            names.insert(name.trim().to_string());
            if let Some((_, package)) = format!("{name}={value}").split_once("package") {
                names.extend(package.split('"').nth(1).map(str::to_string));
            }
        }
    }
    names
}

/// The packages of this workspace, by the names in their manifests.
fn crates() -> BTreeSet<String> {
    let name = |folder: PathBuf| {
        let manifest = read(&folder.join("Cargo.toml"));
        let line = manifest.lines().find(|line| line.starts_with("name = ")).map(str::to_string);
        line.and_then(|line| line.split('"').nth(1).map(str::to_string)).expect("a package's name")
    };
    folders().map(name).collect()
}

/// The folders of the workspace's members.
fn folders() -> impl Iterator<Item = PathBuf> {
    let manifest = read(&workspace().join("Cargo.toml"));
    let list = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next());
    let list = list.expect("a list of members").to_string();
    let names: Vec<_> = list.split('"').skip(1).step_by(2).map(str::to_string).collect();
    names.into_iter().map(|name| workspace().join(name))
}

/// Every text file of ours, as (path from the root, text).
fn texts() -> impl Iterator<Item = (PathBuf, String)> {
    files().filter_map(|path| {
        let text = std::fs::read_to_string(workspace().join(&path)).ok()?;
        Some((path, text))
    })
}

/// Every file of ours, by its path from the workspace's root.
fn files() -> impl Iterator<Item = PathBuf> {
    let mut found = Vec::new();
    walk(workspace(), &mut found);
    found.sort();
    assert!(found.len() > 20, "the walk found the project");
    found.into_iter()
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of ours can be read") {
        let path = entry.expect("and so can its entries").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if NOT_OURS.contains(&name.as_str()) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path.strip_prefix(workspace()).expect("below the root").into());
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
