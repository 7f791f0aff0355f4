//! Brings models here: from Hugging Face, from a URL, or from a file.
//!
//! [`Source::parse`] reads what the user typed, [`pull`] does the rest. While a model NAME comes,
//! its files lie in the folder `NAME.part` beside the other models, where the same command finds
//! them again however it ended. Only when all are there, their digests are right and the whole is
//! a sound GGUF do they get their names.
//!
//! **Invariant:** what has a name in the models folder is whole. It appears at once, on disk, or
//! not at all; of a split model, which several names stand for, the first file comes last, and the
//! first is the one that models are found by.
//!
//! **Invariant:** nothing that comes from outside decides where a file lies: its name is a
//! [`ModelName`], and so one plain part of a path.

mod address;
mod choose;
mod digest;
mod error;
mod fetch;
mod hub;
mod names;
mod part;
mod source;
mod tries;
mod web;

use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use compute::arch::Arch;
use compute::gguf::Gguf;
use sha2::{Digest as _, Sha256};

pub use digest::Digest;
pub use error::PullError;
pub use names::{ModelName, PARTS_MAX, SplitPart};
pub use source::{Source, SourceError};

use self::fetch::{Item, Limits, Meter, Origin, fetch};
use self::hub::{Found, HubError};
use self::names::file;
use self::source::HubName;
use self::tries::Tries;
use self::web::Web;
use super::durable;

/// What is wanted.
#[derive(Debug)]
pub struct Wish {
    /// Where it is.
    pub source: Source,
    /// What it shall be called; by default what it is called there.
    pub name: Option<ModelName>,
    /// What its bytes come to, for each of its files in their order.
    pub sha256: Vec<Digest>,
    /// Whether what comes without a digest is taken all the same.
    pub digest: DigestRule,
    /// What becomes of a model that has the name already.
    pub taken: TakenRule,
    /// Bytes that stay free on the disk.
    pub keep_free: u64,
    /// How long a server may be silent.
    pub patience: Duration,
    /// Tries in a row that bring nothing before we give up.
    pub tries: u32,
}

/// What is done about files from the web whose digest nobody has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestRule {
    /// They are refused.
    Needed,
    /// They are taken.
    Waived,
}

/// What is done about a model that has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenRule {
    /// It stays.
    Keep,
    /// It is replaced when the new one is whole.
    Replace,
}

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub struct Pulled {
    /// What it is called here.
    pub name: String,
    /// Its first file.
    pub path: PathBuf,
    /// Whether it was here before.
    pub was_here: bool,
    /// Why this program cannot run it, sound though it is.
    pub unrunnable: Option<String>,
}

/// Brings what is wanted into `folder`, which is made if need be. `tell` hears what is worth
/// knowing before it is done.
///
/// # Errors
/// See [`PullError`]. The models that were there stay as they were; what has come stays beside
/// them, for the next try, unless it is known to be wrong.
pub fn pull(wish: &Wish, folder: &Path, tell: &dyn Fn(String)) -> Result<Pulled, PullError> {
    let web = Web::new(wish.patience);
    let items = plan(wish, &web, tell)?;
    let first = &items[0].file;
    let path = folder.join(first);
    if path.exists() && wish.taken == TakenRule::Keep {
        return already(&items, folder);
    }
    std::fs::create_dir_all(folder)
        .map_err(|source| PullError::Disk { path: folder.into(), source })?;
    let stage = Stage::open(folder, first)?;
    let whole = items.iter().try_fold(0u64, |sum, item| sum.checked_add(item.bytes?));
    let mut meter = Meter::new(whole);
    let outcome = fetch_all(&items, wish, &web, &stage, &mut meter);
    drop(meter);
    if let Err(error) = outcome {
        stage.leave(&items);
        return Err(error);
    }
    let model = match Gguf::open(&stage.path.join(first)) {
        Ok(model) => model,
        Err(source) => {
            stage.clear();
            return Err(PullError::Unsound { source });
        }
    };
    let unrunnable = Arch::from_gguf(&model).err().map(|error| error.to_string());
    drop(model);
    publish(&items, &stage.path, folder)?;
    stage.clear();
    Ok(Pulled { name: stem(first), path, was_here: false, unrunnable })
}

