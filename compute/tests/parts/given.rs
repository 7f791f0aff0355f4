//! Models, parts of them, and dice.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use compute::engine::{Ends, KernelChoice, LoadError, LoadOptions, Model, Part};

/// The small models of every architecture and weight type.
pub fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    assert!(paths.len() >= 22, "{paths:?}");
    paths
}

/// One of them.
pub fn file(name: &str) -> PathBuf {
    files().into_iter().find(|path| path.file_stem().is_some_and(|stem| stem == name)).unwrap()
}

pub fn try_load(path: &Path, threads: usize, part: Option<Part>) -> Result<Arc<Model>, LoadError> {
    let options = LoadOptions { threads, kernels: KernelChoice::Auto, part };
    Model::load(path, &options, &mut |_, _| {})
}

pub fn whole(path: &Path) -> Arc<Model> {
    try_load(path, 1, None).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

pub fn part(path: &Path, threads: usize, halves: Range<usize>, ends: Ends) -> Arc<Model> {
    let part = Part { halves, ends };
    try_load(path, threads, Some(part)).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

pub fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}
