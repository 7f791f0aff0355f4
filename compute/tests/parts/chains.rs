//! A front, any stages and the heads give the bits of a step of the whole model, whoever else is
//! under way.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use compute::engine::{
    Beginning, Ends, Feed, Model, PAGE, Pages, Returned, Session, Stage, StageFeed, Wanted, front,
    pass_rows, step,
};
use compute::numeric::block::BlockVec;
use compute::numeric::rows::{rows_from_bytes, rows_to_bytes};

use crate::given::{Dice, bits, file, files, part, whole};

/// Models that hold a part each, and share nothing but the file.
struct Route {
    front: Arc<Model>,
    front_pages: Arc<Pages>,
    parts: Vec<(Arc<Model>, Arc<Pages>)>,
    width: usize,
}

/// A sequence on its way: its session at the front, a stage in each part.
struct Way {
    session: Session,
    stages: Vec<Stage>,
}

impl Route {
    /// The half-blocks before `cuts[0]` with the ends, then the others between the cuts.
    fn new(path: &Path, cuts: &[usize], pages_max: usize) -> Self {
        let front = part(path, 1, 0..cuts[0], Ends::Here);
        let parts = cuts.windows(2).enumerate().map(|(i, ends)| {
            let model = part(path, 1 + i % 2, ends[0]..ends[1], Ends::Elsewhere);
            let pages = model.pages(pages_max);
            (model, pages)
        });
        let parts = parts.collect();
        let width = front.summary().width;
        Self { front_pages: front.pages(pages_max), front, parts, width }
    }

    /// A way that begins with the first `shared` tokens of `before`.
    fn way(&self, context_max: usize, before: Option<&Way>, shared: usize) -> Way {
        let kept = |pages: &[Arc<compute::engine::Page>]| pages[..shared.div_ceil(PAGE)].to_vec();
        let own = before.map_or(Vec::new(), |way| kept(way.session.pages()));
        let session = self.front.session_in(&self.front_pages, context_max, own, shared);
        let stages = self.parts.iter().enumerate().map(|(i, (model, pages))| {
            let own = before.map_or(Vec::new(), |way| kept(way.stages[i].pages()));
            let halves: Range<usize> = model.summary().part.halves.clone();
            let beginning = Beginning { pages: own, position: shared };
            model.stage_in(halves, pages, context_max, beginning).unwrap()
        });
        Way { session, stages: stages.collect() }
    }

    /// What [`step`] does, through the parts, with rows as bytes between them: rows of numbers as
    /// bits, by (feed, token).
    fn step(
        &self,
        ways: &mut [(&mut Way, &[u32], Wanted)],
        found: &mut dyn FnMut((usize, usize), Vec<u32>),
    ) {
        let feeds = ways.iter_mut();
        let mut feeds: Vec<Feed> = feeds
            .map(|(way, tokens, wanted)| Feed {
                session: &mut way.session,
                tokens,
                wanted: *wanted,
            })
            .collect();
        let mut rows = front(&mut feeds).unwrap();
        drop(feeds);
        for i in 0..self.parts.len() {
            rows.iter_mut().for_each(|rows| self.send(rows));
            let mut feeds: Vec<StageFeed> = ways
                .iter_mut()
                .zip(&mut rows)
                .map(|((way, ..), rows)| StageFeed { stage: &mut way.stages[i], rows })
                .collect();
            pass_rows(&mut feeds).unwrap();
        }
        let returned = rows.iter().zip(ways.iter());
        let returned: Vec<Returned> = returned
            .map(|(rows, (.., wanted))| Returned { rows: rows.view(), wanted: *wanted })
            .collect();
        self.front.heads(&returned, &mut |rows| hand_on(rows, found)).unwrap();
    }

    /// Through bytes and back.
    fn send(&self, rows: &mut BlockVec) {
        let mut bytes = Vec::new();
        rows_to_bytes(rows.view(), self.width, &mut bytes);
        rows_from_bytes(&bytes, self.width, rows).unwrap();
    }
}

fn hand_on(rows: compute::engine::Rows, found: &mut dyn FnMut((usize, usize), Vec<u32>)) {
    for (&of, row) in rows.of.iter().zip(rows.numbers.chunks_exact(rows.width)) {
        found(of, bits(row));
    }
}

/// The logits, or vectors, of each of `tokens` by the whole model alone.
fn alone(model: &Arc<Model>, tokens: &[u32], wanted: Wanted) -> Vec<Vec<u32>> {
    let mut session = model.session(tokens.len());
    let mut found = Vec::new();
    let mut feeds = [Feed { session: &mut session, tokens, wanted }];
    step(&mut feeds, &mut |rows| hand_on(rows, &mut |_, row| found.push(row))).unwrap();
    assert_eq!(found.len(), tokens.len());
    found
}

/// Texts, and what the whole model says of each.
struct Given {
    texts: Vec<Vec<u32>>,
    logits: Vec<Vec<Vec<u32>>>,
    vectors: Vec<Vec<Vec<u32>>>,
}

impl Given {
    fn new(model: &Arc<Model>, dice: &mut Dice) -> Self {
        let texts = texts(model.summary().vocabulary, dice);
        let logits = texts.iter().map(|text| alone(model, text, Wanted::Each)).collect();
        let vectors = texts.iter().map(|text| alone(model, text, Wanted::Vectors)).collect();
        Self { texts, logits, vectors }
    }
}

