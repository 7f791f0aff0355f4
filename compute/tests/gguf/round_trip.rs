//! What the writer writes, the reader reads.

use std::io::Write;

use compute::gguf::writer::{Outline, WriteError};
use compute::gguf::{Fault, Gguf, Metadata, TensorType, Value};
use proptest::prelude::*;

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::Unsigned),
        any::<u32>().prop_map(|n| Value::Unsigned(n.into())),
        any::<i64>().prop_map(Value::Signed),
        any::<i16>().prop_map(|n| Value::Signed(n.into())),
        any::<u64>().prop_map(|bits| Value::Float(f64::from_bits(bits))),
        any::<u32>().prop_map(|bits| Value::Float(f32::from_bits(bits).into())),
        any::<bool>().prop_map(Value::Bool),
        ".{0,20}".prop_map(Value::String),
        prop::collection::vec(".{0,8}", 0..9).prop_map(Value::Strings),
        prop::collection::vec(any::<i64>(), 0..9).prop_map(Value::Integers),
        prop::collection::vec(any::<i8>().prop_map(i64::from), 0..9).prop_map(Value::Integers),
        prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..9).prop_map(Value::Floats),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(Value::Bools),
    ]
}

/// Equal bit by bit, so that a NaN equals itself.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Float(x), Value::Float(y)) => x.to_bits() == y.to_bits(),
        (Value::Floats(x), Value::Floats(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits())
        }
        _ => left == right,
    }
}

