//! `cadencia bench`

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use compute::engine::{Feed, Session, Wanted, step};
use serde_json::{Value, json};

use super::{load, megabytes};
use crate::shell::args::Bench;
use crate::shell::machine;
use crate::shell::progress::{Progress, Unit};
use crate::shell::settings::Settings;
use crate::shell::speaker::Speaker;

/// Tokens of a prompt computed at a time.
const PIECE: usize = 512;
/// Bytes read to measure bandwidth: more than any cache of a machine for the home.
const BANDWIDTH_BYTES: u64 = 512 << 20;

/// Measures speed and memory.
pub fn bench(flags: &Bench, settings: &Settings) -> Result<ExitCode> {
    let start = Instant::now();
    let speaker = load(settings)?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    let trained = speaker.model().summary().context_length;
    let depth = flags.depth.unwrap_or(0) as usize;
    let (prompt, tokens) = (flags.prompt as usize, flags.tokens as usize);
    ensure!(
        prompt <= trained && 1 + tokens + depth <= trained,
        "the model was trained for {trained} tokens: ask for fewer with -p, -n or -d"
    );

    let mut first_ms = None;
    let users = flags.users.unwrap_or(0) as usize;
    let (mut prefill, mut decode, mut deep) = (Vec::new(), Vec::new(), Vec::new());
    let mut together = Vec::new();
    let rounds = flags.repetitions;
    let mut progress = Progress::new("measuring", Unit::Tokens);
    for round in 0..rounds {
        let seconds = time_prefill(&speaker, prompt)?;
        first_ms.get_or_insert(load_ms + seconds * 1e3);
        prefill.push(prompt as f64 / seconds);
        decode.push(tokens as f64 / time_decode(&speaker, 1, tokens)?);
        if depth > 0 {
            deep.push(tokens as f64 / time_decode(&speaker, depth, tokens)?);
        }
        if users > 0 {
            together.push((users * tokens) as f64 / time_together(&speaker, users, tokens)?);
        }
        let done = u64::from(round + 1) * (prompt + tokens) as u64;
        progress.set(done, u64::from(rounds) * (prompt + tokens) as u64);
    }
    drop(progress);
    // Read before the buffer that measures bandwidth exists.
    let peak_rss = machine::peak_rss();
    let room = machine::memory_available().map_or(BANDWIDTH_BYTES, |bytes| bytes / 2);
    let bandwidth = machine::read_bandwidth(settings.threads, BANDWIDTH_BYTES.min(room) as usize);

    let summary = speaker.model().summary();
    let bound = bandwidth / summary.bytes_per_token.max(1) as f64;
    let (prefill, decode, deep) = (Speeds::of(prefill), Speeds::of(decode), Speeds::of(deep));
    let mut value = json!({
        "model": speaker.name(),
        "architecture": summary.architecture,
        "kernels": summary.kernels,
        "threads": settings.threads,
        "prompt": prompt,
        "tokens": tokens,
        "repetitions": rounds,
        "prefill_tps": prefill.best,
        "prefill_tps_median": prefill.median,
        "decode_tps": decode.best,
        "decode_tps_median": decode.median,
        "load_ms": load_ms,
        "load_and_prefill_ms": first_ms,
        "file_bytes": summary.file_bytes,
        "weight_bytes": summary.weight_bytes,
        "bytes_per_token": summary.bytes_per_token,
        "kv_bytes_per_token": summary.kv_bytes_per_token,
        "peak_rss_bytes": peak_rss,
        "read_bandwidth_bytes_s": bandwidth,
        "decode_share_of_bandwidth": decode.best / bound,
    });
    if depth > 0 {
        value["depth"] = json!(depth);
        value["decode_at_depth_tps"] = json!(deep.best);
        value["decode_at_depth_tps_median"] = json!(deep.median);
    }
    if users > 0 {
        let together = Speeds::of(together);
        value["users"] = json!(users);
        value["decode_together_tps"] = json!(together.best);
        value["decode_together_tps_median"] = json!(together.median);
    }
    let text = if flags.json { value.to_string() } else { report(&value) };
    writeln!(std::io::stdout(), "{}", text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// How long `prompt` tokens take in an empty context, seconds.
fn time_prefill(speaker: &Speaker, prompt: usize) -> Result<f64> {
    let mut session = speaker.model().session(prompt);
    let tokens = tokens(speaker, prompt);
    let start = Instant::now();
    read(&mut session, &tokens)?;
    Ok(start.elapsed().as_secs_f64())
}

/// How long it takes to decode `count` tokens with `depth` in the context already, seconds.
fn time_decode(speaker: &Speaker, depth: usize, count: usize) -> Result<f64> {
    let mut session = speaker.model().session(depth + count);
    let tokens = tokens(speaker, depth + count);
    read(&mut session, &tokens[..depth])?;
    let start = Instant::now();
    for token in &tokens[depth..] {
        session.logits(&[*token])?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// How long it takes to decode `count` tokens of each of `users` sequences together, seconds.
fn time_together(speaker: &Speaker, users: usize, count: usize) -> Result<f64> {
    let tokens = tokens(speaker, users + count);
    let mut sessions: Vec<Session> =
        (0..users).map(|_| speaker.model().session(count + 1)).collect();
    for (user, session) in sessions.iter_mut().enumerate() {
        session.feed(&tokens[user..=user])?;
    }
    let start = Instant::now();
    for n in 0..count {
        let feed = |(user, session)| {
            let tokens = &tokens[user + n..=user + n];
            Feed { session, tokens, wanted: Wanted::Last }
        };
        let mut feeds: Vec<Feed> = sessions.iter_mut().enumerate().map(feed).collect();
        step(&mut feeds, &mut |_, _, _| {})?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Computes `tokens`, and the logits after the last.
fn read(session: &mut Session, tokens: &[u32]) -> Result<()> {
    let last = tokens.len().saturating_sub(1) / PIECE * PIECE;
    for piece in tokens[..last].chunks(PIECE) {
        session.feed(piece)?;
    }
    session.logits(&tokens[last..])?;
    Ok(())
}

/// `count` ids of the vocabulary, always the same, with no pattern that an embedding could mind.
fn tokens(speaker: &Speaker, count: usize) -> Vec<u32> {
    let vocabulary = speaker.model().summary().vocabulary as u64;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        // Xorshift, by Marsaglia.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % vocabulary) as u32
    };
    (0..count).map(|_| next()).collect()
}

/// Speeds of all repetitions, tokens per second.
struct Speeds {
    best: f64,
    median: f64,
}

impl Speeds {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        let best = all.last().copied().unwrap_or(0.0);
        let middle = |n: usize| all.get(n).copied().unwrap_or(0.0);
        // Of an even number, the mean of the two in the middle.
        let median = (middle(all.len().saturating_sub(1) / 2) + middle(all.len() / 2)) / 2.0;
        Self { best, median }
    }
}

/// The figures for a reader.
fn report(value: &Value) -> String {
    let number = |key: &str| value[key].as_f64().unwrap_or(0.0);
    let bytes = |key: &str| megabytes(value[key].as_u64().unwrap_or(0));
    let mut text = format!(
        "{} ({}), {} kernels, {} threads\n\
         prefill of {}: {:.1} tokens/s (median {:.1})\n\
         decode of {}: {:.1} tokens/s (median {:.1}), {:.0} % of what memory can feed\n",
        value["model"].as_str().unwrap_or(""),
        value["architecture"].as_str().unwrap_or(""),
        value["kernels"].as_str().unwrap_or(""),
        value["threads"],
        value["prompt"],
        number("prefill_tps"),
        number("prefill_tps_median"),
        value["tokens"],
        number("decode_tps"),
        number("decode_tps_median"),
        number("decode_share_of_bandwidth") * 100.0,
    );
    if value.get("depth").is_some() {
        text += &format!(
            "decode at depth {}: {:.1} tokens/s (median {:.1})\n",
            value["depth"],
            number("decode_at_depth_tps"),
            number("decode_at_depth_tps_median"),
        );
    }
    if value.get("users").is_some() {
        text += &format!(
            "decode for {} users together: {:.1} tokens/s (median {:.1})\n",
            value["users"],
            number("decode_together_tps"),
            number("decode_together_tps_median"),
        );
    }
    text + &format!(
        "load {:.0} ms; file {}, peak memory {}; memory reads {:.1} GB/s\n",
        number("load_ms"),
        bytes("file_bytes"),
        bytes("peak_rss_bytes"),
        number("read_bandwidth_bytes_s") / 1e9,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_and_the_middle_are_told() {
        let speeds = Speeds::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((speeds.best, speeds.median), (3.0, 2.0));
        let even = Speeds::of(vec![1.0, 2.0, 4.0, 8.0]);
        assert_eq!((even.best, even.median), (8.0, 3.0));
        let none = Speeds::of(Vec::new());
        assert_eq!((none.best, none.median), (0.0, 0.0));
    }
}
