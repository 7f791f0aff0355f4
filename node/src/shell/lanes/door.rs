//! Lets connections in: those that others begin, bounded before anything is known about them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::Connection;
use quinn::crypto::rustls::HandshakeData;
use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use wire::NodeId;

use super::error::{Goodbye, LinkError};
use super::hello::{self, Met};
use super::identity::node_of_certificate;
use super::link::Begun;
use super::{Core, HANDSHAKE_WAIT};

/// How many connections may be between their first packet and the end of their hello. A handshake
/// costs a millisecond of the lanes' thread and some tens of KiB.
pub const HANDSHAKES_MAX: usize = 64;
/// How many of them may come from one address: a house behind one router, and no flood.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 32;
/// Above how many an address must show that it can be reached, which costs it a round trip.
const HANDSHAKES_UNPROVEN_MAX: usize = 16;

/// Who is between the first packet and the end of the hello.
#[derive(Debug)]
pub(super) struct Door {
    places: Arc<Semaphore>,
    by_address: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
}

impl Door {
    pub(super) fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(HANDSHAKES_MAX)), by_address: Arc::default() }
    }

    /// A place for one from `address`, if it may have one.
    fn place(&self, address: IpAddr) -> Option<Place> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let mut counts = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= HANDSHAKES_PER_ADDRESS_MAX {
            return None;
        }
        *count += 1;
        Some(Place { address, by_address: Arc::clone(&self.by_address), _permit: permit })
    }

    fn taken(&self) -> usize {
        HANDSHAKES_MAX - self.places.available_permits()
    }
}

/// One place at the door.
#[derive(Debug)]
struct Place {
    address: IpAddr,
    by_address: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Runs until the endpoint is closed.
pub(super) async fn keep(core: Arc<Core>) {
    while let Some(attempt) = core.endpoint.accept().await {
        let address = attempt.remote_address().ip();
        if core.door.taken() >= HANDSHAKES_UNPROVEN_MAX && attempt.may_retry() {
            // It fails only where `may_retry` is false.
            attempt.retry().ok();
            continue;
        }
        let Some(place) = core.door.place(address) else {
            attempt.refuse();
            continue;
        };
        let core = Arc::clone(&core);
        tokio::spawn(async move {
            if let Err(error) = receive(&core, attempt, place).await {
                tracing::debug!(%address, "no link: {}", Chain(&error));
            }
        });
    }
}

async fn receive(core: &Arc<Core>, attempt: quinn::Incoming, place: Place) -> Result<(), Unmet> {
    let server = core.server(place.address);
    let connecting = attempt.accept_with(server).map_err(Unmet::Handshake)?;
    let connection = timeout(HANDSHAKE_WAIT, connecting).await;
    let connection = connection.map_err(|_| Unmet::Late(HANDSHAKE_WAIT))?;
    let connection = connection.map_err(Unmet::Handshake)?;
    let Some(peer) = peer_of(&connection) else {
        connection.close(Goodbye::Refused.code(), b"no certificate of a node");
        return Err(Unmet::Nameless);
    };
    if !core.table().has_room(peer) {
        connection.close(Goodbye::Full.code(), b"");
        return Err(Unmet::Hello(LinkError::Full { peer, links_max: core.links_max }));
    }
    let met = Met { peer, connection: &connection };
    let hello = match hello::accepted(&core.own, met).await {
        Ok(hello) => hello,
        Err(error) => {
            connection.close(Goodbye::Refused.code(), b"");
            return Err(Unmet::Hello(error));
        }
    };
    drop(place);
    core.take_in(connection, hello, Begun::There).map_err(Unmet::Hello)?;
    Ok(())
}

/// Who is at the other end, as the handshake proved.
pub(super) fn peer_of(connection: &Connection) -> Option<NodeId> {
    let identity = connection.peer_identity()?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    // A node always speaks one of our protocols; who negotiated none is something else.
    let data = connection.handshake_data()?.downcast::<HandshakeData>().ok()?;
    data.protocol.as_ref()?;
    node_of_certificate(chain.first()?)
}

/// Why somebody who came is not linked.
#[derive(Debug, thiserror::Error)]
enum Unmet {
    #[error("the handshake failed")]
    Handshake(#[source] quinn::ConnectionError),
    #[error("no handshake within {} ms", .0.as_millis())]
    Late(Duration),
    #[error("it showed no certificate of a node")]
    Nameless,
    #[error(transparent)]
    Hello(LinkError),
}

/// An error and its sources in one line.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let causes = std::iter::successors(self.0.source(), |error| error.source());
        causes.into_iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}
