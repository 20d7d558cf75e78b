//! `kubectl confrev undo`, `pin`, `unpin`, `pause` and `resume`: moving a workload between revisions of its config.
//!
//! Every write is the user's own, is conditional on the state that was read, and passes admission like any other.
//! Admission makes an undo or a pin last; nothing is remembered here.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use super::{
    failure::Failure,
    history::History,
    inventory::{
        Inventory, OptedIn, Scope, annotation, label, revision_template, source_name, sources_of, text,
    },
    output,
    target::{Flags, Target},
};
use crate::{
    names,
    resolve::{Observed, Workload},
    snapshot::ObjectName,
    template::Template,
};

/// What the commands share.
#[derive(Debug, Args)]
pub(super) struct Common {
    /// The workload, as kind/name or name.
    workload: String,
    /// Only print what would change. The API server checks the change, and nothing is written.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    flags: Flags,
}

/// Options of `undo`.
#[derive(Debug, Args)]
pub(super) struct Undo {
    /// Only this source. Default: all sources.
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    // Last: the heading of its flags is that of whatever follows it.
    #[command(flatten)]
    common: Common,
}

/// Options of `pin`.
#[derive(Debug, Args)]
pub(super) struct Pin {
    #[command(flatten)]
    common: Common,
    /// The source: NAME, configmap/NAME or secret/NAME.
    source: String,
    /// A snapshot of the source: its name, the digits at its end, or ~N, the Nth in its history, counted from 0.
    revision: String,
}

/// Options of `unpin`.
#[derive(Debug, Args)]
pub(super) struct Unpin {
    /// Only this source. Default: all sources.
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    // Last: the heading of its flags is that of whatever follows it.
    #[command(flatten)]
    common: Common,
}

/// Options of `pause` and `resume`.
#[derive(Debug, Args)]
pub(super) struct Track {
    #[command(flatten)]
    common: Common,
}

/// A workload, with the cluster and the inventory that it was found in.
struct FoundWorkload {
    target: Target,
    inventory: Inventory,
    workload: OptedIn,
}

impl Common {
    async fn find(&self) -> Result<FoundWorkload, Failure> {
        let target = Target::find(&self.flags).await?;
        let inventory = Inventory::read(&target, &Scope::Namespace(target.namespace.clone())).await?;
        let workload = inventory.find(&target, &self.workload)?.clone();
        // A labelled Rollout that takes its template from another workload has no template to move.
        if let Some(elsewhere) = inventory.template_elsewhere(Some(&workload.kind.kind), workload.name()) {
            return Err(Failure::NotFound(elsewhere));
        }
        Ok(FoundWorkload { target, inventory, workload })
    }

    fn done(&self, said: &[String]) -> Result<(), Failure> {
        let suffix = if self.dry_run { " (dry run: nothing was written)" } else { "" };
        output::print(&said.iter().fold(String::new(), |text, line| text + line + suffix + "\n"))
    }
}

impl FoundWorkload {
    /// Points the references to each source to the given name.
    async fn point(&self, wanted: &BTreeMap<ObjectName, String>, dry_run: bool) -> Result<(), Failure> {
        let workload = Workload::read(&self.workload.kind, &self.workload.value)
            .map_err(|error| Failure::Refused(format!("{}: {error}", self.workload.reference())))?;
        let entered = workload.sources();
        let root = self.workload.kind.template_pointer();
        // Conditional on the references, not on the resourceVersion: status updates change that all the time.
        let uid = &self.workload.value["metadata"]["uid"];
        let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": uid})];
        for reference in workload.template.iter().flat_map(Template::references) {
            let written = ObjectName::new(reference.kind, reference.name);
            let source = entered.source_of(reference.kind, reference.name).unwrap_or(&written);
            if let Some(name) = wanted.get(source).filter(|name| *name != reference.name) {
                let path = format!("{root}{}", reference.pointer);
                operations.push(json!({"op": "test", "path": path, "value": reference.name}));
                operations.push(json!({"op": "replace", "path": path, "value": name}));
            }
        }
        match self.write("application/json-patch+json", &Value::Array(operations), dry_run).await {
            // The API server's message for a failed test has no more details.
            Err(Failure::Refused(message)) if message.contains("rejected our request") => {
                let workload = self.workload.reference();
                Err(Failure::Refused(format!("{workload} was changed at the same time: try again")))
            }
            other => other,
        }
    }

