//! Files that another library wrote.

use std::fs;
use std::path::{Path, PathBuf};

use compute::gguf::{Fault, Gguf, GgufError, SplitFault, TensorType, Value};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf")
}

#[test]
fn every_type_of_value_is_read() {
    for file in ["whole-v2.gguf", "whole-v3.gguf"] {
        let model = Gguf::open(&folder().join("format").join(file)).unwrap();
        let string = |text: &str| Value::String(text.to_owned());
        let strings = ["a", "", "日本"].map(str::to_owned).to_vec();
        let expected = [
            ("general.alignment", Value::Unsigned(64)),
            ("general.architecture", string("llama")),
            ("test.bool", Value::Bool(true)),
            ("test.bools", Value::Bools(vec![true, false, true])),
            ("test.bytes", Value::Integers((250..256).collect())),
            ("test.f32", Value::Float(f64::from(0.1f32))),
            ("test.f64", Value::Float(0.1)),
            ("test.floats", Value::Floats(vec![0.5, -0.25])),
            ("test.i16", Value::Signed(-30_000)),
            ("test.i32", Value::Signed(-2_000_000_000)),
            ("test.i64", Value::Signed(-(1 << 62))),
            ("test.i8", Value::Signed(-100)),
            ("test.integers", Value::Integers(vec![1, -2, 3])),
            ("test.string", string("Grüße, 世界")),
            ("test.strings", Value::Strings(strings)),
            ("test.u16", Value::Unsigned(60_000)),
            ("test.u32", Value::Unsigned(4_000_000_000)),
            ("test.u64", Value::Unsigned((1 << 63) + 1)),
            ("test.u8", Value::Unsigned(200)),
        ];
        let found: Vec<(&str, Value)> =
            model.metadata().iter().map(|(key, value)| (key, value.clone())).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn tensors_are_found_where_they_are() {
    let model = Gguf::open(&folder().join("format/whole-v3.gguf")).unwrap();
    let half = |x: u16| half::f16::from_f32(x.into()).to_le_bytes();
    let expected: [(&str, &[usize], TensorType, Vec<u8>); 3] = [
        ("blocks", &[32, 2], TensorType::Q8_0, (0..68).collect()),
        ("matrix", &[3, 2], TensorType::F16, (0..6).flat_map(half).collect()),
        ("vector", &[3], TensorType::F32, [0.0f32, 1.0, 2.0].map(f32::to_le_bytes).concat()),
    ];
    assert_eq!(model.tensors().count(), expected.len());
    for (tensor, (name, shape, kind, bytes)) in model.tensors().zip(expected) {
        assert_eq!((&tensor.name[..], &tensor.shape[..], tensor.kind), (name, shape, kind));
        assert_eq!(model.bytes(tensor), bytes);
        assert_eq!(tensor.offset % 64, 0);
    }
}

#[test]
fn a_split_whose_first_part_is_metadata_only_is_read() {
    let model = Gguf::open(&folder().join("format/split-00001-of-00003.gguf")).unwrap();
    assert_eq!(model.metadata().str("general.architecture"), Some("llama"));
    for (name, x) in [("a", 0.0f32), ("b", 1.0)] {
        assert_eq!(model.bytes(model.tensor(name).unwrap()), x.to_le_bytes().repeat(4));
    }
}

#[test]
fn a_big_endian_file_is_refused_by_name() {
    match Gguf::open(&folder().join("format/big-endian.gguf")) {
        Err(GgufError::Refused { fault, .. }) => {
            assert_eq!(fault, Fault::BigEndian { version: 3 });
        }
        other => panic!("{other:?}"),
    }
}

/// All files, those included that tests elsewhere compute with.
#[test]
fn every_file_opens_or_says_why_not() {
    let (mut opened, mut folders) = (0, vec![folder()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "gguf") {
                opened += usize::from(opens(&path));
            }
        }
    }
    assert!(opened >= 3, "only {opened} files were found");
}

/// Opens a file and holds its size against its tensors'; `false` for those meant to be refused.
fn opens(path: &Path) -> bool {
    match Gguf::open(path) {
        Ok(model) => {
            let held: usize = model.tensors().map(|tensor| model.bytes(tensor).len()).sum();
            assert!((1..model.file_bytes()).contains(&(held as u64)), "{}", path.display());
            true
        }
        Err(GgufError::Split { fault: SplitFault::NotFirst { first, .. }, .. }) => {
            assert!(path.with_file_name(first).exists(), "{}", path.display());
            false
        }
        Err(error) => {
            assert!(path.ends_with("format/big-endian.gguf"), "{error}");
            false
        }
    }
}
