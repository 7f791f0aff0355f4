//! One file for each rule, broken in that rule alone.

use compute::gguf::{Fault, Gguf, GgufError, TensorType};

use crate::allocation::{allowed, peak};
use crate::raw::{
    ARRAY, BOOL, F32, Q4_0, Q4_K, Raw, STRING, U8, U32, U64, array, pair, tensor, text,
};

/// Checks that `raw` is refused for `expected`, cheaply, and with an error fit for a terminal.
fn check(raw: &Raw, expected: Fault) {
    let bytes = raw.bytes();
    let len = bytes.len();
    let (result, held) = peak(|| Gguf::from_bytes(bytes));
    let error = result.expect_err("a broken file was accepted");
    let shown = error.to_string();
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
    assert!(shown.len() < 600, "{shown}");
    assert!(held <= allowed(len), "{held} bytes held for a file of {len}");
    match error {
        GgufError::Refused { fault, .. } => assert_eq!(fault, expected),
        other => panic!("{other:?} where {expected:?} was expected"),
    }
}

fn name(name: &str) -> String {
    name.to_owned()
}

#[test]
fn the_sound_file_is_accepted() {
    for version in [2, 3] {
        let model = Raw { version, ..Raw::sound() }.open().unwrap();
        assert_eq!(model.metadata().str("general.architecture"), Some("llama"));
        assert_eq!(model.metadata().u64("llama.block_count"), Some(2));
        let (a, b) = (model.tensor("a").unwrap(), model.tensor("b").unwrap());
        assert_eq!((&a.shape[..], a.kind), (&[8][..], TensorType::F32));
        assert_eq!((&b.shape[..], b.kind), (&[32, 2][..], TensorType::Q4_0));
        assert_eq!(model.bytes(a), (0..32).collect::<Vec<u8>>());
        assert_eq!(model.bytes(b), (32..68).collect::<Vec<u8>>());
    }
}

#[test]
fn another_magic_is_refused() {
    let raw = Raw { magic: *b"\x1b[2J", ..Raw::sound() };
    check(&raw, Fault::Magic { found: name("\x1b[2J"), hint: "" });
}

#[test]
fn what_people_mistake_for_a_model_is_named() {
    for (magic, hint) in [
        (b"vers", "Git LFS"),
        (b"<!DO", "web page"),
        (b"PK\x03\x04", "PyTorch"),
        (b"tjgg", "old GGML"),
    ] {
        let error = Raw { magic: *magic, ..Raw::sound() }.open().unwrap_err().to_string();
        assert!(error.contains(hint), "{error}");
    }
}

#[test]
fn version_1_is_refused() {
    check(&Raw { version: 1, ..Raw::sound() }, Fault::Version { version: 1 });
}

#[test]
fn versions_yet_to_come_are_refused() {
    check(&Raw { version: 4, ..Raw::sound() }, Fault::Version { version: 4 });
}

#[test]
fn big_endian_is_refused_by_name() {
    let raw = Raw { version: 3u32.swap_bytes(), ..Raw::sound() };
    check(&raw, Fault::BigEndian { version: 3 });
}

#[test]
fn more_tensors_than_any_model_has_are_refused() {
    let raw = Raw { tensors_count: Some(u64::MAX), ..Raw::sound() };
    check(&raw, Fault::TooMany { what: "tensors", count: u64::MAX, max: 65_536 });
}

#[test]
fn more_keys_than_any_model_has_are_refused() {
    let raw = Raw { keys_count: Some(1 << 40), ..Raw::sound() };
    check(&raw, Fault::TooMany { what: "metadata keys", count: 1 << 40, max: 65_536 });
}

#[test]
fn more_tensors_than_the_file_has_room_for_are_refused() {
    let raw = Raw { tensors_count: Some(65_536), ..Raw::sound() };
    let fits = (raw.bytes().len() as u64 - 24) / 33;
    check(&raw, Fault::CountBeyondFile { what: "tensors", count: 65_536, fits });
}

#[test]
fn more_keys_than_the_file_has_room_for_are_refused() {
    let raw = Raw { keys_count: Some(65_536), ..Raw::sound() };
    let fits = (raw.bytes().len() as u64 - 24) / 14;
    check(&raw, Fault::CountBeyondFile { what: "metadata keys", count: 65_536, fits });
}

#[test]
fn an_empty_key_is_refused() {
    let raw = Raw::with_pair(b"", U8, &[0]);
    check(&raw, Fault::KeyLength { index: 2, len: 0, max: 65_535 });
}

