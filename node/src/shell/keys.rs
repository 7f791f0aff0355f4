//! API keys at rest: who may use this node, in a file that does not hold the keys themselves.
//!
//! [`add`] makes a key, gives it out once, and keeps its hash; [`Keys::load`] reads the file, and
//! [`Keys::find`] says whose key somebody shows. A key is 256 random bits, so nobody can guess
//! one from its hash, and neither salt nor a slow hash would add anything: those protect secrets
//! that people think up.
//!
//! **Invariant:** the text of a key is on no disk: it is returned by [`add`] and forgotten.
//!
//! **Invariant:** a file that is damaged, or that other users may write, opens no door and is not
//! written over.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::durable;

/// What every key begins with, so that people and scanners for leaked secrets know what it is.
const PREFIX: &str = "cad-";
/// Random bytes of a key.
const SECRET_BYTES: usize = 32;
/// Keys in one file: more than one node can serve, few enough to compare with each request.
const KEYS_MAX: usize = 4096;
/// Bytes of the file: what [`KEYS_MAX`] entries with the longest names take, and room for notes.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// Bytes of a name.
const NAME_BYTES_MAX: usize = 64;
/// Bytes of what somebody shows as a key; ours are shorter, and hashing takes time.
const SHOWN_BYTES_MAX: usize = 256;
/// What the file begins with.
const HEADER: &str = "\
# API keys of cadencia: names and BLAKE3 hashes, not the keys themselves.
# Written by `cadencia keys`; a running node reads it when it starts.
";

/// Why keys cannot be read or changed.
#[derive(Debug, Error)]
pub enum KeysError {
    /// The file is there and cannot be read.
    #[error("cannot read the API keys in {path}; see who owns it and what its mode is")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others than its owner may write the file.
    #[error(
        "other users may write {path} (mode {mode:03o}) and so let themselves in: \
         look through its entries, then `chmod 600` it"
    )]
    OthersWrite {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file is larger than any that `add` writes.
    #[error("{path} is larger than {max} bytes, so it holds something else than API keys")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bound, bytes.
        max: u64,
    },
    /// The file is no list of keys.
    #[error(
        "{path} is damaged: {message}; mend it, or move it away and give out new keys with \
         `cadencia keys add`"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where, and what is wrong.
        message: String,
    },
    /// The file is full.
    #[error("{path} holds {max} keys, and more are not kept: revoke some first")]
    Full {
        /// The file.
        path: PathBuf,
        /// The bound.
        max: usize,
    },
    /// A name that is none.
    #[error(
        "{name:?} is no name for a key: 1 to {max} letters, digits and . _ - @ are wanted",
        max = NAME_BYTES_MAX
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error("there is a key named {name:?} already; revoke it first, or choose another name")]
    Taken {
        /// The name.
        name: String,
    },
    /// Nobody has that name.
    #[error("no key is named {name:?}; `cadencia keys list` shows those there are")]
    Unknown {
        /// The name.
        name: String,
    },
    /// Somebody else changes the file at this moment.
    #[error("another `cadencia keys` is changing {path}; try again")]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write the API keys to {path}; nothing was changed")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A key, without the key.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Whose it is; unique in its file.
    pub name: String,
    /// When it was made, Unix seconds.
    pub created: u64,
    hash: blake3::Hash,
}

/// The keys of one file.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    entries: Vec<Entry>,
}

impl Keys {
    /// Reads the file at `path`; one that is not there holds no keys. Warns in the log if users
    /// other than its owner may read it.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, is larger than 2 MiB, holds more than 4096 keys, or may
    /// be written by others than its owner.
    pub fn load(path: &Path) -> Result<Self, KeysError> {
        match read(path)? {
            Some(text) => parse(path, &text),
            None => Ok(Self::default()),
        }
    }

    /// Whose key `presented` is. Hashes are compared, all of them, and each in constant time: how
    /// long it takes tells nothing about the keys.
    pub fn find(&self, presented: &[u8]) -> Option<&str> {
        if presented.len() > SHOWN_BYTES_MAX {
            return None;
        }
        let shown = blake3::hash(presented);
        let mut found = None;
        for entry in &self.entries {
            if entry.hash == shown {
                found = Some(entry.name.as_str());
            }
        }
        found
    }

