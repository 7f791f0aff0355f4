//! The one thread that computes: loads the model, proves that it answers, then serves the line.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::sync::{oneshot, watch};

use crate::house::Finish;

use super::ask::Ask;
use super::line::{Asker, Event, Line};
use super::sequence::Sequence;
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

/// Starts the worker on the model at `path`. What is returned hears how it ended: with an error
/// if the model could not be loaded or computing failed, without when the line was closed.
pub fn start(
    path: PathBuf,
    settings: Settings,
    line: Arc<Line>,
    phase: watch::Sender<Phase>,
) -> Result<oneshot::Receiver<Result<()>>> {
    let (ended, end) = oneshot::channel();
    let work = move || {
        let work = AssertUnwindSafe(|| work(path, &settings, &line, &phase));
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
    path: PathBuf,
    settings: &Settings,
    line: &Line,
    phase: &watch::Sender<Phase>,
) -> Result<()> {
    let speaker = Speaker::load(&path, settings, &mut |done, whole| {
        phase.send_replace(Phase::Loading { done, whole });
    })
    .with_context(|| format!("cannot load {}", path.display()))?;
    if let Err(error) = speaker.can_chat() {
        tracing::warn!("{error}");
    }
    let context = speaker.context(settings)?;
    speaker.probe()?;
    let serving = Arc::new(Serving { speaker, context, since: unix_now(), stats: Arc::default() });
    phase.send_replace(Phase::Ready(Arc::new(Served { models: vec![serving.clone()] })));
    serve(&serving, line);
    Ok(())
}

/// Answers until the line is closed. The last conversation stays in memory, so that its next turn
/// costs only what is new; one that was halted is forgotten at once.
fn serve(serving: &Serving, line: &Line) {
    let mut last = None;
    while let Some((ask, asker)) = line.next() {
        if asker.is_halted() {
            continue;
        }
        asker.tell(Event::Begun);
        let model = serving.speaker.model();
        let mut sequence = last.take().unwrap_or_else(|| Sequence::new(model, serving.context));
        if answer(serving, &mut sequence, ask, &asker) {
            last = Some(sequence);
        }
    }
}

/// Answers one request; whether the sequence is worth keeping.
fn answer(serving: &Serving, sequence: &mut Sequence, ask: Ask, asker: &Asker) -> bool {
    let tokenizer = match serving.speaker.tokenizer() {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            asker.tell(Event::Failed(error.to_string()));
            return true;
        }
    };
    let mut hear = |heard| asker.tell(Event::Heard(heard));
    match sequence.answer(ask, tokenizer, &|| asker.is_halted(), &mut hear) {
        Ok(outcome) => {
            let complete = outcome.finish != Finish::Halted;
            asker.tell(Event::Done(outcome));
            complete
        }
        Err(error) => {
            tracing::error!(%error, "no answer");
            asker.tell(Event::Failed(error.to_string()));
            false
        }
    }
}