#[test]
fn a_key_of_65536_bytes_is_refused() {
    let raw = Raw::with_pair(&[b'k'; 65_536], U8, &[0]);
    check(&raw, Fault::KeyLength { index: 2, len: 65_536, max: 65_535 });
    Raw::with_pair(&[b'k'; 65_535], U8, &[0]).open().unwrap();
}

#[test]
fn a_key_that_is_not_utf8_is_refused() {
    let raw = Raw::with_pair(b"k\xff", U8, &[0]);
    check(&raw, Fault::NotUtf8 { what: "metadata key", name: name("k\u{fffd}") });
}

#[test]
fn a_key_that_occurs_twice_is_refused() {
    let raw = Raw::with_pair(b"general.architecture", U8, &[0]);
    check(&raw, Fault::DuplicateKey { key: name("general.architecture") });
}

#[test]
fn a_long_key_is_cut_where_it_is_shown() {
    let mut raw = Raw::with_pair(&[b'k'; 65_535], U8, &[0]);
    raw.pairs.push(raw.pairs[2].clone());
    check(&raw, Fault::DuplicateKey { key: format!("{}...", "k".repeat(80)) });
}

#[test]
fn an_unknown_value_type_is_refused() {
    let raw = Raw::with_pair(b"k", 13, &[0; 8]);
    check(&raw, Fault::ValueType { key: name("k"), id: 13 });
}

#[test]
fn an_unknown_element_type_is_refused() {
    let raw = Raw::with_pair(b"k", ARRAY, &array(99, 1, &[0; 8]));
    check(&raw, Fault::ValueType { key: name("k"), id: 99 });
}

#[test]
fn an_array_of_arrays_is_refused() {
    let raw = Raw::with_pair(b"k", ARRAY, &array(ARRAY, 1, &array(U8, 1, &[0])));
    check(&raw, Fault::NestedArray { key: name("k") });
}

#[test]
fn a_string_longer_than_the_file_is_refused() {
    let raw = Raw::with_pair(b"k", STRING, &(u64::MAX - 7).to_le_bytes());
    let at = header_len(&raw) - entries_len(&raw);
    let left = raw.bytes().len() as u64 - at;
    check(&raw, Fault::Truncated { what: "a string", at, need: u64::MAX - 7, left });
}

#[test]
fn an_array_longer_than_the_file_is_refused() {
    for (kind, size) in [(U8, 1), (U32, 4), (U64, 8), (STRING, 8)] {
        // Eight times this wraps to a small number.
        let count = (1 << 61) + 1;
        let raw = Raw::with_pair(b"k", ARRAY, &array(kind, count, &[]));
        let at = header_len(&raw) - entries_len(&raw);
        let fits = (raw.bytes().len() as u64 - at) / size;
        check(&raw, Fault::CountBeyondFile { what: "array elements", count, fits });
    }
}

#[test]
fn arrays_longer_than_any_vocabulary_are_refused() {
    let half = vec![0; 1 << 22];
    let mut raw = Raw::sound();
    for key in [b"k", b"l", b"m"] {
        raw.pairs.push(pair(key, ARRAY, &array(U8, 1 << 22, &half)));
    }
    let (what, count, max) = ("array elements", 1 << 22, 1 << 23);
    check(&raw, Fault::TooMany { what, count, max });
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let raw = Raw::with_pair(b"k", STRING, &text(b"\xc3("));
    check(&raw, Fault::NotUtf8 { what: "the text under metadata key", name: name("k") });
}

#[test]
fn a_token_that_is_not_utf8_is_refused() {
    let tokens = [text(b"fine"), text(b"\x80")].concat();
    let raw = Raw::with_pair(b"tokenizer.ggml.tokens", ARRAY, &array(STRING, 2, &tokens));
    let what = "the text under metadata key";
    check(&raw, Fault::NotUtf8 { what, name: name("tokenizer.ggml.tokens") });
}

#[test]
fn a_boolean_of_2_is_refused() {
    check(&Raw::with_pair(b"k", BOOL, &[2]), Fault::BoolByte { key: name("k"), byte: 2 });
    let raw = Raw::with_pair(b"k", ARRAY, &array(BOOL, 2, &[1, 7]));
    check(&raw, Fault::BoolByte { key: name("k"), byte: 7 });
}

#[test]
fn an_element_beyond_63_bits_is_refused() {
    let raw = Raw::with_pair(b"k", ARRAY, &array(U64, 1, &u64::MAX.to_le_bytes()));
    check(&raw, Fault::IntegerRange { key: name("k"), value: u64::MAX });
}

