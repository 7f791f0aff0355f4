//! Whole models give the same bits whatever computes them, and however their tokens are fed.
//!
//! `==` on logits, never a tolerance: this equality is what lets one node check another.

use std::path::Path;
use std::sync::Arc;

use cadencia_tests::{Real, fixture, tiny_models, token_ids};
use compute::engine::{
    Ends, Feed, KernelChoice, LoadOptions, Model, PAGE, Part, Session, StepError, Wanted, front,
    step,
};
use compute::numeric::block::{BlockVec, GROUP, check};

/// The definition of the numeric class, computed in the plainest way.
const DEFINITION: LoadOptions =
    LoadOptions { threads: 1, kernels: KernelChoice::Reference, part: None };

#[test]
fn all_kernels_and_thread_counts_equal_the_definition() {
    for path in tiny_models() {
        let tokens = token_ids();
        let defined = whole(&load(&path, DEFINITION), &tokens);
        for kernels in [KernelChoice::Auto, KernelChoice::Portable] {
            for threads in [1, 2, 3] {
                let found =
                    whole(&load(&path, LoadOptions { threads, kernels, part: None }), &tokens);
                let place = first_difference(&found, &defined);
                assert_eq!(place, None, "{path:?}, {kernels:?}, {threads} threads: (row, column)");
            }
        }
    }
}

#[test]
fn decoding_equals_prefill_in_pieces_of_any_size() {
    for path in tiny_models() {
        let model =
            load(&path, LoadOptions { threads: 2, kernels: KernelChoice::Auto, part: None });
        let tokens = token_ids();
        let at_once = whole(&model, &tokens);
        for piece in [1, 2, 5, 8, 31, 47] {
            let mut session = model.session(tokens.len());
            let rows = tokens.chunks(piece).flat_map(|piece| rows(&mut session, piece)).collect();
            let place = first_difference(&rows, &at_once);
            assert_eq!(place, None, "{path:?} in pieces of {piece}: (row, column)");
        }
    }
}

#[test]
fn feeding_without_logits_changes_nothing_after_it() {
    for path in tiny_models() {
        let model =
            load(&path, LoadOptions { threads: 1, kernels: KernelChoice::Auto, part: None });
        let tokens = token_ids();
        let at_once = whole(&model, &tokens);
        let mut session = model.session(tokens.len());
        let (quiet, told) = tokens.split_at(29);
        session.feed(quiet).unwrap();
        let last = session.logits(told).unwrap().to_vec();
        assert_eq!(Some(&last), at_once.last(), "{path:?}");
    }
}

#[test]
fn a_rewound_session_forgets_what_it_heard() {
    for path in tiny_models() {
        let model =
            load(&path, LoadOptions { threads: 1, kernels: KernelChoice::Auto, part: None });
        let tokens = token_ids();
        let at_once = whole(&model, &tokens);
        let mut session = model.session(tokens.len());
        let (kept, again) = tokens.split_at(17);
        session.feed(kept).unwrap();
        // Another branch of the conversation, then back to the fork.
        let other: Vec<u32> = again.iter().rev().copied().collect();
        session.feed(&other).unwrap();
        session.rewind(kept.len());
        let rows = rows(&mut session, again);
        assert_eq!(first_difference(&rows, &at_once[kept.len()..].to_vec()), None, "{path:?}");
    }
}

#[test]
fn any_chain_of_cuts_equals_the_whole() {
    for (number, path) in tiny_models().iter().enumerate() {
        // The parts of a chain run on machines that differ in kernels and threads.
        let machines =
            [(KernelChoice::Auto, 1), (KernelChoice::Portable, 2), (KernelChoice::Auto, 3)]
                .map(|(kernels, threads)| load(path, LoadOptions { threads, kernels, part: None }));
        let tokens = token_ids();
        let whole = whole(&machines[0], &tokens);
        let halves = machines[0].halves();
        let everywhere: Vec<usize> = (0..=halves).collect();
        let mut dice = Dice(number as u64);
        for chain in 0..3 {
            let ends = [0, halves].into_iter();
            let cuts = match chain {
                0 => everywhere.clone(),
                _ => {
                    everywhere.iter().copied().filter(|_| dice.below(3) == 0).chain(ends).collect()
                }
            };
            let found = through_cuts(&machines, cuts.clone(), &tokens, &mut dice);
            let place = first_difference(&found, &whole);
            assert_eq!(place, None, "{path:?} cut at {cuts:?}: (row, column)");
        }
    }
}

