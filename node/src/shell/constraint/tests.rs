use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use compute::gguf::{Gguf, Metadata, Value as Field};
use compute::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::*;
use crate::house::tools::{
    Calls, ToolChoice, ToolFormat, ToolParser, ToolPart, parse_choice, parse_tools,
};

const CALL: u32 = 262;
const CALL_END: u32 = 263;
const TOOL_CALLS: u32 = 264;

/// Bytes, the special tokens of ChatML and of calls, and some longer pieces.
fn tokenizer() -> Tokenizer {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100u32..;
    let mut letter = |byte| if printable(byte) { byte } else { others.next().unwrap() };
    let letters = (0..256).map(|byte| char::from_u32(letter(byte)).unwrap().to_string());
    let mut tokens: Vec<String> = letters.collect();
    let mut kinds = vec![1; 256];
    let special = [
        ("<|endoftext|>", 3),
        ("<|im_start|>", 3),
        ("<|im_end|>", 3),
        ("<unk>", 2),
        ("<unused>", 5),
        ("<|python_tag|>", 3),
        ("<tool_call>", 4),
        ("</tool_call>", 4),
        ("[TOOL_CALLS]", 3),
        ("[ARGS]", 3),
    ];
    let pieces =
        ["{\"", "\":", "\",", "\"}", "Ġ\"", "}}", "true", "name", "ĊĊ", "Ã©", "12", "0.5", "]}"];
    for (text, kind) in special.into_iter().chain(pieces.map(|piece| (piece, 1))) {
        tokens.push(text.to_owned());
        kinds.push(kind);
    }
    let pairs = [
        ("tokenizer.ggml.model", Field::String("gpt2".into())),
        ("tokenizer.ggml.pre", Field::String("gpt-2".into())),
        ("tokenizer.ggml.tokens", Field::Strings(tokens)),
        ("tokenizer.ggml.token_type", Field::Integers(kinds)),
        ("tokenizer.ggml.merges", Field::Strings(Vec::new())),
        ("tokenizer.ggml.eos_token_id", Field::Unsigned(258)),
    ];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value));
    Tokenizer::from_metadata(&Metadata::from_pairs(pairs)).unwrap().unwrap()
}

fn factory() -> ConstraintFactory {
    ConstraintFactory::new(&tokenizer()).unwrap()
}

/// Marsaglia's xorshift.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The token with the highest logit.
fn best(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    assert!(best.1.is_finite(), "nothing is left");
    best.0 as u32
}

/// An answer of a model that says anything, though it likes to end what it has begun.
fn answer(tokenizer: &Tokenizer, constraint: &mut Constraint, seed: u64) -> Vec<u32> {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut ids = Vec::new();
    while !constraint.is_complete() {
        assert!(ids.len() < 3000, "seed {seed} does not end: {:?}", tokenizer.decode(&ids));
        let mut logits: Vec<f32> = (0..tokenizer.vocabulary() + 5)
            .map(|id| {
                let ends = matches!(tokenizer.piece(id as u32), b"\"" | b"}" | b"]" | b"e")
                    || tokenizer.is_end(id as u32);
                (dice.roll() % 1000) as f32 + if ends { 300.0 } else { 0.0 }
            })
            .collect();
        constraint.mask(&mut logits).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let id = best(&logits);
        constraint.accept(id).unwrap();
        if tokenizer.is_end(id) {
            break;
        }
        ids.push(id);
    }
    ids
}

fn bytes(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| tokenizer.piece(*id)).copied().collect();
    String::from_utf8(bytes).expect("constrained text is UTF-8")
}

