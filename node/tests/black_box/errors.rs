//! What is refused, and how.

use serde_json::{Value, json};

use crate::process::{Node, run, run_at, toy_path};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";

fn user(content: &str) -> Value {
    json!([{"role": "user", "content": content}])
}

#[test]
fn wrong_requests_are_refused_in_openais_shape() {
    let node = Node::start(&[]);
    let cases = [
        ("POST", CHAT, "{", 400, "invalid_json"),
        ("POST", CHAT, "[]", 400, "invalid_json"),
        ("POST", CHAT, "{}", 400, "missing_field"),
        ("POST", CHAT, r#"{"messages": 3}"#, 400, "invalid_value"),
        ("POST", "/v1/completions", r#"{"prompt": {}}"#, 400, "invalid_value"),
        ("POST", "/v1/completions", r#"{"prompt": [259]}"#, 400, "invalid_value"),
        ("POST", "/v1/completions", r#"{"prompt": ""}"#, 400, "invalid_value"),
        ("GET", "/v1/models/other", "", 404, "model_not_found"),
        ("GET", "/v1/models/%ff", "", 404, "model_not_found"),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", "", 404, "model_not_found"),
        ("GET", "/nowhere", "", 404, "unknown_route"),
        ("POST", "/v1/chat", "", 404, "unknown_route"),
        ("POST", "/v1/responses", "{}", 404, "unknown_route"),
        ("POST", "/v1/embeddings", "{}", 400, "missing_field"),
        ("GET", CHAT, "", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", "", 405, "method_not_allowed"),
    ];
    for (method, path, body, status, code) in cases {
        let response = node.client().request(method, path, &[], body.as_bytes());
        assert_eq!(response.status, status, "{method} {path} {body}: {response:?}");
        assert_eq!(response.error("code"), code, "{method} {path} {body}");
        assert!(!response.error("message").is_empty());
        assert_eq!(response.error("type"), "invalid_request_error");
        assert_eq!(response.headers["content-type"], "application/json");
        assert_eq!(response.headers.contains_key("allow"), status == 405);
    }
}

#[test]
fn wrong_fields_are_named() {
    let node = Node::start(&[]);
    for (field, value, code) in [
        ("temperature", json!("hot"), "invalid_value"),
        ("max_tokens", json!(-1), "invalid_value"),
        ("stop", json!([1]), "invalid_value"),
        ("functions", json!([{"name": "f"}]), "unsupported_parameter"),
        ("n", json!(17), "invalid_value"),
        ("response_format", json!({"type": "xml"}), "unsupported_parameter"),
        ("logprobs", json!(3), "invalid_value"),
        ("stop_token_ids", json!([259]), "invalid_value"),
        ("logit_bias", json!({"259": 1}), "invalid_value"),
    ] {
        let mut body = json!({"messages": user("hi")});
        body[field] = value;
        let response = node.chat(&body);
        assert_eq!(response.status, 400, "{response:?}");
        assert_eq!(
            (response.error("param").as_str(), response.error("code").as_str()),
            (field, code)
        );
    }
    let response = node.chat(&json!({"messages": user("hi"), "model": "gpt-x"}));
    assert_eq!((response.status, response.error("param").as_str()), (404, "model"));
    assert_eq!(response.error("code"), "model_not_found");
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_the_numbers() {
    let node = Node::start(&["--ctx", "64"]);
    let response = node.chat(&json!({"messages": user(&"x".repeat(100))}));
    assert_eq!((response.status, response.error("param").as_str()), (400, "messages"));
    assert_eq!(response.error("code"), "context_length_exceeded");
    let message = response.error("message");
    assert!(message.contains("119") && message.contains("64"), "{message}");
    // One that fits is answered up to the end of the context.
    let response =
        node.post("/v1/completions", &json!({"prompt": "x".repeat(60), "temperature": 0}));
    let value = response.json();
    assert_eq!(value["choices"][0]["finish_reason"], "length");
    assert_eq!(value["usage"]["completion_tokens"], 4);
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let node = Node::start(&[]);
    let body = json!({"messages": user(&"x".repeat(5 << 20))}).to_string();
    let response = node.client().request("POST", CHAT, &[], body.as_bytes());
    assert_eq!((response.status, response.error("code").as_str()), (413, "body_too_large"));
    // One that only says how large it is is refused before it comes.
    let mut client = node.client();
    client.send("POST", CHAT, &[("content-length", "99999999999")], b"{");
    assert_eq!(client.receive().status, 413);
    // One that ends early is no request, and does no harm.
    let mut client = node.client();
    client.send("POST", CHAT, &[("content-length", "100")], b"{");
    drop(client);
    assert_eq!(node.get("/health").status, 200);
}

#[test]
fn what_is_no_http_is_refused_and_the_node_goes_on() {
    let node = Node::start(&[]);
    for bytes in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..], b"HELLO\r\n\r\n"] {
        let mut client = node.client();
        client.raw(bytes);
        assert_eq!(client.head().0, 400);
    }
    let mut client = node.client();
    client.send("GET", "/health", &[("x-many", "yes"); 70], b"");
    assert_eq!(client.head().0, 431);
    assert_eq!(node.get("/health").status, 200);
}

#[test]
fn pages_of_other_origins_and_other_hosts_are_refused() {
    let node = Node::start(&[]);
    let body = json!({"messages": user("hi"), "max_tokens": 1}).to_string();
    let port = node.address.port();
    let host = format!("evil.example:{port}");
    for (headers, code) in [
        (("host", host.as_str()), "host_refused"),
        (("origin", "http://evil.example"), "origin_refused"),
        (("origin", "null"), "origin_refused"),
    ] {
        let response = node.client().request("POST", CHAT, &[headers], body.as_bytes());
        assert_eq!((response.status, response.error("code").as_str()), (403, code));
    }
    let host = format!("localhost:{port}");
    let response = node.client().request("POST", CHAT, &[("host", &host)], body.as_bytes());
    assert_eq!(response.status, 200);
    assert!(response.headers.keys().all(|name| !name.starts_with("access-control-")));
}

#[test]
fn a_key_is_asked_for_where_there_is_one() {
    let node = Node::start_at("0.0.0.0:0", &["--api-key", "sesame"]);
    let address = (std::net::Ipv4Addr::LOCALHOST, node.address.port()).into();
    let get = |path: &str, headers: &[(&str, &str)]| {
        crate::client::Client::connect(address).request("GET", path, headers, b"")
    };
    assert_eq!(get("/v1/models", &[("authorization", "Bearer sesame")]).status, 200);
    for headers in [&[][..], &[("authorization", "Bearer open")], &[("authorization", "sesame")]] {
        let response = get("/v1/models", headers);
        assert_eq!((response.status, response.error("code").as_str()), (401, "invalid_api_key"));
        assert_eq!(response.headers["www-authenticate"], "Bearer");
    }
    assert_eq!(get("/health", &[]).status, 200);
    assert_eq!(get("/ready", &[]).status, 200);
}

#[test]
fn to_be_open_to_the_world_a_node_needs_a_key() {
    let toy = toy_path();
    let ended = run(&["up", "--model", toy.to_str().unwrap(), "--api", "0.0.0.0:0"], "");
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.err.contains("CADENCIA_API_KEY"), "{ended:?}");
}

#[test]
fn what_cannot_start_says_why() {
    let toy = toy_path();
    let toy = toy.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let ended = run(&["up", "--model", toy, "--api", &taken], "");
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains(&taken), "{ended:?}");

    let ended = run(&["up", "--model", toy, "--api", "127.0.0.1:0", "--ctx", "99999999"], "");
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("32768"), "{ended:?}");

    let home = TempDir::new().unwrap();
    let broken = home.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF\x03\0\0\0 and nothing else").unwrap();
    let ended = run(&["up", "--model", broken.to_str().unwrap(), "--api", "127.0.0.1:0"], "");
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("broken.gguf"), "{ended:?}");

    std::fs::create_dir(home.path().join("cadencia")).unwrap();
    std::fs::write(home.path().join("cadencia/config.toml"), "modle = \"toy\"\n").unwrap();
    let ended = run_at(&home, &["models"], "");
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains("`modle`"), "{ended:?}");
}
