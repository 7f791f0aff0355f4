//! Nodes behind routers: two houses and a seed on an internet of network namespaces.
//!
//! Needs root, `ip` and `nft`; elsewhere these tests say so and end.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::client::{Client, Response};
use crate::nest::{Api, BETWEEN, Member, deep_toy, greedy, text};
use crate::process::DEADLINE;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// What a house's router does with packets on their way out: it shows each place outside another port...
const SYMMETRIC: &str = "masquerade fully-random";
/// ...or the same to all, as most do.
const CONE: &str = "masquerade";

/// A house's router. It lets nobody in who was not spoken to.
fn rules(out: &str) -> String {
    RULES.replace("MASQUERADE", out)
}

const RULES: &str = "
table ip house {
    chain out {
        type nat hook postrouting priority srcnat;
        oifname \"wan\" MASQUERADE
    }
    chain through {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname \"lan\" accept
    }
    chain in {
        type filter hook input priority filter; policy drop;
        ct state established,related accept
        iifname { \"lan\", \"lo\" } accept
    }
}";

/// Namespaces of this process's own; they go with it.
struct Internet {
    name: String,
}

impl Internet {
    /// An internet without houses; `None` where this machine lets nobody build one.
    fn new() -> Option<Self> {
        let name = format!("cadencia-{}", std::process::id());
        let made = rustix::process::geteuid().is_root() && ran("nft", &["--version"]);
        if !made || !ran("ip", &["netns", "add", &format!("{name}-net")]) {
            eprintln!("skipped: network namespaces need root, `ip` and `nft` (Debian: nftables)");
            return None;
        }
        let this = Self { name };
        let net = this.space("net");
        this.ip(&["-n", &net, "link", "add", "street", "type", "bridge"]);
        this.ip(&["-n", &net, "addr", "add", "203.0.113.1/24", "dev", "street"]);
        for link in ["lo", "street"] {
            this.ip(&["-n", &net, "link", "set", link, "up"]);
        }
        Some(this)
    }

    /// Adds a machine in the street itself.
    fn machine(&self, n: u8) {
        let (net, machine) = (self.space("net"), self.space(&format!("open{n}")));
        self.ip(&["netns", "add", &machine]);
        let port = format!("open{n}");
        self.ip(&[
            "-n", &net, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns",
            &machine,
        ]);
        self.ip(&["-n", &net, "link", "set", &port, "master", "street", "up"]);
        self.ip(&[
            "-n",
            &machine,
            "addr",
            "add",
            &format!("203.0.113.{}/24", 20 + n),
            "dev",
            "eth0",
        ]);
        for link in ["lo", "eth0"] {
            self.ip(&["-n", &machine, "link", "set", link, "up"]);
        }
        self.ip(&["-n", &machine, "route", "add", "default", "via", "203.0.113.1"]);
    }

    /// Adds a router that does this with what goes out, and one machine behind it.
    fn house(&self, n: u8, out: &str) {
        let [net, router, machine] = ["net".into(), format!("router{n}"), format!("house{n}")]
            .map(|of: String| self.space(&of));
        for space in [&router, &machine] {
            self.ip(&["netns", "add", space]);
            self.ip(&["-n", space, "link", "set", "lo", "up"]);
        }
        let port = format!("port{n}");
        self.ip(&[
            "-n", &net, "link", "add", &port, "type", "veth", "peer", "name", "wan", "netns",
            &router,
        ]);
        self.ip(&["-n", &net, "link", "set", &port, "master", "street", "up"]);
        self.ip(&[
            "-n", &router, "link", "add", "lan", "type", "veth", "peer", "name", "eth0", "netns",
            &machine,
        ]);
        let (outside, inside) = (format!("203.0.113.{}/24", 10 + n), format!("192.168.{n}.1/24"));
        self.ip(&["-n", &router, "addr", "add", &outside, "dev", "wan"]);
        self.ip(&["-n", &router, "addr", "add", &inside, "dev", "lan"]);
        self.ip(&["-n", &machine, "addr", "add", &format!("192.168.{n}.2/24"), "dev", "eth0"]);
        for (space, link) in [(&router, "wan"), (&router, "lan"), (&machine, "eth0")] {
            self.ip(&["-n", space, "link", "set", link, "up"]);
        }
        self.ip(&["-n", &machine, "route", "add", "default", "via", &format!("192.168.{n}.1")]);
        self.ip(&["netns", "exec", &router, "sysctl", "-qw", "net.ipv4.ip_forward=1"]);
        let mut nft = Command::new("ip");
        nft.args(["netns", "exec", &router, "nft", "-f", "-"]).stdin(Stdio::piped());
        let mut nft = nft.spawn().unwrap();
        nft.stdin.take().unwrap().write_all(rules(out).as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "the router has its rules");
    }

    fn space(&self, of: &str) -> String {
        format!("{}-{of}", self.name)
    }

    #[track_caller]
    fn ip(&self, args: &[&str]) {
        let output = Command::new("ip").args(args).output().unwrap();
        assert!(output.status.success(), "ip {args:?}: {output:?}");
    }

    /// What the API of a node in a namespace answers.
    fn ask(&self, of: &str, api: Api, method: &str, path: &str, body: &str) -> Response {
        let space = std::fs::File::open(format!("/run/netns/{}", self.space(of))).unwrap();
        let (method, path, body) = (method.to_owned(), path.to_owned(), body.to_owned());
        // A thread of its own, since it stays where it went.
        let asking = std::thread::spawn(move || {
            use std::os::fd::AsFd;
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            Client::connect(api.0).request(&method, &path, &[], body.as_bytes())
        });
        asking.join().unwrap()
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        let list = Command::new("ip").args(["netns", "list"]).output();
        let list = list.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let prefix = format!("{}-", self.name);
        for space in list.unwrap_or_default().lines() {
            let space = space.split(' ').next().unwrap_or_default();
            if space.starts_with(&prefix) {
                ran("ip", &["netns", "delete", space]);
            }
        }
    }
}

fn ran(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success())
}