/// Whether `value` satisfies `schema`, by the words of the standard.
fn satisfies(schema: &Value, root: &Value, value: &Value) -> bool {
    let Value::Object(map) = schema else { return schema == &json!(true) };
    map.iter().all(|(key, wanted)| {
        let number = |value: &Value| value.as_f64().unwrap();
        let count = || wanted.as_u64().unwrap() as usize;
        let sub = |schema: &Value, value: &Value| satisfies(schema, root, value);
        let of = |key: &str| map.get(key);
        match key.as_str() {
            "$ref" => {
                let target = root.pointer(&wanted.as_str().unwrap()[1..]).unwrap();
                sub(target, value)
            }
            "type" => {
                let is = |kind: &Value| match kind.as_str().unwrap() {
                    "null" => value.is_null(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
                    "number" => value.is_number(),
                    "string" => value.is_string(),
                    "array" => value.is_array(),
                    _ => value.is_object(),
                };
                wanted.as_array().map_or_else(|| is(wanted), |kinds| kinds.iter().any(is))
            }
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "anyOf" => wanted.as_array().unwrap().iter().any(|schema| sub(schema, value)),
            "allOf" => wanted.as_array().unwrap().iter().all(|schema| sub(schema, value)),
            "oneOf" => {
                wanted.as_array().unwrap().iter().filter(|schema| sub(schema, value)).count() == 1
            }
            "properties" => value.as_object().is_none_or(|object| {
                let all = wanted.as_object().unwrap();
                all.iter().all(|(name, schema)| object.get(name).is_none_or(|v| sub(schema, v)))
            }),
            "additionalProperties" => value.as_object().is_none_or(|object| {
                let known = of("properties").and_then(Value::as_object);
                let named = |name: &String| known.is_some_and(|known| known.contains_key(name));
                object.iter().all(|(name, value)| named(name) || sub(wanted, value))
            }),
            "required" => value.as_object().is_none_or(|object| {
                let names = wanted.as_array().unwrap();
                names.iter().all(|name| object.contains_key(name.as_str().unwrap()))
            }),
            "prefixItems" => value.as_array().is_none_or(|list| {
                list.iter().zip(wanted.as_array().unwrap()).all(|(v, schema)| sub(schema, v))
            }),
            "items" => value.as_array().is_none_or(|list| {
                let first = of("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                list.iter().skip(first).all(|value| sub(wanted, value))
            }),
            "minItems" => value.as_array().is_none_or(|list| list.len() >= count()),
            "maxItems" => value.as_array().is_none_or(|list| list.len() <= count()),
            "minProperties" => value.as_object().is_none_or(|object| object.len() >= count()),
            "maxProperties" => value.as_object().is_none_or(|object| object.len() <= count()),
            "minLength" => value.as_str().is_none_or(|text| text.chars().count() >= count()),
            "maxLength" => value.as_str().is_none_or(|text| text.chars().count() <= count()),
            "minimum" => value.as_f64().is_none_or(|n| n >= number(wanted)),
            "maximum" => value.as_f64().is_none_or(|n| n <= number(wanted)),
            "exclusiveMinimum" => value.as_f64().is_none_or(|n| n > number(wanted)),
            "exclusiveMaximum" => value.as_f64().is_none_or(|n| n < number(wanted)),
            "multipleOf" => value.as_f64().is_none_or(|n| (n / number(wanted)).fract() == 0.0),
            // These are looked at by tests of their own.
            "pattern" | "format" | "$defs" | "title" => true,
            other => panic!("the test does not know {other}"),
        }
    })
}

fn schemas() -> Vec<Value> {
    vec![
        json!({"enum": ["red", "grün", "蓝", 3, null, {"a": [1]}, "say \"hi\"\n"]}),
        json!({"type": "object", "additionalProperties": false, "required": ["name", "age"],
            "properties": {"name": {"type": "string", "minLength": 2, "maxLength": 5},
                "age": {"type": "integer", "minimum": 18, "maximum": 120},
                "tag": {"type": ["string", "null"], "maxLength": 3}}}),
        // More may be there, but nothing twice.
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}},
            "additionalProperties": {"type": "boolean"}, "maxProperties": 4}),
        json!({"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "boolean"}}),
        json!({"type": "array", "prefixItems": [{"const": "é"}, {"type": "null"}],
            "items": {"type": "integer", "minimum": -5, "exclusiveMaximum": 5}, "maxItems": 5}),
        json!({"type": "number", "exclusiveMinimum": -1.5, "maximum": 2.25}),
        json!({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 1000}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object",
            "additionalProperties": false, "required": ["value", "left"],
            "properties": {"value": {"type": "integer", "minimum": 0, "maximum": 9},
                "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}}}}}),
        json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "array", "maxItems": 2,
            "items": {"type": "integer", "minimum": 0, "maximum": 99}}, {"const": false}]}),
        json!({"oneOf": [
            {"type": "object", "additionalProperties": false, "required": ["kind", "radius"],
                "properties": {"kind": {"const": "circle"},
                    "radius": {"type": "number", "minimum": 0, "maximum": 1}}},
            {"type": "object", "additionalProperties": false, "required": ["kind"],
                "properties": {"kind": {"const": "point"}}}]}),
        json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 40}], "title": "n"}),
        json!({"type": "object", "minProperties": 1, "maxProperties": 3,
            "additionalProperties": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3}}),
        json!({"type": "object", "additionalProperties": false, "required": ["deep"],
            "properties": {"deep": {"type": "object", "additionalProperties": false,
                "required": ["er"], "properties": {"er": {"type": "array", "minItems": 1,
                    "maxItems": 2, "items": {"type": "object", "additionalProperties": false,
                        "required": ["and so on"],
                        "properties": {"and so on": {"type": "string", "maxLength": 4}}}}}}}}),
    ]
}

