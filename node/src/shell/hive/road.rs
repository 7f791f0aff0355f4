//! The requester's way to stages: a passage for each sequence, on the thread of the lanes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use wire::lane::{Hop, Say, Wanted};
use wire::{Millis, NodeId};

use super::outlet::{Frames, Outlet};
use super::post::{self, Dialler};
use crate::house::lane::{
    Leg, Passage, PassageEffect, PassageError, PassageInput, PassagePlan, Replication,
};
use crate::shell::engine::road::{Inbox, News, Opening, Road, Setback};

/// Bytes that a requester keeps of what it sent, for each sequence.
const KEPT_MAX: usize = 16 << 20;
/// When a sequence that lost its way asks for another, and when one without any way does.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_NO_ROUTE: Duration = Duration::from_millis(300);
/// How long a new route may take after the old one was lost before new prompts are refused. Answers
/// under way are more patient.
const REROUTE_WAIT: Duration = Duration::from_secs(5);

/// A route: who computes what of a model, in order.
#[derive(Debug, Clone)]
pub struct Route {
    /// Its number: a newer one has a larger.
    pub number: u64,
    /// The model's id.
    pub manifest: Vec<u8>,
    /// The stages.
    pub legs: Vec<Leg>,
    /// Who computes what, in short and in ASCII.
    pub words: String,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// What those beside the first of each leg do.
    pub replication: Replication,
}

/// What happened on the way, for whoever plans routes.
#[derive(Debug)]
pub enum Report {
    /// A node was dropped.
    Dropped {
        /// Which.
        node: NodeId,
        /// Why.
        why: String,
    },
    /// A passage over this route failed.
    Failed {
        /// The route's number.
        route: u64,
        /// How.
        error: PassageError,
    },
}

/// The way that an engine's sequences take: the route of the moment.
pub struct HiveRoad {
    dialler: Dialler,
    inbox: Arc<Inbox>,
    /// The route, or why there is none and since when.
    route: Mutex<Result<Arc<Route>, (String, Instant)>>,
    open: Mutex<BTreeMap<u64, mpsc::UnboundedSender<Command>>>,
    reports: mpsc::UnboundedSender<Report>,
    epoch: Instant,
}

impl fmt::Debug for HiveRoad {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "HiveRoad over {:?}", self.route())
    }
}

enum Command {
    Send(u32, Bytes, Wanted),
    Keep(u32, Vec<u8>),
}

impl HiveRoad {
    /// A road without a route, because of `why`. What happens on it is reported.
    pub fn new(
        dialler: Dialler,
        inbox: Arc<Inbox>,
        reports: mpsc::UnboundedSender<Report>,
        why: String,
    ) -> Arc<Self> {
        let (route, open) = (Mutex::new(Err((why, Instant::now()))), Mutex::default());
        Arc::new(Self { dialler, inbox, route, open, reports, epoch: Instant::now() })
    }

    /// The route of the moment.
    pub fn route(&self) -> Result<Arc<Route>, String> {
        self.now().clone().map_err(|(why, _)| why)
    }

    /// Why there has been no route for longer than it takes to find another, if that is so.
    pub fn lost(&self) -> Option<String> {
        let now = self.now();
        let (why, since) = now.as_ref().err()?;
        (since.elapsed() >= REROUTE_WAIT).then(|| why.clone())
    }

    fn now(&self) -> std::sync::MutexGuard<'_, Result<Arc<Route>, (String, Instant)>> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sequences that open from now on take this route, or are told why there is none. Those under
    /// way stay on theirs.
    pub fn set_route(&self, route: Result<Arc<Route>, String>) {
        let mut now = self.now();
        let since = now.as_ref().err().map_or_else(Instant::now, |(_, since)| *since);
        *now = route.map_err(|why| (why, since));
    }

    fn open_ones(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<u64, mpsc::UnboundedSender<Command>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn command(&self, number: u64, command: Command) {
        if let Some(way) = self.open_ones().get(&number) {
            // One that has failed has said so.
            let _ = way.send(command);
        }
    }
}

/// The road as an engine holds it.
#[derive(Debug, Clone)]
pub struct OnRoad(pub Arc<HiveRoad>);

impl Road for OnRoad {
    fn open(&self, number: u64, opening: Opening) {
        let road = &self.0;
        let route = match road.route() {
            Ok(route) => route,
            Err(text) => {
                let setback = Setback { text, retry: RETRY_NO_ROUTE, is_lost: true };
                return road.inbox.put(number, News::Failed(setback));
            }
        };
        let mut session = [0; 16];
        if let Err(error) = getrandom::fill(&mut session) {
            let text = format!("this machine gives no random bytes: {error}");
            let setback = Setback { text, retry: RETRY_NO_ROUTE, is_lost: true };
            return road.inbox.put(number, News::Failed(setback));
        }
        let plan = PassagePlan {
            session: session.to_vec(),
            manifest: route.manifest.clone(),
            legs: route.legs.clone(),
            positions: opening.positions,
            row_bytes: route.row_bytes,
            kept_bytes: KEPT_MAX,
            beginning: opening.beginning,
            replication: route.replication,
        };
        // Its bound is the engine's: a few steps of each sequence are on their way at a time.
        let (commands, take) = mpsc::unbounded_channel();
        road.open_ones().insert(number, commands);
        let way = Way::new(road.clone(), number, route.number, plan);
        road.dialler.lanes.spawn(way.run(take));
    }

    fn send(&self, number: u64, first: u32, rows: Bytes, wanted: Wanted) {
        self.0.command(number, Command::Send(first, rows, wanted));
    }

