//! What a model's files are to a network: they are read once, and each chunk's digest is taken.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use compute::blueprint::Blueprint;
use compute::engine::LoadError;
use compute::gguf::{Gguf, GgufError};
use compute::parts::{CHUNK_BYTES_MAX, Chunk, FilePart, FileParts};
use thiserror::Error;
use wire::{Malformed, Manifest, Word, Work};

use super::kept::Kept;
use super::tree::{self, Leaf, Tree};
use crate::shell::{library, machine};

const _: () = assert!(wire::CHUNK == CHUNK_BYTES_MAX, "nodes agree on what a chunk is");

/// The longest name that a manifest may have, bytes.
const NAME_MAX: usize = 128;

/// A model's files, as a network knows them.
#[derive(Debug)]
pub struct Survey {
    /// What is told to others.
    pub manifest: Manifest,
    /// The files, the first one first.
    pub files: Vec<PathBuf>,
    /// Where the parts lie in them.
    pub layout: FileParts,
    /// Each part's chunks, by [`part_number`].
    pub trees: Vec<Tree>,
}

/// Why a file could not be surveyed.
#[derive(Debug, Error)]
pub enum SurveyError {
    /// It is no model that can be read.
    #[error("{path} cannot be given to others")]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: Box<LoadError>,
    },
    /// It changed while it was read.
    #[error("{path} changed while it was read; try again when nobody writes to it")]
    Changed {
        /// Where.
        path: PathBuf,
        /// What changed.
        #[source]
        cause: Box<GgufError>,
    },
    /// The disk failed.
    #[error("{path} cannot be read at {at}; check the disk")]
    Disk {
        /// Where.
        path: PathBuf,
        /// From which byte on.
        at: u64,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The model is beyond what nodes tell each other of.
    #[error("{path} has something that no manifest can say; it can only be used here")]
    Unsayable {
        /// Where.
        path: PathBuf,
        /// What.
        #[source]
        cause: Malformed,
    },
}

/// The manifest of the model whose first file is at `path`. Whoever has the same file under the
/// same name gets the same.
///
/// # Errors
/// See [`SurveyError`].
pub fn manifest(path: &Path) -> Result<Manifest, SurveyError> {
    Ok(survey(path)?.manifest)
}

/// Reads the whole model whose first file is at `path`, with a thread for each core.
///
/// # Errors
/// See [`SurveyError`].
pub fn survey(path: &Path) -> Result<Survey, SurveyError> {
    let outline = Outline::read(path)?;
    let trees = hash_all(&outline.files, &outline.layout)?;
    outline.finish(path, trees)
}

/// As [`survey`], but what an earlier survey kept in `folder` is used if the files have the sizes and
/// times of change that they had then. Whatever is wrong with what was kept, the files are read.
///
/// # Errors
/// See [`SurveyError`].
pub fn survey_with(path: &Path, folder: &Path) -> Result<Survey, SurveyError> {
    let outline = Outline::read(path)?;
    let entry = Kept::new(folder, &outline.files);
    let counts = outline.layout.all().map(|part| outline.layout.chunks(part).count());
    if let Some(trees) = entry.read(&counts.collect::<Vec<_>>()) {
        return outline.finish(path, trees);
    }
    let trees = hash_all(&outline.files, &outline.layout)?;
    let survey = outline.finish(path, trees)?;
    // Without it the next start takes longer, and that is all.
    if let Err(error) = entry.write(&survey.trees) {
        tracing::warn!("what was learnt of {} cannot be kept: {error}", path.display());
    }
    Ok(survey)
}

/// What headers alone say.
struct Outline {
    file: Gguf,
    files: Vec<PathBuf>,
    layout: FileParts,
    plan: Blueprint,
}

impl Outline {
    fn read(path: &Path) -> Result<Self, SurveyError> {
        let unreadable = |cause: LoadError| SurveyError::Unreadable {
            path: path.into(),
            cause: Box::new(cause),
        };
        let file = Gguf::open(path).map_err(|cause| unreadable(cause.into()))?;
        let layout = FileParts::of(&file).map_err(unreadable)?;
        let plan = Blueprint::of(&file, name(path)).map_err(unreadable)?;
        let files = file.files().map(|(path, _)| path.to_path_buf()).collect();
        Ok(Self { file, files, layout, plan })
    }

