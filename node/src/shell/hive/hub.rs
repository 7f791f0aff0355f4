//! The hive as this node sees it: what the swarm tells goes into the house, and what the house wants
//! is done.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use compute::numeric::rows::row_bytes;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use wire::lane::{Hop, Line, Prepare, Reason, Say};
use wire::{
    Address, Answer, BootstrapRecord, Halves, Health, Key, ManifestId, Millis, NodeId, OFFERS_MAX,
    Offer, PROTOCOL, Query, Question, SEED_LIFE_MAX, SeedText, Signed, Verified,
};

use super::desk::Lender;
use super::post::{self, Dialler, Post};
use super::road::{HiveRoad, Report, Route};
use super::stages::StageStats;
use crate::house::hive::{Effect, Hive, Input, Stand, Want};
use crate::house::lane::{PassageError, Replication};
use crate::house::place::{NoRoute, Plan};
use crate::shell::admission::{self, Admission, RENEW_MS};
use crate::shell::durable;
use crate::shell::lanes::{Pipe, PipeLimits};
use crate::shell::speaker::unix_now_ms;
use crate::shell::swarm::{Event, PeerInfo, Topic};

/// What nodes gossip their offers on.
pub const OFFERS: Topic = Topic("offers");
/// What members of a private hive gossip their proofs on.
pub const MEMBERS: Topic = Topic("members");
/// How often the log says how far stages are that get ready.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// How often an offer is made again, and how long it holds: some may be lost on the way.
const OFFER_EVERY: Duration = Duration::from_secs(20);
const OFFER_LIFE_MS: u32 = 75_000;
/// How soon after a change an offer is made again: changes come in flocks.
const OFFER_SOON: Duration = Duration::from_millis(300);
/// Time of reading that is worth looking at, microseconds.
const OBSERVED_US_MIN: u64 = 200_000;
/// How old a bootstrap record grows before it is written anew, ms; it holds for longer.
const RECORD_EVERY: u64 = SEED_LIFE_MAX / 3;
/// How soon a record that could not be written is tried again, ms.
const RECORD_AGAIN: u64 = 60_000;
/// How often distances are read and tables tidied.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a node may be silent while it gets a part ready.
const PREPARE_SILENCE_MAX: Duration = Duration::from_secs(15);
/// Orders that wait.
const ORDERS_MAX: usize = 256;

/// What the hub is asked.
pub enum Order {
    /// A model is to be computed over the hive; sequences go over `road`.
    Want(Box<Want>, Arc<HiveRoad>),
    /// What would be planned?
    Plan(Box<Want>, oneshot::Sender<Result<Plan, NoRoute>>),
    /// How are things?
    Look(oneshot::Sender<View>),
    /// Something comes back from tasks of the hub's own.
    Heard(Box<Input>),
}

/// How things are, for people.
#[derive(Debug, Clone)]
pub struct View {
    /// This node.
    pub me: NodeId,
    /// Where it can be dialled.
    pub addresses: Vec<Multiaddr>,
    /// Who is connected.
    pub peers: Vec<PeerInfo>,
    /// What others offer.
    pub offers: Vec<(NodeId, Offer)>,
    /// Where its lanes can be dialled.
    pub lanes: Vec<Address>,
    /// Memory that it lends, bytes.
    pub lent_max: u64,
    /// Memory that is not lent yet, or to nobody who uses it, bytes.
    pub lent_free: u64,
    /// What it lends.
    pub held: Vec<wire::Held>,
    /// Sequences of others here.
    pub seats: u64,
    /// Models that are computed over the hive.
    pub models: Vec<ModelView>,
    /// What models that are known here are called.
    pub names: Vec<(ManifestId, String)>,
}

/// How far a model is that is computed over the hive.
#[derive(Debug, Clone)]
pub struct ModelView {
    /// Its name.
    pub name: String,
    /// How far its route is.
    pub stand: Stand,
}

