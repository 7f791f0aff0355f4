//! The keys that have names, as their file holds them at this moment: one that is revoked is worth
//! nothing from the next request on.
//!
//! **Invariant:** a node that once had keys never serves without; that they were all revoked, or
//! that their file cannot be read, opens nothing.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use crate::shell::keys::{Keys, KeysError};

/// Keys, and the file that they come from.
#[derive(Debug, Default)]
pub struct Ring {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keys: Keys,
    /// The file that was read last; `None` where there was none.
    seen: Option<Stamp>,
    /// Whether there ever were keys.
    closed: bool,
}

/// By which another version of the file is told.
type Stamp = (Option<SystemTime>, u64);

impl Ring {
    /// The keys in the file at `path`, which need not be there.
    pub fn load(path: &Path) -> Result<Self, KeysError> {
        let seen = stamp(path);
        let keys = Keys::load(path)?;
        let closed = !keys.is_empty();
        Ok(Self { path: path.into(), state: Mutex::new(State { keys, seen, closed }) })
    }

    /// Whether a key is needed.
    pub fn is_closed(&self) -> bool {
        self.fresh().closed
    }

    /// Whose key `shown` is.
    pub fn find(&self, shown: &[u8]) -> Option<String> {
        self.fresh().keys.find(shown).map(str::to_string)
    }

    /// What the file holds now; what it held before, where it cannot be read.
    fn fresh(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().expect("no holder panics");
        let now = stamp(&self.path);
        if now != state.seen {
            state.seen = now;
            match Keys::load(&self.path) {
                Ok(keys) => {
                    tracing::info!(keys = keys.len(), "the file of keys has changed");
                    state.closed |= !keys.is_empty();
                    state.keys = keys;
                }
                Err(error) => {
                    tracing::error!(%error, "the keys are what they were before");
                }
            }
        }
        state
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    path.metadata().ok().map(|data| (data.modified().ok(), data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::keys::{add, revoke};

    #[test]
    fn keys_are_those_of_the_file_at_this_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let ring = Ring::load(&path).unwrap();
        assert!(!ring.is_closed());
        let key = add(&path, "ann", 1, [7; 32]).unwrap();
        assert!(ring.is_closed());
        assert_eq!(ring.find(key.as_bytes()).as_deref(), Some("ann"));
        revoke(&path, "ann").unwrap();
        assert_eq!(ring.find(key.as_bytes()), None);
        // With the last key gone, nobody is let in; without its file, the same.
        assert!(ring.is_closed());
        std::fs::write(&path, "no keys").unwrap();
        assert!(ring.is_closed() && ring.find(key.as_bytes()).is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(ring.is_closed());
    }
}