    async fn annotate(&self, key: &str, value: Value, dry_run: bool) -> Result<(), Failure> {
        let uid = &self.workload.value["metadata"]["uid"];
        let body = json!({"metadata": {"uid": uid, "annotations": {key: value}}});
        self.write("application/merge-patch+json", &body, dry_run).await
    }

    async fn write(&self, content_type: &str, body: &Value, dry_run: bool) -> Result<(), Failure> {
        self.target.patch(&self.workload.path(), content_type, body, dry_run).await.map(drop)
    }

    /// The snapshot of each source in the current template.
    fn held(&self) -> BTreeMap<ObjectName, String> {
        let uses = self.workload.record.uses.iter();
        uses.filter_map(|used| Some((used.source.clone(), used.snapshot.as_deref()?.to_owned()))).collect()
    }

    fn says(&self, source: &ObjectName, from: Option<&String>, to: &str) -> String {
        let from = from.map(|from| format!(" from {from}")).unwrap_or_default();
        format!("{}: {} rolls{from} to {to}", self.workload.reference(), source.name)
    }

    /// Whether the workload is about to roll to a change of the source.
    fn is_pending(&self, source: &ObjectName, history: &History) -> bool {
        let record = &self.workload.record;
        let is_news = |present: &Observed| !record.has_seen(source, present.digests());
        record.track && history.present.as_ref().is_some_and(is_news)
    }

    fn must_use(&self, source: &ObjectName) -> Result<(), Failure> {
        if self.workload.sources().contains(source) {
            return Ok(());
        }
        let sources: Vec<_> = self.workload.sources().iter().map(|source| source.name.clone()).collect();
        let workload = self.workload.reference();
        Err(Failure::NotFound(format!("{workload} does not use {source}; it uses {}", sources.join(", "))))
    }
}

impl Undo {
    /// Rolls the config back to the previous revision; the rest of the template stays as it is.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let only = self.source.as_deref().map(source_name).transpose()?;
        let found = self.common.find().await?;
        if let Some(only) = &only {
            found.must_use(only)?;
        }
        let held = found.held();
        let before = before(&found, &held, only.as_ref()).ok_or_else(|| {
            Failure::NotFound(format!(
                "{} has no revision with other config to roll back to",
                found.workload.reference()
            ))
        })?;
        let said: Vec<_> =
            before.iter().map(|(source, name)| found.says(source, held.get(source), name)).collect();
        found.point(&before, self.common.dry_run).await?;
        self.common.done(&said)
    }
}

/// The snapshots of the newest revision with other config, as far as they differ from `held`.
fn before(
    found: &FoundWorkload,
    held: &BTreeMap<ObjectName, String>,
    only: Option<&ObjectName>,
) -> Option<BTreeMap<ObjectName, String>> {
    let revisions = found.inventory.revisions_of(&found.workload);
    // An undo reuses an old revision object under a new number, so revisions are ordered by number. Those without a
    // number keep their order by age.
    let number = |revision: &&&Value| {
        let keys = ["deployment.kubernetes.io/revision", "rollout.argoproj.io/revision"];
        let stated = keys.iter().find_map(|key| annotation(revision, key)?.parse::<i64>().ok());
        stated.or_else(|| revision["revision"].as_i64()).unwrap_or_default()
    };
    let mut ordered: Vec<_> = revisions.iter().collect();
    ordered.sort_by_key(|revision| std::cmp::Reverse(number(revision)));
    ordered.into_iter().find_map(|revision| {
        label(revision, names::REVISION)?;
        let sources = sources_of(revision_template(revision));
        let other: BTreeMap<_, _> = sources
            .iter()
            .filter(|(source, name)| {
                only.is_none_or(|only| only == *source) && held.get(*source).is_some_and(|held| held != *name)
            })
            .map(|(source, name)| (source.clone(), name.clone()))
            .collect();
        (!other.is_empty()).then_some(other)
    })
}

