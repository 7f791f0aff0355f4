//! The bytes of files, shared out among parts.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use compute::blueprint::Blueprint;
use compute::engine::{Ends, LoadError, Part};
use compute::gguf::writer::Outline;
use compute::gguf::{Gguf, Metadata, TensorType, Value};
use compute::parts::{CHUNK_BYTES_MAX, Chunk, FilePart, FileParts};

use crate::given::{file, files, part, try_load, whole};

/// What every layout must hold; returns how many chunks there are.
fn check(path: &Path) -> usize {
    let layout = FileParts::read(path).unwrap();
    let model = Gguf::open(path).unwrap();
    let mut all: Vec<Chunk> = Vec::new();
    for part in layout.all() {
        let chunks: Vec<Chunk> = layout.chunks(part).collect();
        let places: Vec<_> = chunks.iter().map(|c| (c.file, c.range.start)).collect();
        assert!(places.is_sorted(), "{path:?} {part:?}");
        let bytes: u64 = chunks.iter().map(|c| c.range.end - c.range.start).sum();
        assert_eq!(bytes, layout.bytes(part), "{path:?} {part:?}");
        all.extend(chunks);
    }
    for Chunk { file, range } in &all {
        let bytes = range.end - range.start;
        assert!(bytes > 0 && bytes <= CHUNK_BYTES_MAX);
        let inside = |at: u64| range.start < at && at < range.end;
        let own = model.tensors().filter(|tensor| tensor.part == *file);
        for tensor in own {
            assert!(!inside(tensor.offset as u64), "{path:?}: a chunk crosses {}", tensor.name);
        }
    }
    all.sort_by_key(|chunk| (chunk.file, chunk.range.start));
    for (number, of) in layout.files().iter().enumerate() {
        let mut at = 0;
        for chunk in all.iter().filter(|chunk| chunk.file == number) {
            assert_eq!(chunk.range.start, at, "{path:?}: each byte once");
            at = chunk.range.end;
        }
        assert_eq!(at, of.bytes);
        assert!(path.with_file_name(&of.name).is_file());
    }
    all.len()
}

/// Files as long as those of `from`, in `folder`, with holes but for `parts`.
fn sparse(from: &Path, folder: &Path, parts: impl Iterator<Item = FilePart>) -> PathBuf {
    let layout = FileParts::read(from).unwrap();
    let mut pairs: Vec<(File, File)> = layout
        .files()
        .iter()
        .map(|of| {
            let to = File::create(folder.join(&of.name)).unwrap();
            to.set_len(of.bytes).unwrap();
            (File::open(from.with_file_name(&of.name)).unwrap(), to)
        })
        .collect();
    for part in parts {
        for Chunk { file, range } in layout.chunks(part) {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            let (from, to) = &mut pairs[file];
            from.seek(SeekFrom::Start(range.start)).unwrap();
            from.read_exact(&mut bytes).unwrap();
            to.seek(SeekFrom::Start(range.start)).unwrap();
            to.write_all(&bytes).unwrap();
        }
    }
    folder.join(from.file_name().unwrap())
}

/// `from`, written again as a model of three files, of which the first has no tensors.
fn split(from: &Path, folder: &Path) -> PathBuf {
    let whole = Gguf::open(from).unwrap();
    let tensors: Vec<_> = whole.tensors().collect();
    let (second, third) = tensors.split_at(tensors.len() / 2);
    let path = |number: u64| folder.join(format!("model-{:05}-of-00003.gguf", number + 1));
    for (number, own) in (0..).zip([&[][..], second, third]) {
        let about = [("split.no", number), ("split.count", 3)];
        let about = about.map(|(key, value)| (key.to_owned(), Value::Unsigned(value)));
        let first = whole.metadata().iter().filter(|_| number == 0);
        let first = first.map(|(key, value)| (key.to_owned(), value.clone()));
        let mut outline = Outline::new(Metadata::from_pairs(first.chain(about))).unwrap();
        for tensor in own {
            outline.tensor(&tensor.name, &tensor.shape, tensor.kind).unwrap();
        }
        let mut writer = outline.begin(File::create(path(number)).unwrap()).unwrap();
        for tensor in own {
            writer.write(&tensor.name, whole.bytes(tensor)).unwrap();
        }
        writer.finish().unwrap();
    }
    path(0)
}

#[test]
fn every_byte_belongs_to_one_part_and_no_chunk_crosses_a_tensor() {
    for path in files() {
        check(&path);
    }
    let folder = tempfile::tempdir().unwrap();
    let first = split(&file("qwen3-Q8_0"), folder.path());
    check(&first);
    let layout = FileParts::read(&first).unwrap();
    let names: Vec<&str> = layout.files().iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, [1, 2, 3].map(|n| format!("model-{n:05}-of-00003.gguf")));
    // Every file has a header.
    let heads: Vec<usize> = layout.chunks(FilePart::Head).map(|chunk| chunk.file).collect();
    assert_eq!(heads, [0, 1, 2]);
}

