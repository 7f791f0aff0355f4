//! What a request says of tools, checked.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::house::{Schema, SchemaError};

/// Most tools in a request.
pub const TOOLS_MAX: usize = 128;

/// Longest name of a tool, letters.
const NAME_LETTERS_MAX: usize = 64;

/// Longest description, bytes. It becomes part of the prompt.
const DESCRIPTION_BYTES_MAX: usize = 16 << 10;

/// Most bytes of a tool's `parameters` as compact JSON.
const PARAMETERS_BYTES_MAX: usize = 64 << 10;

/// Why tools, or the calls of an earlier message, are refused.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ToolsError {
    /// A value of the wrong kind.
    #[error("{path} must be {wanted}")]
    Wrong {
        /// The field, such as `tools[0].function.name`.
        path: String,
        /// What belongs there.
        wanted: &'static str,
    },
    /// Something that must be there is not.
    #[error("{path} is missing")]
    Missing {
        /// The field.
        path: String,
    },
    /// More than is taken.
    #[error("{path} has {count} entries; {max} is the most that is taken")]
    TooMany {
        /// The field.
        path: String,
        /// How many it has.
        count: usize,
        /// How many it may have.
        max: usize,
    },
    /// Longer than is taken.
    #[error("{path} has {bytes} bytes; {max} is the most that is taken")]
    TooLong {
        /// The field.
        path: String,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// A field that would change what is meant, and is not known.
    #[error("{path} is not supported; leave it out")]
    Unsupported {
        /// The field.
        path: String,
    },
    /// Two tools go by one name.
    #[error("{path} is {name:?}, and so is that of an earlier tool")]
    Twice {
        /// The field.
        path: String,
        /// The name.
        name: String,
    },
    /// A choice of a tool that there is not.
    #[error("{path} is {name:?}, and no tool has this name")]
    NoSuchTool {
        /// The field.
        path: String,
        /// The name.
        name: String,
    },
    /// A call is asked for where there are no tools.
    #[error("tool_choice asks for a call, and there are no tools")]
    NoTools,
    /// A call must be made, and what it may say cannot be enforced.
    #[error("a call of {tool} cannot be enforced: in its parameters, {error}")]
    Parameters {
        /// The field.
        path: String,
        /// The tool.
        tool: String,
        /// Why not.
        error: SchemaError,
    },
}

impl ToolsError {
    /// The field that it is about.
    pub fn path(&self) -> &str {
        match self {
            ToolsError::Wrong { path, .. }
            | ToolsError::Missing { path }
            | ToolsError::TooMany { path, .. }
            | ToolsError::TooLong { path, .. }
            | ToolsError::Unsupported { path }
            | ToolsError::Twice { path, .. }
            | ToolsError::NoSuchTool { path, .. }
            | ToolsError::Parameters { path, .. } => path,
            ToolsError::NoTools => "tool_choice",
        }
    }
}

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// 1 to 64 of a-z, A-Z, 0-9, `_` and `-`.
    pub name: String,
    /// What it is for; may be empty.
    pub description: String,
    /// A JSON schema of its arguments, as the client wrote it; that of an empty object if it wrote
    /// none.
    pub parameters: Value,
    /// Whether arguments must keep to the schema in any case. They do where a call is
    /// [forced](ToolChoice::forces), whether or not this is set.
    pub strict: bool,
}

impl Tool {
    /// The tool as templates want it: OpenAI's form, in the order of its fields there.
    pub fn for_template(&self) -> Value {
        serde_json::json!({"type": "function", "function": {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }})
    }
}

/// Whether a model may call, or must.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// It must not; tools need not be told to it.
    None,
    /// As it likes.
    Auto,
    /// It must, whichever tool it likes.
    Required,
    /// It must call this one.
    Named(String),
}

impl ToolChoice {
    /// Whether the model must call.
    pub fn forces(&self) -> bool {
        matches!(self, ToolChoice::Required | ToolChoice::Named(_))
    }
}

/// Whether `name` can be that of a tool.
pub(super) fn is_name(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=NAME_LETTERS_MAX).contains(&name.len()) && name.bytes().all(fine)
}