#[test]
fn any_schedule_of_feeding_and_rewinding_equals_prefill() {
    for (number, path) in tiny_models().iter().enumerate() {
        let model = load(path, LoadOptions { threads: 2, kernels: KernelChoice::Auto, part: None });
        let tokens = token_ids();
        let at_once = whole(&model, &tokens);
        let mut dice = Dice(number as u64);
        let mut session = model.session(tokens.len());
        let mut at = 0;
        for step in 0..60 {
            let left = tokens.len() - at;
            match dice.below(4) {
                0 => at = dice.below(at + 1),
                // A branch that is given up: the same positions, other tokens.
                1 if left > 0 => {
                    let other: Vec<u32> = (0..=dice.below(left)).map(|i| tokens[i] ^ 1).collect();
                    session.feed(&other[..other.len().min(left)]).unwrap();
                }
                _ if left > 0 => {
                    let piece = &tokens[at..][..1 + dice.below(left.min(9))];
                    let found = rows(&mut session, piece);
                    let place = first_difference(&found, &at_once[at..at + piece.len()].to_vec());
                    assert_eq!(place, None, "{path:?}, step {step}, from {at}: (row, column)");
                    at += piece.len();
                }
                _ => at = 0,
            }
            session.rewind(at);
            assert_eq!(session.position(), at);
        }
    }
}

/// Up to twelve sequences, each with its own text, fed together in steps that take any number of
/// tokens of any of them, some with pages that another sequence has filled.
#[test]
fn who_else_is_in_a_step_never_changes_bits() {
    for (number, path) in tiny_models().iter().enumerate() {
        let model = load(path, LoadOptions { threads: 2, kernels: KernelChoice::Auto, part: None });
        let mut dice = Dice(40 + number as u64);
        let all = token_ids();
        let texts: Vec<Vec<u32>> = (0..12)
            .map(|i| {
                // Two texts that begin alike, then one of its own, and so on.
                let own = all.iter().map(|t| if i % 3 == 2 { t ^ (i as u32 / 3 + 1) } else { *t });
                own.take(20 + 7 * i.min(3)).collect()
            })
            .collect();
        let solo: Vec<Rows> = texts.iter().map(|text| whole(&model, text)).collect();
        let pages = model.pages(texts.len() * 4);
        let mut sessions: Vec<Session> = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            let begun = sessions.get(i.wrapping_sub(1)).filter(|_| i % 3 == 1);
            let shared = begun.map_or(0, |before| before.position().min(text.len() / 2));
            let full = begun.map_or(Vec::new(), |b| b.pages()[..shared.div_ceil(PAGE)].to_vec());
            sessions.push(model.session_in(&pages, text.len(), full, shared));
            if i % 3 == 0 {
                sessions[i].feed(&text[..text.len() / 2]).unwrap();
            }
        }
        while sessions.iter().zip(&texts).any(|(s, text)| s.position() < text.len()) {
            let starts: Vec<usize> = sessions.iter().map(Session::position).collect();
            let mut feeds = Vec::new();
            let mut who = Vec::new();
            for (i, session) in sessions.iter_mut().enumerate() {
                let left = texts[i].len() - starts[i];
                let count = dice.below(6).min(left);
                if count > 0 {
                    let tokens = &texts[i][starts[i]..][..count];
                    feeds.push(Feed { session, tokens, wanted: Wanted::Each });
                    who.push(i);
                }
            }
            step(&mut feeds, &mut |found| {
                for (&(feed, token), row) in found.of.iter().zip(found.numbers.chunks(found.width))
                {
                    let (i, at) = (who[feed], starts[who[feed]] + token);
                    let place = first_difference(&vec![row.to_vec()], &vec![solo[i][at].clone()]);
                    assert_eq!(place, None, "{path:?}, text {i}, row {at}");
                }
            })
            .unwrap();
        }
        drop(sessions);
        assert_eq!(pages.taken(), 0);
    }
}

#[test]
fn a_step_that_is_refused_leaves_all_as_they_were() {
    let model = load(
        &tiny_models()[0],
        LoadOptions { threads: 1, kernels: KernelChoice::Auto, part: None },
    );
    let pages = model.pages(2);
    let mut sessions: Vec<Session> =
        (0..2).map(|_| model.session_in(&pages, 100, Vec::new(), 0)).collect();
    sessions[0].feed(&[1, 2, 3]).unwrap();
    for (tokens, error) in [
        (vec![1; 33], StepError::NoPage { pages_max: 2 }),
        (vec![1; 101], StepError::ContextFull { context_max: 100, wanted: 101 }),
        (
            vec![1, u32::MAX],
            StepError::UnknownToken { token: u32::MAX, vocabulary: model.summary().vocabulary },
        ),
    ] {
        let [first, second] = &mut sessions[..] else { unreachable!("there are two") };
        let mut feeds = [
            Feed { session: first, tokens: &[4], wanted: Wanted::Last },
            Feed { session: second, tokens: &tokens, wanted: Wanted::Last },
        ];
        assert_eq!(step(&mut feeds, &mut |_| panic!("it was refused")), Err(error));
        assert_eq!((sessions[0].position(), sessions[1].position(), pages.taken()), (3, 0, 1));
    }
}

