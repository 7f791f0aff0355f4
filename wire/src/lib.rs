//! The words that two rooms or two nodes share: data with one canonical encoding, and no behaviour.
//!
//! * who somebody is: [`NodeId`], and what they said: [`Signed`], [`Verified`];
//! * what a model is, to a network: [`Manifest`], [`ManifestId`], [`Halves`];
//! * what a node offers: [`Offer`], [`Health`];
//! * who may be where: [`Invite`], [`Membership`], [`Hello`];
//! * how a network is found: [`BootstrapRecord`];
//! * what stages say to one another: [`lane`].
//!
//! Everything here can come from a stranger, so everything is read by [`decode`]: of bounded size,
//! in its one encoding, with every number in its range, or not at all.
//!
//! **Invariant:** no floats, no maps, no clock. A signature is over the bytes that were received.

mod ask;
mod codec;
mod hello;
mod id;
pub mod lane;
mod manifest;
mod offer;
mod place;
mod seed;
mod signed;

pub use ask::{Answer, OFFERS_MAX, Query, Question};
pub use codec::{Checked, Malformed, Word, decode, encode};
pub use hello::{
    Hello, Invite, InviteText, InviteTextError, Membership, MembershipError, NetworkId, PROTOCOL,
    Skew,
};
pub use id::{Key, NodeId, NodeIdError, digest};
pub use manifest::{CHUNK, File, Manifest, ManifestId, Part, Work};
pub use offer::{Health, Held, Neighbour, OFFER_LIFE_MAX, Offer};
pub use place::{Address, HALVES_MAX, Halves, Millis};
pub use seed::{BootstrapRecord, SEED_LIFE_MAX, SeedText, SeedTextError};
pub use signed::{Content, ENVELOPE, SignatureError, Signed, Verified};
