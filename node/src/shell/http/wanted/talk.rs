//! A conversation: messages, and how its template is to open the answer.

use compute::template::Message;
use serde_json::{Map, Value};

use crate::house::tools::{
    Calls, Tool, ToolChoice, ToolsError, calls_for_template, parse_choice, parse_tools,
};

use super::super::fault::{Fault, quoted};
use super::super::fields::Fields;

/// Roles of a message.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// Variables that a request may give to the template.
const VARIABLES_MAX: usize = 32;
/// Bytes of them, as JSON.
const VARIABLES_BYTES_MAX: usize = 16 << 10;

/// A conversation that is to go on.
#[derive(Debug)]
pub struct Talk {
    /// What was said, one message or more.
    pub messages: Vec<Message>,
    /// Variables for the template.
    pub variables: Map<String, Value>,
    /// How the answer begins.
    pub opening: Opening,
    /// Tools that the model is told of, and may or must call.
    pub tools: Vec<Tool>,
    /// Whether it may, or must; never [`ToolChoice::None`] where there are tools.
    pub choice: ToolChoice,
    /// How many calls one answer may have.
    pub calls: Calls,
}

/// How an answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// With the template's words for a new message of the assistant's.
    Message,
    /// With nothing: the prompt is only the messages.
    Nothing,
    /// It continues the last message, which is the assistant's.
    LastMessage,
}

impl Talk {
    /// From the fields of a request.
    pub fn take(fields: &mut Fields) -> Result<Self, Fault> {
        let messages = messages(fields)?;
        let opening = opening(fields, &messages)?;
        let variables = variables(fields)?;
        let (mut tools, choice) = tools(fields)?;
        let calls = match fields.flag("parallel_tool_calls")? {
            Some(false) => Calls::One,
            _ => Calls::Many,
        };
        // A model that must not call is best not tempted.
        if choice == ToolChoice::None {
            tools.clear();
        }
        if choice.forces() && opening != Opening::Message {
            let wanted = "none or auto where the answer does not begin a message";
            return Err(fields.wrong("tool_choice", wanted));
        }
        Ok(Self { messages, variables, opening, tools, choice, calls })
    }
}

/// The tools of a request, and whether they may or must be called.
fn tools(fields: &mut Fields) -> Result<(Vec<Tool>, ToolChoice), Fault> {
    let tools = fields.take("tools").as_ref().map_or(Ok(Vec::new()), parse_tools);
    let tools = tools.map_err(|error| refused("", &error))?;
    let choice = fields.take("tool_choice");
    let choice = match parse_choice(choice.as_ref(), &tools) {
        Ok(choice) if tools.is_empty() && !choice.forces() => ToolChoice::None,
        choice => choice.map_err(|error| refused("", &error))?,
    };
    Ok((tools, choice))
}

/// The refusal of tools or calls, in the message at `path` or, if that is empty, in the request.
pub fn refused(path: &str, error: &ToolsError) -> Fault {
    let dot = if path.is_empty() { "" } else { "." };
    let param = format!("{path}{dot}{}", error.path());
    let message = format!("{path}{dot}{error}");
    match error {
        ToolsError::Unsupported { .. } | ToolsError::Parameters { .. } => {
            Fault::unsupported(param, message)
        }
        _ => Fault::field(param, message),
    }
}

fn messages(fields: &mut Fields) -> Result<Vec<Message>, Fault> {
    let list = match fields.take("messages") {
        None => return Err(fields.missing("messages")),
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(_) => return Err(fields.wrong("messages", "an array of one or more messages")),
    };
    let each = list.into_iter().enumerate();
    each.map(|(n, value)| message(&format!("messages[{n}]"), value)).collect()
}

