//! What is here of one part of a model.

use std::sync::Arc;

use compute::parts::Chunk;

use crate::shell::weights::tree::{Leaf, Tree};

/// What is here of one part.
pub struct Held {
    /// Where its chunks lie, once known.
    pub spots: Vec<Chunk>,
    /// The tree, once all chunks are here.
    pub tree: Option<Arc<Tree>>,
    /// Whether what is here was hashed since the program began.
    pub checked: bool,
    /// How many use it.
    pub holds: usize,
    leaves: Vec<Option<Leaf>>,
    bytes: u64,
}

impl Held {
    /// Of a part of `count` chunks, of which nothing is here.
    pub fn empty(count: usize) -> Self {
        Self {
            spots: Vec::new(),
            tree: None,
            checked: true,
            holds: 0,
            leaves: vec![None; count],
            bytes: 0,
        }
    }

    /// All of a part.
    pub fn whole(tree: Tree, spots: Vec<Chunk>) -> Self {
        let leaves = tree.leaves().iter().copied().map(Some).collect();
        let bytes = spots.iter().map(|at| at.range.end - at.range.start).sum();
        Self { spots, tree: Some(Arc::new(tree)), checked: true, holds: 0, leaves, bytes }
    }

    /// Whether a chunk is here.
    pub fn has(&self, chunk: u32) -> bool {
        self.leaf(chunk).is_some()
    }

    /// The digest of a chunk that is here.
    pub fn leaf(&self, chunk: u32) -> Option<Leaf> {
        self.leaves.get(chunk as usize).copied().flatten()
    }

    /// The chunks that are here.
    pub fn here(&self) -> impl Iterator<Item = (u32, Leaf)> + '_ {
        (0..).zip(&self.leaves).filter_map(|(chunk, leaf)| Some((chunk, (*leaf)?)))
    }

    /// Whether nothing is here.
    pub fn is_empty(&self) -> bool {
        self.leaves.iter().all(Option::is_none)
    }

    /// Bytes of what is here.
    pub fn bytes_here(&self) -> u64 {
        self.bytes
    }

    /// Where its chunks lie is known now.
    pub fn set_spots(&mut self, spots: Vec<Chunk>) {
        self.spots = spots;
        self.bytes = self.here().map(|(chunk, _)| self.size(chunk)).sum();
    }

    /// A record says that a chunk is here.
    pub fn recall(&mut self, chunk: u32, leaf: Leaf) {
        let size = self.size(chunk);
        self.put(chunk, leaf, size);
        self.checked = false;
    }

    /// A chunk has come and was proven.
    pub fn put(&mut self, chunk: u32, leaf: Leaf, bytes: u64) {
        if self.leaves[chunk as usize].replace(leaf).is_none() {
            self.bytes += bytes;
        }
    }

    /// A chunk is not here any more.
    pub fn lose(&mut self, chunk: u32) {
        let size = self.size(chunk);
        if self.leaves.get_mut(chunk as usize).and_then(Option::take).is_some() {
            self.bytes = self.bytes.saturating_sub(size);
            self.tree = None;
        }
    }

    /// Makes the tree if all chunks are here, and says whether it did. If they are not what `root`
    /// says, as a damaged record may have it, none of them is here.
    pub fn complete(&mut self, root: &[u8]) -> bool {
        let leaves = self.leaves.iter().copied().collect::<Option<Vec<Leaf>>>();
        let Some(leaves) = leaves.filter(|_| self.tree.is_none()) else { return false };
        let tree = Tree::new(leaves);
        let right = tree.root()[..] == *root;
        if right {
            self.tree = Some(Arc::new(tree));
        } else {
            self.leaves.fill(None);
            self.bytes = 0;
        }
        right
    }

    fn size(&self, chunk: u32) -> u64 {
        self.spots.get(chunk as usize).map_or(0, |at| at.range.end - at.range.start)
    }
}
