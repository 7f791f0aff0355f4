//! How long a frame takes from process to process: `cargo run --release -p node --example lane_ping`.
//!
//! Starts itself a second time; the two send frames back and forth over lanes on this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use cadencia::lanes::{Config, Incoming, Lanes, Link, Pipe};
use libp2p::identity::Keypair;

/// A token of a small model, of a large one, and a chunk of prefill.
const SIZES: [(usize, usize); 3] = [(1_170, 20_000), (8_300, 10_000), (1 << 20, 300)];

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("serve") => serve(),
        _ => ping(),
    }
}

fn start() -> Result<(Lanes, tokio::sync::mpsc::Receiver<Incoming>)> {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let key = Keypair::generate_ed25519();
    Ok(Lanes::start(&key, Config::new(address, Bytes::new()), Arc::new(|_| Ok(())))?)
}

/// Sends everything back until the other process ends.
fn serve() -> Result<()> {
    let (lanes, mut incoming) = start()?;
    println!("{} {}", lanes.id(), lanes.address());
    std::io::stdout().flush()?;
    let work = lanes.spawn(async move {
        let Some(Incoming { mut pipe, .. }) = incoming.recv().await else { return };
        while let Ok(Some(frame)) = pipe.recv().await {
            if pipe.send(&frame.header, [frame.body]).await.is_err() {
                break;
            }
        }
    });
    wait(work)
}

fn ping() -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?);
    let mut child = child.arg("serve").stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let output = child.stdout.take().context("it has an output")?;
    BufReader::new(output).read_line(&mut line)?;
    let (peer, address) = line.trim().split_once(' ').context("a name and an address")?;
    let (peer, address) = (peer.parse()?, address.parse()?);

    let (lanes, _incoming) = start()?;
    let own = lanes.clone();
    let work = lanes.spawn(async move {
        let link = own.link(peer, &[address]).await?;
        let mut pipe = link.open().await?;
        for (bytes, rounds) in SIZES {
            let times = rounds_of(&mut pipe, bytes, rounds).await?;
            report(bytes, &times, &link);
        }
        anyhow::Ok(())
    });
    wait(work)??;
    lanes.stop();
    ensure!(child.wait()?.success(), "the other process failed");
    Ok(())
}

async fn rounds_of(pipe: &mut Pipe, bytes: usize, rounds: usize) -> Result<Vec<Duration>> {
    let body = Bytes::from(vec![7; bytes]);
    let mut times = Vec::with_capacity(rounds);
    // The path's packet size is found and caches are warm after some rounds.
    for round in 0..rounds + rounds / 10 {
        let began = Instant::now();
        pipe.send(b"row", [body.clone()]).await?;
        let frame = pipe.recv().await?.context("the other process ended")?;
        ensure!(frame.body.len() == bytes, "a frame came back shorter");
        if round >= rounds / 10 {
            times.push(began.elapsed());
        }
    }
    times.sort();
    Ok(times)
}

fn report(bytes: usize, times: &[Duration], link: &Link) {
    let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
    let stats = link.stats();
    println!(
        "{bytes:>8} bytes: round trip p5 {:.1} p50 {:.1} p95 {:.1} us; mtu {} cwnd {} lost {} \
         datagrams {} in {} calls",
        at(5),
        at(50),
        at(95),
        stats.path.current_mtu,
        stats.path.cwnd,
        stats.path.lost_packets,
        stats.udp_tx.datagrams,
        stats.udp_tx.ios,
    );
}

/// Blocks this thread on work that runs on the lanes' own.
fn wait<T>(work: tokio::task::JoinHandle<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    Ok(runtime.block_on(work)?)
}
