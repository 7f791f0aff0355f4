//! Frames for one pipe, handed over by whoever must not wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::mpsc;
use wire::lane::{Line, Say};

use crate::shell::lanes::{PipeError, Sender};

/// Bytes that may wait for one pipe: what a long prompt takes, and far more than a reader that keeps
/// up leaves lying.
const WAITING_MAX: usize = 64 << 20;

/// The pipe takes nothing more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoOutlet {
    /// Too much waits for it.
    #[error("does not take what it is sent: {waiting} bytes wait")]
    Full {
        /// Bytes that wait.
        waiting: usize,
    },
    /// It is gone.
    #[error("its pipe is gone")]
    Gone,
}

/// Where frames for one pipe are put. The pipe ends when the last clone is gone.
#[derive(Debug, Clone)]
pub struct Outlet {
    frames: mpsc::UnboundedSender<(Line, Bytes)>,
    waiting: Arc<AtomicUsize>,
}

/// Where they are taken from.
#[derive(Debug)]
pub struct Frames {
    frames: mpsc::UnboundedReceiver<(Line, Bytes)>,
    waiting: Arc<AtomicUsize>,
}

impl Outlet {
    /// An outlet and its end.
    pub fn new() -> (Self, Frames) {
        // Its bound is in bytes.
        let (put, take) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        (Self { frames: put, waiting: waiting.clone() }, Frames { frames: take, waiting })
    }

    /// Puts a frame.
    ///
    /// # Errors
    /// Too much waits already, or the pipe is gone.
    pub fn send(&self, say: Say, body: Bytes) -> Result<(), NoOutlet> {
        let size = body.len();
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting + size > WAITING_MAX {
            return Err(NoOutlet::Full { waiting });
        }
        self.waiting.fetch_add(size, Ordering::Relaxed);
        self.frames.send((say.into(), body)).map_err(|_| NoOutlet::Gone)
    }
}

impl Frames {
    /// Hands all that is put into the outlet to `take`, until it is gone.
    pub async fn each(mut self, take: impl Fn(Say, Bytes) + Send) {
        while let Some((line, body)) = self.frames.recv().await {
            self.waiting.fetch_sub(body.len(), Ordering::Relaxed);
            if let Some(say) = line.say {
                take(say, body);
            }
        }
    }

    /// Sends all that is put into the outlet, until it is gone.
    ///
    /// # Errors
    /// The pipe broke.
    pub async fn deliver(mut self, mut pipe: Sender) -> Result<(), PipeError> {
        while let Some((line, body)) = self.frames.recv().await {
            let size = body.len();
            pipe.send(&wire::encode(&line), [body]).await?;
            self.waiting.fetch_sub(size, Ordering::Relaxed);
        }
        pipe.finish().await
    }
}