/// What the hub works with.
pub struct Parts {
    /// This node's key.
    pub key: Key,
    /// Both planes.
    pub dialler: Dialler,
    /// Serves pipes that others open.
    pub post: Post,
    /// What this node lends.
    pub lender: Arc<Lender>,
    /// What its stages do.
    pub stats: Arc<StageStats>,
    /// How this node is; asked for each offer.
    pub health: Box<dyn Fn() -> Health + Send + Sync>,
    /// Hears how fast its stages were seen to read weights, MB/s.
    pub observed: Box<dyn Fn(u32) + Send + Sync>,
    /// Who belongs here.
    pub admission: Admission,
    /// Whether other nodes of each leg compute everything, too.
    pub replication: Replication,
    /// File for its bootstrap record, if it is a seed.
    pub record: Option<PathBuf>,
    /// Where others reach its lanes, if the user says so.
    pub lanes_at: Option<SocketAddr>,
}

/// A handle to the hub.
#[derive(Debug, Clone)]
pub struct Hub {
    orders: mpsc::Sender<Order>,
    /// Route numbers by model, to wait for the first.
    routes: watch::Receiver<BTreeMap<ManifestId, Halves>>,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Order")
    }
}

impl Hub {
    /// Starts the hub as a task of the present runtime.
    pub fn start(
        parts: Parts,
        events: mpsc::Receiver<Event>,
        reports: mpsc::UnboundedReceiver<Report>,
    ) -> Self {
        let (orders, take) = mpsc::channel(ORDERS_MAX);
        let (route, routes) = watch::channel(BTreeMap::new());
        let hub = Running {
            hive: Hive::new(parts.key.id()),
            roads: BTreeMap::new(),
            own: orders.downgrade(),
            route,
            parts,
            wake: None,
            last_sequence: 0,
            lanes_at: Vec::new(),
            offer_at: Instant::now(),
            allowed: BTreeSet::new(),
            pings: BTreeMap::new(),
            announced: BTreeSet::new(),
            observed: (0, 0),
            recorded: (Vec::new(), 0),
            said: Instant::now(),
        };
        tokio::spawn(hub.run(take, events, reports));
        Self { orders, routes }
    }

    /// A model is to be computed over the hive.
    pub async fn want(&self, want: Want, road: Arc<HiveRoad>) {
        // The hub lives as long as its handles.
        let _ = self.orders.send(Order::Want(Box::new(want), road)).await;
    }

    /// What would be planned; `None` while the node stops.
    pub async fn plan(&self, want: Want) -> Option<Result<Plan, NoRoute>> {
        let (tell, told) = oneshot::channel();
        self.orders.send(Order::Plan(Box::new(want), tell)).await.ok()?;
        told.await.ok()
    }

    /// How things are; `None` while the node stops.
    pub async fn look(&self) -> Option<View> {
        let (tell, told) = oneshot::channel();
        self.orders.send(Order::Look(tell)).await.ok()?;
        told.await.ok()
    }

    /// Waits for the first route of a model: what this node computes of it.
    pub async fn front(&self, manifest: ManifestId) -> Option<Halves> {
        let mut routes = self.routes.clone();
        let found = routes.wait_for(|routes| routes.contains_key(&manifest)).await.ok()?;
        found.get(&manifest).copied()
    }
}

struct Running {
    hive: Hive,
    roads: BTreeMap<ManifestId, (Arc<HiveRoad>, String, usize)>,
    own: mpsc::WeakSender<Order>,
    route: watch::Sender<BTreeMap<ManifestId, Halves>>,
    parts: Parts,
    wake: Option<Instant>,
    last_sequence: u64,
    /// Where this node's lanes are, as others see it.
    lanes_at: Vec<Address>,
    offer_at: Instant,
    /// Members that may connect.
    allowed: BTreeSet<NodeId>,
    /// Round trips last seen, microseconds.
    pings: BTreeMap<NodeId, u64>,
    /// Models that were announced.
    announced: BTreeSet<ManifestId>,
    /// Bytes and microseconds of reading that were observed.
    observed: (u64, u64),
    /// The addresses in the bootstrap record as it was written last, and when that was.
    recorded: (Vec<String>, u64),
    /// When the log last said how far stages are, or none was getting ready.
    said: Instant,
}