/// A request's `tools`. An empty list is no tools.
pub fn parse_tools(value: &Value) -> Result<Vec<Tool>, ToolsError> {
    let path = "tools";
    let list = list(value, path, TOOLS_MAX)?;
    let mut tools: Vec<Tool> = Vec::with_capacity(list.len());
    for (n, value) in list.iter().enumerate() {
        let tool = tool(value, &format!("{path}[{n}]"))?;
        if tools.iter().any(|other| other.name == tool.name) {
            let path = format!("{path}[{n}].function.name");
            return Err(ToolsError::Twice { path, name: tool.name });
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(value: &Value, path: &str) -> Result<Tool, ToolsError> {
    let outer = object(value, path)?;
    only(outer, path, &["type", "function"])?;
    function_type(outer, path)?;
    let path = format!("{path}.function");
    let function = object(present(outer, "function", &path)?, &path)?;
    only(function, &path, &["name", "description", "parameters", "strict"])?;
    let at = |field: &str| format!("{path}.{field}");

    let name = present(function, "name", &at("name"))?.as_str().filter(|name| is_name(name));
    let wanted = "1 to 64 letters of a-z, A-Z, 0-9, _ and -";
    let name = name.ok_or_else(|| ToolsError::Wrong { path: at("name"), wanted })?;
    let description = match given(function, "description") {
        None => "",
        Some(Value::String(text)) => text,
        Some(_) => return Err(ToolsError::Wrong { path: at("description"), wanted: "a string" }),
    };
    bounded(description.len(), DESCRIPTION_BYTES_MAX, at("description"))?;
    let parameters = match given(function, "parameters") {
        None => serde_json::json!({"type": "object", "properties": {}}),
        Some(schema @ Value::Object(map)) => {
            let wanted = "a schema of type object";
            if map.get("type").is_some_and(|kind| kind != "object") {
                return Err(ToolsError::Wrong { path: at("parameters"), wanted });
            }
            bounded(schema.to_string().len(), PARAMETERS_BYTES_MAX, at("parameters"))?;
            schema.clone()
        }
        Some(_) => {
            let wanted = "a JSON schema";
            return Err(ToolsError::Wrong { path: at("parameters"), wanted });
        }
    };
    let strict = match given(function, "strict") {
        None => false,
        Some(Value::Bool(strict)) => *strict,
        Some(_) => {
            return Err(ToolsError::Wrong { path: at("strict"), wanted: "true or false" });
        }
    };
    Ok(Tool { name: name.to_owned(), description: description.to_owned(), parameters, strict })
}

/// A request's `tool_choice`, given its `tools`; `None` where it has none, which means `auto` if
/// there are tools.
pub fn parse_choice(value: Option<&Value>, tools: &[Tool]) -> Result<ToolChoice, ToolsError> {
    let path = "tool_choice";
    let choice = match value {
        None | Some(Value::Null) if tools.is_empty() => ToolChoice::None,
        None | Some(Value::Null) => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => {
                let wanted = "none, auto, required or an object that names a function";
                return Err(ToolsError::Wrong { path: path.to_owned(), wanted });
            }
        },
        Some(value) => {
            let outer = object(value, path)?;
            only(outer, path, &["type", "function"])?;
            function_type(outer, path)?;
            let path = format!("{path}.function");
            let function = object(present(outer, "function", &path)?, &path)?;
            only(function, &path, &["name"])?;
            let path = format!("{path}.name");
            let name = present(function, "name", &path)?.as_str();
            let wanted = "a string";
            let name = name.ok_or_else(|| ToolsError::Wrong { path: path.clone(), wanted })?;
            if !tools.iter().any(|tool| tool.name == name) {
                let name = name.chars().take(NAME_LETTERS_MAX).collect();
                return Err(ToolsError::NoSuchTool { path, name });
            }
            ToolChoice::Named(name.to_owned())
        }
    };
    match choice.forces() && tools.is_empty() {
        true => Err(ToolsError::NoTools),
        false => Ok(choice),
    }
}

/// The schema of a tool's arguments as it can be enforced. `index` is the tool's in the request.
pub(super) fn enforceable(tool: &Tool, index: usize) -> Result<Schema, ToolsError> {
    let schema = Schema::parse(&tool.parameters).and_then(Schema::into_object);
    schema.map_err(|error| ToolsError::Parameters {
        path: format!("tools[{index}].function.parameters"),
        tool: tool.name.clone(),
        error,
    })
}

/// `type` must be `function`, or be left out.
fn function_type(map: &Map<String, Value>, path: &str) -> Result<(), ToolsError> {
    match given(map, "type") {
        None => Ok(()),
        Some(kind) if kind == "function" => Ok(()),
        Some(_) => Err(ToolsError::Wrong { path: format!("{path}.type"), wanted: "\"function\"" }),
    }
}

pub(super) fn list<'v>(
    value: &'v Value,
    path: &str,
    max: usize,
) -> Result<&'v [Value], ToolsError> {
    let list = value.as_array();
    let list = list.ok_or_else(|| ToolsError::Wrong { path: path.to_owned(), wanted: "a list" })?;
    match list.len() <= max {
        true => Ok(list),
        false => Err(ToolsError::TooMany { path: path.to_owned(), count: list.len(), max }),
    }
}

pub(super) fn object<'v>(
    value: &'v Value,
    path: &str,
) -> Result<&'v Map<String, Value>, ToolsError> {
    let wanted = "an object";
    value.as_object().ok_or_else(|| ToolsError::Wrong { path: path.to_owned(), wanted })
}

/// A field that is there; `null` counts as absent, as clients with optional fields send it.
pub(super) fn given<'v>(map: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    map.get(name).filter(|value| !value.is_null())
}

pub(super) fn present<'v>(
    map: &'v Map<String, Value>,
    name: &str,
    path: &str,
) -> Result<&'v Value, ToolsError> {
    given(map, name).ok_or_else(|| ToolsError::Missing { path: path.to_owned() })
}