/// Brings all files into the stage.
fn fetch_all(
    items: &[Item],
    wish: &Wish,
    web: &Web,
    stage: &Stage,
    meter: &mut Meter,
) -> Result<(), PullError> {
    for n in 0..items.len() {
        // Seen anew for each file: others write to this disk, too.
        let room = room(&items[n..], &stage.path, wish.keep_free)?;
        fetch(web, &items[n], &stage.path, Limits { tries: wish.tries, room }, meter)?;
    }
    Ok(())
}

/// The files that are wanted, first to last.
fn plan(wish: &Wish, web: &Web, tell: &dyn Fn(String)) -> Result<Vec<Item>, PullError> {
    let mut items = match &wish.source {
        Source::Hub(name) => {
            let found = ask(wish, web, name, tell)?;
            tell(format!("{} has {}", name.repository, hub::told(&found.files)));
            let token = found.token;
            let items = found.files.into_iter().map(|file| Item {
                file: file.path.rsplit('/').next().unwrap_or_default().to_string(),
                bytes: file.bytes,
                sha256: file.sha256,
                origin: Origin::Web { address: file.address, token: token.clone() },
            });
            items.collect()
        }
        Source::Web(address) => siblings(&address.file_name(), |name| {
            let address = match name {
                Some(name) => address.with_file_name(name)?,
                None => address.clone(),
            };
            Ok((Origin::Web { address, token: None }, None))
        })?,
        Source::File(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            siblings(&name, |name| {
                let path = name.map_or(path.clone(), |name| path.with_file_name(name));
                let metadata = path.metadata();
                let unreadable = |source| PullError::Unreadable { path: path.clone(), source };
                let bytes = metadata.map_err(unreadable)?.len();
                Ok((Origin::File(path), Some(bytes)))
            })?
        }
    };
    rename(&mut items, wish.name.as_ref())?;
    digests(&mut items, wish)?;
    Ok(items)
}

/// What `name` means, asked again where that may help.
fn ask(wish: &Wish, web: &Web, name: &HubName, tell: &dyn Fn(String)) -> Result<Found, PullError> {
    let mut tries = Tries::new(wish.tries, 0);
    loop {
        match hub::find(web, name) {
            Err(HubError::List { source, .. }) if source.may_pass() => {
                tries.again(source, 0, &mut |line| tell(line))?;
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// The file `name`, or, where it is the first part of a split model, all parts. `place` says where
/// each of them is, given its name if it has another than the first.
fn siblings(
    name: &str,
    place: impl Fn(Option<&str>) -> Result<(Origin, Option<u64>), PullError>,
) -> Result<Vec<Item>, PullError> {
    let item = |file: &str, other: Option<&str>| {
        let (origin, bytes) = place(other)?;
        Ok(Item { origin, file: file.into(), bytes, sha256: None })
    };
    let Some(part) = SplitPart::of(name) else { return Ok(vec![item(name, None)?]) };
    if part.number != 1 || part.count > PARTS_MAX {
        return Err(PullError::NotFirst { count: part.count, first: part.file(1) });
    }
    // The name becomes part of a URL or path again, so it must be a plain one already.
    ModelName::parse(&part.base)?;
    let rest = (2..=part.count).map(|number| part.file(number));
    let rest = rest.map(|file| item(&file, Some(&file)));
    std::iter::once(item(name, None)).chain(rest).collect()
}

/// Gives the files the names that they will have here.
fn rename(items: &mut [Item], wanted: Option<&ModelName>) -> Result<(), PullError> {
    let count = items.len() as u32;
    let base = match (wanted, SplitPart::of(&items[0].file)) {
        (Some(name), _) => name.clone(),
        (None, Some(part)) => ModelName::parse(&part.base)?,
        (None, None) => ModelName::parse(&items[0].file)?,
    };
    if count == 1 && SplitPart::of(base.as_str()).is_some_and(|part| part.count > 1) {
        return Err(PullError::LooksSplit { name: base.as_str().into() });
    }
    for (number, item) in (1..).zip(items) {
        item.file = file(base.as_str(), number, count);
    }
    Ok(())
}

/// Puts the digests that the user has given to the files, and refuses files from the web that have
/// none.
fn digests(items: &mut [Item], wish: &Wish) -> Result<(), PullError> {
    if !wish.sha256.is_empty() && wish.sha256.len() != items.len() {
        let (given, files) = (wish.sha256.len(), items.len());
        return Err(PullError::DigestCount { given, files });
    }
    for (item, given) in items.iter_mut().zip(&wish.sha256) {
        if let Some(told) = item.sha256.filter(|told| told != given) {
            return Err(PullError::DigestsDiffer { file: item.file.clone(), given: *given, told });
        }
        item.sha256 = Some(*given);
    }
    for item in items.iter() {
        if let (Origin::Web { address, .. }, None) = (&item.origin, item.sha256)
            && wish.digest == DigestRule::Needed
        {
            return Err(PullError::NoDigest { place: address.place() });
        }
    }
    Ok(())
}

/// What has the name already, if its bytes are known to be those that are wanted.
fn already(items: &[Item], folder: &Path) -> Result<Pulled, PullError> {
    let first = &items[0].file;
    for item in items {
        let path = folder.join(&item.file);
        if item.sha256.is_none() || hash(&path).ok() != item.sha256 {
            return Err(PullError::Taken { name: stem(first), folder: folder.into() });
        }
    }
    Ok(Pulled { name: stem(first), path: folder.join(first), was_here: true, unrunnable: None })
}

fn hash(path: &Path) -> std::io::Result<Digest> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Digest::of(&hasher)),
            count => hasher.update(&buffer[..count]),
        }
    }
}

