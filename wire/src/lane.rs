//! What is said in a lane: how a requester and the stages of its route pass rows on.
//!
//! A requester opens one pipe to each stage of its route, and each stage one to the next. Every frame
//! has a [`Say`] as its header; those that carry rows have them as their body, in the canonical form
//! of the residual.
//!
//! *Steps* number what the requester sends, each higher than the one before. A stage takes only steps
//! above the last it took, so rows that two replicas send arrive once. Rows begin at position `first`,
//! which is at or before the end of what the stage has; what it had from there on is forgotten. So
//! speculation, replay and a new attempt after a failure need no further rule.

use prost::{Message, Oneof};

use crate::codec::{Checked, Malformed, Word, at_most, exactly, range, text};
use crate::id::NodeId;
use crate::manifest::ManifestId;
use crate::place::{Address, HALVES_MAX, Halves};

/// Positions in a page of keys and values: what is kept for later sequences is kept in pages.
pub const PAGE: u32 = 32;
/// Bytes of a key of a page.
pub const PAGE_KEY: usize = 16;
/// Positions of a sequence.
pub const POSITIONS_MAX: u32 = 1 << 23;
/// Rows in a frame.
pub const ROWS_MAX: u32 = 1024;
/// Pages that one message names.
const KEYS_MAX: usize = 4096;
/// Nodes that may feed one seat, or that it may feed.
const HOPS_MAX: usize = 4;
/// Addresses of a node.
const ADDRESSES_MAX: usize = 8;

/// A header.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Line {
    /// What is said.
    #[prost(oneof = "Say", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15")]
    pub say: Option<Say>,
}

/// Everything that is said in lanes.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Say {
    /// First in a requester's pipe to a stage: a sequence is wanted there.
    #[prost(message, tag = "1")]
    Open(Open),
    /// The stage has a seat for it.
    #[prost(message, tag = "2")]
    Opened(Opened),
    /// First in a pipe from a stage to the next: rows of a sequence will come in it.
    #[prost(message, tag = "3")]
    Feed(Feed),
    /// Rows, or that they were computed.
    #[prost(message, tag = "4")]
    Rows(Rows),
    /// Requester to stage: pages that hold nothing provisional, by their keys.
    #[prost(message, tag = "5")]
    Keep(Keep),
    /// Requester to stage: how far are you?
    #[prost(message, tag = "6")]
    Where(Where),
    /// The answer.
    #[prost(message, tag = "7")]
    At(At),
    /// Requester to stage: send to this one, too, or from now on.
    #[prost(message, tag = "8")]
    Attach(Attach),
    /// It cannot be done.
    #[prost(message, tag = "9")]
    Refused(Refused),
    /// Stage to requester: the pipe to another stage broke.
    #[prost(message, tag = "10")]
    Lost(Lost),
    /// First in a pipe: this part of this model will be wanted.
    #[prost(message, tag = "11")]
    Prepare(Prepare),
    /// How far that is.
    #[prost(message, tag = "12")]
    Prepared(Prepared),
    /// A manifest, a chunk of weights, or what there is of them, is wanted.
    #[prost(message, tag = "13")]
    Want(Want),
    /// Here it is; the body holds it.
    #[prost(message, tag = "14")]
    Have(Have),
    /// First in a pipe: let me in.
    #[prost(message, tag = "15")]
    Admit(Admit),
}

/// A sequence is wanted at a stage.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Open {
    /// Which sequence: 16 random bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub session: Vec<u8>,
    /// Of which model.
    #[prost(bytes = "vec", tag = "2")]
    pub manifest: Vec<u8>,
    /// The stage's half-blocks.
    #[prost(message, optional, tag = "3")]
    pub halves: Option<Halves>,
    /// Positions that it may grow to: room for them is set aside.
    #[prost(uint32, tag = "4")]
    pub positions: u32,
    /// To whom results go; nobody means back to the requester.
    #[prost(message, repeated, tag = "5")]
    pub next: Vec<Hop>,
    /// Who else may send rows: keys of 32 bytes.
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub from: Vec<Vec<u8>>,
    /// Keys of its first pages, of which the stage may still hold some.
    #[prost(bytes = "vec", tag = "7")]
    pub beginning: Vec<u8>,
    /// Which stage of the route it is, from 0: a node may be several.
    #[prost(uint32, tag = "8")]
    pub leg: u32,
}

