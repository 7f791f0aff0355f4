//! Models in several files.

use std::fs;
use std::path::{Path, PathBuf};

use compute::gguf::writer::Outline;
use compute::gguf::{Gguf, GgufError, Metadata, SplitFault, TensorType, Value};
use tempfile::TempDir;

/// One part: its number from 0, how many it says there are, how many tensors, and those it has.
struct Part<'a> {
    number: u64,
    count: u64,
    tensors_count: i64,
    tensors: &'a [(&'a str, f32)],
}

fn bytes(part: &Part<'_>) -> Vec<u8> {
    let pairs = [
        ("split.no", Value::Unsigned(part.number)),
        ("split.count", Value::Unsigned(part.count)),
        ("split.tensors.count", Value::Signed(part.tensors_count)),
        ("general.name", Value::String(format!("part {}", part.number))),
    ];
    let metadata = Metadata::from_pairs(pairs.map(|(key, value)| (key.to_owned(), value)));
    let mut outline = Outline::new(metadata).unwrap();
    for (name, _) in part.tensors {
        outline.tensor(name, &[1], TensorType::F32).unwrap();
    }
    let mut writer = outline.begin(Vec::new()).unwrap();
    for (name, x) in part.tensors {
        writer.write(name, &x.to_le_bytes()).unwrap();
    }
    writer.finish().unwrap()
}

fn path(folder: &TempDir, number: u64) -> PathBuf {
    folder.path().join(format!("model-q4-{:05}-of-00003.gguf", number + 1))
}

/// Three files; the first has metadata only.
fn sound() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let parts: [&[(&str, f32)]; 3] = [&[], &[("a", 1.0), ("b", 2.0)], &[("c", 3.0)]];
    for (number, tensors) in (0..).zip(parts) {
        put(&folder, number, &Part { number, count: 3, tensors_count: 3, tensors });
    }
    folder
}

fn put(folder: &TempDir, number: u64, part: &Part<'_>) {
    fs::write(path(folder, number), bytes(part)).unwrap();
}

fn fault(path: &Path) -> SplitFault {
    match Gguf::open(path) {
        Err(GgufError::Split { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_parts_make_one_model() {
    let folder = sound();
    let model = Gguf::open(&path(&folder, 0)).unwrap();
    assert_eq!(model.parts_count(), 3);
    assert_eq!(model.metadata().str("general.name"), Some("part 0"));
    for (name, part, x) in [("a", 1, 1.0f32), ("b", 1, 2.0), ("c", 2, 3.0)] {
        let tensor = model.tensor(name).unwrap();
        assert_eq!((tensor.part, model.bytes(tensor)), (part, &x.to_le_bytes()[..]));
    }
    let on_disk: u64 = (0..3).map(|n| fs::metadata(path(&folder, n)).unwrap().len()).sum();
    assert_eq!(model.file_bytes(), on_disk);
}

#[test]
fn a_missing_part_is_named() {
    let folder = sound();
    fs::remove_file(path(&folder, 2)).unwrap();
    let missing = path(&folder, 2).display().to_string();
    let expected = SplitFault::Missing { number: 3, count: 3, missing };
    assert_eq!(fault(&path(&folder, 0)), expected);
}

#[test]
fn a_broken_part_is_named() {
    let folder = sound();
    fs::write(path(&folder, 1), b"GGUF").unwrap();
    match Gguf::open(&path(&folder, 0)) {
        Err(GgufError::Refused { path: named, .. }) => {
            assert_eq!(named, path(&folder, 1).display().to_string());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_part_than_the_first_sends_one_to_the_first() {
    let folder = sound();
    let first = "model-q4-00001-of-00003.gguf".to_owned();
    let expected = SplitFault::NotFirst { number: 2, count: 3, first };
    assert_eq!(fault(&path(&folder, 1)), expected);
}

#[test]
fn a_renamed_part_is_refused() {
    let folder = sound();
    let renamed = folder.path().join("model.gguf");
    fs::rename(path(&folder, 0), &renamed).unwrap();
    let ending = "-00001-of-00003.gguf".to_owned();
    assert_eq!(fault(&renamed), SplitFault::Name { count: 3, ending });

    let renamed = folder.path().join("second.gguf");
    fs::rename(path(&folder, 1), &renamed).unwrap();
    let first = "whose name ends in -00001-of-00003.gguf".to_owned();
    assert_eq!(fault(&renamed), SplitFault::NotFirst { number: 2, count: 3, first });
}

#[test]
fn a_part_in_the_wrong_place_is_refused() {
    let folder = sound();
    fs::copy(path(&folder, 2), path(&folder, 1)).unwrap();
    let (part, key) = (path(&folder, 1).display().to_string(), "split.no");
    let expected = SplitFault::Disagrees { part, key, found: "2".to_owned(), expected: 1 };
    assert_eq!(fault(&path(&folder, 0)), expected);
}

#[test]
fn a_part_of_another_model_is_refused() {
    let folder = sound();
    let tensors: &[(&str, f32)] = &[("c", 3.0)];
    put(&folder, 2, &Part { number: 2, count: 4, tensors_count: 3, tensors });
    let (part, key) = (path(&folder, 2).display().to_string(), "split.count");
    let expected = SplitFault::Disagrees { part, key, found: "4".to_owned(), expected: 3 };
    assert_eq!(fault(&path(&folder, 0)), expected);
}

#[test]
fn a_tensor_too_few_is_refused() {
    let folder = sound();
    put(&folder, 2, &Part { number: 2, count: 3, tensors_count: 3, tensors: &[] });
    let expected = SplitFault::TensorCount { expected: 3, found: 2 };
    assert_eq!(fault(&path(&folder, 0)), expected);
}

#[test]
fn a_tensor_in_two_parts_is_refused() {
    let folder = sound();
    let tensors: &[(&str, f32)] = &[("a", 3.0)];
    put(&folder, 2, &Part { number: 2, count: 3, tensors_count: 3, tensors });
    let expected = SplitFault::DuplicateTensor { name: "a".to_owned() };
    assert_eq!(fault(&path(&folder, 0)), expected);
}

#[test]
fn more_parts_than_any_model_has_are_refused() {
    let folder = sound();
    put(&folder, 0, &Part { number: 0, count: 513, tensors_count: 0, tensors: &[] });
    assert_eq!(fault(&path(&folder, 0)), SplitFault::TooMany { count: 513, max: 512 });
}

#[test]
fn a_part_in_memory_has_no_siblings() {
    let part = bytes(&Part { number: 0, count: 2, tensors_count: 0, tensors: &[] });
    assert!(matches!(
        Gguf::from_bytes(part),
        Err(GgufError::Split { fault: SplitFault::Name { count: 2, .. }, .. })
    ));
}

#[test]
fn one_part_is_a_whole_model() {
    let part = Part { number: 0, count: 1, tensors_count: 1, tensors: &[("a", 1.0)] };
    assert_eq!(Gguf::from_bytes(bytes(&part)).unwrap().parts_count(), 1);
}
