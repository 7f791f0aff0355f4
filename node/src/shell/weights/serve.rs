//! Gives pieces of models to whoever asks in a pipe: one after the other, in the order of asking.
//!
//! **Invariant:** a pipe holds at most one chunk in memory, and pipes are few: so many in all, so
//! many for one node. Nothing is read for an answer before the one before it was taken.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use wire::lane::{Have, Line, Piece, Reason, Refused, Say, Want};
use wire::{ManifestId, NodeId};

use super::store::Store;
use crate::shell::lanes::{Pipe, PipeError};

/// Pipes that are served at a time: 32 MiB of chunks.
pub const PIPES_MAX: usize = 32;
/// Pipes of one node: one for each of two fetches, say of a model and of its drafter, and as many
/// that it has not noticed to be gone.
pub const PIPES_PER_NODE_MAX: usize = 4;
/// How long a pipe may stay without a question.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// When whoever found all pipes taken should come again, milliseconds.
const RETRY_MS: u32 = 1000;

/// Answers questions about what a store has. Clones are the same.
#[derive(Debug, Clone)]
pub struct Server {
    store: Arc<Store>,
    pipes: Arc<Mutex<BTreeMap<NodeId, usize>>>,
}

impl Server {
    /// Of `store`.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, pipes: Arc::default() }
    }

    /// Serves a pipe that `peer` opened and in which it asked `want` first, until it ends.
    pub async fn serve(&self, peer: NodeId, want: Want, mut pipe: Pipe) {
        let Some(_place) = Place::take(self, peer) else {
            let text = format!("{PIPES_MAX} pipes are served at a time");
            let full = Refused::new(Reason::Full, text, RETRY_MS);
            // Whoever is gone need not be told.
            let _ = pipe.send(&wire::encode(&Line::from(Say::Refused(full))), []).await;
            return;
        };
        if let Err(error) = self.converse(want, &mut pipe).await {
            tracing::debug!("weights for {peer}: {error}");
        }
    }

    async fn converse(&self, first: Want, pipe: &mut Pipe) -> Result<(), PipeError> {
        let mut want = first;
        loop {
            let (say, body) = self.answer(want).await;
            pipe.send(&wire::encode(&Line::from(say)), [body]).await?;
            let frame = match timeout(IDLE_MAX, pipe.recv()).await {
                Ok(frame) => frame?,
                // It may come again when it wants something.
                Err(_) => return Ok(()),
            };
            let Some(frame) = frame else { return Ok(()) };
            let line = wire::decode::<Line>(&frame.header);
            want = match line.map(|line| line.say) {
                Ok(Some(Say::Want(next))) => next,
                other => {
                    let text = match other {
                        Err(error) => error.to_string(),
                        Ok(_) => "only pieces of models are given here".into(),
                    };
                    let broken = refused(Reason::Broken, text);
                    return pipe.send(&wire::encode(&Line::from(broken)), []).await;
                }
            };
        }
    }

    /// What is said to one question.
    pub(super) async fn answer(&self, want: Want) -> (Say, Bytes) {
        let (Some(id), Some(piece)) = (ManifestId::from_slice(&want.manifest), want.piece) else {
            return (
                refused(Reason::Broken, "a model and a piece are wanted".into()),
                Bytes::new(),
            );
        };
        let store = Arc::clone(&self.store);
        // It reads the disk and hashes, which would hold up everything else here.
        let found = tokio::task::spawn_blocking(move || find(&store, id, piece)).await;
        match found {
            Ok(Some((body, proof))) => (Say::Have(Have { proof }), body),
            Ok(None) => {
                (refused(Reason::NotHeld, format!("that of {id} is not here")), Bytes::new())
            }
            // It was reported when it happened.
            Err(_) => (refused(Reason::Internal, "looking for it failed".into()), Bytes::new()),
        }
    }
}

/// A piece and, for a chunk, its proof.
fn find(store: &Store, id: ManifestId, piece: Piece) -> Option<(Bytes, Vec<u8>)> {
    match piece {
        Piece::Manifest(()) => Some((store.manifest(id)?, Vec::new())),
        Piece::Parts(()) => Some((store.find(id)?.whole_parts().into(), Vec::new())),
        Piece::Chunk(at) => store.find(id)?.serve(at.part, at.chunk),
    }
}

fn refused(reason: Reason, text: String) -> Say {
    Say::Refused(Refused::new(reason, text, 0))
}

/// A pipe's place among those that are served.
struct Place {
    server: Server,
    peer: NodeId,
}

impl Place {
    fn take(server: &Server, peer: NodeId) -> Option<Self> {
        let mut pipes = server.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = pipes.values().sum();
        let own = pipes.get(&peer).copied().unwrap_or(0);
        if all >= PIPES_MAX || own >= PIPES_PER_NODE_MAX {
            return None;
        }
        pipes.insert(peer, own + 1);
        Some(Self { server: server.clone(), peer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut pipes = self.server.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = pipes.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                pipes.remove(&self.peer);
            }
        }
    }
}