    fn finish(self, path: &Path, trees: Vec<Tree>) -> Result<Survey, SurveyError> {
        let changed = |cause| SurveyError::Changed { path: path.into(), cause: Box::new(cause) };
        self.file.check_unchanged().map_err(changed)?;
        let manifest = self.describe(|part| trees[part_number(part) as usize].root().to_vec());
        let unsayable = |cause| SurveyError::Unsayable { path: path.into(), cause };
        manifest.check().map_err(unsayable)?;
        Ok(Survey { manifest, files: self.files, layout: self.layout, trees })
    }

    /// The manifest of these files, if parts have these roots.
    fn describe(&self, root: impl Fn(FilePart) -> Vec<u8>) -> Manifest {
        let (layout, plan) = (&self.layout, &self.plan);
        let part = |part: FilePart, work: Option<Work>| {
            let chunks = layout.chunks(part).count() as u32;
            wire::Part { root: root(part), chunks, bytes: layout.bytes(part), work }
        };
        let costs = plan.half_bytes.iter().zip(&plan.half_macs);
        let halves = costs.enumerate().map(|(half, (&memory, &macs))| {
            part(FilePart::Half(half), Some(Work { memory, macs }))
        });
        let ends = Work { memory: plan.ends_bytes, macs: plan.ends_macs };
        let headers = header_bytes(&self.file);
        let files = layout.files().iter().zip(headers);
        let files = files.map(|(of, header_bytes)| wire::File { bytes: of.bytes, header_bytes });
        Manifest {
            name: plan.name.clone(),
            architecture: plan.architecture.clone(),
            class: compute::numeric::CLASS.into(),
            width: plan.width as u32,
            context: u32::try_from(plan.context_length).unwrap_or(u32::MAX),
            files: files.collect(),
            header: Some(part(FilePart::Head, None)),
            ends: Some(part(FilePart::Ends, Some(ends))),
            halves: halves.collect(),
            kv_bytes: u32::try_from(plan.kv_bytes_per_position).unwrap_or(u32::MAX),
        }
    }
}

/// Where the parts of the model at `path` lie, if its headers bear out all that `manifest` says;
/// `None` if they do not. Roots and the name are taken on trust.
///
/// # Errors
/// See [`SurveyError`].
pub fn borne_out(path: &Path, manifest: &Manifest) -> Result<Option<FileParts>, SurveyError> {
    let outline = Outline::read(path)?;
    let root = |part| told(manifest, part).map(|told| told.root.clone()).unwrap_or_default();
    let own = Manifest { name: manifest.name.clone(), ..outline.describe(root) };
    Ok((own == *manifest).then_some(outline.layout))
}

/// A part's number among a manifest's parts, as [`wire::lane::ChunkAt`] has it.
pub fn part_number(part: FilePart) -> u32 {
    match part {
        FilePart::Head => 0,
        FilePart::Ends => 1,
        FilePart::Half(half) => 2 + half as u32,
    }
}

/// The part with this number.
pub fn part_of(number: u32) -> FilePart {
    match number {
        0 => FilePart::Head,
        1 => FilePart::Ends,
        more => FilePart::Half(more as usize - 2),
    }
}

/// What `manifest` says of `part`; `None` where it has no such part.
pub fn told(manifest: &Manifest, part: FilePart) -> Option<&wire::Part> {
    match part {
        FilePart::Head => manifest.header.as_ref(),
        FilePart::Ends => manifest.ends.as_ref(),
        FilePart::Half(half) => manifest.halves.get(half),
    }
}

/// Bytes before the first tensor of each file.
fn header_bytes(file: &Gguf) -> Vec<u64> {
    let sizes = file.files().map(|(_, bytes)| bytes);
    let first = |number: usize| {
        let own = file.tensors().filter(move |tensor| tensor.part == number);
        own.map(|tensor| tensor.offset as u64).min()
    };
    sizes.enumerate().map(|(number, bytes)| first(number).unwrap_or(bytes)).collect()
}

