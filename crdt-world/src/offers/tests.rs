use proptest::prelude::*;
use wire::{Health, Key, Neighbour, Word};

use super::*;

const NOW: Millis = Millis(10_000_000);

fn key(n: u16) -> Key {
    let mut secret = [7; 32];
    secret[..2].copy_from_slice(&n.to_be_bytes());
    Key::new(secret)
}

fn id(n: u16) -> NodeId {
    key(n).id()
}

/// An offer made `at`, that holds for a minute.
fn offer(n: u16, at: u64) -> Verified<Offer> {
    near(n, at, &[])
}

fn near(n: u16, at: u64, neighbours: &[(u16, u32)]) -> Verified<Offer> {
    let named = |(n, rtt_us): &(u16, u32)| Neighbour { node: id(*n).0.to_vec(), rtt_us: *rtt_us };
    let neighbours = neighbours.iter().map(named).collect();
    let health = Some(Health { neighbours, ..Health::default() });
    let content = Offer { sequence: at, life_ms: 60_000, health, ..Offer::default() };
    Verified::sign(content, &key(n)).unwrap()
}

fn table() -> Offers {
    Offers::new(id(9999))
}

#[test]
fn the_newest_offer_of_a_node_counts_and_each_piece_of_news_is_told_what_became_of_it() {
    let mut offers = table();
    assert_eq!(offers.take(NOW, offer(1, NOW.0)), Taken::New);
    assert_eq!(offers.take(NOW, offer(1, NOW.0)), Taken::Known);
    assert_eq!(offers.take(NOW, offer(1, NOW.0 + 5)), Taken::Newer);
    assert_eq!(offers.take(NOW, offer(1, NOW.0)), Taken::Older { newest: NOW.0 + 5 });
    assert_eq!(offers.take(NOW, offer(2, NOW.0 - 60_000)), Taken::Expired { late_ms: 0 });
    assert_eq!(offers.take(NOW, offer(2, NOW.0 + 60_000)), Taken::New);
    assert_eq!(offers.take(NOW, offer(3, NOW.0 + 60_001)), Taken::Ahead { ahead_ms: 60_001 });
    assert_eq!(offers.take(NOW, offer(9999, NOW.0)), Taken::Own);
    assert_eq!(offers.of(id(1)).unwrap().content().sequence, NOW.0 + 5);
    assert_eq!(offers.count(), 2);
}

#[test]
fn a_node_that_leaves_and_comes_back_ten_times_counts_once() {
    let mut offers = table();
    for round in 0..10 {
        let now = NOW.plus(round * 1000);
        assert!(offers.take(now, offer(1, now.0)).is_news());
        offers.reached(now, id(1), 500);
        assert_eq!(offers.count(), 1);
        offers.gone(now, id(1));
        assert_eq!(offers.count(), 0);
    }
    let now = NOW.plus(10_000);
    assert_eq!(offers.take(now, offer(1, now.0)), Taken::Newer);
    assert_eq!((offers.count(), offers.offers.len(), offers.gone.len()), (1, 1, 0));
}

#[test]
fn a_dead_node_is_offered_again_only_after_it_proves_that_it_lives() {
    let mut offers = table();
    offers.take(NOW, offer(1, NOW.0 - 10));
    offers.gone(NOW, id(1));
    assert_eq!(offers.take(NOW, offer(1, NOW.0 - 10)), Taken::Known);
    assert_eq!(offers.take(NOW, offer(1, NOW.0 - 5)), Taken::Gone, "made before it died");
    assert!(offers.of(id(1)).is_none());
    let mut reached = offers.clone();
    reached.reached(NOW, id(1), 100);
    assert!(reached.of(id(1)).is_some(), "it was reached");
    assert_eq!(offers.take(NOW.plus(9), offer(1, NOW.0 + 1)), Taken::Newer);
    assert!(offers.of(id(1)).is_some(), "it has made a new offer");
}

#[test]
fn six_hundred_and_fifty_dead_records_do_no_harm() {
    let mut offers = table();
    for n in 0..650 {
        let late = offer(n, NOW.0 - 70_000);
        assert_eq!(offers.take(NOW, late), Taken::Expired { late_ms: 10_000 });
        offers.take(NOW, offer(n, NOW.0 - 30_000));
        offers.gone(NOW, id(n));
    }
    assert_eq!(offers.count(), 0);
    assert_eq!(offers.take(NOW, offer(700, NOW.0)), Taken::New);
    assert_eq!(offers.iter().map(|(node, _)| node).collect::<Vec<_>>(), [id(700)]);
    assert_eq!(offers.expire(NOW.plus(30_000)).len(), 650);
    offers.expire(NOW.plus(OFFER_LIFE_MAX));
    assert!(offers.gone.is_empty(), "what can hide nothing is forgotten");
}

#[test]
fn a_full_table_gives_up_the_stalest_and_never_a_neighbour() {
    let mut offers = Offers { nodes_max: 3, ..table() };
    offers.take(NOW, offer(1, NOW.0 - 50));
    offers.reached(NOW, id(1), 100);
    offers.take(NOW, offer(2, NOW.0 - 40));
    offers.take(NOW, offer(3, NOW.0 - 30));
    assert_eq!(offers.take(NOW, offer(4, NOW.0 - 45)), Taken::Crowded);
    assert_eq!(offers.take(NOW, offer(4, NOW.0 - 20)), Taken::New);
    assert!(offers.of(id(1)).is_some(), "a neighbour, and the stalest of all");
    assert!(offers.of(id(2)).is_none());
}

