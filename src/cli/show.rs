//! `kubectl confrev show`: the content that a pod, a workload or a revision runs with, since when, and how it differs from the
//! present.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use clap::Args;
use jiff::Timestamp;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use super::{
    diff::{self, Content, Side},
    failure::Failure,
    history::stated_change,
    inventory::{
        Inventory, Scope, is_called, is_owned, revision_number, revision_template, source_kind, sources_of,
        text,
    },
    output::{self, OutputFlag, OutputFormat},
    target::{Flags, Target},
};
use crate::{
    kinds::{REVISION_KINDS, RevisionKind, WorkloadKind},
    snapshot::{Authorship, ObjectName, SourceKind, is_object_name},
    template::{SourceMap, Template},
};

/// Options of `show`.
#[derive(Debug, Args)]
pub(super) struct ShowOptions {
    /// The object: pod/NAME, or a workload as kind/NAME or NAME, or kind/NAME@REVISION. REVISION is the number of `kubectl
    /// rollout history`, or of `kubectl argo rollouts history` for a Rollout.
    #[arg(value_name = "KIND/NAME[@REVISION]")]
    object: String,
    /// Show the values of Secrets.
    #[arg(long)]
    show_values: bool,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// A pod template, and the object that it belongs to.
struct NamedTemplate {
    /// `Kind/name`, and the number of the revision.
    object: String,
    template: Value,
}

/// An object with its sources.
#[derive(Debug, Serialize)]
struct Shown {
    object: String,
    sources: Vec<ShownSource>,
}

/// A source, as the object reads it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownSource {
    /// `ConfigMap/name` or `Secret/name`.
    source: String,
    /// The snapshot that is read in place of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
    state: Comparison,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<BTreeMap<String, ShownValue>>,
    /// The keys whose values differ in the present source.
    differs_in: Vec<String>,
    /// The differences from the present source.
    #[serde(skip)]
    differences: String,
}

/// A source's present content, compared with the content that the object reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Comparison {
    /// It is the same.
    Present,
    /// It differs.
    Differs,
    /// The source no longer exists.
    SourceGone,
    /// The reference is not resolved to a snapshot: the object reads the source itself.
    AsWritten,
    /// The object that is read does not exist.
    Missing,
    /// The user may not read it.
    Forbidden,
}

/// A value of a key.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ShownValue {
    Text(String),
    /// A value of a Secret, or one that is not text.
    Summary {
        size: usize,
        digest: String,
    },
}

/// Runs the command.
pub(super) async fn run(options: &ShowOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let found = find(&target, &options.object).await?;
    let mut sources = Vec::new();
    for (source, read) in references(&found.template, &target)? {
        sources.push(shown_source(&target, &source, &read, options.show_values).await?);
    }
    let shown = Shown { object: found.object, sources };
    match options.output.output {
        OutputFormat::Json => output::print(&(output::to_json(&shown)? + "\n")),
        OutputFormat::Yaml => output::print(&output::to_yaml(&shown)?),
        OutputFormat::Name => {
            let name = |source: &ShownSource| {
                let (kind, name) = source.source.split_once('/').unwrap_or_default();
                format!("{}/{}\n", kind.to_lowercase(), source.snapshot.as_deref().unwrap_or(name))
            };
            output::print(&shown.sources.iter().map(name).collect::<String>())
        }
        OutputFormat::Table | OutputFormat::Wide => output::print(&shown.for_people()),
    }
}

/// Finds the object by the user's words.
async fn find(target: &Target, words: &str) -> Result<NamedTemplate, Failure> {
    let form =
        || Failure::Usage(format!("invalid object {words:?}: use pod/NAME, KIND/NAME or KIND/NAME@REVISION"));
    let named;
    let (kind, name) = if let Some(both) = words.split_once('/') {
        both
    } else {
        let (name, revision) = words.find('@').map_or((words, ""), |at| words.split_at(at));
        if !is_object_name(name) {
            return Err(form());
        }
        let inventory =
            Inventory::read_workloads(target, &Scope::Namespace(target.namespace.clone())).await?;
        named = inventory.find(target, name)?.reference() + revision;
        named.split_once('/').ok_or_else(form)?
    };
    let (name, revision) = match name.split_once('@') {
        Some((name, number)) => (name, Some(number.parse::<i64>().map_err(|_| form())?)),
        None => (name, None),
    };
    if !is_object_name(name) {
        return Err(form());
    }
    let plain = match kind.to_ascii_lowercase().as_str() {
        "po" | "pod" | "pods" => Some(("v1", "pods", "Pod")),
        "rs" | "replicaset" | "replicasets" => Some(("apps/v1", "replicasets", "ReplicaSet")),
        "controllerrevision" | "controllerrevisions" => {
            Some(("apps/v1", "controllerrevisions", "ControllerRevision"))
        }
        _ => None,
    };
    if let Some((version, plural, kind)) = plain {
        if revision.is_some() {
            return Err(Failure::Usage(format!("{kind}/{name} has no revisions: leave out @REVISION")));
        }
        let mut value = get(target, version, plural, kind, name).await?;
        value["kind"] = kind.into();
        let template = if kind == "Pod" { Some(&value) } else { revision_template(&value) };
        let template = template.cloned().unwrap_or_default();
        return Ok(NamedTemplate { object: format!("{kind}/{name}"), template });
    }
    let known = target.kinds.iter().find(|known| is_called(known, kind));
    let known = known.ok_or_else(|| {
        let source = source_kind(kind).map(|kind| kind.as_str().to_lowercase());
        let then = source.map(|kind| format!(": for a source, run kubectl confrev history {kind}/{name}"));
        Failure::Usage(format!("unknown kind of object {kind:?}{}", then.unwrap_or_default()))
    })?;
    let workload = get(target, &known.api_version(), &known.plural, &known.kind, name).await?;
    match revision {
        None => present_template(target, known, &workload, name).await,
        Some(number) => revision_of(target, known, &workload, number).await,
    }
}

