//! The Merkle tree over a part's chunks.
//!
//! **Invariant:** an inner node cannot pass for a leaf, nor a tree for one with another number of
//! leaves: leaves, nodes and roots are digests in different domains, and a root is over the count.

use rs_merkle::{Hasher, MerkleProof, MerkleTree};

/// The domains of the three kinds of digests.
const LEAF: u8 = 16;
const NODE: u8 = 17;
const ROOT: u8 = 18;
/// Bytes of a digest.
const DIGEST: usize = 32;
/// Digests in the proof of one chunk: a level for each bit of a count of chunks.
const LEVELS_MAX: usize = 32;

/// The digest of a chunk.
pub type Leaf = [u8; DIGEST];

/// How `rs_merkle` joins digests here.
#[derive(Clone)]
struct Blake3;

impl Hasher for Blake3 {
    type Hash = Leaf;

    fn hash(data: &[u8]) -> Leaf {
        wire::digest(NODE, data)
    }
}

/// All leaves of a part, and what is above them.
#[derive(Clone)]
pub struct Tree {
    inner: MerkleTree<Blake3>,
    leaves: Vec<Leaf>,
}

impl Tree {
    /// Over `leaves`, of which there may be none.
    pub fn new(leaves: Vec<Leaf>) -> Self {
        Self { inner: MerkleTree::from_leaves(&leaves), leaves }
    }

    /// What a manifest says of the part.
    pub fn root(&self) -> Leaf {
        bind(self.inner.root().unwrap_or_default(), self.leaves.len())
    }

    /// The leaves.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// What proves chunk `number`, in bytes; `None` where there is no such chunk.
    pub fn proof(&self, number: usize) -> Option<Vec<u8>> {
        self.leaves.get(number)?;
        Some(self.inner.proof(&[number]).to_bytes())
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tree of {} leaves", self.leaves.len())
    }
}

/// The digest of a chunk's bytes.
pub fn leaf(chunk: &[u8]) -> Leaf {
    wire::digest(LEAF, chunk)
}

/// Whether `proof` shows that `leaf` is number `number` of the `count` under `root`.
pub fn proves(proof: &[u8], root: &[u8], leaf: Leaf, number: usize, count: usize) -> bool {
    if number >= count || !proof.len().is_multiple_of(DIGEST) {
        return false;
    }
    if proof.len() != DIGEST * steps(number, count) {
        return false;
    }
    let Ok(proof) = MerkleProof::<Blake3>::from_bytes(proof) else { return false };
    let Ok(inner) = proof.root(&[number], &[leaf], count) else { return false };
    bind(inner, count)[..] == *root
}

/// Digests that the proof of leaf `number` of `count` has: one for each level on which it, or what
/// stands for it, has a sibling.
fn steps(mut number: usize, mut count: usize) -> usize {
    let mut steps = 0;
    for _ in 0..LEVELS_MAX {
        if count <= 1 {
            break;
        }
        steps += usize::from(number ^ 1 < count);
        number /= 2;
        count = count.div_ceil(2);
    }
    steps
}

fn bind(inner: Leaf, count: usize) -> Leaf {
    wire::digest(ROOT, &[&(count as u64).to_le_bytes()[..], &inner].concat())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tree(count: usize) -> Tree {
        Tree::new((0..count).map(|n| leaf(&n.to_le_bytes())).collect())
    }

    proptest! {
        #[test]
        fn each_chunk_of_a_tree_is_proven_as_what_it_is_and_as_nothing_else(
            count in 1usize..70,
            number in 0usize..70,
            other in 0usize..70,
        ) {
            let (number, other) = (number % count, other % count);
            let tree = tree(count);
            let (root, proof) = (tree.root(), tree.proof(number).unwrap());
            let own = tree.leaves()[number];
            prop_assert!(proves(&proof, &root, own, number, count));
            if other != number {
                prop_assert!(!proves(&proof, &root, tree.leaves()[other], number, count));
                prop_assert!(!proves(&proof, &root, own, other, count));
            }
            prop_assert!(!proves(&proof, &root, own, number, count + 1));
            prop_assert!(!proves(&[&proof[..], &own].concat(), &root, own, number, count));
            prop_assert!(!proves(&proof, &root, own, count, count));
            for at in (0..proof.len()).step_by(7) {
                let mut damaged = proof.clone();
                damaged[at] ^= 1;
                prop_assert!(!proves(&damaged, &root, own, number, count));
            }
        }

        #[test]
        fn no_proof_makes_this_panic(
            proof in proptest::collection::vec(any::<u8>(), 0..2048),
            number: u32,
            count: u32,
        ) {
            let root = tree(3).root();
            prop_assert!(!proves(&proof, &root, [7; 32], number as usize, count as usize));
        }
    }

    #[test]
    fn an_inner_node_is_no_leaf_of_a_smaller_tree() {
        let four = tree(4);
        let pairs = four.leaves().chunks(2).map(|pair| wire::digest(NODE, &pair.concat()));
        let two = Tree::new(pairs.collect());
        assert_eq!(two.inner.root(), four.inner.root(), "rs_merkle alone takes one for the other");
        assert_ne!(two.root(), four.root());
        let proof = two.proof(0).unwrap();
        assert!(!proves(&proof, &four.root(), two.leaves()[0], 0, 2));
    }

    #[test]
    fn roots_are_what_they_have_always_been() {
        let hex = |count| -> String {
            tree(count).root()[..4].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(
            [0, 1, 2, 3, 1000].map(hex),
            ["547f8319", "c0e382b7", "af7c35a0", "9bbf97c0", "06b7d121"]
        );
    }
}