/// A seed in the street and a node in each of two houses, one of which computes for the other.
struct Street {
    seed: Member,
    lender: Member,
    asker: Member,
}

impl Street {
    /// Ready; `expected` is what the asker answers to `prompt`.
    fn new(internet: &Internet, path: &str, prompt: &str, expected: &str) -> Self {
        let seed =
            Member::within(&internet.space("net"), "sentinel", &["--listen", "203.0.113.1:4001"]);
        let join = seed.address.as_str();
        let flags = ["--listen", "0.0.0.0:4001", "--join", join];
        let lends = [&flags[..], &["--lend", path, "--lend-mb", "400"]].concat();
        let lender = Member::within(&internet.space("house1"), "up", &lends);
        let asks = ["--model", path, "--lend-mb", "0", "--stages", "1", "--spares", "0"];
        let asker = Member::within(&internet.space("house2"), "up", &[&flags[..], &asks].concat());
        until("the nodes find each other", || {
            internet.ask("house2", asker.bound, "GET", "/ready", "").status == 200
        });
        let body = greedy(prompt, 16).to_string();
        for _ in 0..3 {
            let answer = internet.ask("house2", asker.bound, "POST", "/v1/completions", &body);
            assert_eq!(answer.text(), expected);
        }
        Self { seed, lender, asker }
    }

    /// How the asker is connected to another.
    fn path(&self, internet: &Internet, to: &Member) -> String {
        let hive = internet.ask("house2", self.asker.bound, "GET", "/v1/hive", "").json();
        let peers = hive["hive"]["peers"].as_array().unwrap().clone();
        let peer = peers.iter().find(|peer| peer["id"] == *to.id);
        peer.map_or("none".into(), |peer| peer["path"].as_str().unwrap().to_owned())
    }
}

/// parallax#197, #286
#[test]
fn two_nodes_behind_routers_that_let_nobody_in_meet_through_a_seed_and_do_not_join_for_ever() {
    let Some(internet) = Internet::new() else { return };
    internet.house(1, SYMMETRIC);
    internet.house(2, SYMMETRIC);
    let (_folder, model) = deep_toy(4);
    let path = model.to_str().unwrap();
    let mut solo = Member::start(&["--model", path]);
    let prompt = text(20);
    let expected = solo.ready().continued(&prompt, 16);
    let mut street = Street::new(&internet, path, &prompt, &expected);
    assert_eq!(street.path(&internet, &street.seed), "direct");
    assert_eq!(street.path(&internet, &street.lender), "relayed");
    // Each came to the seed once and stayed.
    let seed = street.seed.id.clone();
    let came = |of: &mut Member| {
        let lines = of.log.so_far();
        let joined = format!("connected peer={seed}");
        lines.iter().filter(|line| line.ends_with(&joined)).count()
    };
    assert_eq!([came(&mut street.asker), came(&mut street.lender)], [1, 1]);
}

#[test]
fn where_routers_show_the_same_port_to_all_a_hole_is_punched() {
    let Some(internet) = Internet::new() else { return };
    internet.house(1, CONE);
    internet.house(2, CONE);
    let (_folder, model) = deep_toy(4);
    let path = model.to_str().unwrap();
    let mut solo = Member::start(&["--model", path]);
    let prompt = text(20);
    let expected = solo.ready().continued(&prompt, 16);
    let street = Street::new(&internet, path, &prompt, &expected);
    until("the two are connected directly", || street.path(&internet, &street.lender) == "direct");
    // It goes on without whoever introduced them.
    let Street { seed, lender, asker } = street;
    drop(seed);
    let body = greedy(&prompt, 16).to_string();
    let answer = internet.ask("house2", asker.bound, "POST", "/v1/completions", &body);
    assert_eq!(answer.text(), expected);
    drop(lender);
}

#[test]
fn nodes_of_one_network_find_each_other_without_being_told() {
    let Some(internet) = Internet::new() else { return };
    internet.machine(1);
    internet.machine(2);
    let (_folder, model) = deep_toy(4);
    let path = model.to_str().unwrap();
    let flags = ["--listen", "0.0.0.0:4001", "--mdns", "true"];
    let lends = [&flags[..], &["--lend", path, "--lend-mb", "400"]].concat();
    let lender = Member::within(&internet.space("open1"), "up", &lends);
    let asks = ["--model", path, "--lend-mb", "0", "--stages", "1", "--spares", "0"];
    let asker = Member::within(&internet.space("open2"), "up", &[&flags[..], &asks].concat());
    until("the nodes find each other", || {
        internet.ask("open2", asker.bound, "GET", "/ready", "").status == 200
    });
    let mut solo = Member::start(&["--model", path]);
    let prompt = text(20);
    let body = greedy(&prompt, 16).to_string();
    let answer = internet.ask("open2", asker.bound, "POST", "/v1/completions", &body);
    assert_eq!(answer.text(), solo.ready().continued(&prompt, 16));
    drop(lender);
}

/// Waits until something is so; looks again and again, since nobody tells.
#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(BETWEEN * 20);
    }
}
