//! Who may use a node, and from where.

use serde_json::json;

use crate::client::{Client, Response};
use crate::process::{Node, run_at};

const CHAT: &str = "/v1/chat/completions";
const PAGE: &str = "https://chat.example";

fn preflight(node: &Node, origin: &str) -> Response {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
    ];
    node.client().request("OPTIONS", CHAT, &headers, b"")
}

fn is_granted(response: &Response) -> bool {
    response.headers.keys().any(|name| name.starts_with("access-control-"))
}

#[test]
fn without_a_setting_no_page_of_elsewhere_is_served() {
    let node = Node::start(&[]);
    let response = preflight(&node, PAGE);
    assert_eq!((response.status, response.error("code").as_str()), (403, "origin_refused"));
    assert!(!is_granted(&response));
    // The node's own pages ask nothing, and are told nothing.
    let own = format!("http://{}", node.address);
    let response = preflight(&node, &own);
    assert_eq!(response.status, 405);
    assert!(!is_granted(&response));
}

#[test]
fn pages_of_origins_that_are_set_may_use_it() {
    let node = Node::start(&["--cors-origin", PAGE, "--api-key", "sesame"]);
    // A preflight brings no key.
    let response = preflight(&node, PAGE);
    assert_eq!((response.status, response.body.as_str()), (204, ""));
    assert_eq!(response.headers["access-control-allow-origin"], PAGE);
    assert_eq!(response.headers["access-control-allow-methods"], "GET, POST");
    assert!(response.headers["access-control-allow-headers"].starts_with("authorization, "));
    assert_eq!(response.headers["vary"], "origin");
    assert!(!response.headers.contains_key("access-control-allow-credentials"));
    // What follows does, and is refused without, in words that the page may read.
    let models =
        |headers: &[(&str, &str)]| node.client().request("GET", "/v1/models", headers, b"");
    let response = models(&[("origin", PAGE), ("authorization", "Bearer sesame")]);
    assert_eq!(response.status, 200);
    assert_eq!(response.headers["access-control-allow-origin"], PAGE);
    let response = models(&[("origin", PAGE)]);
    assert_eq!(response.status, 401);
    assert_eq!(response.headers["access-control-allow-origin"], PAGE);
    for origin in ["https://chat.example:444", "http://chat.example", "null"] {
        let response = preflight(&node, origin);
        assert_eq!(response.status, 403, "{origin}");
        assert!(!is_granted(&response));
        assert_eq!(response.headers["vary"], "origin");
    }
    // An OPTIONS that is no preflight is a request like any other.
    let response = node.client().request("OPTIONS", CHAT, &[("origin", PAGE)], b"");
    assert_eq!(response.status, 401);
}

#[test]
fn names_that_are_set_are_served_beside_this_machines() {
    let node = Node::start(&["--allowed-host", "node.example"]);
    let ask = |host: &str| node.client().request("GET", "/health", &[("host", host)], b"").status;
    for host in ["node.example", "NODE.example:443", "localhost", "127.0.0.1:1", "[::1]"] {
        assert_eq!(ask(host), 200, "{host}");
    }
    for host in ["other.example", "node.example.evil", "10.0.0.1", "node.example@evil"] {
        assert_eq!(ask(host), 403, "{host}");
    }
    let headers = [("host", "node.example"), ("origin", "https://node.example")];
    assert_eq!(node.client().request("GET", "/health", &headers, b"").status, 200);
}

#[test]
fn a_models_name_is_compared_and_never_opened() {
    let node = Node::start(&[]);
    let toy = crate::process::toy_path();
    let path = toy.to_str().unwrap();
    for name in
        [path, "toy.gguf", "./toy", "../toy", "toy/", "/etc/passwd", "%74oy", "TOY", "toy\u{0}", ""]
    {
        let body = json!({"model": name, "max_tokens": 1, "prompt": "x", "input": "x",
                          "messages": [{"role": "user", "content": "x"}]});
        for route in [CHAT, "/v1/completions", "/v1/embeddings"] {
            let response = node.post(route, &body);
            assert_eq!(
                (response.status, response.error("code").as_str()),
                (404, "model_not_found")
            );
        }
    }
    for path in ["/v1/models/..%2ftoy", "/v1/models/%2fetc%2fpasswd", "/v1/models/toy.gguf"] {
        assert_eq!(node.get(path).status, 404, "{path}");
    }
    let body = json!({"model": "toy", "max_tokens": 1, "prompt": "x"});
    assert_eq!(node.post("/v1/completions", &body).status, 200);
}

#[test]
fn keys_with_names_are_taken_until_they_are_revoked() {
    let home = tempfile::TempDir::new().unwrap();
    let file = home.path().join("keys.toml");
    let file = file.to_str().unwrap();
    let keys = |args: &[&str]| run_at(&home, &[args, &["--api-keys-file", file]].concat(), "");
    let made = keys(&["keys", "add", "ann"]);
    let mut node = Node::start_at("0.0.0.0:0", &["--api-keys-file", file]);
    let address = (std::net::Ipv4Addr::LOCALHOST, node.address.port()).into();
    let bearer = format!("Bearer {}", made.out.trim());
    let models = |id: &str| {
        let headers = [("authorization", bearer.as_str()), ("x-request-id", id)];
        Client::connect(address).request("GET", "/v1/models", &headers, b"").status
    };
    assert_eq!(models("one"), 200);
    let line = node.log.wait_for("request id=\"one\"");
    assert!(line.contains("key=\"ann\"") && !line.contains(made.out.trim()), "{line}");
    assert_eq!(keys(&["keys", "revoke", "ann"]).code, 0);
    assert_eq!(models("two"), 401);
    // And with no key left, nobody is served.
    assert_eq!(Client::connect(address).request("GET", "/v1/models", &[], b"").status, 401);
}

#[test]
fn the_log_names_the_key_and_never_shows_it() {
    let mut node = Node::start(&["--api-key", "sesame"]);
    let body = json!({"prompt": "x", "max_tokens": 2, "n": 2}).to_string();
    let headers = [("authorization", "Bearer sesame"), ("x-request-id", "one")];
    node.client().request("POST", "/v1/completions", &headers, body.as_bytes());
    let line = node.log.wait_for("request id=\"one\"");
    for part in ["key=\"api_key\"", "model=\"toy\"", "n=2", "queue_ms=", "ttft_ms=", "tokens=4"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(!line.contains("sesame"));
}
