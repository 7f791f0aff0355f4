//! A tiny llama of random weights that speaks bytes: what `doctor` and the tests compute with.
//!
//! It is always the same file, byte for byte. Its matrices have the weight types that models for
//! the home are made of, so kernels that agree on it agree on what matters.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use compute::gguf::writer::{Outline, WriteError};
use compute::gguf::{Metadata, TensorType, Value};

/// Tokens of its context.
pub const CONTEXT: u64 = 32_768;
/// The id of the token that ends a turn, `<|im_end|>`. Its logit is always 0, and so many others
/// are higher that a greedy answer never ends by itself.
pub const END: u32 = 258;

const WIDTH: usize = 256;
const FEED_FORWARD: usize = 512;
const KV_WIDTH: usize = 128;
const LAYERS: usize = 2;
const VOCABULARY: usize = 259;
/// ChatML, the way SmolLM2 and Qwen have it, with tools the way Hermes and Qwen have them.
const TEMPLATE: &str = "{% if tools %}{{ '<|im_start|>system\n<tools>\n' }}\
     {% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}\
     {{ '</tools><|im_end|>\n' }}{% endif %}\
     {% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' \
     + message['content'] }}{% for call in message.tool_calls or [] %}\
     {{ '<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' \
     + call.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}\
     {{ '<|im_end|>' + '\n' }}{% endfor %}\
     {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Writes the model to `path`.
pub fn write(path: &Path) -> Result<(), WriteError> {
    write_layers(path, LAYERS)
}

/// Writes one with so many layers to `path`.
pub fn write_layers(path: &Path, layers: usize) -> Result<(), WriteError> {
    let mut outline = Outline::new(Metadata::from_pairs(metadata(layers)))?;
    let tensors = tensors(layers);
    for (name, shape, kind) in &tensors {
        outline.tensor(name, shape, *kind)?;
    }
    let mut writer = outline.begin(BufWriter::new(File::create(path)?))?;
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    for (name, shape, kind) in &tensors {
        let rows = shape.get(1).copied().unwrap_or(1);
        for row in 0..rows {
            let mut bytes = dice.row(*kind, shape[0]);
            if name == "output.weight" && row > 255 {
                bytes.fill(0);
            }
            writer.write(name, &bytes)?;
        }
    }
    writer.finish()?;
    Ok(())
}

fn metadata(layers: usize) -> Vec<(String, Value)> {
    let text = |text: &str| Value::String(text.into());
    let number = |n: usize| Value::Unsigned(n as u64);
    let kinds = (0..VOCABULARY).map(|id| if id < 256 { 1 } else { 3 });
    let pairs = [
        ("general.architecture", text("llama")),
        ("general.name", text("Toy")),
        ("llama.context_length", Value::Unsigned(CONTEXT)),
        ("llama.embedding_length", number(WIDTH)),
        ("llama.block_count", number(layers)),
        ("llama.feed_forward_length", number(FEED_FORWARD)),
        ("llama.attention.head_count", number(4)),
        ("llama.attention.head_count_kv", number(2)),
        ("llama.attention.layer_norm_rms_epsilon", Value::Float(1e-5)),
        ("llama.rope.dimension_count", number(64)),
        ("llama.rope.freq_base", Value::Float(10_000.0)),
        ("llama.vocab_size", number(VOCABULARY)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        ("tokenizer.ggml.tokens", Value::Strings(vocabulary())),
        ("tokenizer.ggml.token_type", Value::Integers(kinds.collect())),
        ("tokenizer.ggml.merges", Value::Strings(Vec::new())),
        ("tokenizer.ggml.bos_token_id", number(256)),
        ("tokenizer.ggml.eos_token_id", number(END as usize)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.chat_template", text(TEMPLATE)),
    ];
    pairs.map(|(key, value)| (key.to_string(), value)).into()
}

/// The 256 bytes in the letters that byte-level BPE gives them, then the special tokens. A token's
/// id is its byte.
fn vocabulary() -> Vec<String> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100u32..;
    let mut letter = |byte| if printable(byte) { byte } else { others.next().expect("endless") };
    let letters = (0..256).map(|byte| char::from_u32(letter(byte)).expect("a letter").to_string());
    let mut tokens: Vec<String> = letters.collect();
    tokens.extend(["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(String::from));
    tokens
}

fn tensors(layers: usize) -> Vec<(String, Vec<usize>, TensorType)> {
    use TensorType::{F32, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q8_0};
    let mut all = vec![("token_embd.weight".to_string(), vec![WIDTH, VOCABULARY], Q8_0)];
    for layer in 0..layers {
        // The layers differ in their types, so that both halves of the common ones are computed.
        let kind = |first, second| if layer == 0 { first } else { second };
        let parts = [
            ("attn_norm", vec![WIDTH], F32),
            ("attn_q", vec![WIDTH, WIDTH], kind(Q4_K, Q4_0)),
            ("attn_k", vec![WIDTH, KV_WIDTH], kind(Q4_K, Q8_0)),
            ("attn_v", vec![WIDTH, KV_WIDTH], kind(Q6_K, Q8_0)),
            ("attn_output", vec![WIDTH, WIDTH], kind(Q5_K, Q4_1)),
            ("ffn_norm", vec![WIDTH], F32),
            ("ffn_gate", vec![WIDTH, FEED_FORWARD], kind(Q4_K, Q4_0)),
            ("ffn_up", vec![WIDTH, FEED_FORWARD], kind(Q4_K, Q4_1)),
            ("ffn_down", vec![FEED_FORWARD, WIDTH], kind(Q6_K, Q8_0)),
        ];
        all.extend(
            parts.map(|(name, shape, kind)| (format!("blk.{layer}.{name}.weight"), shape, kind)),
        );
    }
    all.push(("output_norm.weight".into(), vec![WIDTH], F32));
    all.push(("output.weight".into(), vec![WIDTH, VOCABULARY], Q8_0));
    all
}

/// Marsaglia's xorshift.
struct Dice(u64);

impl Dice {
    fn byte(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u8
    }

    /// A row of `columns` weights: ones where they are gains, about 0.07 in size elsewhere.
    fn row(&mut self, kind: TensorType, columns: usize) -> Vec<u8> {
        let blocks = columns / kind.block_len();
        if kind == TensorType::F32 {
            return 1.0f32.to_le_bytes().repeat(columns);
        }
        let mut row: Vec<u8> = (0..blocks * kind.block_bytes()).map(|_| self.byte()).collect();
        for block in row.chunks_exact_mut(kind.block_bytes()) {
            // Where a block keeps its half-precision scales, and scales of a sensible size.
            let scales: &[(usize, i32)] = match kind {
                TensorType::Q8_0 => &[(0, -10)],
                TensorType::Q4_0 => &[(0, -6)],
                TensorType::Q4_1 => &[(0, -6), (2, -4)],
                TensorType::Q4_K => &[(0, -13), (2, -11)],
                TensorType::Q5_K => &[(0, -14), (2, -11)],
                TensorType::Q6_K => &[(208, -14)],
                other => unreachable!("the toy has no {other:?}"),
            };
            for (at, exponent) in scales {
                let bits = ((exponent + 15) as u16) << 10;
                block[*at..at + 2].copy_from_slice(&bits.to_le_bytes());
            }
        }
        row
    }
}