#[test]
fn holes_but_for_a_part_load_as_the_part_of_the_whole_file() {
    for name in ["llama3-ropefreqs-Q4_K_M", "qwen2-Q8_0", "gemma3-Q4_K_M", "split"] {
        let folder = tempfile::tempdir().unwrap();
        let path = match name {
            "split" => split(&file("qwen3-Q8_0"), folder.path()),
            _ => file(name),
        };
        let model = whole(&path);
        for half in 0..model.halves() {
            let ends = [Ends::Here, Ends::Elsewhere][half % 2];
            let halves = half..model.halves().min(half + 2);
            let own = Part { halves: halves.clone(), ends };
            let room = tempfile::tempdir().unwrap();
            let holes = sparse(&path, room.path(), FileParts::needed(&own));
            assert_eq!(FileParts::read(&holes).unwrap(), FileParts::read(&path).unwrap());
            let loaded = part(&holes, 1, halves.clone(), ends);
            let mut wanted = model.embed(&[3, 1, 4, 1, 5]).unwrap();
            let mut rows = wanted.clone();
            model.stage(halves.clone(), 5).feed(&mut wanted).unwrap();
            loaded.stage(halves.clone(), 5).feed(&mut rows).unwrap();
            assert!(rows == wanted, "{name} {own:?}");
            if ends == Ends::Here {
                let logits = |model: &compute::engine::Model| {
                    let mut found = Vec::new();
                    model.logits_of(rows.view(), &mut |_, row| found.extend(row.to_vec())).unwrap();
                    found
                };
                assert!(logits(&loaded) == logits(&model), "{name} {own:?}");
            }
        }
    }
}

/// A model of eight thousand million weights, as whoever has fetched its header alone sees it.
#[test]
fn a_header_is_enough_for_layout_and_blueprint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    let (width, ff, kv, layers) = (4096, 14_336, 1024, 32);
    let text = |s: &str| Value::String(s.to_owned());
    let pairs = [
        ("general.architecture", text("llama")),
        ("llama.block_count", Value::Unsigned(layers)),
        ("llama.embedding_length", Value::Unsigned(width)),
        ("llama.feed_forward_length", Value::Unsigned(ff)),
        ("llama.attention.head_count", Value::Unsigned(32)),
        ("llama.attention.head_count_kv", Value::Unsigned(8)),
        ("llama.attention.layer_norm_rms_epsilon", Value::Float(1e-5)),
        ("llama.context_length", Value::Unsigned(8192)),
    ];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value));
    let mut outline = Outline::new(Metadata::from_pairs(pairs)).unwrap();
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![width, 128_256]),
        ("output.weight".to_owned(), vec![width, 128_256]),
        ("output_norm.weight".to_owned(), vec![width]),
        ("rope_freqs.weight".to_owned(), vec![64]),
    ];
    for l in 0..layers {
        for (name, shape) in [
            ("attn_norm", vec![width]),
            ("attn_q", vec![width, width]),
            ("attn_k", vec![width, kv]),
            ("attn_v", vec![width, kv]),
            ("attn_output", vec![width, width]),
            ("ffn_norm", vec![width]),
            ("ffn_gate", vec![width, ff]),
            ("ffn_up", vec![width, ff]),
            ("ffn_down", vec![ff, width]),
        ] {
            tensors.push((format!("blk.{l}.{name}.weight"), shape));
        }
    }
    let mut data = 0u64;
    for (name, shape) in &tensors {
        let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let kind = if shape.len() == 1 { TensorType::F32 } else { TensorType::Q4_K };
        let numbers: usize = shape.iter().product();
        data += (numbers / kind.block_len() * kind.block_bytes()).next_multiple_of(32) as u64;
        outline.tensor(name, &shape, kind).unwrap();
    }
    let mut file = File::create(&path).unwrap();
    // The writer is let go before any weight is written: what stands in the file is the header.
    outline.begin(&mut file).unwrap();
    file.flush().unwrap();
    let header = file.metadata().unwrap().len();
    file.set_len(header + data).unwrap();

    let blueprint = Blueprint::read(&path).unwrap();
    assert_eq!((blueprint.name.as_str(), blueprint.halves), ("large", 64));
    let macs: u64 = blueprint.macs(&blueprint.whole());
    assert_eq!(macs, 7_504_658_432);
    assert_eq!(blueprint.kv_bytes_per_position, 8 * (128 + 128 + 6));
    assert!(check(&path) > 4000);
    let layout = FileParts::read(&path).unwrap();
    assert_eq!(layout.bytes(FilePart::Head), header + 64 * 4);
    assert_eq!(layout.bytes(FilePart::Half(64)), 0);
    // Weights that are holes are zeros; RoPE's factors must not be.
    let error = try_load(&path, 1, Some(Part { halves: 0..1, ends: Ends::Elsewhere })).unwrap_err();
    assert!(matches!(error, LoadError::Arch(_)), "{error}");
}