/// Longer than a pass takes tokens (512), and than any window of the tiny models.
#[test]
fn long_prompts_give_the_same_bits() {
    let mut dice = Dice(700);
    let tokens: Vec<u32> = (0..700).map(|_| dice.below(256) as u32).collect();
    let last: Vec<usize> = (650..700).collect();
    for name in ["llama-Q4_0", "gemma3-Q4_K_M", "qwen2-Q8_0"] {
        let path = fixture(&format!("gguf/{name}.gguf"));
        let rows_of = |options: LoadOptions, piece: usize| {
            let model = load(&path, options);
            let mut session = model.session(tokens.len());
            let found: Rows = tokens.chunks(piece).flat_map(|t| rows(&mut session, t)).collect();
            last.iter().map(|&i| found[i].clone()).collect::<Rows>()
        };
        let defined = rows_of(DEFINITION, tokens.len());
        for (kernels, threads, piece) in [
            (KernelChoice::Auto, 2, tokens.len()),
            (KernelChoice::Auto, 1, 1),
            (KernelChoice::Portable, 3, 97),
        ] {
            let found = rows_of(LoadOptions { threads, kernels, part: None }, piece);
            let place = first_difference(&found, &defined);
            assert_eq!(place, None, "{name}, {kernels:?}, pieces of {piece}: (row, column)");
        }
    }
}

/// What a peer sends may be anything that is a valid encoding.
#[test]
fn hostile_rows_give_the_same_bits_and_valid_rows() {
    for (number, path) in tiny_models().iter().enumerate() {
        let machines = [
            load(path, DEFINITION),
            load(path, LoadOptions { threads: 2, kernels: KernelChoice::Portable, part: None }),
            load(path, LoadOptions { threads: 2, kernels: KernelChoice::Auto, part: None }),
        ];
        let mut dice = Dice(number as u64);
        let sent = hostile_rows(9, machines[0].summary().width, &mut dice);
        assert_eq!(check(sent.view()), Ok(()));
        for half in 0..machines[0].halves() {
            let answers = machines.each_ref().map(|model| {
                let mut rows = sent.clone();
                model.stage(half..half + 1, 9).feed(&mut rows).unwrap();
                rows
            });
            assert_eq!(check(answers[0].view()), Ok(()), "{path:?}, half-block {half}");
            assert!(answers[1] == answers[0], "{path:?}, half-block {half}: portable");
            assert!(answers[2] == answers[0], "{path:?}, half-block {half}: fastest");
        }
        let answers = machines.each_ref().map(|model| {
            let mut logits = Rows::new();
            model.logits_of(sent.view(), &mut |_, row| logits.push(row.to_vec())).unwrap();
            logits
        });
        assert_eq!(first_difference(&answers[1], &answers[0]), None, "{path:?}: portable");
        assert_eq!(first_difference(&answers[2], &answers[0]), None, "{path:?}: fastest");
    }
}

#[test]
fn a_real_model_equals_the_definition() {
    for real in [Real::SmolLm2, Real::Gemma3] {
        let Some(path) = real.find() else { continue };
        let tokens: Vec<u32> = token_ids().into_iter().take(4).collect();
        let defined = whole(&load(&path, DEFINITION), &tokens);
        for kernels in [KernelChoice::Auto, KernelChoice::Portable] {
            let found =
                whole(&load(&path, LoadOptions { threads: 2, kernels, part: None }), &tokens);
            let place = first_difference(&found, &defined);
            assert_eq!(place, None, "{}, {kernels:?}: (row, column)", real.file());
        }
    }
}