/// The present template of a workload. A Rollout may take it from another object.
async fn present_template(
    target: &Target,
    kind: &WorkloadKind,
    workload: &Value,
    name: &str,
) -> Result<NamedTemplate, Failure> {
    let object = format!("{}/{name}", kind.kind);
    let reference = workload.pointer("/spec/workloadRef").filter(|_| kind.kind == "Rollout");
    let Some(reference) = reference else {
        let template = workload.pointer(&kind.template_pointer()).cloned().unwrap_or_default();
        return Ok(NamedTemplate { object, template });
    };
    let (of, at) = (text(reference, "/kind"), text(reference, "/name"));
    let lender = target.kinds.by_kind(text(reference, "/apiVersion"), of).filter(|_| is_object_name(at));
    let lender = lender.ok_or_else(|| {
        Failure::NotFound(format!("{object} takes its template from {of}/{at}, which is of an unknown kind"))
    })?;
    let lent = get(target, &lender.api_version(), &lender.plural, of, at).await?;
    let template = lent.pointer(&lender.template_pointer()).cloned().unwrap_or_default();
    Ok(NamedTemplate { object: format!("{object} ({of}/{at})"), template })
}

/// The revision of a workload with this number.
async fn revision_of(
    target: &Target,
    kind: &WorkloadKind,
    workload: &Value,
    number: i64,
) -> Result<NamedTemplate, Failure> {
    let uid = text(workload, "/metadata/uid");
    let object = format!("{}/{}", kind.kind, text(workload, "/metadata/name"));
    let is_numbered = |kind: &&RevisionKind| kind.kind != "Job";
    let mut numbers = BTreeSet::new();
    for kind in REVISION_KINDS.iter().filter(is_numbered) {
        let collection =
            format!("/apis/{}/namespaces/{}/{}", kind.api_version(), target.namespace, kind.plural);
        for revision in target.list(&collection, kind.kind, "").await? {
            if !is_owned(&revision, |owner| owner == uid) {
                continue;
            }
            if revision_number(&revision) == Some(number) {
                let object =
                    format!("{object}@{number} ({}/{})", kind.kind, text(&revision, "/metadata/name"));
                return Ok(NamedTemplate {
                    object,
                    template: revision_template(&revision).cloned().unwrap_or_default(),
                });
            }
            numbers.extend(revision_number(&revision));
        }
    }
    let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    let has = if numbers.is_empty() {
        "it has no numbered revisions".to_owned()
    } else {
        format!("it has {}", numbers.join(", "))
    };
    Err(Failure::NotFound(format!("{object} has no revision {number}: {has}")))
}

/// Reads an object that must exist. By a list, since the other commands need no right to get most kinds.
async fn get(target: &Target, version: &str, plural: &str, kind: &str, name: &str) -> Result<Value, Failure> {
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let path = format!("{root}/{version}/namespaces/{}/{plural}", target.namespace);
    let found = target.get(&format!("{path}?fieldSelector=metadata.name%3D{name}")).await?;
    if let Some(object) = found.and_then(|mut list| list.get_mut("items")?.as_array_mut()?.pop()) {
        return Ok(object);
    }
    target.require_namespace().await?;
    Err(Failure::NotFound(format!("{kind}/{name} does not exist in namespace {:?}", target.namespace)))
}

/// The sources that a template refers to, and the name that it reads each under.
fn references(template: &Value, target: &Target) -> Result<BTreeSet<(ObjectName, ObjectName)>, Failure> {
    let wrong = |error| Failure::NotFound(format!("the pod template cannot be read: {error}"));
    let pod = Template::deserialize(template).map_err(wrong)?;
    let sources: SourceMap<String> = sources_of(Some(template));
    let read = pod.references().into_iter().map(|reference| {
        let read = ObjectName::new(reference.kind, reference.name);
        let source = sources.source_of(reference.kind, reference.name).cloned();
        (source.unwrap_or_else(|| read.clone()), read)
    });
    // The platform's own, such as the CA that every pod mounts.
    Ok(read.filter(|(source, _)| !target.rotated.contains(source)).collect())
}

