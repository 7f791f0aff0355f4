//! What this node is to its hive, on disk: the file `hive` in the state folder.
//!
//! Each change reads the file anew under a lock, so that `cadencia` run beside a running node loses
//! none of its counts. The file holds no secret; whoever may write it decides who is let in.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use wire::{Membership, Millis, NetworkId, NodeId, Signed, Verified};

use super::hive::{Belonging, Hive, hive_of};
use super::invites::{INVITES_MAX, Invites, Open, USES_MAX};
use super::members::MEMBERS_MAX;
use crate::shell::durable;

/// Bytes of the file: all invitations with all who may come take some 350 KB.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the file of proofs: as many as are kept, each as long as can be.
const PROOFS_BYTES_MAX: u64 = (MEMBERS_MAX as u64) * 3072;
/// How long another process may take to make its change; it takes two flushes of a disk.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
/// How often is looked whether it is done.
const LOCK_LOOK: Duration = Duration::from_millis(10);
/// What the file begins with.
const HEADER: &str = "\
# What this node is to its hive, and who may still come with its invitations.
# Written by cadencia; a change by hand may let strangers in.
";

/// Why what is remembered of the hive cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The system refuses.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others may write it.
    #[error(
        "other users may write {path} (mode {mode:03o}) and so let strangers in: look through it, \
         then `chmod 600` it"
    )]
    OthersWrite {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is not what was written.
    #[error("{path} is damaged: {why}; restore it, or move it away and join the hive again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another process changes it.
    #[error(
        "another cadencia was changing {path} for {} ms; see whether one hangs",
        LOCK_WAIT_MAX.as_millis()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
}

/// The files.
#[derive(Debug, Clone)]
pub struct Store {
    path: PathBuf,
    proofs: PathBuf,
    me: NodeId,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hive: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    membership: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    invite: Vec<Row>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    uses: u32,
    expires_ms: u64,
    may_invite: bool,
    #[serde(default)]
    came: BTreeMap<String, u64>,
}

impl Store {
    /// In folder `state`, for node `me`.
    pub fn new(state: &Path, me: NodeId) -> Self {
        Self { path: state.join("hive"), proofs: state.join("members"), me }
    }

    /// What is remembered; a node without the file is of the public network.
    pub fn load(&self) -> Result<Hive, StoreError> {
        let Some(text) = read(&self.path, FILE_BYTES_MAX)? else { return Ok(Hive::public()) };
        self.parse(&text).map_err(|why| StoreError::Damaged { path: self.path.clone(), why })
    }

    /// Changes what is remembered. When `change` refuses, or the change cannot be put on disk,
    /// everything is as it was; otherwise it is on disk when this returns.
    pub fn change<T, E: From<StoreError>>(
        &self,
        change: impl FnOnce(&mut Hive) -> Result<T, E>,
    ) -> Result<T, E> {
        let _lock = self.lock()?;
        let mut hive = self.load()?;
        let before = hive.clone();
        let outcome = change(&mut hive)?;
        if hive != before {
            let text = format!("{HEADER}\n{}", write_table(&hive, self.me));
            publish(&self.path, text.as_bytes())?;
        }
        Ok(outcome)
    }

    /// Proofs of membership that were kept. They are not believed for standing there.
    pub fn load_proofs(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        let Some(text) = read(&self.proofs, PROOFS_BYTES_MAX)? else { return Ok(Vec::new()) };
        // A line that is none is as a proof that was lost: others have it.
        Ok(text.lines().take(MEMBERS_MAX).filter_map(|line| BASE64.decode(line).ok()).collect())
    }