fn message(path: &str, value: Value) -> Result<Message, Fault> {
    let mut fields = Fields::of(path, value)?;
    let role = fields.text("role")?.ok_or_else(|| fields.missing("role"))?;
    if !ROLES.contains(&role.as_str()) {
        return Err(fields.wrong("role", &format!("one of {}", ROLES.join(", "))));
    }
    for (name, advice) in
        [("function_call", "use tool_calls"), ("audio", "only text is understood")]
    {
        if fields.take(name).is_some() {
            let name = fields.name(name);
            return Err(Fault::unsupported(&name, format!("{name} is not supported; {advice}")));
        }
    }
    let tool_calls = tool_calls(&mut fields, path, &role)?;
    let tool_call_id = fields.text("tool_call_id")?;
    if role == "tool" && tool_call_id.is_none() {
        return Err(fields.missing("tool_call_id"));
    }
    let content = match fields.take("content") {
        None if tool_calls.is_some() => String::new(),
        None => return Err(fields.missing("content")),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => joined(&fields.name("content"), parts)?,
        Some(_) => return Err(fields.wrong("content", "a string or an array of text parts")),
    };
    // Templates know `system`; `developer` is a newer word for the same.
    let role = if role == "developer" { "system".into() } else { role };
    let name = fields.text("name")?;
    let reasoning_content = fields.text("reasoning_content")?;
    Ok(Message { role, content, name, tool_calls, tool_call_id, reasoning_content })
}

/// The text of a message that comes in parts.
fn joined(path: &str, parts: Vec<Value>) -> Result<String, Fault> {
    let mut whole = String::new();
    for (n, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::of(&format!("{path}[{n}]"), part)?;
        let kind = fields.text("type")?.ok_or_else(|| fields.missing("type"))?;
        if kind != "text" {
            let message =
                format!("{} is {}, and only text is supported", fields.name("type"), quoted(&kind));
            return Err(Fault::unsupported(fields.name("type"), message));
        }
        whole.push_str(&fields.text("text")?.ok_or_else(|| fields.missing("text"))?);
    }
    Ok(whole)
}

fn variables(fields: &mut Fields) -> Result<Map<String, Value>, Fault> {
    const NAME: &str = "chat_template_kwargs";
    match fields.take(NAME) {
        None => Ok(Map::new()),
        Some(Value::Object(map)) => {
            let bytes = serde_json::to_string(&map).map_or(usize::MAX, |text| text.len());
            match map.len() <= VARIABLES_MAX && bytes <= VARIABLES_BYTES_MAX {
                true => Ok(map),
                false => {
                    let wanted = format!(
                        "an object of at most {VARIABLES_MAX} members and {VARIABLES_BYTES_MAX} bytes"
                    );
                    Err(fields.wrong(NAME, &wanted))
                }
            }
        }
        Some(_) => Err(fields.wrong(NAME, "an object")),
    }
}

fn opening(fields: &mut Fields, messages: &[Message]) -> Result<Opening, Fault> {
    const CONTINUED: &str = "continue_final_message";
    let opens = fields.flag("add_generation_prompt")?;
    match fields.flag(CONTINUED)? {
        Some(true) if opens == Some(true) => {
            Err(fields.wrong(CONTINUED, "false where add_generation_prompt is true"))
        }
        Some(true) => match messages.last() {
            Some(last) if last.role == "assistant" && !last.content.trim().is_empty() => {
                Ok(Opening::LastMessage)
            }
            _ => {
                Err(fields.wrong(CONTINUED, "false unless the last message is an assistant's text"))
            }
        },
        _ if opens == Some(false) => Ok(Opening::Nothing),
        _ => Ok(Opening::Message),
    }
}

/// The calls that an assistant made.
fn tool_calls(fields: &mut Fields, path: &str, role: &str) -> Result<Option<Value>, Fault> {
    match fields.take("tool_calls") {
        None => Ok(None),
        Some(Value::Array(list)) if list.is_empty() => Ok(None),
        Some(Value::Array(_)) if role != "assistant" => {
            Err(fields.wrong("tool_calls", "absent unless the role is assistant"))
        }
        Some(calls) => calls_for_template(&calls).map(Some).map_err(|error| refused(path, &error)),
    }
}
