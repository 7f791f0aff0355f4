//! Letters of many bytes, in tokens of one byte each.

use serde_json::{Value, json};

use crate::client::{choices_of, text_of};
use crate::process::Node;

const TEXT: &str = "/v1/completions";

/// A request that is answered with letters of `bytes` bytes and little else: only these bytes are
/// likely, and each is the less so the more often it came.
fn forced(letters: &str, more: Value) -> Value {
    let bias: serde_json::Map<String, Value> =
        letters.bytes().map(|byte| (byte.to_string(), json!(100))).collect();
    let mut body = json!({"prompt": "say", "max_tokens": 64, "logit_bias": bias, "temperature": 2,
                          "top_k": 0, "top_p": 1, "min_p": 0, "seed": 11});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn what_is_streamed_is_what_is_said_whole() {
    let node = Node::start(&[]);
    // Emoji with joiners, CJK, combining marks, and letters from right to left.
    for letters in ["👩‍👩‍👧", "漢字かな", "e\u{301}o\u{308}", "עברית", "é", "𝄞"]
    {
        for seed in 0..4 {
            let whole = node.post(TEXT, &forced(letters, json!({"seed": seed}))).text();
            let wish = json!({"seed": seed, "stream": true});
            let events = node.client().stream(TEXT, &forced(letters, wish)).rest();
            assert_eq!(text_of(&events), whole, "{letters} {seed}");
        }
    }
}

#[test]
fn a_letter_of_several_tokens_comes_in_one_piece() {
    let node = Node::start(&[]);
    for letter in ["é", "漢", "😀"] {
        // Each byte may be said once, in the order of a prompt that is all of them: the model does
        // not know the order, so the bytes are asked for one after the other.
        let mut prompt: Vec<u32> = "say".bytes().map(u32::from).collect();
        let mut pieces = Vec::new();
        for byte in letter.bytes() {
            let body = json!({"prompt": prompt, "max_tokens": 1, "logprobs": 0,
                              "logit_bias": {byte.to_string(): 100}, "temperature": 0});
            let value = node.post(TEXT, &body).json();
            pieces.push(value["choices"][0]["logprobs"]["tokens"][0].as_str().unwrap().to_string());
            prompt.push(u32::from(byte));
        }
        // Halves of letters have names of their own, which tell their bytes.
        assert!(pieces.iter().all(|piece| piece.starts_with("bytes:\\x")), "{pieces:?}");
    }
}

#[test]
fn no_letter_is_broken_where_the_answer_is_a_whole_text() {
    let node = Node::start(&[]);
    // One byte is repeated by bias: two of 0xc3 never make a letter, and are shown as what
    // stands for a broken one, whole and streamed alike. Letters of one byte never are.
    let body = |bias: Value, stream: bool| {
        json!({"prompt": "say", "max_tokens": 6, "logit_bias": bias, "temperature": 0,
               "stream": stream})
    };
    let broken = node.post(TEXT, &body(json!({"195": 100}), false)).text();
    assert!(broken.chars().all(|letter| letter == '\u{fffd}'), "{broken:?}");
    let events = node.client().stream(TEXT, &body(json!({"195": 100}), true)).rest();
    assert_eq!(text_of(&events), broken);
    let events = node.client().stream(TEXT, &body(json!({"90": 100}), true)).rest();
    assert_eq!(text_of(&events), "ZZZZZZ");
    assert!(choices_of(&events).len() > 6);
}

#[test]
fn what_is_echoed_keeps_every_letter() {
    let node = Node::start(&[]);
    let prompt = "👩‍👩‍👧 漢字 e\u{301} עברית \u{202e}";
    let body = |stream: bool| {
        json!({"prompt": prompt, "max_tokens": 2, "logit_bias": {"90": 100}, "temperature": 0,
               "echo": true, "stream": stream})
    };
    assert_eq!(node.post(TEXT, &body(false)).text(), format!("{prompt}ZZ"));
    let events = node.client().stream(TEXT, &body(true)).rest();
    assert_eq!(text_of(&events), format!("{prompt}ZZ"));
}
