//! A file that is on its way: how much of it is here, and of which version.
//!
//! Beside the bytes, in `FILE.part`, lies `FILE.note`: where they are from. Bytes are continued
//! only if the note says that they belong to what is wanted now.
//!
//! **Invariant:** a part is kept whatever happens, until it is whole or known to be wrong. A kill
//! at any moment costs no more than what was not yet written.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::digest::Digest;

/// Bytes read at once while those that are here are hashed.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of a note; ours have some hundreds.
const NOTE_BYTES_MAX: u64 = 1 << 16;

/// Where bytes are from, and what they should come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// URL or path, without what changes from one request to the next.
    pub from: String,
    /// The version, as the server names it.
    pub tag: Option<String>,
    /// Bytes of the whole file, once they are known.
    pub whole: Option<u64>,
    /// What the whole comes to, if somebody said so.
    pub sha256: Option<Digest>,
}

impl Note {
    /// Whether bytes with this note can be continued as those of `wanted`. Without a digest that
    /// would tell in the end, the server must have named the version.
    fn continues(&self, wanted: &Self) -> bool {
        self.from == wanted.from
            && self.sha256 == wanted.sha256
            && (wanted.whole.is_none() || self.whole.is_none() || wanted.whole == self.whole)
            && (self.sha256.is_some() || self.tag.is_some())
    }
}

/// A file that is on its way.
#[derive(Debug)]
pub struct Part {
    path: PathBuf,
    note_path: PathBuf,
    file: File,
    hasher: Sha256,
    head: Vec<u8>,
    len: u64,
    /// Bytes that the whole was promised to have before anything came.
    promised: Option<u64>,
    note: Note,
}

impl Part {
    /// Opens what is here of `name` in `folder`, or begins anew. `seen` hears how many bytes have
    /// been read again.
    pub fn open(
        folder: &Path,
        name: &str,
        wanted: Note,
        seen: &mut dyn FnMut(u64),
    ) -> io::Result<Self> {
        let path = folder.join(format!("{name}.part"));
        let note_path = folder.join(format!("{name}.note"));
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        let stored = read_note(&note_path).filter(|stored| stored.continues(&wanted));
        let mut part = Self {
            path,
            note_path,
            file,
            hasher: Sha256::new(),
            head: Vec::new(),
            len: 0,
            promised: wanted.whole,
            note: wanted,
        };
        match stored {
            Some(stored) => {
                part.note.tag = stored.tag;
                part.note.whole = part.note.whole.or(stored.whole);
                part.read_again(seen)?;
            }
            None => part.restart()?,
        }
        Ok(part)
    }

    fn read_again(&mut self, seen: &mut dyn FnMut(u64)) -> io::Result<()> {
        if self.note.whole.is_some_and(|whole| self.file.metadata().is_ok_and(|m| m.len() > whole))
        {
            return self.restart();
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match self.file.read(&mut buffer)? {
                0 => return Ok(()),
                count => self.hear(&buffer[..count]),
            }
            seen(self.len);
        }
    }

    /// Throws away what is here.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = Sha256::new();
        self.head.clear();
        self.len = 0;
        (self.note.tag, self.note.whole) = (None, self.promised);
        self.write_note()
    }

    /// Writes down what the server says about the file, before any byte of it.
    pub fn learn(&mut self, whole: Option<u64>, tag: Option<String>) -> io::Result<()> {
        let known = Note {
            whole: self.note.whole.or(whole),
            tag: tag.or(self.note.tag.take()),
            ..self.note.clone()
        };
        self.note = known;
        self.write_note()
    }

    /// Adds `bytes`.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hear(bytes);
        Ok(())
    }

    fn hear(&mut self, bytes: &[u8]) {
        let missing = 4usize.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..missing]);
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
    }

    /// Bytes that are here.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of the whole file, if they are known.
    pub fn whole(&self) -> Option<u64> {
        self.note.whole
    }

    /// The version, as its server names it.
    pub fn tag(&self) -> Option<&str> {
        self.note.tag.as_deref()
    }

    /// Whether bytes can be added to those that are here.
    pub fn can_continue(&self) -> bool {
        self.len > 0 && self.note.continues(&self.note)
    }

    /// Whether the first bytes can be those of a GGUF file, as far as they are here.
    pub fn may_be_gguf(&self) -> bool {
        b"GGUF".starts_with(&self.head)
    }

    /// What the bytes come to.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.hasher)
    }

    /// Gives the whole file its name.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        drop(self.file);
        std::fs::rename(&self.path, self.path.with_extension(""))
    }

    /// Throws the part away for good.
    pub fn discard(self) -> io::Result<()> {
        drop(self.file);
        std::fs::remove_file(&self.path)?;
        std::fs::remove_file(&self.note_path)
    }

    fn write_note(&self) -> io::Result<()> {
        let beside = self.note_path.with_extension("note-new");
        std::fs::write(&beside, serde_json::to_vec(&self.note)?)?;
        std::fs::rename(&beside, &self.note_path)
    }
}