pub(super) fn bounded(bytes: usize, max: usize, path: String) -> Result<(), ToolsError> {
    match bytes <= max {
        true => Ok(()),
        false => Err(ToolsError::TooLong { path, bytes, max }),
    }
}

/// Refuses fields that are not `known`.
fn only(map: &Map<String, Value>, path: &str, known: &[&str]) -> Result<(), ToolsError> {
    match map.iter().find(|(key, value)| !known.contains(&key.as_str()) && !value.is_null()) {
        None => Ok(()),
        Some((key, _)) => {
            let key: String = key.chars().take(60).collect();
            Err(ToolsError::Unsupported { path: format!("{path}.{key}") })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(tools: Value) -> String {
        parse_tools(&tools).expect_err("refused").to_string()
    }

    #[test]
    fn tools_are_taken_as_clients_write_them() {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let tools = json!([
            {"type": "function", "function": {
                "name": "get_weather", "description": "Sky", "parameters": parameters, "strict": true,
            }},
            {"function": {"name": "now", "description": null}},
        ]);
        let parsed = parse_tools(&tools).unwrap();
        let now = Tool {
            name: "now".into(),
            description: String::new(),
            parameters: json!({"type": "object", "properties": {}}),
            strict: false,
        };
        let weather = Tool {
            name: "get_weather".into(),
            description: "Sky".into(),
            parameters,
            strict: true,
        };
        assert_eq!(parsed, [weather, now]);
        assert_eq!(parse_tools(&json!([])).unwrap(), []);
    }

    #[test]
    fn what_is_wrong_with_a_tool_is_told_by_its_field() {
        let function = |function: Value| json!([{"type": "function", "function": function}]);
        let named = |name: &str| json!({"function": {"name": name}});
        let many: Vec<_> = (0..129).map(|n| named(&format!("t{n}"))).collect();
        let cases = [
            (json!({}), "tools must be a list"),
            (json!([1]), "tools[0] must be an object"),
            (json!([{"type": "web_search"}]), "tools[0].type must be \"function\""),
            (json!([{"type": "function"}]), "tools[0].function is missing"),
            (function(json!({})), "tools[0].function.name is missing"),
            (function(json!({"name": "a b"})), "tools[0].function.name must be 1 to 64 letters"),
            (function(json!({"name": ""})), "tools[0].function.name must be 1 to 64 letters"),
            (function(json!({"name": "a".repeat(65)})), "tools[0].function.name must be 1 to 64"),
            (function(json!({"name": "a", "x": 1})), "tools[0].function.x is not supported"),
            (
                function(json!({"name": "a", "description": 1})),
                "tools[0].function.description must",
            ),
            (function(json!({"name": "a", "strict": 1})), "tools[0].function.strict must be true"),
            (function(json!({"name": "a", "parameters": []})), "tools[0].function.parameters must"),
            (
                function(json!({"name": "a", "parameters": {"type": "string"}})),
                "tools[0].function.parameters must be a schema of type object",
            ),
            (
                function(json!({"name": "a", "description": "x".repeat(20_000)})),
                "tools[0].function.description has 20000 bytes; 16384 is the most",
            ),
            (
                function(json!({"name": "a", "parameters": {"const": "x".repeat(70_000)}})),
                "tools[0].function.parameters has 70012 bytes; 65536 is the most",
            ),
            (json!([named("a"), named("a")]), "tools[1].function.name is \"a\", and so is"),
            (json!(many), "tools has 129 entries; 128 is the most"),
        ];
        for (tools, wanted) in cases {
            let error = refusal(tools);
            assert!(error.starts_with(wanted), "{error:?} is not {wanted:?}");
        }
    }

    #[test]
    fn a_choice_is_a_word_or_a_tool_that_there_is() {
        let tools = parse_tools(&json!([{"function": {"name": "a"}}])).unwrap();
        let choice = |value: Value| parse_choice(Some(&value), &tools);
        assert_eq!(parse_choice(None, &tools), Ok(ToolChoice::Auto));
        assert_eq!(parse_choice(None, &[]), Ok(ToolChoice::None));
        assert_eq!(choice(json!("none")), Ok(ToolChoice::None));
        assert_eq!(choice(json!("required")), Ok(ToolChoice::Required));
        let named = json!({"type": "function", "function": {"name": "a"}});
        assert_eq!(choice(named.clone()), Ok(ToolChoice::Named("a".into())));
        assert_eq!(parse_choice(Some(&json!("required")), &[]), Err(ToolsError::NoTools));
        let error = parse_choice(Some(&named), &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tool_choice.function.name is \"a\", and no tool has this name"
        );
        assert_eq!(error.path(), "tool_choice.function.name");
        assert!(
            choice(json!("any")).unwrap_err().to_string().starts_with("tool_choice must be none")
        );
        assert!(choice(json!({"type": "allowed_tools"})).is_err());
    }
}
