//! `cadencia hive`: several nodes with one command, and what people see of them.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::nest::{Api, Member, deep_toy, greedy};
use crate::process::{Ended, Lines, cadencia, run, send_signal, wait};

/// A local hive. Its end is forced when the test is over.
struct Local {
    child: Child,
    /// What it says on stdout. All processes of the hive hold this pipe, so it ends when all have.
    out: Lines,
    log: Lines,
    line: String,
    api: Api,
    _home: TempDir,
}

impl Local {
    /// Of `nodes` nodes; ready.
    fn start(model: &Path, nodes: usize, flags: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let usual = cadencia(&home);
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3>&1"]).arg(usual.get_program());
        for (name, value) in usual.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["hive", "--api", "127.0.0.1:0", "--threads", "1", "--model"]).arg(model);
        command.args(["--nodes", &nodes.to_string()]).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.env("TMPDIR", home.path()).spawn().unwrap();
        let log = Lines::new(child.stderr.take().unwrap());
        let mut out = Lines::new(child.stdout.take().unwrap());
        let line = out.wait_for("listening on http://");
        let api = Api(line.rsplit("http://").next().unwrap().parse().unwrap());
        Self { child, out, log, line, api, _home: home }
    }

    fn continued(&self, prompt: &str) -> String {
        self.api.continued(prompt, 12)
    }

    /// What a command says of it, with its exit code 0.
    fn told(&self, command: &str) -> Value {
        let at = self.api.0.to_string();
        let ended = run(&[command, "--api", &at, "--json"], "");
        assert_eq!(ended.code, 0, "{command}: {ended:?}");
        ended.json()
    }

    /// The process of the node that is called so.
    fn node(&self, name: usize) -> u32 {
        let config = format!("node-{name}/config.toml");
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let own = |id: &u32| {
            let text = |file: &str| std::fs::read(format!("/proc/{id}/{file}")).unwrap_or_default();
            let status = String::from_utf8_lossy(&text("status")).into_owned();
            status.lines().any(|line| line == format!("PPid:\t{}", self.child.id()))
                && String::from_utf8_lossy(&text("cmdline")).contains(&config)
        };
        let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.find(own).unwrap_or_else(|| panic!("node {name} does not run"))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one node with the whole model says.
fn alone(model: &Path, prompt: &str) -> String {
    let mut solo = Member::start(&["--model", model.to_str().unwrap(), "--lend-mb", "0"]);
    let api = solo.ready();
    let said = api.post("/v1/completions", &greedy(prompt, 12));
    let route = &said.headers["x-cadencia-route"];
    assert_eq!(route, "alone; all of the model fits here, so it is not split");
    said.text()
}

#[test]
fn a_local_hive_answers_as_one_node_and_shows_who_computes_what() {
    let (_folder, model) = deep_toy(6);
    let mut hive = Local::start(&model, 3, &["--spares", "0"]);
    let said = hive.api.post("/v1/completions", &greedy("hello", 12));
    assert_eq!(said.text(), alone(&model, "hello"));
    let route = &said.headers["x-cadencia-route"];
    assert!(
        route.starts_with("layers 0-1 here; 2-3 at ") && route.contains("; 4-5 at "),
        "{route}"
    );
    assert!(hive.line.starts_with("deep over 3 nodes: layers 0-1 on node 0, 2-3 on node "));

    let status = hive.told("status");
    assert_eq!(
        (&status["ready"], &status["hive"]["models"][0]["stand"]),
        (&true.into(), &"used".into())
    );
    let plan = &status["hive"]["models"][0]["plan"];
    assert_eq!(
        (plan["front"]["layers"].as_str(), plan["stages"][1]["layers"].as_str()),
        (Some("0-1"), Some("4-5"))
    );
    let peers = hive.told("peers");
    assert_eq!(peers["peers"].as_array().unwrap().len(), 2, "{peers}");
    assert_eq!(peers["peers"][0]["path"], "direct");
    let held = |offer: &Value| offer["held"].as_array().unwrap().len();
    assert!(peers["offers"].as_array().unwrap().iter().all(|offer| held(offer) == 1), "{peers}");
    let planned = hive.told("plan");
    assert_eq!((&planned["fits_here"], &planned["model"]), (&false.into(), &"deep".into()));
    assert_eq!(planned["plan"]["stages"].as_array().unwrap().len(), 2, "{planned}");

    send_signal(hive.child.id(), "TERM");
    assert_eq!(wait(&mut hive.child).code(), Some(0));
    hive.out.wait_for_end();
}

#[test]
fn no_node_is_left_when_a_local_hive_is_killed() {
    let (_folder, model) = deep_toy(4);
    let mut hive = Local::start(&model, 3, &["--spares", "0"]);
    hive.child.kill().unwrap();
    hive.child.wait().unwrap();
    hive.out.wait_for_end();
}

#[test]
fn a_node_that_ends_is_named_and_the_others_go_on() {
    let (_folder, model) = deep_toy(6);
    let mut hive = Local::start(&model, 3, &["--spares", "1"]);
    let before = hive.continued("hello");
    send_signal(hive.node(1), "KILL");
    let line = hive.log.wait_for("node 1 ended");
    assert!(line.contains("SIGKILL") && line.contains("2 go on"), "{line}");
    assert_eq!(hive.continued("hello"), before);
    send_signal(hive.node(0), "KILL");
    hive.log.wait_for("node 0, which has the API, ended");
    assert_eq!(wait(&mut hive.child).code(), Some(1));
    hive.out.wait_for_end();
}

#[test]
fn a_local_hive_of_one_is_one_node() {
    let (_folder, model) = deep_toy(2);
    let mut hive = Local::start(&model, 1, &[]);
    assert!(hive.line.contains("2 layers) on cpu"), "{}", hive.line);
    hive.continued("hello");
    send_signal(hive.child.id(), "INT");
    assert_eq!(wait(&mut hive.child).code(), Some(0));
    hive.out.wait_for_end();
}

#[test]
fn a_local_hive_that_cannot_start_says_why_and_leaves_nobody() {
    let (_folder, model) = deep_toy(2);
    let model = model.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let api = taken.local_addr().unwrap().to_string();
    let Ended { code, err, .. } = run(&["hive", "--nodes", "2", "-m", model, "--api", &api], "");
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("[node 0]") && err.contains("cannot listen"), "{err}");
    assert!(err.contains("node 0 ended before the model was ready"), "{err}");
    let Ended { code, .. } = run(&["hive", "--nodes", "0", "-m", model], "");
    assert_eq!(code, 2);
}