/// Where rows go.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hop {
    /// The node's key.
    #[prost(bytes = "vec", tag = "1")]
    pub node: Vec<u8>,
    /// Where its lanes are.
    #[prost(message, repeated, tag = "2")]
    pub lanes: Vec<Address>,
    /// Which stage of the route it is there.
    #[prost(uint32, tag = "3")]
    pub leg: u32,
}

/// There is a seat.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Opened {
    /// Rows that a frame should have at most, so that others need not wait long.
    #[prost(uint32, tag = "1")]
    pub rows_max: u32,
    /// Positions at the beginning that need not be sent, for their pages were kept.
    #[prost(uint32, tag = "2")]
    pub begun: u32,
}

/// Rows of a sequence will come.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Feed {
    /// Which.
    #[prost(bytes = "vec", tag = "1")]
    pub session: Vec<u8>,
    /// For which stage of its route.
    #[prost(uint32, tag = "2")]
    pub leg: u32,
}

/// Rows at consecutive positions. On its way back to the requester it holds those that were wanted.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Rows {
    /// Number of the step.
    #[prost(uint64, tag = "1")]
    pub step: u64,
    /// Position of the first row.
    #[prost(uint32, tag = "2")]
    pub first: u32,
    /// How many.
    #[prost(uint32, tag = "3")]
    pub count: u32,
    /// Which results are wanted at the end of the route.
    #[prost(enumeration = "Wanted", tag = "4")]
    pub wanted: i32,
    /// What is done with results.
    #[prost(enumeration = "Onward", tag = "5")]
    pub onward: i32,
}

/// Which rows a requester wants back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Wanted {
    /// None.
    Nothing = 0,
    /// The last.
    Last = 1,
    /// All.
    Each = 2,
}

/// What a stage does with what it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Onward {
    /// It sends it to the next.
    Send = 0,
    /// It keeps it: the next has it already, or will get it from another.
    Hold = 1,
}

/// Pages to be kept for later.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Keep {
    /// Number of the first.
    #[prost(uint32, tag = "1")]
    pub first: u32,
    /// Keys of them, 16 bytes each.
    #[prost(bytes = "vec", tag = "2")]
    pub keys: Vec<u8>,
}

/// How far are you?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Where {
    /// Comes back in the answer.
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
}

/// How far a stage is with a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct At {
    /// As in the question.
    #[prost(uint64, tag = "1")]
    pub nonce: u64,
    /// The last step that came.
    #[prost(uint64, tag = "2")]
    pub received: u64,
    /// The last that was computed and sent on.
    #[prost(uint64, tag = "3")]
    pub done: u64,
    /// Positions computed.
    #[prost(uint32, tag = "4")]
    pub positions: u32,
    /// Rows that wait for their turn in all of the stage, those of others among them.
    #[prost(uint32, tag = "5")]
    pub queued: u32,
}

/// A change to whom a stage sends.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Attach {
    /// To whom.
    #[prost(message, optional, tag = "1")]
    pub hop: Option<Hop>,
    /// What it is to them.
    #[prost(enumeration = "Role", tag = "2")]
    pub role: i32,
    /// Position from which on kept results are sent to it first, to be held there; what was sent to
    /// it before is not sent again.
    #[prost(uint32, tag = "3")]
    pub from: u32,
    /// Comes back in an [`At`] when it is done.
    #[prost(uint64, tag = "4")]
    pub nonce: u64,
}

/// What one that is fed is to the route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Role {
    /// It replaces all who were fed before.
    Only = 0,
    /// It gets everything, as those before do.
    Also = 1,
    /// It gets everything, late and in batches, to be held.
    Spare = 2,
    /// It is fed no more.
    Never = 3,
    /// A spare that gets what it lacks, and the last step to compute and send on.
    Hedge = 4,
}

/// It cannot be done.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Refused {
    /// Why.
    #[prost(enumeration = "Reason", tag = "1")]
    pub reason: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub text: String,
    /// When to come back, milliseconds; 0 where it makes no difference.
    #[prost(uint32, tag = "3")]
    pub retry_ms: u32,
}

/// Bytes of a text for people.
const TEXT_MAX: usize = 512;

/// `text` as others take it: without control characters, and no longer than a text may be.
fn plain(text: &str) -> String {
    let mut plain: String = text.chars().filter(|c| !c.is_control()).collect();
    plain.truncate(plain.floor_char_boundary(TEXT_MAX));
    plain
}

impl Refused {
    /// A refusal; of its text, as much is told as may be.
    pub fn new(reason: Reason, text: impl AsRef<str>, retry_ms: u32) -> Self {
        Self { reason: reason as i32, text: plain(text.as_ref()), retry_ms }
    }
}

