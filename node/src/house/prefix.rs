//! What has been computed before: pages of a KV cache, found again by the tokens that they hold.
//!
//! A tree whose paths are texts: a node holds one page, the tokens of it, and its children are the
//! pages that followed. A page is found only under the very tokens that come before it, in one model
//! and class (each has a tree of its own), so what is found is what would be computed.
//!
//! **Invariant:** only a leaf is partial, and only a leaf is ever given up. Who inserts a text goes on
//! with the pages that are returned: then a page in use has no idle page before it, and all that is
//! idle can be given up, leaf by leaf.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;

/// Requests that a page outlives others by, for each doubling of its uses.
const REQUESTS_PER_DOUBLING: u64 = 16;

/// Pages under the tokens that they hold. `P` is a handle of a page, cheap to clone.
#[derive(Debug)]
pub struct Prefixes<P> {
    /// Tokens in a full page.
    page: usize,
    /// Node 0 is the root, whose page is never looked at.
    nodes: Vec<Option<Node<P>>>,
    spare: Vec<usize>,
    root: BTreeMap<Box<[u32]>, usize>,
    /// Requests seen so far: the clock by which pages age.
    now: u64,
}

#[derive(Debug)]
struct Node<P> {
    parent: Option<usize>,
    tokens: Box<[u32]>,
    page: P,
    children: BTreeMap<Box<[u32]>, usize>,
    used_last: u64,
    uses: u64,
}

impl<P> Node<P> {
    /// Pages with a lower worth are given up first.
    fn worth(&self) -> u64 {
        self.used_last + REQUESTS_PER_DOUBLING * u64::from(self.uses.max(1).ilog2())
    }
}

/// What is known of a text's beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<P> {
    /// Its pages, in order; of the last one perhaps only a part belongs to the text.
    pub pages: Vec<P>,
    /// Tokens of the text that they hold.
    pub tokens: usize,
}

impl<P: Clone> Prefixes<P> {
    /// Of pages that hold `page` tokens each.
    pub fn new(page: usize) -> Self {
        Self { page, nodes: Vec::new(), spare: Vec::new(), root: BTreeMap::new(), now: 0 }
    }

