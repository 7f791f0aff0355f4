//! Files that appear whole or not at all, and are still there after the power went.

use std::fs::File;
use std::io;
use std::path::Path;

/// Gives the finished file at `part` the name `path`, in the same file system, replacing what had
/// that name. Its bytes are on disk before its name is, so no crash leaves a name without them.
pub fn publish(part: &Path, path: &Path) -> io::Result<()> {
    // Windows flushes only what was opened for writing.
    File::options().write(true).open(part)?.sync_all()?;
    std::fs::rename(part, path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Puts a folder's names on disk.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    // Elsewhere a folder cannot be opened as a file, and the file system keeps names in its log.
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}
