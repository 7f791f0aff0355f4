//! The one thread that computes: loads the models, proves that they answer, then serves the line.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use compute::engine::{Ends, Part};
use compute::sample::{Sampler, SamplerOptions};
use tokio::sync::{oneshot, watch};
use wire::Halves;

use super::ask::{Ask, Goal, Manner, Owner};
use super::engine::road::Inbox;
use super::engine::{Engine, Limits};
use super::hive::road::{HiveRoad, OnRoad};
use super::line::{Asker, Event, Line, Next};
use super::memory;
use super::settings::Settings;
use super::speaker::{Speaker, unix_now};
use super::stats::EngineStats;

/// How far the model is.
#[derive(Debug, Clone)]
pub enum Phase {
    /// It is being read.
    Loading {
        /// Bytes read.
        done: u64,
        /// Bytes in all; 0 while not known.
        whole: u64,
    },
    /// Others do not compute their parts of it yet.
    Waiting(String),
    /// It answers.
    Ready(Arc<Served>),
}

/// All models that answer, the usual one first.
#[derive(Debug)]
pub struct Served {
    /// They; requests name a model by its place.
    pub models: Vec<Arc<Serving>>,
}

impl Served {
    /// The model called `name`, by its file or by what the file says, with its place; the first
    /// where nobody said which.
    pub fn find(&self, name: Option<&str>) -> Option<(usize, &Arc<Serving>)> {
        let mut each = self.models.iter().enumerate();
        let Some(name) = name else { return each.next() };
        let called = |serving: &Serving| serving.speaker.name() == name;
        let titled = |serving: &Serving| serving.speaker.model().summary().name == name;
        let by_file = each.find(|(_, serving)| called(serving));
        by_file.or_else(|| self.models.iter().enumerate().find(|(_, serving)| titled(serving)))
    }

    /// Their names.
    pub fn names(&self) -> Vec<&str> {
        self.models.iter().map(|serving| serving.speaker.name()).collect()
    }
}

/// A model that answers.
#[derive(Debug)]
pub struct Serving {
    /// It.
    pub speaker: Speaker,
    /// Tokens that one conversation may hold.
    pub context: usize,
    /// Since when, Unix time, seconds.
    pub since: u64,
    /// What it is doing.
    pub stats: Arc<EngineStats>,
    /// The way to those who compute the rest of it; `None` where all is here.
    pub road: Option<Arc<HiveRoad>>,
}

impl Serving {
    /// A model that answers from now on.
    pub fn new(speaker: Speaker, context: usize) -> Self {
        Self { speaker, context, since: unix_now(), stats: Arc::default(), road: None }
    }

    /// Whether it can answer now; if not, why.
    pub fn stands(&self) -> Result<(), String> {
        self.road.as_ref().map_or(Ok(()), |road| road.route().map(|_| ()))
    }

    /// Whether it takes new prompts; if not, why. One whose route was lost a moment ago does: they
    /// wait for the next.
    pub fn admits(&self) -> Result<(), String> {
        self.road.as_ref().and_then(|road| road.lost()).map_or(Ok(()), Err)
    }
}

/// Where a model comes from.
#[derive(Debug)]
pub enum Source {
    /// All of it from a file.
    File(PathBuf),
    /// A part of it from a file, the rest from other nodes.
    Far(Box<Far>),
}

/// A model of which other nodes compute a part.
#[derive(Debug)]
pub struct Far {
    /// The file.
    pub path: PathBuf,
    /// What this node computes, beside both ends.
    pub front: Halves,
    /// The way to the others.
    pub road: Arc<HiveRoad>,
    /// Where news of it arrive.
    pub inbox: Arc<Inbox>,
    /// What keys of pages are made with.
    pub page_secret: [u8; 32],
}

/// The files of models.
#[derive(Debug)]
pub struct Files {
    /// Those that are served, one or more.
    pub models: Vec<Source>,
    /// That of a model that guesses for the first.
    pub draft: Option<PathBuf>,
}

/// Starts the worker on the models of `files`. What is returned hears how it ended:
/// with an error if a model could not be loaded or computing failed, without when the line was
/// closed.
pub fn start(
    files: Files,
    settings: Settings,
    line: Arc<Line>,
    phase: watch::Sender<Phase>,
) -> Result<oneshot::Receiver<Result<()>>> {
    let (ended, end) = oneshot::channel();
    let work = move || {
        let work = AssertUnwindSafe(|| work(&files, &settings, &line, &phase));
        // A panic here is our own mistake. The node must stop and say so, not seem alive.
        let outcome = std::panic::catch_unwind(work)
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that computes has panicked")));
        let _ = ended.send(outcome);
    };
    std::thread::Builder::new()
        .name("worker".into())
        .spawn(work)
        .context("cannot start the thread that computes")?;
    Ok(end)
}

fn work(
    files: &Files,
    settings: &Settings,
    line: &Line,
    phase: &watch::Sender<Phase>,
) -> Result<()> {
    let mut models = Vec::with_capacity(files.models.len());
    for source in &files.models {
        models.push(Arc::new(match source {
            Source::File(path) => load(path, settings, phase)?,
            Source::Far(far) => load_front(far, settings, phase)?,
        }));
    }
    let helper = files.draft.as_deref().map(|path| load(path, settings, phase)).transpose()?;
    if let Some(helper) = &helper {
        same_vocabulary(&models[0].speaker, &helper.speaker)?;
    }
    let limits = memory::limits(&models, settings)?;
    let served = Arc::new(Served { models });
    let mut engines = engines(&served, helper.as_ref(), &limits, files);
    for (engine, serving) in engines.iter_mut().zip(&served.models) {
        if serving.road.is_some() {
            probe(engine, serving, line, phase)?;
        }
    }
    phase.send_replace(Phase::Ready(served.clone()));
    serve(&served, engines, line)
}

