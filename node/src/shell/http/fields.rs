//! The fields of a JSON request, each taken out once and checked by name.
//!
//! `null` counts as absent, as clients with optional fields send it.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use axum::http::StatusCode;

use super::fault::Fault;

/// A JSON object whose fields are taken out.
#[derive(Debug)]
pub struct Fields {
    /// Where it stands in the request, such as `messages[0].`; empty for the request itself.
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// From a request's body.
    pub fn parse(body: &[u8]) -> Result<Self, Fault> {
        let bad = |message| Err(Fault::new(StatusCode::BAD_REQUEST, "invalid_json", message));
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { path: String::new(), map }),
            Ok(_) => bad("the body is JSON, and not an object".to_string()),
            Err(error) => bad(format!("the body is not JSON: {error}")),
        }
    }

    /// From `value`, which stands at `path` in the request.
    pub fn of(path: &str, value: Value) -> Result<Self, Fault> {
        match value {
            Value::Object(map) => Ok(Self { path: format!("{path}."), map }),
            _ => Err(Fault::field(path, format!("{path} must be an object"))),
        }
    }

    /// A field of any type.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// A string.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }

    /// True or false.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Fault> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.wrong(name, "true or false")),
        }
    }

    /// A number within `range`.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Fault> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if range.contains(&x) => Ok(Some(x as f32)),
            _ => {
                let wanted = format!("a number from {} to {}", range.start(), range.end());
                Err(self.wrong(name, &wanted))
            }
        }
    }

    /// A whole number within `range`; 16.0 is one, too.
    pub fn whole(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Fault> {
        let Some(value) = self.take(name) else { return Ok(None) };
        // Beyond 2^53 a float no longer says which whole number is meant.
        let exact = |x: &f64| x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0;
        let whole = value.as_i64().or_else(|| value.as_f64().filter(exact).map(|x| x as i64));
        match whole {
            Some(n) if range.contains(&n) => Ok(Some(n)),
            _ => {
                let (low, high) = range.into_inner();
                let wanted = match high {
                    i64::MAX => format!("a whole number, {low} or more"),
                    _ => format!("a whole number from {low} to {high}"),
                };
                Err(self.wrong(name, &wanted))
            }
        }
    }

    /// The name of a field as a client would write it.
    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// The refusal of a field that is not what is `wanted`.
    pub fn wrong(&self, name: &str, wanted: &str) -> Fault {
        let name = self.name(name);
        let message = format!("{name} must be {wanted}");
        Fault::field(name, message)
    }

    /// The refusal of a field that must be there.
    pub fn missing(&self, name: &str) -> Fault {
        let name = self.name(name);
        Fault::new(StatusCode::BAD_REQUEST, "missing_field", format!("{name} is missing"))
            .about(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    fn param(fault: Fault) -> String {
        fault.json()["error"]["param"].as_str().unwrap().to_string()
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for body in ["", "{", "[]", "3", "{\"a\":1}x", "\u{feff}{}"] {
            let fault = Fields::parse(body.as_bytes()).unwrap_err();
            assert_eq!(fault.json()["error"]["code"], "invalid_json", "{body:?}");
        }
        let deep = "[".repeat(100_000);
        assert!(Fields::parse(deep.as_bytes()).is_err());
        assert!(Fields::parse(b"{\"a\":\"\xff\"}").is_err());
    }

    #[test]
    fn null_is_absent_and_whole_floats_are_whole() {
        let mut fields = fields(r#"{"a":null,"b":16.0,"c":-1}"#);
        assert_eq!(fields.text("a").unwrap(), None);
        assert_eq!(fields.whole("b", 1..=i64::MAX).unwrap(), Some(16));
        assert_eq!(fields.whole("c", -1..=5).unwrap(), Some(-1));
        assert_eq!(fields.flag("d").unwrap(), None);
    }

    #[test]
    fn a_wrong_field_is_named() {
        let mut fields = fields(r#"{"a":"x","b":1.5,"c":99,"e":"1","f":0}"#);
        assert_eq!(param(fields.number("a", 0.0..=2.0).unwrap_err()), "a");
        assert_eq!(param(fields.whole("b", 0..=9).unwrap_err()), "b");
        assert_eq!(param(fields.whole("c", 0..=9).unwrap_err()), "c");
        assert_eq!(param(fields.whole("e", 0..=9).unwrap_err()), "e");
        assert_eq!(param(fields.flag("f").unwrap_err()), "f");
        let mut inner = Fields::of("stream_options", serde_json::json!({"x": 1})).unwrap();
        assert_eq!(param(inner.text("x").unwrap_err()), "stream_options.x");
    }
}
