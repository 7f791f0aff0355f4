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

/// A house's router: it lets nobody in who was not spoken to, and shows each place outside another port.
const RULES: &str = "
table ip house {
    chain out {
        type nat hook postrouting priority srcnat;
        oifname \"wan\" masquerade fully-random
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

    /// Adds a router and one machine behind it.
    fn house(&self, n: u8) {
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
        nft.stdin.take().unwrap().write_all(RULES.as_bytes()).unwrap();
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

/// parallax#197, #286
#[test]
fn two_nodes_behind_routers_that_let_nobody_in_meet_through_a_seed_and_do_not_join_for_ever() {
    let Some(internet) = Internet::new() else { return };
    internet.house(1);
    internet.house(2);
    let (_folder, model) = deep_toy(4);
    let path = model.to_str().unwrap();
    let mut solo = Member::start(&["--model", path]);
    let prompt = text(20);
    let expected = solo.ready().continued(&prompt, 16);

    let seed =
        Member::within(&internet.space("net"), "sentinel", &["--listen", "203.0.113.1:4001"]);
    let join = seed.address.as_str();
    let flags = ["--listen", "0.0.0.0:4001", "--join", join];
    let lends = [&flags[..], &["--lend", path, "--lend-mb", "400"]].concat();
    let lender = Member::within(&internet.space("house1"), "up", &lends);
    let asks = ["--model", path, "--lend-mb", "0", "--stages", "1", "--spares", "0"];
    let asker = Member::within(&internet.space("house2"), "up", &[&flags[..], &asks].concat());

    let end = Instant::now() + DEADLINE;
    while internet.ask("house2", asker.bound, "GET", "/ready", "").status != 200 {
        assert!(Instant::now() < end, "the nodes find each other");
        std::thread::sleep(BETWEEN * 20);
    }
    let body = greedy(&prompt, 16).to_string();
    for _ in 0..3 {
        let answer = internet.ask("house2", asker.bound, "POST", "/v1/completions", &body);
        assert_eq!(answer.text(), expected);
    }
    let hive = internet.ask("house2", asker.bound, "GET", "/v1/hive", "").json()["hive"].clone();
    let peers = hive["peers"].as_array().unwrap();
    let of = |id: &str| peers.iter().find(|peer| peer["id"] == id).unwrap().clone();
    assert_eq!(of(&seed.id)["path"], "direct", "{hive}");
    assert_eq!(of(&lender.id)["path"], "relayed", "{hive}");
    // Each came to the seed once and stayed.
    let came = |of: &mut Member| {
        let lines = of.log.so_far();
        let joined = format!("connected peer={}", seed.id);
        lines.iter().filter(|line| line.ends_with(&joined)).count()
    };
    let (mut asker, mut lender) = (asker, lender);
    assert_eq!([came(&mut asker), came(&mut lender)], [1, 1]);
}
