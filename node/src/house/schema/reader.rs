//! Reads a schema once: everything in it is known, bounded, and written in one way.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::keywords::{FORMATS, Holds, TYPES, holds};
use super::{
    SCHEMA_COUNT_MAX, SCHEMA_DEPTH_MAX, SCHEMA_PARTS_MAX, SCHEMA_REFERENCES_MAX, SchemaError,
};

/// Below this every whole number is a float of its own; the grammar knows numbers as floats.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Most patterns of property names in a schema.
const PATTERNS_MAX: usize = 32;

/// The checked form of `schema`: what it refers to stands in its `$defs`.
pub(super) fn read(schema: &Value) -> Result<Map<String, Value>, SchemaError> {
    let mut reader = Reader {
        root: schema,
        places: BTreeMap::new(),
        waiting: Vec::new(),
        parts: 0,
        patterns: 0,
        combines: false,
    };
    let Value::Object(mut map) = reader.schema(schema, &Path::root(""))? else {
        return Err(SchemaError::Wrong { path: "schema".to_owned(), wanted: "an object" });
    };
    let mut definitions = Map::new();
    let mut next = 0;
    while let Some((reference, target)) = reader.waiting.get(next).cloned() {
        let definition = reader.schema(target, &Path::root(&reference))?;
        definitions.insert(name(next), definition);
        next += 1;
    }
    // Any two patterns are compared, wherever schemas are combined once more.
    if reader.patterns > PATTERNS_MAX || (reader.patterns > 1 && reader.combines) {
        return Err(SchemaError::Patterns { count: reader.patterns });
    }
    for (at, (reference, _)) in reader.waiting.iter().enumerate() {
        if circular(&definitions, &name(at)) {
            return Err(SchemaError::Circular { reference: reference.clone() });
        }
    }
    if !definitions.is_empty() {
        map.insert("$defs".to_owned(), Value::Object(definitions));
    }
    Ok(map)
}

/// Where we are, and how deep that is.
struct Path {
    text: String,
    depth: usize,
}

impl Path {
    fn root(text: &str) -> Self {
        Self { text: text.to_owned(), depth: 0 }
    }

    fn at(&self, key: &str) -> String {
        match self.text.is_empty() {
            true => key.to_owned(),
            false => format!("{}.{key}", self.text),
        }
    }

    fn below(&self, key: &str) -> Result<Self, SchemaError> {
        self.deeper(self.at(key))
    }

    fn item(&self, index: usize) -> Result<Self, SchemaError> {
        self.deeper(format!("{}[{index}]", self.text))
    }

    fn deeper(&self, text: String) -> Result<Self, SchemaError> {
        match self.depth < SCHEMA_DEPTH_MAX {
            true => Ok(Self { text, depth: self.depth + 1 }),
            false => Err(SchemaError::TooDeep { path: text }),
        }
    }

    fn wrong(&self, key: &str, wanted: &'static str) -> SchemaError {
        SchemaError::Wrong { path: self.at(key), wanted }
    }
}

struct Reader<'a> {
    root: &'a Value,
    /// Which definition a reference became.
    places: BTreeMap<String, usize>,
    /// What was referred to, in the order of its first mention.
    waiting: Vec<(String, &'a Value)>,
    parts: usize,
    /// Patterns of property names.
    patterns: usize,
    /// Whether schemas are laid over each other.
    combines: bool,
}

impl<'a> Reader<'a> {
    fn schema(&mut self, schema: &'a Value, path: &Path) -> Result<Value, SchemaError> {
        self.parts += 1;
        if self.parts > SCHEMA_PARTS_MAX {
            return Err(SchemaError::TooManyParts);
        }
        let map = match schema {
            Value::Bool(flag) => return Ok(Value::Bool(*flag)),
            Value::Object(map) => map,
            _ => {
                let path = if path.text.is_empty() { "schema" } else { &path.text };
                let wanted = "a schema: an object, true or false";
                return Err(SchemaError::Wrong { path: path.to_owned(), wanted });
            }
        };
        let laid = |key: &&str| map.contains_key(*key);
        let refers = map.contains_key("$ref") && map.len() > 1;
        self.combines |= refers || ["allOf", "anyOf", "oneOf"].iter().any(laid);
        let patterns = map.get("patternProperties").and_then(Value::as_object);
        self.patterns += patterns.map_or(0, Map::len);
        let mut out = Map::new();
        for (key, value) in map {
            match (key.as_str(), value) {
                // The old way to say prefixItems; additionalItems are the items that follow it.
                ("items", Value::Array(_)) if map.contains_key("prefixItems") => {
                    return Err(path.wrong("items", "a schema, since there are prefixItems"));
                }
                ("items", Value::Array(list)) => {
                    out.insert("prefixItems".to_owned(), self.list(key, list, path)?);
                    if let Some(rest) = map.get("additionalItems") {
                        let rest = self.schema(rest, &path.below("additionalItems")?)?;
                        out.insert("items".to_owned(), rest);
                    }
                }
                ("additionalItems", _) => {}
                _ => {
                    if let Some(value) = self.keyword(key, value, map, path)? {
                        out.insert(key.clone(), value);
                    }
                }
            }
        }
        Ok(Value::Object(out))
    }

