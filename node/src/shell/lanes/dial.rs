//! Begins connections to others.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::ClientConfig;
use tokio::time::{Instant, timeout};
use wire::NodeId;

use super::error::{Goodbye, LinkError, Lost};
use super::hello::{self, Met};
use super::link::{Begun, Link};
use super::{Core, HANDSHAKE_WAIT};

/// How many addresses of one peer are tried; who claims more has a reason that is not ours.
const ADDRESSES_MAX: usize = 8;
/// TLS wants a name, and nodes have none. libp2p says this one.
const SERVER_NAME: &str = "l";

/// A link to `peer`: the one there is, or a new one through the first address that leads to it.
pub(super) async fn link(
    core: Arc<Core>,
    peer: NodeId,
    addresses: Vec<SocketAddr>,
) -> Result<Link, LinkError> {
    if peer == core.own_id() {
        return Err(LinkError::Itself { peer });
    }
    let lock = core.table().dial_lock(peer);
    let _dialling = lock.lock().await;
    if let Some(link) = core.table().find(peer) {
        return Ok(link);
    }
    let mut last = LinkError::NoAddress { peer };
    for address in addresses.into_iter().take(ADDRESSES_MAX) {
        match dial(&core, peer, address).await {
            Ok(link) => return Ok(link),
            // What it said there, it would say at its other addresses.
            Err(
                error @ (LinkError::Version { .. }
                | LinkError::Refused { .. }
                | LinkError::RefusedThere { .. }
                | LinkError::Full { .. }),
            ) => return Err(error),
            Err(error) => last = error,
        }
        // It may have dialled us meanwhile.
        if let Some(link) = core.table().find(peer) {
            return Ok(link);
        }
    }
    Err(last)
}

async fn dial(core: &Arc<Core>, peer: NodeId, address: SocketAddr) -> Result<Link, LinkError> {
    let began = Instant::now();
    let (tls, found) =
        core.identity.client(peer).map_err(|cause| LinkError::Tls { peer, cause })?;
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(core.transports.to(address.ip()));
    let connecting = core.endpoint.connect_with(config, address, SERVER_NAME);
    let connecting = connecting.map_err(|cause| LinkError::Dial { peer, address, cause })?;
    let connection = match timeout(HANDSHAKE_WAIT, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(cause)) => {
            return Err(match found.get() {
                Some(&found) => LinkError::WrongPeer { wanted: peer, found, address },
                None => LinkError::of_dial(peer, address, began.elapsed(), cause),
            });
        }
        Err(_) => return Err(LinkError::NoAnswer { peer, address, waited: HANDSHAKE_WAIT }),
    };
    match hello::dialled(&core.own, Met { peer, connection: &connection }).await {
        Ok(hello) => core.take_in(connection, hello, Begun::Here),
        Err(LinkError::Lost(Lost::Closed { why: Goodbye::Full, .. })) => {
            Err(LinkError::Busy { peer, address })
        }
        Err(error) => {
            connection.close(Goodbye::Refused.code(), b"");
            Err(error)
        }
    }
}