#[test]
fn a_real_model_in_parts_equals_the_whole() {
    for real in [Real::SmolLm2, Real::Gemma3] {
        let Some(path) = real.find() else { continue };
        let options = |part| LoadOptions { threads: 2, kernels: KernelChoice::Auto, part };
        let model = load(&path, options(None));
        let (cut, halves) = (7, model.halves());
        let part = |halves, ends| load(&path, options(Some(Part { halves, ends })));
        let begin = part(0..cut, Ends::Here);
        let rest = part(cut..halves, Ends::Elsewhere);
        assert!(begin.tokenizer().is_some() && begin.chat_template() == model.chat_template());
        assert!(rest.tokenizer().is_none() && rest.chat_template().is_none());
        let apart = begin.summary().weight_bytes + rest.summary().weight_bytes;
        assert_eq!(apart, model.summary().weight_bytes);
        let tokens: Vec<u32> = token_ids().into_iter().take(40).collect();
        let at_once = whole(&model, &tokens);
        let (mut session, mut stage) = (begin.session(40), rest.stage(cut..halves, 40));
        let mut found = Rows::new();
        for piece in [&tokens[..33], &tokens[33..34], &tokens[34..]] {
            let feed = Feed { session: &mut session, tokens: piece, wanted: Wanted::Each };
            let mut rows = front(&mut [feed]).unwrap().remove(0);
            stage.feed(&mut rows).unwrap();
            begin.logits_of(rows.view(), &mut |_, row| found.push(row.to_vec())).unwrap();
        }
        assert_eq!(first_difference(&found, &at_once), None, "{}: (row, column)", real.file());
    }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Logits after the stages between `cuts`, which different machines run and which take the rows in
/// pieces of different sizes.
fn through_cuts(
    machines: &[Arc<Model>; 3],
    mut cuts: Vec<usize>,
    tokens: &[u32],
    dice: &mut Dice,
) -> Rows {
    cuts.sort_unstable();
    cuts.dedup();
    let width = machines[0].summary().width;
    let mut residual = machines[dice.below(3)].embed(tokens).unwrap();
    for ends in cuts.windows(2) {
        let mut stage = machines[dice.below(3)].stage(ends[0]..ends[1], tokens.len());
        let piece = [1, 5, 7, tokens.len()][dice.below(4)] * width;
        let (m, e) = (residual.m.chunks(piece), residual.e.chunks(piece / GROUP));
        let mut out = BlockVec::default();
        for (m, e) in m.zip(e) {
            let mut rows = BlockVec { m: m.to_vec(), e: e.to_vec() };
            stage.feed(&mut rows).unwrap();
            out.m.extend(rows.m);
            out.e.extend(rows.e);
        }
        residual = out;
    }
    let mut logits = Rows::new();
    machines[dice.below(3)]
        .logits_of(residual.view(), &mut |_, row| logits.push(row.to_vec()))
        .unwrap();
    logits
}

/// Valid rows with exponents and mantissas from one end of their range to the other.
fn hostile_rows(count: usize, width: usize, dice: &mut Dice) -> BlockVec {
    let mut rows = BlockVec::zeros(count * width);
    for row in 0..count {
        for g in 0..width / GROUP {
            let e = match row {
                0 => 100,
                1 => -100,
                2 => [100, -100][dice.below(2)],
                3 => continue,
                4 => dice.below(201) as i32 - 100,
                _ => dice.below(12) as i32 - 6,
            };
            let kind = dice.below(4);
            let z = std::array::from_fn(|i| match kind {
                0 => 32767,
                1 => [32767, -32767][dice.below(2)],
                2 => [16384, 0][usize::from(i > 0)],
                _ => dice.below(65_535) as i32 - 32_767,
            });
            rows.view_mut().encode(row * width / GROUP + g, &z, e);
        }
    }
    rows
}

/// One row of logits for each token.
type Rows = Vec<Vec<f32>>;

fn load(path: &Path, options: LoadOptions) -> Arc<Model> {
    Model::load(path, &options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

fn whole(model: &Arc<Model>, tokens: &[u32]) -> Rows {
    rows(&mut model.session(tokens.len()), tokens)
}

fn rows(session: &mut Session, tokens: &[u32]) -> Rows {
    let mut rows = Rows::new();
    session.logits_each(tokens, &mut |_, logits| rows.push(logits.to_vec())).unwrap();
    assert_eq!(rows.len(), tokens.len(), "a row for each token");
    rows
}

/// Where two answers first differ in a bit, as (row, column); a missing row differs at column 0.
fn first_difference(a: &Rows, b: &Rows) -> Option<(usize, usize)> {
    let bits = |row: &Vec<f32>| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (row, (a, b)) in a.iter().zip(b).enumerate() {
        let (a, b) = (bits(a), bits(b));
        if let Some(column) = a.iter().zip(&b).position(|(a, b)| a != b) {
            return Some((row, column));
        }
        if a.len() != b.len() || a.is_empty() {
            return Some((row, a.len().min(b.len())));
        }
    }
    (a.len() != b.len()).then(|| (a.len().min(b.len()), 0))
}