    /// All keys, in the order in which they were made.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many there are, at most 4096.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Makes a key for `name` from 32 random bytes at Unix time `now` (seconds), and writes its hash
/// to `path`. Returns the key, which nobody can find out again.
///
/// # Errors
/// If the name is none or taken, the file is full, or cannot be read or written.
pub fn add(
    path: &Path,
    name: &str,
    now: u64,
    random: [u8; SECRET_BYTES],
) -> Result<String, KeysError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-@".contains(&b);
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(allowed) {
        return Err(KeysError::Name { name: name.chars().take(NAME_BYTES_MAX).collect() });
    }
    let _lock = lock(path)?;
    let mut keys = Keys::load(path)?;
    if keys.entries.iter().any(|entry| entry.name == name) {
        return Err(KeysError::Taken { name: name.into() });
    }
    if keys.len() >= KEYS_MAX {
        return Err(KeysError::Full { path: path.into(), max: KEYS_MAX });
    }
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let key = format!("{PREFIX}{digits}");
    keys.entries.push(Entry {
        name: name.into(),
        created: now,
        hash: blake3::hash(key.as_bytes()),
    });
    write(path, &keys).map_err(|source| KeysError::Unwritable { path: path.into(), source })?;
    Ok(key)
}

/// Takes the key of `name` out of the file at `path`; the number of keys that are left.
///
/// # Errors
/// If there is none of that name, or the file cannot be read or written.
pub fn revoke(path: &Path, name: &str) -> Result<usize, KeysError> {
    let unknown = || KeysError::Unknown { name: name.chars().take(NAME_BYTES_MAX).collect() };
    if !path.exists() {
        return Err(unknown());
    }
    let _lock = lock(path)?;
    let mut keys = Keys::load(path)?;
    let before = keys.len();
    keys.entries.retain(|entry| entry.name != name);
    if keys.len() == before {
        return Err(unknown());
    }
    write(path, &keys).map_err(|source| KeysError::Unwritable { path: path.into(), source })?;
    Ok(keys.len())
}

/// The file as TOML has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    key: Vec<Row>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    created: u64,
    blake3: String,
}

/// The file's text; `None` where there is no file.
fn read(path: &Path) -> Result<Option<String>, KeysError> {
    let unreadable = |source| KeysError::Unreadable { path: path.into(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    check_mode(path, &file)?;
    let mut text = String::new();
    match file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text) {
        Ok(read) if read as u64 > FILE_BYTES_MAX => {
            Err(KeysError::TooLarge { path: path.into(), max: FILE_BYTES_MAX })
        }
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(KeysError::Damaged { path: path.into(), message: "it is no text".into() })
        }
        Err(error) => Err(unreadable(error)),
    }
}