impl Running {
    async fn run(
        mut self,
        mut orders: mpsc::Receiver<Order>,
        mut events: mpsc::Receiver<Event>,
        mut reports: mpsc::UnboundedReceiver<Report>,
    ) {
        let mut looking = tokio::time::interval(LOOK_EVERY);
        let mut changes = self.parts.lender.changes();
        loop {
            let wake = self.wake.unwrap_or_else(|| Instant::now() + LOOK_EVERY);
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => return,
                },
                event = events.recv() => match event {
                    Some(event) => self.event(event).await,
                    None => return,
                },
                Some(report) = reports.recv() => self.report(report),
                Ok(()) = changes.changed() => self.offer_soon(),
                _ = looking.tick() => self.look_around().await,
                () = tokio::time::sleep_until(self.offer_at) => self.offer().await,
                () = tokio::time::sleep_until(wake) => {
                    self.wake = None;
                    self.step(Input::Tick);
                }
            }
        }
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Want(want, road) => {
                let width = want.manifest.width as usize;
                let (id, name) = (want.manifest.id(), want.manifest.name.clone());
                self.roads.insert(id, (road, name, width));
                // Those who have it are dialled, and then offer.
                let swarm = self.parts.dialler.swarm.clone();
                tokio::spawn(async move { swarm.providers(id.0).await });
                self.step(Input::Want(want));
            }
            Order::Plan(want, tell) => {
                let _ = tell.send(self.hive.plan(Millis(unix_now_ms()), &want));
            }
            Order::Look(tell) => {
                let _ = tell.send(self.view().await);
            }
            Order::Heard(input) => self.step(*input),
        }
    }

    async fn view(&self) -> View {
        let now = Millis(unix_now_ms());
        let known = self.parts.lender.known();
        let offers = self.hive.offers().iter();
        let model = |(id, (_, name, _)): (&ManifestId, &(Arc<HiveRoad>, String, usize))| {
            Some(ModelView { name: name.clone(), stand: self.hive.stand(now, *id)? })
        };
        View {
            me: self.parts.key.id(),
            addresses: self.parts.dialler.swarm.addresses().await.unwrap_or_default(),
            peers: self.parts.dialler.swarm.peers().await.unwrap_or_default(),
            offers: offers.map(|(node, offer)| (node, offer.content().clone())).collect(),
            lanes: self.lanes_at.clone(),
            lent_max: self.parts.lender.bytes(),
            lent_free: self.parts.lender.free(),
            held: self.parts.lender.held(),
            seats: self.parts.stats.seats.load(std::sync::atomic::Ordering::Relaxed),
            models: self.roads.iter().filter_map(model).collect(),
            names: known.iter().map(|it| (it.manifest.id(), it.manifest.name.clone())).collect(),
        }
    }

    async fn event(&mut self, event: Event) {
        match event {
            Event::Connected { peer, .. } => {
                tracing::info!(%peer, "connected");
                self.ask_for_offers(peer);
                self.offer_soon();
                self.show_membership().await;
            }
            Event::Disconnected { peer } => {
                tracing::info!(%peer, "disconnected");
                self.step(Input::Left(peer));
            }
            Event::Gossip { topic: MEMBERS, bytes, author, verdict } => {
                match self.parts.admission.learn(&bytes, Millis(unix_now_ms())) {
                    Ok(learned) if learned.member == author => {
                        self.let_members_in().await;
                        verdict.accept();
                    }
                    Ok(_) => verdict.ignore(),
                    Err(_) => verdict.reject(),
                }
            }
            Event::Gossip { bytes, author, verdict, .. } => match self.take_offer(&bytes) {
                Some(signer) if signer == author => verdict.accept(),
                Some(_) => verdict.ignore(),
                None => verdict.reject(),
            },
            Event::Request { bytes, reply, .. } => {
                let answer = self.answer(&bytes);
                // One that is too long is a mistake of ours that tests would show.
                let _ = reply.send(answer.into());
            }
            Event::Stream { from, stream } => {
                let pipe = Pipe::accepted_over(from, stream, PipeLimits::default());
                tokio::spawn(self.parts.post.clone().serve(from, pipe));
            }
            Event::Mismatch(mismatch) => tracing::warn!("{mismatch}"),
            Event::Listening { address } => {
                tracing::info!(%address, "listening for peers");
                self.offer_soon();
            }
            Event::Reachability(reachability) => {
                tracing::info!(?reachability, "who can dial this node");
                self.offer_soon();
            }
        }
    }

    /// Takes an offer in, if it is one; who signed it.
    fn take_offer(&mut self, bytes: &[u8]) -> Option<NodeId> {
        let offer = Signed::<Offer>::decode(bytes).ok()?.verify().ok()?;
        let signer = offer.signer();
        self.step(Input::Offer(Box::new(offer)));
        Some(signer)
    }

    fn ask_for_offers(&self, peer: NodeId) {
        let (swarm, own) = (self.parts.dialler.swarm.clone(), self.own.clone());
        tokio::spawn(async move {
            let query = wire::encode(&Query { question: Some(Question::Offers(())) });
            let Ok(reply) = swarm.ask(peer, query.into()).await else { return };
            let Ok(answer) = wire::decode::<Answer>(&reply) else { return };
            let Some(sender) = own.upgrade() else { return };
            let _ = sender.send(Order::Heard(Box::new(Input::Answered(peer)))).await;
            drop(sender);
            for bytes in answer.offers {
                let offer = Signed::<Offer>::decode(&bytes).map(Signed::verify);
                let (Ok(Ok(offer)), Some(own)) = (offer, own.upgrade()) else { return };
                let _ = own.send(Order::Heard(Box::new(Input::Offer(Box::new(offer))))).await;
            }
        });
    }

    fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let mut answer = Answer::default();
        match wire::decode::<Query>(bytes).ok().and_then(|query| query.question) {
            Some(Question::Offers(())) => {
                let known = self.hive.offers().iter().map(|(_, offer)| offer.signed().encode());
                answer.offers = known.take(OFFERS_MAX - 1).collect();
                answer.offers.extend(self.own_offer(self.last_sequence));
            }
            Some(Question::Manifest(id)) => {
                let id = ManifestId::from_slice(&id).expect("checked when it was read");
                answer.manifest =
                    self.parts.lender.manifest(id).map_or(Vec::new(), |m| wire::encode(&*m));
            }
            // What cannot be read is answered with nothing.
            None => {}
        }
        wire::encode(&answer)
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Dropped { node, why } => self.step(Input::Dropped { node, why }),
            Report::Failed {
                error: PassageError::Refused { node, reason: Reason::NotHeld, text, .. },
                ..
            } => {
                // It has given the part up since.
                self.step(Input::Dropped { node, why: text });
            }
            Report::Failed { route, error } => tracing::warn!(route, %error, "a passage failed"),
        }
    }

    /// Tells the members of a private hive that this node is one.
    async fn show_membership(&self) {
        let Some(proof) = self.parts.admission.proof(Millis(unix_now_ms())) else { return };
        if let Err(error) = self.parts.dialler.swarm.publish(MEMBERS, proof.into()).await {
            tracing::debug!(%error, "a membership was not gossiped");
        }
    }

    /// Lets all members that are known connect.
    async fn let_members_in(&mut self) {
        for member in self.parts.admission.known_members(Millis(unix_now_ms())) {
            if self.allowed.insert(member)
                && let Err(error) = self.parts.dialler.swarm.allow(member).await
            {
                tracing::warn!(%member, %error, "a member cannot connect");
            }
        }
    }

    /// Corrects what this node says of its speed by what its stages do.
    fn observe(&mut self) {
        let read = |counter: &std::sync::atomic::AtomicU64| {
            counter.load(std::sync::atomic::Ordering::Relaxed)
        };
        let now = (read(&self.parts.stats.read_bytes), read(&self.parts.stats.read_us));
        let (bytes, us) = (now.0 - self.observed.0, now.1 - self.observed.1);
        // Less is noise.
        if us >= OBSERVED_US_MIN {
            self.observed = now;
            (self.parts.observed)(u32::try_from(bytes / us).unwrap_or(u32::MAX));
        }
    }

    async fn look_around(&mut self) {
        self.observe();
        self.let_members_in().await;
        if let Err(error) = self.parts.admission.save() {
            tracing::warn!(%error, "proofs of members are not kept");
        }
        let peers = self.parts.dialler.swarm.peers().await.unwrap_or_default();
        self.pings.retain(|node, _| peers.iter().any(|peer| peer.id == *node));
        for peer in peers {
            // Only what was measured anew shows that the peer lives.
            if let Some(rtt) = peer.rtt_us
                && self.pings.insert(peer.id, rtt) != Some(rtt)
            {
                self.step(Input::Reached(peer.id, rtt));
            }
        }
        let at = self.lanes_seen().await;
        if at != self.lanes_at {
            self.lanes_at = at;
            self.renew();
            self.offer_soon();
        }
        self.write_record().await;
        self.step(Input::Tick);
    }

    /// Where this node's lanes are: on the hosts at which its swarm can be dialled.
    async fn lanes_seen(&self) -> Vec<Address> {
        if let Some(told) = self.parts.lanes_at {
            return vec![Address::new(told)];
        }
        let listens = self.parts.dialler.lanes.address();
        if !listens.ip().is_unspecified() {
            return vec![Address::new(listens)];
        }
        let addresses = self.parts.dialler.swarm.addresses().await.unwrap_or_default();
        let mut hosts: Vec<IpAddr> = addresses.iter().filter_map(host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.iter().any(|ip| !ip.is_loopback()) {
            hosts.retain(|ip| !ip.is_loopback());
        }
        let at = |ip| Address::new(SocketAddr::new(ip, listens.port()));
        hosts.into_iter().map(at).take(8).collect()
    }

    /// Lets the network find those who have a model's files by its id.
    fn announce(&mut self) {
        for id in self.parts.lender.files() {
            if !self.announced.insert(id) {
                continue;
            }
            let swarm = self.parts.dialler.swarm.clone();
            tokio::spawn(async move {
                if let Err(error) = swarm.provide(id.0).await {
                    tracing::debug!(%id, %error, "a model was not announced");
                }
            });
        }
    }

    /// Writes down where this seed is, for others to start with, when that has changed or what was
    /// written grows old.
    async fn write_record(&mut self) {
        let Some(path) = &self.parts.record else { return };
        let key = &self.parts.key;
        let now = unix_now_ms();
        let found = self.parts.dialler.swarm.addresses().await.unwrap_or_default();
        let named = |at: &Multiaddr| format!("{at}/p2p/{}", key.id());
        let addresses: Vec<String> = found.iter().take(8).map(named).collect();
        let is_young = now.saturating_sub(self.recorded.1) < RECORD_EVERY;
        if addresses.is_empty() || (is_young && self.recorded.0 == addresses) {
            return;
        }
        let record = BootstrapRecord {
            network: self.parts.admission.network().bytes(),
            addresses: addresses.clone(),
            lanes: self.lanes_at.clone(),
            made_ms: now,
            expires_ms: now + SEED_LIFE_MAX,
            protocol: PROTOCOL,
        };
        let written = Verified::sign(record, key).map_err(anyhow::Error::from).and_then(|record| {
            let part = path.with_extension("part");
            std::fs::write(&part, format!("{}\n", SeedText(record.signed().clone())))?;
            Ok(durable::publish(&part, path)?)
        });
        self.recorded = (addresses, now);
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "the bootstrap record is not written");
            self.recorded.1 = (now + RECORD_AGAIN).saturating_sub(RECORD_EVERY);
        }
    }

    /// Asks for a longer membership, if this one is near its end.
    fn renew(&self) {
        let admission = self.parts.admission.clone();
        let now = Millis(unix_now_ms());
        if admission.lasts().is_none_or(|until| until > now.plus(RENEW_MS)) {
            return;
        }
        let near = admission.inviters(now).into_iter();
        let Some(hop) = near.map(|node| self.hive.hop(node)).find(|hop| !hop.lanes.is_empty())
        else {
            return;
        };
        let lanes = self.parts.dialler.lanes.clone();
        self.parts.dialler.lanes.spawn(async move {
            let addresses: Vec<_> = hop.lanes.iter().filter_map(Address::socket).collect();
            if let Err(error) = admission::renew(&admission, &lanes, hop.node(), &addresses).await {
                tracing::warn!(%error, "the membership was not renewed");
            }
        });
    }

    fn offer_soon(&mut self) {
        self.offer_at = self.offer_at.min(Instant::now() + OFFER_SOON);
    }

    fn own_offer(&self, sequence: u64) -> Option<Vec<u8>> {
        let lender = &self.parts.lender;
        let mut health = (self.parts.health)();
        health.neighbours = self.hive.offers().near().named();
        let seats = self.parts.stats.seats.load(std::sync::atomic::Ordering::Relaxed) as usize;
        let offer = Offer {
            sequence,
            life_ms: OFFER_LIFE_MS,
            protocol: PROTOCOL,
            program: concat!("cadencia ", env!("CARGO_PKG_VERSION")).into(),
            class: compute::numeric::CLASS.into(),
            lanes: self.lanes_at.clone(),
            health: Some(health),
            held: lender.held(),
            files: lender.files().iter().take(32).map(|id| id.0.to_vec()).collect(),
            memory_free_mb: u32::try_from(lender.free() / 1_000_000).unwrap_or(u32::MAX),
            seats_free: super::stages::SEATS_MAX.saturating_sub(seats) as u32,
        };
        match Verified::sign(offer, &self.parts.key) {
            Ok(offer) => Some(offer.signed().encode()),
            Err(error) => {
                tracing::error!(%error, "this node's own offer is not valid");
                None
            }
        }
    }

    async fn offer(&mut self) {
        self.offer_at = Instant::now() + OFFER_EVERY;
        self.renew();
        self.announce();
        self.show_membership().await;
        self.lanes_at = self.lanes_seen().await;
        self.last_sequence = unix_now_ms().max(self.last_sequence + 1);
        let Some(bytes) = self.own_offer(self.last_sequence) else { return };
        if let Err(error) = self.parts.dialler.swarm.publish(OFFERS, bytes.into()).await {
            // As long as nobody is connected, that is no news.
            tracing::debug!(%error, "an offer was not gossiped");
        }
    }

    fn step(&mut self, input: Input) {
        for effect in self.hive.handle(Millis(unix_now_ms()), input) {
            match effect {
                Effect::Prepare { node, manifest, halves, sources } => {
                    self.prepare(node, manifest, halves, sources);
                }
                Effect::Route { manifest, number, front, legs, words } => {
                    let Some((road, _, width)) = self.roads.get(&manifest) else { continue };
                    road.set_route(Ok(Arc::new(Route {
                        number,
                        manifest: manifest.0.to_vec(),
                        legs,
                        words,
                        row_bytes: row_bytes(*width),
                        replication: self.parts.replication,
                    })));
                    self.route.send_modify(|routes| {
                        routes.entry(manifest).or_insert(front);
                    });
                }
                Effect::NoRoute { manifest, why } => {
                    tracing::warn!(why, "no route");
                    if let Some((road, ..)) = self.roads.get(&manifest) {
                        road.set_route(Err(why));
                    }
                }
                Effect::Ask(node) => self.ask_for_offers(node),
                Effect::Say(text) => tracing::info!("{text}"),
                Effect::Wake(at) => {
                    let ms = at.since(Millis(unix_now_ms()));
                    self.wake = Some(Instant::now() + Duration::from_millis(ms));
                }
            }
        }
        self.tell_how_far();
    }

    /// Whoever asks for a model without a route hears how far it is.
    fn tell_how_far(&mut self) {
        let now = Millis(unix_now_ms());
        let mut preparing = None;
        for (id, (road, ..)) in &self.roads {
            let Some(stand) = self.hive.stand(now, *id) else { continue };
            if let (Some(why), Err(_)) = (stand.why_not(), road.route()) {
                road.set_route(Err(why.clone()));
                if matches!(stand, Stand::Preparing { .. }) {
                    preparing = Some(why);
                }
            }
        }
        match preparing {
            None => self.said = Instant::now(),
            Some(how_far) if self.said.elapsed() >= SAY_EVERY => {
                tracing::info!("{how_far}");
                self.said = Instant::now();
            }
            Some(_) => {}
        }
    }

    /// Asks a node to get a part ready, and listens to how far it is.
    fn prepare(&self, node: Hop, manifest: ManifestId, halves: Halves, mut sources: Vec<Hop>) {
        if self.parts.lender.files().contains(&manifest) {
            let node = self.parts.key.id().0.to_vec();
            sources.push(Hop { node, lanes: self.lanes_at.clone(), leg: 0 });
        }
        let (dialler, own) = (self.parts.dialler.clone(), self.own.clone());
        self.parts.dialler.lanes.spawn(async move {
            let who = node.node();
            let prepare = Prepare { manifest: manifest.0.to_vec(), halves: Some(halves), sources };
            let (why, refused) = match get_ready(&dialler, &node, prepare, &own).await {
                Ok(None) => return,
                Ok(Some(why)) => (why, true),
                Err(error) => (format!("{error:#}"), false),
            };
            tell(&own, Input::Unprepared { node: who, manifest, halves, why, refused }).await;
        });
    }
}

