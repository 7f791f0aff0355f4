//! What lies outside a part is never looked at, whatever the file has there.

use std::path::Path;

use compute::blueprint::Blueprint;
use compute::engine::{Ends, LoadError, Part};
use compute::gguf::Gguf;
use compute::numeric::block::BlockVec;

use crate::given::{Dice, bits, files, part, try_load, whole};

/// The half-block that a tensor belongs to; `None` for what the model has once.
fn half_of(tensor: &str) -> Option<usize> {
    let (layer, kind) = tensor.strip_prefix("blk.")?.split_once('.')?;
    let attention = kind.starts_with("attn_") || kind.starts_with("post_attention");
    Some(2 * layer.parse::<usize>().unwrap() + usize::from(!attention))
}

/// The bytes of a file in which everything outside `part` is 0xFF: every float is not a number.
fn spoilt(path: &Path, part: &Part) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    for tensor in Gguf::open(path).unwrap().tensors() {
        let kept = match half_of(&tensor.name) {
            Some(half) => part.halves.contains(&half),
            None if tensor.name == "rope_freqs.weight" => true,
            None => part.ends == Ends::Here,
        };
        if !kept {
            bytes[tensor.offset..][..tensor.len].fill(0xff);
        }
    }
    bytes
}

#[test]
fn bytes_outside_a_part_are_never_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut dice = Dice(11);
    for path in files() {
        let halves = Blueprint::read(&path).unwrap().halves;
        let model = whole(&path);
        let mut parts: Vec<(usize, usize)> = (0..halves).map(|half| (half, half + 1)).collect();
        parts.extend([(0, 0), (halves, halves), (0, halves), (1, halves - 1)]);
        for (i, (start, end)) in parts.into_iter().enumerate() {
            let ends = [Ends::Here, Ends::Elsewhere][dice.below(2)];
            let own = Part { halves: start..end, ends };
            let file = folder.path().join("spoilt.gguf");
            std::fs::write(&file, spoilt(&path, &own)).unwrap();
            assert_eq!(Blueprint::read(&file).unwrap().half_bytes.len(), halves);
            let loaded = part(&file, 1 + i % 2, start..end, ends);
            let mut rows = model.embed(&[1, 2, 3]).unwrap();
            let mut wanted = rows.clone();
            model.stage(start..end, 3).feed(&mut wanted).unwrap();
            loaded.stage(start..end, 3).feed(&mut rows).unwrap();
            assert!(rows == wanted, "{path:?} {own:?}");
            if ends == Ends::Here {
                assert!(loaded.embed(&[1, 2, 3]).unwrap() == model.embed(&[1, 2, 3]).unwrap());
                assert_eq!(logits(&loaded, &rows), logits(&model, &rows), "{path:?} {own:?}");
            }
            if (start, end) != (0, halves) {
                let error = try_load(&file, 1, None).unwrap_err();
                assert!(matches!(error, LoadError::NotFinite { .. }), "{path:?} {own:?}: {error}");
            }
        }
    }
}

fn logits(model: &compute::engine::Model, rows: &BlockVec) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    model.logits_of(rows.view(), &mut |_, row| found.push(bits(row))).unwrap();
    found
}