fn kind() -> impl Strategy<Value = TensorType> {
    prop::sample::select(TensorType::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn metadata_and_tensors_come_back_as_they_were(
        pairs in prop::collection::btree_map("[a-z.]{1,12}", value(), 0..8),
        tensors in prop::collection::btree_map(
            "[a-z.]{1,64}", (kind(), 1usize..4, prop::collection::vec(1usize..4, 0..4)), 0..8),
        alignment in prop::option::of(3u32..10),
        piece in 1usize..100,
        seed in any::<u8>(),
    ) {
        let mut pairs = pairs;
        if let Some(bits) = alignment {
            pairs.insert("general.alignment".to_owned(), Value::Unsigned(1 << bits));
        }
        // Left in, this would make the file one part of several.
        pairs.remove("split.count");
        let mut outline = Outline::new(Metadata::from_pairs(pairs.clone())).unwrap();
        let shape = |kind: &TensorType, blocks: &usize, rest: &[usize]| {
            let mut shape = vec![blocks * kind.block_len()];
            shape.extend(rest);
            shape
        };
        for (name, (kind, blocks, rest)) in &tensors {
            outline.tensor(name, &shape(kind, blocks, &rest[..rest.len().min(3)]), *kind).unwrap();
        }
        let body = |index: usize, kind: &TensorType, blocks: &usize, rest: &[usize]| {
            let len = blocks * rest.iter().product::<usize>() * kind.block_bytes();
            (0..len).map(|n| (n * 31 + index) as u8 ^ seed).collect::<Vec<u8>>()
        };
        let mut writer = outline.begin(Vec::new()).unwrap();
        for (index, (name, (kind, blocks, rest))) in tensors.iter().enumerate() {
            for bytes in body(index, kind, blocks, &rest[..rest.len().min(3)]).chunks(piece) {
                writer.write(name, bytes).unwrap();
            }
        }
        let model = Gguf::from_bytes(writer.finish().unwrap()).unwrap();

        prop_assert_eq!(model.metadata().iter().count(), pairs.len());
        for (key, value) in &pairs {
            prop_assert!(same(model.metadata().get(key).unwrap(), value), "{} {:?}", key, value);
        }
        prop_assert_eq!(model.tensors().count(), tensors.len());
        for (index, (name, (kind, blocks, rest))) in tensors.iter().enumerate() {
            let rest = &rest[..rest.len().min(3)];
            let tensor = model.tensor(name).unwrap();
            prop_assert_eq!(&tensor.shape, &shape(kind, blocks, rest));
            prop_assert_eq!(tensor.kind, *kind);
            prop_assert_eq!(model.bytes(tensor), body(index, kind, blocks, rest));
        }
    }
}

fn outline() -> Outline {
    Outline::new(Metadata::default()).unwrap()
}

#[test]
fn numbers_have_the_types_that_other_readers_expect() {
    let pairs = [
        ("a", Value::Unsigned(7)),
        ("b", Value::Float(f64::from(1e-5f32))),
        ("split.count", Value::Unsigned(1)),
    ];
    let metadata = Metadata::from_pairs(pairs.map(|(key, value)| (key.to_owned(), value)));
    let bytes = Outline::new(metadata).unwrap().begin(Vec::new()).unwrap().finish().unwrap();
    let mut expected = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0".to_vec();
    expected.extend(b"\x01\0\0\0\0\0\0\0a\x04\0\0\0\x07\0\0\0");
    expected.extend(b"\x01\0\0\0\0\0\0\0b\x06\0\0\0\xac\xc5\x27\x37");
    expected.extend(b"\x0b\0\0\0\0\0\0\0split.count\x02\0\0\0\x01\0");
    expected.resize(expected.len().next_multiple_of(32), 0);
    assert_eq!(bytes, expected);
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let fault = |result: Result<(), WriteError>| match result {
        Err(WriteError::Refused(fault)) => fault,
        other => panic!("{other:?}"),
    };
    let key = |len: usize| {
        Outline::new(Metadata::from_pairs([("k".repeat(len), Value::Bool(true))])).map(|_| ())
    };
    assert_eq!(fault(key(0)), Fault::KeyLength { index: 0, len: 0, max: 65_535 });
    assert_eq!(fault(key(65_536)), Fault::KeyLength { index: 0, len: 65_536, max: 65_535 });
    let alignment = ("general.alignment".to_owned(), Value::Unsigned(48));
    let odd = Outline::new(Metadata::from_pairs([alignment])).map(|_| ());
    assert_eq!(fault(odd), Fault::Alignment { alignment: 48, min: 8, max: 65_536 });

    let mut outline = outline();
    outline.tensor("a", &[2], TensorType::F32).unwrap();
    let name = || "a".to_owned();
    let twice = outline.tensor("a", &[2], TensorType::F32);
    assert_eq!(fault(twice), Fault::DuplicateTensor { name: name() });
    let long = outline.tensor(&"n".repeat(65), &[2], TensorType::F32);
    assert_eq!(fault(long), Fault::NameLength { index: 1, len: 65, max: 64 });
    let flat = outline.tensor("a", &[], TensorType::F32);
    assert_eq!(fault(flat), Fault::Dimensions { name: name(), count: 0, max: 4 });
    let empty = outline.tensor("a", &[2, 0], TensorType::F32);
    assert_eq!(fault(empty), Fault::ZeroDimension { name: name(), axis: 1 });
    let kind = TensorType::Q4_0;
    let broken = outline.tensor("a", &[33], kind);
    assert_eq!(fault(broken), Fault::BrokenRow { name: name(), columns: 33, kind, block: 32 });
    let vast = outline.tensor("a", &[usize::MAX, 2], TensorType::F32);
    let shape = vec![usize::MAX as u64, 2];
    assert_eq!(fault(vast), Fault::ShapeOverflow { name: name(), shape });
}

#[test]
fn tensors_must_come_whole_and_in_turn() {
    let mut outline = outline();
    outline.tensor("a", &[2], TensorType::F32).unwrap();
    outline.tensor("b", &[1], TensorType::F32).unwrap();
    let mut writer = outline.begin(Vec::new()).unwrap();

    let early = writer.write("b", &[0; 4]).unwrap_err().to_string();
    assert_eq!(early, "bytes came for tensor \"b\" when it was the turn of \"a\"");
    writer.write("a", &[1; 5]).unwrap();
    let much = writer.write("a", &[1; 4]).unwrap_err().to_string();
    assert_eq!(much, "4 bytes came for tensor \"a\", which has room for 3 more");
    // What was refused has changed nothing.
    writer.write("a", &[1; 3]).unwrap();
    writer.write("b", &[2; 4]).unwrap();
    let late = writer.write("b", &[2; 4]).unwrap_err().to_string();
    assert_eq!(late, "bytes came for tensor \"b\" when all tensors were complete");
    let model = Gguf::from_bytes(writer.finish().unwrap()).unwrap();
    assert_eq!(model.bytes(model.tensor("a").unwrap()), [1; 8]);
    assert_eq!(model.bytes(model.tensor("b").unwrap()), [2; 4]);
}

#[test]
fn a_file_with_bytes_missing_is_not_finished() {
    let mut outline = outline();
    outline.tensor("a", &[2], TensorType::F32).unwrap();
    let mut writer = outline.begin(Vec::new()).unwrap();
    writer.write("a", &[1; 5]).unwrap();
    let missing = writer.finish().unwrap_err().to_string();
    assert_eq!(missing, "tensor \"a\" still lacks 3 bytes");
}

/// A mapped file: the same bytes before and after its pages were let go.
#[test]
fn released_pages_can_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| ((n * 7) >> 3) as u8).collect();
    let mut outline = outline();
    outline.tensor("a", &[100, 3], TensorType::F16).unwrap();
    outline.tensor("b", &[1 << 18], TensorType::F32).unwrap();
    let mut writer = outline.begin(std::fs::File::create(&path).unwrap()).unwrap();
    writer.write("a", &bytes[..600]).unwrap();
    writer.write("b", &bytes).unwrap();
    drop(writer.finish().unwrap());

    let model = Gguf::open(&path).unwrap();
    for _ in 0..2 {
        assert_eq!(model.bytes(model.tensor("a").unwrap()), &bytes[..600]);
        assert!(model.bytes(model.tensor("b").unwrap()) == bytes);
        model.tensors().for_each(|tensor| model.release(tensor));
    }
    assert_eq!(model.file_bytes(), std::fs::metadata(&path).unwrap().len());
    model.check_unchanged().unwrap();

    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"more").unwrap();
    let told = model.check_unchanged().unwrap_err().to_string();
    assert!(told.contains("changed while it was in use"), "{told}");
}

#[test]
fn what_is_not_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let told = Gguf::open(folder.path()).unwrap_err().to_string();
    assert!(told.contains("is not a regular file"), "{told}");
    let told = Gguf::open(&folder.path().join("absent.gguf")).unwrap_err().to_string();
    assert!(told.contains("cannot read") && told.contains("absent.gguf"), "{told}");
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    let told = Gguf::open(&empty).unwrap_err().to_string();
    assert!(told.contains("download it again"), "{told}");
}
