//! An engine whose later half-blocks are elsewhere answers as one that has them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use compute::engine::{Beginning, Ends, PAGE, Page, Pages, Part, Stage};
use compute::numeric::block::BlockVec;
use compute::numeric::rows::{rows_from_bytes, rows_to_bytes};
use wire::lane::{PAGE_KEY, Wanted};

use super::super::road::{Inbox, News, Opening, Road, Setback};
use super::*;

/// One stage with all that is not at the requester, in this very process. It loses its way as often
/// as `mishaps` says, of 100 sends.
#[derive(Debug)]
struct Elsewhere {
    model: Arc<Model>,
    pages: Arc<Pages>,
    inbox: Arc<Inbox>,
    mishaps: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seats: BTreeMap<u64, Stage>,
    kept: BTreeMap<Vec<u8>, Arc<Page>>,
    dice: u64,
    /// News that come later, so that several sequences are on their way at once.
    late: VecDeque<(u64, News)>,
}

impl Elsewhere {
    fn below(state: &mut State, bound: usize) -> usize {
        let mut dice = Dice(state.dice);
        let found = dice.below(bound);
        state.dice = dice.0;
        found
    }

    /// Lets some of what is on its way arrive.
    fn arrive(&self) {
        let mut state = self.state.lock().unwrap();
        let most = 1 + Self::below(&mut state, 4);
        for _ in 0..most {
            let Some((number, news)) = state.late.pop_front() else { return };
            self.inbox.put(number, news);
        }
    }
}

impl Road for Elsewhere {
    fn open(&self, number: u64, opening: Opening) {
        let mut state = self.state.lock().unwrap();
        let keys = opening.beginning.chunks(PAGE_KEY);
        let pages: Vec<_> = keys.map_while(|key| state.kept.get(key).cloned()).collect();
        let begun = pages.len() * PAGE;
        let beginning = Beginning { pages, position: begun };
        let halves = 2..self.model.halves();
        let positions = opening.positions as usize;
        let seat = self.model.stage_in(halves, &self.pages, positions, beginning).unwrap();
        state.seats.insert(number, seat);
        state.late.push_back((number, News::Ready { begun, rows_max: 24 }));
    }

    fn send(&self, number: u64, first: u32, rows: Bytes, wanted: Wanted) {
        let mut state = self.state.lock().unwrap();
        if Self::below(&mut state, 100) < self.mishaps {
            state.seats.remove(&number);
            let (text, retry) = ("it fell over".into(), Duration::ZERO);
            let setback = Setback { text, retry, is_lost: false };
            state.late.push_back((number, News::Failed(setback)));
            return;
        }
        let Some(seat) = state.seats.get_mut(&number) else { return };
        let (width, mut all) = (self.model.summary().width, BlockVec::default());
        rows_from_bytes(&rows, width, &mut all).unwrap();
        let count = all.m.len() / width;
        assert!(first as usize <= seat.position(), "no rows are missing");
        seat.rewind(first as usize);
        seat.feed(&mut all).unwrap();
        let mut bytes = Vec::new();
        rows_to_bytes(all.view(), width, &mut bytes);
        let rows = match wanted {
            Wanted::Nothing => Bytes::new(),
            Wanted::Last => Bytes::from(bytes).slice((count - 1) * rows.len() / count..),
            Wanted::Each => bytes.into(),
        };
        state.late.push_back((number, News::Rows { first: first as usize, count, rows }));
    }

    fn keep(&self, number: u64, first: u32, keys: Vec<u8>) {
        let mut state = self.state.lock().unwrap();
        let Some(seat) = state.seats.get(&number) else { return };
        let pages: Vec<_> = seat.pages()[first as usize..].to_vec();
        for (key, page) in keys.chunks(PAGE_KEY).zip(pages) {
            state.kept.insert(key.to_vec(), page);
        }
    }

    fn close(&self, number: u64) {
        self.state.lock().unwrap().seats.remove(&number);
    }
}

/// The toy's first layer and ends, and the rest of it elsewhere.
fn split(mishaps: usize) -> (Serving, Arc<Elsewhere>, Arc<Inbox>) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("toy.gguf");
    toy::write(&path).unwrap();
    let load = |part: Part| {
        let options = LoadOptions { threads: 1, kernels: KernelChoice::Auto, part: Some(part) };
        Model::load(&path, &options, &mut |_, _| {}).unwrap()
    };
    let front = load(Part { halves: 0..2, ends: Ends::Here });
    let rest = load(Part { halves: 2..front.halves(), ends: Ends::Elsewhere });
    let serving = Serving::new(Speaker::of(front, &path), CONTEXT);
    let inbox = Inbox::new(|| {});
    let pages = rest.pages(4000);
    let state = Mutex::default();
    let road = Elsewhere { model: rest, pages, inbox: inbox.clone(), mishaps, state };
    (serving, Arc::new(road), inbox)
}

fn far_together(
    mishaps: usize,
    wishes: &[Wish],
    limits: Limits,
    dice: &mut Dice,
) -> (Vec<Answered>, u64) {
    let (serving, road, inbox) = split(mishaps);
    let mut engine = Engine::new(&serving, limits).over(road.clone(), inbox, [3; 32]);
    let mut clients = Vec::new();
    let mut waiting = wishes.iter();
    let mut next = waiting.next();
    while next.is_some() || !engine.is_idle() {
        while engine.has_room() && dice.below(3) > 0 {
            let Some(wish) = next else { break };
            let (asker, halt, events) = Asker::alone();
            engine.admit(wish.ask(), asker);
            clients.push((halt, events));
            next = waiting.next();
        }
        road.arrive();
        if engine.has_work() {
            engine.step().unwrap();
        } else {
            let late = !road.state.lock().unwrap().late.is_empty();
            let due = engine.due().is_some();
            assert!(engine.is_idle() || late || due, "something is still to come");
        }
    }
    assert!(road.state.lock().unwrap().seats.is_empty(), "all seats are given back");
    assert_eq!(serving.stats.kv_used_bytes.get(), 0);
    let kept = serving.stats.kept_tokens.get();
    (clients.iter_mut().map(|(_, events)| all(events)).collect(), kept)
}

#[test]
fn answers_over_a_road_are_those_of_a_whole_model() {
    let serving = serving();
    let dice = &mut Dice(1);
    let mut kept = 0;
    for (round, mishaps) in [0, 0, 2, 10].into_iter().enumerate() {
        let wishes: Vec<Wish> = (0..8).map(|_| Wish::random(dice)).collect();
        let solo: Vec<Answered> = wishes.iter().map(|wish| alone(&serving, wish)).collect();
        for (guessing, pages) in [(Guessing::On, 400), (Guessing::Off, Limits::pages_min(CONTEXT))]
        {
            let limits = Limits { parallel: 8, pages, guessing };
            let (found, more) = far_together(mishaps, &wishes, limits, dice);
            kept += more;
            for (n, (found, solo)) in found.iter().zip(&solo).enumerate() {
                assert_eq!(found, solo, "round {round}, {guessing:?}: {:?}", wishes[n]);
            }
        }
    }
    assert!(kept > 0, "stages find pages that they kept");
}
