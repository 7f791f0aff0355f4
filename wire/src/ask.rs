//! What nodes ask each other on the control plane, and what is answered.

use prost::{Message, Oneof};

use crate::codec::{Checked, Word, at_most, exactly, range};

/// Signed offers in one answer: enough to know a hive at once, far below what a reply may hold.
pub const OFFERS_MAX: usize = 128;
/// Bytes of a signed offer.
const OFFER_MAX: usize = 7 << 10;

/// A question.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Query {
    /// What is asked.
    #[prost(oneof = "Question", tags = "1, 2")]
    pub question: Option<Question>,
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Question {
    /// Which offers do you know?
    #[prost(message, tag = "1")]
    Offers(()),
    /// What is the manifest with this id?
    #[prost(bytes = "vec", tag = "2")]
    Manifest(Vec<u8>),
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Answer {
    /// Signed offers.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub offers: Vec<Vec<u8>>,
    /// A manifest; empty where it is not known.
    #[prost(bytes = "vec", tag = "2")]
    pub manifest: Vec<u8>,
}

impl Word for Query {
    const NAME: &'static str = "a question";
    const BYTES_MAX: usize = 64;

    fn check(&self) -> Checked {
        match &self.question {
            Some(Question::Manifest(id)) => exactly::<Self>("manifest", id, 32),
            Some(Question::Offers(())) => Ok(()),
            None => range::<Self>("question", false, || "it is of an unknown kind".into()),
        }
    }
}

impl Word for Answer {
    const NAME: &'static str = "an answer";
    const BYTES_MAX: usize = 1 << 20;

    fn check(&self) -> Checked {
        at_most::<Self>("offers", self.offers.len(), OFFERS_MAX)?;
        let largest = self.offers.iter().map(Vec::len).max().unwrap_or(0);
        range::<Self>("offers", largest <= OFFER_MAX, || format!("{largest} bytes"))
    }
}
