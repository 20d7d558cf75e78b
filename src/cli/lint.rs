//! `kubectl confrev lint`: checks manifests as admission would, without a cluster.

use std::collections::BTreeMap;

use clap::{ArgGroup, Args};
use serde_json::Value;

use super::{
    failure::Failure,
    flags::{KindFlag, RotatedFlag},
    lint_report::{self, Finding, Level, ReportFormat, Rule},
    manifests::{self, ManifestFlags},
    output,
    render::{Given, workload_kind},
};
use crate::{
    admission::{invalid_setting, odd_settings},
    kinds::Kinds,
    resolve::{Observed, Request, Workload},
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
}

/// Runs the command.
pub(super) fn run(options: &LintOptions) -> Result<(), Failure> {
    let all = options.manifests.read()?;
    let kinds = options.kinds.in_force();
    let (objects, findings) = check(&kinds, &all, options.rotated.in_force(), &options.namespace);
    output::print(&lint_report::text(options.output, &objects, &findings)?)?;
    let is_error = |finding: &&Finding| options.strict || finding.level == Level::Error;
    match findings.iter().filter(is_error).count() {
        0 => Ok(()),
        1 => Err(Failure::No("1 problem was found".to_owned())),
        count => Err(Failure::No(format!("{count} problems were found"))),
    }
}

/// The checked objects, each with its file, and the findings in the order of the files.
fn check(
    kinds: &Kinds,
    all: &[(String, Value)],
    rotated: Rotated,
    default: &str,
) -> (Vec<(String, String)>, Vec<Finding>) {
    let (mut objects, mut findings) = (Vec::new(), Vec::new());
    let mut readable = Vec::new();
    for (file, object) in all {
        match source(file, object) {
            Ok(_) => readable.push((file.clone(), object.clone())),
            Err(message) => findings.push(Finding::error(Rule::Source, file, &display(object), message)),
        }
    }
    // What was read does not fail.
    let Ok(mut given) = Given::read(kinds, &readable, default) else { return (objects, findings) };
    // The content is checked where it is, and not again for each workload.
    (given.rotated, given.ignores_schemas) = (rotated, true);
    for (file, object) in &readable {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(default);
        let name = display(object);
        if let Ok(Some(observed)) = source(file, object) {
            objects.push((file.clone(), name.clone()));
            check_source(file, &name, namespace, &observed, &given, &mut findings);
        } else if let Some(kind) = workload_kind(kinds, object) {
            objects.push((file.clone(), name.clone()));
            let text = object.to_string();
            match Workload::parse(kind, &text) {
                Err(error) => findings.push(Finding::error(Rule::Workload, file, &name, error.to_string())),
                Ok(new) => {
                    let request = Request { namespace, secrets: false, new, old: None };
                    let decision = given.decide(&request);
                    let start = format!("{}: ", request.new.display());
                    let short = |text: String| text.strip_prefix(&start).map_or(text.clone(), str::to_owned);
                    findings.extend(
                        decision.denial.map(|text| Finding::error(Rule::Workload, file, &name, short(text))),
                    );
                    let warnings = decision.warnings.into_iter();
                    findings.extend(
                        warnings.map(|text| Finding::warning(Rule::Reference, file, &name, short(text))),
                    );
                }
            }
        }
    }
    for (file, warning) in manifests::find_wrong_orders(kinds, &readable) {
        findings.push(Finding::warning(Rule::Order, &file, "", warning));
    }
    // In the order of the files; a stable sort keeps that of the objects.
    let places: BTreeMap<&str, usize> =
        all.iter().enumerate().rev().map(|(at, (file, _))| (file.as_str(), at)).collect();
    findings.sort_by_key(|finding| places.get(finding.file.as_str()).copied());
    (objects, findings)
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
    file: &str,
    name: &str,
    namespace: &str,
    observed: &Observed,
    given: &Given,
    findings: &mut Vec<Finding>,
) {
    if let Some(invalid) = invalid_setting(observed) {
        findings.push(Finding::error(Rule::Setting, file, name, invalid));
    }
    for odd in odd_settings(observed) {
        findings.push(Finding::warning(Rule::Setting, file, name, odd));
    }
    match given.schema_failure(namespace, observed) {
        Some(Ok(())) => {}
        Some(Err(failure)) => findings.push(Finding::error(Rule::Schema, file, name, failure)),
        None => {
            let message = "the manifests do not contain its schema, so its content is not checked";
            findings.push(Finding::warning(Rule::Schema, file, name, message.to_owned()));
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
        let objects = manifests::objects("f", text).unwrap();
        let all: Vec<_> = objects.into_iter().map(|object| ("f".to_owned(), object)).collect();
        let (_, findings) = check(&Kinds::default(), &all, Rotated::default(), "default");
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
