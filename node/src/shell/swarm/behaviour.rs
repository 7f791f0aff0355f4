//! libp2p's protocols, put together, with every bound they have.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use getrandom::SysRng;
use getrandom::rand_core::UnwrapErr;
use libp2p::allow_block_list::{AllowedPeers, BlockedPeers};
use libp2p::gossipsub::{
    self, MaxCountSubscriptionFilter, PeerScoreParams, PeerScoreThresholds, TopicScoreParams,
    WhitelistSubscriptionFilter,
};
use libp2p::identity::Keypair;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::request_response::ProtocolSupport;
use libp2p::swarm::NetworkBehaviour;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{
    PeerId, allow_block_list, autonat, connection_limits, dcutr, identify, kad, mdns, ping, relay,
    request_response,
};

use super::codec::Frames;
use super::config::{Config, DhtRole, GOSSIP_BYTES_MAX, Limits, MEMBERS_MAX, Network, TOPICS_MAX};
use super::identity::peer_of;
use super::names::Names;
use super::refusal::StartError;

/// Keys of which this node remembers who provides them, its own among them. With
/// [`PROVIDERS_PER_KEY_MAX`] and eight addresses of at most 512 bytes: 80 MiB when strangers fill
/// it with the longest, about 4 MiB in practice.
pub const PROVIDED_KEYS_MAX: usize = 1024;
/// Providers remembered for one key.
pub const PROVIDERS_PER_KEY_MAX: usize = 20;
/// How long a node is remembered as a provider: three announcements.
const PROVIDER_LIFE: Duration = Duration::from_secs(60 * 60);
/// How often a provider says that it still is one.
const PROVIDER_EVERY: Duration = Duration::from_secs(20 * 60);
/// How long one look-up may take.
pub const LOOKUP_WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes of one message of the look-up protocol.
const DHT_BYTES_MAX: usize = 16 << 10;

/// Requests and replies at a time on one connection: 16 of 64 KiB are one MiB.
const ASKS_PER_CONNECTION_MAX: usize = 16;
/// Gossip waiting to be sent to one peer: 64 messages of 16 KiB are one MiB.
const GOSSIP_QUEUE_MAX: usize = 64;
/// Gossip in one packet.
const GOSSIP_PER_PACKET_MAX: usize = 64;

/// Circuits' reservations that a relay keeps; each holds a connection.
const RELAY_RESERVATIONS_MAX: usize = 128;
/// Circuits at a time; libp2p's 16 are for a moment until a hole is punched, ours may carry a
/// session.
const RELAY_CIRCUITS_MAX: usize = 64;
/// Circuits of one peer.
const RELAY_CIRCUITS_PER_PEER_MAX: usize = 8;
/// How long one circuit may stand.
const RELAY_CIRCUIT_LIFE_MAX: Duration = Duration::from_secs(60 * 60);
/// Bytes through one circuit: some 100,000 rows of a small model.
const RELAY_CIRCUIT_BYTES_MAX: u64 = 256 << 20;

/// How often others are asked whether they can dial addresses that nobody has tried. Until one can,
/// this node is in nobody's table, and is lost with whom it joined by.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How often a peer is pinged; also how old a round-trip time may be.
const PING_EVERY: Duration = Duration::from_secs(15);

/// All protocols. The lists and limits come first, so that a refused connection leaves no trace in
/// any of the others.
#[derive(NetworkBehaviour)]
pub struct Behaviour {
    pub allowed: Toggle<allow_block_list::Behaviour<AllowedPeers>>,
    pub blocked: allow_block_list::Behaviour<BlockedPeers>,
    pub limits: connection_limits::Behaviour,
    pub identify: identify::Behaviour,
    pub ping: ping::Behaviour,
    pub dht: kad::Behaviour<MemoryStore>,
    pub gossip: Gossip,
    pub ask: request_response::Behaviour<Frames>,
    pub lanes: libp2p_stream::Behaviour,
    pub relay_client: relay::client::Behaviour,
    pub relay_server: Toggle<relay::Behaviour>,
    pub hole_punch: dcutr::Behaviour,
    pub probe: autonat::v2::client::Behaviour<UnwrapErr<SysRng>>,
    pub probed: autonat::v2::server::Behaviour,
    pub mdns: Toggle<mdns::tokio::Behaviour>,
}

