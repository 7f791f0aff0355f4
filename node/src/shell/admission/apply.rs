//! Being let in, and letting in, over lanes: one pipe, one question, one answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use libp2p::identity::Keypair;
use thiserror::Error;
use wire::lane::{Admit, Line, Say};
use wire::{
    Hello, Invite, InviteText, Key, Malformed, Membership, Millis, NetworkId, NodeId, PROTOCOL,
    SignatureError, Verified,
};

use super::{Admission, AdmissionError, Refusal};
use crate::shell::lanes::{self, Lanes, LinkError, Pipe, PipeError};
use crate::shell::speaker::unix_now_ms;

/// How long whoever lets in may take to answer: its wait for a lock, two flushes of a slow disk, and
/// the way.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);

/// Why this node was not let in.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The invitation is not what somebody signed.
    #[error("the invitation is damaged ({0}); copy all of it, or ask for a new one")]
    Damaged(#[from] SignatureError),
    /// It is over.
    #[error("the invitation has expired; ask for a new one")]
    Expired,
    /// It does not say where its signer's lanes are.
    #[error("the invitation says no address of {0}; ask for one made while that node runs")]
    Nowhere(NodeId),
    /// Its signer cannot be reached.
    #[error("cannot reach the node that made the invitation: {0}")]
    Link(#[from] LinkError),
    /// The pipe broke.
    #[error("the node that lets in was lost: {0}; try again")]
    Pipe(#[from] PipeError),
    /// It says no.
    #[error("{issuer} does not let this node in: {why}")]
    Refused {
        /// Who.
        issuer: NodeId,
        /// Its words.
        why: String,
    },
    /// It says nothing.
    #[error("{issuer} did not answer within {} s; try again", ANSWER_WAIT_MAX.as_secs())]
    Silent {
        /// Who.
        issuer: NodeId,
    },
    /// It ends the pipe instead of answering.
    #[error("{0} hung up instead of answering; try again")]
    HungUp(NodeId),
    /// It says something else.
    #[error("{0} answers what was not asked; update the older of the two nodes")]
    Strange(NodeId),
    /// What it says cannot be read.
    #[error("{issuer} answers what cannot be read: {why}")]
    Unreadable {
        /// Who.
        issuer: NodeId,
        /// What is wrong.
        why: Malformed,
    },
    /// Lanes cannot be had for the moment that it takes.
    #[error("cannot open a port to ask from: {0}")]
    Start(#[from] lanes::StartError),
    /// The node's key is none.
    #[error("the node's key is none: {0}")]
    Key(#[from] libp2p::identity::DecodingError),
    /// What came of it cannot be kept.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
}

/// Has the node with `key` let into the hive to which `text` leads, and keeps the membership in folder
/// `state`. Where it belongs there already, and for the public network, nobody is asked.
///
/// # Errors
/// See [`ApplyError`]; the node is where it was.
pub async fn join(state: &Path, key: &Key, text: &InviteText) -> Result<Admission, ApplyError> {
    let now = Millis(unix_now_ms());
    let admission = Admission::open(state, key, now)?;
    let invite = text.0.clone().verify()?;
    let (network, issuer) = (invite.content().network(), invite.signer());
    let NetworkId::Private(hive) = network else { return Ok(admission) };
    let ours = admission.network();
    if ours == network && admission.lasts().is_none_or(|until| until > now) {
        return Ok(admission);
    }
    if ours != NetworkId::Public && ours != network {
        return Err(AdmissionError::Taken(ours).into());
    }
    if invite.content().expires_ms <= now.0 {
        return Err(ApplyError::Expired);
    }
    let addresses = lanes_of(&invite)?;
    let lanes = door(key, hive, addresses[0])?;
    let ask = Admit { invite: text.0.encode(), membership: Vec::new() };
    let answer = request(&lanes, issuer, &addresses, ask).await;
    // Its thread ends by itself; who waits for that must not be a task.
    let _ = tokio::task::spawn_blocking(move || lanes.stop()).await;
    admission.enter(hive, &answer?, Millis(unix_now_ms()))?;
    Ok(admission)
}

/// Has this node's membership renewed by `issuer`, a member that may let others in.
///
/// # Errors
/// See [`ApplyError`]; the old membership still stands.
pub async fn renew(
    admission: &Admission,
    lanes: &Lanes,
    issuer: NodeId,
    addresses: &[SocketAddr],
) -> Result<(), ApplyError> {
    let (NetworkId::Private(hive), Some(membership)) =
        (admission.network(), admission.proof(Millis(unix_now_ms())))
    else {
        return Ok(());
    };
    let ask = Admit { invite: Vec::new(), membership };
    let membership = request(lanes, issuer, addresses, ask).await?;
    Ok(admission.enter(hive, &membership, Millis(unix_now_ms()))?)
}

/// Answers whoever opened `pipe` with `ask`. `allow` hears of one that is let in before that one does,
/// so that its next step finds the door open.
///
/// # Errors
/// Why it was not let in, which it has been told.
pub async fn serve(
    admission: Admission,
    ask: Admit,
    mut pipe: Pipe,
    allow: impl AsyncFnOnce(NodeId),
) -> Result<NodeId, Refusal> {
    let peer = pipe.peer();
    let decide = move || admission.admit(&ask, peer, Millis(unix_now_ms()));
    // A panic there is a mistake of ours, and reported where it happened.
    let decided = tokio::task::spawn_blocking(decide).await.unwrap_or(Err(Refusal::Unable));
    let say = match &decided {
        Ok(answer) => {
            allow(peer).await;
            Say::Admit(answer.clone())
        }
        Err(refusal) => Say::Refused(refusal.say()),
    };
    // Who went away comes back and is answered the same.
    if pipe.send(&wire::encode(&Line::from(say)), [Bytes::new()]).await.is_ok() {
        let (sender, _receiver) = pipe.split();
        let _ = sender.finish().await;
    }
    decided.map(|_| peer)
}

fn lanes_of(invite: &Verified<Invite>) -> Result<Vec<SocketAddr>, ApplyError> {
    let lanes = invite.content().lanes.iter().filter_map(wire::Address::socket);
    let addresses: Vec<_> = lanes.collect();
    match addresses.is_empty() {
        true => Err(ApplyError::Nowhere(invite.signer())),
        false => Ok(addresses),
    }
}

/// Lanes of a node that belongs nowhere yet: it links with members of `hive` alone.
fn door(key: &Key, hive: NodeId, towards: SocketAddr) -> Result<Lanes, ApplyError> {
    let any: IpAddr = match towards.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let hello = Hello {
        protocol: PROTOCOL,
        program: concat!("cadencia ", env!("CARGO_PKG_VERSION")).into(),
        network: NetworkId::Private(hive).bytes(),
        membership: Vec::new(),
    };
    let config = lanes::Config::new(SocketAddr::new(any, 0), wire::encode(&hello).into());
    let judge = move |hello: &lanes::Hello| {
        let said: Hello = wire::decode(&hello.body).map_err(|error| error.to_string())?;
        said.check_version().map_err(|skew| skew.to_string())?;
        let now = Millis(unix_now_ms());
        let proof = Membership::prove(&said.membership, hello.peer, hive, now);
        match hello.peer == hive {
            true => Ok(()),
            false => proof.map(|_| ()).map_err(|error| error.to_string()),
        }
    };
    let keys = Keypair::ed25519_from_bytes(key.secret())?;
    let (lanes, _incoming) = Lanes::start(&keys, config, Arc::new(judge))?;
    Ok(lanes)
}

async fn request(
    lanes: &Lanes,
    issuer: NodeId,
    addresses: &[SocketAddr],
    ask: Admit,
) -> Result<Vec<u8>, ApplyError> {
    let link = lanes.link(issuer, addresses).await?;
    let mut pipe = link.open().await?;
    let line = Line::from(Say::Admit(ask));
    pipe.send(&wire::encode(&line), [Bytes::new()]).await?;
    let frame = tokio::time::timeout(ANSWER_WAIT_MAX, pipe.recv()).await;
    let frame = frame.map_err(|_| ApplyError::Silent { issuer })??;
    let frame = frame.ok_or(ApplyError::HungUp(issuer))?;
    let line = wire::decode::<Line>(&frame.header);
    let line = line.map_err(|why| ApplyError::Unreadable { issuer, why })?;
    match line.say {
        Some(Say::Admit(answer)) => Ok(answer.membership),
        Some(Say::Refused(refused)) => Err(ApplyError::Refused { issuer, why: refused.text }),
        _ => Err(ApplyError::Strange(issuer)),
    }
}
