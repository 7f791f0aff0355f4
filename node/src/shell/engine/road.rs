//! The way to half-blocks that other nodes hold: what an engine asks of it, and what it hears.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use wire::lane::{PAGE_KEY, Wanted};

/// Passages of sequences through the stages that hold the rest of a model. The engine numbers its
/// sequences; what becomes of them is told to its [`Inbox`].
pub trait Road: fmt::Debug + Send + Sync {
    /// Seats at all stages are wanted for sequence `number`: [`News::Ready`] or [`News::Failed`]
    /// follows.
    fn open(&self, number: u64, opening: Opening);
    /// Takes rows from position `first` on through the stages; [`News::Rows`] follows.
    fn send(&self, number: u64, first: u32, rows: Bytes, wanted: Wanted);
    /// Tells the stages under which keys full pages of the sequence may be kept, from page `first`
    /// on.
    fn keep(&self, number: u64, first: u32, keys: Vec<u8>);
    /// The sequence is over; the stages let go of it.
    fn close(&self, number: u64);
}

/// What a sequence needs of the stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// Positions that it may grow to.
    pub positions: u32,
    /// Keys of its first full pages.
    pub beginning: Vec<u8>,
}

/// What becomes of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// There are seats.
    Ready {
        /// Positions at its beginning that the stages have already.
        begun: usize,
        /// Rows to send together, at most.
        rows_max: usize,
    },
    /// Rows have passed.
    Rows {
        /// Position of the first that was sent.
        first: usize,
        /// How many were.
        count: usize,
        /// Those that were wanted.
        rows: Bytes,
    },
    /// The passage is over before the sequence is. It may be opened again.
    Failed(Setback),
}

/// Why a passage failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setback {
    /// For people, with the node's name.
    pub text: String,
    /// When to try again.
    pub retry: Duration,
    /// Whether there is no route at all.
    pub is_lost: bool,
}

/// Where news arrive.
pub struct Inbox {
    news: Mutex<VecDeque<(u64, News)>>,
    bell: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Inbox of {} news", self.news().len())
    }
}

impl Inbox {
    /// An empty one; `bell` is rung when something has arrived.
    pub fn new(bell: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { news: Mutex::default(), bell: Box::new(bell) })
    }

    fn news(&self) -> std::sync::MutexGuard<'_, VecDeque<(u64, News)>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has become of sequence `number`.
    pub fn put(&self, number: u64, news: News) {
        self.news().push_back((number, news));
        (self.bell)();
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.news().is_empty()
    }

    /// All that have arrived, in order.
    pub fn take(&self) -> VecDeque<(u64, News)> {
        std::mem::take(&mut self.news())
    }
}

/// Keys of a text's pages: they say which pages hold the same without saying what.
///
/// A key is a digest, under a secret of this node's, of all tokens up to the page's end. Stages find
/// what they kept by it and learn nothing else.
#[derive(Debug, Clone, Default)]
pub struct PageKeys {
    keys: Vec<[u8; 32]>,
}

impl PageKeys {
    /// Makes keys for the first `pages` full pages of `text`, as far as they are not made yet.
    pub fn extend(&mut self, secret: &[u8; 32], text: &[u32], page: usize, pages: usize) {
        for tokens in text.chunks_exact(page).take(pages).skip(self.keys.len()) {
            let mut hasher = blake3::Hasher::new_keyed(secret);
            hasher.update(self.keys.last().map_or(&[], |key| &key[..]));
            tokens.iter().for_each(|token| {
                hasher.update(&token.to_le_bytes());
            });
            self.keys.push(*hasher.finalize().as_bytes());
        }
    }

    /// The keys of pages `first..end`, as stages are told them.
    pub fn told(&self, first: usize, end: usize) -> Vec<u8> {
        self.keys[first..end].iter().flat_map(|key| key[..PAGE_KEY].to_vec()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_all_tokens_before_and_on_the_secret() {
        let keys = |secret: u8, text: &[u32]| {
            let mut keys = PageKeys::default();
            keys.extend(&[secret; 32], text, 2, text.len() / 2);
            keys.told(0, text.len() / 2)
        };
        let one = keys(1, &[1, 2, 3, 4]);
        assert_eq!(one.len(), 2 * PAGE_KEY);
        assert_eq!(one[..PAGE_KEY], keys(1, &[1, 2, 9])[..]);
        assert_ne!(one[PAGE_KEY..], keys(1, &[9, 2, 3, 4])[PAGE_KEY..]);
        assert_ne!(one, keys(2, &[1, 2, 3, 4]));
    }
}
