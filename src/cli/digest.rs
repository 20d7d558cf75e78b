//! `confrev digest`: what snapshots of the objects in manifests would be called.

use std::{fmt::Write as _, path::PathBuf};

use clap::Args;
use serde_json::Value;

use super::{
    Failure,
    manifests::{self, ManifestError},
    output,
};
use crate::snapshot::{DIGITS, Object, snapshot_name};

/// Options of `digest`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Manifests to read, in YAML or JSON; `-` for standard input.
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,
}

/// Prints `NAME sha256:HEX SNAPSHOT-NAME` for each ConfigMap and Secret; other objects are passed over.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let mut lines = String::new();
    for file in &options.filename {
        lines.push_str(&digest_lines(&file.display().to_string(), &manifests::read(file)?)?);
    }
    // All or nothing: no line is printed where a later object is wrong.
    output::print(&lines)
}

fn digest_lines(file: &str, objects: &[Value]) -> Result<String, ManifestError> {
    let mut lines = String::new();
    for object in objects {
        let Some(source) = manifests::source(file, object)? else { continue };
        let (kind, name) = (source.name.kind, &source.name.name);
        let error = |problem: String| manifests::error(file, kind.as_str(), name, &problem);
        let parsed = Object::parse(source.json.as_bytes()).map_err(|problem| error(problem.to_string()))?;
        let digest = parsed.digest(kind).map_err(|problem| error(problem.to_string()))?;
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{name} {digest} {}", snapshot_name(name, &digest, DIGITS[0]));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Result<String, String> {
        let objects = manifests::objects("f", text).map_err(|error| error.to_string())?;
        digest_lines("f", &objects).map_err(|error| error.to_string())
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
