//! How a model is spread evenly over the nodes of a local hive.

use compute::blueprint::Blueprint;
use compute::engine::{Ends, Part};

use crate::house::place::OVERHEAD_BYTES;
use crate::shell::hive::desk::POSITIONS_MAX;

/// What each node of a local hive is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Nodes beside the first that compute a stage each.
    pub stages: u32,
    /// Layers of the longest stage.
    pub stage_layers: u32,
    /// Memory that the first node gives to its own share: so much that the others are needed.
    pub own_mb: u64,
    /// Memory that each other node lends: its stage, and those for which it stands by.
    pub lend_mb: u64,
}

impl Shares {
    /// Of the model for `nodes` nodes and sequences of `positions` positions, where each stage has
    /// `spares` that stand by. `None` where one node is all, or the model has but one layer.
    pub fn of(model: &Blueprint, nodes: u32, positions: u64, spares: u32) -> Option<Self> {
        let layers = u32::try_from(model.layers).unwrap_or(u32::MAX);
        let stages = (nodes - 1).min(layers.saturating_sub(1));
        if stages == 0 {
            return None;
        }
        let front = (layers / nodes).max(1);
        let stage_layers = (layers - front).div_ceil(stages);
        let ends = Part { halves: 0..2 * front as usize, ends: Ends::Here };
        let own = model.weight_bytes(&ends) + kv_bytes(model, front) * positions;
        // A part that is lent takes pages for as many sequences as it ever will, if it can.
        let part =
            longest(model, stage_layers) + kv_bytes(model, stage_layers) * POSITIONS_MAX as u64;
        // Spares are given out one after the other: who is first must not leave the last with none.
        let parts = if spares == 0 { 1 } else { 2 + u64::from(spares) };
        let lend = (part + OVERHEAD_BYTES) * parts;
        Some(Self { stages, stage_layers, own_mb: mb(own + OVERHEAD_BYTES), lend_mb: mb(lend) })
    }
}

/// KV cache of so many layers for one position.
fn kv_bytes(model: &Blueprint, layers: u32) -> u64 {
    model.kv_bytes_per_token(&(0..2 * layers as usize))
}

/// The most that weights of so many layers in a row take.
fn longest(model: &Blueprint, layers: u32) -> u64 {
    let sums = model.half_bytes.windows(2 * layers as usize).map(|halves| halves.iter().sum());
    sums.max().unwrap_or(0)
}

/// Megabytes, rounded up.
fn mb(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::toy;

    fn toy(layers: usize) -> Blueprint {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("toy.gguf");
        toy::write_layers(&path, layers).unwrap();
        Blueprint::read(&path).unwrap()
    }

    fn check(layers: usize, nodes: u32, stages: u32, stage_layers: u32) {
        let shares = Shares::of(&toy(layers), nodes, 1000, 1).unwrap();
        assert_eq!((shares.stages, shares.stage_layers), (stages, stage_layers));
    }

    #[test]
    fn layers_are_spread_evenly_and_nobody_is_left_without_one() {
        check(9, 3, 2, 3);
        check(8, 3, 2, 3);
        check(10, 4, 3, 3);
        check(2, 2, 1, 1);
        check(2, 5, 1, 1);
        check(6, 6, 5, 1);
        assert_eq!(Shares::of(&toy(4), 1, 1000, 1), None);
        assert_eq!(Shares::of(&toy(1), 3, 1000, 1), None);
    }

    #[test]
    fn the_first_node_has_memory_for_its_share_and_not_for_all() {
        let toy = toy(12);
        let shares = Shares::of(&toy, 3, 1000, 0).unwrap();
        let all = toy.weight_bytes(&toy.whole()) + OVERHEAD_BYTES;
        let own = shares.own_mb * 1_000_000;
        assert!(OVERHEAD_BYTES < own && own < all, "{own} of {all}");
    }

    #[test]
    fn who_stands_by_lends_memory_for_that_too() {
        let lend = |spares| Shares::of(&toy(6), 3, 1000, spares).unwrap().lend_mb;
        assert!(lend(1).abs_diff(3 * lend(0)) <= 2 && lend(2).abs_diff(4 * lend(0)) <= 3);
    }
}
