//! Brings one file here, from the web or from elsewhere on this machine, and goes on where an
//! earlier attempt ended.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::PullError;
use super::address::Address;
use super::digest::Digest;
use super::part::{Note, Part, is_whole};
use super::tries::Tries;
use super::web::{Download, Rest, Token, Web, WebError};
use crate::shell::progress::{Progress, Unit};

/// Bytes written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// A file that is wanted.
#[derive(Debug)]
pub struct Item {
    /// Where it is now.
    pub origin: Origin,
    /// What it will be called; a plain name.
    pub file: String,
    /// Its size, bytes, if somebody said so.
    pub bytes: Option<u64>,
    /// What its bytes come to, if somebody said so.
    pub sha256: Option<Digest>,
}

/// Where a file is.
#[derive(Debug)]
pub enum Origin {
    /// On the web.
    Web {
        /// Its address.
        address: Address,
        /// What opens it.
        token: Option<Token>,
    },
    /// On this machine.
    File(PathBuf),
}

/// How much patience and room there is.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Tries in a row that bring nothing.
    pub tries: u32,
    /// Bytes that may still be written.
    pub room: u64,
}

impl Item {
    /// What is written beside its bytes.
    pub fn note(&self) -> Note {
        let from = match &self.origin {
            Origin::Web { address, .. } => address.to_string(),
            Origin::File(path) => path.display().to_string(),
        };
        Note { from, tag: None, whole: self.bytes, sha256: self.sha256 }
    }
}

/// Progress over all files of a model.
#[derive(Debug)]
pub struct Meter {
    progress: Progress,
    before: u64,
    whole: Option<u64>,
}

impl Meter {
    /// Over `whole` bytes, if they are known.
    pub fn new(whole: Option<u64>) -> Self {
        Self { progress: Progress::new("fetching", Unit::Bytes), before: 0, whole }
    }

    /// `done` bytes of the present file are here, which has `whole`.
    fn set(&mut self, done: u64, whole: Option<u64>) {
        let all = self.whole.or(whole.map(|whole| self.before + whole)).unwrap_or(0);
        self.progress.set(self.before + done, all);
    }

    /// The present file is whole and has `bytes`.
    fn next(&mut self, bytes: u64) {
        self.before += bytes;
    }
}

/// Brings `item` into `folder`; when this returns, it is whole there, under its name, and its
/// digest is right where one is known.
///
/// # Errors
/// See [`PullError`]. What has come stays, unless it is known to be wrong.
pub fn fetch(
    web: &Web,
    item: &Item,
    folder: &Path,
    limits: Limits,
    meter: &mut Meter,
) -> Result<(), PullError> {
    let disk = |source| PullError::Disk { path: folder.into(), source };
    if is_whole(folder, &item.file, &item.note()) {
        let bytes = folder.join(&item.file).metadata().map_err(disk)?.len();
        meter.next(bytes);
        return Ok(());
    }
    let mut seen = |done| meter.set(done, item.bytes);
    let mut part = Part::open(folder, &item.file, item.note(), &mut seen).map_err(disk)?;
    meter.progress.begin_at(meter.before + part.len());
    let mut tries = Tries::new(limits.tries, part.len());
    loop {
        match pour(web, item, &mut part, limits, meter) {
            Ok(()) => break,
            Err(PullError::Web(error)) => {
                tries.again(error, part.len(), &mut |line| meter.progress.tell(&line))?;
            }
            Err(error) => {
                // Bytes that can never become the right ones are in the way of those that can.
                if matches!(error, PullError::NotGguf { .. }) {
                    part.discard().map_err(disk)?;
                }
                return Err(error);
            }
        }
    }
    let found = part.digest();
    if let Some(expected) = item.sha256
        && found != expected
    {
        part.discard().map_err(disk)?;
        return Err(PullError::Digest { file: item.file.clone(), expected, found });
    }
    meter.next(part.len());
    part.finish().map_err(disk)
}

