//! Answers of many together are those of each alone.

use std::path::PathBuf;

use compute::engine::{KernelChoice, LoadOptions, Model};
use compute::sample::{Sampler, SamplerOptions};
use tokio::sync::mpsc::UnboundedReceiver;

use super::super::ask::{EndTokens, Goal, Manner, Owner};
use super::super::speaker::Speaker;
use super::super::toy;
use super::*;
use crate::house::{Finish, Record};

const CONTEXT: usize = 512;

fn serving() -> Serving {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("toy.gguf");
    toy::write(&path).unwrap();
    let options = LoadOptions { threads: 1, kernels: KernelChoice::Auto, part: None };
    let model = Model::load(&path, &options, &mut |_, _| {}).unwrap();
    Serving::new(Speaker::of(model, &path), CONTEXT)
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// What is asked in one test: prompts that share beginnings, and every way of picking and ending.
#[derive(Debug, Clone)]
struct Wish {
    prompt: Vec<u32>,
    options: SamplerOptions,
    tokens_max: usize,
    stops: Vec<String>,
    stop_tokens: Vec<u32>,
    log_probs: Option<usize>,
    end: EndTokens,
}

impl Wish {
    fn random(dice: &mut Dice) -> Self {
        let shared = dice.below(3);
        let length = [1, 40, 150][dice.below(3)] + dice.below(30);
        let repeats = dice.below(2) == 0;
        let own = dice.below(200) as u32;
        let token = |n: usize| match (n < 64, repeats) {
            (true, _) => (n as u32 * 7 + shared as u32 * 13) % 250,
            (_, true) => (n % 11) as u32 + 60,
            (_, false) => (n as u32 * 31 + own) % 250,
        };
        let options = SamplerOptions {
            temperature: [0.0, 0.9, 0.3][dice.below(3)],
            seed: dice.below(1000) as u64,
            repetition_penalty: [1.0, 1.2][dice.below(2)],
            ..SamplerOptions::default()
        };
        Self {
            prompt: (0..length).map(token).collect(),
            options,
            tokens_max: 1 + dice.below(60),
            stops: (0..dice.below(2)).map(|_| "e".to_string()).collect(),
            stop_tokens: (0..dice.below(2)).map(|_| 65).collect(),
            log_probs: [None, Some(2)][dice.below(2)],
            end: [EndTokens::End, EndTokens::Forbidden][dice.below(2)],
        }
    }

    fn ask(&self) -> Ask {
        let manner = Manner {
            tokens_max: self.tokens_max,
            stops: self.stops.clone(),
            stop_tokens: self.stop_tokens.clone(),
            end: self.end,
            log_probs: self.log_probs,
            ..*Manner::plain(Sampler::new(self.options.clone()).unwrap())
        };
        let goal = Goal::Answer(Box::new(manner));
        Ask { model: 0, owner: Owner(0), prompt: self.prompt.clone(), goal }
    }
}

/// All that a client hears in the end.
#[derive(Debug, Default, PartialEq)]
struct Answered {
    text: String,
    records: Vec<Record>,
    tokens: Vec<u32>,
    finish: Option<Finish>,
}

impl Answered {
    fn hear(&mut self, event: Event) {
        match event {
            Event::Heard(Heard::Shown(shown)) => {
                self.text += &shown.text;
                self.records.extend(shown.records);
            }
            Event::Done(outcome) => {
                self.tokens = outcome.tokens;
                self.finish = Some(outcome.finish);
            }
            Event::Failed(why) | Event::Unreachable(why) => panic!("{why}"),
            Event::Begun | Event::Heard(_) => {}
        }
    }
}

fn alone(serving: &Serving, wish: &Wish) -> Answered {
    let pages = Limits::pages_min(CONTEXT);
    let limits = Limits { parallel: 1, pages, guessing: Guessing::Off };
    let mut engine = Engine::new(serving, limits);
    let (asker, _halt, mut events) = Asker::alone();
    engine.admit(wish.ask(), asker);
    run(&mut engine);
    all(&mut events)
}

fn run(engine: &mut Engine) {
    while !engine.is_idle() {
        engine.step().unwrap();
    }
}

fn all(events: &mut UnboundedReceiver<Event>) -> Answered {
    let mut heard = Answered::default();
    while let Ok(event) = events.try_recv() {
        heard.hear(event);
    }
    heard
}

/// Runs all `wishes` on one engine, which they enter at random times.
fn together(serving: &Serving, wishes: &[Wish], limits: Limits, dice: &mut Dice) -> Vec<Answered> {
    let mut engine = Engine::new(serving, limits);
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
        engine.step().unwrap();
    }
    assert_eq!(serving.stats.kv_used_bytes.get(), 0, "all that is left is what is kept");
    clients.iter_mut().map(|(_, events)| all(events)).collect()
}

