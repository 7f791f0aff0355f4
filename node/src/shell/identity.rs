//! Who this node is: one ed25519 key in a file that only its user may read.

use std::io::Write;
use std::path::{Path, PathBuf};

use thiserror::Error;
use wire::Key;

use super::durable;

/// What stands in the file before the secret, in 64 hexadecimal digits.
const HEAD: &str = "cadencia node key, keep secret: ";

/// Why the key cannot be used.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The system refuses.
    #[error("cannot {doing} the node's key {path}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no key.
    #[error("{0} holds no node key; restore it from a copy, or remove it to become another node")]
    Broken(PathBuf),
    /// Others may read it.
    #[error("others on this machine may read {path}; run `chmod 600 {path}`")]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// The system gives no random bytes.
    #[error("this machine gives no random bytes: {0}")]
    Dice(getrandom::Error),
}

/// The key in folder `state`, made at the first start.
///
/// # Errors
/// See [`IdentityError`]; a key that is there is never replaced.
pub fn load_or_create(state: &Path) -> Result<Key, IdentityError> {
    let path = state.join("identity");
    match std::fs::read_to_string(&path) {
        Ok(text) => read(&path, &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => create(state, &path),
        Err(source) if source.kind() == std::io::ErrorKind::InvalidData => {
            Err(IdentityError::Broken(path))
        }
        Err(source) => Err(IdentityError::Io { doing: "read", path, source }),
    }
}

fn read(path: &Path, text: &str) -> Result<Key, IdentityError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let meta = std::fs::metadata(path);
        let meta = meta.map_err(|source| IdentityError::Io {
            doing: "look at",
            path: path.into(),
            source,
        })?;
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(IdentityError::Open { path: path.into() });
        }
    }
    let broken = || IdentityError::Broken(path.into());
    let digits = text.strip_suffix('\n').and_then(|line| line.strip_prefix(HEAD));
    let digits = digits.filter(|digits| digits.len() == 64).ok_or_else(broken)?;
    let mut secret = [0; 32];
    for (byte, pair) in secret.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| broken())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| broken())?;
    }
    Ok(Key::new(secret))
}

fn create(state: &Path, path: &Path) -> Result<Key, IdentityError> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(IdentityError::Dice)?;
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = path.with_extension("part");
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(state)?;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&part)?.write_all(format!("{HEAD}{digits}\n").as_bytes())?;
        durable::publish(&part, path)
    };
    write().map_err(|source| IdentityError::Io { doing: "make", path: path.into(), source })?;
    Ok(Key::new(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_stays_who_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let first = load_or_create(&state).unwrap().id();
        assert_eq!(load_or_create(&state).unwrap().id(), first);
    }

    #[test]
    fn a_torn_key_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        load_or_create(folder.path()).unwrap();
        let path = folder.path().join("identity");
        let whole = std::fs::read_to_string(&path).unwrap();
        for text in ["", &whole[..60], &whole[..whole.len() - 1], &whole.replace("key", "kay")] {
            std::fs::write(&path, text).unwrap();
            let error = load_or_create(folder.path()).unwrap_err();
            assert!(matches!(error, IdentityError::Broken(_)), "{text:?}: {error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_others_may_read_is_refused_with_what_to_do() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        load_or_create(folder.path()).unwrap();
        let path = folder.path().join("identity");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = load_or_create(folder.path()).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}
