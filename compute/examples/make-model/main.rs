//! Writes a llama model with random weights, for speed and memory measurements at a size for
//! which no model needs to be fetched.
//!
//! `cargo run --release -p compute --example make-model -- --type Q4_K --out model.gguf`

mod blocks;

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;

use compute::gguf::writer::{Outline, WriteError, Writer};
use compute::gguf::{Metadata, TensorType, Value};

use blocks::Dice;

const USAGE: &str = "\
Writes a llama model with random weights and no tokeniser (about 600 MB as it stands).

  make-model --out FILE [options]

  --type T        weight type, such as Q4_0, Q4_K, Q8_0, F16  (Q4_K)
  --layers N      layers                                      (16)
  --width N       residual width                              (2048)
  --ff N          width between the two halves of the FFN     (8192)
  --heads N       query heads; width / heads must be even     (32)
  --kv-heads N    key and value heads; must divide heads      (8)
  --vocab N       tokens                                      (32000)
  --context N     trained context length                      (8192)
  --seed N        the same seed gives the same file           (1)
  --untied        an output matrix of its own, not the embedding's";

/// Standard deviation of the weights: that of freshly initialised models.
const SPREAD: f32 = 0.02;
/// How much of a tensor is made at once, bytes, at most.
const PIECE_BYTES_MAX: usize = 1 << 20;

struct Plan {
    out: PathBuf,
    kind: TensorType,
    layers: usize,
    width: usize,
    ff: usize,
    heads: usize,
    kv_heads: usize,
    vocabulary: usize,
    context: usize,
    seed: u64,
    untied: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let plan = match Plan::from_arguments(arguments.into_iter()) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("make-model: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match plan.write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("make-model: {}: {why}", plan.out.display());
            ExitCode::FAILURE
        }
    }
}

impl Plan {
    fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut plan = Self {
            out: PathBuf::new(),
            kind: TensorType::Q4_K,
            layers: 16,
            width: 2048,
            ff: 8192,
            heads: 32,
            kv_heads: 8,
            vocabulary: 32_000,
            context: 8192,
            seed: 1,
            untied: false,
        };
        while let Some(flag) = arguments.next() {
            if flag == "--untied" {
                plan.untied = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
            plan.set(&flag, &value)?;
        }
        plan.check()?;
        Ok(plan)
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        let number =
            || {
                value.parse().ok().filter(|n| (1..=1 << 24).contains(n)).ok_or_else(|| {
                    format!("{flag} {value}: a number from 1 to {} is needed", 1 << 24)
                })
            };
        match flag {
            "--out" => self.out = value.into(),
            "--type" => {
                let named = |kind: &TensorType| kind.to_string().eq_ignore_ascii_case(value);
                let found = TensorType::ALL.into_iter().find(named);
                self.kind = found.ok_or_else(|| format!("there is no type {value}"))?;
            }
            "--layers" => self.layers = number()?,
            "--width" => self.width = number()?,
            "--ff" => self.ff = number()?,
            "--heads" => self.heads = number()?,
            "--kv-heads" => self.kv_heads = number()?,
            "--vocab" => self.vocabulary = number()?,
            "--context" => self.context = number()?,
            "--seed" => {
                self.seed = value.parse().map_err(|_| format!("--seed {value}: not a number"))?;
            }
            _ => return Err(format!("unknown option {flag}")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.out.as_os_str().is_empty() {
            return Err("--out is needed".to_owned());
        }
        if !self.width.is_multiple_of(2 * self.heads) {
            return Err(format!("{} heads do not divide the width {}", self.heads, self.width));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!("{} KV heads do not divide {}", self.kv_heads, self.heads));
        }
        Ok(())
    }

    fn metadata(&self) -> Metadata {
        let whole = |key: &str, n: usize| (key.to_owned(), Value::Unsigned(n as u64));
        let text = |key: &str, text: &str| (key.to_owned(), Value::String(text.to_owned()));
        let real = |key: &str, x: f32| (key.to_owned(), Value::Float(x.into()));
        Metadata::from_pairs([
            text("general.architecture", "llama"),
            text("general.name", &format!("random {} (seed {})", self.kind, self.seed)),
            whole("general.quantization_version", 2),
            whole("llama.block_count", self.layers),
            whole("llama.context_length", self.context),
            whole("llama.embedding_length", self.width),
            whole("llama.feed_forward_length", self.ff),
            whole("llama.attention.head_count", self.heads),
            whole("llama.attention.head_count_kv", self.kv_heads),
            real("llama.attention.layer_norm_rms_epsilon", 1e-5),
            whole("llama.rope.dimension_count", self.width / self.heads),
            real("llama.rope.freq_base", 500_000.0),
            whole("llama.vocab_size", self.vocabulary),
            text("tokenizer.ggml.model", "none"),
        ])
    }

    /// Names and shapes, in the order of use. Vectors are norms.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let kv_width = self.width / self.heads * self.kv_heads;
        let mut list = vec![("token_embd.weight".to_owned(), vec![self.width, self.vocabulary])];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[usize]| {
                list.push((format!("blk.{layer}.{name}.weight"), shape.to_vec()));
            };
            add("attn_norm", &[self.width]);
            add("attn_q", &[self.width, self.width]);
            add("attn_k", &[self.width, kv_width]);
            add("attn_v", &[self.width, kv_width]);
            add("attn_output", &[self.width, self.width]);
            add("ffn_norm", &[self.width]);
            add("ffn_gate", &[self.width, self.ff]);
            add("ffn_up", &[self.width, self.ff]);
            add("ffn_down", &[self.ff, self.width]);
        }
        list.push(("output_norm.weight".to_owned(), vec![self.width]));
        if self.untied {
            list.push(("output.weight".to_owned(), vec![self.width, self.vocabulary]));
        }
        list
    }

    fn write(&self) -> Result<(), WriteError> {
        let tensors = self.tensors();
        let mut outline = Outline::new(self.metadata())?;
        for (name, shape) in &tensors {
            let kind = if shape.len() == 1 { TensorType::F32 } else { self.kind };
            outline.tensor(name, shape, kind)?;
        }
        // Everything has been judged by now, so that a mistake leaves no file behind.
        let mut writer = outline.begin(BufWriter::new(File::create(&self.out)?))?;
        let mut dice = Dice::new(self.seed);
        for (name, shape) in &tensors {
            match shape[..] {
                [length] => write_norm(&mut writer, name, length, &mut dice)?,
                _ => self.write_matrix(&mut writer, name, shape, &mut dice)?,
            }
        }
        writer.finish()?;
        Ok(())
    }

    fn write_matrix<W: std::io::Write>(
        &self,
        writer: &mut Writer<W>,
        name: &str,
        shape: &[usize],
        dice: &mut Dice,
    ) -> Result<(), WriteError> {
        let block = self.kind.block_bytes();
        let mut left = shape.iter().product::<usize>() / self.kind.block_len();
        let mut piece = vec![0; block * left.min(PIECE_BYTES_MAX / block)];
        while left > 0 {
            let blocks = left.min(piece.len() / block);
            let bytes = &mut piece[..blocks * block];
            blocks::fill(bytes, self.kind, SPREAD, dice);
            writer.write(name, bytes)?;
            left -= blocks;
        }
        Ok(())
    }
}

/// Norm weights are near 1.
fn write_norm<W: std::io::Write>(
    writer: &mut Writer<W>,
    name: &str,
    length: usize,
    dice: &mut Dice,
) -> Result<(), WriteError> {
    let weights = (0..length).flat_map(|_| dice.between(0.8, 1.2).to_le_bytes());
    writer.write(name, &weights.collect::<Vec<u8>>())
}
