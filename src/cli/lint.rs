//! `kubectl confrev lint`: checks manifests as admission would, without a cluster.

use std::collections::BTreeMap;

use clap::{ArgGroup, Args};
use serde_json::Value;

use super::{
    failure::Failure,
    flags::{DefaultsFlag, KindFlag, RotatedFlag},
    lint_report::{self, Finding, Level, Location, ReportFormat, Rule},
    manifests::{self, Manifest, ManifestError, ManifestFlags},
    render::{Given, is_namespace, workload_kind},
};
use crate::{
    admission::{invalid_setting, odd_settings},
    gate_settings::Texts,
    kinds::Kinds,
    resolve::{Carried, Defaults, Observed, Request, Workload},
    snapshot::Rotated,
};

/// Options of `lint`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("input").args(["filename", "kustomize"]).required(true))]
pub(super) struct LintOptions {
    #[command(flatten)]
    manifests: ManifestFlags,
    /// The namespace of objects that do not specify one.
    #[arg(short, long, default_value = "default", value_name = "NAMESPACE")]
    namespace: String,
    /// Warnings count as errors.
    #[arg(long)]
    strict: bool,
    /// How to print the findings.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: ReportFormat,
    #[command(flatten)]
    kinds: KindFlag,
    #[command(flatten)]
    rotated: RotatedFlag,
    #[command(flatten)]
    defaults: DefaultsFlag,
}

/// Runs the command.
pub(super) fn run(options: &LintOptions) -> Result<(), Failure> {
    let texts = options.manifests.read_texts()?;
    let kinds = options.kinds.in_force();
    let defaults = options.defaults.in_force().map_err(Failure::Usage)?;
    let of_installation = (options.rotated.in_force(), defaults);
    let Checked { objects, findings } = check(&kinds, texts, of_installation, &options.namespace)?;
    lint_report::print(options.output, &objects, &findings)?;
    let is_error = |finding: &&Finding| options.strict || finding.level == Level::Error;
    match findings.iter().filter(is_error).count() {
        0 => Ok(()),
        1 => Err(Failure::No("1 problem was found".to_owned())),
        count => Err(Failure::No(format!("{count} problems were found"))),
    }
}

/// What was checked.
struct Checked {
    /// The objects, each with its file.
    objects: Vec<(String, String)>,
    /// In the order of the files and their lines.
    findings: Vec<Finding>,
}