/// The file's name without its ending, as far as a manifest can hold it.
fn name(path: &Path) -> String {
    let plain = library::name(path).replace(char::is_control, "");
    let end = (0..=NAME_MAX.min(plain.len())).rev().find(|&end| plain.is_char_boundary(end));
    plain[..end.unwrap_or(0)].to_owned()
}

/// The leaves of all parts, by number.
fn hash_all(files: &[PathBuf], layout: &FileParts) -> Result<Vec<Tree>, SurveyError> {
    let parts: Vec<Vec<Chunk>> = layout.all().map(|part| layout.chunks(part).collect()).collect();
    let mut leaves: Vec<Vec<Leaf>> = parts.iter().map(|own| vec![[0; 32]; own.len()]).collect();
    // In the order of the disk.
    let mut chunks: Vec<(&Chunk, &mut Leaf)> =
        parts.iter().flatten().zip(leaves.iter_mut().flatten()).collect();
    chunks.sort_by_key(|(chunk, _)| (chunk.file, chunk.range.start));
    let threads = machine::cores().max(1);
    let batch = (chunks.len().div_ceil(threads * BATCHES_PER_THREAD)).max(1);
    let batches: Vec<Mutex<&mut [(&Chunk, &mut Leaf)]>> =
        chunks.chunks_mut(batch).map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), SurveyError> {
        let mut reader = Reader::new(files);
        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut batch = batch.lock().unwrap_or_else(PoisonError::into_inner);
            for (chunk, leaf) in batch.iter_mut() {
                **leaf = tree::leaf(reader.read(chunk)?);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let joined = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.fold(own, Result::and)
    })?;
    Ok(leaves.into_iter().map(Tree::new).collect())
}

/// Each thread takes so many turns, so that all end at about the same time.
const BATCHES_PER_THREAD: usize = 16;

