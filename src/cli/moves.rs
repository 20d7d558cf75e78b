//! `kubectl confrev undo`, `pin`, `unpin`, `pause` and `resume`: moving a workload between revisions of its config.
//!
//! Every write is the user's own, is conditional on the state that was read, and passes admission like any other.
//! Admission makes an undo or a pin last; nothing is remembered here. A move that admission would not complete is not written.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use super::{
    admitted::{self, Goal},
    failure::Failure,
    flags::DryRun,
    history::History,
    inventory::{
        Inventory, OptedIn, Scope, label, revision_number, revision_template, source_name, sources_of,
    },
    output,
    source_state::{self, SourceState, UsedSource},
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
    /// Only print what would change. With `server`, the default, the API server and confrev check the change, and nothing is
    /// written.
    #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "server")]
    dry_run: Option<DryRun>,
    #[command(flatten)]
    flags: Flags,
}

/// Options of `undo`.
#[derive(Debug, Args)]
pub(super) struct Undo {
    /// Only this source. Default: all sources.
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    /// The revision to roll back to, as `tree` numbers it. Default: the previous one with other config.
    #[arg(long, value_name = "N", default_value_t, hide_default_value = true)]
    to_revision: i64,
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
        let suffix = match self.dry_run {
            Some(DryRun::Client | DryRun::Server) => " (dry run: nothing was written)",
            Some(DryRun::None) | None => "",
        };
        output::print(&said.iter().fold(String::new(), |text, line| text + line + suffix + "\n"))
    }
}

impl FoundWorkload {
    /// Points the references to each source to the given name, if admission resolves them as wanted.
    async fn point(
        &self,
        names: &BTreeMap<ObjectName, String>,
        goals: &BTreeMap<ObjectName, Goal>,
        dry_run: Option<DryRun>,
    ) -> Result<(), Failure> {
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
            if let Some(name) = names.get(source).filter(|name| *name != reference.name) {
                let path = format!("{root}{}", reference.pointer);
                operations.push(json!({"op": "test", "path": path, "value": reference.name}));
                operations.push(json!({"op": "replace", "path": path, "value": name}));
            }
        }
        let patch = ("application/json-patch+json", &Value::Array(operations));
        match self.write_admitted(patch, goals, dry_run).await {
            // The API server's message for a failed test has no more details.
            Err(Failure::Refused(message)) if message.contains("rejected our request") => {
                let workload = self.workload.reference();
                Err(Failure::Refused(format!("{workload} was changed at the same time: try again")))
            }
            other => other,
        }
    }

    /// Makes a write that admission completes.
    async fn write_admitted(
        &self,
        patch: (&str, &Value),
        goals: &BTreeMap<ObjectName, Goal>,
        dry_run: Option<DryRun>,
    ) -> Result<(), Failure> {
        let only_try = match dry_run {
            Some(DryRun::Client) => return Ok(()),
            Some(DryRun::Server) => true,
            Some(DryRun::None) | None => false,
        };
        admitted::write(&self.target, &self.workload, patch, goals, only_try).await.map(drop)
    }

    fn annotation(&self, key: &str, value: &Value) -> Value {
        let uid = &self.workload.value["metadata"]["uid"];
        json!({"metadata": {"uid": uid, "annotations": {key: value}}})
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
    /// Rolls the config back to a previous revision; the rest of the template stays as it is.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let only = self.source.as_deref().map(source_name).transpose()?;
        let found = self.common.find().await?;
        if let Some(only) = &only {
            found.must_use(only)?;
        }
        let held = found.held();
        let before = self.before(&found, &held, only.as_ref())?;
        if before.is_empty() {
            let workload = found.workload.reference();
            let said = format!("{workload} already uses the config of revision {}", self.to_revision);
            return self.common.done(&[said]);
        }
        let said: Vec<_> =
            before.iter().map(|(source, name)| found.says(source, held.get(source), name)).collect();
        found.point(&before, &snapshots(&before), self.common.dry_run).await?;
        self.common.done(&said)
    }

    /// The snapshots of the given revision, or of the newest one with other config, as far as they differ from `held`.
    fn before(
        &self,
        found: &FoundWorkload,
        held: &BTreeMap<ObjectName, String>,
        only: Option<&ObjectName>,
    ) -> Result<BTreeMap<ObjectName, String>, Failure> {
        let workload = found.workload.reference();
        let mut revisions = found.inventory.revisions_of(&found.workload);
        // An undo reuses an old revision object under a new number, so revisions are ordered by number. Those without a
        // number keep their order by age.
        revisions.sort_by_key(|revision| std::cmp::Reverse(revision_number(revision).unwrap_or_default()));
        let mut others =
            revisions.iter().filter(|revision| label(revision, names::REVISION).is_some()).map(|revision| {
                let sources = sources_of(revision_template(revision));
                let is_other = |(source, name): &(&ObjectName, &String)| {
                    only.is_none_or(|only| only == *source)
                        && held.get(*source).is_some_and(|held| held != *name)
                };
                let other =
                    sources.iter().filter(is_other).map(|(source, name)| (source.clone(), name.clone()));
                (revision_number(revision), other.collect::<BTreeMap<_, _>>())
            });
        if self.to_revision == 0 {
            let other = others.map(|(_, other)| other).find(|other| !other.is_empty());
            return other.ok_or_else(|| {
                Failure::NotFound(format!("{workload} has no revision with other config to roll back to"))
            });
        }
        let of_number = others.find(|(number, _)| *number == Some(self.to_revision));
        of_number.map(|(_, other)| other).ok_or_else(|| {
            let number = self.to_revision;
            Failure::NotFound(format!(
                "{workload} has no revision {number} with config: see kubectl confrev tree --all {workload}"
            ))
        })
    }
}

