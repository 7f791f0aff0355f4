//! What it costs to take a token through a model in parts, beside a step of the whole, where nothing
//! lies between the parts: `cargo run --release -p compute --example parts-speed -- FILE [THREADS]`
//!
//! Both run in turns, so that whatever else the machine does falls on both alike. With one thread on
//! Linux its time on a processor is told, which others do not lengthen; else the time that passed.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use compute::blueprint::Blueprint;
use compute::engine::{
    Ends, Feed, KernelChoice, LoadOptions, Model, Part, Returned, StageFeed, Wanted, front,
    pass_rows, step,
};
use compute::numeric::block::BlockVec;
use compute::numeric::rows::{rows_from_bytes, rows_to_bytes};

/// Rounds of tokens; the middle of their times is told.
const ROUNDS: usize = 41;
/// Tokens in a round, from an empty context on.
const TOKENS: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: parts-speed FILE [THREADS]")?;
    let threads = arguments.next().map_or(Ok(1), |n| n.parse())?;
    let path = Path::new(&file);
    let halves = Blueprint::read(path)?.halves;
    let cuts = [halves / 3, 2 * halves / 3];
    let load = |part: Option<Part>| {
        let options = LoadOptions { threads, kernels: KernelChoice::Auto, part };
        Model::load(path, &options, &mut |_, _| {})
    };
    let whole = load(None)?;
    let begin = load(Some(Part { halves: 0..cuts[0], ends: Ends::Here }))?;
    let rest = load(Some(Part { halves: cuts[0]..halves, ends: Ends::Elsewhere }))?;
    let (mut steps, mut routes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let clock = if threads == 1 { on_processor } else { passed };
        steps.push(time(clock, &mut || by_steps(&whole))?);
        routes.push(time(clock, &mut || by_parts(&begin, &rest, cuts, halves))?);
    }
    let middle = |times: &mut Vec<Duration>| {
        times.sort();
        times[ROUNDS / 2].as_secs_f64() * 1000.0 / TOKENS as f64
    };
    let (step, route) = (middle(&mut steps), middle(&mut routes));
    let more = (route / step - 1.0) * 100.0;
    println!("{threads} threads: step {step:.3} ms, parts {route:.3} ms a token, {more:+.1} %");
    let least = (routes[0].as_secs_f64() / steps[0].as_secs_f64() - 1.0) * 100.0;
    println!("fastest rounds: {least:+.1} %");
    Ok(())
}

fn token(n: usize) -> u32 {
    1 + (n as u32 * 37) % 200
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn time(
    clock: fn() -> Duration,
    work: &mut dyn FnMut() -> Outcome,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = clock();
    work()?;
    Ok(clock() - start)
}

/// Time since this was first asked.
fn passed() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// This thread's time on a processor, or [`passed`] where the system does not tell it.
fn on_processor() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = told.split(' ').next().and_then(|n| n.parse().ok());
    nanos.map_or_else(passed, Duration::from_nanos)
}

fn by_steps(model: &Arc<Model>) -> Outcome {
    let mut session = model.session(TOKENS);
    for n in 0..TOKENS {
        let tokens = &[token(n)];
        let feed = Feed { session: &mut session, tokens, wanted: Wanted::Last };
        step(&mut [feed], &mut |rows| assert!(rows.numbers[0].is_finite()))?;
    }
    Ok(())
}

fn by_parts(begin: &Arc<Model>, rest: &Arc<Model>, cuts: [usize; 2], halves: usize) -> Outcome {
    let mut session = begin.session(TOKENS);
    let mut stages = [rest.stage(cuts[0]..cuts[1], TOKENS), rest.stage(cuts[1]..halves, TOKENS)];
    let (width, mut bytes) = (begin.summary().width, Vec::new());
    for n in 0..TOKENS {
        let tokens = &[token(n)];
        let feed = Feed { session: &mut session, tokens, wanted: Wanted::Last };
        let mut rows: BlockVec = front(&mut [feed])?.remove(0);
        for stage in &mut stages {
            bytes.clear();
            rows_to_bytes(rows.view(), width, &mut bytes);
            rows_from_bytes(&bytes, width, &mut rows)?;
            pass_rows(&mut [StageFeed { stage, rows: &mut rows }])?;
        }
        let returned = Returned { rows: rows.view(), wanted: Wanted::Last };
        begin.heads(&[returned], &mut |rows| assert!(rows.numbers[0].is_finite()))?;
    }
    Ok(())
}
