//! What a node tells Prometheus.

use serde_json::json;

use crate::process::Node;

fn value_of(text: &str, name: &str) -> f64 {
    let line =
        text.lines().find(|line| line.strip_prefix(name).is_some_and(|r| r.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("{name} is not in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn requests_and_tokens_are_counted() {
    let mut node = Node::start(&[]);
    let body = json!({"prompt": "a secret", "max_tokens": 5, "temperature": 0, "n": 2});
    assert_eq!(node.post("/v1/completions", &body).status, 200);
    node.log.wait_for("tokens=10");
    let bad = json!({"prompt": "a secret", "temperature": "hot"});
    assert_eq!(node.post("/v1/completions", &bad).status, 400);
    node.log.wait_for("status=400");
    assert_eq!(node.get("/a-secret-path").status, 404);
    node.log.wait_for("status=404");
    let response = node.get("/metrics");
    assert!(response.headers["content-type"].starts_with("application/openmetrics-text"));
    let text = &response.body;
    assert!(text.ends_with("# EOF\n"));
    let labels = "gen_ai_operation_name=\"text_completion\",gen_ai_request_model=\"toy\"";
    for (name, expected) in [
        ("cadencia_requests_total{route=\"/v1/completions\",status=\"200\"}".to_string(), 1.0),
        ("cadencia_requests_total{route=\"/v1/completions\",status=\"400\"}".into(), 1.0),
        ("cadencia_requests_total{route=\"other\",status=\"404\"}".into(), 1.0),
        ("cadencia_refusals_total{code=\"invalid_value\"}".into(), 1.0),
        (format!("gen_ai_server_request_duration_seconds_count{{{labels}}}"), 1.0),
        (format!("gen_ai_server_time_to_first_token_seconds_count{{{labels}}}"), 1.0),
        (format!("gen_ai_server_time_per_output_token_seconds_count{{{labels}}}"), 2.0),
        (format!("gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type=\"input\"}}"), 16.0),
        (format!("gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type=\"output\"}}"), 10.0),
        ("cadencia_engine_running{model=\"toy\"}".into(), 0.0),
    ] {
        assert_eq!(value_of(text, &name), expected, "{name}");
    }
    assert!(value_of(text, "cadencia_connections") >= 1.0);
    assert!(value_of(text, "process_resident_memory_bytes") > 1e6);
    assert!(text.contains("cadencia_build_info{version=\""));
    assert!(!text.contains("secret"));
}

#[test]
fn where_there_is_a_key_metrics_need_it() {
    let node = Node::start(&["--api-key", "sesame"]);
    assert_eq!(node.get("/metrics").status, 401);
    let headers = [("authorization", "Bearer sesame")];
    let response = node.client().request("GET", "/metrics", &headers, b"");
    assert_eq!(response.status, 200);
    assert!(!response.body.contains("sesame") && !response.body.contains("=\"api_key"));
}
