//! Starts hives.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cadencia_tests::Real;
use cadencia_tests::udp_proxy::{UdpProxy, Weather};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Client, Response};
use crate::process::{DEADLINE, Lines, cadencia, send_signal};
use crate::toy;

/// How long whoever asks again and again leaves the processors to the others.
pub const BETWEEN: Duration = Duration::from_millis(10);

/// One node of a hive. It is killed when the test is over, however it ends.
#[derive(Debug)]
pub struct Member {
    child: Child,
    pub log: Lines,
    out: Lines,
    /// Where it can be joined.
    pub address: String,
    /// Where its API will be, ready or not.
    pub bound: Api,
    /// Its node id.
    pub id: String,
    pub home: TempDir,
}

impl Member {
    /// A node with these flags; it listens for others, and may not be ready yet.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_in(TempDir::new().unwrap(), flags)
    }

    /// The same with the home of an earlier one.
    pub fn start_in(home: TempDir, flags: &[&str]) -> Self {
        Self::run("up", home, flags)
    }

    /// A seed with these flags.
    pub fn sentinel(flags: &[&str]) -> Self {
        Self::run("sentinel", TempDir::new().unwrap(), flags)
    }

    fn run(what: &str, home: TempDir, flags: &[&str]) -> Self {
        let command = cadencia(&home);
        Self::spawn(command, what, home, flags)
    }

    /// A node, or a seed, in a network namespace.
    pub fn within(space: &str, what: &str, flags: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let plain = cadencia(&home);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", space]).arg(plain.get_program());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(command, what, home, flags)
    }

    fn spawn(mut command: Command, what: &str, home: TempDir, flags: &[&str]) -> Self {
        let state = home.path().join("state");
        command.args([what, "--api", "127.0.0.1:0", "--threads", "1"]);
        if !flags.contains(&"--mdns") {
            command.args(["--mdns", "false"]);
        }
        command.args(["--state-dir", state.to_str().unwrap()]);
        if !flags.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut child = command.args(flags).spawn().unwrap();
        let mut log = Lines::new(child.stderr.take().unwrap());
        let out = Lines::new(child.stdout.take().unwrap());
        let bound = log.wait_for("bound; ");
        let bound = bound.split("address=").nth(1).unwrap().split(' ').next().unwrap();
        let bound = Api(bound.parse().unwrap());
        let id = log.wait_for("local_peer_id=");
        let id = id.split("local_peer_id=").nth(1).unwrap().trim().to_owned();
        let line = log.wait_for("listening for peers address=/ip4/");
        let address = line.split("address=").nth(1).unwrap().trim().to_owned();
        Self { child, log, out, address, bound, id, home }
    }

    /// Sends the process a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        send_signal(self.child.id(), name);
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process at once; its home, for the next in its place.
    pub fn killed(mut self) -> TempDir {
        let _ = self.child.kill();
        let _ = self.child.wait();
        std::mem::replace(&mut self.home, TempDir::new().unwrap())
    }

    /// Waits until it is ready; where its API is.
    pub fn ready(&mut self) -> Api {
        let line = self.out.wait_for("listening on http://");
        Api(line.rsplit("http://").next().unwrap().parse().unwrap())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "log of {}:", self.address);
            for line in self.log.rest() {
                let _ = writeln!(std::io::stderr(), "  {line}");
            }
        }
    }
}

/// A node whose lanes are reached through a proxy.
pub struct Behind {
    pub proxy: UdpProxy,
    pub member: Member,
}

impl Behind {
    /// A node with these flags, and what the way to it is like.
    pub fn start(flags: &[&str], weather: Weather) -> Self {
        // A port that is free now; who takes it meanwhile makes the test fail loudly.
        let free = UdpSocket::bind("127.0.0.1:0").unwrap();
        let lanes: SocketAddr = free.local_addr().unwrap();
        let proxy = UdpProxy::start(lanes, weather, 1).unwrap();
        drop(free);
        let (lanes, at) = (lanes.to_string(), proxy.address().to_string());
        let member = Member::start(&[flags, &["--lanes", &lanes, "--lanes-at", &at]].concat());
        Self { proxy, member }
    }
}

/// An API.
#[derive(Debug, Clone, Copy)]
pub struct Api(pub SocketAddr);

impl Api {
    pub fn client(self) -> Client {
        Client::connect(self.0)
    }

    pub fn post(self, path: &str, body: &Value) -> Response {
        self.client().request("POST", path, &[], body.to_string().as_bytes())
    }

    pub fn get(self, path: &str) -> Response {
        self.client().request("GET", path, &[], b"")
    }

