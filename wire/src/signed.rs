//! What somebody said, and that it was they.

use std::marker::PhantomData;

use ed25519_dalek::Signer;
use prost::Message;
use thiserror::Error;

use crate::codec::{Checked, Malformed, Word, decode, encode, exactly, range};
use crate::id::{Key, NodeId};

/// A word that is signed.
pub trait Content: Word {
    /// Stands before the signed bytes, so that a signature of one kind is none of another.
    const DOMAIN: &'static str;
}

/// Why something signed was not believed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SignatureError {
    /// It, or what it holds, cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The signature is not the signer's.
    #[error("the signature on {what} is not that of {signer}")]
    Forged {
        /// The word.
        what: &'static str,
        /// Who is said to have signed.
        signer: NodeId,
    },
}

/// Bytes with a signature that nobody has checked. Only [`Signed::verify`] leads to the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed<C> {
    envelope: Envelope,
    content: PhantomData<C>,
}

/// Content whose signature was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified<C> {
    signer: NodeId,
    content: C,
    signed: Signed<C>,
}

/// As it travels.
#[derive(Clone, PartialEq, Eq, Message)]
struct Envelope {
    #[prost(bytes = "vec", tag = "1")]
    content: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    signer: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    signature: Vec<u8>,
}

/// Bytes that an envelope adds to its content, at most.
pub const ENVELOPE: usize = 128;

impl Word for Envelope {
    const NAME: &'static str = "a signed message";
    const BYTES_MAX: usize = 1 << 20;

    fn check(&self) -> Checked {
        exactly::<Self>("signer", &self.signer, 32)?;
        exactly::<Self>("signature", &self.signature, 64)
    }
}

fn signed_bytes<C: Content>(content: &[u8]) -> Vec<u8> {
    [C::DOMAIN.as_bytes(), &[0], content].concat()
}

impl<C: Content> Signed<C> {
    /// Reads an envelope; what is in it stays closed.
    ///
    /// # Errors
    /// The bytes are no envelope, or one that is too large for this content.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let max = C::BYTES_MAX + ENVELOPE;
        if bytes.len() > max {
            return Err(Malformed::TooLong { what: C::NAME, size: bytes.len(), max });
        }
        Ok(Self { envelope: decode(bytes)?, content: PhantomData })
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(&self.envelope)
    }

    /// Who is said to have signed.
    pub fn signer(&self) -> NodeId {
        NodeId::from_slice(&self.envelope.signer).expect("checked when it was read or made")
    }

    /// Opens it, if the signature holds for exactly the bytes that came.
    ///
    /// # Errors
    /// The signature is not the signer's, or the content is malformed.
    pub fn verify(self) -> Result<Verified<C>, SignatureError> {
        let signer = self.signer();
        let Envelope { content, signature, .. } = &self.envelope;
        let signature = signature[..].try_into().expect("checked when it was read or made");
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        let bytes = signed_bytes::<C>(content);
        let holds =
            signer.verifying_key().is_some_and(|key| key.verify_strict(&bytes, &signature).is_ok());
        if !holds {
            return Err(SignatureError::Forged { what: C::NAME, signer });
        }
        Ok(Verified { signer, content: decode(content)?, signed: self })
    }
}

impl<C: Content> Verified<C> {
    /// Signs `content`.
    ///
    /// # Errors
    /// It would be refused by whoever reads it.
    pub fn sign(content: C, key: &Key) -> Result<Self, Malformed> {
        content.check()?;
        let bytes = encode(&content);
        let size = bytes.len();
        if size > C::BYTES_MAX {
            return Err(Malformed::TooLong { what: C::NAME, size, max: C::BYTES_MAX });
        }
        let signature = key.signing_key().sign(&signed_bytes::<C>(&bytes)).to_bytes().to_vec();
        let signer = key.id();
        let envelope = Envelope { content: bytes, signer: signer.0.to_vec(), signature };
        Ok(Self { signer, content, signed: Signed { envelope, content: PhantomData } })
    }

    /// Who signed.
    pub fn signer(&self) -> NodeId {
        self.signer
    }

    /// What they signed.
    pub fn content(&self) -> &C {
        &self.content
    }

    /// As it travels.
    pub fn signed(&self) -> &Signed<C> {
        &self.signed
    }

    /// Refuses unless `signer` signed it.
    ///
    /// # Errors
    /// Somebody else did.
    pub fn by(self, signer: NodeId) -> Result<Self, Malformed> {
        let own = self.signer;
        range::<C>("signer", own == signer, || format!("{own}, {signer} is wanted"))?;
        Ok(self)
    }
}