/// Gossipsub, in which nobody can make this node remember a topic it does not know.
pub type Gossip = gossipsub::Behaviour<
    gossipsub::IdentityTransform,
    MaxCountSubscriptionFilter<WhitelistSubscriptionFilter>,
>;

/// Puts the protocols together.
pub fn assemble(
    config: &Config,
    names: &Names,
    keys: &Keypair,
    relay_client: relay::client::Behaviour,
) -> Result<Behaviour, StartError> {
    let me = keys.public().to_peer_id();
    let mut blocked = allow_block_list::Behaviour::<BlockedPeers>::default();
    // A node never wants to talk to itself under another address.
    blocked.block_peer(me);
    Ok(Behaviour {
        allowed: allowed(&config.network)?.into(),
        blocked,
        limits: limits(&config.limits),
        identify: identify(names, keys),
        ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_EVERY)),
        dht: dht(config, names, me),
        gossip: gossip(config, names, keys)?,
        ask: ask(config, names),
        lanes: libp2p_stream::Behaviour::new(),
        relay_client,
        relay_server: config.relay_server.then(|| relay_server(me)).into(),
        hole_punch: dcutr::Behaviour::new(me),
        probe: autonat::v2::client::Behaviour::new(
            UnwrapErr(SysRng),
            autonat::v2::client::Config::default().with_probe_interval(PROBE_EVERY),
        ),
        probed: autonat::v2::server::Behaviour::default(),
        mdns: mdns(config, me)?.into(),
    })
}

fn allowed(
    network: &Network,
) -> Result<Option<allow_block_list::Behaviour<AllowedPeers>>, StartError> {
    let Network::Private { members, .. } = network else { return Ok(None) };
    if members.len() > MEMBERS_MAX {
        let given = members.len();
        return Err(StartError::TooMany { what: "members", given, max: MEMBERS_MAX });
    }
    let mut list = allow_block_list::Behaviour::<AllowedPeers>::default();
    for member in members {
        list.allow_peer(peer_of(*member).ok_or(StartError::Member(*member))?);
    }
    Ok(Some(list))
}

fn limits(limits: &Limits) -> connection_limits::Behaviour {
    let total = limits.in_max.saturating_add(limits.out_max);
    connection_limits::Behaviour::new(
        connection_limits::ConnectionLimits::default()
            .with_max_pending_incoming(Some(limits.pending_in_max))
            .with_max_pending_outgoing(Some(limits.pending_out_max))
            .with_max_established_incoming(Some(limits.in_max))
            .with_max_established_outgoing(Some(limits.out_max))
            .with_max_established(Some(total))
            .with_max_established_per_peer(Some(limits.per_peer_max)),
    )
}

fn identify(names: &Names, keys: &Keypair) -> identify::Behaviour {
    let config = identify::Config::new_with_signed_peer_record(names.speech.clone(), keys)
        .with_agent_version(names.agent.clone())
        .with_push_listen_addr_updates(true);
    identify::Behaviour::new(config)
}

fn dht(config: &Config, names: &Names, me: PeerId) -> kad::Behaviour<MemoryStore> {
    let store = MemoryStore::with_config(
        me,
        MemoryStoreConfig {
            // Only providers are kept; values have no place here.
            max_records: 0,
            max_value_bytes: 0,
            max_providers_per_key: PROVIDERS_PER_KEY_MAX,
            max_provided_keys: PROVIDED_KEYS_MAX,
        },
    );
    let mut kad = kad::Config::new(names.dht.clone());
    kad.set_query_timeout(LOOKUP_WAIT_MAX)
        .set_substreams_timeout(LOOKUP_WAIT_MAX / 2)
        .set_max_packet_size(DHT_BYTES_MAX)
        .set_provider_record_ttl(Some(PROVIDER_LIFE))
        .set_provider_publication_interval(Some(PROVIDER_EVERY))
        .set_publication_interval(None)
        .set_replication_interval(None)
        // Addresses enter by identify only, and records only after a look at them.
        .set_kbucket_inserts(kad::BucketInserts::Manual)
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_caching(kad::Caching::Disabled)
        .set_kbucket_size(NonZeroUsize::new(20).expect("20 is not 0"));
    let mut dht = kad::Behaviour::with_config(me, store, kad);
    // Not left to the library, which would serve for a circuit's address, too.
    dht.set_mode(Some(match config.dht {
        DhtRole::Always => kad::Mode::Server,
        DhtRole::WhenReachable => kad::Mode::Client,
    }));
    dht
}