    /// What remains of one keyword; nothing where an answer need not keep to it.
    fn keyword(
        &mut self,
        key: &str,
        value: &'a Value,
        map: &Map<String, Value>,
        path: &Path,
    ) -> Result<Option<Value>, SchemaError> {
        let unsupported =
            || Err(SchemaError::Unsupported { path: path.at(key), keyword: key.to_owned() });
        let kept = match holds(key) {
            None => return unsupported(),
            Some(Holds::Off) if *value != Value::Bool(false) => return unsupported(),
            Some(Holds::Note | Holds::Off) => return Ok(None),
            Some(Holds::Schema) => self.schema(value, &path.below(key)?)?,
            Some(Holds::Schemas) => match value {
                Value::Array(list) => self.list(key, list, path)?,
                _ => return Err(path.wrong(key, "a list of schemas")),
            },
            Some(Holds::Named) => self.named(key, value, path)?,
            Some(Holds::Number) => number(key, value, path)?,
            Some(Holds::Count) => match value.as_u64() {
                Some(count) if count <= SCHEMA_COUNT_MAX => json!(count),
                _ => return Err(path.wrong(key, "a whole number from 0 to 10,000")),
            },
            Some(Holds::Text) if value.is_string() => value.clone(),
            Some(Holds::Text) => return Err(path.wrong(key, "a string")),
            Some(Holds::Own) => return self.own(key, value, map, path),
        };
        Ok(Some(kept))
    }

    fn own(
        &mut self,
        key: &str,
        value: &'a Value,
        map: &Map<String, Value>,
        path: &Path,
    ) -> Result<Option<Value>, SchemaError> {
        match key {
            // References are resolved from the root, which an id further down would move.
            "$id" | "id" if matches!(path.text.as_str(), "" | "#") => return Ok(None),
            "type" => kinds(value, path)?,
            "const" => constant(value, &path.below(key)?)?,
            "enum" => match value.as_array() {
                Some(list) if !list.is_empty() => constant(value, &path.below(key)?)?,
                _ => return Err(path.wrong(key, "a list of one value or more")),
            },
            "required" => {
                let names = value.as_array().filter(|list| list.iter().all(Value::is_string));
                names.ok_or_else(|| path.wrong(key, "a list of names"))?;
            }
            "format" => return format(value, map.get("type"), path),
            "$ref" => return self.reference(value, path).map(Some),
            _ => {
                let (path, keyword) = (path.at(key), key.to_owned());
                return Err(SchemaError::Unsupported { path, keyword });
            }
        }
        Ok(Some(value.clone()))
    }

    fn list(&mut self, key: &str, list: &'a [Value], path: &Path) -> Result<Value, SchemaError> {
        if list.is_empty() {
            return Err(path.wrong(key, "a list of one schema or more"));
        }
        let path = path.below(key)?;
        let read = list.iter().enumerate().map(|(n, item)| self.schema(item, &path.item(n)?));
        read.collect::<Result<Vec<_>, _>>().map(Value::Array)
    }

    fn named(&mut self, key: &str, value: &'a Value, path: &Path) -> Result<Value, SchemaError> {
        let Value::Object(map) = value else {
            return Err(path.wrong(key, "an object of schemas"));
        };
        let path = path.below(key)?;
        let read = map
            .iter()
            .map(|(name, schema)| Ok((name.clone(), self.schema(schema, &path.below(name)?)?)));
        read.collect::<Result<Map<_, _>, _>>().map(Value::Object)
    }

