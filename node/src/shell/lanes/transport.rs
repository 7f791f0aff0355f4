//! How QUIC is set up: windows, timeouts, packet sizes, the socket, and on which thread it runs.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::CubicConfig;
use quinn::udp::UdpSocketState;
use quinn::{
    AckFrequencyConfig, AsyncTimer, AsyncUdpSocket, EndpointConfig, IdleTimeout,
    MtuDiscoveryConfig, Runtime, TokioRuntime, TransportConfig, VarInt,
};
use tokio::runtime::Handle;

/// How long a peer may be silent before it counts as gone. Keep-alives come every
/// [`KEEP_ALIVE`], so five of them in a row were lost or never sent.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How often something is sent where there is nothing to say. A fifth of [`SILENCE_MAX`]: at 5 % loss
/// a living peer is given up once in three million times.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Bytes of one pipe that a peer may have under way or unread here: 30 ms at 1 Gbit/s.
const PIPE_WINDOW_BYTES: u32 = 4 << 20;
/// Bytes of all pipes of one link that a peer may have under way or unread here.
const LINK_WINDOW_BYTES: u32 = 8 << 20;
/// The same before the peer is admitted: one hello, of at most 17 KiB, and some air.
const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes written to one link and not yet acknowledged; further writes wait. As much as a peer takes.
const SEND_WINDOW_BYTES: u64 = 8 << 20;
/// Bytes that may be under way before the first acknowledgement. The usual 14 KiB would cost a
/// megabyte of prefill six round trips after the handshake; with this it takes two. It is paced
/// over a round trip, and the window is kept when a link has been idle.
const FIRST_WINDOW_BYTES: u64 = 256 << 10;
/// The largest UDP payload tried on a path: Ethernet's 1500 with room for tunnels.
const PAYLOAD_BYTES_MAX: u16 = 1452;
/// The same where both ends are on this machine, and what is accepted from anybody: jumbo frames.
const PAYLOAD_BYTES_MAX_LOOPBACK: u16 = 8972;
/// Packets after which the peer acknowledges at once; fewer wait up to 25 ms for more. The usual two
/// would have every other row of a token wait while one is sent.
const ACKNOWLEDGED_TOGETHER: u32 = 10;
/// What the socket may hold while the thread is elsewhere. A pacer's burst is up to 256 packets; the
/// usual 208 KiB would drop half of it. The system may grant less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// How connections from and to other machines, and within this one, behave.
#[derive(Debug, Clone)]
pub(super) struct Transports {
    away: Arc<TransportConfig>,
    here: Arc<TransportConfig>,
}

impl Transports {
    /// `silence_max` is [`SILENCE_MAX`] but in tests.
    pub(super) fn new(silence_max: Duration) -> Self {
        let away = transport(silence_max, PAYLOAD_BYTES_MAX);
        let mut here = transport(silence_max, PAYLOAD_BYTES_MAX_LOOPBACK);
        // Ten jumbo frames in one call exceed what a call may carry: the system drops them all, and
        // QUIC takes that for a path that does not carry jumbo frames. Single calls are measured to
        // move a megabyte in half the time of small packets in tens.
        here.enable_segmentation_offload(false);
        Self { away: Arc::new(away), here: Arc::new(here) }
    }

    /// What suits a peer at `address`.
    pub(super) fn to(&self, address: IpAddr) -> Arc<TransportConfig> {
        Arc::clone(if address.is_loopback() { &self.here } else { &self.away })
    }
}

/// A peer gets one stream and few bytes at first; [`admit`] opens the rest.
fn transport(silence_max: Duration, payload_bytes_max: u16) -> TransportConfig {
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(payload_bytes_max);
    let mut congestion = CubicConfig::default();
    congestion.initial_window(FIRST_WINDOW_BYTES);
    let mut acknowledging = AckFrequencyConfig::default();
    acknowledging.ack_eliciting_threshold(VarInt::from_u32(ACKNOWLEDGED_TOGETHER));
    let mut config = TransportConfig::default();
    config
        .ack_frequency_config(Some(acknowledging))
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(PIPE_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        .max_idle_timeout(Some(idle(silence_max)))
        .keep_alive_interval(Some(KEEP_ALIVE.min(silence_max / 5)))
        .mtu_discovery_config(Some(mtu))
        .congestion_controller_factory(Arc::new(congestion))
        // A visible bit would show strangers the pace of the tokens.
        .allow_spin(false);
    config
}

/// Gives an admitted peer the streams and bytes of a link.
pub(super) fn admit(connection: &quinn::Connection, pipes_max: u32) {
    connection.set_receive_window(VarInt::from_u32(LINK_WINDOW_BYTES));
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(pipes_max));
}

fn idle(silence_max: Duration) -> IdleTimeout {
    let ms = u32::try_from(silence_max.as_millis()).unwrap_or(u32::MAX);
    IdleTimeout::from(VarInt::from_u32(ms))
}

/// What concerns the socket and not single connections.
pub(super) fn endpoint() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config
        .max_udp_payload_size(PAYLOAD_BYTES_MAX_LOOPBACK)
        .expect("it lies between the bounds, 1200 and 65527");
    config
}

/// A bound socket with room for bursts.
pub(super) fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    let state = UdpSocketState::new((&socket).into())?;
    // The system may cap these; a smaller buffer is slower, not wrong.
    state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER_BYTES).ok();
    state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER_BYTES).ok();
    Ok(socket)
}

/// Keeps everything QUIC does on the lanes' thread, whoever begins it.
#[derive(Debug)]
pub(super) struct LaneRuntime(pub(super) Handle);

impl Runtime for LaneRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _here = self.0.enter();
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _here = self.0.enter();
        TokioRuntime.wrap_udp_socket(socket)
    }
}
