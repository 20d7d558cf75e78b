//! `kubectl confrev restore`: writes the content of a snapshot back to its source.

use clap::Args;
use serde_json::{Value, json};

use super::{
    content::Content,
    diff,
    failure::Failure,
    flags::DryRun,
    history::History,
    impact,
    inventory::{self},
    objects::{Scope, Snapshot, source_name, text},
    output::{self, OutputFormat, Text},
    target::{Flags, Target},
};
use crate::{
    annotations,
    resolve::Observed,
    snapshot::{ObjectName, SourceKind},
};

/// Options of `restore`.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The source: NAME, configmap/NAME or secret/NAME.
    pub(super) source: String,
    /// A snapshot of the source: its name, the digits at its end, or ~N, the Nth in its history, counted from 0. A deleted source
    /// is restored from its newest snapshot by default.
    snapshot: Option<String>,
    /// Write without asking.
    #[arg(short, long)]
    yes: bool,
    /// Only show the difference. With `server`, the default, the API server checks the write, and nothing is written.
    #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "server")]
    dry_run: Option<DryRun>,
    #[command(flatten)]
    flags: Flags,
}

/// The write of a restored source, and how it is reported.
pub(super) struct RestoredSource {
    /// The source with its snapshots.
    history: History,
    /// The name of the snapshot whose content is written.
    pub(super) snapshot: String,
    /// The write: a patch of the source, or a new object.
    write: Write,
    /// The differences, as `diff` prints them.
    pub(super) difference: Text,
    /// A line about the write.
    pub(super) said: String,
}

enum Write {
    Patch(Value),
    Create(Value),
}

impl Restore {
    /// Writes a snapshot's content back to its source, after showing the difference.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let target = Target::find(&self.flags).await?;
        let restored = restored(&target, source_name(&self.source)?, self.snapshot.as_deref()).await?;
        let (source, snapshot) = (&restored.history.source, &restored.snapshot);
        if restored.changes_nothing() {
            return output::print_line(&format!("{source} already has the content of {snapshot}"));
        }
        output::print(&restored.difference)?;
        if self.dry_run != Some(DryRun::Client) {
            // A refusal comes before the question.
            restored.send(&target, true).await?;
        }
        restored.print_effects(&target).await?;
        let only_try = matches!(self.dry_run, Some(DryRun::Client | DryRun::Server));
        if only_try || !(self.yes || confirm(&format!("write {snapshot} to {source}?"))?) {
            return output::print_line("nothing was written");
        }
        restored.send(&target, false).await?;
        output::print_line(&restored.said)
    }
}

/// The write that restores a source from a snapshot, and its difference from the present content. Nothing is written yet.
pub(super) async fn restored(
    target: &Target,
    source: ObjectName,
    snapshot: Option<&str>,
) -> Result<RestoredSource, Failure> {
    let history = History::read(target, source).await?;
    let source = &history.source;
    let (name, found) = match (snapshot, &history.present) {
        (Some(snapshot), _) => history.find(snapshot)?,
        (None, Some(_)) => {
            return Err(Failure::Refused(format!(
                "{source} exists: give the snapshot to restore its content from, see kubectl confrev history {}/{}",
                source.kind.as_str().to_lowercase(),
                source.name
            )));
        }
        // A source without snapshots does not get here.
        (None, None) => newest(target, &history).await?,
    };
    let (write, difference, said) = match &history.present {
        Some(present) => changed(&history, present, name, found)?,
        None => created(&history, name, found),
    };
    let snapshot = name.clone();
    Ok(RestoredSource { history, snapshot, write, difference, said })
}

impl RestoredSource {
    /// Whether the source already has the content.
    pub(super) const fn changes_nothing(&self) -> bool {
        self.difference.is_empty() && matches!(self.write, Write::Patch(_))
    }

    /// The source after the write.
    fn then(&self) -> Value {
        match &self.write {
            Write::Create(object) => object.clone(),
            Write::Patch(operations) => {
                let present = self.history.present.as_ref().map(Observed::json).unwrap_or_default();
                let mut object = serde_json::from_slice(present).unwrap_or_default();
                let patch: json_patch::Patch = serde_json::from_value(operations.clone()).unwrap_or_default();
                // It was made for this object.
                let _ = json_patch::patch(&mut object, &patch);
                object
            }
        }
    }