    /// Pages held.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.nodes.len() - self.spare.len()
    }

    /// How many of the first tokens of `tokens` are known, without counting as a use.
    pub fn known(&self, tokens: &[u32]) -> usize {
        let (path, part) = self.path(tokens);
        path.len() * self.page + part.map_or(0, |(_, same)| same)
    }

    /// How many full pages of `tokens` are known of which `which` holds.
    pub fn full_pages(&self, tokens: &[u32], which: impl Fn(&P) -> bool) -> usize {
        let (path, _) = self.path(tokens);
        path.into_iter().filter(|id| which(&self.node(*id).page)).count()
    }

    /// The longest beginning of `tokens` that is known; all pages on the way have been of use.
    pub fn find(&mut self, tokens: &[u32]) -> Found<P> {
        self.now += 1;
        let (mut path, part) = self.path(tokens);
        let mut count = path.len() * self.page;
        if let Some((node, same)) = part {
            path.push(node);
            count += same;
        }
        let mut pages = Vec::with_capacity(path.len());
        for id in path {
            let node = self.nodes[id].as_mut().expect("paths lead through nodes that exist");
            node.used_last = self.now;
            node.uses += 1;
            pages.push(node.page.clone());
        }
        Found { pages, tokens: count }
    }

    /// Full pages that `tokens` begin with, and the child that goes on like them for a while: (node,
    /// tokens that are the same).
    fn path(&self, tokens: &[u32]) -> (Vec<usize>, Option<(usize, usize)>) {
        let mut path = Vec::new();
        for chunk in tokens.chunks(self.page) {
            let children = self.children(path.last().copied());
            match children.get(chunk) {
                Some(&child) if chunk.len() == self.page => path.push(child),
                _ => return (path, closest(children, chunk)),
            }
        }
        (path, None)
    }

    /// Remembers that `pages` hold `tokens`, whose last page may be partial. What is known already
    /// stays as it is; the pages that now hold the text are returned, as far as they are full.
    pub fn insert(&mut self, tokens: &[u32], pages: &[P]) -> Vec<P> {
        let mut parent = None;
        let mut held = Vec::with_capacity(pages.len());
        for (chunk, page) in tokens.chunks(self.page).zip(pages) {
            let children = self.children(parent);
            if let Some(&known) = children.get(chunk) {
                held.push(self.node(known).page.clone());
                parent = Some(known);
                continue;
            }
            let shorter = closest(children, chunk);
            let longer = shorter.filter(|(_, same)| *same == chunk.len());
            if longer.is_some() {
                // A page that begins like this partial one, and holds more, is there.
                break;
            }
            let outdated =
                shorter.filter(|(id, same)| self.node(*id).tokens.len() == *same).map(|(id, _)| id);
            if let Some(id) = outdated {
                // A partial page that this one continues: it has nothing more to give.
                self.remove(id);
            }
            parent = Some(self.add(parent, chunk, page.clone()));
            held.push(page.clone());
        }
        held.truncate(tokens.len() / self.page);
        held
    }

    /// Gives up pages for which `idle` holds, least worth first, until `count` are; how many were.
    pub fn give_up(&mut self, count: usize, idle: impl Fn(&P) -> bool) -> usize {
        let leaf = |(id, node): (usize, &Option<Node<P>>)| {
            let node = node.as_ref().filter(|node| node.children.is_empty() && idle(&node.page))?;
            Some(Reverse((node.worth(), id)))
        };
        let mut leaves: BinaryHeap<_> = self.nodes.iter().enumerate().filter_map(leaf).collect();
        let mut gone = 0;
        while gone < count {
            let Some(Reverse((_, id))) = leaves.pop() else { break };
            let parent = self.node(id).parent;
            self.remove(id);
            gone += 1;
            if let Some(id) = parent
                && self.node(id).children.is_empty()
                && idle(&self.node(id).page)
            {
                leaves.push(Reverse((self.node(id).worth(), id)));
            }
        }
        gone
    }

    /// Pages for which `idle` holds: those that could be given up, now or after their children.
    pub fn idle(&self, idle: impl Fn(&P) -> bool) -> usize {
        self.nodes.iter().flatten().filter(|node| idle(&node.page)).count()
    }

    fn node(&self, id: usize) -> &Node<P> {
        self.nodes[id].as_ref().expect("ids are of nodes that exist")
    }

    fn children(&self, parent: Option<usize>) -> &BTreeMap<Box<[u32]>, usize> {
        parent.map_or(&self.root, |id| &self.node(id).children)
    }

    fn children_mut(&mut self, parent: Option<usize>) -> &mut BTreeMap<Box<[u32]>, usize> {
        match parent {
            None => &mut self.root,
            Some(id) => &mut self.nodes[id].as_mut().expect("ids are of nodes that exist").children,
        }
    }

    fn add(&mut self, parent: Option<usize>, tokens: &[u32], page: P) -> usize {
        let tokens: Box<[u32]> = tokens.into();
        let node = Node {
            parent,
            tokens: tokens.clone(),
            page,
            children: BTreeMap::new(),
            used_last: self.now,
            uses: 1,
        };
        let id = self.spare.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[id] = Some(node);
        self.children_mut(parent).insert(tokens, id);
        id
    }

    fn remove(&mut self, id: usize) {
        let node = self.nodes[id].take().expect("ids are of nodes that exist");
        assert!(node.children.is_empty(), "only leaves are given up");
        self.children_mut(node.parent).remove(&node.tokens);
        self.spare.push(id);
    }
}