#[test]
fn eight_mixed_requests_are_answered_as_each_alone() {
    let serving = serving();
    let dice = &mut Dice(1);
    for round in 0..6 {
        let wishes: Vec<Wish> = (0..8).map(|_| Wish::random(dice)).collect();
        let solo: Vec<Answered> = wishes.iter().map(|wish| alone(&serving, wish)).collect();
        for guessing in [Guessing::On, Guessing::Off] {
            let limits = Limits { parallel: 8, pages: 400, guessing };
            let found = together(&serving, &wishes, limits, dice);
            for (n, (found, solo)) in found.iter().zip(&solo).enumerate() {
                assert_eq!(found, solo, "round {round}, {guessing:?}: {:?}", wishes[n]);
            }
        }
    }
    assert!(serving.stats.kept_tokens.get() > 0, "prompts that begin alike share pages");
}

#[test]
fn where_pages_are_scarce_requests_wait_and_are_answered_the_same() {
    let serving = serving();
    let dice = &mut Dice(7);
    for round in 0..4 {
        let mut wishes: Vec<Wish> = (0..10).map(|_| Wish::random(dice)).collect();
        // Short prompts, of which many fit, and answers for all of which there is no room.
        for wish in wishes.iter_mut().skip(round % 2) {
            wish.prompt.truncate(30);
            wish.tokens_max *= 4;
            wish.stop_tokens.clear();
        }
        let solo: Vec<Answered> = wishes.iter().map(|wish| alone(&serving, wish)).collect();
        let pages = Limits::pages_min(CONTEXT);
        let limits = Limits { parallel: 10, pages, guessing: Guessing::On };
        let found = together(&serving, &wishes, limits, dice);
        assert_eq!(found, solo, "round {round}");
    }
    assert!(serving.stats.preempted.get() > 0, "some had to make room");
}

#[test]
fn guesses_are_made_where_a_text_repeats_itself_and_change_nothing() {
    let serving = serving();
    let period: Vec<u32> = (60..90).collect();
    let wish = Wish {
        prompt: period.repeat(5),
        options: SamplerOptions { temperature: 0.0, ..SamplerOptions::default() },
        tokens_max: 200,
        stops: Vec::new(),
        stop_tokens: Vec::new(),
        log_probs: None,
        end: EndTokens::Forbidden,
    };
    let solo = alone(&serving, &wish);
    let mut guessing = Solo::new(&serving);
    let mut text = String::new();
    let outcome = guessing
        .answer(wish.ask(), &|| false, &mut |heard| {
            if let Heard::Shown(shown) = heard {
                text += &shown.text;
            }
        })
        .unwrap();
    assert_eq!((text, outcome.tokens), (solo.text, solo.tokens));
    assert!(outcome.drafted > 0 && outcome.accepted <= outcome.drafted);
}