    /// The value of a metric without labels.
    #[track_caller]
    pub fn metric(self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Waits until a metric has this value: asks again and again, since nobody tells.
    #[track_caller]
    pub fn until(self, metric: &str, value: f64) {
        let end = Instant::now() + DEADLINE;
        loop {
            let found = self.metric(metric);
            if found == value {
                return;
            }
            assert!(Instant::now() < end, "{metric} is {found}, not {value}");
            std::thread::sleep(BETWEEN);
        }
    }

    /// Continues `prompt` greedily by `tokens` tokens.
    #[track_caller]
    pub fn continued(self, prompt: &str, tokens: usize) -> String {
        self.post("/v1/completions", &greedy(prompt, tokens)).text()
    }
}

/// A request that continues `prompt` greedily by `tokens` tokens, whatever they are.
pub fn greedy(prompt: &str, tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true})
}

/// A hive of one requester and some who compute for it.
#[derive(Debug)]
pub struct Hive {
    pub api: Api,
    /// Whose API that is.
    pub requester: Member,
    pub workers: Vec<Member>,
}

impl Hive {
    /// The first of `flags` are the requester's, beside those that are always needed, and the rest
    /// those of `count` others; ready.
    pub fn start(model: &Path, count: usize, flags: &[&str], others: &[&str]) -> Self {
        let model = model.to_str().unwrap();
        let mut workers: Vec<Member> = Vec::new();
        for _ in 0..count {
            let seed = workers.first().map(|first| first.address.clone());
            let mut all = vec!["--model", model, "--lend-mb", "400"];
            if let Some(seed) = &seed {
                all.extend(["--join", seed]);
            }
            all.extend(others);
            workers.push(Member::start(&all));
        }
        for worker in &mut workers {
            worker.ready();
        }
        let mut requester = Self::requester(model, &workers[0].address, count, flags);
        let api = requester.ready();
        Self { api, requester, workers }
    }

    /// A node that splits the model over `stages` others and knows the one at `seed`.
    pub fn requester(model: &str, seed: &str, stages: usize, flags: &[&str]) -> Member {
        let stages = stages.to_string();
        let mut all = vec!["--model", model, "--join", seed, "--lend-mb", "0"];
        if !flags.contains(&"--own-mb") {
            // The ends and about seven layers of SmolLM2.
            all.extend(["--own-mb", "150"]);
        }
        if !flags.contains(&"--stages") {
            all.extend(["--stages", &stages]);
        }
        all.extend(flags);
        Member::start(&all)
    }
}

impl Hive {
    /// Takes the worker that computes the stage at this place of the route out of the hive.
    #[track_caller]
    pub fn stage(&mut self, place: usize) -> Member {
        let found = self.api.get("/v1/hive").json()["hive"].clone();
        let node = &found["models"][0]["plan"]["stages"][place]["node"];
        let node = node.as_str().unwrap_or_else(|| panic!("no stage {place} in {found}"));
        let at = self.workers.iter().position(|worker| worker.id == node);
        self.workers.remove(at.unwrap_or_else(|| panic!("{node} is none of {:?}", self.workers)))
    }

    /// What a node that cannot join says before it ends.
    pub fn requester_ends(model: &str, seed: &str, flags: &[&str]) -> String {
        let home = TempDir::new().unwrap();
        let state = home.path().join("state");
        let mut command = cadencia(&home);
        command.args(["up", "--api", "127.0.0.1:0", "--model", model, "--join", seed]);
        command.args(["--state-dir", state.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
        let output = command.args(flags).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// SmolLM2's file; `None` where it could not be fetched.
pub fn smollm2() -> Option<PathBuf> {
    Real::SmolLm2.find()
}

/// A toy of so many layers in a folder of its own.
pub fn deep_toy(layers: usize) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("deep.gguf");
    toy::write_layers(&path, layers).unwrap();
    (folder, path)
}

/// A text of `words` words that does not repeat itself.
pub fn text(words: usize) -> String {
    let subjects =
        ["The keeper", "A sailor", "My neighbour", "The old fox", "Nobody", "Her sister"];
    let verbs = ["counted", "painted", "forgot", "followed", "sold", "remembered", "feared"];
    let objects = ["the lamps", "a red boat", "seven letters", "the north wind", "his own name"];
    let mut all = String::new();
    let mut n = 0;
    while all.split(' ').count() < words {
        let (s, v, o) = (n % subjects.len(), n * 3 % verbs.len(), n * 7 % objects.len());
        all += &format!("{} {} {} on day {n}. ", subjects[s], verbs[v], objects[o]);
        n += 1;
    }
    all.split(' ').take(words).collect::<Vec<_>>().join(" ")
}