/// Reads chunks of a model's files.
#[derive(Debug)]
pub struct Reader<'a> {
    paths: &'a [PathBuf],
    /// The file that was read last, which is usually the next, too.
    open: Option<(usize, File)>,
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// Of these files.
    pub fn new(paths: &'a [PathBuf]) -> Self {
        Self { paths, open: None, buffer: Vec::new() }
    }

    /// The bytes of `chunk`, until the next are read.
    ///
    /// # Errors
    /// The disk's, or that the file is shorter.
    pub fn read(&mut self, chunk: &Chunk) -> Result<&[u8], SurveyError> {
        let path = &self.paths[chunk.file];
        let at = chunk.range.start;
        let disk = |cause| SurveyError::Disk { path: path.clone(), at, cause };
        if self.open.as_ref().is_none_or(|(file, _)| *file != chunk.file) {
            self.open = Some((chunk.file, File::open(path).map_err(disk)?));
        }
        let (_, file) = self.open.as_mut().expect("it was opened above");
        self.buffer.resize((chunk.range.end - at) as usize, 0);
        file.seek(SeekFrom::Start(at)).map_err(disk)?;
        file.read_exact(&mut self.buffer).map_err(disk)?;
        Ok(&self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf").join(name)
    }

    #[test]
    fn the_same_file_has_the_same_manifest_everywhere_and_always() {
        let own = manifest(&fixture("llama3-ropefreqs-Q4_K_M.gguf")).unwrap();
        let room = tempfile::tempdir().unwrap();
        let copy = room.path().join("llama3-ropefreqs-Q4_K_M.gguf");
        std::fs::copy(fixture("llama3-ropefreqs-Q4_K_M.gguf"), &copy).unwrap();
        assert_eq!(manifest(&copy).unwrap().id(), own.id());
        assert_eq!(
            own.id().to_string(),
            "179b689823a885c5a3d845f58b9a4b4fd4e12f3d4dcc509bd2506f150c27458d"
        );
    }

    #[test]
    fn a_manifest_says_what_the_file_holds() {
        for entry in std::fs::read_dir(fixture("")).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|ending| ending != "gguf") {
                continue;
            }
            let Survey { manifest, layout, .. } = survey(&path).unwrap();
            let bytes = layout.all().map(|part| told(&manifest, part).unwrap().bytes);
            assert_eq!(bytes.sum::<u64>(), path.metadata().unwrap().len(), "{path:?}");
            assert_eq!(wire::decode::<Manifest>(&wire::encode(&manifest)).unwrap(), manifest);
            assert_eq!(manifest.name, library::name(&path));
            assert!(manifest.files[0].header_bytes <= manifest.header.as_ref().unwrap().bytes);
            assert!(manifest.work(manifest.all()).memory > 0 && manifest.kv_bytes > 0);
        }
    }

    #[test]
    fn a_byte_that_changes_changes_the_root_of_its_part_alone() {
        let room = tempfile::tempdir().unwrap();
        let copy = room.path().join("llama-Q8_0.gguf");
        std::fs::copy(fixture("llama-Q8_0.gguf"), &copy).unwrap();
        let before = survey(&copy).unwrap();
        let chunk = before.layout.chunks(FilePart::Half(1)).next().unwrap();
        let mut bytes = std::fs::read(&copy).unwrap();
        bytes[chunk.range.start as usize] ^= 1;
        std::fs::write(&copy, bytes).unwrap();
        let after = manifest(&copy).unwrap();
        for part in before.layout.all() {
            let same =
                told(&before.manifest, part).unwrap().root == told(&after, part).unwrap().root;
            assert_eq!(same, part != FilePart::Half(1), "{part:?}");
        }
    }

    #[test]
    fn what_was_kept_is_used_only_while_the_file_is_the_same() {
        let room = tempfile::tempdir().unwrap();
        let copy = room.path().join("llama-Q8_0.gguf");
        std::fs::copy(fixture("llama-Q8_0.gguf"), &copy).unwrap();
        let first = survey_with(&copy, room.path()).unwrap();
        let again = survey_with(&copy, room.path()).unwrap();
        assert_eq!(again.manifest, first.manifest);
        // The same size and time of change, so that only what was kept can say this.
        let file = File::options().write(true).open(&copy).unwrap();
        let changed = file.metadata().unwrap().modified().unwrap();
        let chunk = first.layout.chunks(FilePart::Half(1)).next().unwrap();
        let mut bytes = std::fs::read(&copy).unwrap();
        bytes[chunk.range.start as usize] ^= 1;
        std::fs::write(&copy, bytes).unwrap();
        file.set_modified(changed).unwrap();
        assert_eq!(survey_with(&copy, room.path()).unwrap().manifest, first.manifest);
        file.set_modified(changed + std::time::Duration::from_secs(1)).unwrap();
        let after = survey_with(&copy, room.path()).unwrap().manifest;
        assert_eq!(after, manifest(&copy).unwrap());
        assert_ne!(after, first.manifest);
    }

    #[test]
    fn a_manifest_is_borne_out_by_its_own_files_alone() {
        let path = fixture("llama-Q8_0.gguf");
        let own = manifest(&path).unwrap();
        assert!(borne_out(&path, &own).unwrap().is_some());
        let lies: [fn(&mut Manifest); 6] = [
            |m| m.halves[1].chunks += 1,
            |m| m.halves[1].bytes -= 1,
            |m| m.halves[0].work = Some(Work { memory: 1, macs: 1 }),
            |m| m.kv_bytes += 1,
            |m| m.files[0].header_bytes += 1,
            |m| m.class.push('x'),
        ];
        for lie in lies {
            let mut lied = own.clone();
            lie(&mut lied);
            assert!(borne_out(&path, &lied).unwrap().is_none());
        }
    }

    #[test]
    fn a_long_name_is_cut_between_letters() {
        let long = format!("{}.gguf", "ä".repeat(100));
        assert_eq!(name(Path::new(&long)), "ä".repeat(64));
        assert_eq!(name(Path::new("a\u{7}b.gguf")), "ab");
    }

    #[test]
    fn numbers_of_parts_are_those_that_nodes_use() {
        let parts = [FilePart::Head, FilePart::Ends, FilePart::Half(0), FilePart::Half(9)];
        assert_eq!(parts.map(part_number), [0, 1, 2, 11]);
        assert_eq!([0, 1, 2, 11].map(part_of), parts);
    }
}
