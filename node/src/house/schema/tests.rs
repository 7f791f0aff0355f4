use proptest::prelude::*;

use super::*;

fn parsed(schema: Value) -> Value {
    Value::Object(Schema::parse(&schema).unwrap_or_else(|error| panic!("{error}: {schema}")).map)
}

fn refusal(schema: Value) -> String {
    match Schema::parse(&schema) {
        Ok(schema) => panic!("not refused: {schema:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_matters_stays_and_notes_go() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Person",
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "description": "who", "x-order": 3},
            "title": {"enum": ["Mr", "Ms"], "default": "Ms"},
            "age": {"type": "integer", "format": "int32", "minimum": 0, "uniqueItems": false},
            "born": {"type": "string", "format": "date"},
        },
        "required": ["name"],
        "additionalProperties": false,
    });
    let kept = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "title": {"enum": ["Mr", "Ms"]},
            "age": {"type": "integer", "minimum": 0},
            "born": {"type": "string", "format": "date"},
        },
        "required": ["name"],
        "additionalProperties": false,
    });
    assert_eq!(parsed(schema), kept);
}

#[test]
fn a_keyword_that_cannot_be_enforced_is_refused_by_name() {
    for keyword in
        ["not", "if", "contains", "propertyNames", "dependentRequired", "unevaluatedProperties"]
    {
        let error = refusal(json!({"properties": {"a": {keyword: {}}}}));
        let wanted = format!(
            "properties.a.{keyword} cannot be enforced: {keyword} is not supported; leave it out"
        );
        assert_eq!(error, wanted);
    }
    assert!(refusal(json!({"uniqueItems": true})).contains("uniqueItems is not supported"));
    assert!(refusal(json!({"maxlength": 3})).contains("maxlength is not supported"));
    assert!(refusal(json!({"properties": {"a": {"$id": "b"}}})).contains("$id is not supported"));
    let format = refusal(json!({"type": "string", "format": "iri"}));
    assert!(format.contains("the format \"iri\" is not known; known are date-time"), "{format}");
}

#[test]
fn a_value_of_the_wrong_kind_is_refused_with_its_path() {
    let cases = [
        (json!([]), "schema must be a schema: an object, true or false"),
        (json!(true), "schema must be an object"),
        (json!({"type": "text"}), "type must be null, boolean,"),
        (json!({"items": {"anyOf": {}}}), "items.anyOf must be a list of schemas"),
        (json!({"anyOf": [{}, 3]}), "anyOf[1] must be a schema"),
        (json!({"enum": []}), "enum must be a list of one value or more"),
        (json!({"minItems": -1}), "minItems must be a whole number from 0 to 10,000"),
        (json!({"maxLength": 1_000_000}), "maxLength must be a whole number from 0 to"),
        (json!({"maximum": 1e300}), "maximum must be a number within 2^53 of zero"),
        (json!({"const": 9_007_199_254_740_993_u64}), "const must be made of numbers within"),
        (json!({"multipleOf": 0}), "multipleOf must be a number from 0.000001"),
        (json!({"required": ["a", 1]}), "required must be a list of names"),
        (json!({"pattern": 1}), "pattern must be a string"),
        (json!({"properties": []}), "properties must be an object of schemas"),
        (json!({"items": [{}], "prefixItems": [{}]}), "items must be a schema, since there are"),
    ];
    for (schema, wanted) in cases {
        let error = refusal(schema);
        assert!(error.starts_with(wanted), "{error:?} is not {wanted:?}");
    }
}

#[test]
fn references_lead_into_the_schema_and_nowhere_else() {
    let schema = json!({
        "definitions": {"a/b": {"type": "string"}, "tree": {"items": {"$ref": "#/definitions/tree"}}},
        "properties": {
            "x": {"$ref": "#/definitions/a~1b"},
            "y": {"$ref": "#/definitions/a~1b"},
            "z": {"$ref": "#/definitions/tr%65e"},
        },
    });
    let kept = json!({
        "properties": {
            "x": {"$ref": "#/$defs/r0"},
            "y": {"$ref": "#/$defs/r0"},
            "z": {"$ref": "#/$defs/r1"},
        },
        "$defs": {
            "r0": {"type": "string"},
            "r1": {"items": {"$ref": "#/$defs/r2"}},
            "r2": {"items": {"$ref": "#/$defs/r2"}},
        },
    });
    assert_eq!(parsed(schema), kept);
    for outside in ["http://example.com/schema", "other.json", "#name", "#/$defs/none", "#/%zz"] {
        let error = refusal(json!({"items": {"$ref": outside}}));
        assert!(error.starts_with(&format!("items.$ref is {outside:?}, which is not")), "{error}");
    }
}