fn gossip(config: &Config, names: &Names, keys: &Keypair) -> Result<Gossip, StartError> {
    let refused = |reason: String| StartError::Gossip { reason };
    let settings = gossipsub::ConfigBuilder::default()
        .protocol_id_prefix(names.gossip.clone())
        .validation_mode(gossipsub::ValidationMode::Strict)
        .validate_messages()
        // Signature, author, number and topic stand beside the bytes in a packet.
        .max_transmit_size(GOSSIP_BYTES_MAX + (1 << 10))
        .max_publish_messages(GOSSIP_PER_PACKET_MAX)
        .max_control_messages_sent(GOSSIP_PER_PACKET_MAX)
        .connection_handler_queue_len(GOSSIP_QUEUE_MAX)
        .heartbeat_initial_delay(Duration::from_millis(200))
        .build()
        .map_err(|error| refused(error.to_string()))?;
    let topics: Vec<_> = config.topics.iter().map(|topic| names.topic(*topic)).collect();
    let filter = MaxCountSubscriptionFilter {
        filter: WhitelistSubscriptionFilter(
            topics.iter().map(|topic| topic.hash()).collect::<HashSet<_>>(),
        ),
        max_subscribed_topics: TOPICS_MAX,
        max_subscriptions_per_request: TOPICS_MAX,
    };
    let author = gossipsub::MessageAuthenticity::Signed(keys.clone());
    let mut gossip = Gossip::new_with_subscription_filter(author, settings, filter)
        .map_err(|error| refused(error.into()))?;
    let mut scores = PeerScoreParams {
        // Many honest nodes stand behind one address, above all in a test.
        ip_colocation_factor_weight: 0.0,
        ..PeerScoreParams::default()
    };
    scores.topics.extend(topics.iter().map(|topic| (topic.hash(), blame_for_bad_messages())));
    gossip.with_peer_score(scores, PeerScoreThresholds::default()).map_err(refused)?;
    for topic in &topics {
        gossip.subscribe(topic).map_err(|error| refused(error.to_string()))?;
    }
    Ok(gossip)
}

/// A peer loses by passing on what the owner rejects, and by nothing else: on a quiet topic there
/// is no number of messages that a good peer must deliver.
fn blame_for_bad_messages() -> TopicScoreParams {
    TopicScoreParams {
        topic_weight: 1.0,
        time_in_mesh_weight: 0.0,
        first_message_deliveries_weight: 0.0,
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: -10.0,
        invalid_message_deliveries_decay: 0.9,
        ..TopicScoreParams::default()
    }
}

fn ask(config: &Config, names: &Names) -> request_response::Behaviour<Frames> {
    let settings = request_response::Config::default()
        .with_request_timeout(config.ask_wait_max)
        .with_max_concurrent_streams(ASKS_PER_CONNECTION_MAX);
    request_response::Behaviour::new([(names.ask.clone(), ProtocolSupport::Full)], settings)
}

fn relay_server(me: PeerId) -> relay::Behaviour {
    let config = relay::Config {
        max_reservations: RELAY_RESERVATIONS_MAX,
        max_circuits: RELAY_CIRCUITS_MAX,
        max_circuits_per_peer: RELAY_CIRCUITS_PER_PEER_MAX,
        max_circuit_duration: RELAY_CIRCUIT_LIFE_MAX,
        max_circuit_bytes: RELAY_CIRCUIT_BYTES_MAX,
        ..relay::Config::default()
    };
    relay::Behaviour::new(me, config)
}

fn mdns(config: &Config, me: PeerId) -> Result<Option<mdns::tokio::Behaviour>, StartError> {
    // A private network is not called out into the room.
    if !config.mdns || matches!(config.network, Network::Private { .. }) {
        return Ok(None);
    }
    mdns::tokio::Behaviour::new(mdns::Config::default(), me).map(Some).map_err(StartError::Mdns)
}