/// One try: from where `part` ends up to the end of the file.
fn pour(
    web: &Web,
    item: &Item,
    part: &mut Part,
    limits: Limits,
    meter: &mut Meter,
) -> Result<(), PullError> {
    let disk = |source| PullError::Disk { path: item.file.clone().into(), source };
    if part.whole() == Some(part.len()) && part.can_continue() {
        return Ok(());
    }
    if !part.can_continue() && part.len() > 0 {
        part.restart().map_err(disk)?;
    }
    let mut stream = Stream::open(web, &item.origin, part)?;
    let changed = differ(stream.tag(), part.tag()) || differ(stream.whole(), part.whole());
    if stream.at() != part.len() || changed {
        part.restart().map_err(disk)?;
        if stream.at() != 0 {
            stream = Stream::open(web, &item.origin, part)?;
        }
    }
    if let (Some(expected), Some(found)) = (item.bytes, stream.whole())
        && expected != found
    {
        return Err(PullError::Size { file: item.file.clone(), expected, found });
    }
    part.learn(stream.whole(), stream.tag().map(str::to_string)).map_err(disk)?;
    let end = part.whole();
    let no_room = |needed| PullError::NoRoom { needed, room: limits.room };
    if let Some(end) = end.filter(|end| end - part.len().min(*end) > limits.room) {
        return Err(no_room(end - part.len()));
    }
    let most = part.len().saturating_add(limits.room).min(end.unwrap_or(u64::MAX));
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        if part.len() + count as u64 > most {
            return Err(match end {
                Some(expected) => {
                    let found = part.len() + count as u64;
                    PullError::Size { file: item.file.clone(), expected, found }
                }
                None => no_room(count as u64),
            });
        }
        part.append(&buffer[..count]).map_err(disk)?;
        if !part.may_be_gguf() {
            return Err(PullError::NotGguf { file: item.file.clone() });
        }
        meter.set(part.len(), end);
    }
    match end {
        Some(end) if part.len() < end => Err(stream.ended_early(part.len(), end)),
        _ => Ok(()),
    }
}

/// Whether two things are known and not the same.
fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    one.is_some() && other.is_some() && one != other
}

/// Bytes as they come.
enum Stream {
    Web(Box<Download>),
    File { file: File, at: u64, whole: u64, tag: String, path: PathBuf },
}

impl Stream {
    /// From where `part` ends, if that can be.
    fn open(web: &Web, origin: &Origin, part: &Part) -> Result<Self, PullError> {
        match origin {
            Origin::Web { address, token } => {
                let rest = Rest { from: part.len(), tag: part.tag() };
                let download = web.download(address, token.as_ref(), rest)?;
                Ok(Self::Web(Box::new(download)))
            }
            Origin::File(path) => open_file(path, part)
                .map_err(|source| PullError::Unreadable { path: path.into(), source }),
        }
    }

    fn at(&self) -> u64 {
        match self {
            Self::Web(download) => download.at,
            Self::File { at, .. } => *at,
        }
    }

    fn whole(&self) -> Option<u64> {
        match self {
            Self::Web(download) => download.whole,
            Self::File { whole, .. } => Some(*whole),
        }
    }

    fn tag(&self) -> Option<&str> {
        match self {
            Self::Web(download) => download.tag.as_deref(),
            Self::File { tag, .. } => Some(tag),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, PullError> {
        match self {
            Self::Web(download) => Ok(download.read(buffer)?),
            Self::File { file, path, .. } => file
                .read(buffer)
                .map_err(|source| PullError::Unreadable { path: path.clone(), source }),
        }
    }

    fn ended_early(&self, len: u64, end: u64) -> PullError {
        match self {
            Self::Web(download) => {
                let message = format!("{len} of {end} bytes are here");
                WebError::HungUp { host: download.host().into(), message }.into()
            }
            Self::File { path, .. } => {
                PullError::Size { file: path.display().to_string(), expected: end, found: len }
            }
        }
    }
}

fn open_file(path: &Path, part: &Part) -> std::io::Result<Stream> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let time = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let whole = metadata.len();
    let tag = format!("\"{whole}-{}\"", time.as_nanos());
    let same = part.tag() == Some(&tag) && part.len() <= whole;
    let at = if same { part.len() } else { 0 };
    file.seek(SeekFrom::Start(at))?;
    Ok(Stream::File { file, at, whole, tag, path: path.into() })
}
