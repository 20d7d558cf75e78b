//! `confrev digest`: the digests and snapshot names of the sources in manifests.

use clap::{ArgGroup, Args};
use serde::Serialize;
use serde_json::Value;

use super::{
    failure::Failure,
    flags::RotatedFlag,
    manifests::{self, ManifestError, ManifestFlags},
    output::{self, OutputFlag, OutputFormat},
};
use crate::{
    annotations,
    resolve::Observed,
    snapshot::{DIGITS, ObjectName, Rotated, SourceKind, snapshot_name},
};

/// Options of `digest`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("input").args(["filename", "kustomize"]).required(true))]
pub(super) struct DigestOptions {
    #[command(flatten)]
    manifests: ManifestFlags,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    rotated: RotatedFlag,
}

/// The digest of a source, and the name of its snapshot.
#[derive(Debug, Serialize)]
struct SourceDigest {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    name: String,
    /// `None` for a Secret: its digest without the key of the installation would let anyone test guesses of its content.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// `None` if the name is unknown, or if there is never a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
    /// Why there is no name.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl SourceDigest {
    /// `NAME sha256:HEX SNAPSHOT-NAME`. `-` stands for a digest that is not shown, and `-` with the reason for a missing name.
    fn line(&self) -> String {
        let reason = || format!("- ({})", self.reason.as_deref().unwrap_or_default());
        let snapshot = self.snapshot.clone().unwrap_or_else(reason);
        format!("{} {} {snapshot}", self.name, self.digest.as_deref().unwrap_or("-"))
    }
}

/// Prints the digest and the snapshot's name of each ConfigMap and Secret. Other objects are skipped.
pub(super) fn run(options: &DigestOptions) -> Result<(), Failure> {
    let all = options.manifests.read()?;
    // All or nothing: no line is printed if a later object is invalid.
    let digests = digests(&all, &options.rotated.in_force())?;
    match options.output.output {
        OutputFormat::Json => output::json(&digests),
        OutputFormat::Yaml => output::yaml(&[&digests]),
        OutputFormat::Name => {
            let name = |source: &SourceDigest| format!("{}/{}", source.kind.to_lowercase(), source.name);
            output::print(&digests.iter().map(name).collect())
        }
        OutputFormat::Table | OutputFormat::Wide => {
            if digests.is_empty() {
                output::note("no ConfigMaps or Secrets in these manifests");
            }
            output::print(&digests.iter().map(SourceDigest::line).collect())
        }
    }
}

fn digests(all: &[(String, Value)], rotated: &Rotated) -> Result<Vec<SourceDigest>, ManifestError> {
    let mut found = Vec::new();
    for (file, object) in all {
        let Some(source) = manifests::source(file, object)? else { continue };
        let (kind, name) = (source.name.kind, &source.name.name);
        let error = |problem: String| manifests::error(file, kind.as_str(), name, &problem);
        let json = source.json.as_bytes();
        let observed = Observed::read(kind, json).map_err(|problem| error(problem.to_string()))?;
        let digest = observed.public_digest();
        let reason = never(&source.name, &observed, rotated).or_else(|| {
            let is_secret = kind == SourceKind::Secret;
            is_secret.then(|| {
                "its digest and the name of its snapshot depend on a key of the installation".to_owned()
            })
        });
        let named = digest.as_ref().filter(|_| reason.is_none());
        let snapshot = named.map(|digest| snapshot_name(name, digest, DIGITS[0]));
        found.push(SourceDigest {
            kind: kind.as_str(),
            namespace: source.namespace,
            name: name.to_string(),
            digest: digest.map(|digest| digest.to_string()),
            snapshot,
            reason,
        });
    }
    Ok(found)
}

/// Why this object never gets a snapshot, whatever its content; `None` if it may get one.
fn never(name: &ObjectName, observed: &Observed, rotated: &Rotated) -> Option<String> {
    let enabled = observed.enabled().unwrap_or_default();
    if observed.identity().is_some() {
        Some("it is a snapshot itself".to_owned())
    } else if rotated.contains(name) {
        Some("no snapshot: the platform changes it by itself".to_owned())
    } else if observed.is_bound_itself() {
        Some(format!("no snapshot: {}={enabled}, the source itself is bound", annotations::ENABLED))
    } else if !observed.stays_as_written() {
        None
    } else if matches!(enabled, "false" | "live") {
        Some(format!("no snapshot: {}={enabled}", annotations::ENABLED))
    } else {
        Some("no snapshot: the platform writes Secrets of this type".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Result<String, String> {
        let objects = manifests::objects("f", text).map_err(|error| error.to_string())?;
        let all: Vec<_> = objects.into_iter().map(|object| ("f".to_owned(), object)).collect();
        let digests = digests(&all, &Rotated::with(["bundle".to_owned()]));
        let digests = digests.map_err(|error| error.to_string())?;
        Ok(digests.iter().map(|source| source.line() + "\n").collect())
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
             demo - - (its digest and the name of its snapshot depend on a key of the installation)\n"
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
            (format!("{}, {snapshot}}}\n", head("ConfigMap", "a-0000000000")), "it is a snapshot itself"),
        ] {
            let line = lines(&manifest).unwrap();
            let [_, digest, said] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert!(said.starts_with(&format!("- ({reason}")), "{line}");
            assert_eq!(digest.starts_with("sha256:"), !manifest.contains("kind: Secret"), "{line}");
        }
        let opaque = lines(&format!("{}}}\ntype: Opaque\n", head("Secret", "a"))).unwrap();
        assert!(opaque.contains("depend on a key"), "{opaque}");
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
        let head = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n";
        for rest in ["data: {password: 1}", "stringData: {password: 1}", "data: {password: '%'}"] {
            let error = lines(&format!("{head}{rest}")).unwrap_err();
            assert!(error.contains("a value is not") && !error.contains("password"), "{error}");
        }
        assert!(lines("apiVersion: v1\nkind: ConfigMap\n").unwrap_err().contains("it has no name"));
        assert!(lines("a: [").unwrap_err().starts_with("f: invalid YAML"));
    }
}