    fn keep(&self, number: u64, first: u32, keys: Vec<u8>) {
        self.0.command(number, Command::Keep(first, keys));
    }

    fn close(&self, number: u64) {
        // Its end of the channel is noticed.
        self.0.open_ones().remove(&number);
    }
}

/// One sequence's passage and its pipes.
struct Way {
    road: Arc<HiveRoad>,
    number: u64,
    route: u64,
    passage: Passage,
    outlets: BTreeMap<(u32, NodeId), Outlet>,
    wake: Option<Instant>,
    hear: mpsc::Sender<Heard>,
    heard: mpsc::Receiver<Heard>,
}

enum Heard {
    Said((u32, NodeId), Say, Bytes),
    Broken((u32, NodeId), String),
}

/// Frames of stages that wait to be looked at.
const HEARD_MAX: usize = 64;

impl Way {
    fn new(road: Arc<HiveRoad>, number: u64, route: u64, plan: PassagePlan) -> Self {
        let (hear, heard) = mpsc::channel(HEARD_MAX);
        let (outlets, wake) = (BTreeMap::new(), None);
        let passage = Passage::new(plan);
        Self { road, number, route, passage, outlets, wake, hear, heard }
    }

    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut next = Some(PassageInput::Begin);
        loop {
            if let Some(input) = next.take()
                && !self.step(input)
            {
                return;
            }
            let wake = self.wake;
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            next = Some(tokio::select! {
                biased;
                heard = self.heard.recv() => match heard.expect("this end holds a sender, too") {
                    Heard::Said((leg, node), say, body) => {
                        PassageInput::Said { leg, node, say, body }
                    }
                    Heard::Broken((leg, node), why) => PassageInput::Broken { leg, node, why },
                },
                command = commands.recv() => match command {
                    Some(Command::Send(first, rows, wanted)) => {
                        PassageInput::Send { first, rows, wanted }
                    }
                    Some(Command::Keep(first, keys)) => PassageInput::Keep { first, keys },
                    // Nobody wants it any more: the pipes end with this.
                    None => return,
                },
                () = sleep => {
                    self.wake = None;
                    PassageInput::Tick
                }
            });
        }
    }

    /// Whether it goes on.
    fn step(&mut self, input: PassageInput) -> bool {
        let now = Millis(self.road.epoch.elapsed().as_millis() as u64);
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for effect in self.passage.handle(now, input) {
                match effect {
                    PassageEffect::Tell { to, say, body } => {
                        let (leg, node) = (to.leg, to.node());
                        if let Err(error) = self.outlet(&to).send(say, body) {
                            let why = error.to_string();
                            inputs.push(PassageInput::Broken { leg, node, why });
                        }
                    }
                    PassageEffect::Ready { begun, rows_max } => {
                        let (begun, rows_max) = (begun as usize, rows_max as usize);
                        self.tell(News::Ready { begun, rows_max });
                    }
                    PassageEffect::Deliver { first, count, rows } => {
                        let (first, count) = (first as usize, count as usize);
                        self.tell(News::Rows { first, count, rows });
                    }
                    PassageEffect::Dropped { leg, node, why } => {
                        tracing::warn!(%node, leg, why, "a stage was dropped");
                        self.outlets.remove(&(leg, node));
                        let _ = self.road.reports.send(Report::Dropped { node, why });
                    }
                    PassageEffect::Wake(at) => self.wake_at(at),
                    PassageEffect::Failed(error) => {
                        self.fail(error);
                        return false;
                    }
                }
            }
        }
        true
    }

    fn tell(&self, news: News) {
        self.road.inbox.put(self.number, news);
    }

    fn wake_at(&mut self, at: Millis) {
        let at = self.road.epoch + Duration::from_millis(at.0);
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn fail(&self, error: PassageError) {
        let retry = match &error {
            PassageError::Refused { retry_ms, .. } => Duration::from_millis((*retry_ms).into()),
            _ => RETRY,
        };
        let (text, retry) = (error.to_string(), retry.max(RETRY));
        self.tell(News::Failed(Setback { text, retry, is_lost: false }));
        let _ = self.road.reports.send(Report::Failed { route: self.route, error });
    }

    /// The way to a stage, made when it is first needed.
    fn outlet(&mut self, to: &Hop) -> &Outlet {
        let make = || {
            let (outlet, frames) = Outlet::new();
            let (dialler, hop, hear) = (self.road.dialler.clone(), to.clone(), self.hear.clone());
            self.road.dialler.lanes.spawn(async move {
                let who = (hop.leg, hop.node());
                if let Err(why) = talk(&dialler, hop, frames, &hear).await {
                    let _ = hear.send(Heard::Broken(who, format!("{why:#}"))).await;
                }
            });
            outlet
        };
        self.outlets.entry((to.leg, to.node())).or_insert_with(make)
    }
}

/// Carries what is said to a stage and what it says, until the outlet is gone.
async fn talk(
    dialler: &Dialler,
    hop: Hop,
    frames: Frames,
    hear: &mpsc::Sender<Heard>,
) -> anyhow::Result<()> {
    let who = (hop.leg, hop.node());
    let pipe = dialler.dial(&hop).await?;
    let (sender, mut receiver) = pipe.split();
    let delivering = frames.deliver(sender);
    tokio::pin!(delivering);
    loop {
        tokio::select! {
            biased;
            frame = receiver.recv() => {
                let Some(frame) = frame? else { anyhow::bail!("has ended the pipe") };
                let say = post::read(&frame)?;
                if hear.send(Heard::Said(who, say, frame.body)).await.is_err() {
                    return Ok(());
                }
            }
            done = &mut delivering => return Ok(done?),
        }
    }
}
