//! `cadencia doctor`

use std::io::Write;
use std::net::{TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use compute::engine::{KernelChoice, LoadOptions, Model};
use serde::Serialize;
use serde_json::json;

use super::megabytes;
use crate::shell::args::Doctor;
use crate::shell::http::random;
use crate::shell::settings::Settings;
use crate::shell::{library, machine, speaker, toy};

/// Less free memory than this holds no model of use.
const MEMORY_LEAST: u64 = 512 << 20;
/// Bytes read to measure bandwidth.
const BANDWIDTH_BYTES: u64 = 256 << 20;
/// Slower memory than this makes even a small model slow to talk to, bytes per second.
const BANDWIDTH_LEAST: f64 = 4e9;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    /// It works, and not as well as it could.
    Warning,
    /// It does not work.
    Broken,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    detail: String,
}

impl Check {
    fn new(name: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { name, verdict, detail: detail.into() }
    }

    /// Good with what `outcome` says, or broken by its error.
    fn of(name: &'static str, outcome: Result<String>) -> Self {
        match outcome {
            Ok(detail) => Self::new(name, Verdict::Good, detail),
            Err(error) => Self::new(name, Verdict::Broken, format!("{error:#}")),
        }
    }
}

/// Checks whether this machine is fit to run models.
pub fn doctor(flags: &Doctor, settings: &Settings) -> Result<ExitCode> {
    let mut checks = vec![
        processor(settings),
        Check::of("kernels", kernels(settings)),
        memory(),
        bandwidth(settings),
        folders(&settings.models_dirs),
        Check::of("address", address(&settings.api)),
    ];
    if settings.model.is_some() {
        checks.push(Check::of("model", model(settings)));
    }
    let broken = checks.iter().any(|check| check.verdict == Verdict::Broken);
    let mut out = std::io::stdout().lock();
    if flags.json {
        writeln!(out, "{}", json!({"ok": !broken, "checks": checks}))?;
    } else {
        for check in &checks {
            let mark = match check.verdict {
                Verdict::Good => "ok     ",
                Verdict::Warning => "warning",
                Verdict::Broken => "BROKEN ",
            };
            writeln!(out, "{mark} {:10} {}", check.name, check.detail)?;
        }
    }
    Ok(ExitCode::from(u8::from(broken)))
}

fn processor(settings: &Settings) -> Check {
    let features = features();
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let detail = format!(
        "{}, {} cores, {allowed} threads allowed, {} used; {}",
        std::env::consts::ARCH,
        machine::cores(),
        settings.threads,
        if features.is_empty() { "no known extensions".into() } else { features.join(" ") },
    );
    let verdict = if settings.threads > allowed { Verdict::Warning } else { Verdict::Good };
    Check::new("processor", verdict, detail)
}

/// The processor's extensions that kernels could use.
fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let all = [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avxvnni", is_x86_feature_detected!("avxvnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
    ];
    #[cfg(target_arch = "aarch64")]
    let all = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let all: [(&'static str, bool); 0] = [];
    all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
}

/// Computes a toy model with the kernels in question and by the definition: the bits must be equal.
fn kernels(settings: &Settings) -> Result<String> {
    let file = Scratch::new()?;
    toy::write(&file.0).context("cannot write the toy model")?;
    let tokens: Vec<u32> = (0..48).map(|n| n * 5 % 256).collect();
    let logits = |kernels, threads| -> Result<(&'static str, Vec<u32>)> {
        let options = LoadOptions { threads, kernels, part: None };
        let model = Model::load(&file.0, &options, &mut |_, _| {})?;
        let mut bits = Vec::new();
        let mut session = model.session(tokens.len());
        session.logits_each(&tokens, &mut |_, row| bits.extend(row.iter().map(|x| x.to_bits())))?;
        Ok((model.summary().kernels, bits))
    };
    let (name, tried) = logits(settings.kernels.into(), settings.threads)?;
    let (_, right) = logits(KernelChoice::Reference, 1)?;
    let different = tried.iter().zip(&right).filter(|(a, b)| a != b).count();
    let whole = !right.is_empty() && tried.len() == right.len();
    ensure!(
        whole && different == 0,
        "the {name} kernels give other bits than the definition for {different} of {} logits; \
         run with --kernels portable, and report this processor",
        right.len()
    );
    Ok(format!("{name} equals the definition in all {} logits of a toy model", right.len()))
}

/// A file of our own that is gone in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let name = format!("cadencia-doctor-{:016x}.gguf", random());
        Ok(Self(std::env::temp_dir().join(name)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn memory() -> Check {
    let (available, total) = (machine::memory_available(), machine::memory_total());
    let (Some(available), Some(total)) = (available, total) else {
        return Check::new("memory", Verdict::Warning, "the system does not say how much there is");
    };
    let detail = format!("{} free of {}", megabytes(available), megabytes(total));
    let verdict = if available < MEMORY_LEAST { Verdict::Warning } else { Verdict::Good };
    Check::new("memory", verdict, detail)
}

fn bandwidth(settings: &Settings) -> Check {
    let room = machine::memory_available().map_or(BANDWIDTH_BYTES, |bytes| bytes / 4);
    let bytes = BANDWIDTH_BYTES.min(room) as usize;
    let speed = machine::read_bandwidth(settings.threads, bytes);
    let detail = format!(
        "memory is read at {:.1} GB/s: at most {:.0} tokens/s from weights of 1 GB",
        speed / 1e9,
        speed / 1e9
    );
    let verdict = if speed < BANDWIDTH_LEAST { Verdict::Warning } else { Verdict::Good };
    Check::new("bandwidth", verdict, detail)
}

fn folders(folders: &[PathBuf]) -> Check {
    let names = folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>();
    let names = names.join(", ");
    let there = |folder: &&PathBuf| folder.is_dir();
    if folders.iter().filter(there).count() == 0 {
        let detail = format!("{names} is not there; make it and put .gguf files into it");
        return Check::new("models", Verdict::Warning, detail);
    }
    let files = library::list(folders);
    let refused: Vec<_> =
        files.iter().filter_map(|path| library::describe(path).err().map(|e| (path, e))).collect();
    let count = files.len();
    match refused.first() {
        Some((path, error)) => {
            let detail = format!("{}: {error}", path.display());
            Check::new("models", Verdict::Warning, detail)
        }
        None if count == 0 => {
            Check::new("models", Verdict::Warning, format!("no .gguf files in {names}"))
        }
        None => Check::new("models", Verdict::Good, format!("{count} in {names}")),
    }
}

fn address(api: &str) -> Result<String> {
    let addresses: Vec<_> = api.to_socket_addrs().with_context(|| format!("{api:?}"))?.collect();
    TcpListener::bind(&addresses[..])
        .with_context(|| format!("cannot listen on {api} (is a node running there?)"))?;
    Ok(format!("{api} is free"))
}

/// Whether the model can be read and fits into memory.
fn model(settings: &Settings) -> Result<String> {
    let path = library::find(settings.model.as_deref(), &settings.models_dirs)?;
    let described = library::describe(&path)?;
    let fits = machine::memory_available().is_none_or(|available| described.bytes < available);
    ensure!(fits, "{} takes {} and less is free", described.name, megabytes(described.bytes));
    probe(&path, settings)?;
    Ok(format!(
        "{} ({}, {}, {}) answers a probe",
        described.name,
        described.architecture,
        described.weights,
        megabytes(described.bytes)
    ))
}

fn probe(path: &Path, settings: &Settings) -> Result<()> {
    let speaker = speaker::Speaker::load(path, settings, &mut |_, _| {})?;
    speaker.probe()
}
