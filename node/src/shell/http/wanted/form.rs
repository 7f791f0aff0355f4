//! The form that an answer must have: OpenAI's `response_format`, and the names that vLLM and
//! llama-server have for the same.

use serde_json::Value;

use super::super::fault::{Fault, quoted};
use super::super::fields::Fields;

/// Texts that an answer may be chosen from.
const CHOICES_MAX: usize = 256;
/// Bytes of all of them, or of a regular expression.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Anything.
    Free,
    /// Some JSON object.
    JsonObject,
    /// JSON that this schema describes.
    Schema(Value),
    /// Text that this regular expression matches from end to end.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// The form that a request asks for, and the field that asked for it. Two fields that ask for
/// different things are refused.
pub fn form(fields: &mut Fields) -> Result<(Form, &'static str), Fault> {
    let mut found = (Form::Free, "response_format");
    let asked = [
        response_format(fields)?,
        (schema(fields, "json_schema")?, "json_schema"),
        (schema(fields, "guided_json")?, "guided_json"),
        (regex(fields)?, "guided_regex"),
        (choice(fields)?, "guided_choice"),
    ];
    for (form, name) in asked {
        match (&found.0, form) {
            (_, Form::Free) => {}
            (Form::Free, form) => found = (form, name),
            _ => return Err(fields.wrong(name, &format!("absent beside {}", found.1))),
        }
    }
    Ok(found)
}

/// The form, and where it stands.
fn response_format(fields: &mut Fields) -> Result<(Form, &'static str), Fault> {
    const NAME: &str = "response_format";
    let Some(value) = fields.take(NAME) else { return Ok((Form::Free, NAME)) };
    let mut format = Fields::of(NAME, value)?;
    let kind = format.text("type")?.ok_or_else(|| format.missing("type"))?;
    match kind.as_str() {
        "text" => Ok((Form::Free, NAME)),
        "json_object" => match format.take("schema") {
            // llama-server takes a schema here.
            Some(schema) => Ok((Form::Schema(schema), "response_format.schema")),
            None => Ok((Form::JsonObject, NAME)),
        },
        "json_schema" => {
            let inner = format.take("json_schema");
            let inner = inner.ok_or_else(|| format.missing("json_schema"))?;
            let mut inner = Fields::of("response_format.json_schema", inner)?;
            inner.flag("strict")?;
            let schema = inner.take("schema").ok_or_else(|| inner.missing("schema"))?;
            match schema.is_object() || schema.is_boolean() {
                true => Ok((Form::Schema(schema), "response_format.json_schema.schema")),
                false => Err(inner.wrong("schema", "a JSON schema")),
            }
        }
        other => {
            let message = format!(
                "{} is {}; text, json_object and json_schema are supported",
                format.name("type"),
                quoted(other)
            );
            Err(Fault::unsupported(NAME, message))
        }
    }
}

/// A schema that a field holds as an object, or as JSON in a string.
fn schema(fields: &mut Fields, name: &str) -> Result<Form, Fault> {
    let value = match fields.take(name) {
        None => return Ok(Form::Free),
        Some(Value::String(text)) => {
            serde_json::from_str(&text).map_err(|_| fields.wrong(name, "a JSON schema"))?
        }
        Some(value) => value,
    };
    match &value {
        Value::Object(map) if map.is_empty() => Ok(Form::Free),
        Value::Object(_) => Ok(Form::Schema(value)),
        _ => Err(fields.wrong(name, "a JSON schema")),
    }
}

fn regex(fields: &mut Fields) -> Result<Form, Fault> {
    const NAME: &str = "guided_regex";
    match fields.text(NAME)? {
        None => Ok(Form::Free),
        Some(text) if text.is_empty() => Ok(Form::Free),
        Some(text) if text.len() <= TEXT_BYTES_MAX => Ok(Form::Regex(text)),
        Some(_) => Err(fields.wrong(NAME, &format!("at most {TEXT_BYTES_MAX} bytes long"))),
    }
}

fn choice(fields: &mut Fields) -> Result<Form, Fault> {
    const NAME: &str = "guided_choice";
    let list = match fields.take(NAME) {
        None => return Ok(Form::Free),
        Some(Value::Array(list)) if list.is_empty() => return Ok(Form::Free),
        Some(Value::Array(list)) if list.len() <= CHOICES_MAX => list,
        Some(_) => {
            return Err(fields.wrong(NAME, &format!("an array of at most {CHOICES_MAX} strings")));
        }
    };
    let text = |value| match value {
        Value::String(text) if !text.is_empty() => Some(text),
        _ => None,
    };
    let texts: Option<Vec<String>> = list.into_iter().map(text).collect();
    match texts {
        Some(texts) if texts.iter().map(String::len).sum::<usize>() <= TEXT_BYTES_MAX => {
            Ok(Form::Choice(texts))
        }
        _ => {
            let wanted =
                format!("an array of strings that are not empty, {TEXT_BYTES_MAX} bytes in all");
            Err(fields.wrong(NAME, &wanted))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Form, String> {
        let body = value.to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let param = |fault: Fault| fault.json()["error"]["param"].as_str().unwrap().to_string();
        form(&mut fields).map(|(form, _)| form).map_err(param)
    }

    #[test]
    fn all_names_for_a_form_are_understood() {
        let schema = json!({"type": "object"});
        let strict = json!({"type": "json_schema", "json_schema": {
            "name": "x", "strict": true, "schema": schema}});
        for (body, form) in [
            (json!({}), Form::Free),
            (json!({"response_format": {"type": "text"}}), Form::Free),
            (json!({"response_format": {"type": "json_object"}}), Form::JsonObject),
            (json!({"response_format": strict}), Form::Schema(schema.clone())),
            (json!({"guided_json": schema}), Form::Schema(schema.clone())),
            (json!({"guided_json": schema.to_string()}), Form::Schema(schema.clone())),
            (json!({"json_schema": schema}), Form::Schema(schema.clone())),
            (json!({"guided_regex": "a+"}), Form::Regex("a+".into())),
            (json!({"guided_choice": ["a", "b"]}), Form::Choice(vec!["a".into(), "b".into()])),
        ] {
            assert_eq!(read(body.clone()), Ok(form), "{body}");
        }
    }

    #[test]
    fn what_is_no_form_is_refused_by_name() {
        for (body, param) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {}}), "response_format.type"),
            (json!({"response_format": {"type": "grammar"}}), "response_format"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_regex": 3}), "guided_regex"),
            (json!({"guided_choice": ["a", 3]}), "guided_choice"),
            (json!({"guided_choice": [""]}), "guided_choice"),
            (json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice"),
        ] {
            assert_eq!(read(body.clone()), Err(param.into()), "{body}");
        }
    }
}
