//! Who is next: equal shares of a busy node for all owners, whatever the number and size of their
//! requests.
//!
//! Each owner has a queue and an account of tokens computed for it. The next request is the oldest
//! of the owner with the smallest account. An owner that was away does not come back with savings:
//! its account is raised to the smallest of those that are there.

use std::collections::{BTreeMap, VecDeque};

/// Whose a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(pub u64);

/// Queues of requests, one for each owner.
#[derive(Debug)]
pub struct Queues<T> {
    owners: BTreeMap<Owner, Account<T>>,
    waiting: usize,
    /// The smallest account of late: what newcomers begin with.
    floor: u64,
}

#[derive(Debug)]
struct Account<T> {
    tokens: u64,
    queue: VecDeque<T>,
    /// Requests of this owner that are being worked on.
    working: usize,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { owners: BTreeMap::new(), waiting: 0, floor: 0 }
    }
}

impl<T> Queues<T> {
    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Puts a request at the end of its owner's queue.
    pub fn push(&mut self, owner: Owner, request: T) {
        let floor = self.floor();
        let account = self.owners.entry(owner).or_insert_with(|| Account {
            tokens: floor,
            queue: VecDeque::new(),
            working: 0,
        });
        account.queue.push_back(request);
        self.waiting += 1;
    }

    /// Takes out the next request; it counts as being worked on until [`Queues::done`].
    pub fn pop(&mut self) -> Option<(Owner, T)> {
        let waiting = self.owners.iter_mut().filter(|(_, account)| !account.queue.is_empty());
        let (owner, account) = waiting.min_by_key(|(_, account)| account.tokens)?;
        let request = account.queue.pop_front()?;
        account.working += 1;
        self.waiting -= 1;
        Some((*owner, request))
    }

    /// `tokens` have been computed for `owner`, which has requests here.
    pub fn charge(&mut self, owner: Owner, tokens: u64) {
        if let Some(account) = self.owners.get_mut(&owner) {
            account.tokens = account.tokens.saturating_add(tokens);
        }
    }

    /// A request of `owner` that was taken out is done.
    pub fn done(&mut self, owner: Owner) {
        if let Some(account) = self.owners.get_mut(&owner) {
            account.working = account.working.saturating_sub(1);
        }
        self.forget();
    }

    /// Takes out all waiting requests that `unwanted` names.
    pub fn take_out(&mut self, unwanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut gone = Vec::new();
        for account in self.owners.values_mut() {
            for request in std::mem::take(&mut account.queue) {
                match unwanted(&request) {
                    true => gone.push(request),
                    false => account.queue.push_back(request),
                }
            }
        }
        self.waiting -= gone.len();
        self.forget();
        gone
    }

    /// Raises the floor, and forgets owners that have nothing here any more.
    fn forget(&mut self) {
        self.floor = self.floor();
        self.owners.retain(|_, account| !account.queue.is_empty() || account.working > 0);
    }

    fn floor(&self) -> u64 {
        let least = self.owners.values().map(|account| account.tokens).min();
        least.map_or(self.floor, |least| least.max(self.floor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_with_many_requests_does_not_delay_one_with_few() {
        let mut queues = Queues::default();
        (0..5).for_each(|n| queues.push(Owner(1), n));
        queues.push(Owner(2), 10);
        assert_eq!(queues.pop(), Some((Owner(1), 0)));
        queues.charge(Owner(1), 100);
        assert_eq!(queues.pop(), Some((Owner(2), 10)));
        assert_eq!(queues.pop(), Some((Owner(1), 1)));
        assert_eq!(queues.waiting(), 3);
    }

    #[test]
    fn shares_are_equal_in_tokens_not_in_requests() {
        let mut queues = Queues::default();
        let mut served = [0, 0];
        for n in 0..1000 {
            queues.push(Owner(0), n);
            queues.push(Owner(1), n);
        }
        for _ in 0..600 {
            let (owner, _) = queues.pop().unwrap();
            // The first one's requests are nine times as large.
            let tokens = if owner == Owner(0) { 900 } else { 100 };
            queues.charge(owner, tokens);
            served[owner.0 as usize] += tokens;
            queues.done(owner);
        }
        let [a, b] = served;
        assert!(a.abs_diff(b) <= 900, "{served:?}");
    }

    #[test]
    fn who_was_away_has_no_savings() {
        let mut queues = Queues::default();
        queues.push(Owner(1), 0);
        queues.pop();
        queues.charge(Owner(1), 1_000_000);
        queues.push(Owner(2), 1);
        queues.pop();
        queues.done(Owner(2));
        (0..4).for_each(|n| queues.push(Owner(1), n));
        (0..4).for_each(|n| queues.push(Owner(2), n));
        let mut first = [0, 0];
        for _ in 0..4 {
            let (owner, _) = queues.pop().unwrap();
            queues.charge(owner, 10);
            first[owner.0 as usize - 1] += 1;
        }
        assert_eq!(first, [2, 2]);
    }

    #[test]
    fn owners_that_are_gone_are_forgotten() {
        let mut queues = Queues::default();
        for n in 0..100 {
            queues.push(Owner(n), n);
            queues.pop();
            queues.done(Owner(n));
        }
        assert_eq!(queues.owners.len(), 0);
        queues.push(Owner(1), 7);
        assert_eq!(queues.take_out(|request| *request == 7), [7]);
        assert_eq!((queues.waiting(), queues.owners.len()), (0, 0));
    }
}