/// Bytes that may be written; refuses what is known not to fit before anything is fetched.
fn room(items: &[Item], stage: &Path, keep_free: u64) -> Result<u64, PullError> {
    let available = fs4::available_space(stage)
        .map_err(|source| PullError::Disk { path: stage.into(), source })?;
    let missing = items
        .iter()
        .map(|item| item.bytes.unwrap_or(0).saturating_sub(part::bytes_here(stage, &item.file)));
    let needed = missing.fold(0u64, u64::saturating_add);
    let room = available.saturating_sub(keep_free);
    if needed > room { Err(PullError::NoRoom { needed, room }) } else { Ok(room) }
}

/// Gives whole files their names in `folder`; of several, the first comes last.
fn publish(items: &[Item], stage: &Path, folder: &Path) -> Result<(), PullError> {
    let disk = |source| PullError::Disk { path: folder.into(), source };
    let first = folder.join(&items[0].file);
    if items.len() > 1 && first.exists() {
        // Without its first file the old model is gone, and cannot be taken for a mixture of both.
        std::fs::remove_file(&first).map_err(disk)?;
        durable::sync_folder(folder).map_err(disk)?;
    }
    for item in items.iter().rev() {
        durable::publish(&stage.join(&item.file), &folder.join(&item.file)).map_err(disk)?;
    }
    Ok(())
}

/// What a file is called without `.gguf`.
fn stem(file: &str) -> String {
    file.strip_suffix(names::ENDING).unwrap_or(file).to_string()
}

/// The folder in which a model waits for its last byte. One process at a time has it.
struct Stage {
    path: PathBuf,
    lock: File,
}

/// The file that is locked while somebody fetches into a stage.
const LOCK: &str = "lock";

impl Stage {
    fn open(folder: &Path, first: &str) -> Result<Self, PullError> {
        let path = folder.join(format!("{}.part", stem(first)));
        let disk = |source| PullError::Disk { path: path.clone(), source };
        std::fs::create_dir_all(&path).map_err(disk)?;
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let lock = options.open(path.join(LOCK)).map_err(disk)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, lock }),
            Err(TryLockError::WouldBlock) => Err(PullError::Busy { name: stem(first) }),
            Err(TryLockError::Error(source)) => Err(disk(source)),
        }
    }

    /// Keeps what has come of `items` for the next try; an empty stage is removed.
    fn leave(self, items: &[Item]) {
        if items.iter().all(|item| part::bytes_here(&self.path, &item.file) == 0) {
            self.clear();
        }
    }

    /// Removes the stage with all that is left in it. What cannot be removed does no harm.
    fn clear(self) {
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        drop(self.lock);
        let _ = std::fs::remove_dir(&self.path);
    }
}