    /// Prints which workloads the write moves, and why it does not move others.
    async fn print_effects(&self, target: &Target) -> Result<(), Failure> {
        let (source, namespace) = (&self.history.source, &target.namespace);
        let Ok(then) = Observed::read(source.kind, self.then().to_string().into_bytes()) else {
            return Ok(());
        };
        let then = target.under_strategies(namespace, then).await?;
        match impact::effects(target, &[(source.clone(), namespace.clone(), Some(then))]).await {
            Ok(effects) => output::list(OutputFormat::Table, &effects, "no opted-in workload uses it"),
            // The user may not read workloads.
            Err(Failure::Refused(why)) => {
                output::warn(&format!("which workloads roll is not known: {why}"));
                Ok(())
            }
            Err(other) => Err(other),
        }
    }

    /// Makes the write, or only tries it.
    pub(super) async fn send(&self, target: &Target, dry_run: bool) -> Result<(), Failure> {
        let source = &self.history.source;
        let collection = format!("/api/v1/namespaces/{}/{}", target.namespace, source.kind.plural());
        let sent = match &self.write {
            Write::Create(object) => target.create(&collection, object, dry_run).await,
            Write::Patch(operations) => {
                let path = format!("{collection}/{}", source.name);
                target.patch(&path, "application/json-patch+json", operations, dry_run).await
            }
        };
        sent.map(drop)
    }
}

/// The newest snapshot. Creation times have whole seconds: of several, the one that a workload uses.
async fn newest<'h>(target: &Target, history: &'h History) -> Result<&'h (String, Snapshot), Failure> {
    let first = history.find("~0")?;
    let equal = history.snapshots.iter().filter(|(_, snapshot)| snapshot.created == first.1.created);
    let equal: Vec<_> = equal.collect();
    let workloads = match inventory::workloads(target, &Scope::Namespace(target.namespace.clone())).await {
        _ if equal.len() == 1 => return Ok(first),
        // The user may not read workloads.
        Err(Failure::Refused(_)) => Vec::new(),
        other => other?,
    };
    let is_used = |name: &str| {
        let mut uses = workloads.iter().flat_map(|workload| &workload.record.uses);
        uses.any(|used| used.source == history.source && used.snapshot.as_deref() == Some(name))
    };
    Ok(equal.into_iter().find(|(name, _)| is_used(name)).unwrap_or(first))
}

/// A source that exists: the fields of its content are replaced.
fn changed(
    history: &History,
    present: &Observed,
    name: &String,
    snapshot: &Snapshot,
) -> Result<(Write, Text, String), Failure> {
    let (old, new) = diff::sides(history, std::slice::from_ref(name), false)?;
    let difference = diff::compare(&new, &old);
    let live: Value = serde_json::from_slice(present.json()).unwrap_or_default();
    let version = &live["metadata"]["resourceVersion"];
    let mut operations = vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
    for field in ["data", "binaryData"] {
        let path = format!("/{field}");
        match (&snapshot.value[field], live[field].is_null()) {
            (Value::Null, true) => {}
            (Value::Null, false) => operations.push(json!({"op": "remove", "path": path})),
            (value, _) => operations.push(json!({"op": "add", "path": path, "value": value})),
        }
    }
    let said = format!("{} restored to the content of {name}", history.source);
    Ok((Write::Patch(Value::Array(operations)), difference, said))
}

/// A deleted source: it gets the content of the snapshot, and the labels that the snapshot copied from it.
fn created(history: &History, name: &str, snapshot: &Snapshot) -> (Write, Text, String) {
    let source = &history.source;
    let content = |object: &Value| Content::of(source.kind, object, false);
    let nothing = diff::Side { name: source.name.to_string(), content: content(&Value::Null) };
    let content = content(&snapshot.value);
    let difference = diff::compare(&nothing, &diff::Side { name: name.to_owned(), content });
    let mut labels = snapshot.value["metadata"]["labels"].clone();
    if let Some(labels) = labels.as_object_mut() {
        labels.retain(|key, _| key != annotations::MANAGED_BY && key != annotations::SOURCE);
    }
    let mut object = json!({
        "apiVersion": "v1",
        "kind": source.kind.as_str(),
        "metadata": {"name": source.name.to_string(), "namespace": history.namespace, "labels": labels},
    });
    for field in ["data", "binaryData"] {
        if !snapshot.value[field].is_null() {
            object[field] = snapshot.value[field].clone();
        }
    }
    if source.kind == SourceKind::Secret {
        object["type"] = text(&snapshot.value, "/type").into();
    }
    let said = format!(
        "{source} created with the content of {name}; its own annotations are lost, and its labels except copied ones"
    );
    (Write::Create(object), difference, said)
}

/// Asks on the terminal. Without a terminal, the error says how to continue.
pub(super) fn confirm(question: &str) -> Result<bool, Failure> {
    use std::io::IsTerminal as _;
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage("standard input is not a terminal: give --yes or --dry-run".to_owned()));
    }
    let answer = output::ask(&format!("{question} [y/N]"))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
