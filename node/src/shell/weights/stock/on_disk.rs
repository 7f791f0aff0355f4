//! The folder of a model that is here in part: its manifest, its record and its files with holes.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use compute::parts::Chunk;
use wire::{Manifest, ManifestId, Word};

use crate::shell::durable;
use crate::shell::weights::error::StoreError;
use crate::shell::weights::plausible;

/// Writes bytes at a place in a file. Tests play a disk that is full.
pub type WriteAt = Arc<dyn Fn(&mut File, u64, &[u8]) -> io::Result<()> + Send + Sync>;

/// What the manifest is called.
const MANIFEST: &str = "manifest";
/// When all files of the store were last changed, as the system is told. Whoever loads a model
/// compares times of change, and must not be startled by chunks of parts that it does not read.
const CHANGED: Duration = Duration::from_secs(1_000_000_000);

/// The usual [`WriteAt`].
pub fn write_at(file: &mut File, at: u64, bytes: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}

/// Makes a folder for a model of which nothing is here. The manifest comes last, so a folder with one
/// has everything.
pub fn create(folder: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    std::fs::create_dir_all(folder).map_err(|cause| disk(folder, cause))?;
    for (path, of) in paths(folder, manifest.files.len()).iter().zip(&manifest.files) {
        let file = File::create(path).map_err(|cause| disk(path, cause))?;
        file.set_len(of.bytes).map_err(|cause| StoreError::of_write(path, of.bytes, cause))?;
        settle(&file);
        file.sync_all().map_err(|cause| disk(path, cause))?;
    }
    let (part, path) = (folder.join("manifest.new"), folder.join(MANIFEST));
    let bytes = wire::encode(manifest);
    let full = |cause| StoreError::of_write(&path, bytes.len() as u64, cause);
    std::fs::write(&part, &bytes).map_err(full)?;
    durable::publish(&part, &path).map_err(full)?;
    let parent = folder.parent().unwrap_or(Path::new("."));
    durable::sync_folder(parent).map_err(|cause| disk(parent, cause))
}

/// The manifest in `folder`, if it is whole, plausible and the one that the folder is named after, and
/// the files have their lengths.
pub fn manifest(folder: &Path) -> Result<Option<Manifest>, StoreError> {
    let path = folder.join(MANIFEST);
    let long = path.metadata().is_ok_and(|found| found.len() > Manifest::BYTES_MAX as u64);
    let bytes = match std::fs::read(&path) {
        _ if long => return Ok(None),
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(disk(&path, cause)),
    };
    let Ok(manifest) = wire::decode::<Manifest>(&bytes) else { return Ok(None) };
    let id = manifest.id();
    let named = folder.file_name().is_some_and(|name| name == name_of(id).as_str());
    let sized = paths(folder, manifest.files.len())
        .iter()
        .zip(&manifest.files)
        .all(|(path, of)| path.metadata().is_ok_and(|found| found.len() == of.bytes));
    let sound = named && sized && plausible::check(id, &manifest).is_ok();
    Ok(sound.then_some(manifest))
}

/// What a model's folder is called.
pub fn name_of(id: ManifestId) -> String {
    id.to_string()
}

/// What the files are called. Names that a stranger gives decide nothing here.
pub fn paths(folder: &Path, count: usize) -> Vec<PathBuf> {
    match count {
        1 => vec![folder.join("model.gguf")],
        _ => (1..=count).map(|n| folder.join(format!("model-{n:05}-of-{count:05}.gguf"))).collect(),
    }
}

/// Removes a model's folder. Its manifest goes first, so what is left after a crash counts as nothing.
pub fn remove(folder: &Path) -> Result<(), StoreError> {
    let gone = |done: io::Result<()>| match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk(folder, error)),
        _ => Ok(()),
    };
    gone(std::fs::remove_file(folder.join(MANIFEST)))?;
    gone(std::fs::remove_dir_all(folder))
}

/// A model's files.
pub struct Files {
    paths: Vec<PathBuf>,
    /// Those that were written to, open for more.
    open: Vec<Option<File>>,
    /// Those of which something may not be on disk.
    dirty: Vec<bool>,
}

impl Files {
    /// At these paths.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let (open, dirty) = (paths.iter().map(|_| None).collect(), vec![false; paths.len()]);
        Self { paths, open, dirty }
    }

    /// Writes a chunk.
    pub fn write(&mut self, write: &WriteAt, at: &Chunk, bytes: &[u8]) -> Result<(), StoreError> {
        let path = &self.paths[at.file];
        let failed = |cause| StoreError::of_write(path, bytes.len() as u64, cause);
        self.dirty[at.file] = true;
        let file = match &mut self.open[at.file] {
            Some(file) => file,
            closed => closed.insert(File::options().write(true).open(path).map_err(failed)?),
        };
        let written = write(file, at.range.start, bytes);
        settle(file);
        written.map_err(failed)
    }

    /// Brings what was written, `bytes` of it, to disk.
    pub fn sync(&mut self, bytes: u64) -> Result<(), StoreError> {
        let each = self.open.iter().zip(&mut self.dirty).zip(&self.paths);
        for ((open, dirty), path) in each {
            if let (true, Some(file)) = (*dirty, open) {
                file.sync_data().map_err(|cause| StoreError::of_write(path, bytes, cause))?;
            }
            *dirty = false;
        }
        Ok(())
    }

    /// Gives the space of `chunks` back to the disk, where the system can.
    pub fn free(&mut self, chunks: &[Chunk]) -> Result<(), StoreError> {
        for at in chunks {
            let path = &self.paths[at.file];
            let file = File::options().write(true).open(path).map_err(|cause| disk(path, cause))?;
            punch(&file, at).map_err(|cause| disk(path, cause))?;
            settle(&file);
        }
        Ok(())
    }
}

/// Whether parts of files can be given back to the disk, or only whole files.
pub const HOLES: bool = cfg!(target_os = "linux");

#[cfg(target_os = "linux")]
fn punch(file: &File, at: &Chunk) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};

    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let len = at.range.end - at.range.start;
    Ok(fallocate(file, flags, at.range.start, len)?)
}

#[cfg(not(target_os = "linux"))]
fn punch(_: &File, _: &Chunk) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// See [`CHANGED`]. Where the system will not have it, loading a part while others arrive has to be
/// tried again, which [`crate::shell::weights::Ready::load`] does.
fn settle(file: &File) {
    let _ = file.set_modified(SystemTime::UNIX_EPOCH + CHANGED);
}

fn disk(path: &Path, cause: io::Error) -> StoreError {
    StoreError::Disk { path: path.into(), cause }
}