#[test]
fn those_remembered_as_gone_are_bounded() {
    let mut offers = table();
    for n in 0..GONE_MAX + 10 {
        let mut node = [0; 32];
        node[..8].copy_from_slice(&n.to_be_bytes());
        offers.gone(NOW.plus(n as u64), NodeId(node));
    }
    assert_eq!(offers.gone.len(), GONE_MAX);
}

#[test]
fn the_largest_offer_takes_less_than_its_bound() {
    let large = 2 * (Offer::BYTES_MAX + wire::ENVELOPE);
    let lists = 100 * 2 * 64;
    assert!(size_of::<Verified<Offer>>() + large + lists < NODE_BYTES_MAX);
}

#[test]
fn what_was_measured_here_counts_before_what_is_said() {
    let mut offers = table();
    offers.take(NOW, near(1, NOW.0, &[(9999, 1)]));
    assert_eq!(offers.rtt(id(1), id(9999)), Rtt { us: 1, source: Source::Reported });
    offers.reached(NOW, id(1), 30_000);
    assert_eq!(offers.rtt(id(1), id(9999)), Rtt { us: 30_000, source: Source::Own });
    assert_eq!(offers.rtt(id(9999), id(1)).us, 30_000);
}

#[test]
fn of_two_reports_the_larger_counts() {
    let mut offers = table();
    offers.take(NOW, near(1, NOW.0, &[(2, 10)]));
    assert_eq!(offers.rtt(id(2), id(1)).us, 10);
    offers.take(NOW, near(2, NOW.0, &[(1, 20_000)]));
    assert_eq!(offers.rtt(id(1), id(2)), Rtt { us: 20_000, source: Source::Reported });
}

#[test]
fn unmeasured_ways_follow_from_common_neighbours() {
    let mut offers = table();
    offers.take(NOW, near(1, NOW.0, &[(3, 10_000)]));
    offers.take(NOW, near(2, NOW.0, &[(3, 4_000)]));
    offers.take(NOW, near(4, NOW.0, &[]));
    let source = Source::Between { least_us: 6_000, most_us: 14_000 };
    assert_eq!(offers.rtt(id(1), id(2)), Rtt { us: 10_000, source });
    offers.reached(NOW, id(1), 1_000);
    offers.reached(NOW, id(2), 8_000);
    let source = Source::Between { least_us: 7_000, most_us: 9_000 };
    assert_eq!(offers.rtt(id(1), id(2)), Rtt { us: 8_000, source }, "by way of this node");
    assert_eq!(offers.rtt(id(1), id(4)), Rtt { us: 100_000, source: Source::Assumed });
    assert_eq!(offers.rtt(id(4), id(4)).us, 0);
}

/// News about few nodes with few sequences, so that they meet; some of it too old or too new.
fn news() -> impl Strategy<Value = Vec<Verified<Offer>>> {
    let one = (0u16..8, 0u64..14, 0u32..3);
    prop::collection::vec(one, 0..24).prop_map(|all| {
        let made =
            |(n, at, other): (u16, u64, u32)| near(n, NOW.0 - 70_000 + at * 10_000, &[(99, other)]);
        all.into_iter().map(made).collect()
    })
}

fn filled<'a>(all: impl IntoIterator<Item = &'a Verified<Offer>>) -> Offers {
    let mut offers = Offers { nodes_max: 5, ..table() };
    offers.reached(NOW, id(0), 50);
    for offer in all {
        offers.take(NOW, offer.clone());
    }
    offers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn order_and_repetition_make_no_difference(
        (all, shuffled) in news().prop_flat_map(|all| {
            let twice = [all.clone(), all.clone()].concat();
            (Just(all), Just(twice).prop_shuffle())
        })
    ) {
        prop_assert_eq!(filled(&all).offers, filled(&shuffled).offers);
    }

    #[test]
    fn grouping_makes_no_difference(all in news(), a in 0usize..24, b in 0usize..24) {
        let (a, b) = (a.min(all.len()), b.min(all.len()));
        let (first, second) = all.split_at(a.min(b));
        let (second, third) = second.split_at(a.max(b) - a.min(b));
        let parts = [filled(first), filled(second), filled(third)];
        let mut left = parts[0].clone();
        left.merge(NOW, &parts[1]);
        left.merge(NOW, &parts[2]);
        let mut right = parts[2].clone();
        right.merge(NOW, &parts[1]);
        let mut rest = parts[0].clone();
        rest.merge(NOW, &right);
        prop_assert_eq!(&left.offers, &rest.offers);
        prop_assert_eq!(&left.offers, &filled(&all).offers);
        let before = left.clone();
        left.merge(NOW, &before);
        prop_assert_eq!(left.offers, before.offers);
    }

    #[test]
    fn distance_is_the_same_in_both_directions(all in news(), a in 0u16..9, b in 0u16..9) {
        let offers = filled(&all);
        prop_assert_eq!(offers.rtt(id(a), id(b)), offers.rtt(id(b), id(a)));
    }
}
