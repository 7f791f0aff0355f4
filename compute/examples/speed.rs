//! Times a model's prefill and decode without anything around them.
//!
//! `speed MODEL THREADS [PREFILL] [DECODE]`

use compute::engine::{KernelChoice, LoadOptions, Model};
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (threads, prefill, decode) = (number(2, 1), number(3, 512), number(4, 64));
    let begun = Instant::now();
    let options = LoadOptions { threads, kernels: KernelChoice::Auto };
    let model = Model::load(args[1].as_ref(), &options, &mut |_, _| {}).expect("the model loads");
    println!("load {:?}", begun.elapsed());
    let vocab = model.summary().vocabulary as u32;
    let tokens: Vec<u32> = (0..prefill as u32).map(|i| i * 7919 % vocab).collect();
    for _ in 0..3 {
        let mut session = model.session(prefill + decode + 8);
        let begun = Instant::now();
        session.logits(&tokens).expect("there is room");
        let first = begun.elapsed();
        let mut alone = model.session(decode + 8);
        alone.logits(&[1]).expect("there is room");
        let begun = Instant::now();
        for i in 0..decode as u32 {
            alone.logits(&[i * 31 % vocab]).expect("there is room");
        }
        let second = begun.elapsed();
        println!(
            "prefill {:.1} tok/s  decode {:.1} tok/s",
            prefill as f64 / first.as_secs_f64(),
            decode as f64 / second.as_secs_f64()
        );
    }
}