#[test]
fn whatever_a_model_likes_its_answer_satisfies_the_schema() {
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer).unwrap();
    for schema in schemas() {
        let fresh = factory.for_json_schema(&schema).unwrap();
        for seed in 0..25 {
            let text = bytes(&tokenizer, &answer(&tokenizer, &mut fresh.clone(), seed));
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{error}: {text:?} for {schema}, seed {seed}"));
            assert!(satisfies(&schema, &schema, &value), "{text} for {schema}, seed {seed}");
        }
    }
}

#[test]
fn patterns_and_formats_hold() {
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer).unwrap();
    let all = |text: &str, fine: fn(char) -> bool| !text.is_empty() && text.chars().all(fine);
    type Check<'a> = &'a dyn Fn(&str) -> bool;
    let cases: [(Value, Check); 4] = [
        (json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}), &|text| {
            let (letters, digits) = text.split_once('-').unwrap();
            letters.len() == 2
                && all(letters, |c| c.is_ascii_uppercase())
                && all(digits, |c| c.is_ascii_digit())
        }),
        (json!({"type": "string", "pattern": "ab", "maxLength": 12}), &|text| text.contains("ab")),
        (json!({"type": "string", "format": "date"}), &|text| {
            text.len() == 10 && text.split('-').count() == 3
        }),
        (json!({"type": "string", "format": "uuid"}), &|text| {
            text.len() == 36 && text.split('-').all(|part| all(part, |c| c.is_ascii_hexdigit()))
        }),
    ];
    for (schema, check) in cases {
        for seed in 0..10 {
            let mut constraint = factory.for_json_schema(&schema).unwrap();
            let text = bytes(&tokenizer, &answer(&tokenizer, &mut constraint, seed));
            let value: String = serde_json::from_str(&text).unwrap();
            assert!(check(&value), "{value:?} for {schema}");
        }
    }
}

#[test]
fn objects_choices_and_expressions_are_what_they_say() {
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer).unwrap();
    let say = |mut constraint: Constraint, seed| {
        bytes(&tokenizer, &answer(&tokenizer, &mut constraint, seed))
    };
    let choices = ["yes", "no", "\"perhaps\"\n", "né \x7f \u{1}"].map(String::from);
    for seed in 0..20 {
        let object: Value =
            serde_json::from_str(&say(factory.any_json_object().unwrap(), seed)).unwrap();
        assert!(object.is_object());
        assert!(choices.contains(&say(factory.for_choice(&choices).unwrap(), seed)));
        let text = say(factory.for_regex("[a-c]{2}/(x|é)+!").unwrap(), seed);
        assert!(text.ends_with('!') && text.as_bytes()[2] == b'/', "{text}");
    }
}

#[test]
fn an_end_is_left_exactly_where_the_answer_may_end() {
    let tokenizer = tokenizer();
    let mut constraint = ConstraintFactory::new(&tokenizer).unwrap().for_regex("ab?").unwrap();
    let left = |constraint: &mut Constraint| {
        let mut logits = vec![0.0; tokenizer.vocabulary() + 3];
        constraint.mask(&mut logits).unwrap();
        let left = (0..).zip(logits).filter(|(_, logit)| logit.is_finite()).map(|(id, _)| id);
        left.collect::<Vec<u32>>()
    };
    assert_eq!(left(&mut constraint), [u32::from(b'a')]);
    assert!(matches!(constraint.clone().accept(258), Err(ConstraintError::Refused { token: 258 })));
    constraint.accept(u32::from(b'a')).unwrap();
    assert_eq!(left(&mut constraint), [u32::from(b'b'), 256, 258]);
    assert!(!constraint.is_complete());
    let mut other = constraint.clone();
    constraint.accept(256).unwrap();
    assert!(constraint.is_complete());
    // The copy has gone its own way.
    other.accept(u32::from(b'b')).unwrap();
    assert!(other.is_complete());
    assert_eq!(left(&mut other), [256, 258]);
    assert!(matches!(other.accept(u32::from(b'b')), Err(ConstraintError::Refused { .. })));
    other.accept(258).unwrap();
}