/// A guess is a list of token ids, so both models must mean the same by them.
fn same_vocabulary(model: &Speaker, helper: &Speaker) -> Result<()> {
    let (one, other) = (model.tokenizer()?, helper.tokenizer()?);
    let count = one.vocabulary() as u32;
    let same = one.vocabulary() == other.vocabulary()
        && (0..count).all(|id| one.piece(id) == other.piece(id));
    ensure!(
        same,
        "{} cannot guess for {}: their vocabularies differ; use a smaller model of the same family",
        helper.name(),
        model.name()
    );
    Ok(())
}

/// Loads the model at `path`, if there is memory for it, and proves that it answers.
fn load(path: &Path, settings: &Settings, phase: &watch::Sender<Phase>) -> Result<Serving> {
    memory::check_weights(path)?;
    let speaker = Speaker::load(path, settings, &mut |done, whole| {
        phase.send_replace(Phase::Loading { done, whole });
    })
    .with_context(|| format!("cannot load {}", path.display()))?;
    if let Err(error) = speaker.can_chat() {
        tracing::warn!("{error}");
    }
    let context = speaker.context(settings)?;
    speaker.probe()?;
    Ok(Serving::new(speaker, context))
}

/// Loads the first part of a model of which others compute the rest.
fn load_front(far: &Far, settings: &Settings, phase: &watch::Sender<Phase>) -> Result<Serving> {
    let part = Part { halves: far.front.range(), ends: Ends::Here };
    let speaker = Speaker::load_part(&far.path, settings, Some(part), &mut |done, whole| {
        phase.send_replace(Phase::Loading { done, whole });
    })
    .with_context(|| format!("cannot load {}", far.path.display()))?;
    if let Err(error) = speaker.can_chat() {
        tracing::warn!("{error}");
    }
    let context = speaker.context(settings)?;
    Ok(Serving { road: Some(far.road.clone()), ..Serving::new(speaker, context) })
}

/// An engine for each model.
fn engines<'a>(
    served: &'a Served,
    helper: Option<&'a Serving>,
    limits: &[Limits],
    files: &Files,
) -> Vec<Engine<'a>> {
    let sources = served.models.iter().zip(limits).zip(&files.models);
    let each = sources.enumerate().map(|(n, ((serving, limits), source))| {
        let engine = Engine::new(serving, *limits);
        let engine = match helper.filter(|_| n == 0) {
            Some(helper) => engine.helped_by(helper),
            None => engine,
        };
        match source {
            Source::File(_) => engine,
            Source::Far(far) => {
                let road = Arc::new(OnRoad(far.road.clone()));
                engine.over(road, far.inbox.clone(), far.page_secret)
            }
        }
    });
    each.collect()
}

/// How long one attempt at a probe may take before it is said that there is none yet.
const PROBE_TIME: Duration = Duration::from_secs(20);

/// Sends one token through all stages until that has worked: before that, a model is not ready.
fn probe(
    engine: &mut Engine,
    serving: &Serving,
    line: &Line,
    phase: &watch::Sender<Phase>,
) -> Result<()> {
    let tokenizer = serving.speaker.model().tokenizer();
    let token = tokenizer.and_then(|tokenizer| tokenizer.bos()).unwrap_or(0);
    let sampler = Sampler::new(SamplerOptions { temperature: 0.0, ..SamplerOptions::default() })?;
    loop {
        let mut manner = Manner::plain(sampler.clone());
        manner.tokens_max = 1;
        let goal = Goal::Answer(manner);
        let (asker, _halt, mut events) = Asker::alone();
        engine.admit(Ask { model: 0, owner: Owner::default(), prompt: vec![token], goal }, asker);
        let deadline = Instant::now() + PROBE_TIME;
        let why = loop {
            if engine.has_work() {
                engine.step()?;
            }
            match events.try_recv() {
                Ok(Event::Done(_)) => return Ok(()),
                Ok(Event::Failed(why) | Event::Unreachable(why)) => break why,
                Ok(Event::Begun | Event::Heard(_)) => continue,
                Err(_) if Instant::now() >= deadline => {
                    break "no answer to a probe yet".to_owned();
                }
                Err(_) => {}
            }
            let until = engine.due().map_or(deadline, |due| due.min(deadline));
            if let Next::Closed = line.wait(&|_| false, &|| engine.has_work(), Some(until)) {
                bail!("stopped before the model was ready");
            }
        };
        tracing::warn!(why, "the stages do not answer yet");
        phase.send_replace(Phase::Waiting(why));
        engine.dismiss();
    }
}

/// Answers until the line is closed: a step of each model that has something to do, in turns.
fn serve(served: &Served, mut engines: Vec<Engine>, line: &Line) -> Result<()> {
    loop {
        loop {
            let room = |model: usize| engines.get(model).is_some_and(Engine::has_room);
            let ready = || engines.iter().any(Engine::has_work);
            let next = match ready() {
                true => line.next(&room),
                false => line.wait(&room, &ready, engines.iter().filter_map(Engine::due).min()),
            };
            match next {
                Next::Ask(ask, asker) => engines[ask.model].admit(*ask, asker),
                Next::Closed if engines.iter().all(Engine::is_idle) => return Ok(()),
                Next::Closed => {
                    // Nobody comes any more, but what is on its way is still to be answered.
                    line.rest(&ready);
                    break;
                }
                Next::Nothing => break,
            }
        }
        for (engine, serving) in engines.iter_mut().zip(&served.models) {
            serving.stats.waiting.set(line.waiting() as u64);
            if engine.has_work()
                && let Err(error) = engine.step()
            {
                tracing::error!(%error, model = serving.speaker.name(), "no answer");
            }
        }
    }
}
