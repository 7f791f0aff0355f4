//! Calls of earlier messages, as a template wants them.

use serde_json::{Map, Value, json};

use super::ToolsError;
use super::request::{bounded, given, is_name, list, object, present};

/// Most calls in one message.
const CALLS_MAX: usize = 128;

/// Longest arguments of one call, bytes.
const ARGUMENTS_BYTES_MAX: usize = 256 << 10;

/// Longest id, bytes.
const ID_BYTES_MAX: usize = 256;

/// A message's `tool_calls`, with `arguments` as the object that templates want where clients send
/// it as text. Paths in errors are relative to the message: `tool_calls[0].function.arguments`.
pub fn calls_for_template(calls: &Value) -> Result<Value, ToolsError> {
    let path = "tool_calls";
    let list = list(calls, path, CALLS_MAX)?;
    let calls = list.iter().enumerate().map(|(n, call)| one(call, &format!("{path}[{n}]")));
    calls.collect::<Result<Vec<_>, _>>().map(Value::Array)
}

fn one(call: &Value, path: &str) -> Result<Value, ToolsError> {
    let outer = object(call, path)?;
    let wrong = |field: &str, wanted| ToolsError::Wrong { path: format!("{path}.{field}"), wanted };
    if given(outer, "type").is_some_and(|kind| kind != "function") {
        return Err(wrong("type", "\"function\""));
    }
    let function = format!("{path}.function");
    let inner = object(present(outer, "function", &function)?, &function)?;
    let name = present(inner, "name", &format!("{function}.name"))?;
    let name = name.as_str().filter(|name| is_name(name));
    let name =
        name.ok_or_else(|| wrong("function.name", "1 to 64 letters of a-z, A-Z, 0-9, _ and -"))?;
    let arguments = match given(inner, "arguments") {
        None => Map::new(),
        Some(Value::Object(map)) => {
            let bytes = inner["arguments"].to_string().len();
            bounded(bytes, ARGUMENTS_BYTES_MAX, format!("{function}.arguments"))?;
            map.clone()
        }
        Some(Value::String(text)) => {
            bounded(text.len(), ARGUMENTS_BYTES_MAX, format!("{function}.arguments"))?;
            // Some clients send nothing for no arguments.
            let text = if text.trim().is_empty() { "{}" } else { text };
            let wanted = "a JSON object, or one as text";
            serde_json::from_str(text).map_err(|_| wrong("function.arguments", wanted))?
        }
        Some(_) => return Err(wrong("function.arguments", "a JSON object, or one as text")),
    };
    let mut out = Map::new();
    if let Some(id) = given(outer, "id") {
        let id = id.as_str().filter(|id| id.len() <= ID_BYTES_MAX);
        let id = id.ok_or_else(|| wrong("id", "a string of 256 bytes or less"))?;
        out.insert("id".to_owned(), json!(id));
    }
    out.insert("type".to_owned(), json!("function"));
    out.insert("function".to_owned(), json!({"name": name, "arguments": arguments}));
    Ok(Value::Object(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_objects() {
        let sent = json!([
            {"id": "a1", "type": "function", "function": {
                "name": "f", "arguments": "{\"city\": \"Köln\", \"n\": 1.0}"}},
            {"function": {"name": "g", "arguments": {"z": 1, "a": 2}}},
            {"id": null, "function": {"name": "h", "arguments": ""}},
        ]);
        let told = json!([
            {"id": "a1", "type": "function", "function": {
                "name": "f", "arguments": {"city": "Köln", "n": 1.0}}},
            {"type": "function", "function": {"name": "g", "arguments": {"z": 1, "a": 2}}},
            {"type": "function", "function": {"name": "h", "arguments": {}}},
        ]);
        assert_eq!(calls_for_template(&sent).unwrap().to_string(), told.to_string());
    }

    #[test]
    fn what_is_wrong_with_a_call_is_told_by_its_field() {
        let with = |arguments: Value| json!([{"function": {"name": "f", "arguments": arguments}}]);
        let cases = [
            (json!({}), "tool_calls must be a list"),
            (json!([[]]), "tool_calls[0] must be an object"),
            (json!([{"type": "custom"}]), "tool_calls[0].type must be \"function\""),
            (json!([{}]), "tool_calls[0].function is missing"),
            (json!([{"function": {"name": "a b"}}]), "tool_calls[0].function.name must be"),
            (json!([{"id": 1, "function": {"name": "a"}}]), "tool_calls[0].id must be a string"),
            (with(json!("[1]")), "tool_calls[0].function.arguments must be a JSON object"),
            (with(json!("{")), "tool_calls[0].function.arguments must be a JSON object"),
            (with(json!(3)), "tool_calls[0].function.arguments must be a JSON object"),
            (with(json!(" ".repeat(300_000))), "tool_calls[0].function.arguments has 300000 bytes"),
        ];
        for (calls, wanted) in cases {
            let error = calls_for_template(&calls).expect_err("refused").to_string();
            assert!(error.starts_with(wanted), "{error:?} is not {wanted:?}");
        }
    }
}
