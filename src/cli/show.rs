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
    content::{Content, ShownValue},
    diff::{self, Changes, Side},
    failure::Failure,
    history::stated_change,
    inventory::Inventory,
    objects::{
        Scope, is_called, is_owned, revision_number, revision_template, source_kind, sources_of, text,
    },
    output::{self, OutputFlag, OutputFormat, Text},
    target::{Flags, Target},
};
use crate::{
    kinds::{REVISION_KINDS, RevisionKind, WorkloadKind},
    snapshot::{Authorship, ObjectName, is_object_name},
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
    /// The keys whose values differ in the present source; `None` if values are hidden.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs_in: Option<Vec<String>>,
    /// Whether values are hidden.
    #[serde(skip)]
    is_hidden: bool,
    /// The differences from the present source.
    #[serde(skip)]
    differences: Text,
}

impl ShownSource {
    /// A source that was not read.
    fn new(source: String, state: Comparison) -> Self {
        Self {
            source,
            snapshot: None,
            state,
            changed_at: None,
            changed_by: None,
            content: None,
            differs_in: Some(Vec::new()),
            is_hidden: false,
            differences: Text::default(),
        }
    }
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
        OutputFormat::Json => output::json(&shown),
        OutputFormat::Yaml => output::yaml(&[&shown]),
        OutputFormat::Name => {
            let name = |source: &ShownSource| {
                let (kind, name) = source.source.split_once('/').unwrap_or_default();
                format!("{}/{}", kind.to_lowercase(), source.snapshot.as_deref().unwrap_or(name))
            };
            output::print(&shown.sources.iter().map(name).collect())
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
    let name = format!("{}/{}", kind.as_str(), source.name);
    let snapshot = is_resolved.then(|| read.name.to_string());
    let mut shown = ShownSource { snapshot, ..ShownSource::new(name, Comparison::Missing) };
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
    let content = Content::of(kind, &object, show_values);
    let values = content.shown().map(|values| values.iter());
    shown.content =
        values.map(|values| values.map(|(key, value)| (key.clone(), content.shown_value(value))).collect());
    shown.is_hidden = shown.content.is_none();
    if shown.is_hidden {
        shown.differs_in = None;
    }
    if !is_resolved {
        shown.state = Comparison::AsWritten;
        return Ok(shown);
    }
    shown.state = match read_object(target, source).await? {
        None => Comparison::SourceGone,
        Some(present) => {
            let old = Side { name: read.name.to_string(), content };
            let content = Content::of(kind, &present, show_values);
            let new = Side { name: source.name.to_string(), content };
            shown.differences = diff::compare(&old, &new);
            match diff::changes(&old, &new) {
                Changes::None => Comparison::Present,
                Changes::Hidden => Comparison::Differs,
                Changes::Keys(keys) => {
                    let keys = keys.iter().map(|change| change.key.to_owned());
                    shown.differs_in = Some(keys.collect());
                    Comparison::Differs
                }
            }
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

impl Shown {
    fn for_people(&self) -> Text {
        let mut out = Text::of_line(&self.object);
        if self.sources.is_empty() {
            out.push("  refers to no ConfigMap or Secret");
        }
        for source in &self.sources {
            out.push("");
            let mut head = source.source.clone();
            // Writing to a String cannot fail.
            if let Some(snapshot) = &source.snapshot {
                let _ = write!(head, "   snapshot {snapshot}");
            }
            if let (Some(at), Some(by)) = (&source.changed_at, &source.changed_by) {
                let _ = write!(head, "   since {at} by {by}");
            }
            out.push(&format!("{head}   {}", source.state.words()));
            if source.is_hidden {
                out.push("  values hidden, --show-values shows them");
            }
            for (key, value) in source.content.iter().flatten() {
                match value {
                    ShownValue::Text(text) => {
                        out.push(&format!("  {key}:"));
                        out.push_content("    ", text);
                    }
                    ShownValue::Summary { size, digest } => {
                        out.push(&format!("  {key}: {size} bytes, sha256 {digest}"));
                    }
                    ShownValue::Encoded { base64 } => out.push(&format!("  {key}: base64 {base64}")),
                }
            }
            out.append("  ", &source.differences);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_content_cannot_control_the_terminal() {
        let source = ShownSource {
            snapshot: Some("demo-1\u{1b}[2J".to_owned()),
            changed_at: Some("2026".to_owned()),
            changed_by: Some("me\nPod/x".to_owned()),
            content: Some(
                [("k".to_owned(), ShownValue::Text("a\tb\n\u{9b}31m\r\u{202e}".to_owned()))].into(),
            ),
            ..ShownSource::new("ConfigMap/demo".to_owned(), Comparison::Present)
        };
        let text = Shown { object: "Pod/a".to_owned(), sources: vec![source] }.for_people().to_string();
        assert_eq!(
            text,
            "Pod/a\n\nConfigMap/demo   snapshot demo-1\\u001b[2J   since 2026 by me\\nPod/x   same as the present source\n  \
             k:\n    a\tb\n    \\u009b31m\\r\\u202e\n"
        );
    }
}
