//! Probabilities of tokens in OpenAI's two shapes.

use serde_json::{Map, Value, json};

use super::super::choice::Spelled;

/// What stands for the logarithm of 0, which JSON cannot write.
const LOG_OF_ZERO: f32 = -9999.0;

/// As chats have them: each token with its text, bytes and rivals. Of a token that is a part of a
/// letter only the bytes are exact.
pub fn chat(spelled: &[Spelled]) -> Value {
    let one = |bytes: &[u8], log_prob: f32| {
        json!({
            "token": String::from_utf8_lossy(bytes),
            "logprob": finite(log_prob),
            "bytes": bytes,
        })
    };
    let token = |token: &Spelled| {
        let mut value = one(&token.bytes, token.log_prob);
        value["top_logprobs"] = token.top.iter().map(|(bytes, p)| one(bytes, *p)).collect();
        value
    };
    let content: Vec<Value> = spelled.iter().map(token).collect();
    json!({"content": content, "refusal": null})
}

/// As completions have them: four lists of the same length.
pub fn completion(spelled: &[Spelled]) -> Value {
    let tokens: Vec<String> = spelled.iter().map(|token| written(&token.bytes)).collect();
    let own: Vec<f32> = spelled.iter().map(|token| finite(token.log_prob)).collect();
    let offsets: Vec<usize> = spelled.iter().map(|token| token.offset).collect();
    // The token itself is listed, too, when it is not among the likeliest.
    let top = |token: &Spelled| {
        let own = (&token.bytes, token.log_prob);
        let all = token.top.iter().map(|(bytes, p)| (bytes, *p)).chain([own]);
        let map: Map<String, Value> =
            all.map(|(bytes, p)| (written(bytes), finite(p).into())).collect();
        Value::Object(map)
    };
    let top: Vec<Value> = spelled.iter().map(top).collect();
    json!({"tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets})
}

/// A token's text; of a part of a letter its bytes, as OpenAI writes them, so that different
/// tokens have different names.
fn written(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{hex}")
        }
    }
}

fn finite(log_prob: f32) -> f32 {
    log_prob.max(LOG_OF_ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled() -> [Spelled; 2] {
        let part = vec![0xf0, 0x9f];
        [
            Spelled {
                bytes: b"a".to_vec(),
                log_prob: -0.5,
                top: vec![(b"a".to_vec(), -0.5), (part.clone(), -1.5)],
                offset: 0,
            },
            Spelled { bytes: part, log_prob: f32::NEG_INFINITY, top: Vec::new(), offset: 1 },
        ]
    }

    #[test]
    fn a_chat_has_text_bytes_and_rivals() {
        let expected = json!({"refusal": null, "content": [
            {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97]},
                {"token": "\u{fffd}", "logprob": -1.5, "bytes": [240, 159]},
            ]},
            {"token": "\u{fffd}", "logprob": -9999.0, "bytes": [240, 159], "top_logprobs": []},
        ]});
        assert_eq!(chat(&spelled()), expected);
    }

    #[test]
    fn a_completion_has_four_lists() {
        let expected = json!({
            "tokens": ["a", "bytes:\\xf0\\x9f"],
            "token_logprobs": [-0.5, -9999.0],
            "top_logprobs": [
                {"a": -0.5, "bytes:\\xf0\\x9f": -1.5},
                {"bytes:\\xf0\\x9f": -9999.0},
            ],
            "text_offset": [0, 1],
        });
        assert_eq!(completion(&spelled()), expected);
    }
}