/// The child that shares the most first tokens with `tokens`, one or more: (node, how many).
fn closest(children: &BTreeMap<Box<[u32]>, usize>, tokens: &[u32]) -> Option<(usize, usize)> {
    // In the order of tokens, the most alike is a neighbour.
    let before = children.range::<[u32], _>((Bound::Unbounded, Bound::Included(tokens)));
    let after = children.range::<[u32], _>((Bound::Excluded(tokens), Bound::Unbounded));
    let neighbours = before.last().into_iter().chain(after.take(1));
    let alike = |key: &[u32]| key.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    neighbours
        .map(|(key, id)| (*id, alike(key)))
        .filter(|(_, same)| *same > 0)
        .max_by_key(|(_, same)| *same)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(pages: &[u32], tokens: usize) -> Found<u32> {
        Found { pages: pages.to_vec(), tokens }
    }

    /// A tree of pages of four tokens.
    fn tree(texts: &[(&[u32], &[u32])]) -> Prefixes<u32> {
        let mut tree = Prefixes::new(4);
        for (tokens, pages) in texts {
            tree.insert(tokens, pages);
        }
        tree
    }

    #[test]
    fn the_longest_known_beginning_is_found() {
        let mut tree = tree(&[(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &[10, 11, 12])]);
        assert_eq!(tree.find(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 9]), found(&[10, 11, 12], 9));
        assert_eq!(tree.find(&[1, 2, 3, 4, 5, 6, 0, 0]), found(&[10, 11], 6));
        assert_eq!(tree.find(&[1, 2, 3]), found(&[10], 3));
        assert_eq!(tree.find(&[2]), found(&[], 0));
        assert_eq!(tree.find(&[]), found(&[], 0));
        assert_eq!(tree.known(&[1, 2, 3, 4, 5]), 5);
    }

    #[test]
    fn a_page_is_found_only_after_what_came_before_it() {
        let mut tree = tree(&[(&[1, 1, 1, 1, 5, 5, 5, 5], &[10, 11])]);
        assert_eq!(tree.find(&[5, 5, 5, 5]), found(&[], 0));
        assert_eq!(tree.find(&[2, 1, 1, 1, 5, 5, 5, 5]), found(&[], 0));
    }

    #[test]
    fn a_longer_page_takes_the_place_of_the_partial_one_that_it_continues() {
        let mut tree =
            tree(&[(&[1, 2], &[10]), (&[1, 2, 3], &[11]), (&[1, 2, 3, 4, 5], &[12, 13])]);
        assert_eq!(tree.held(), 2);
        assert_eq!(tree.find(&[1, 2, 3, 4, 5]), found(&[12, 13], 5));
        tree.insert(&[1, 2], &[20]);
        assert_eq!(tree.held(), 2);
        tree.insert(&[1, 3], &[21]);
        assert_eq!((tree.held(), tree.find(&[1, 3, 9])), (3, found(&[21], 2)));
    }

    #[test]
    fn who_brings_what_is_known_goes_on_with_the_pages_that_are_there() {
        let mut tree = tree(&[(&[1, 1, 1, 1, 2, 2], &[10, 11])]);
        let own = tree.insert(&[1, 1, 1, 1, 2, 2, 2, 2, 3], &[20, 21, 22]);
        assert_eq!(own, [10, 21]);
        assert_eq!(tree.find(&[1, 1, 1, 1, 2, 2, 2, 2, 3]), found(&[10, 21, 22], 9));
        // Pages 20 and 11 are nobody's any more, and all others are in use or can be given up.
        assert_eq!(tree.give_up(9, |page| *page != 10), 2);
    }

    #[test]
    fn what_is_old_and_seldom_used_is_given_up_first_and_leaves_before_their_parents() {
        let mut tree = tree(&[(&[1, 1, 1, 1, 2, 2, 2, 2], &[10, 11]), (&[3, 3, 3, 3], &[12])]);
        for _ in 0..4 {
            tree.find(&[3, 3, 3, 3]);
        }
        assert_eq!(tree.give_up(1, |_| true), 1);
        assert_eq!(tree.find(&[1, 1, 1, 1, 2, 2, 2, 2]), found(&[10], 4));
        // In use by a sequence: stays.
        assert_eq!(tree.give_up(9, |page| *page != 10), 1);
        assert_eq!((tree.held(), tree.idle(|page| *page != 10)), (1, 0));
    }

    proptest! {
        /// The definition: of all texts inserted, the longest common beginning.
        #[test]
        fn it_finds_what_a_list_of_texts_would(
            texts in prop::collection::vec(prop::collection::vec(0u32..3, 1..14), 1..12),
            wish in prop::collection::vec(0u32..3, 0..14),
        ) {
            let mut tree = Prefixes::new(3);
            for text in &texts {
                // A page is named by all the tokens up to its end.
                let pages: Vec<Vec<u32>> =
                    (1..=text.len().div_ceil(3)).map(|n| text[..text.len().min(3 * n)].to_vec()).collect();
                tree.insert(text, &pages);
            }
            let common = |text: &Vec<u32>| text.iter().zip(&wish).take_while(|(a, b)| a == b).count();
            let longest = texts.iter().map(common).max().unwrap_or(0);
            prop_assert_eq!(tree.known(&wish), longest);
            let found = tree.find(&wish);
            prop_assert_eq!(found.tokens, longest);
            prop_assert_eq!(found.pages.len(), longest.div_ceil(3));
            for (n, page) in found.pages.iter().enumerate() {
                let end = longest.min(3 * (n + 1));
                prop_assert_eq!(&page[..end], &wish[..end]);
            }
            let all = tree.held();
            prop_assert_eq!(tree.give_up(usize::MAX, |_| true), all);
            prop_assert_eq!(tree.held(), 0);
        }
    }
}
