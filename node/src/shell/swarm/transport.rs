//! How bytes travel: QUIC, TCP where UDP does not get through, and circuits over a third node.

use std::num::NonZeroUsize;
use std::time::Duration;

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::{PeerId, Transport, dns, noise, quic, relay, swarm, tcp, yamux};
use tracing::warn;

use super::refusal::StartError;

/// How long a connection may take to be set up.
const HANDSHAKE_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a connection that nobody uses stays open. Nodes that gossip with each other use theirs.
const IDLE_MAX: Duration = Duration::from_secs(5 * 60);
/// Bytes of one QUIC stream that wait to be read: two of the longest replies.
const QUIC_STREAM_BYTES_MAX: u32 = 2 << 20;
/// Bytes of one QUIC connection that wait to be read.
const QUIC_CONNECTION_BYTES_MAX: u32 = 4 << 20;
/// Streams at a time that one peer may open.
const STREAMS_PER_CONNECTION_MAX: u32 = 128;
/// Streams of one connection whose protocol is not agreed on yet.
const NEGOTIATING_MAX: usize = 32;
/// Events that wait between a connection and the swarm.
const CONNECTION_EVENTS_MAX: usize = 16;

type Sealed = Boxed<(PeerId, StreamMuxerBox)>;

/// All ways, and the protocol by which circuits are made.
pub fn ways(keys: &Keypair) -> Result<(Sealed, relay::client::Behaviour), StartError> {
    let (circuits, client) = relay::client::new(keys.public().to_peer_id());
    let circuits = circuits
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keys)?)
        .multiplex(streams())
        .timeout(HANDSHAKE_WAIT_MAX)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let ways = circuits.or_transport(named(keys)?).map(|either, _| either.into_inner()).boxed();
    Ok((ways, client))
}

/// How the swarm treats connections.
pub fn treatment() -> swarm::Config {
    let notices = NonZeroUsize::new(CONNECTION_EVENTS_MAX).expect("the bound is not 0");
    swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(IDLE_MAX)
        .with_notify_handler_buffer_size(notices)
        .with_per_connection_event_buffer_size(CONNECTION_EVENTS_MAX)
        .with_max_negotiating_inbound_streams(NEGOTIATING_MAX)
        // QUIC before TCP, and the second only where the first is slow to answer.
        .with_smart_dial()
}

/// The straight ways, by numbers and by names. A machine that has no name server, as many in a
/// laboratory, still gets along by numbers.
fn named(keys: &Keypair) -> Result<Sealed, StartError> {
    match dns::tokio::Transport::system(straight(keys)?) {
        Ok(named) => Ok(named.boxed()),
        Err(error) => {
            warn!(%error, "no name server is configured; peers are reached by IP addresses only");
            straight(keys)
        }
    }
}

fn straight(keys: &Keypair) -> Result<Sealed, StartError> {
    let mut config = quic::Config::new(keys);
    config.max_stream_data = QUIC_STREAM_BYTES_MAX;
    config.max_connection_data = QUIC_CONNECTION_BYTES_MAX;
    config.max_concurrent_stream_limit = STREAMS_PER_CONNECTION_MAX;
    let quic = quic::tokio::Transport::new(config)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keys)?)
        .multiplex(streams())
        .timeout(HANDSHAKE_WAIT_MAX)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    Ok(quic.or_transport(tcp).map(|either, _| either.into_inner()).boxed())
}

fn streams() -> yamux::Config {
    let mut config = yamux::Config::default();
    config.set_max_num_streams(STREAMS_PER_CONNECTION_MAX as usize);
    config
}