impl Pin {
    /// Pins one source to a snapshot of it, until the source changes again.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let source = source_name(&self.source)?;
        let found = self.common.find().await?;
        found.must_use(&source)?;
        let history = History::read(&found.target, source.clone()).await?;
        let (name, _) = history.find(&self.revision)?;
        let held = found.held();
        if held.get(&source) == Some(name) && found.is_pending(&source, &history) {
            let workload = found.workload.reference();
            return Err(Failure::Refused(format!(
                "{workload} already has {name}, and is about to roll to a change of {source}: to keep the snapshot, run \
                 `kubectl confrev pause {workload}`"
            )));
        }
        let said = found.says(&source, held.get(&source), name);
        found.point(&BTreeMap::from([(source, name.clone())]), self.common.dry_run).await?;
        self.common.done(&[said])
    }
}

impl Unpin {
    /// Rolls to the current content of one source, or of all.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let only = self.source.as_deref().map(source_name).transpose()?;
        let found = self.common.find().await?;
        let said = if let Some(source) = only {
            found.must_use(&source)?;
            let said = found.says(&source, found.held().get(&source), "its present content");
            found
                .point(&BTreeMap::from([(source.clone(), source.name.to_string())]), self.common.dry_run)
                .await?;
            said
        } else {
            let now = format!("unpin-{}", jiff::Timestamp::now());
            found.annotate(names::ROLL, json!(now), self.common.dry_run).await?;
            format!("{}: rolls to the present content of all its sources", found.workload.reference())
        };
        self.common.done(&[said])
    }
}

impl Track {
    /// Lets the workload follow changes by itself, or stops that.
    pub(super) async fn run(&self, follow: bool) -> Result<(), Failure> {
        let found = self.common.find().await?;
        let value = if follow { Value::Null } else { json!("false") };
        found.annotate(names::TRACK, value, self.common.dry_run).await?;
        let what = if follow {
            "follows changes again"
        } else {
            "does not follow changes until it is resumed or applied"
        };
        self.common.done(&[format!("{}: {what}", found.workload.reference())])
    }
}

/// Options of `restore`.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The source: NAME, configmap/NAME or secret/NAME.
    source: String,
    /// A snapshot of the source: its name, the digits at its end, or ~N, the Nth in its history, counted from 0.
    revision: String,
    /// Write without asking.
    #[arg(short, long)]
    yes: bool,
    /// Only show the difference: nothing is written.
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    #[command(flatten)]
    flags: Flags,
}

impl Restore {
    /// Writes a snapshot's content back to its source, after showing the difference.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let target = Target::find(&self.flags).await?;
        let history = History::read(&target, source_name(&self.source)?).await?;
        let (name, snapshot) = history.find(&self.revision)?;
        let Some(present) = &history.present else {
            return Err(Failure::NotFound(format!("{} does not exist: apply it again", history.source)));
        };
        let (old, new) = super::diff::sides(&history, std::slice::from_ref(name))?;
        let difference = super::diff::compare(history.source.kind, &new, &old, false);
        if difference.is_empty() {
            return output::print(&format!("{} already has the content of {name}\n", history.source));
        }
        output::print(&difference)?;
        if self.dry_run || !(self.yes || confirm(&format!("write {name} to {}?", history.source))?) {
            return output::print("nothing was written\n");
        }
        let live: Value = serde_json::from_slice(present.json()).unwrap_or_default();
        let mut operations = vec![json!({"op": "test", "path": "/metadata/resourceVersion",
            "value": live["metadata"]["resourceVersion"]})];
        for field in ["data", "binaryData"] {
            let path = format!("/{field}");
            match (&snapshot.value[field], live[field].is_null()) {
                (Value::Null, true) => {}
                (Value::Null, false) => operations.push(json!({"op": "remove", "path": path})),
                (value, _) => operations.push(json!({"op": "add", "path": path, "value": value})),
            }
        }
        let collection = format!("/api/v1/namespaces/{}/{}", target.namespace, history.source.kind.plural());
        let path = format!("{collection}/{}", history.source.name);
        target.patch(&path, "application/json-patch+json", &Value::Array(operations), false).await?;
        let holds = text(&snapshot.value, "/metadata/name");
        output::print(&format!("{} restored to the content of {holds}\n", history.source))
    }
}

/// Asks on the terminal. Without a terminal, the error says how to continue.
fn confirm(question: &str) -> Result<bool, Failure> {
    use std::io::IsTerminal as _;
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage("standard input is not a terminal: give --yes or --dry-run".to_owned()));
    }
    eprint!("{question} [y/N] ");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
