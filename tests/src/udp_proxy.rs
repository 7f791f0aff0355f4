//! Bad weather for UDP: forwards datagrams to a target and back, late, out of order, or not at all.
//!
//! Each client that sends to [`UdpProxy::address`] is known to the target by a port of its own, so
//! that both directions of several clients pass. [`UdpProxy::cut`] is a cable pulled out: nothing
//! comes through and nobody is told. Dice come from a seed; which datagram meets which throw depends
//! on the machine, too, so a test may rely on rates and not on single datagrams.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many clients one proxy tells apart; datagrams of others are dropped.
const CLIENTS_MAX: usize = 1024;
/// How many datagrams may be under way; a router whose queue is full drops, too.
const QUEUE_MAX: usize = 1 << 16;
/// How often a thread that hears nothing looks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The longest datagram there is.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// What happens to datagrams, in each direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weather {
    /// How much later each arrives.
    pub delay: Duration,
    /// How much later again, at most; evenly distributed. Order is kept.
    pub jitter: Duration,
    /// How many of a thousand are lost.
    pub lost_per_mille: u32,
    /// How many of a thousand are held back by [`Weather::held`], so that others overtake them.
    pub held_per_mille: u32,
    /// How long those are held back.
    pub held: Duration,
}

/// What has happened to datagrams so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Delivered to their socket.
    pub forwarded: u64,
    /// Lost on purpose, while the line was cut, or for want of room.
    pub lost: u64,
    /// Held back on purpose.
    pub held: u64,
}

/// Forwards datagrams between clients and a target. Ends when dropped.
#[derive(Debug)]
pub struct UdpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl UdpProxy {
    /// Starts to forward what comes to a new port of 127.0.0.1.
    pub fn start(target: SocketAddr, weather: Weather, seed: u64) -> io::Result<Self> {
        let socket = Arc::new(listening()?);
        let address = socket.local_addr()?;
        let shared = Arc::new(Shared::new(target, weather, seed));
        let (reads, sends) = (Arc::clone(&shared), Arc::clone(&shared));
        let name = |what: &str| std::thread::Builder::new().name(format!("udp-proxy-{what}"));
        let threads = vec![
            name("in").spawn(move || reads.read_clients(&socket))?,
            name("out").spawn(move || sends.deliver())?,
        ];
        Ok(Self { address, shared, threads })
    }

    /// Where clients send to instead of to the target.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what happens to datagrams from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.shared.state().weather = weather;
    }

    /// Drops everything, silently, what is under way included.
    pub fn cut(&self) {
        let mut state = self.shared.state();
        state.cut = true;
        self.shared.lost.fetch_add(state.queue.len() as u64, Ordering::Relaxed);
        state.queue.clear();
    }

    /// Mends the line.
    pub fn restore(&self) {
        self.shared.state().cut = false;
    }

    /// Counts so far.
    pub fn passed(&self) -> Passed {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let shared = &self.shared;
        Passed { forwarded: of(&shared.forwarded), lost: of(&shared.lost), held: of(&shared.held) }
    }
}

impl Drop for UdpProxy {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in it was reported when it happened.
            thread.join().ok();
        }
    }
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
    end: AtomicBool,
    forwarded: AtomicU64,
    lost: AtomicU64,
    held: AtomicU64,
}

#[derive(Debug)]
struct State {
    weather: Weather,
    cut: bool,
    dice: Dice,
    /// By when they are due; the number keeps those of one instant in order.
    queue: BTreeMap<(Instant, u64), Datagram>,
    numbered: u64,
    /// When the last datagram of each direction is due, so that jitter keeps the order.
    last_due: [Option<Instant>; 2],
}

#[derive(Debug, Clone, Copy)]
enum Way {
    There,
    Back,
}