#[test]
fn a_model_that_guesses_for_another_changes_nothing() {
    let serving = serving();
    let dice = &mut Dice(21);
    let wishes: Vec<Wish> = (0..12).map(|_| Wish::random(dice)).collect();
    let solo: Vec<Answered> = wishes.iter().map(|wish| alone(&serving, wish)).collect();
    let limits = Limits { parallel: 4, pages: 200, guessing: Guessing::On };
    // It guesses its own greedy choice, which samplers do not always take.
    let mut engine = Engine::new(&serving, limits).helped_by(&serving);
    let mut found = Vec::new();
    for group in wishes.chunks(4) {
        let mut clients: Vec<_> = Vec::new();
        for wish in group {
            let (asker, halt, events) = Asker::alone();
            engine.admit(wish.ask(), asker);
            clients.push((halt, events));
        }
        run(&mut engine);
        found.extend(clients.iter_mut().map(|(_, events)| all(events)));
    }
    assert_eq!(found, solo);
    let (drafted, accepted) =
        (serving.stats.drafted_tokens.get(), serving.stats.accepted_tokens.get());
    // As dear as the model itself, it is only tried now and then.
    assert!(accepted > 0 && accepted <= drafted, "{accepted} of {drafted}");
}

#[test]
fn who_leaves_at_any_moment_leaves_nothing_behind() {
    let serving = serving();
    let dice = &mut Dice(3);
    let limits = Limits { parallel: 8, pages: 60, guessing: Guessing::On };
    let mut engine = Engine::new(&serving, limits);
    let mut clients = Vec::new();
    for _ in 0..300 {
        if engine.has_room() {
            let mut wish = Wish::random(dice);
            wish.tokens_max = 500;
            let (asker, halt, events) = Asker::alone();
            engine.admit(wish.ask(), asker);
            clients.push((halt, events));
        }
        engine.step().unwrap();
        if !clients.is_empty() && dice.below(2) == 0 {
            let (halt, _) = clients.swap_remove(dice.below(clients.len()));
            halt.store(true, Ordering::Relaxed);
        }
    }
    clients.iter().for_each(|(halt, _)| halt.store(true, Ordering::Relaxed));
    engine.step().unwrap();
    assert!(engine.is_idle());
    assert_eq!(serving.stats.kv_used_bytes.get(), 0);
    let kept = serving.stats.kv_kept_bytes.get();
    assert!(kept <= serving.stats.kv_max_bytes.get());
    drop((engine, clients));
}

#[test]
fn a_prompt_that_is_known_costs_its_last_token() {
    let serving = serving();
    let mut solo = Solo::new(&serving);
    let mut wish = Wish::random(&mut Dice(11));
    wish.prompt = (0..300).map(|n| n * 7 % 250).collect();
    let first = solo.answer(wish.ask(), &|| false, &mut |_| {}).unwrap();
    let again = solo.answer(wish.ask(), &|| false, &mut |_| {}).unwrap();
    assert_eq!((first.kept, again.kept), (0, 299));
    assert_eq!(first.tokens, again.tokens);
    // Another ending, in the middle of a page.
    wish.prompt.truncate(250);
    wish.prompt.extend([1, 2, 3]);
    let other = solo.answer(wish.ask(), &|| false, &mut |_| {}).unwrap();
    assert_eq!(other.kept, 250);
    assert_eq!(other.tokens, alone(&serving, &wish).tokens);
}

#[test]
fn embeddings_have_length_one_and_do_not_depend_on_who_is_beside() {
    let serving = serving();
    let prompts: Vec<Vec<u32>> =
        [1, 33, 100].map(|length| (0..length).map(|n| n * 3 % 250).collect()).to_vec();
    let run_all = |parallel| {
        let limits = Limits { parallel, pages: 100, guessing: Guessing::Off };
        let mut engine = Engine::new(&serving, limits);
        let mut found = Vec::new();
        for group in prompts.chunks(parallel) {
            let mut clients: Vec<_> = Vec::new();
            for prompt in group {
                let (asker, _, events) = Asker::alone();
                let goal = Goal::Embedding;
                engine
                    .admit(Ask { model: 0, owner: Owner(0), prompt: prompt.clone(), goal }, asker);
                clients.push(events);
            }
            run(&mut engine);
            for events in &mut clients {
                while let Ok(event) = events.try_recv() {
                    if let Event::Heard(Heard::Embedding(vector)) = event {
                        found.push(vector);
                    }
                }
            }
        }
        found
    };
    let each = run_all(1);
    assert_eq!(each.len(), 3);
    assert_eq!(each, run_all(3));
    for vector in each {
        let length: f32 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
}

mod far;
