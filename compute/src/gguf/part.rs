//! One file's bytes, mapped or owned.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use memmap2::{Mmap, MmapOptions};

use super::error::GgufError;

/// Pages are no smaller than this on any system here. Where they are larger, the system widens
/// what is released to whole pages, which costs a neighbour one more read from the page cache.
#[cfg(unix)]
const PAGE_BYTES: usize = 4096;

/// One file of a model.
#[derive(Debug)]
pub(super) struct Part {
    /// For errors.
    pub path: String,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Mapped { map: Mmap, file: File, modified: Option<SystemTime> },
    Owned(Vec<u8>),
}

impl Part {
    /// Maps the file at `path`.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let name = path.display().to_string();
        let failed = |source| GgufError::Io { path: name.clone(), source };
        // Asked before opening: opening a pipe would wait for someone to write to it.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(GgufError::NotAFile { path: name });
        }
        let file = File::open(path).map_err(failed)?;
        let source = map(file).map_err(failed)?;
        let part = Self { path: name, source };
        part.unchanged()?;
        Ok(part)
    }

    /// Takes bytes that are in memory already.
    pub fn owned(path: String, bytes: Vec<u8>) -> Self {
        Self { path, source: Source::Owned(bytes) }
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.source {
            Source::Mapped { map, .. } => map,
            Source::Owned(bytes) => bytes,
        }
    }

    /// Checks that the file has the length and time of change that it had when it was mapped.
    pub fn unchanged(&self) -> Result<(), GgufError> {
        let Source::Mapped { map, file, modified } = &self.source else { return Ok(()) };
        let now =
            file.metadata().map_err(|source| GgufError::Io { path: self.path.clone(), source })?;
        if now.len() == map.len() as u64 && now.modified().ok() == *modified {
            return Ok(());
        }
        Err(GgufError::Changed { path: self.path.clone() })
    }

    /// Lets go of the pages that lie wholly inside `offset..offset + len`.
    pub fn release(&self, offset: usize, len: usize) {
        #[cfg(unix)]
        if let Source::Mapped { map, .. } = &self.source {
            let begin = offset.next_multiple_of(PAGE_BYTES);
            let end = (offset + len) / PAGE_BYTES * PAGE_BYTES;
            if begin < end && end <= map.len() {
                // SAFETY: the map is shared and read-only, so a page that is dropped is read from
                // the file again when it is next touched, with the same bytes; slices into it
                // stay good.
                let advised = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        begin,
                        end - begin,
                    )
                };
                // Advice that is not taken costs memory, never the answer.
                let _ = advised;
            }
        }
        #[cfg(not(unix))]
        let _ = (offset, len);
    }
}

fn map(file: File) -> io::Result<Source> {
    let stat = file.metadata()?;
    let len = usize::try_from(stat.len())
        .map_err(|_| io::Error::other("the file is larger than this machine can address"))?;
    if len == 0 {
        // An empty map is refused by some systems; the reader says what is wrong with it.
        return Ok(Source::Owned(Vec::new()));
    }
    // SAFETY: a map is unsound where the file changes below it: a slice that Rust takes for
    // constant would change, and touching a page beyond a file cut short ends the process
    // (SIGBUS). No system offers a map that is safe from that, so it is kept from happening.
    // A download is written beside the file and renamed over it, which leaves the mapped file as it
    // was. A file of which only parts are here is written in place, but only where it has holes: in
    // parts that are not held yet, and so not loaded from this map. The length and the time of
    // change are compared after mapping, and again by `Gguf::check_unchanged`, which loaders call
    // before they trust what they copied. All that is computed from the bytes is total on every
    // bit pattern, so a change that is made in spite of this gives wrong numbers and no more.
    let map = unsafe { MmapOptions::new().len(len).map(&file)? };
    Ok(Source::Mapped { map, file, modified: stat.modified().ok() })
}