/// What a reference reads, compared with the present source.
async fn shown_source(
    target: &Target,
    source: &ObjectName,
    read: &ObjectName,
    show_values: bool,
) -> Result<ShownSource, Failure> {
    let (kind, is_resolved) = (source.kind, source != read);
    let mut shown = ShownSource {
        source: format!("{}/{}", kind.as_str(), source.name),
        snapshot: is_resolved.then(|| read.name.to_string()),
        state: Comparison::Missing,
        changed_at: None,
        changed_by: None,
        content: None,
        differs_in: Vec::new(),
        differences: String::new(),
    };
    let object = match read_object(target, read).await {
        Err(Failure::Refused(_)) => {
            shown.state = Comparison::Forbidden;
            return Ok(shown);
        }
        object => object?,
    };
    let Some(object) = object else { return Ok(shown) };
    let change = if is_resolved {
        stated_change(&object)
    } else {
        Authorship::of(object.to_string().as_bytes(), Timestamp::now())
    };
    if let Some(Authorship { at, by }) = change {
        (shown.changed_at, shown.changed_by) = (Some(at), Some(by));
    }
    let content = Content::of(kind, &object);
    shown.content = Some(
        content.values().map(|(key, value)| (key.clone(), shown_value(kind, value, show_values))).collect(),
    );
    if !is_resolved {
        shown.state = Comparison::AsWritten;
        return Ok(shown);
    }
    shown.state = match read_object(target, source).await? {
        None => Comparison::SourceGone,
        Some(present) => {
            let old = Side { name: read.name.to_string(), content };
            let new = Side { name: source.name.to_string(), content: Content::of(kind, &present) };
            shown.differs_in = diff::keys_that_differ(&old, &new).cloned().collect();
            shown.differences = diff::compare(kind, &old, &new, show_values);
            if shown.differs_in.is_empty() { Comparison::Present } else { Comparison::Differs }
        }
    };
    Ok(shown)
}

async fn read_object(target: &Target, object: &ObjectName) -> Result<Option<Value>, Failure> {
    if !is_object_name(&object.name) {
        return Ok(None);
    }
    let plural = object.kind.plural();
    target.get(&format!("/api/v1/namespaces/{}/{plural}/{}", target.namespace, object.name)).await
}

fn shown_value(kind: SourceKind, value: &[u8], show_values: bool) -> ShownValue {
    match std::str::from_utf8(value) {
        Ok(text) if kind == SourceKind::ConfigMap || show_values => ShownValue::Text(text.to_owned()),
        _ => ShownValue::Summary { size: value.len(), digest: diff::short_digest(value) },
    }
}

impl Shown {
    fn for_people(&self) -> String {
        let mut out = format!("{}\n", self.object);
        if self.sources.is_empty() {
            out += "  refers to no ConfigMap or Secret\n";
        }
        for source in &self.sources {
            // Writing to a String cannot fail.
            let _ = write!(out, "\n{}", source.source);
            if let Some(snapshot) = &source.snapshot {
                let _ = write!(out, "   snapshot {snapshot}");
            }
            if let (Some(at), Some(by)) = (&source.changed_at, &source.changed_by) {
                let _ = write!(out, "   since {at} by {}", printable(by));
            }
            let _ = writeln!(out, "   {}", source.state.words());
            for (key, value) in source.content.iter().flatten() {
                match value {
                    ShownValue::Text(text) => {
                        let _ = writeln!(out, "  {key}:");
                        for line in text.lines() {
                            let _ = writeln!(out, "    {}", printable(line));
                        }
                    }
                    ShownValue::Summary { size, digest } => {
                        let _ = writeln!(out, "  {key}: {size} bytes, sha256 {digest}");
                    }
                }
            }
            for line in source.differences.lines() {
                let _ = writeln!(out, "  {line}");
            }
        }
        out
    }
}

impl Comparison {
    /// The state in words.
    const fn words(self) -> &'static str {
        match self {
            Self::Present => "same as the present source",
            Self::Differs => "differs from the present source",
            Self::SourceGone => "the source no longer exists",
            Self::AsWritten => "as written: the present content of the source",
            Self::Missing => "does not exist",
            Self::Forbidden => "cannot be read: ask for the right to get it",
        }
    }
}

/// The text without characters that a terminal acts on.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_values_are_shown_on_request_only() {
        let shown = |kind, show| serde_json::to_value(shown_value(kind, b"hunter2", show)).unwrap();
        assert_eq!(shown(SourceKind::ConfigMap, false), "hunter2");
        assert_eq!(shown(SourceKind::Secret, true), "hunter2");
        let hidden = shown(SourceKind::Secret, false);
        assert_eq!(hidden["size"], 7);
        assert!(!hidden.to_string().contains("hunter"), "{hidden}");
        let binary = serde_json::to_value(shown_value(SourceKind::ConfigMap, b"\xff\xfe", true)).unwrap();
        assert_eq!(binary["size"], 2);
    }

    #[test]
    fn content_cannot_control_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\tc\u{9b}d"), "a\u{fffd}[2Jb\tc\u{fffd}d");
    }
}