    fn reference(&mut self, value: &Value, path: &Path) -> Result<Value, SchemaError> {
        let reference = value.as_str().ok_or_else(|| path.wrong("$ref", "a string"))?;
        let place = match self.places.get(reference) {
            Some(place) => *place,
            None => {
                let found = find(self.root, reference).ok_or_else(|| SchemaError::Reference {
                    path: path.at("$ref"),
                    reference: reference.to_owned(),
                })?;
                let place = self.waiting.len();
                if place == SCHEMA_REFERENCES_MAX {
                    return Err(SchemaError::TooManyReferences);
                }
                self.places.insert(reference.to_owned(), place);
                self.waiting.push((reference.to_owned(), found));
                place
            }
        };
        Ok(Value::String(format!("#/$defs/{}", name(place))))
    }
}

/// The name that definition `place` goes by.
fn name(place: usize) -> String {
    format!("r{place}")
}

/// What `reference` refers to, a JSON pointer in a URL's fragment.
fn find<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(&percent_decoded(reference.strip_prefix('#')?)?)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            _ => byte,
        };
        bytes.push(decoded);
    }
    String::from_utf8(bytes).ok()
}

/// Whether definition `start` leads back to itself through places that take no text.
fn circular(definitions: &Map<String, Value>, start: &str) -> bool {
    let mut seen = Vec::new();
    let mut open = Vec::new();
    in_place(&definitions[start], &mut open);
    while let Some(next) = open.pop() {
        if next == start {
            return true;
        }
        if !seen.contains(&next) {
            in_place(&definitions[next], &mut open);
            seen.push(next);
        }
    }
    false
}

/// The definitions that `schema` stands for, or may stand for, itself.
fn in_place<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        found.extend(reference.strip_prefix("#/$defs/"));
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
            in_place(part, found);
        }
    }
}

fn kinds(value: &Value, path: &Path) -> Result<(), SchemaError> {
    let known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
    let fine = match value {
        Value::Array(list) => !list.is_empty() && list.iter().all(known),
        one => known(one),
    };
    let wanted = "null, boolean, integer, number, string, array or object, or a list of these";
    fine.then_some(()).ok_or_else(|| path.wrong("type", wanted))
}

fn number(key: &str, value: &Value, path: &Path) -> Result<Value, SchemaError> {
    match value.as_f64() {
        Some(number) if key == "multipleOf" && (1e-6..=1e6).contains(&number.abs()) => {}
        Some(_) if key == "multipleOf" => {
            return Err(path.wrong(key, "a number from 0.000001 to 1000000"));
        }
        Some(number) if number.abs() < EXACT_MAX => {}
        // Before 2019 these said how the other bound is meant.
        None if key.starts_with("exclusive") && value.is_boolean() => {}
        _ => return Err(path.wrong(key, "a number within 2^53 of zero, or it cannot be kept to")),
    }
    Ok(value.clone())
}

/// Checks that a constant can be told from its neighbours.
fn constant(value: &Value, path: &Path) -> Result<(), SchemaError> {
    match value {
        Value::Number(number) if number.as_f64().is_none_or(|n| n.abs() >= EXACT_MAX) => {
            let wanted = "made of numbers within 2^53 of zero, or it cannot be kept to";
            Err(SchemaError::Wrong { path: path.text.clone(), wanted })
        }
        Value::Array(list) => {
            list.iter().enumerate().try_for_each(|(n, item)| constant(item, &path.item(n)?))
        }
        Value::Object(map) => {
            map.iter().try_for_each(|(key, value)| constant(value, &path.below(key)?))
        }
        _ => Ok(()),
    }
}

/// A format counts for strings only; `int32` and its like are notes on numbers.
fn format(value: &Value, kind: Option<&Value>, path: &Path) -> Result<Option<Value>, SchemaError> {
    let format = value.as_str().ok_or_else(|| path.wrong("format", "a string"))?;
    let for_strings = match kind {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        Some(kind) => kind == "string",
    };
    match for_strings {
        false => Ok(None),
        true if FORMATS.contains(&format) => Ok(Some(value.clone())),
        true => Err(SchemaError::UnknownFormat {
            path: path.at("format"),
            format: format.chars().take(60).collect(),
        }),
    }
}