#[cfg(unix)]
fn check_mode(path: &Path, file: &File) -> Result<(), KeysError> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = file.metadata();
    let metadata =
        metadata.map_err(|source| KeysError::Unreadable { path: path.into(), source })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(KeysError::OthersWrite { path: path.into(), mode });
    }
    if mode & 0o044 != 0 {
        // Hashes of random keys give nothing away, but names do.
        tracing::warn!("other users may read {} (mode {mode:03o}); `chmod 600` it", path.display());
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_mode(_: &Path, _: &File) -> Result<(), KeysError> {
    Ok(())
}

fn parse(path: &Path, text: &str) -> Result<Keys, KeysError> {
    let damaged = |message: String| KeysError::Damaged { path: path.into(), message };
    let table: Table =
        toml::from_str(text).map_err(|error| damaged(error.to_string().trim_end().into()))?;
    if table.key.len() > KEYS_MAX {
        return Err(damaged(format!("it has {} keys, at most {KEYS_MAX} fit", table.key.len())));
    }
    let mut keys = Keys::default();
    let mut names = std::collections::BTreeSet::new();
    for Row { name, created, blake3 } in table.key {
        let Ok(hash) = blake3::Hash::from_hex(&blake3) else {
            return Err(damaged(format!("blake3 of {name:?} is not 64 hexadecimal digits")));
        };
        if !names.insert(name.clone()) {
            return Err(damaged(format!("the name {name:?} occurs twice")));
        }
        keys.entries.push(Entry { name, created, hash });
    }
    Ok(keys)
}

/// Keeps others from changing the file until what is returned is dropped. The lock has a file of
/// its own, since the keys' file is another one after each change.
fn lock(path: &Path) -> Result<File, KeysError> {
    let unwritable = |source| KeysError::Unwritable { path: path.into(), source };
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(unwritable)?;
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    private(&mut options);
    let file = options.open(beside(path, ".lock")).map_err(unwritable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(KeysError::Busy { path: path.into() }),
        Err(TryLockError::Error(error)) => Err(unwritable(error)),
    }
}

/// Writes the whole file beside its place, for its owner alone, and moves it there.
fn write(path: &Path, keys: &Keys) -> io::Result<()> {
    let rows = keys.entries.iter().map(|entry| Row {
        name: entry.name.clone(),
        created: entry.created,
        blake3: entry.hash.to_hex().to_string(),
    });
    let table = toml::to_string(&Table { key: rows.collect() }).map_err(io::Error::other)?;
    let part = beside(path, ".part");
    // One that a crash has left may have any mode; its successor is created with the right one.
    match std::fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    options.create_new(true).write(true);
    private(&mut options);
    let mut file = options.open(&part)?;
    file.write_all(format!("{HEADER}\n{table}").as_bytes())?;
    drop(file);
    durable::publish(&part, path)
}

/// What is created so is for its owner alone from its first moment.
fn private(options: &mut std::fs::OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    #[cfg(not(unix))]
    let _ = options;
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/api-keys.toml");
        (folder, path)
    }

    #[test]
    fn a_key_is_found_by_its_text_and_by_nothing_else() {
        let (_folder, path) = place();
        let ann = add(&path, "ann", 7, [1; 32]).unwrap();
        let bob = add(&path, "bob@home", 8, [2; 32]).unwrap();
        let keys = Keys::load(&path).unwrap();
        assert_eq!((keys.len(), keys.entries()[0].created), (2, 7));
        assert_eq!(keys.find(ann.as_bytes()), Some("ann"));
        assert_eq!(keys.find(bob.as_bytes()), Some("bob@home"));
        let hash = blake3::hash(ann.as_bytes()).to_hex().to_string();
        for wrong in ["", "cad-", &ann[..ann.len() - 1], &hash, &ann.repeat(8)] {
            assert_eq!(keys.find(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(revoke(&path, "ann").unwrap(), 1);
        assert_eq!(Keys::load(&path).unwrap().find(ann.as_bytes()), None);
        assert!(matches!(revoke(&path, "ann"), Err(KeysError::Unknown { .. })));
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let (_folder, path) = place();
        add(&path, "ann", 7, [1; 32]).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(add(&path, "ann", 8, [2; 32]), Err(KeysError::Taken { .. })));
        for name in ["", "a b", "a\n", "ä", "a/b", &"x".repeat(65)] {
            assert!(matches!(add(&path, name, 8, [2; 32]), Err(KeysError::Name { .. })), "{name}");
        }
        let held = lock(&path).unwrap();
        assert!(matches!(add(&path, "bob", 8, [2; 32]), Err(KeysError::Busy { .. })));
        drop(held);
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_file_that_is_not_there_holds_no_keys_and_a_damaged_one_is_refused() {
        let (_folder, path) = place();
        assert!(Keys::load(&path).unwrap().is_empty());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let row = |name: &str, hash: &str| {
            format!("[[key]]\nname = \"{name}\"\ncreated = 1\nblake3 = \"{hash}\"\n")
        };
        let good = row("a", &"0".repeat(64));
        for text in [
            "[[key]]\nname = \"a\"\n".to_string(),
            row("a", "12"),
            row("a", &"g".repeat(64)),
            format!("{good}{good}"),
            format!("{good}more = 1\n"),
            "x".repeat(FILE_BYTES_MAX as usize + 1),
            good[..good.len() - 20].to_string(),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert!(Keys::load(&path).is_err(), "{:.200}", text);
            assert!(add(&path, "b", 1, [1; 32]).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it was written over");
        }
        std::fs::write(&path, b"\xff\xfe").unwrap();
        assert!(matches!(Keys::load(&path), Err(KeysError::Damaged { .. })));
        std::fs::write(&path, good).unwrap();
        assert_eq!(Keys::load(&path).unwrap().len(), 1);
    }
}