/// Six texts, of which some begin alike for longer than a page.
fn texts(vocabulary: usize, dice: &mut Dice) -> Vec<Vec<u32>> {
    let common: Vec<u32> = (0..45).map(|_| dice.below(vocabulary) as u32).collect();
    let text = |i: usize, dice: &mut Dice| {
        let shared = if i % 2 == 1 { 45 } else { 3 * i };
        let own = (0..4 + dice.below(20)).map(|_| dice.below(vocabulary) as u32);
        common[..shared].iter().copied().chain(own.collect::<Vec<_>>()).collect()
    };
    (0..6).map(|i| text(i, dice)).collect()
}

/// Feeds all texts over the route in steps of random company and chunks, and compares.
fn check(route: &Route, given: &Given, dice: &mut Dice, about: &str) {
    let Given { texts, logits, vectors } = given;
    let mut ways: Vec<Way> = Vec::new();
    for text in texts {
        ways.push(route.way(text.len(), None, 0));
    }
    // The odd ones begin alike: the first is fed, and the others begin with its pages, in part.
    let mut first = route.way(texts[1].len(), None, 0);
    route.step(&mut [(&mut first, &texts[1][..45], Wanted::Nothing)], &mut |_, _| panic!("none"));
    for (i, text) in texts.iter().enumerate().filter(|(i, _)| i % 2 == 1) {
        ways[i] = route.way(text.len(), Some(&first), 31 + 2 * i);
    }
    drop(first);
    while ways.iter().zip(texts).any(|(way, text)| way.session.position() < text.len()) {
        let starts: Vec<usize> = ways.iter().map(|way| way.session.position()).collect();
        let mut company = Vec::new();
        let mut who = Vec::new();
        for (i, way) in ways.iter_mut().enumerate() {
            let count = dice.below(9).min(texts[i].len() - starts[i]);
            if count > 0 {
                let wanted = [Wanted::Each, Wanted::Last, Wanted::Vectors][dice.below(3)];
                company.push((way, &texts[i][starts[i]..][..count], wanted));
                who.push((i, wanted));
            }
        }
        route.step(&mut company, &mut |(feed, token), row| {
            let (i, wanted) = who[feed];
            let all = if wanted == Wanted::Vectors { &vectors[i] } else { &logits[i] };
            let at = starts[i] + token;
            assert!(row == all[at], "{about}, text {i}, token {at}, {wanted:?}");
        });
        // Now and then one goes back, as after guesses that were wrong.
        if dice.below(4) == 0 {
            let way = &mut ways[dice.below(texts.len())];
            let position = dice.below(way.session.position() + 1);
            way.session.rewind(position);
            way.stages.iter_mut().for_each(|stage| stage.rewind(position));
        }
    }
    let positions = |way: &Way| way.stages.iter().map(Stage::position).collect::<Vec<_>>();
    for way in &ways {
        assert!(positions(way).iter().all(|&position| position == way.session.position()));
    }
    drop(ways);
    assert_eq!(route.front_pages.taken(), 0);
    assert!(route.parts.iter().all(|(_, pages)| pages.taken() == 0));
}

#[test]
fn every_cut_of_every_architecture_gives_the_bits_of_the_whole() {
    for name in ["llama-Q4_0", "llama3-ropefreqs-Q8_0", "qwen2-Q8_0", "qwen3-Q4_K_M", "gemma3-Q8_0"]
    {
        let path = file(name);
        let model = whole(&path);
        let halves = model.halves();
        let mut dice = Dice(1);
        let given = Given::new(&model, &mut dice);
        for cut in 0..=halves {
            let second = cut + dice.below(halves - cut + 1);
            let route = Route::new(&path, &[cut, second, halves], 64);
            check(&route, &given, &mut dice, &format!("{name}, cut at {cut} and {second}"));
        }
        // As many machines as half-blocks.
        let cuts: Vec<usize> = (0..=halves).collect();
        check(&Route::new(&path, &cuts, 64), &given, &mut dice, name);
    }
}

#[test]
fn some_cut_of_every_weight_type_gives_the_bits_of_the_whole() {
    for (number, path) in files().iter().enumerate() {
        let model = whole(path);
        let mut dice = Dice(number as u64);
        let given = Given::new(&model, &mut dice);
        let cuts = [dice.below(model.halves()), model.halves()];
        check(&Route::new(path, &cuts, 64), &given, &mut dice, &format!("{path:?} at {cuts:?}"));
    }
}

/// More tokens than a pass takes, of several sequences.
#[test]
fn passes_longer_than_the_buffers_give_the_same_bits() {
    let path = file("gemma3-Q8_0");
    let model = whole(&path);
    let mut dice = Dice(7);
    let vocabulary = model.summary().vocabulary;
    let texts = [400, 700, 3]
        .map(|len| -> Vec<u32> { (0..len).map(|_| dice.below(vocabulary) as u32).collect() });
    let route = Route::new(&path, &[1, 2, model.halves()], 64);
    let mut ways = texts.each_ref().map(|text| route.way(text.len(), None, 0));
    let mut company: Vec<(&mut Way, &[u32], Wanted)> = Vec::new();
    for (way, text) in ways.iter_mut().zip(&texts) {
        company.push((way, text, Wanted::Last));
    }
    let last = texts.each_ref().map(|text| alone(&model, text, Wanted::Each).pop().unwrap());
    let mut count = 0;
    route.step(&mut company, &mut |(feed, token), row| {
        assert_eq!(token + 1, texts[feed].len());
        assert!(row == last[feed], "text {feed}");
        count += 1;
    });
    assert_eq!(count, 3);
}
