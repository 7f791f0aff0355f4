//! What is known of what is here, as long as the program runs.

use std::collections::{BTreeMap, BTreeSet};

use compute::parts::{Chunk, FileParts};

use super::held::Held;
use crate::shell::weights::lead::{Lead, Spot};
use crate::shell::weights::record::Entry;
use crate::shell::weights::survey::part_of;

/// Where chunks lie.
pub enum Layout {
    /// Only the headers' are known.
    Lead(Lead),
    /// All are.
    Known(FileParts),
}

/// What is known of what is here.
pub struct Inner {
    pub layout: Layout,
    /// The parts of which something is here or wanted.
    pub parts: BTreeMap<u32, Held>,
    /// Written, and perhaps not on disk yet.
    pub pending: Vec<Entry>,
    pub pending_bytes: u64,
    /// How many use the model.
    pub holds: usize,
}

impl Inner {
    pub fn new(layout: Layout, parts: BTreeMap<u32, Held>) -> Self {
        Self { layout, parts, pending: Vec::new(), pending_bytes: 0, holds: 0 }
    }

    /// What is held of `part`, which has `count` chunks.
    pub fn held(&mut self, part: u32, count: u32) -> &mut Held {
        let layout = &self.layout;
        self.parts.entry(part).or_insert_with(|| {
            let mut held = Held::empty(count as usize);
            if let Layout::Known(layout) = layout {
                held.set_spots(layout.chunks(part_of(part)).collect());
            }
            held
        })
    }

    /// All is known of where chunks lie.
    pub fn set_layout(&mut self, layout: FileParts) {
        for (&part, held) in &mut self.parts {
            held.set_spots(layout.chunks(part_of(part)).collect());
        }
        self.layout = Layout::Known(layout);
    }

    /// Where chunk `chunk` of `part` lies, if anybody can say. `bytes` is the chunk, which was proven,
    /// and so may tell where others lie.
    pub fn place(&mut self, part: u32, count: u32, chunk: u32, bytes: &[u8]) -> Option<Chunk> {
        match &mut self.layout {
            Layout::Known(_) => self.held(part, count).spots.get(chunk as usize).cloned(),
            Layout::Lead(_) if part != super::HEAD => None,
            Layout::Lead(lead) => {
                if lead.spot(chunk) == Spot::Probe {
                    lead.probed(bytes);
                }
                match lead.spot(chunk) {
                    Spot::At(at) => Some(at),
                    Spot::Probe | Spot::Later => None,
                }
            }
        }
    }

    /// The chunks of `part` whose places are known, by number.
    pub fn spots(&self, part: u32) -> Vec<(u32, Chunk)> {
        match &self.layout {
            Layout::Lead(lead) if part == super::HEAD => {
                lead.known().map(|(number, at)| (number as u32, at)).collect()
            }
            Layout::Lead(_) => Vec::new(),
            Layout::Known(_) => {
                let held = self.parts.get(&part);
                (0..).zip(held.into_iter().flat_map(|held| held.spots.clone())).collect()
            }
        }
    }

    /// Whether the headers are all here and were not read yet.
    pub fn can_read_headers(&self) -> bool {
        let Layout::Lead(lead) = &self.layout else { return false };
        let head = self.parts.get(&super::HEAD);
        let here = |number: usize| head.is_some_and(|held| held.has(number as u32));
        lead.is_settled() && lead.known().all(|(number, _)| here(number))
    }

    /// All that is here and on disk.
    pub fn entries(&self) -> Vec<Entry> {
        let pending: BTreeSet<(u32, u32)> =
            self.pending.iter().map(|entry| (entry.part, entry.chunk)).collect();
        let all = self.parts.iter().flat_map(|(&part, held)| {
            held.here().map(move |(chunk, leaf)| Entry { part, chunk, leaf })
        });
        all.filter(|entry| !pending.contains(&(entry.part, entry.chunk))).collect()
    }

    /// A chunk is not here any more.
    pub fn lose(&mut self, part: u32, chunk: u32) {
        if let Some(held) = self.parts.get_mut(&part) {
            held.lose(chunk);
        }
    }
}
