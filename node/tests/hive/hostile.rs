//! Strangers who mean harm: what they send is refused, memory stays flat, and the hive answers on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use cadencia::lanes::{Config, Frame, Lanes, Link, Pipe};
use libp2p::identity::Keypair;
use wire::lane::{Line, Open, Reason, Say};
use wire::{Hello, NodeId, PROTOCOL};

use crate::nest::{Hive, Member, deep_toy, text};

/// How much a node may grow by whatever strangers do.
const GROWTH_MAX: usize = 64 << 20;
/// How long a stranger waits for what a node says to him.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Numbers from a seed (SplitMix64, Steele et al. 2014).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn bytes(&mut self, max: usize) -> Vec<u8> {
        let count = self.roll() as usize % (max + 1);
        (0..count).map(|_| self.roll() as u8).collect()
    }
}

/// Bytes of memory that a node has now.
fn resident(node: &Member) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", node.pid())).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Where a node's lanes are, and where its swarm listens by TCP and by UDP.
fn doors(node: &Member) -> (SocketAddr, SocketAddr, SocketAddr) {
    let found = node.bound.get("/v1/hive").json()["hive"]["node"].clone();
    let lanes = found["lanes"][0].as_str().unwrap().parse().unwrap();
    let port = |kind: &str| {
        let all = found["addresses"].as_array().unwrap().iter();
        let all: Vec<&str> = all.map(|at| at.as_str().unwrap()).collect();
        let at = all.iter().find(|at| at.contains(kind)).unwrap();
        let port = at.split('/').nth(4).unwrap().parse().unwrap();
        SocketAddr::from(([127, 0, 0, 1], port))
    };
    (lanes, port("/tcp/"), port("/udp/"))
}

/// A stranger who speaks this version of the protocol.
fn stranger(n: u8, protocol: u32) -> Lanes {
    let hello = Hello { protocol, program: "somebody else".into(), ..Hello::default() };
    let config = Config::new("127.0.0.1:0".parse().unwrap(), wire::encode(&hello).into());
    let key = Keypair::ed25519_from_bytes([n; 32]).unwrap();
    Lanes::start(&key, config, std::sync::Arc::new(|_| Ok(()))).unwrap().0
}

async fn link(who: &Lanes, node: NodeId, lanes: SocketAddr) -> Link {
    who.link(node, &[lanes]).await.unwrap()
}

/// What a node says to a first frame: a frame, or that it is over.
async fn answer(pipe: &mut Pipe) -> Option<Frame> {
    let said = tokio::time::timeout(ANSWER_WITHIN, pipe.recv()).await;
    said.expect("a node answers, or ends the pipe").ok().flatten()
}

fn reason(frame: &Frame) -> Reason {
    let line: Line = wire::decode(&frame.header).unwrap();
    match line.say {
        Some(Say::Refused(refused)) => refused.reason(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_that_are_none_are_refused_by_reason_and_the_hive_answers_on() {
    let (_folder, model) = deep_toy(4);
    let hive = Hive::start(&model, 2, &["--spares", "0", "--stages", "2"], &[]);
    let prompt = text(20);
    let expected = hive.api.continued(&prompt, 16);
    let victim = &hive.workers[0];
    let (lanes, ..) = doors(victim);
    let node: NodeId = victim.id.parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut dice = Dice(1);
    let open = Line::from(Say::Open(Open {
        session: vec![7; 16],
        manifest: vec![9; 32],
        positions: 64,
        ..Open::default()
    }));
    let right = wire::encode(&open);
    let mut storm = |rounds: usize| {
        runtime.block_on(async {
            let who = stranger(200, PROTOCOL);
            let mut refused = 0;
            for round in 0..rounds {
                let mut header = match round % 2 {
                    // Anything at all.
                    0 => dice.bytes(200),
                    // What is nearly right: some bits of it are turned over.
                    _ => right.clone(),
                };
                for _ in 0..=dice.roll() % 4 {
                    let at = dice.roll() as usize % header.len().max(1);
                    if let Some(byte) = header.get_mut(at) {
                        *byte ^= 1 << (dice.roll() % 8);
                    }
                }
                let link = link(&who, node, lanes).await;
                let mut pipe = link.open().await.unwrap();
                let body = dice.bytes(4096);
                if pipe.send(&header, [body.into()]).await.is_err() {
                    continue;
                }
                // What was turned over may still be right; then the model is none that is known.
                if let Some(frame) = answer(&mut pipe).await {
                    let reason = reason(&frame);
                    assert!(reason != Reason::default(), "round {round}");
                    refused += 1;
                }
            }
            assert!(refused > rounds / 2, "{refused} of {rounds} had an answer");
        });
    };
    storm(200);
    let before = resident(victim);
    storm(2_000);
    let grown = resident(victim).saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    assert_eq!(hive.api.continued(&prompt, 16), expected);
}

/// llama.cpp#26392, #21006
#[test]
fn another_version_is_refused_at_the_first_word_and_both_are_named() {
    let node = Member::start(&["--lend-mb", "200"]);
    let (lanes, ..) = doors(&node);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let who = stranger(201, PROTOCOL + 6);
    let refused = runtime.block_on(who.link(node.id.parse().unwrap(), &[lanes]));
    let text = refused.unwrap_err().to_string();
    for named in [format!("{}", PROTOCOL + 6), format!("{PROTOCOL}"), "somebody else".into()] {
        assert!(text.contains(&named), "{named} in {text}");
    }
    eprintln!("{text}");
}

#[test]
fn ten_thousand_strangers_at_the_doors_cost_no_memory_and_no_answer() {
    let (_folder, model) = deep_toy(4);
    let hive = Hive::start(&model, 2, &["--spares", "0", "--stages", "2"], &[]);
    let prompt = text(20);
    let expected = hive.api.continued(&prompt, 16);
    let victim = &hive.workers[0];
    let (lanes, tcp, udp) = doors(victim);
    let mut dice = Dice(2);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut come = |count: usize, held: &mut Vec<TcpStream>| {
        for n in 0..count {
            socket.send_to(&dice.bytes(1200), if n % 2 == 0 { lanes } else { udp }).unwrap();
            // Some are refused by the system already.
            let Ok(mut stream) = TcpStream::connect(tcp) else { continue };
            // Half say something that is no handshake; the others nothing, as long as they may.
            if n % 2 == 0 {
                let _ = stream.write_all(&dice.bytes(512));
            }
            held.push(stream);
            if held.len() > 300 {
                held.drain(..100);
            }
        }
    };
    let mut held = Vec::new();
    come(600, &mut held);
    let before = resident(victim);
    for _ in 0..10 {
        come(1_000, &mut held);
        assert_eq!(hive.api.continued(&prompt, 16), expected);
    }
    let grown = resident(victim).saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    // Whoever says nothing is sent away in time.
    let mut silent = TcpStream::connect(tcp).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ended = silent.read_to_end(&mut Vec::new());
    let waits = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    assert!(!ended.as_ref().is_err_and(waits), "{ended:?}");
    drop(held);
    // Another node still finds its way in.
    let path = model.to_str().unwrap();
    let mut late = Hive::requester(path, &victim.address, 2, &["--spares", "0"]);
    assert_eq!(late.ready().continued(&prompt, 16), expected);
}