/// The references should name these snapshots.
fn snapshots(names: &BTreeMap<ObjectName, String>) -> BTreeMap<ObjectName, Goal> {
    names.iter().map(|(source, name)| (source.clone(), Goal::Snapshot(name.clone()))).collect()
}

impl Pin {
    /// Pins one source to a snapshot of it, until the source changes again.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let source = source_name(&self.source)?;
        let found = self.common.find().await?;
        found.must_use(&source)?;
        let history = History::read(&found.target, source.clone()).await?;
        let (name, snapshot) = history.find(&self.revision)?;
        let held = found.held();
        let workload = found.workload.reference();
        if history.is_present(snapshot) {
            let then = if held.get(&source) == Some(name) {
                format!("to keep it, run `kubectl confrev pause {workload}`")
            } else {
                format!(
                    "run `kubectl confrev unpin {workload}`, and to keep it then, `kubectl confrev pause {workload}`"
                )
            };
            return Err(Failure::Refused(format!(
                "{name} is the present content of {source}, which no pin keeps: {then}"
            )));
        }
        if held.get(&source) == Some(name) && found.is_pending(&source, &history) {
            return Err(Failure::Refused(format!(
                "{workload} already has {name}, and is about to roll to a change of {source}: to keep the snapshot, run \
                 `kubectl confrev pause {workload}`"
            )));
        }
        if held.get(&source) == Some(name) {
            return self.common.done(&[format!("{workload} already uses {name}")]);
        }
        let said = found.says(&source, held.get(&source), name);
        let names = BTreeMap::from([(source, name.clone())]);
        found.point(&names, &snapshots(&names), self.common.dry_run).await?;
        self.common.done(&[said])
    }
}

impl Unpin {
    /// Rolls to the current content of one source, or of all.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let only = self.source.as_deref().map(source_name).transpose()?;
        let found = self.common.find().await?;
        if let Some(source) = &only {
            found.must_use(source)?;
        }
        let workload = found.workload.reference();
        let mut sources = source_state::of_workload(&found.target, &found.inventory, &found.workload).await?;
        sources.retain(|used| only.as_ref().is_none_or(|only| *only == used.object));
        let is_behind = |used: &&UsedSource| {
            matches!(used.standing, SourceState::Pinned | SourceState::Paused | SourceState::Pending)
        };
        let behind: Vec<_> = sources.iter().filter(is_behind).collect();
        if behind.is_empty() {
            let state = |used: &UsedSource| format!("{} {}", used.source, used.standing.word());
            let states: Vec<_> = sources.iter().map(state).collect();
            return self.common.done(&[format!("{workload}: nothing to unpin: {}", states.join(", "))]);
        }
        // References to a source in mode `live` stay as written.
        let goal = |used: &&UsedSource| Some((used.object.clone(), Goal::Other(used.snapshot.clone()?)));
        let goals: BTreeMap<_, _> = behind.iter().filter_map(goal).collect();
        let said = if let Some(source) = only {
            let names = BTreeMap::from([(source.clone(), source.name.to_string())]);
            found.point(&names, &goals, self.common.dry_run).await?;
            found.says(&source, found.held().get(&source), "its present content")
        } else {
            let now = format!("unpin-{}", jiff::Timestamp::now());
            let body = found.annotation(names::ROLL, &json!(now));
            found
                .write_admitted(("application/merge-patch+json", &body), &goals, self.common.dry_run)
                .await?;
            format!("{workload}: rolls to the present content of all its sources")
        };
        self.common.done(&[said])
    }
}

impl Track {
    /// Lets the workload follow changes by itself, or stops that.
    pub(super) async fn run(&self, follow: bool) -> Result<(), Failure> {
        let found = self.common.find().await?;
        let workload = found.workload.reference();
        let (does, does_not) = ("follows changes", "does not follow changes");
        if found.workload.record.track == follow {
            let already = if follow { does } else { does_not };
            return self.common.done(&[format!("{workload}: already {already}")]);
        }
        if !found.workload.kind.rolls {
            let kind = &found.workload.kind;
            return Err(Failure::Refused(format!("{workload}: a stored {kind} never follows changes")));
        }
        let value = if follow { Value::Null } else { json!("false") };
        let body = found.annotation(names::TRACK, &value);
        // The controller reads this setting; admission has nothing to complete.
        if self.common.dry_run != Some(DryRun::Client) {
            let only_try = self.common.dry_run == Some(DryRun::Server);
            let path = found.workload.path();
            found.target.patch(&path, "application/merge-patch+json", &body, only_try).await?;
        }
        let what = if follow {
            format!("{does} again")
        } else {
            format!("{does_not} until it is resumed or applied")
        };
        self.common.done(&[format!("{workload}: {what}")])
    }
}
