//! The one thread that computes: loads the models, proves that they answer, then serves the line.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tokio::sync::{oneshot, watch};

use super::engine::{Engine, Limits};
use super::line::{Line, Next};
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
}

impl Serving {
    /// A model that answers from now on.
    pub fn new(speaker: Speaker, context: usize) -> Self {
        Self { speaker, context, since: unix_now(), stats: Arc::default() }
    }
}

/// The files of models.
#[derive(Debug)]
pub struct Files {
    /// Those that are served, one or more.
    pub models: Vec<PathBuf>,
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
    for path in &files.models {
        models.push(Arc::new(load(path, settings, phase)?));
    }
    let helper = files.draft.as_deref().map(|path| load(path, settings, phase)).transpose()?;
    if let Some(helper) = &helper {
        same_vocabulary(&models[0].speaker, &helper.speaker)?;
    }
    let limits = memory::limits(&models, settings)?;
    let served = Arc::new(Served { models });
    phase.send_replace(Phase::Ready(served.clone()));
    serve(&served, helper.as_ref(), &limits, line)
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

/// Answers until the line is closed: a step of each model that has something to do, in turns.
fn serve(served: &Served, helper: Option<&Serving>, limits: &[Limits], line: &Line) -> Result<()> {
    let engine = |(serving, limits): (&'_ Arc<Serving>, &Limits)| (serving.clone(), *limits);
    let with: Vec<_> = served.models.iter().zip(limits).map(engine).collect();
    let mut engines: Vec<Engine> =
        with.iter().map(|(serving, limits)| Engine::new(serving, *limits)).collect();
    if let Some(helper) = helper {
        let first = engines.remove(0);
        engines.insert(0, first.helped_by(helper));
    }
    loop {
        let idle = engines.iter().all(Engine::is_idle);
        loop {
            let room = |model: usize| engines.get(model).is_some_and(Engine::has_room);
            let next = match idle && engines.iter().all(Engine::is_idle) {
                true => line.wait(&room),
                false => line.next(&room),
            };
            match next {
                Next::Ask(ask, asker) => engines[ask.model].admit(*ask, asker),
                Next::Closed if engines.iter().all(Engine::is_idle) => return Ok(()),
                Next::Closed | Next::Nothing => break,
            }
        }
        for (engine, serving) in engines.iter_mut().zip(&served.models) {
            serving.stats.waiting.set(line.waiting() as u64);
            if !engine.is_idle()
                && let Err(error) = engine.step()
            {
                tracing::error!(%error, model = serving.speaker.name(), "no answer");
            }
        }
    }
}