#[test]
fn what_cannot_be_kept_to_is_refused_with_a_reason() {
    let factory = factory();
    let refusal = |schema: Value| match factory.for_json_schema(&schema) {
        Ok(_) => panic!("taken: {schema}"),
        Err(error) => error.to_string(),
    };
    assert!(refusal(json!({"not": {}})).contains("not is not supported"));
    assert!(refusal(json!({"type": "string", "pattern": "(?=a)"})).contains("cannot be enforced"));
    assert!(refusal(json!({"type": "string", "pattern": "("})).contains("unclosed group"));
    let nothing = refusal(json!({"type": "integer", "minimum": 3, "maximum": 2}));
    assert!(nothing.contains("nsatisfiable"), "{nothing}");
    let nothing = refusal(json!({"allOf": [{"type": "string"}, {"type": "null"}]}));
    assert!(nothing.contains("nsatisfiable"), "{nothing}");
    assert!(factory.for_choice(&[]).is_err());
    assert!(factory.for_regex("").is_err());
    assert!(factory.for_regex("a(").is_err());
    assert!(factory.for_regex(&"a".repeat(REGEX_BYTES_MAX + 1)).is_err());
    assert!(factory.for_lark("start: <|no_such_token|>").is_err());
}

/// Makes the constraint and takes up to 40 steps; how long that took at most each.
fn attack(factory: &ConstraintFactory, schema: &Value) -> (Duration, Result<(), String>) {
    let start = Instant::now();
    let made = factory.for_json_schema(schema);
    let mut longest = start.elapsed();
    let Ok(mut constraint) = made else {
        return (longest, Err(made.unwrap_err().to_string()));
    };
    let mut dice = Dice(7);
    for _ in 0..40 {
        let mut logits: Vec<f32> = (0..280).map(|_| (dice.roll() % 1000) as f32).collect();
        let start = Instant::now();
        let masked = constraint.mask(&mut logits);
        longest = longest.max(start.elapsed());
        if let Err(error) = masked {
            return (longest, Err(error.to_string()));
        }
        let start = Instant::now();
        let accepted = constraint.accept(best(&logits));
        longest = longest.max(start.elapsed());
        if let Err(error) = accepted {
            return (longest, Err(error.to_string()));
        }
        if constraint.is_complete() {
            break;
        }
    }
    (longest, Ok(()))
}