fn check(
    kinds: &Kinds,
    texts: Vec<Result<Vec<Manifest>, ManifestError>>,
    (rotated, defaults): (Rotated, Defaults),
    default: &str,
) -> Result<Checked, Failure> {
    let (mut objects, mut findings) = (Vec::new(), Vec::new());
    let (mut readable, mut places, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for text in texts {
        let manifests = match text {
            Ok(manifests) => manifests,
            Err(ManifestError::Yaml { file, line, reason }) => {
                files.push(file.clone());
                findings.push(Finding::error(Rule::Yaml, &Location { file, line }, "", reason));
                continue;
            }
            Err(other) => return Err(other.into()),
        };
        for Manifest { file, line, object } in manifests {
            files.push(file.clone());
            let place = Location { file, line };
            match source(&place.file, &object) {
                Ok(_) => {
                    readable.push((place.file.clone(), object));
                    places.push(place);
                }
                Err(message) => {
                    findings.push(Finding::error(Rule::Source, &place, &display(&object), message));
                }
            }
        }
    }
    // What was read does not fail.
    let mut given = Given::read(kinds, &readable, default, defaults)?;
    // The content is checked where it is, and not again for each workload.
    (given.rotated, given.ignores_schemas) = (rotated, true);
    for (place, (file, object)) in places.iter().zip(&readable) {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(default);
        let name = display(object);
        if let Ok(Some(observed)) = source(file, object) {
            objects.push((file.clone(), name.clone()));
            check_source(place, &name, namespace, &observed, &given, &mut findings);
        } else if is_namespace(object) {
            objects.push((file.clone(), name.clone()));
            let invalid =
                Texts::of_namespace(|key| object["metadata"]["annotations"][key].as_str()).invalid();
            findings
                .extend(invalid.into_iter().map(|text| Finding::error(Rule::Setting, place, &name, text)));
        } else if let Some(kind) = workload_kind(kinds, object) {
            objects.push((file.clone(), name.clone()));
            let text = object.to_string();
            match Workload::parse(kind, &text) {
                Err(error) => findings.push(Finding::error(Rule::Workload, place, &name, error.to_string())),
                Ok(new) => {
                    let new = given.inherited.workload(namespace, new);
                    let request =
                        Request { namespace, secrets: false, new, old: None, carried: Carried::default() };
                    let decision = given.preview(&request);
                    let start = format!("{}: ", request.new.display());
                    let short = |text: String| text.strip_prefix(&start).map_or(text.clone(), str::to_owned);
                    findings.extend(
                        decision.denial.map(|text| Finding::error(Rule::Workload, place, &name, short(text))),
                    );
                    let warnings = decision.warnings.into_iter();
                    findings.extend(
                        warnings.map(|text| Finding::warning(Rule::Reference, place, &name, short(text))),
                    );
                }
            }
        }
    }
    for (at, warning) in manifests::find_wrong_orders(kinds, &readable) {
        let place = places.get(at).cloned();
        findings.extend(place.map(|place| Finding::warning(Rule::Order, &place, "", warning)));
    }
    // A stable sort keeps the order of the objects of a document.
    let order: BTreeMap<&str, usize> =
        files.iter().enumerate().rev().map(|(at, file)| (file.as_str(), at)).collect();
    findings.sort_by_key(|finding| (order.get(finding.place.file.as_str()).copied(), finding.place.line));
    Ok(Checked { objects, findings })
}

/// A ConfigMap or Secret as admission reads it; otherwise what is wrong.
fn source(file: &str, object: &Value) -> Result<Option<Observed>, String> {
    let start = format!("{file}: {}: ", display(object));
    let short = |text: String| text.strip_prefix(&start).map_or(text.clone(), str::to_owned);
    let Some(source) = manifests::source(file, object).map_err(|error| short(error.to_string()))? else {
        return Ok(None);
    };
    let observed = Observed::read(source.name.kind, source.json.into_bytes());
    observed.map(Some).map_err(|error| error.to_string())
}

fn check_source(
    place: &Location,
    name: &str,
    namespace: &str,
    observed: &Observed,
    given: &Given,
    findings: &mut Vec<Finding>,
) {
    if let Some(invalid) = invalid_setting(observed) {
        findings.push(Finding::error(Rule::Setting, place, name, invalid));
    }
    for odd in odd_settings(observed) {
        findings.push(Finding::warning(Rule::Setting, place, name, odd));
    }
    match given.schema_failure(namespace, observed) {
        Some(Ok(())) => {}
        Some(Err(failure)) => findings.push(Finding::error(Rule::Schema, place, name, failure)),
        None => {
            let message = "the manifests do not contain its schema, so its content is not checked";
            findings.push(Finding::warning(Rule::Schema, place, name, message.to_owned()));
        }
    }
}

/// The kind and the name of an object.
fn display(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    format!("{} {name:?}", object["kind"].as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings of a text, each as `LEVEL RULE MESSAGE`.
    fn found(text: &str) -> Vec<String> {
        let texts = vec![manifests::parse("f", text)];
        let checked = check(&Kinds::default(), texts, (Rotated::default(), Defaults::default()), "default");
        let findings = checked.unwrap_or_else(|_| panic!("manifests")).findings;
        let text = |finding: &Finding| {
            let (level, rule) = (finding.level.as_str(), finding.rule.as_str());
            format!("{level} {rule} {}: {}", finding.object, finding.message)
        };
        findings.iter().map(text).collect()
    }

    const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {confrev.dev/enabled: \"true\"}}\n\
        spec: {template: {spec: {volumes: [{name: v, configMap: {name: demo}}]}}}\n";
    const DEMO: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: demo}\ndata: {color: blue}\n";

    #[test]
    fn lint_finds_what_admission_refuses_or_warns_about() {
        assert_eq!(found(&format!("{DEMO}---\n{WEB}")), [""; 0]);
        for (text, expected) in [
            (format!("{WEB}---\n{DEMO}"), "warning order : Deployment \"web\" comes before"),
            (WEB.to_owned(), "warning reference Deployment \"web\": ConfigMap \"demo\" does not exist"),
            (
                WEB.replace("{name: web,", "{name: web, annotations: {confrev.dev/track: maybe},"),
                "error workload Deployment \"web\": annotation confrev.dev/track",
            ),
            (
                DEMO.replace("{name: demo}", "{name: demo, annotations: {confrev.dev/waves: all}}"),
                "error setting ConfigMap \"demo\": annotation confrev.dev/waves",
            ),
            (
                DEMO.replace("{name: demo}", "{name: demo, annotations: {confrev.dev/keep: many}}"),
                "warning setting ConfigMap \"demo\": annotation confrev.dev/keep",
            ),
            (
                DEMO.replace("{name: demo}", "{name: demo, annotations: {confrev.dev/schema: a}}"),
                "error schema ConfigMap \"demo\": annotation confrev.dev/schema",
            ),
            (
                DEMO.replace("{name: demo}", "{name: demo, annotations: {confrev.dev/schema: a/b}}"),
                "warning schema ConfigMap \"demo\": the manifests do not contain its schema",
            ),
            (DEMO.replace("blue", "1"), "error source ConfigMap \"demo\": data: the value of key \"color\""),
        ] {
            let found = found(&text);
            assert!(found.iter().any(|found| found.starts_with(expected)), "{expected}: {found:?}");
        }
    }
}
