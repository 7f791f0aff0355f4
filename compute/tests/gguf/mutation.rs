//! Sound files damaged at random: an answer or an error, never a panic, never much memory.

use compute::gguf::writer::Outline;
use compute::gguf::{Gguf, Metadata, TensorType, Value};
use proptest::prelude::*;

use crate::allocation::{allowed, peak};
use crate::raw::{ARRAY, STRING, array, pair, tensor, text};

/// A small model-like file with every type of value and of tensor.
fn model() -> Vec<u8> {
    let strings = (0..20).map(|n| format!("token {n}")).collect();
    let pairs = [
        ("general.architecture", Value::String("llama".into())),
        ("general.alignment", Value::Unsigned(32)),
        ("llama.block_count", Value::Unsigned(2)),
        ("llama.rope.freq_base", Value::Float(10_000.0)),
        ("split.count", Value::Unsigned(1)),
        ("split.tensors.count", Value::Signed(15)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.ggml.bools", Value::Bools(vec![true, false])),
        ("tokenizer.ggml.scores", Value::Floats(vec![0.5; 20])),
        ("tokenizer.ggml.token_type", Value::Integers((0..20).collect())),
        ("tokenizer.ggml.tokens", Value::Strings(strings)),
        ("wide", Value::Signed(i64::MIN)),
        ("wider", Value::Unsigned(u64::MAX)),
        ("widest", Value::Float(0.1)),
    ];
    let metadata = Metadata::from_pairs(pairs.map(|(key, value)| (key.to_owned(), value)));
    let mut outline = Outline::new(metadata).unwrap();
    for kind in TensorType::ALL {
        outline.tensor(&format!("blk.0.{kind}"), &[256, 2], kind).unwrap();
    }
    let mut writer = outline.begin(Vec::new()).unwrap();
    for kind in TensorType::ALL {
        let len = 512 / kind.block_len() * kind.block_bytes();
        writer.write(&format!("blk.0.{kind}"), &vec![7; len]).unwrap();
    }
    writer.finish().unwrap()
}

/// Reads `bytes` and uses everything that is offered.
fn check(bytes: Vec<u8>) {
    let len = bytes.len();
    let (result, held) = peak(|| Gguf::from_bytes(bytes));
    assert!(held <= allowed(len), "{held} bytes held for a file of {len}");
    let model = match result {
        Ok(model) => model,
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.chars().any(char::is_control), "{shown:?}");
            return;
        }
    };
    assert_eq!(model.file_bytes(), len as u64);
    let mut places = Vec::new();
    for tensor in model.tensors() {
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(tensor.len, elements / tensor.kind.block_len() * tensor.kind.block_bytes());
        assert_eq!(model.bytes(tensor).len(), tensor.len);
        model.release(tensor);
        places.push((tensor.offset, tensor.len));
    }
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
}

/// Numbers on which arithmetic goes wrong.
fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u32..64).prop_map(|bit| u64::MAX >> bit),
        (0u64..400).prop_map(|near| u64::MAX - near),
        0u64..400,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2048,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn bytes_changed_at_random_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        in_header in any::<bool>(),
    ) {
        let mut bytes = model();
        let reach = if in_header { 1600.min(bytes.len()) } else { bytes.len() };
        for (at, byte) in changes {
            bytes[at.index(reach)] = byte;
        }
        check(bytes);
    }

    #[test]
    fn numbers_changed_at_random_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), extreme(), 1usize..=8), 1..4),
    ) {
        let mut bytes = model();
        for (at, number, width) in changes {
            let at = at.index(1600.min(bytes.len() - 8));
            bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
        }
        check(bytes);
    }

    #[test]
    fn bytes_left_out_or_put_in_do_no_harm(
        cut in any::<prop::sample::Index>(),
        len in 0usize..64,
        put in prop::collection::vec(any::<u8>(), 0..64),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = model();
        let at = cut.index(bytes.len());
        let until = (at + len).min(bytes.len());
        bytes.splice(at..until, put);
        bytes.truncate(end.index(bytes.len()) + 1);
        check(bytes);
    }

    #[test]
    fn noise_after_a_sound_beginning_does_no_harm(
        counts in (0u64..40, 0u64..40),
        noise in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let begin = [&b"GGUF\x03\0\0\0"[..], &counts.0.to_le_bytes(), &counts.1.to_le_bytes()];
        check([&begin.concat()[..], &noise].concat());
    }

    /// The grammar kept, the values wild: gets further in than noise does.
    #[test]
    fn wild_values_in_a_sound_grammar_do_no_harm(
        pairs in prop::collection::vec((any::<u8>(), 0u32..14, extreme(), extreme()), 0..6),
        tensors in prop::collection::vec(
            (any::<u8>(), prop::collection::vec(prop_oneof![4 => 1u64..600, 1 => extreme()], 0..6),
             0u32..32, prop_oneof![3 => (0u64..64).prop_map(|n| 32 * n), 1 => extreme()]),
            0..6,
        ),
        data_len in 0usize..4000,
    ) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((tensors.len() as u64).to_le_bytes());
        bytes.extend((pairs.len() as u64).to_le_bytes());
        for (key, kind, low, high) in pairs {
            let value = match kind {
                STRING => text(&low.to_le_bytes()),
                ARRAY => array(low as u32 % 14, high, &low.to_le_bytes()),
                _ => low.to_le_bytes()[..[1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8, 8][kind as usize]].to_vec(),
            };
            bytes.extend(pair(&[key & 0x7f], kind, &value));
        }
        for (name, shape, kind, offset) in tensors {
            bytes.extend(tensor(&[name & 0x7f], &shape, kind, offset));
        }
        bytes.resize(bytes.len().next_multiple_of(32) + data_len, 0x5a);
        check(bytes);
    }
}
