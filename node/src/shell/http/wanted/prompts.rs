//! Prompts as text or tokens, one or several, as `/v1/completions` and `/v1/embeddings` take them.

use serde_json::Value;

use super::super::fault::Fault;
use super::super::fields::Fields;

/// Something to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// As text.
    Text(String),
    /// As tokens.
    Tokens(Vec<u32>),
}

/// The field `name`: a string, an array of strings, an array of token ids, or an array of such
/// arrays; at most `most` prompts.
pub fn prompts(fields: &mut Fields, name: &str, most: usize) -> Result<Vec<Prompt>, Fault> {
    let wanted = format!("a string, an array of token ids, or an array of 1 to {most} of these");
    let list = match fields.take(name) {
        None => return Err(fields.missing(name)),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(fields.wrong(name, &wanted)),
    };
    if list.first().is_some_and(Value::is_number) {
        return match tokens(&list) {
            Some(tokens) => Ok(vec![Prompt::Tokens(tokens)]),
            None => Err(fields.wrong(name, &wanted)),
        };
    }
    if list.is_empty() || list.len() > most {
        return Err(fields.wrong(name, &wanted));
    }
    let prompt = |value| match value {
        Value::String(text) => Some(Prompt::Text(text)),
        Value::Array(list) => tokens(&list).map(Prompt::Tokens),
        _ => None,
    };
    let all: Option<Vec<Prompt>> = list.into_iter().map(prompt).collect();
    all.ok_or_else(|| fields.wrong(name, &wanted))
}

/// Token ids, one or more.
fn tokens(list: &[Value]) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    if list.is_empty() { None } else { list.iter().map(id).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Option<Vec<Prompt>> {
        let mut fields = Fields::of("x", json!({"prompt": value})).unwrap();
        prompts(&mut fields, "prompt", 3).ok()
    }

    #[test]
    fn a_prompt_is_text_or_tokens_and_there_may_be_several() {
        let text = |text: &str| Prompt::Text(text.into());
        let tokens = |ids: &[u32]| Prompt::Tokens(ids.to_vec());
        assert_eq!(read(json!("a")), Some(vec![text("a")]));
        assert_eq!(read(json!(["a", "b"])), Some(vec![text("a"), text("b")]));
        assert_eq!(read(json!([1, 2])), Some(vec![tokens(&[1, 2])]));
        assert_eq!(read(json!([[1], [2, 3]])), Some(vec![tokens(&[1]), tokens(&[2, 3])]));
        assert_eq!(read(json!([1, 2, 3, 4])), Some(vec![tokens(&[1, 2, 3, 4])]));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in [
            json!(null),
            json!([]),
            json!([[]]),
            json!([1, "a"]),
            json!(["a", 1]),
            json!([1, -2]),
            json!([1.5]),
            json!([4_294_967_296u64]),
            json!({}),
            json!(["a", "b", "c", "d"]),
        ] {
            assert_eq!(read(bad.clone()), None, "{bad}");
        }
    }
}
