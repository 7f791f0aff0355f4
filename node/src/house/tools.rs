//! Tools that a model may call: what a client says of them, how each family of models writes a
//! call, and how calls are found in an answer.
//!
//! 1. [`ToolFormat::of_template`] tells from a chat template how its model writes calls; `None`
//!    where the template knows no tools, and `tools` in a request are to be refused.
//! 2. [`parse_tools`] and [`parse_choice`] check a request's `tools` and `tool_choice`;
//!    [`calls_for_template`] makes an earlier message's `tool_calls` what templates want.
//! 3. Where the model must call ([`ToolChoice::forces`]), [`ToolFormat::grammar`] gives the grammar
//!    of the answer, to be parsed in the format [`ToolFormat::forced`].
//! 4. [`ToolParser`] turns the answer's text into text and calls. The answer has to be decoded by
//!    `Tokenizer::continuation_showing`, with the tokens that [`ToolFormat::markers`] are in the
//!    vocabulary, or the marks of calls never get here.
//!
//! **Invariant:** what clients and models write is bounded, and errors name the field.

mod detect;
mod format;
mod grammar;
mod history;
mod object_end;
mod parser;
mod request;

pub use format::{ToolFormat, call_id};
pub use grammar::Calls;
pub use history::calls_for_template;
pub use parser::{ToolParser, ToolPart};
pub use request::{Tool, ToolChoice, ToolsError, parse_choice, parse_tools};