#[test]
fn an_alignment_of_another_type_is_refused() {
    for (kind, value) in [(STRING, text(b"32")), (5, 32i32.to_le_bytes().to_vec())] {
        check(&Raw::with_pair(b"general.alignment", kind, &value), Fault::AlignmentType);
    }
}

#[test]
fn an_odd_alignment_is_refused() {
    for alignment in [0, 1, 4, 24, 96, 1 << 17, u32::MAX] {
        let raw = Raw::with_pair(b"general.alignment", U32, &alignment.to_le_bytes());
        let alignment = alignment.into();
        check(&raw, Fault::Alignment { alignment, min: 8, max: 65_536 });
    }
}

#[test]
fn an_allowed_alignment_is_obeyed() {
    for alignment in [8u32, 16, 64, 65_536] {
        let mut raw = Raw::with_pair(b"general.alignment", U32, &alignment.to_le_bytes());
        raw.alignment = alignment as usize;
        raw.tensors = vec![tensor(b"a", &[8], F32, 0)];
        let model = raw.open().unwrap();
        assert_eq!(model.bytes(model.tensor("a").unwrap()), (0..32).collect::<Vec<u8>>());
    }
}

#[test]
fn a_tensor_without_a_name_is_refused() {
    let raw = Raw::with_tensors(vec![tensor(b"", &[8], F32, 0)]);
    check(&raw, Fault::NameLength { index: 0, len: 0, max: 64 });
}

#[test]
fn a_tensor_name_of_65_bytes_is_refused() {
    let raw = Raw::with_tensors(vec![tensor(&[b'n'; 65], &[8], F32, 0)]);
    check(&raw, Fault::NameLength { index: 0, len: 65, max: 64 });
    Raw::with_tensors(vec![tensor(&[b'n'; 64], &[8], F32, 0)]).open().unwrap();
}

#[test]
fn a_tensor_name_that_is_not_utf8_is_refused() {
    let raw = Raw::with_tensors(vec![tensor(b"\xff", &[8], F32, 0)]);
    check(&raw, Fault::NotUtf8 { what: "tensor name", name: name("\u{fffd}") });
}

#[test]
fn a_tensor_that_occurs_twice_is_refused() {
    let raw = Raw::with_tensors(vec![tensor(b"a", &[8], F32, 0), tensor(b"a", &[8], F32, 32)]);
    check(&raw, Fault::DuplicateTensor { name: name("a") });
}

#[test]
fn no_dimensions_are_refused() {
    let raw = Raw::with_tensors(vec![tensor(b"a", &[], F32, 0), tensor(b"b", &[8], F32, 0)]);
    check(&raw, Fault::Dimensions { name: name("a"), count: 0, max: 4 });
}

#[test]
fn five_dimensions_are_refused() {
    let raw = Raw::with_tensors(vec![tensor(b"a", &[1; 5], F32, 0)]);
    check(&raw, Fault::Dimensions { name: name("a"), count: 5, max: 4 });
    Raw::with_tensors(vec![tensor(b"a", &[1; 4], F32, 0)]).open().unwrap();
}

#[test]
fn a_dimension_of_zero_is_refused() {
    let raw = Raw::with_tensors(vec![tensor(b"a", &[8, 0, 2], F32, 0)]);
    check(&raw, Fault::ZeroDimension { name: name("a"), axis: 1 });
}

#[test]
fn a_shape_whose_product_wraps_is_refused() {
    // The products of the first two wrap to 0 and 8; the third wraps only in bytes; the last is
    // beyond a signed word.
    for shape in [
        vec![1 << 32, 1 << 32],
        vec![8, (1 << 61) + 1],
        vec![1 << 62],
        vec![1 << 61],
        vec![u64::MAX],
    ] {
        let raw = Raw::with_tensors(vec![tensor(b"a", &shape, F32, 0)]);
        check(&raw, Fault::ShapeOverflow { name: name("a"), shape });
    }
}

#[test]
fn an_unread_tensor_type_is_refused_by_name() {
    for (id, expected) in
        [(16, "IQ2_XXS"), (39, "MXFP4"), (4, "Q4_2"), (1 << 31, "type 2147483648")]
    {
        let raw = Raw::with_tensors(vec![tensor(b"a", &[256], id, 0)]);
        let error = raw.open().unwrap_err();
        let GgufError::Refused {
            fault: Fault::UnknownType { name, id: found, label, known }, ..
        } = error
        else {
            panic!("{error:?}")
        };
        assert_eq!((&name[..], found, &label[..]), ("a", id, expected));
        let all = TensorType::ALL.map(|kind| kind.to_string());
        let mut listed: Vec<&str> = known.split(' ').collect();
        listed.sort_unstable_by_key(|kind| all.iter().position(|other| other == kind));
        assert_eq!(listed, all);
    }
}

