//! `confrev digest`: the digests and snapshot names of the sources in manifests.

use std::{fmt::Write as _, path::PathBuf};

use clap::Args;
use serde_json::Value;

use super::{
    failure::Failure,
    flags::RotatedFlag,
    manifests::{self, ManifestError},
    output,
};
use crate::{
    names,
    resolve::Observed,
    snapshot::{DIGITS, ObjectName, Rotated, SourceKind, snapshot_name},
};

/// Options of `digest`.
#[derive(Debug, Args)]
pub(super) struct DigestOptions {
    /// Manifests to read, in YAML or JSON: a file, a folder, or `-` for standard input.
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,
    #[command(flatten)]
    rotated: RotatedFlag,
}

/// Prints `NAME sha256:HEX SNAPSHOT-NAME` for each ConfigMap and Secret. If the snapshot's name is unknown, or there is
/// never a snapshot, `-` and the reason take its place. Other objects are skipped.
pub(super) fn run(options: &DigestOptions) -> Result<(), Failure> {
    let (mut lines, rotated) = (String::new(), options.rotated.in_force());
    for (file, object) in manifests::read_all(&options.filename)? {
        lines.push_str(&digest_lines(&file, std::slice::from_ref(&object), &rotated)?);
    }
    // All or nothing: no line is printed if a later object is invalid.
    output::print(&lines)
}

fn digest_lines(file: &str, objects: &[Value], rotated: &Rotated) -> Result<String, ManifestError> {
    let mut lines = String::new();
    for object in objects {
        let Some(source) = manifests::source(file, object)? else { continue };
        let (kind, name) = (source.name.kind, &source.name.name);
        let error = |problem: String| manifests::error(file, kind.as_str(), name, &problem);
        let json = source.json.as_bytes();
        let observed = Observed::read(kind, json).map_err(|problem| error(problem.to_string()))?;
        let digest = observed.digest();
        let snapshot = match never(&source.name, &observed, rotated) {
            Some(reason) => format!("- ({reason})"),
            None if kind == SourceKind::Secret => {
                "- (the name of its snapshot depends on a key of the installation)".to_owned()
            }
            None => snapshot_name(name, &digest, DIGITS[0]),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{name} {digest} {snapshot}");
    }
    Ok(lines)
}

/// Why this object never gets a snapshot, whatever its content; `None` if it may get one.
fn never(name: &ObjectName, observed: &Observed, rotated: &Rotated) -> Option<String> {
    let enabled = observed.enabled().unwrap_or_default();
    if observed.identity().is_some() {
        Some("it is a snapshot itself".to_owned())
    } else if rotated.contains(name) {
        Some("no snapshot: the platform changes it by itself".to_owned())
    } else if observed.is_bound_itself() {
        Some(format!("no snapshot: {}={enabled}, the source itself is bound", names::ENABLED))
    } else if !observed.stays_as_written() {
        None
    } else if matches!(enabled, "false" | "live") {
        Some(format!("no snapshot: {}={enabled}", names::ENABLED))
    } else {
        Some("no snapshot: the platform writes Secrets of this type".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Result<String, String> {
        let objects = manifests::objects("f", text).map_err(|error| error.to_string())?;
        digest_lines("f", &objects, &Rotated::with(["bundle".to_owned()])).map_err(|error| error.to_string())
    }

    #[test]
    fn digest_prints_a_line_per_configmap_and_secret() {
        let text = "---\n# nothing\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: demo}\ndata: {color: blue}\n\
            ---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\n\
            apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Secret\n  metadata: {name: demo}\n  \
            stringData: {password: hunter2}\n";
        assert_eq!(
            lines(text).unwrap(),
            "demo sha256:3a18d34e262fc4b788874349f3267bd04db95e4530b1e16909c791de7634513f demo-3a18d34e26\n\
             demo sha256:9aed6f85b6495273623e9f56dcf1a3d45eefd60d47ee53a4626c06ca21e91c56 - (the name of its snapshot \
             depends on a key of the installation)\n"
        );
    }

    #[test]
    fn digest_prints_why_an_object_has_no_snapshot() {
        let head = |kind: &str, name: &str| format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}");
        let digest = format!("sha256:{}", "0".repeat(64));
        let snapshot = format!(
            "labels: {{app.kubernetes.io/managed-by: confrev, confrev.dev/source: a}}, \
             annotations: {{confrev.dev/source-name: a, confrev.dev/digest: '{digest}'}}"
        );
        for (manifest, reason) in [
            (
                format!("{}}}\ntype: helm.sh/release.v1\n", head("Secret", "a")),
                "no snapshot: the platform writes",
            ),
            (format!("{}}}\n", head("ConfigMap", "kube-root-ca.crt")), "no snapshot: the platform changes"),
            (format!("{}}}\n", head("ConfigMap", "bundle")), "no snapshot: the platform changes"),
            (
                format!("{}, labels: {{confrev.dev/enabled: \"false\"}}}}\n", head("ConfigMap", "a")),
                "no snapshot: confrev.dev/enabled=false",
            ),
            (
                format!("{}, labels: {{confrev.dev/enabled: bind}}}}\n", head("ConfigMap", "a")),
                "no snapshot: confrev.dev/enabled=bind",
            ),
            (
                format!("{}, labels: {{confrev.dev/enabled: live}}}}\n", head("Secret", "a")),
                "no snapshot: confrev.dev/enabled=live",
            ),
            (format!("{}, {snapshot}}}\n", head("ConfigMap", "a-0123456789")), "it is a snapshot itself"),
        ] {
            let line = lines(&manifest).unwrap();
            let (_, snapshot) = line.split_once(" sha256:").unwrap();
            let (_, said) = snapshot.split_once(' ').unwrap();
            assert!(said.starts_with(&format!("- ({reason}")), "{line}");
        }
        let opaque = lines(&format!("{}}}\ntype: Opaque\n", head("Secret", "a"))).unwrap();
        assert!(opaque.contains("depends on a key"), "{opaque}");
    }

    #[test]
    fn base64_values_may_contain_line_breaks() {
        let flat = lines("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, binaryData: {c: AAEC}}");
        let broken = lines(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nbinaryData:\n  c: |\n    AA\n    EC\n",
        );
        assert_eq!(flat.unwrap(), broken.unwrap());
    }

    #[test]
    fn digest_error_names_the_invalid_object() {
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
        assert!(lines("a: [").unwrap_err().starts_with("f: invalid YAML"));
    }
}
