//! Whose rows a stage computes next: all who wait for one token, and a share of prompts, requesters
//! in turns.

use std::collections::{BTreeMap, VecDeque};

use wire::NodeId;

/// Rows of a frame with which somebody waits for the next token; more are a prompt.
pub const FEW: u32 = 16;
/// Rows of prompts in a pass while others wait for tokens, and while nobody does: a frame may go
/// beyond it, but none begins after it.
const PROMPT_ROWS_WATCHED: u32 = 64;
const PROMPT_ROWS: u32 = 256;
/// Frames in a pass.
const FRAMES_MAX: usize = 64;

/// The next frame of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Whose.
    pub requester: NodeId,
    /// Its rows.
    pub rows: u32,
}

/// Remembers whose turn it was.
#[derive(Debug, Default)]
pub struct Turns {
    /// Rows of prompts computed for each requester that is here.
    accounts: BTreeMap<NodeId, u64>,
}

impl Turns {
    /// Which of `waiting` are computed together next, by their places.
    pub fn next(&mut self, waiting: &[Waiting]) -> Vec<usize> {
        let few = |i: &usize| waiting[*i].rows <= FEW;
        let (short, long): (Vec<usize>, Vec<usize>) = (0..waiting.len()).partition(few);
        let mut chosen = self.in_turns(waiting, short, u32::MAX);
        chosen.truncate(FRAMES_MAX);
        let most = if chosen.is_empty() { PROMPT_ROWS } else { PROMPT_ROWS_WATCHED };
        let room = FRAMES_MAX - chosen.len();
        let prompts = self.in_turns(waiting, long, most);
        for i in prompts.into_iter().take(room) {
            *self.account(waiting[i].requester) += u64::from(waiting[i].rows);
            chosen.push(i);
        }
        let here = |node: &NodeId| waiting.iter().any(|w| w.requester == *node);
        self.accounts.retain(|node, _| here(node));
        chosen
    }

    /// The account of a requester; one who comes anew has no savings.
    fn account(&mut self, requester: NodeId) -> &mut u64 {
        let floor = self.accounts.values().min().copied().unwrap_or(0);
        self.accounts.entry(requester).or_insert(floor)
    }

    /// Frames of `which`, one of each requester after the other, those with the smallest accounts
    /// first, until there are `most` rows.
    fn in_turns(&mut self, waiting: &[Waiting], which: Vec<usize>, most: u32) -> Vec<usize> {
        let mut queues: BTreeMap<NodeId, VecDeque<usize>> = BTreeMap::new();
        for i in which {
            queues.entry(waiting[i].requester).or_default().push_back(i);
        }
        let mut owners: Vec<(u64, NodeId)> =
            queues.keys().map(|node| (*self.account(*node), *node)).collect();
        owners.sort_unstable();
        let (mut rows, mut chosen) = (0u32, Vec::new());
        loop {
            let before = chosen.len();
            for (_, node) in &owners {
                if rows >= most {
                    return chosen;
                }
                let Some(i) = queues.get_mut(node).and_then(VecDeque::pop_front) else { continue };
                rows = rows.saturating_add(waiting[i].rows);
                chosen.push(i);
            }
            if chosen.len() == before {
                return chosen;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(requester: u8, rows: u32) -> Waiting {
        Waiting { requester: NodeId([requester; 32]), rows }
    }

    #[test]
    fn whoever_waits_for_a_token_is_served_before_prompts() {
        let waiting = [frame(1, 200), frame(2, 1), frame(1, 5), frame(3, 100)];
        let mut turns = Turns::default();
        assert_eq!(turns.next(&waiting), [2, 1, 0]);
        assert_eq!(turns.next(&waiting[..1]), [0]);
    }

    #[test]
    fn one_with_many_prompts_does_not_keep_others_from_their_turn() {
        let mut turns = Turns::default();
        let mut served = [0; 3];
        for _ in 0..30 {
            // Requester 1 always has six prompts waiting, requester 2 one.
            let mut waiting = vec![frame(1, 100); 6];
            waiting.push(frame(2, 100));
            for i in turns.next(&waiting) {
                served[usize::from(waiting[i].requester.0[0])] += 1;
            }
        }
        assert!(served[2] >= 28 && served[1] >= 28, "{served:?}");
    }

    #[test]
    fn a_pass_is_bounded_and_never_empty_while_somebody_waits() {
        let waiting = vec![frame(1, 512); 100];
        assert_eq!(Turns::default().next(&waiting).len(), 1);
        let waiting = vec![frame(1, 1); 100];
        assert_eq!(Turns::default().next(&waiting).len(), FRAMES_MAX);
        assert!(Turns::default().next(&[]).is_empty());
    }
}
