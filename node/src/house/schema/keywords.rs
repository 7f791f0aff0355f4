//! What the words of a schema are.

/// Formats of strings that the grammar library enforces.
pub(super) const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// The types of JSON.
pub(super) const TYPES: [&str; 7] =
    ["null", "boolean", "integer", "number", "string", "array", "object"];

/// What a keyword holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// Nothing that an answer must keep to.
    Note,
    /// A schema.
    Schema,
    /// A list of schemas.
    Schemas,
    /// Schemas by name.
    Named,
    /// A number.
    Number,
    /// How many there may be or must be.
    Count,
    /// Text.
    Text,
    /// Something of its own kind, for which there is a function.
    Own,
    /// Nothing if it is false; or else it cannot be enforced.
    Off,
}

/// What `keyword` holds; `None` where it is not known or cannot be enforced.
pub(super) fn holds(keyword: &str) -> Option<Holds> {
    let holds =
        match keyword {
            "title" | "description" | "default" | "examples" | "example" | "deprecated"
            | "readOnly" | "writeOnly" | "$comment" | "$schema" | "$anchor" | "$vocabulary"
            | "contentMediaType" | "contentEncoding" | "discriminator" | "$defs"
            | "definitions" => Holds::Note,
            "additionalProperties" | "items" => Holds::Schema,
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => Holds::Schemas,
            "properties" | "patternProperties" => Holds::Named,
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
                Holds::Number
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => Holds::Count,
            "pattern" => Holds::Text,
            "type" | "const" | "enum" | "required" | "format" | "$ref" | "$id" | "id" => Holds::Own,
            "uniqueItems" | "nullable" => Holds::Off,
            vendor if vendor.starts_with("x-") => Holds::Note,
            _ => return None,
        };
    Some(holds)
}
