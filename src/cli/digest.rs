//! `confrev digest`: what snapshots of the objects in manifests would be called.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    path::PathBuf,
};

use clap::Args;
use serde_json::{Map, Value};

use crate::snapshot::{DIGITS, Object, SourceKind, snapshot_name};

/// Options of `digest`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Manifests to read, in YAML or JSON; `-` for standard input.
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,
}

/// Manifests that cannot be digested.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// A file that cannot be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Not YAML.
    #[error("{file}: not YAML that Kubernetes reads: {reason}")]
    Yaml {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// An object that no API server would store.
    #[error("{file}: {object}: {reason}")]
    Object {
        /// The file.
        file: String,
        /// Kind and name.
        object: String,
        /// Why.
        reason: String,
    },
    /// Nobody reads the output.
    #[error("standard output: {0}")]
    Output(#[from] std::io::Error),
}

/// Prints `NAME sha256:HEX SNAPSHOT-NAME` for each ConfigMap and Secret; other objects are passed over.
pub(super) fn run(options: &Options) -> Result<(), Error> {
    let mut lines = String::new();
    for file in &options.filename {
        let name = file.display().to_string();
        let text = read(file).map_err(|source| Error::Read { file: name.clone(), source })?;
        lines.push_str(&digest_lines(&name, &text)?);
    }
    // All or nothing: no line is printed where a later object is wrong.
    Ok(std::io::stdout().write_all(lines.as_bytes())?)
}

fn read(file: &PathBuf) -> std::io::Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
}

fn digest_lines(file: &str, text: &str) -> Result<String, Error> {
    let yaml = |reason: String| Error::Yaml { file: file.to_owned(), reason };
    let mut lines = String::new();
    let documents = serde_saphyr::from_multiple::<Value>(text.strip_prefix('\u{feff}').unwrap_or(text));
    for document in documents.map_err(|error| yaml(error.to_string()))? {
        for object in flatten(document) {
            if let Some(line) = line(file, object)? {
                // Writing to a String cannot fail.
                let _ = writeln!(lines, "{line}");
            }
        }
    }
    Ok(lines)
}

/// The objects of a document: itself, or the items of a List.
fn flatten(document: Value) -> Vec<Value> {
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match document {
        Value::Null => Vec::new(),
        Value::Object(mut fields) if is_list && fields.get("items").is_some_and(Value::is_array) => {
            let item_kind =
                fields["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).map(str::to_owned);
            let Some(Value::Array(items)) = fields.remove("items") else { return Vec::new() };
            items
                .into_iter()
                .map(|mut item| {
                    // In a typed list, as in `ConfigMapList`, the items need not say their kind.
                    if let (Some(object), Some(kind)) = (item.as_object_mut(), &item_kind)
                        && !kind.is_empty()
                    {
                        object.entry("kind").or_insert_with(|| Value::String(kind.clone()));
                        object.entry("apiVersion").or_insert_with(|| Value::String("v1".to_owned()));
                    }
                    item
                })
                .flat_map(flatten)
                .collect()
        }
        other => vec![other],
    }
}

/// The line of one object; `None` where it is neither a ConfigMap nor a Secret.
fn line(file: &str, mut object: Value) -> Result<Option<String>, Error> {
    let kind = match (object["apiVersion"].as_str(), object["kind"].as_str()) {
        (Some("v1"), Some("ConfigMap")) => SourceKind::ConfigMap,
        (Some("v1"), Some("Secret")) => SourceKind::Secret,
        _ => return Ok(None),
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let error =
        |reason: String| Error::Object { file: file.to_owned(), object: format!("{kind} {name:?}"), reason };
    if name.is_empty() {
        return Err(error("it has no name".to_owned()));
    }
    check_values(&object, kind).map_err(error)?;
    if kind == SourceKind::Secret {
        merge_string_data(&mut object);
    }
    let json = object.to_string();
    let object = Object::parse(json.as_bytes()).map_err(|problem| error(problem.to_string()))?;
    let digest = object.digest(kind).map_err(|problem| error(problem.to_string()))?;
    Ok(Some(format!("{name} {digest} {}", snapshot_name(&name, &digest, DIGITS[0]))))
}

/// Every value must be a string: the API server refuses others, and a digest of them would mean nothing.
fn check_values(object: &Value, kind: SourceKind) -> Result<(), String> {
    let fields = if kind == SourceKind::ConfigMap { ["data", "binaryData"] } else { ["data", "stringData"] };
    for field in fields {
        match &object[field] {
            Value::Null => {}
            Value::Object(entries) => {
                let odd = entries.iter().find(|(_, value)| !value.is_string() && !value.is_null());
                if let Some((key, _)) = odd {
                    return Err(format!("{field}: the value of key {key:?} is not a string: quote it"));
                }
            }
            _ => return Err(format!("{field} is not a map")),
        }
    }
    Ok(())
}

/// What the API server does on a write: `stringData` goes over `data`, encoded.
fn merge_string_data(object: &mut Value) {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let Some(Value::Object(strings)) = object.as_object_mut().and_then(|fields| fields.remove("stringData"))
    else {
        return;
    };
    let encoded = strings.into_iter().map(|(key, value)| {
        let text = value.as_str().unwrap_or_default();
        (key, Value::String(BASE64_STANDARD.encode(text)))
    });
    match &mut object["data"] {
        Value::Object(data) => data.extend(encoded),
        data => *data = Value::Object(encoded.collect::<Map<_, _>>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Result<String, String> {
        digest_lines("f", text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_configmap_and_secret_of_a_stream_makes_a_line() {
        let text = "---\n# nothing\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: demo}\ndata: {color: blue}\n\
            ---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\n\
            apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Secret\n  metadata: {name: demo}\n  \
            stringData: {password: hunter2}\n";
        assert_eq!(
            lines(text).unwrap(),
            "demo sha256:3a18d34e262fc4b788874349f3267bd04db95e4530b1e16909c791de7634513f demo-3a18d34e26\n\
             demo sha256:9aed6f85b6495273623e9f56dcf1a3d45eefd60d47ee53a4626c06ca21e91c56 demo-9aed6f85b6\n"
        );
    }

    #[test]
    fn bytes_in_base64_may_be_broken_into_lines() {
        let flat = lines("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, binaryData: {c: AAEC}}");
        let broken = lines(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nbinaryData:\n  c: |\n    AA\n    EC\n",
        );
        assert_eq!(flat.unwrap(), broken.unwrap());
    }

    #[test]
    fn what_no_api_server_would_store_is_an_error_that_names_the_object() {
        let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        for (rest, reason) in [
            ("data: {k: 1}", "f: ConfigMap \"a\": data: the value of key \"k\" is not a string: quote it"),
            ("binaryData: {k: '%'}", "f: ConfigMap \"a\": the value of key \"k\" is not base64"),
            ("data: [x]", "f: ConfigMap \"a\": data is not a map"),
            ("data: {k: x}\nbinaryData: {k: AA==}", "key \"k\" is in data and in binaryData"),
        ] {
            let error = lines(&format!("{head}{rest}")).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(lines("apiVersion: v1\nkind: ConfigMap\n").unwrap_err().contains("it has no name"));
        assert!(lines("a: [").unwrap_err().starts_with("f: not YAML"));
    }
}