#[test]
fn hostile_schemas_take_bounded_time() {
    let factory = factory();
    let pattern = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let chain: serde_json::Map<String, Value> = (0..250)
        .map(|n| {
            let inner =
                json!({"properties": {"a": {"items": {"$ref": format!("#/$defs/{}", n + 1)}}}});
            (n.to_string(), inner)
        })
        .chain([("250".to_owned(), json!({"type": "null"}))])
        .collect();
    // As many levels as there may be parts, by way of references.
    let level = |inner: Value, n: usize| match n % 2 {
        0 => json!({"items": inner}),
        _ => json!({"type": "object", "properties": {"a": inner}}),
    };
    let deep: serde_json::Map<String, Value> = (0..250)
        .map(|n| {
            let next = json!({"$ref": format!("#/$defs/{}", n + 1), "minLength": 1});
            (n.to_string(), (0..7).fold(next, level))
        })
        .chain([("250".to_owned(), json!({"type": "null"}))])
        .collect();
    let laid: serde_json::Map<String, Value> = (0..250)
        .map(|n| {
            let next = json!({"$ref": format!("#/$defs/{}", n + 1)});
            (n.to_string(), json!({"minLength": 1, "allOf": [{"allOf": [next, {"items": {}}]}]}))
        })
        .chain([("250".to_owned(), json!({"type": "null"}))])
        .collect();
    let big: serde_json::Map<String, Value> =
        (0..900).map(|n| (format!("p{n}"), json!({"enum": ["x", "y"]}))).collect();
    let wide: serde_json::Map<String, Value> =
        (0..1000).map(|n| (format!("p{n}"), json!({"type": "integer"}))).collect();
    let branch = |n: usize| json!({"properties": {format!("a{n}"): {"enum": ["x", "y"]}}});
    let cases = [
        pattern("(a|aa)+(b|bb)+[ab]{0,3000}c"),
        pattern("(.*a.{25}b)|(.*b.{24}a)"),
        pattern("((a{1,100}){1,100}){1,100}"),
        pattern("(((((((((x{9}){9}){9}){9}){9}){9}){9}){9}){9})"),
        pattern(r"(\p{L}{500}){500}"),
        pattern(&r"(\p{L}|\p{Lu}x)".repeat(1000)),
        pattern(&r"(?i)[^\p{L}\d]{0,99}".repeat(60)),
        pattern(&"(".repeat(2000)),
        pattern(&"(a?){40}a{40}".repeat(30)),
        json!({"type": "string", "minLength": 9000, "maxLength": 10_000}),
        json!({"type": "array", "minItems": 9000, "maxItems": 10_000, "items": {"type": "array",
            "minItems": 9000, "items": {"type": "array", "minItems": 9000}}}),
        json!({"allOf": (0..300).map(branch).collect::<Vec<_>>()}),
        json!({"anyOf": (0..300).map(branch).collect::<Vec<_>>(),
            "allOf": [{"anyOf": (0..300).map(branch).collect::<Vec<_>>()}]}),
        json!({"$ref": "#/$defs/0", "$defs": chain}),
        json!({"$ref": "#/$defs/0", "$defs": deep}),
        json!({"$ref": "#/$defs/0", "$defs": laid}),
        json!({"allOf": vec![json!({"$ref": "#/$defs/big"}); 1000],
            "$defs": {"big": {"type": "object", "properties": big}}}),
        json!({"type": "object", "properties": wide}),
        json!({"type": "object", "patternProperties":
            (0..32).map(|n| (format!("^a{{{n}}}b"), json!({}))).collect::<serde_json::Map<_, _>>()}),
        json!({"type": "integer", "multipleOf": 999_983, "minimum": 3}),
        json!({"type": "number", "multipleOf": 0.00001, "minimum": 0.12345, "maximum": 9e15}),
        json!({"enum": (0..5000).map(|n| n.to_string()).collect::<Vec<_>>()}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "required": ["a"],
            "properties": {"a": {"$ref": "#/$defs/a"}}}}}),
    ];
    for schema in cases {
        let (longest, end) = attack(&factory, &schema);
        let shown: String = schema.to_string().chars().take(70).collect();
        println!("{longest:>9.1?} {:?} {shown}", end);
        assert!(longest < Duration::from_secs(60), "{longest:?} for {shown}");
    }
}

const SHAPES: [ToolFormat; 5] = [
    ToolFormat::Hermes,
    ToolFormat::Llama,
    ToolFormat::MistralList,
    ToolFormat::MistralNamed,
    ToolFormat::Unknown,
];