#[test]
fn rows_that_do_not_fill_blocks_are_refused() {
    let row = |kind, columns, block| Fault::BrokenRow { name: name("a"), kind, columns, block };
    // As many numbers as whole blocks have, but not in each row.
    let raw = Raw::with_tensors(vec![tensor(b"a", &[16, 2], Q4_0, 0)]);
    check(&raw, row(TensorType::Q4_0, 16, 32));
    let raw = Raw::with_tensors(vec![tensor(b"a", &[288], Q4_K, 0)]);
    check(&raw, row(TensorType::Q4_K, 288, 256));
}

#[test]
fn a_tensor_off_the_alignment_is_refused() {
    let raw = Raw::with_tensors(vec![tensor(b"a", &[8], F32, 16)]);
    check(&raw, Fault::Misaligned { name: name("a"), offset: 16, alignment: 32 });
}

#[test]
fn a_tensor_beyond_the_end_is_refused() {
    // One element too many; a begin beyond the end; a begin and an end that would wrap.
    for (columns, offset) in [(9, 64), (8, 96), (8, 1 << 40), (8, u64::MAX - 31)] {
        let raw = Raw::with_tensors(vec![tensor(b"a", &[columns], F32, offset)]);
        let file_len = raw.bytes().len() as u64;
        let begin = (file_len - 96).saturating_add(offset);
        check(&raw, Fault::BeyondEnd { name: name("a"), begin, len: 4 * columns, file_len });
    }
    Raw::with_tensors(vec![tensor(b"a", &[8], F32, 64)]).open().unwrap();
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let shared = Fault::Overlap { first: name("a"), second: name("b") };
    let (long, short) = (tensor(b"a", &[9], F32, 0), tensor(b"b", &[8], F32, 32));
    check(&Raw::with_tensors(vec![long.clone(), short.clone()]), shared.clone());
    // Whatever order the file lists them in.
    check(&Raw::with_tensors(vec![short, long]), shared);
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let mut raw =
        Raw::with_pair(b"k", ARRAY, &array(STRING, 2, &[text(b"x"), text(b"y")].concat()));
    // No padding at the end: every byte counts.
    raw.data.truncate(68);
    let whole = raw.bytes();
    Gguf::from_bytes(whole.clone()).unwrap();
    for len in 0..whole.len() {
        let (result, held) = peak(|| Gguf::from_bytes(whole[..len].to_vec()));
        assert!(held <= allowed(len), "{held} bytes held for a file of {len}");
        let told = result.expect_err("a file cut short was accepted").to_string();
        assert!(told.contains("download it again"), "{told}");
    }
}

#[test]
fn a_header_without_end_is_refused() {
    let max = 128 << 20;
    let raw = Raw::with_pair(b"k", STRING, &text(&vec![b'x'; max]));
    check(&raw, Fault::HeaderTooLong { max: max as u64 });
}

/// Files that take the most memory for their length: many tensors, many keys, many elements.
#[test]
fn memory_stays_in_proportion_to_the_file() {
    let names: Vec<String> = (0..5000).map(|n| format!("{n:x}")).collect();
    let tensors = names.iter().map(|name| tensor(name.as_bytes(), &[1], F32, 0)).collect();
    let pairs = names.iter().map(|name| pair(name.as_bytes(), U8, &[0])).collect();
    let bytes = Raw::with_pair(b"k", ARRAY, &array(U8, 100_000, &[0; 100_000]));
    let strings = Raw::with_pair(b"k", ARRAY, &array(STRING, 10_000, &[0; 80_000]));
    for raw in [Raw::with_tensors(tensors), Raw { pairs, ..Raw::sound() }, bytes, strings] {
        let bytes = raw.bytes();
        let len = bytes.len();
        let (_, held) = peak(|| Gguf::from_bytes(bytes));
        assert!(held <= allowed(len), "{held} bytes held for a file of {len}");
    }
}

/// Bytes before the padding.
fn header_len(raw: &Raw) -> u64 {
    24 + raw.pairs.iter().chain(&raw.tensors).map(|piece| piece.len() as u64).sum::<u64>()
}

/// Bytes of the tensors' entries.
fn entries_len(raw: &Raw) -> u64 {
    raw.tensors.iter().map(|piece| piece.len() as u64).sum()
}
