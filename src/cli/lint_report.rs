//! The findings of `lint` in the formats of pipelines: text, SARIF 2.1.0 and JUnit.

use std::{fmt::Write as _, path::PathBuf};

use clap::ValueEnum;
use serde_json::json;

use super::{
    failure::Failure,
    output::{self, Text},
};

/// How the findings are printed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum ReportFormat {
    /// A line for each finding.
    #[default]
    Text,
    /// SARIF 2.1.0, for code scanning.
    Sarif,
    /// JUnit's XML, for reports of tests.
    Junit,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Yaml,
    Source,
    Setting,
    Schema,
    Workload,
    Reference,
    Order,
}

impl Rule {
    const ALL: [Self; 7] =
        [Self::Yaml, Self::Source, Self::Setting, Self::Schema, Self::Workload, Self::Reference, Self::Order];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Yaml => "yaml",
            Self::Source => "source",
            Self::Setting => "setting",
            Self::Schema => "schema",
            Self::Workload => "workload",
            Self::Reference => "reference",
            Self::Order => "order",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Yaml => "A file that is no YAML",
            Self::Source => "A ConfigMap or Secret that the API server refuses",
            Self::Setting => "A setting of a ConfigMap, Secret or Namespace that is invalid or has no effect",
            Self::Schema => "Content that does not match its schema",
            Self::Workload => "A workload that admission refuses",
            Self::Reference => "A reference or a setting of a workload that admission warns about",
            Self::Order => "A workload that kubectl applies before its ConfigMap or Secret",
        }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Error,
    Warning,
}

impl Level {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// Where an object is: its file, and the line at which its document begins, from 1.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) file: String,
    pub(super) line: u64,
}

/// One problem.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) rule: Rule,
    pub(super) place: Location,
    /// The kind and the name of the object; empty if the message names it.
    pub(super) object: String,
    pub(super) message: String,
}

impl Finding {
    pub(super) fn error(rule: Rule, place: &Location, object: &str, message: String) -> Self {
        Self { level: Level::Error, rule, place: place.clone(), object: object.to_owned(), message }
    }

    pub(super) fn warning(rule: Rule, place: &Location, object: &str, message: String) -> Self {
        Self { level: Level::Warning, ..Self::error(rule, place, object, message) }
    }

    /// The message with the object.
    fn full(&self) -> String {
        if self.object.is_empty() {
            self.message.clone()
        } else {
            format!("{}: {}", self.object, self.message)
        }
    }
}

/// Prints the report. `objects`: all that were checked, each with its file.
pub(super) fn print(
    format: ReportFormat,
    objects: &[(String, String)],
    findings: &[Finding],
) -> Result<(), Failure> {
    match format {
        ReportFormat::Text => {
            let lines = findings.iter().map(|finding| {
                let (level, rule) = (finding.level.as_str(), finding.rule.as_str());
                format!("{}: {level}: {} [{rule}]", finding.place.file, finding.full())
            });
            output::print(&lines.collect())
        }
        ReportFormat::Sarif => output::json(&sarif(findings)),
        ReportFormat::Junit => {
            let mut text = Text::default();
            text.push_content("", &junit(objects, findings));
            output::print(&text)
        }
    }
}

fn sarif(findings: &[Finding]) -> serde_json::Value {
    let rules: Vec<_> = Rule::ALL
        .iter()
        .map(|rule| json!({"id": rule.as_str(), "shortDescription": {"text": rule.description()}}))
        .collect();
    let results: Vec<_> = findings
        .iter()
        .map(|finding| {
            let Location { file, line } = &finding.place;
            let location = json!({"artifactLocation": {"uri": uri(file)}, "region": {"startLine": line}});
            json!({
                "ruleId": finding.rule.as_str(),
                "level": finding.level.as_str(),
                "message": {"text": finding.full()},
                "locations": [{"physicalLocation": location}],
            })
        })
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "confrev", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "results": results,
        }],
    })
}

/// A path in a report: with slashes, and without a leading `./`.
fn slashed(file: &str) -> String {
    let path: PathBuf = file.into();
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    let joined = parts.join("/");
    joined.strip_prefix("./").unwrap_or(&joined).replace("//", "/")
}

/// A path as a URI reference (RFC 3986).
fn uri(file: &str) -> String {
    let mut uri = String::new();
    for byte in slashed(file).bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    if uri.starts_with('/') { format!("file://{uri}") } else { uri }
}

/// One test for each object, which fails with its errors. Warnings are its output.
fn junit(objects: &[(String, String)], findings: &[Finding]) -> String {
    let mut cases: Vec<(String, String)> = objects.to_vec();
    for finding in findings {
        let case = (finding.place.file.clone(), finding.object.clone());
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    let mut text = String::new();
    let mut failures = 0;
    for (file, object) in &cases {
        let own: Vec<_> = findings
            .iter()
            .filter(|finding| finding.place.file == *file && finding.object == *object)
            .collect();
        let name = if object.is_empty() { "the manifests" } else { object };
        let _ = write!(text, "    <testcase classname=\"{}\" name=\"{}\"", escape(file), escape(name));
        if own.is_empty() {
            text.push_str("/>\n");
            continue;
        }
        text.push_str(">\n");
        let is_error = |finding: &&&Finding| finding.level == Level::Error;
        failures += usize::from(own.iter().any(|finding| is_error(&finding)));
        for finding in own.iter().filter(is_error) {
            let (rule, message) = (finding.rule.as_str(), escape(&finding.message));
            let _ = writeln!(text, "      <failure type=\"{rule}\" message=\"{message}\"/>");
        }
        let warnings: Vec<_> = own.iter().filter(|finding| finding.level == Level::Warning).collect();
        if !warnings.is_empty() {
            let lines: Vec<_> = warnings.iter().map(|finding| escape(&finding.message)).collect();
            let _ = writeln!(text, "      <system-out>{}</system-out>", lines.join("\n"));
        }
        text.push_str("    </testcase>\n");
    }
    let counts = format!("tests=\"{}\" failures=\"{failures}\"", cases.len());
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  <testsuite name=\"confrev lint\" {counts}>\n\
         {text}  </testsuite>\n</testsuites>\n"
    )
}

/// Text for XML. Characters that XML does not have are replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            '\u{0}'..='\u{1f}' | '\u{7f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_escapes_names_of_files_and_objects() {
        let place = Location { file: "a b/<c>.yaml".to_owned(), line: 7 };
        let finding = Finding::error(Rule::Schema, &place, "ConfigMap \"a&b\"", "x < y\u{1}".to_owned());
        let junit = junit(&[], std::slice::from_ref(&finding));
        for part in [
            "classname=\"a b/&lt;c&gt;.yaml\" name=\"ConfigMap &quot;a&amp;b&quot;\"",
            "type=\"schema\" message=\"x &lt; y\u{fffd}\"",
            "tests=\"1\" failures=\"1\"",
        ] {
            assert!(junit.contains(part), "{junit}");
        }
        let sarif = sarif(&[finding]);
        let result = &sarif["runs"][0]["results"][0];
        assert_eq!(
            result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            "a%20b/%3Cc%3E.yaml"
        );
        assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 7);
        assert_eq!((&result["ruleId"], &result["level"]), (&json!("schema"), &json!("error")));
        assert_eq!(uri("/a/b.yaml"), "file:///a/b.yaml");
    }

    #[test]
    fn paths_in_reports_have_slashes() {
        assert_eq!(slashed("./a/b.yaml"), "a/b.yaml");
        assert_eq!(slashed("/a/b.yaml"), "/a/b.yaml");
    }
}