impl Lost {
    /// That `node` is gone; of how that was noticed, as much is told as may be.
    pub fn new(node: NodeId, text: impl AsRef<str>) -> Self {
        Self { node: node.0.to_vec(), text: plain(text.as_ref()) }
    }
}

/// Why something cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Reason {
    /// Its own mistake.
    Internal = 0,
    /// There is no memory or place now.
    Full = 1,
    /// That part of that model is not here.
    NotHeld = 2,
    /// There is no such sequence.
    Unknown = 3,
    /// What came breaks a rule.
    Broken = 4,
    /// Rows are missing before those that came.
    Gap = 5,
    /// It is not for whoever asks.
    NotAllowed = 6,
    /// It is about to leave.
    Leaving = 7,
}

/// Another stage is gone.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Lost {
    /// Its key.
    #[prost(bytes = "vec", tag = "1")]
    pub node: Vec<u8>,
    /// How it was noticed, for people.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// A part of a model will be wanted.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Prepare {
    /// Of which model.
    #[prost(bytes = "vec", tag = "1")]
    pub manifest: Vec<u8>,
    /// Which half-blocks.
    #[prost(message, optional, tag = "2")]
    pub halves: Option<Halves>,
    /// Who may have its bytes.
    #[prost(message, repeated, tag = "3")]
    pub sources: Vec<Hop>,
}

/// How far a part is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Prepared {
    /// Bytes there.
    #[prost(uint64, tag = "1")]
    pub done: u64,
    /// Bytes in all.
    #[prost(uint64, tag = "2")]
    pub whole: u64,
    /// Whether sequences may come.
    #[prost(bool, tag = "3")]
    pub ready: bool,
    /// How long it will take, seconds, as far as can be told.
    #[prost(uint32, tag = "4")]
    pub eta_s: u32,
}

/// A manifest, a chunk, or a list of what there is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Want {
    /// Of which model.
    #[prost(bytes = "vec", tag = "1")]
    pub manifest: Vec<u8>,
    /// Which piece of it.
    #[prost(oneof = "Piece", tags = "2, 3, 4")]
    pub piece: Option<Piece>,
}

/// A piece of a model.
#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub enum Piece {
    /// Its manifest.
    #[prost(message, tag = "2")]
    Manifest(()),
    /// Which parts are there whole: a bit a part, from the lowest of the first byte.
    #[prost(message, tag = "3")]
    Parts(()),
    /// A chunk.
    #[prost(message, tag = "4")]
    Chunk(ChunkAt),
}

/// Which chunk.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ChunkAt {
    /// The part: 0 what stands before the tensors, 1 the ends, 2 + h half-block h.
    #[prost(uint32, tag = "1")]
    pub part: u32,
    /// Its number in the part.
    #[prost(uint32, tag = "2")]
    pub chunk: u32,
}

/// What was wanted: the body holds the manifest, the bits, or the chunk.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Have {
    /// For a chunk, the Merkle proof that it is what the manifest says: digests of 32 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub proof: Vec<u8>,
}

/// Let me in.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Admit {
    /// The signed invitation.
    #[prost(bytes = "vec", tag = "1")]
    pub invite: Vec<u8>,
    /// In the answer: the signed membership.
    #[prost(bytes = "vec", tag = "2")]
    pub membership: Vec<u8>,
}

impl Rows {
    /// One after the last position.
    pub fn end(&self) -> u32 {
        self.first + self.count
    }
}

impl Hop {
    /// The node.
    pub fn node(&self) -> NodeId {
        NodeId::from_slice(&self.node).expect("checked when it was read")
    }

    fn check(&self) -> Checked {
        exactly::<Line>("node", &self.node, 32)?;
        leg(self.leg)?;
        at_most::<Line>("lanes", self.lanes.len(), ADDRESSES_MAX)?;
        self.lanes.iter().try_for_each(Word::check)
    }
}

impl Open {
    /// The model.
    pub fn manifest(&self) -> ManifestId {
        ManifestId::from_slice(&self.manifest).expect("checked when it was read")
    }

    /// The half-blocks.
    pub fn halves(&self) -> Halves {
        self.halves.expect("checked when it was read")
    }