    /// Keeps proofs of membership, so that a restarted node knows whom to let connect.
    pub fn keep_proofs<'a>(
        &self,
        proofs: impl Iterator<Item = &'a Verified<Membership>>,
    ) -> Result<(), StoreError> {
        let lines = proofs.map(|proof| BASE64.encode(proof.signed().encode()) + "\n");
        publish(&self.proofs, lines.collect::<String>().as_bytes())
    }

    fn lock(&self) -> Result<File, StoreError> {
        let path = self.path.with_extension("lock");
        let failed = |source| StoreError::Io { doing: "lock", path: path.clone(), source };
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        private(&mut options);
        let file = options.open(&path).map_err(failed)?;
        let give_up = Instant::now() + LOCK_WAIT_MAX;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Err(TryLockError::WouldBlock) if Instant::now() >= give_up => {
                    return Err(StoreError::Busy { path: self.path.clone() });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_LOOK),
            }
        }
    }

    fn parse(&self, text: &str) -> Result<Hive, String> {
        let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
        let hive = table.hive.map(|hive| hive.parse::<NodeId>()).transpose();
        let hive = hive.map_err(|error| error.to_string())?;
        let membership = table.membership.as_deref().map(proof).transpose()?;
        let belonging = match (hive, membership) {
            (None, None) => Belonging::Public,
            (Some(hive), None) if hive == self.me => Belonging::Founder,
            (Some(hive), None) => {
                return Err(format!("it is of the private hive {hive}, and without membership"));
            }
            (Some(hive), Some(proof)) if belongs(&proof, hive, self.me) => Belonging::Member(proof),
            (_, Some(_)) => return Err("the membership is not this node's in that hive".into()),
        };
        if table.invite.len() > INVITES_MAX {
            let count = table.invite.len();
            return Err(format!("{count} invitations, {INVITES_MAX} are the most"));
        }
        let mut invites = Invites::default();
        for row in table.invite {
            let (id, open) = row.read()?;
            // Nothing is over at the beginning of time, so all are remembered.
            invites.add(id, open, Millis(0));
        }
        Ok(Hive { belonging, invites })
    }
}

impl Row {
    fn read(self) -> Result<([u8; 16], Open), String> {
        let id = BASE64.decode(&self.id).ok().and_then(|id| id.try_into().ok());
        let id = id.ok_or_else(|| format!("{:?} is no id of an invitation", self.id))?;
        let came = self.came.into_iter().map(|(node, until)| {
            Ok((node.parse::<NodeId>().map_err(|error| error.to_string())?, Millis(until)))
        });
        let came: BTreeMap<_, _> = came.collect::<Result<_, String>>()?;
        if !(1..=USES_MAX).contains(&self.uses) || came.len() > self.uses as usize {
            return Err(format!("{} came by an invitation of {} uses", came.len(), self.uses));
        }
        let expires = Millis(self.expires_ms);
        Ok((id, Open { uses: self.uses, expires, may_invite: self.may_invite, came }))
    }
}

fn proof(text: &str) -> Result<Verified<Membership>, String> {
    let bytes = BASE64.decode(text).map_err(|error| format!("membership: {error}"))?;
    let signed = Signed::decode(&bytes).map_err(|error| error.to_string())?;
    signed.verify().map_err(|error| error.to_string())
}

fn belongs(proof: &Verified<Membership>, hive: NodeId, me: NodeId) -> bool {
    hive_of(proof) == hive && proof.content().member[..] == me.0
}

fn write_table(hive: &Hive, me: NodeId) -> String {
    let network = hive.belonging.network(me);
    let membership = match &hive.belonging {
        Belonging::Member(proof) => Some(BASE64.encode(proof.signed().encode())),
        Belonging::Public | Belonging::Founder => None,
    };
    let rows = hive.invites.iter().map(|(id, open)| Row {
        id: BASE64.encode(id),
        uses: open.uses,
        expires_ms: open.expires.0,
        may_invite: open.may_invite,
        came: open.came.iter().map(|(node, until)| (node.to_string(), until.0)).collect(),
    });
    let hive = match network {
        NetworkId::Public => None,
        NetworkId::Private(founder) => Some(founder.to_string()),
    };
    let table = Table { hive, membership, invite: rows.collect() };
    toml::to_string(&table).expect("texts, numbers and lists have a form in TOML")
}

/// The text of a file; `None` where there is none.
fn read(path: &Path, bytes_max: u64) -> Result<Option<String>, StoreError> {
    let failed = |source| StoreError::Io { doing: "read", path: path.into(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o022 != 0 {
            return Err(StoreError::OthersWrite { path: path.into(), mode });
        }
    }
    let mut text = String::new();
    let damaged = |why: String| StoreError::Damaged { path: path.into(), why };
    match file.take(bytes_max + 1).read_to_string(&mut text) {
        Ok(read) if read as u64 > bytes_max => Err(damaged(format!("more than {bytes_max} bytes"))),
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(damaged("it is no text".into()))
        }
        Err(error) => Err(failed(error)),
    }
}

fn publish(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let part = path.with_extension("part");
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        // One that a crash has left may have any mode.
        match std::fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = File::options();
        options.create_new(true).write(true);
        private(&mut options);
        options.open(&part)?.write_all(bytes)?;
        durable::publish(&part, path)
    };
    write().map_err(|source| StoreError::Io { doing: "write", path: path.into(), source })
}

/// What is created so is for its owner alone from its first moment.
fn private(options: &mut std::fs::OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    #[cfg(not(unix))]
    let _ = options;
}
