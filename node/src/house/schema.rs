//! JSON schemas of strangers, checked and put into the form that a grammar is made of.
//!
//! `Schema::parse` takes what a client sent as `response_format.json_schema.schema` or as
//! `tools[0].function.parameters`. What it gives says the same, with every reference resolved into
//! `$defs`, annotations left out, and nothing in it that the grammar would pass over: a keyword
//! that cannot be enforced is refused by name.
//!
//! **Invariant:** size, depth and counts are bounded, and no reference leads out of the schema.

mod exclusive;
mod keywords;
mod reader;

use serde_json::{Map, Value, json};
use thiserror::Error;

use self::keywords::FORMATS;

/// Most bytes of a schema as compact JSON.
pub const SCHEMA_BYTES_MAX: usize = 128 << 10;

/// Most levels of objects and arrays, from a schema or from what it refers to.
pub const SCHEMA_DEPTH_MAX: usize = 64;

/// Most schemas within a schema, itself among them; each referenced one counts once.
pub const SCHEMA_PARTS_MAX: usize = 2048;

/// Most different references.
pub const SCHEMA_REFERENCES_MAX: usize = 256;

/// Most that a length, or a count of items or properties may be bounded by.
pub const SCHEMA_COUNT_MAX: u64 = 10_000;

/// Why a schema is refused. Paths are relative to the schema: `properties.city.minLength`.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum SchemaError {
    /// It has too many bytes.
    #[error("the schema has {bytes} bytes; {SCHEMA_BYTES_MAX} is the most that is taken")]
    TooLarge {
        /// How many it has.
        bytes: usize,
    },
    /// It nests too deeply.
    #[error("the schema nests deeper than {SCHEMA_DEPTH_MAX} levels at {path}")]
    TooDeep {
        /// Where.
        path: String,
    },
    /// It has too many parts.
    #[error("the schema has more than {SCHEMA_PARTS_MAX} parts")]
    TooManyParts,
    /// It has too many references.
    #[error("the schema has more than {SCHEMA_REFERENCES_MAX} different references")]
    TooManyReferences,
    /// It has too many patterns of property names.
    #[error(
        "the schema has {count} patternProperties; 32 are the most that are taken, and 1 where \
         allOf, anyOf, oneOf or $ref combine schemas"
    )]
    Patterns {
        /// How many it has.
        count: usize,
    },
    /// A keyword that cannot be enforced.
    #[error("{path} cannot be enforced: {keyword} is not supported; leave it out")]
    Unsupported {
        /// Where, the keyword included.
        path: String,
        /// The keyword.
        keyword: String,
    },
    /// A format of strings that is not known.
    #[error("{path} cannot be enforced: the format {format:?} is not known; known are {known}",
        known = FORMATS.join(", "))]
    UnknownFormat {
        /// Where.
        path: String,
        /// The format.
        format: String,
    },
    /// A value of the wrong kind.
    #[error("{path} must be {wanted}")]
    Wrong {
        /// Where.
        path: String,
        /// What belongs there.
        wanted: &'static str,
    },
    /// A reference that leads nowhere, or out of the schema.
    #[error(
        "{path} is {reference:?}, which is not in the schema; only references such as \
         #/$defs/name are followed"
    )]
    Reference {
        /// Where.
        path: String,
        /// What it refers to.
        reference: String,
    },
    /// A schema that is defined as itself.
    #[error("{reference} is defined by itself alone, so it says nothing")]
    Circular {
        /// The reference.
        reference: String,
    },
    /// Alternatives that may hold at the same time.
    #[error(
        "{path} cannot be enforced: two of its schemas may hold at once; give each a required \
         property with a constant of its own, or use anyOf"
    )]
    Overlap {
        /// Where.
        path: String,
    },
}

impl SchemaError {
    /// Where in the schema it is; empty where it is about the whole.
    pub fn path(&self) -> &str {
        match self {
            SchemaError::TooDeep { path }
            | SchemaError::Unsupported { path, .. }
            | SchemaError::UnknownFormat { path, .. }
            | SchemaError::Wrong { path, .. }
            | SchemaError::Reference { path, .. }
            | SchemaError::Overlap { path } => path,
            SchemaError::TooLarge { .. }
            | SchemaError::TooManyParts
            | SchemaError::Patterns { .. }
            | SchemaError::TooManyReferences
            | SchemaError::Circular { .. } => "",
        }
    }
}

/// A schema that can be enforced, as far as its form tells.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    map: Map<String, Value>,
}

impl Schema {
    /// Checks `schema`.
    pub fn parse(schema: &Value) -> Result<Self, SchemaError> {
        let bytes = schema.to_string().len();
        if bytes > SCHEMA_BYTES_MAX {
            return Err(SchemaError::TooLarge { bytes });
        }
        let map = reader::read(schema)?;
        Ok(Self { map: exclusive::settle(map)? })
    }

    /// Any JSON object.
    pub fn any_object() -> Self {
        let Value::Object(map) = json!({"type": "object"}) else { unreachable!("an object") };
        Self { map }
    }

    /// The same schema for objects alone; refused where it is for something else.
    pub fn into_object(mut self) -> Result<Self, SchemaError> {
        match self.map.get("type") {
            None => {
                self.map.insert("type".to_owned(), json!("object"));
                Ok(self)
            }
            Some(Value::String(kind)) if kind == "object" => Ok(self),
            Some(_) => Err(SchemaError::Wrong { path: "type".to_owned(), wanted: "\"object\"" }),
        }
    }

    /// The schema as the grammar library takes it, with what it is to do about white space and
    /// escapes.
    ///
    /// White space is one space or one new line with its indentation: a model that is free to
    /// write more of it may write nothing else any more. Letters are not escaped by number, so
    /// that no key can be written in two ways and thereby come twice.
    pub fn guided(&self) -> Value {
        let mut map = self.map.clone();
        let how = json!({
            "whitespace_pattern": r"\x20|\r?\n[\x20\t]{0,40}",
            "json_allowed_escapes": "nrbtf\\\"",
        });
        map.insert("x-guidance".to_owned(), how);
        Value::Object(map)
    }
}

#[cfg(test)]
mod tests;