    fn check(&self) -> Checked {
        exactly::<Line>("session", &self.session, 16)?;
        exactly::<Line>("manifest", &self.manifest, 32)?;
        leg(self.leg)?;
        halves(&self.halves)?;
        let positions = self.positions;
        range::<Line>("positions", positions > 0 && positions <= POSITIONS_MAX, || {
            positions.to_string()
        })?;
        at_most::<Line>("next", self.next.len(), HOPS_MAX)?;
        self.next.iter().try_for_each(Hop::check)?;
        at_most::<Line>("from", self.from.len(), HOPS_MAX)?;
        self.from.iter().try_for_each(|node| exactly::<Line>("from", node, 32))?;
        keys(&self.beginning)
    }
}

fn halves(halves: &Option<Halves>) -> Checked {
    range::<Line>("halves", halves.is_some(), || "it is missing".into())?;
    halves.as_ref().map_or(Ok(()), Word::check)
}

fn leg(leg: u32) -> Checked {
    range::<Line>("leg", leg < HALVES_MAX, || leg.to_string())
}

fn keys(keys: &[u8]) -> Checked {
    let whole = keys.len().is_multiple_of(PAGE_KEY) && keys.len() <= KEYS_MAX * PAGE_KEY;
    range::<Line>("keys", whole, || format!("{} bytes", keys.len()))
}

impl Rows {
    fn check(&self) -> Checked {
        let counted = self.count > 0 && self.count <= ROWS_MAX;
        range::<Line>("count", counted, || format!("{}, {ROWS_MAX} are the most", self.count))?;
        let end = self.first.checked_add(self.count);
        let holds = end.is_some_and(|end| end <= POSITIONS_MAX);
        range::<Line>("first", holds, || self.first.to_string())?;
        let known = Wanted::try_from(self.wanted).is_ok() && Onward::try_from(self.onward).is_ok();
        range::<Line>("wanted", known, || format!("{} and {}", self.wanted, self.onward))
    }
}

impl Word for Line {
    const NAME: &'static str = "a frame's header";
    const BYTES_MAX: usize = 70 << 10;

    fn check(&self) -> Checked {
        let missing = || Malformed::OutOfRange {
            what: Self::NAME,
            field: "say",
            why: "it is of a kind that this version does not know".into(),
        };
        match self.say.as_ref().ok_or_else(missing)? {
            Say::Open(open) => open.check(),
            Say::Opened(opened) => {
                let rows = opened.rows_max;
                range::<Self>("rows_max", rows > 0 && rows <= ROWS_MAX, || rows.to_string())?;
                let begun = opened.begun;
                range::<Self>("begun", begun <= POSITIONS_MAX, || begun.to_string())
            }
            Say::Feed(feed) => {
                exactly::<Self>("session", &feed.session, 16)?;
                leg(feed.leg)
            }
            Say::Rows(rows) => rows.check(),
            Say::Keep(keep) => {
                range::<Self>("first", keep.first <= POSITIONS_MAX, || keep.first.to_string())?;
                keys(&keep.keys)
            }
            Say::Where(_) | Say::At(_) => Ok(()),
            Say::Attach(attach) => {
                range::<Self>("hop", attach.hop.is_some(), || "it is missing".into())?;
                attach.hop.as_ref().map_or(Ok(()), Hop::check)?;
                let role = Role::try_from(attach.role).is_ok();
                range::<Self>("role", role, || attach.role.to_string())
            }
            Say::Refused(refused) => {
                let known = Reason::try_from(refused.reason).is_ok();
                range::<Self>("reason", known, || refused.reason.to_string())?;
                text::<Self>("text", &refused.text, TEXT_MAX)
            }
            Say::Lost(lost) => {
                exactly::<Self>("node", &lost.node, 32)?;
                text::<Self>("text", &lost.text, TEXT_MAX)
            }
            Say::Prepare(prepare) => {
                exactly::<Self>("manifest", &prepare.manifest, 32)?;
                halves(&prepare.halves)?;
                at_most::<Self>("sources", prepare.sources.len(), 16)?;
                prepare.sources.iter().try_for_each(Hop::check)
            }
            Say::Prepared(_) => Ok(()),
            Say::Want(want) => {
                exactly::<Self>("manifest", &want.manifest, 32)?;
                range::<Self>("piece", want.piece.is_some(), || "it is missing".into())
            }
            Say::Have(have) => {
                let size = have.proof.len();
                let whole = size.is_multiple_of(32) && size <= 64 * 32;
                range::<Self>("proof", whole, || format!("{size} bytes"))
            }
            Say::Admit(admit) => {
                let size = admit.invite.len().max(admit.membership.len());
                range::<Self>("invite", size <= 8 << 10, || format!("{size} bytes"))
            }
        }
    }
}

impl From<Say> for Line {
    fn from(say: Say) -> Self {
        Self { say: Some(say) }
    }
}