#[test]
fn what_is_defined_by_itself_alone_is_refused() {
    assert!(refusal(json!({"$ref": "#"})).contains("defined by itself alone"));
    let two = json!({
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/b"}]},
            "b": {"allOf": [{"$ref": "#/$defs/a"}]},
        },
    });
    assert!(refusal(two).contains("defined by itself alone"));
}

#[test]
fn one_of_becomes_any_of_where_two_cannot_hold_at_once() {
    let circle = json!({"type": "object", "properties": {"kind": {"const": "circle"}},
        "required": ["kind"]});
    let square = json!({"type": "object", "properties": {"kind": {"enum": ["square", "box"]}}});
    let kept = parsed(json!({"oneOf": [
        {"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/square"}, {"type": "null"}, {"const": 4},
    ], "$defs": {"circle": circle, "square": square}}));
    assert!(kept.get("oneOf").is_none());
    assert_eq!(kept["anyOf"].as_array().unwrap().len(), 4);

    let both = parsed(json!({
        "allOf": [{"type": "string"}],
        "anyOf": [{"minLength": 1}],
        "oneOf": [{"const": "a"}, {"const": "b"}],
    }));
    assert_eq!(both["allOf"][1]["anyOf"][0]["const"], "a");
    // A property may be called so.
    let named = json!({"properties": {"oneOf": {"type": "string"}, "enum": {"type": "null"}}});
    assert_eq!(parsed(named.clone()), named);

    for overlap in [
        json!([{"type": "integer"}, {"type": "number"}]),
        json!([{"const": 1}, {"enum": [2, 1.0]}]),
        json!([{"type": "object"}, {"type": "object", "required": ["a"]}]),
        json!([{}, {"type": "null"}]),
        json!([true, false]),
    ] {
        let error = refusal(json!({"items": {"oneOf": overlap}}));
        assert!(error.starts_with("items.oneOf cannot be enforced: two of its"), "{error}");
    }
}

#[test]
fn size_depth_and_counts_are_bounded() {
    let wide: Map<_, _> = (0..5000).map(|n| (n.to_string(), json!({}))).collect();
    assert!(refusal(json!({"properties": wide})).contains("more than 2048 parts"));
    assert!(refusal(json!({"const": "x".repeat(200_000)})).contains("has 200012 bytes"));
    let deep = (0..100).fold(json!({}), |inner, _| json!({"items": inner}));
    assert!(refusal(deep).contains("deeper than 64 levels"));
    let deep = (0..100).fold(json!(0), |inner, _| json!([inner]));
    assert!(refusal(json!({"const": deep})).contains("deeper than 64 levels"));
    let many: Map<_, _> =
        (0..300).map(|n| (format!("p{n}"), json!({"$ref": format!("#/$defs/{n}")}))).collect();
    let targets: Map<_, _> = (0..300).map(|n| (n.to_string(), json!({}))).collect();
    let error = refusal(json!({"properties": many, "$defs": targets}));
    assert!(error.contains("more than 256 different references"), "{error}");
    let patterns = |count: usize| -> Map<String, Value> {
        (0..count).map(|n| (format!("^a{n}"), json!({}))).collect()
    };
    assert!(refusal(json!({"patternProperties": patterns(33)})).contains("has 33 patternProp"));
    let combined = json!({"items": {"patternProperties": patterns(2)}, "allOf": [{}]});
    assert!(refusal(combined).contains("has 2 patternProperties"));
    assert!(Schema::parse(&json!({"patternProperties": patterns(32)})).is_ok());
}

#[test]
fn an_object_schema_may_leave_its_type_out() {
    let schema = |value| Schema::parse(&value).unwrap().into_object();
    assert_eq!(schema(json!({})).unwrap(), Schema::any_object());
    assert!(schema(json!({"type": "object"})).is_ok());
    assert!(schema(json!({"type": "array"})).is_err());
}

proptest! {
    #[test]
    fn any_json_is_a_schema_or_refused(text in r#"[{}\[\]",:$a-f0-9]{0,40}"#, depth in 0usize..90) {
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            let nested = (0..depth).fold(value, |inner, n| match n % 3 {
                0 => json!({"anyOf": [inner]}),
                1 => json!({"properties": {"a": inner}}),
                _ => json!({"allOf": [{"$ref": "#"}, inner]}),
            });
            if let Ok(schema) = Schema::parse(&nested) {
                // What was read once is its own checked form.
                let map = Value::Object(schema.map.clone());
                prop_assert!(Schema::parse(&map).is_ok());
            }
        }
    }
}
