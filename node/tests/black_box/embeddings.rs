//! Vectors for texts.

use serde_json::{Value, json};

use crate::process::Node;

const ROUTE: &str = "/v1/embeddings";

fn vectors(value: &Value) -> Vec<Vec<f64>> {
    let data = value["data"].as_array().unwrap_or_else(|| panic!("{value}"));
    let numbers = |list: &Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    for (index, one) in data.iter().enumerate() {
        assert_eq!((&one["index"], &one["object"]), (&json!(index), &json!("embedding")));
    }
    data.iter().map(|one| numbers(&one["embedding"])).collect()
}

#[test]
fn texts_become_vectors_of_length_one() {
    let node = Node::start(&[]);
    let input = json!(["hello", "a longer text", [104, 101, 108, 108, 111]]);
    let value = node.post(ROUTE, &json!({"input": input, "model": "toy"})).json();
    assert_eq!((&value["object"], &value["model"]), (&json!("list"), &json!("toy")));
    assert_eq!(value["meta"]["pooling"], "mean");
    assert_eq!(value["usage"], json!({"prompt_tokens": 23, "total_tokens": 23}));
    let vectors = vectors(&value);
    for vector in &vectors {
        assert_eq!(vector.len(), 256);
        let length: f64 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
    }
    assert_eq!(vectors[0], vectors[2]);
    assert_ne!(vectors[0], vectors[1]);
}

#[test]
fn many_texts_are_read_a_few_at_a_time() {
    let node = Node::start(&["--queue", "1"]);
    let input: Vec<String> = (0..20).map(|n| format!("text {n}")).collect();
    let all = vectors(&node.post(ROUTE, &json!({"input": input})).json());
    assert_eq!(all.len(), 20);
    let alone = vectors(&node.post(ROUTE, &json!({"input": "text 13"})).json());
    assert_eq!(alone[0], all[13]);
}

#[test]
fn base64_has_the_same_numbers() {
    let node = Node::start(&[]);
    let list = vectors(&node.post(ROUTE, &json!({"input": "hello"})).json());
    let value = node.post(ROUTE, &json!({"input": "hello", "encoding_format": "base64"})).json();
    let text = value["data"][0]["embedding"].as_str().unwrap();
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = text
        .bytes()
        .filter(|b| *b != b'=')
        .map(|b| letters.iter().position(|letter| *letter == b).unwrap() as u32);
    let (mut bytes, mut held, mut count) = (Vec::new(), 0u32, 0);
    for six in bits {
        (held, count) = (held << 6 | six, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((held >> count) as u8);
        }
    }
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    let list: Vec<f32> = list[0].iter().map(|x| *x as f32).collect();
    assert_eq!(numbers, list);
}

#[test]
fn wrong_requests_are_refused_by_name() {
    let node = Node::start(&["--ctx", "64"]);
    for (body, param, code) in [
        (json!({}), "input", "missing_field"),
        (json!({"input": vec!["x"; 257]}), "input", "invalid_value"),
        (json!({"input": ""}), "input", "invalid_value"),
        (json!({"input": ["x", [259]]}), "input[1]", "invalid_value"),
        (json!({"input": ["x", "y".repeat(65)]}), "input[1]", "context_length_exceeded"),
        (json!({"input": "x", "dimensions": 128}), "dimensions", "unsupported_parameter"),
        (json!({"input": "x", "encoding_format": "int8"}), "encoding_format", "invalid_value"),
    ] {
        let response = node.post(ROUTE, &body);
        assert_eq!(response.status, 400, "{body}");
        assert_eq!((response.error("param"), response.error("code")), (param.into(), code.into()));
    }
}