#[derive(Debug)]
struct Datagram {
    through: Arc<UdpSocket>,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl Shared {
    fn new(target: SocketAddr, weather: Weather, seed: u64) -> Self {
        let state = State {
            weather,
            cut: false,
            dice: Dice(seed),
            queue: BTreeMap::new(),
            numbered: 0,
            last_due: [None; 2],
        };
        Self {
            target,
            state: Mutex::new(state),
            changed: Condvar::new(),
            end: AtomicBool::new(false),
            forwarded: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            held: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    /// Takes what clients send; each has a socket towards the target, and a thread for its answers.
    fn read_clients(self: &Arc<Self>, socket: &Arc<UdpSocket>) {
        let mut ports: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
        let mut threads = Vec::new();
        self.read(socket, |client, bytes| {
            if !ports.contains_key(&client) && ports.len() < CLIENTS_MAX {
                let Ok(port) = listening().map(Arc::new) else { return };
                ports.insert(client, Arc::clone(&port));
                let (shared, towards) = (Arc::clone(self), Arc::clone(socket));
                threads.push(std::thread::spawn(move || {
                    shared.read(&port, |_, bytes| shared.take(Way::Back, &towards, client, bytes));
                }));
            }
            match ports.get(&client) {
                Some(port) => self.take(Way::There, port, self.target, bytes),
                None => _ = self.lost.fetch_add(1, Ordering::Relaxed),
            }
        });
        for thread in threads {
            thread.join().ok();
        }
    }

    fn read(&self, socket: &UdpSocket, mut each: impl FnMut(SocketAddr, &[u8])) {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        while !self.ended() {
            match socket.recv_from(&mut buffer) {
                Ok((len, from)) => each(from, &buffer[..len]),
                // Nobody spoke, or somebody we spoke to has no such port; both pass.
                Err(error) if passes(&error) => {}
                Err(error) => panic!("the proxy's socket failed: {error}"),
            }
        }
    }

    /// Decides when a datagram arrives, if it does.
    fn take(&self, way: Way, through: &Arc<UdpSocket>, to: SocketAddr, bytes: &[u8]) {
        let mut state = self.state();
        let weather = state.weather;
        let lost = state.dice.below(1000) < u64::from(weather.lost_per_mille);
        if state.cut || lost || state.queue.len() >= QUEUE_MAX {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let jitter = state.dice.below(weather.jitter.as_nanos() as u64 + 1);
        let mut due = Instant::now() + weather.delay + Duration::from_nanos(jitter);
        if state.dice.below(1000) < u64::from(weather.held_per_mille) {
            self.held.fetch_add(1, Ordering::Relaxed);
            due += weather.held;
        } else {
            let last = &mut state.last_due[way as usize];
            due = last.map_or(due, |last| due.max(last));
            *last = Some(due);
        }
        let number = state.numbered;
        state.numbered += 1;
        let datagram = Datagram { through: Arc::clone(through), to, bytes: bytes.to_vec() };
        state.queue.insert((due, number), datagram);
        let is_next = state.queue.first_key_value().is_some_and(|((_, n), _)| *n == number);
        drop(state);
        if is_next {
            self.changed.notify_one();
        }
    }

    /// Sends each datagram when it is due.
    fn deliver(&self) {
        let mut state = self.state();
        while !self.ended() {
            let now = Instant::now();
            let wait = match state.queue.first_entry() {
                Some(next) if next.key().0 <= now => {
                    let datagram = next.remove();
                    drop(state);
                    // Without room in a buffer it is lost, as anywhere on the way.
                    let sent = datagram.through.send_to(&datagram.bytes, datagram.to).is_ok();
                    let count = if sent { &self.forwarded } else { &self.lost };
                    count.fetch_add(1, Ordering::Relaxed);
                    state = self.state();
                    continue;
                }
                Some(next) => next.key().0 - now,
                None => LOOK_EVERY,
            };
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn listening() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(LOOK_EVERY))?;
    Ok(socket)
}

fn passes(error: &io::Error) -> bool {
    let kinds = [
        ErrorKind::WouldBlock,
        ErrorKind::TimedOut,
        ErrorKind::Interrupted,
        ErrorKind::ConnectionRefused,
        ErrorKind::ConnectionReset,
    ];
    kinds.contains(&error.kind())
}

/// SplitMix64.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that sends everything back, until the socket is dropped with the proxy.
    fn echo() -> (SocketAddr, JoinHandle<()>) {
        let socket = listening().unwrap();
        let address = socket.local_addr().unwrap();
        let run = move || {
            let mut buffer = [0; 2048];
            let mut silent = 0;
            while silent < 20 {
                match socket.recv_from(&mut buffer) {
                    Ok((len, from)) => _ = socket.send_to(&buffer[..len], from).unwrap(),
                    Err(_) => silent += 1,
                }
            }
        };
        (address, std::thread::spawn(run))
    }

    fn client(proxy: &UdpProxy) -> UdpSocket {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect(proxy.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    }

    fn echoed(socket: &UdpSocket, byte: u8) -> Option<Duration> {
        let began = Instant::now();
        socket.send(&[byte]).unwrap();
        let mut buffer = [0; 8];
        loop {
            match socket.recv(&mut buffer) {
                Ok(1) if buffer[0] == byte => return Some(began.elapsed()),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    #[test]
    fn a_datagram_comes_back_after_both_delays_and_not_much_later() {
        let (target, thread) = echo();
        let weather = Weather { delay: Duration::from_millis(5), ..Weather::default() };
        let proxy = UdpProxy::start(target, weather, 1).unwrap();
        let socket = client(&proxy);
        let mut times: Vec<_> = (0..41).map(|n| echoed(&socket, n).unwrap()).collect();
        times.sort();
        assert!(times[0] >= Duration::from_millis(10), "{:?}", times[0]);
        // Generous, since the machine may be busy; alone it is 10.3 ms.
        assert!(times[20] < Duration::from_millis(14), "{:?}", times[20]);
        drop(proxy);
        thread.join().unwrap();
    }

    #[test]
    fn a_cut_line_is_silent_until_it_is_mended() {
        let (target, thread) = echo();
        let proxy = UdpProxy::start(target, Weather::default(), 2).unwrap();
        let socket = client(&proxy);
        assert!(echoed(&socket, 1).is_some());
        proxy.cut();
        assert_eq!(echoed(&socket, 2), None);
        proxy.restore();
        assert!(echoed(&socket, 3).is_some());
        assert!(proxy.passed().lost >= 1);
        drop(proxy);
        thread.join().unwrap();
    }

    #[test]
    fn as_many_are_lost_as_was_asked() {
        let (target, thread) = echo();
        let weather = Weather { lost_per_mille: 200, ..Weather::default() };
        let proxy = UdpProxy::start(target, weather, 3).unwrap();
        let socket = client(&proxy);
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let back = (0..100).filter(|&n| echoed(&socket, n).is_some()).count();
        // 64 of 100 are expected to pass twice; five standard deviations are 24.
        assert!((40..=88).contains(&back), "{back} of 100 came back");
        drop(proxy);
        thread.join().unwrap();
    }
}