/// Whether the whole file `name` is in `folder` already, and is what `wanted` asks for.
pub fn is_whole(folder: &Path, name: &str, wanted: &Note) -> bool {
    let stored = read_note(&folder.join(format!("{name}.note")));
    folder.join(name).is_file() && stored.is_some_and(|stored| stored.continues(wanted))
}

/// Bytes of `name` that lie in `folder`, whole or in part.
pub fn bytes_here(folder: &Path, name: &str) -> u64 {
    let len = |name: &str| folder.join(name).metadata().map_or(0, |metadata| metadata.len());
    len(name).max(len(&format!("{name}.part")))
}

/// A note; `None` where there is none that can be read.
fn read_note(path: &Path) -> Option<Note> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(NOTE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(tag: Option<&str>, sha256: Option<Digest>) -> Note {
        Note { from: "x".into(), tag: tag.map(str::to_string), whole: Some(9), sha256 }
    }

    fn open(folder: &Path, note: Note) -> Part {
        Part::open(folder, "a.gguf", note, &mut |_| {}).unwrap()
    }

    #[test]
    fn what_is_here_is_continued_if_it_is_of_what_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let digest = Digest::parse(&"a".repeat(64));
        let mut part = open(folder.path(), note(None, digest));
        part.append(b"GGUF").unwrap();
        drop(part);
        let mut part = open(folder.path(), note(None, digest));
        assert!(part.len() == 4 && part.can_continue() && part.may_be_gguf());
        part.append(b"-more").unwrap();
        let mut whole = Sha256::new();
        whole.update(b"GGUF-more");
        assert_eq!(part.digest(), Digest::of(&whole));
        drop(part);
        for other in [
            note(None, None),
            Note { from: "y".into(), ..note(None, digest) },
            Note { whole: Some(8), ..note(None, digest) },
        ] {
            assert_eq!(open(folder.path(), other).len(), 0);
        }
    }

    #[test]
    fn without_digest_and_version_a_part_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let mut part = open(folder.path(), note(None, None));
        part.append(b"GGUF").unwrap();
        assert!(!part.can_continue());
        drop(part);
        let mut part = open(folder.path(), note(None, None));
        assert_eq!(part.len(), 0);
        part.learn(Some(9), Some("\"v1\"".into())).unwrap();
        part.append(b"GG").unwrap();
        drop(part);
        let part = open(folder.path(), note(None, None));
        assert_eq!((part.len(), part.tag()), (2, Some("\"v1\"")));
        assert!(part.may_be_gguf());
    }

    #[test]
    fn a_part_that_is_longer_than_the_whole_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let digest = Digest::parse(&"a".repeat(64));
        let mut part = open(folder.path(), note(None, digest));
        part.append(b"GGUF-and-too-much").unwrap();
        drop(part);
        assert_eq!(open(folder.path(), note(None, digest)).len(), 0);
        let torn = folder.path().join("a.gguf.note");
        std::fs::write(torn, b"{\"from").unwrap();
        assert_eq!(open(folder.path(), note(None, digest)).len(), 0);
    }
}