/// Tells the hub what came of a task.
async fn tell(own: &mpsc::WeakSender<Order>, input: Input) {
    if let Some(own) = own.upgrade() {
        // It may be stopping.
        let _ = own.send(Order::Heard(Box::new(input))).await;
    }
}

/// Asks for a part until it is ready (`None`) or refused (why).
async fn get_ready(
    dialler: &Dialler,
    node: &Hop,
    prepare: Prepare,
    own: &mpsc::WeakSender<Order>,
) -> anyhow::Result<Option<String>> {
    let (who, halves) = (node.node(), prepare.halves.expect("it is said"));
    let manifest = ManifestId::from_slice(&prepare.manifest).expect("it is an id");
    let mut pipe = dialler.dial(node).await?;
    let line = Line::from(Say::Prepare(prepare));
    pipe.send(&wire::encode(&line), [Bytes::new()]).await?;
    loop {
        let frame = tokio::time::timeout(PREPARE_SILENCE_MAX, pipe.recv()).await;
        let silent = |_| anyhow::anyhow!("was silent for {} s", PREPARE_SILENCE_MAX.as_secs());
        let frame = frame.map_err(silent)??;
        let Some(frame) = frame else { anyhow::bail!("ended before the part was ready") };
        match post::read(&frame)? {
            Say::Prepared(at) => {
                let (done, whole, ready) = (at.done, at.whole, at.ready);
                let input = Input::Prepared { node: who, manifest, halves, done, whole, ready };
                tell(own, input).await;
                if ready {
                    return Ok(None);
                }
            }
            Say::Refused(refused) => return Ok(Some(refused.text)),
            _ => anyhow::bail!("says what is not asked"),
        }
    }
}

/// The host in an address that leads straight to it.
fn host(address: &Multiaddr) -> Option<IpAddr> {
    if address.iter().any(|part| matches!(part, Protocol::P2pCircuit)) {
        return None;
    }
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) if !ip.is_unspecified() => Some(ip.into()),
        Protocol::Ip6(ip) if !ip.is_unspecified() => Some(ip.into()),
        _ => None,
    })
}
