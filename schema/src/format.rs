//! The formats of entries.

use serde_json::{Map, Number, Value};

use crate::properties;

/// Parses an entry. Its key's extension gives the format; without a known one it is YAML, of which JSON is a part.
///
/// Errors contain no part of the text.
pub(crate) fn parse(key: &str, text: &str) -> Result<Value, String> {
    match key.rsplit_once('.').map(|(_, extension)| extension) {
        Some("json") => {
            serde_json::from_str(text).map_err(|error| invalid("JSON", Some((error.line(), error.column()))))
        }
        Some("toml") => {
            let table: toml::Table = toml::from_str(text)
                .map_err(|error| invalid("TOML", error.span().and_then(|span| position(text, span.start))))?;
            Ok(Value::Object(table.into_iter().map(|(key, value)| (key, of_toml(value))).collect()))
        }
        Some("properties") => properties::parse(text)
            .map(|entries| {
                Value::Object(entries.into_iter().map(|(key, value)| (key, value.into())).collect())
            })
            .map_err(|line| format!("not valid properties (line {line})")),
        _ => serde_saphyr::from_str(text).map_err(|error| {
            let place = error
                .location()
                .and_then(|at| Some((usize::try_from(at.line()).ok()?, usize::try_from(at.column()).ok()?)));
            invalid("YAML", place)
        }),
    }
}

fn invalid(format: &str, place: Option<(usize, usize)>) -> String {
    match place {
        Some((line, column)) => format!("not valid {format} (line {line}, column {column})"),
        None => format!("not valid {format}"),
    }
}

/// The line and the column of an offset.
fn position(text: &str, offset: usize) -> Option<(usize, usize)> {
    let before = text.get(..offset)?;
    let line = before.matches('\n').count() + 1;
    Some((line, before.rsplit('\n').next().unwrap_or_default().chars().count() + 1))
}

/// A value of TOML as JSON. Dates and times are strings.
fn of_toml(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => Value::from(number),
        // JSON has no infinity.
        toml::Value::Float(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
        toml::Value::Boolean(value) => Value::Bool(value),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(values) => Value::Array(values.into_iter().map(of_toml).collect()),
        toml::Value::Table(table) => {
            Value::Object(table.into_iter().map(|(key, value)| (key, of_toml(value))).collect::<Map<_, _>>())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn extension_gives_format() {
        let expected = json!({"a": {"b": 1}, "c": "x"});
        for (key, text) in [
            ("x.json", r#"{"a":{"b":1},"c":"x"}"#),
            ("x.yaml", "a: {b: 1}\nc: x\n"),
            ("x.yml", "a:\n  b: 1\nc: x\n"),
            ("x.toml", "c = 'x'\n[a]\nb = 1\n"),
            ("x", "{\"a\": {\"b\": 1}, \"c\": x}"),
        ] {
            assert_eq!(parse(key, text), Ok(expected.clone()), "{key}");
        }
        assert_eq!(parse("x.properties", "a.b = 1\nc: x"), Ok(json!({"a.b": "1", "c": "x"})));
        assert_eq!(parse("x.toml", "at = 2020-01-02T03:04:05Z"), Ok(json!({"at": "2020-01-02T03:04:05Z"})));
    }

    #[test]
    fn errors_contain_no_part_of_text() {
        for (key, text, place) in [
            ("x.json", "{\"hunter2\": hunter2}", "not valid JSON (line 1, column 13)"),
            ("x.yaml", "hunter2: [hunter2", "not valid YAML (line 1, column "),
            ("x.toml", "a = 1\nhunter2 hunter2", "not valid TOML (line 2, column "),
            ("x.properties", "hunter2 = \\uzzzz", "not valid properties (line 1)"),
        ] {
            let error = parse(key, text).unwrap_err();
            assert!(error.starts_with(place) && !error.contains("hunter2"), "{key}: {error}");
        }
    }
}
