//! `oracle quality` and `oracle logits`: the yardstick from the command line.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use oracle::Oracle;
use oracle::quality::{GATES, WINDOWS_FULL, measure};

const HELP: &str = "\
Measures what integer arithmetic costs, against a plain floating-point forward pass.

oracle quality --model FILE.gguf --file TEXT [--windows N] [--threads N]
    Compares the engine (2 threads) with the oracle over the text's first N windows (14) of 512
    tokens, of which the second half is scored. Prints JSON: mean, 99th percentile and maximum of
    KL(oracle || engine) in nats, top-1 agreement, both perplexities, the gates and what violates
    them. Exit code 1 if a gate is violated.

oracle logits --model FILE.gguf --tokens FILE --out FILE
    Reads token ids separated by spaces, writes the oracle's logits after each as raw
    little-endian f32 [n, vocabulary].
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("oracle: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode> {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    match command.as_str() {
        "quality" => quality(&Flags::read(words, &["model", "file", "windows", "threads"])?),
        "logits" => logits(&Flags::read(words, &["model", "tokens", "out"])?),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("say \"quality\" or \"logits\"; \"oracle --help\" tells how"),
    }
}

fn quality(flags: &Flags) -> Result<ExitCode> {
    let windows_max = flags.number("windows")?.unwrap_or(WINDOWS_FULL);
    let threads = flags.number("threads")?.unwrap_or(2).max(1);
    let text = read(&flags.path("file")?)?;
    let found = measure(&flags.path("model")?, &text, windows_max, threads)?;
    let violations = GATES.violations(&found);
    let report = serde_json::json!({
        "difference": found,
        "gates": GATES,
        "violations": violations,
    });
    println!("{report:#}");
    Ok(ExitCode::from(u8::from(!violations.is_empty())))
}

fn logits(flags: &Flags) -> Result<ExitCode> {
    let oracle = Oracle::load(&flags.path("model")?)?;
    let tokens = read_tokens(&flags.path("tokens")?)?;
    let hidden = oracle.hidden(&tokens)?;
    let out = flags.path("out")?;
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(&out)?);
        // A piece at a time: a large vocabulary makes the whole of them large.
        for hidden in hidden.chunks(64 * oracle.arch().width) {
            for logit in oracle.head(hidden) {
                file.write_all(&logit.to_le_bytes())?;
            }
        }
        file.flush()
    };
    write().with_context(|| format!("cannot write {}", out.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn read_tokens(path: &Path) -> Result<Vec<u32>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parse = |id: &str| id.parse().with_context(|| format!("\"{id}\" is not a token id"));
    let tokens: Vec<u32> = text.split_whitespace().map(parse).collect::<Result<_>>()?;
    ensure!(!tokens.is_empty(), "{} holds no token ids", path.display());
    Ok(tokens)
}

/// Flags as typed, `--name value`.
struct Flags(BTreeMap<String, String>);

impl Flags {
    fn read(mut words: impl Iterator<Item = String>, known: &[&str]) -> Result<Self> {
        let mut flags = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").filter(|name| known.contains(name));
            let name = name.with_context(|| format!("\"{word}\" is not a flag of this command"))?;
            let value = words.next().with_context(|| format!("{word} wants a value"))?;
            flags.insert(name.to_owned(), value);
        }
        Ok(Self(flags))
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        self.0.get(name).map(PathBuf::from).with_context(|| format!("--{name} is missing"))
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let number = value.parse().with_context(|| format!("--{name} {value} is no number"))?;
        Ok(Some(number))
    }
}
