//! What people see of a node: `status`, `peers`, `plan`, and the routes behind them.

use serde_json::{Value, json};

use crate::process::{Ended, Node, run};

const IN_HIVE: [&str; 4] = ["--listen", "127.0.0.1:0", "--mdns", "false"];

fn ask(node: &Node, args: &[&str]) -> Ended {
    let api = node.address.to_string();
    run(&[&[args[0], "--api", &api], &args[1..]].concat(), "")
}

fn said(node: &Node) -> (String, String) {
    let body = json!({"prompt": "hello", "max_tokens": 2, "temperature": 0});
    let response = node.post("/v1/completions", &body);
    (response.text(), response.headers["x-cadencia-route"].clone())
}

#[test]
fn a_node_in_no_hive_says_so_politely() {
    let node = Node::start(&[]);
    let hive = node.get("/v1/hive");
    assert_eq!((hive.status, &hive.json()["hive"]), (200, &Value::Null));
    assert!(hive.json()["why"].as_str().unwrap().contains("--join"));
    let plan = node.get("/v1/hive/plan");
    assert_eq!((plan.status, plan.error("code").as_str()), (409, "no_hive"));
    assert_eq!(said(&node).1, "alone");

    let status = ask(&node, &["status"]);
    assert_eq!(status.code, 0, "{status:?}");
    assert!(status.out.contains("ready    yes") && status.out.contains("in no hive"), "{status:?}");
    for command in ["peers", "plan"] {
        let ended = ask(&node, &[command]);
        assert!(ended.code == 1 && ended.err.contains("--join"), "{command}: {ended:?}");
    }
}

#[test]
fn a_node_without_others_keeps_its_model_whole_and_says_why() {
    let node = Node::start(&IN_HIVE);
    assert_eq!(said(&node).1, "alone; all of the model fits here, so it is not split");
    let plan = ask(&node, &["plan", "-m", "toy"]);
    assert!(plan.code == 0 && plan.out.contains("Not split, for all fits here."), "{plan:?}");
    let plan = ask(&node, &["plan", "--json"]).json();
    assert_eq!((&plan["fits_here"], &plan["plan"]["stages"]), (&json!(true), &json!([])));
    let unknown = ask(&node, &["plan", "-m", "another"]);
    assert!(unknown.code == 1 && unknown.err.contains("toy"), "{unknown:?}");
    let peers = ask(&node, &["peers"]);
    assert!(peers.code == 0 && peers.err.contains("no other node"), "{peers:?}");
    assert_eq!(ask(&node, &["peers", "--json"]).json(), json!({"peers": [], "offers": []}));
    let hive = &ask(&node, &["status", "--json"]).json()["hive"];
    assert_eq!(
        (&hive["node"]["seats_taken"], &hive["node"]["class"]),
        (&json!(0), &json!("int8x-v1"))
    );
    assert!(hive["node"]["id"].as_str().unwrap().starts_with("12D3"), "{hive}");
}

#[test]
fn who_asks_where_no_node_is_learns_how_to_start_one() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for command in ["status", "peers", "plan"] {
        let ended = run(&[command, "--api", &closed.to_string()], "");
        assert_eq!(ended.code, 1, "{command}: {ended:?}");
        assert!(
            ended.err.contains("no node answers") && ended.err.contains("cadencia up"),
            "{ended:?}"
        );
    }
}

#[test]
fn what_is_shown_of_a_hive_is_behind_the_key() {
    let node = Node::start(&["--api-key", "sesame"]);
    assert_eq!((node.get("/v1/hive").status, node.get("/v1/hive/plan").status), (401, 401));
    let ended = ask(&node, &["peers"]);
    assert!(ended.code == 1 && ended.err.contains("CADENCIA_API_KEY"), "{ended:?}");
    assert_eq!(ask(&node, &["status", "--api-key", "sesame"]).code, 0);
}
