//! `oneOf` asks that exactly one of its schemas holds, which a grammar cannot count. Where any two
//! of them exclude each other it says the same as `anyOf`, and that is what it becomes.

use serde_json::{Map, Value, json};

use super::SchemaError;
use super::keywords::{Holds, holds};

/// Most schemas in one `oneOf`: each pair of them is compared.
const BRANCHES_MAX: usize = 128;

/// How deep two schemas are compared.
const LEVELS: usize = 8;

/// Turns each `oneOf` in `map` into `anyOf`, or refuses it.
pub(super) fn settle(map: Map<String, Value>) -> Result<Map<String, Value>, SchemaError> {
    let definitions = match map.get("$defs") {
        Some(Value::Object(definitions)) => definitions.clone(),
        _ => Map::new(),
    };
    Prover { definitions: &definitions }.map(map, "")
}

/// The types of JSON, one bit each; whole numbers are numbers.
const ALL: u8 = 0b11_1111;
const OBJECT: u8 = 0b10_0000;

fn kind_bit(name: &str) -> u8 {
    match name {
        "null" => 0b1,
        "boolean" => 0b10,
        "integer" | "number" => 0b100,
        "string" => 0b1000,
        "array" => 0b1_0000,
        _ => OBJECT,
    }
}

fn kind_of(value: &Value) -> u8 {
    kind_bit(match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    })
}

struct Prover<'a> {
    definitions: &'a Map<String, Value>,
}

impl<'a> Prover<'a> {
    fn map(&self, map: Map<String, Value>, path: &str) -> Result<Map<String, Value>, SchemaError> {
        let within = kinds(&map);
        let has_any = map.contains_key("anyOf");
        let mut out = Map::new();
        // What must hold besides anyOf, where both were there.
        let mut also = None;
        for (key, value) in map {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if key != "oneOf" {
                let settled = self.held(&key, value, &path)?;
                out.insert(key, settled);
                continue;
            }
            if !self.exclude_each_other(&value, within) {
                return Err(SchemaError::Overlap { path });
            }
            let settled = self.part(value, &path)?;
            match has_any {
                false => drop(out.insert("anyOf".to_owned(), settled)),
                true => also = Some(json!({ "anyOf": settled })),
            }
        }
        if let Some(also) = also {
            let all = out.entry("allOf").or_insert_with(|| json!([]));
            all.as_array_mut().expect("a list, as was read").push(also);
        }
        Ok(out)
    }

    /// What the keyword `key` holds.
    fn held(&self, key: &str, value: Value, path: &str) -> Result<Value, SchemaError> {
        let named = key == "$defs" || holds(key) == Some(Holds::Named);
        match value {
            Value::Object(map) if named => {
                let settled = map.into_iter().map(|(name, schema)| {
                    let schema = self.part(schema, &format!("{path}.{name}"))?;
                    Ok((name, schema))
                });
                settled.collect::<Result<_, _>>().map(Value::Object)
            }
            value if matches!(holds(key), Some(Holds::Schema | Holds::Schemas)) => {
                self.part(value, path)
            }
            other => Ok(other),
        }
    }

    /// A schema, or a list of them.
    fn part(&self, value: Value, path: &str) -> Result<Value, SchemaError> {
        match value {
            Value::Object(map) => self.map(map, path).map(Value::Object),
            Value::Array(list) => {
                let items = list.into_iter().enumerate();
                let settled = items.map(|(n, item)| self.part(item, &format!("{path}[{n}]")));
                settled.collect::<Result<_, _>>().map(Value::Array)
            }
            other => Ok(other),
        }
    }

    /// Whether any two of `branches` do, where only the types `within` are at issue.
    fn exclude_each_other(&self, branches: &Value, within: u8) -> bool {
        let Some(list) = branches.as_array().filter(|list| list.len() <= BRANCHES_MAX) else {
            return false;
        };
        list.iter().enumerate().all(|(n, a)| {
            list[n + 1..].iter().all(|b| self.disjoint(a, b, Level { within, left: LEVELS }))
        })
    }

    /// Whether nothing can be both `a` and `b`. False where that is not plain to see.
    fn disjoint(&self, a: &Value, b: &Value, level: Level) -> bool {
        let (Some(left), Some(a), Some(b)) =
            (level.left.checked_sub(1), self.resolved(a), self.resolved(b))
        else {
            return false;
        };
        let common = kinds(a) & kinds(b) & level.within;
        if common == 0 {
            return true;
        }
        if let (Some(a), Some(b)) = (constants(a), constants(b)) {
            return !a.iter().any(|a| b.iter().any(|b| same(a, b)));
        }
        // What must be there in one of them, and cannot be the same in both.
        let apart = |key: &str| match (property(a, key), property(b, key)) {
            (Some(a), Some(b)) => self.disjoint(a, b, Level { within: ALL, left }),
            _ => false,
        };
        common == OBJECT && required(a).chain(required(b)).any(apart)
    }

    /// A schema, or what it refers to if it does nothing else. `None` if it allows all or nothing.
    fn resolved<'v>(&self, mut schema: &'v Value) -> Option<&'v Map<String, Value>>
    where
        'a: 'v,
    {
        for _ in 0..LEVELS {
            let map = schema.as_object()?;
            let reference = map.get("$ref").and_then(Value::as_str);
            let name = reference.and_then(|reference| reference.strip_prefix("#/$defs/"));
            match name.and_then(|name| self.definitions.get(name)) {
                Some(target) if map.len() == 1 => schema = target,
                _ => return Some(map),
            }
        }
        None
    }
}

/// How far two schemas are still compared.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// Types that are at issue.
    within: u8,
    left: usize,
}

/// The types that may satisfy `schema`, and perhaps more.
fn kinds(schema: &Map<String, Value>) -> u8 {
    let named = |kind: &Value| kind.as_str().map_or(ALL, kind_bit);
    let any = |bits: &mut dyn Iterator<Item = u8>| bits.fold(0, |all, bit| all | bit);
    match schema.get("type") {
        Some(Value::Array(list)) => any(&mut list.iter().map(named)),
        Some(kind) => named(kind),
        None => constants(schema)
            .map_or(ALL, |values| any(&mut values.iter().map(|value| kind_of(value)))),
    }
}

fn property<'v>(schema: &'v Map<String, Value>, key: &str) -> Option<&'v Value> {
    schema.get("properties")?.get(key)
}

/// The only values that satisfy `schema`, where it lists them.
fn constants(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(list))) => Some(list.iter().collect()),
        _ => None,
    }
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn required(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}