fn tools() -> Value {
    json!([
        {"function": {"name": "get_weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8},
                "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["city"], "additionalProperties": false}}},
        {"function": {"name": "now", "parameters": {"additionalProperties": false}}},
    ])
}

#[test]
fn a_model_that_must_call_writes_calls_that_are_found_and_fit() {
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer).unwrap();
    let tools = parse_tools(&tools()).unwrap();
    let special = |text: &str| tokenizer.id_of(text);
    for format in SHAPES {
        let markers: Vec<u32> =
            format.forced().markers().iter().copied().filter_map(special).collect();
        for seed in 0..30 {
            let choice = match seed % 3 {
                0 => parse_choice(Some(&json!({"function": {"name": "now"}})), &tools).unwrap(),
                _ => ToolChoice::Required,
            };
            let count = if seed % 2 == 0 { Calls::One } else { Calls::Many };
            // Also as for a vocabulary that has no such tokens.
            let token = |text: &str| special(text).filter(|_| seed % 5 != 0);
            let lark = format.grammar(&tools, &choice, count, token).unwrap().unwrap();
            let mut constraint = factory.for_lark(&lark).unwrap();
            let ids = answer(&tokenizer, &mut constraint, seed);
            let mut decoder = tokenizer.continuation_showing(&markers);
            let mut parser = ToolParser::new(format.forced(), &tools);
            let mut parts: Vec<ToolPart> =
                ids.iter().flat_map(|id| parser.push(decoder.push(*id))).collect();
            parts.extend(parser.finish());
            assert!(!parts.is_empty(), "{format:?}");
            for part in &parts {
                let ToolPart::Call { name, arguments } = part else {
                    panic!("{format:?}, seed {seed}: {parts:?}")
                };
                let tool = tools.iter().find(|tool| tool.name == *name).unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                assert!(satisfies(&tool.parameters, &tool.parameters, &arguments), "{arguments}");
                assert!(choice == ToolChoice::Required || name == "now");
            }
            assert!(parts.len() == 1 || (count == Calls::Many && choice == ToolChoice::Required));
        }
    }
}

#[test]
fn marks_that_are_tokens_are_asked_for_as_such() {
    let tokenizer = tokenizer();
    let factory = ConstraintFactory::new(&tokenizer).unwrap();
    let tools = parse_tools(&tools()).unwrap();
    let lark = |format: ToolFormat| {
        let token = |text: &str| tokenizer.id_of(text);
        format.grammar(&tools, &ToolChoice::Required, Calls::One, token).unwrap().unwrap()
    };
    let mut hermes = factory.for_lark(&lark(ToolFormat::Hermes)).unwrap();
    let ids = answer(&tokenizer, &mut hermes, 5);
    assert_eq!((ids.first(), ids.last()), (Some(&CALL), Some(&CALL_END)));
    let mut mistral = factory.for_lark(&lark(ToolFormat::MistralList)).unwrap();
    assert_eq!(answer(&tokenizer, &mut mistral, 5).first(), Some(&TOOL_CALLS));
}

#[test]
fn only_what_is_forced_has_a_grammar_and_only_if_it_can_be_kept_to() {
    let mut wanted = tools();
    wanted[0]["function"]["parameters"]["properties"]["city"] = json!({"not": {}});
    let tools = parse_tools(&wanted).unwrap();
    let grammar =
        |choice: &ToolChoice| ToolFormat::Hermes.grammar(&tools, choice, Calls::Many, |_| None);
    assert_eq!(grammar(&ToolChoice::Auto), Ok(None));
    assert_eq!(grammar(&ToolChoice::None), Ok(None));
    assert!(grammar(&ToolChoice::Named("now".into())).unwrap().is_some());
    let error = grammar(&ToolChoice::Required).unwrap_err();
    assert_eq!(error.path(), "tools[0].function.parameters");
    assert_eq!(
        error.to_string(),
        "a call of get_weather cannot be enforced: in its parameters, properties.city.not cannot \
         be enforced: not is not supported; leave it out"
    );
}

#[test]
fn the_toy_and_the_models_at_hand_can_be_constrained() {
    let folder = tempfile::tempdir().unwrap();
    let toy = folder.path().join("toy.gguf");
    crate::shell::toy::write(&toy).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf");
    let models = std::env::var_os("CADENCIA_MODELS").map(PathBuf::from);
    let of = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "gguf"))
            .collect::<Vec<_>>()
    };
    let mut paths = vec![toy, fixtures.join("gemma3-Q8_0.gguf"), fixtures.join("qwen3-Q8_0.gguf")];
    paths.extend(models.iter().flat_map(|folder| of(folder)));
    for path in paths {
        let gguf = Gguf::open(&path).unwrap();
        let Some(tokenizer) = Tokenizer::from_metadata(gguf.metadata()).unwrap() else { continue };
        let start = Instant::now();
        let factory = ConstraintFactory::new(&tokenizer).unwrap();
        let built = start.elapsed();
        let start = Instant::now();
        let schema = &schemas()[1];
        let fresh = factory.for_json_schema(schema).unwrap();
        let made = start.elapsed();
        let (mut steps, mut masks, mut longest) = (0u32, Duration::ZERO, Duration::ZERO);
        for seed in 1..4 {
            let mut constraint = fresh.clone();
            let mut dice = Dice(seed);
            let mut ids = Vec::new();
            while !constraint.is_complete() && ids.len() < 500 {
                let rolls = (0..tokenizer.vocabulary()).map(|_| (dice.roll() % 1000) as f32);
                let mut logits: Vec<f32> = rolls.collect();
                let start = Instant::now();
                constraint.mask(&mut logits).unwrap();
                (steps, masks) = (steps + 1, masks + start.elapsed());
                longest = longest.max(start.elapsed());
                let id = best(&logits);
                constraint.accept(id).unwrap();
                ids.push(id);
            }
            let value: Value = serde_json::from_str(&bytes(&tokenizer, &ids)).unwrap();
            assert!(satisfies(schema, schema, &value), "{value}");
        }
        println!(
            "{}: {} tokens, factory {built:.1?}, constraint {made:.1?}, mask {:.1?}, at most {longest:.1?}",
            path.file_name().unwrap().display(),
            tokenizer.vocabulary(),
            masks / steps.max(1)
        );
    }
}
