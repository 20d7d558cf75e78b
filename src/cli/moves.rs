//! `kubectl confrev undo`, `pin`, `unpin`, `roll`, `pause` and `resume`: moving a workload between revisions of its config.
//!
//! Every move is a plan in the annotation `roll`; no command writes into a template, so none owns a field of it. Every write is the user's
//! own, is conditional on the state that was read, and passes admission like any other.
//! Admission makes an undo or a pin last, and a hold outlive every apply; nothing is remembered here. A move that admission would not complete is not written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use clap::Args;
use serde_json::{Value, json};

use super::{
    admitted::{self, Goal},
    failure::Failure,
    flags::DryRun,
    history::History,
    inventory::Inventory,
    objects::{OptedIn, Scope, label, revision_number, revision_template, source_name, sources_of},
    output,
    source_state::{self, SourceState, UsedSource},
    target::{Flags, Target},
};
use crate::{
    annotations,
    resolve::{Move, Observed, Plan, Policy, To, Workload, hold_text, roll_time},
    snapshot::ObjectName,
};

/// What the commands share.
#[derive(Debug, Args)]
pub(super) struct Common {
    /// The workload, as kind/name or name.
    #[arg(index = 1)]
    pub(super) workload: String,
    /// Only print what would change. With `server`, the default, the API server and confrev check the change, and nothing is
    /// written.
    #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "server")]
    pub(super) dry_run: Option<DryRun>,
    #[command(flatten)]
    pub(super) flags: Flags,
}

/// Options of `undo`.
#[derive(Debug, Args)]
pub(super) struct Undo {
    /// Only this source. Default: all sources.
    #[arg(long, value_name = "SOURCE")]
    pub(super) source: Option<String>,
    /// The revision to roll back to, as `tree` numbers it. Default: the previous one with other config.
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true, value_parser = number)]
    pub(super) to_revision: i64,
    /// Keep the config until `unpin`, whatever is applied (annotation confrev.dev/hold).
    #[arg(long)]
    pub(super) hold: bool,
    /// Move to the content even if it was refused.
    #[arg(long)]
    pub(super) force: bool,
    // Last: the heading of its flags is that of whatever follows it.
    #[command(flatten)]
    pub(super) common: Common,
}

/// Options of `pin`.
#[derive(Debug, Args)]
pub(super) struct Pin {
    /// The source: NAME, configmap/NAME or secret/NAME.
    #[arg(index = 2)]
    pub(super) source: String,
    /// A snapshot of the source: its name, the digits at its end, or ~N, the Nth in its history, counted from 0.
    #[arg(index = 3)]
    pub(super) snapshot: String,
    /// Keep the snapshot until `unpin`, whatever is applied (annotation confrev.dev/hold).
    #[arg(long)]
    pub(super) hold: bool,
    /// Move to the content even if it was refused.
    #[arg(long)]
    pub(super) force: bool,
    // Last: the heading of its flags is that of whatever follows it.
    #[command(flatten)]
    pub(super) common: Common,
}

/// Options of `unpin` and `roll`.
#[derive(Debug, Args)]
pub(super) struct ToPresent {
    /// Only this source. Default: all sources.
    #[arg(long, value_name = "SOURCE")]
    pub(super) source: Option<String>,
    /// Move to the content even if it was refused.
    #[arg(long)]
    pub(super) force: bool,
    // Last: the heading of its flags is that of whatever follows it.
    #[command(flatten)]
    pub(super) common: Common,
}

/// Options of `pause` and `resume`.
#[derive(Debug, Args)]
pub(super) struct Track {
    #[command(flatten)]
    pub(super) common: Common,
}

/// A move that was made, or tried.
#[cfg_attr(not(feature = "dashboard"), allow(dead_code, reason = "only the dashboard shows the workload"))]
pub(super) struct Made {
    /// Lines for the user.
    pub(super) said: Vec<String>,
    /// The workload as the API server stores it, or would store it; `None` if nothing was sent, or if references stay.
    pub(super) after: Option<OptedIn>,
    /// The workload as it was read.
    pub(super) before: Option<OptedIn>,
}

impl Made {
    fn without_write(said: String) -> Self {
        Self { said: vec![said], after: None, before: None }
    }
}

/// The `hold` annotation to write; `None`: it is removed.
struct Hold(Option<String>);

/// A workload, with the cluster and the inventory that it was found in.
struct FoundWorkload {
    target: Target,
    inventory: Arc<Inventory>,
    workload: OptedIn,
}

/// Rolls a workload to the present content of one source, and ends a hold of it. Returns a line for the user.
pub(super) async fn to_present(
    target: &Target,
    inventory: &Arc<Inventory>,
    workload: &OptedIn,
    source: &ObjectName,
) -> Result<String, Failure> {
    let (target, inventory) = (target.clone(), Arc::clone(inventory));
    let found = FoundWorkload { target, inventory, workload: workload.clone() };
    let made = found.unpin(Some(source), false, None).await?;
    Ok(made.said.join("; "))
}

/// A revision's number; 0 is the previous one, as with kubectl.
fn number(text: &str) -> Result<i64, String> {
    let number = text.parse().ok().filter(|number: &i64| *number >= 0);
    number.ok_or_else(|| "expected the number of a revision, such as 2".to_owned())
}

impl Common {
    async fn find(&self, target: Target) -> Result<FoundWorkload, Failure> {
        let inventory = Inventory::read_partly(&target, &Scope::Namespace(target.namespace.clone())).await?;
        let workload = inventory.find(&target, &self.workload)?.clone();
        // A labelled Rollout that takes its template from another workload has no template to move.
        if let Some(elsewhere) = inventory.template_elsewhere(Some(&workload.kind.kind), workload.name()) {
            return Err(Failure::NotFound(elsewhere));
        }
        Ok(FoundWorkload { target, inventory: Arc::new(inventory), workload })
    }

    fn done(&self, said: &[String]) -> Result<(), Failure> {
        let suffix = match self.dry_run {
            Some(DryRun::Client | DryRun::Server) => " (dry run: nothing was written)",
            Some(DryRun::None) | None => "",
        };
        output::print(&said.iter().map(|line| format!("{line}{suffix}")).collect())
    }
}

impl FoundWorkload {
    /// Writes a plan, and the `hold` annotation if it changes, if admission moves the workload as wanted.
    async fn plan(
        &self,
        moves: BTreeMap<ObjectName, Move>,
        goals: &BTreeMap<ObjectName, Goal>,
        hold: Option<&Hold>,
        dry_run: Option<DryRun>,
    ) -> Result<Option<OptedIn>, Failure> {
        let time = roll_time(self.inventory.now(), self.workload.record.last_plan);
        let plan = (!moves.is_empty()).then(|| Plan::of_person(time, moves).to_value());
        let mut wanted: Vec<_> = plan.into_iter().map(|plan| (annotations::ROLL, Some(plan))).collect();
        if let Some(Hold(hold)) = hold {
            wanted.push((annotations::HOLD, hold.clone()));
        }
        self.patch(self.operations(wanted), goals, dry_run).await
    }

    /// The annotations of the workload.
    fn annotations(&self) -> &Value {
        &self.workload.value["metadata"]["annotations"]
    }

    /// A JSON patch that sets these annotations, or removes them. It is conditional on the workload, its hold and its snapshots, not on
    /// the resourceVersion: status updates change that all the time.
    fn operations(&self, wanted: Vec<(&str, Option<String>)>) -> Vec<Value> {
        let uid = &self.workload.value["metadata"]["uid"];
        let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": uid})];
        let pointer = |key| annotations::pointer_token(key);
        let sources = format!(
            "{}/metadata/annotations/{}",
            self.workload.kind.template_pointer(),
            pointer(annotations::SOURCES)
        );
        if let Some(stated) = self.workload.value.pointer(&sources) {
            operations.push(json!({"op": "test", "path": sources, "value": stated}));
        }
        if self.annotations().is_null() {
            operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
        }
        for (key, value) in wanted {
            let path = format!("/metadata/annotations/{}", pointer(key));
            let stored = &self.annotations()[key];
            if key == annotations::HOLD && !stored.is_null() {
                operations.push(json!({"op": "test", "path": path, "value": stored}));
            }
            match value {
                Some(text) => operations.push(json!({"op": "add", "path": path, "value": text})),
                None if stored.is_null() => {}
                None => operations.push(json!({"op": "remove", "path": path})),
            }
        }
        operations
    }

    /// Makes a JSON patch that admission completes.
    async fn patch(
        &self,
        operations: Vec<Value>,
        goals: &BTreeMap<ObjectName, Goal>,
        dry_run: Option<DryRun>,
    ) -> Result<Option<OptedIn>, Failure> {
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
    ) -> Result<Option<OptedIn>, Failure> {
        let only_try = match dry_run {
            Some(DryRun::Client) => return Ok(None),
            Some(DryRun::Server) => true,
            Some(DryRun::None) | None => false,
        };
        admitted::write(&self.target, &self.workload, patch, goals, only_try).await.map(Some)
    }

    fn annotation(&self, key: &str, value: &Value) -> Value {
        let uid = &self.workload.value["metadata"]["uid"];
        json!({"metadata": {"uid": uid, "annotations": {key: value}}})
    }

    /// The settings of the workload.
    fn policy(&self) -> Policy {
        let workload = Workload::read(&self.workload.kind, &*self.workload.value);
        let inherited = self.target.strategies.inherited();
        let workload = workload.map(|workload| inherited.workload(self.workload.namespace(), workload));
        workload.map(|workload| Policy::read(&workload).0).unwrap_or_default()
    }

    /// The snapshots in the `hold` annotation, each with its source; `None` if the snapshot is missing.
    fn on_hold(&self) -> Vec<(ObjectName, Option<ObjectName>)> {
        let used = |snapshot: &ObjectName| {
            let mut uses = self.workload.record.uses.iter();
            let is_its = |used: &&crate::resolve::Use| {
                used.source.kind == snapshot.kind && used.snapshot.as_ref() == Some(&snapshot.name)
            };
            uses.find(is_its).map(|used| used.source.clone())
        };
        let known = |snapshot: &ObjectName| {
            let found = self.inventory.snapshots.get(&self.workload.key(snapshot));
            found.map(|found| found.source.clone())
        };
        let source = |snapshot: ObjectName| {
            let source = used(&snapshot).or_else(|| known(&snapshot));
            (snapshot, source)
        };
        self.policy().hold.into_iter().map(source).collect()
    }

    /// The hold with these snapshots in place of those of the same sources.
    fn hold_with(&self, snapshots: &BTreeMap<ObjectName, String>) -> Hold {
        let is_replaced = |source: &Option<ObjectName>| {
            source.as_ref().is_some_and(|source| snapshots.contains_key(source))
        };
        let kept = self.on_hold().into_iter().filter(|(_, source)| !is_replaced(source));
        let mut all: BTreeSet<_> = kept.map(|(snapshot, _)| snapshot).collect();
        all.extend(snapshots.iter().map(|(source, name)| ObjectName::new(source.kind, name.as_str())));
        Hold(Some(hold_text(&all)))
    }

    /// The hold without this source, or without any; `None` if it stays as it is.
    fn hold_without(&self, only: Option<&ObjectName>) -> Option<Hold> {
        let on_hold = self.on_hold();
        let is_kept = |source: &Option<ObjectName>| only.is_some_and(|only| source.as_ref() != Some(only));
        let kept: Vec<_> = on_hold.iter().filter(|(_, source)| is_kept(source)).collect();
        let text = || hold_text(kept.iter().map(|(snapshot, _)| snapshot));
        (kept.len() < on_hold.len()).then(|| Hold((!kept.is_empty()).then(text)))
    }

    /// Refuses a move that a hold would prevent.
    fn must_be_free(&self, sources: &BTreeMap<ObjectName, String>) -> Result<(), Failure> {
        if self.policy().holds_undos {
            return Ok(());
        }
        let workload = self.workload.reference();
        let held = self.on_hold().into_iter().find_map(|(snapshot, source)| {
            let source = source.filter(|source| sources.contains_key(source))?;
            Some(format!(
                "{workload}: {source} is held at {} (annotation {}): add --hold to move the hold, or run \
                 `kubectl confrev unpin {workload}` to end it",
                snapshot.name,
                annotations::HOLD
            ))
        });
        held.map_or(Ok(()), |message| Err(Failure::Refused(message)))
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

    /// The same of an undo or a pin. It also says how long they last.
    fn says_until(&self, source: &ObjectName, from: Option<&String>, to: &str) -> String {
        let snapshot = self.workload.key(&ObjectName::new(source.kind, to));
        let digest = self.inventory.snapshots.get(&snapshot).and_then(|snapshot| snapshot.digest.as_ref());
        let until = if self.policy().holds_undos {
            ", and is held there".to_owned()
        } else if digest.is_some() && digest == self.workload.record.seen(source) {
            ", which ends its undo".to_owned()
        } else {
            format!(", until {} changes or the workload is applied (--hold keeps it)", source.name)
        };
        self.says(source, from, to) + &until
    }

    fn says_held(&self, source: &ObjectName, from: Option<&String>, to: &str) -> String {
        if from.is_some_and(|from| from == to) {
            return format!("{}: {} is held at {to}", self.workload.reference(), source.name);
        }
        self.says(source, from, to) + ", and is held there"
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
        let target = Target::find(&self.common.flags).await?;
        self.common.done(&self.make(target).await?.said)
    }

    /// Makes the move in this cluster. Returns lines for the user.
    pub(super) async fn make(&self, target: Target) -> Result<Made, Failure> {
        let only = self.source.as_deref().map(source_name).transpose()?;
        let found = self.common.find(target).await?;
        if let Some(only) = &only {
            found.must_use(only)?;
        }
        // A previous revision that is left out would not be found.
        found.inventory.unread.require(&["replicasets", "controllerrevisions"])?;
        let held = found.held();
        let before = self.before(&found, &held, only.as_ref())?;
        if self.hold {
            let is_meant = |source: &ObjectName| only.as_ref().is_none_or(|only| only == source);
            // A revision whose config the workload already has is held, too.
            let names: BTreeMap<_, _> = if before.is_empty() {
                held.clone().into_iter().filter(|(source, _)| is_meant(source)).collect()
            } else {
                before
            };
            let said: Vec<_> =
                names.iter().map(|(source, name)| found.says_held(source, held.get(source), name)).collect();
            let hold = found.hold_with(&names);
            let after = found
                .plan(to(&names, self.force), &snapshots(&names), Some(&hold), self.common.dry_run)
                .await?;
            return Ok(Made { said, after, before: Some(found.workload) });
        }
        if before.is_empty() {
            let workload = found.workload.reference();
            let said = format!("{workload} already uses the config of revision {}", self.to_revision);
            return Ok(Made::without_write(said));
        }
        found.must_be_free(&before)?;
        let said: Vec<_> =
            before.iter().map(|(source, name)| found.says_until(source, held.get(source), name)).collect();
        let after =
            found.plan(to(&before, self.force), &snapshots(&before), None, self.common.dry_run).await?;
        Ok(Made { said, after, before: Some(found.workload) })
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
        let mut others = revisions
            .iter()
            .filter(|revision| label(revision, annotations::REVISION).is_some())
            .map(|revision| {
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

/// Moves to these snapshots.
fn to(names: &BTreeMap<ObjectName, String>, forced: bool) -> BTreeMap<ObjectName, Move> {
    let to = |name: &String| Move { to: To::Snapshot(name.clone()), forced };
    names.iter().map(|(source, name)| (source.clone(), to(name))).collect()
}

/// The references should name these snapshots.
fn snapshots(names: &BTreeMap<ObjectName, String>) -> BTreeMap<ObjectName, Goal> {
    names.iter().map(|(source, name)| (source.clone(), Goal::Snapshot(name.clone()))).collect()
}

impl Pin {
    /// Pins one source to a snapshot of it, until the source changes again; with `--hold`, until `unpin`.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let target = Target::find(&self.common.flags).await?;
        self.common.done(&self.make(target).await?.said)
    }

    /// Makes the move in this cluster. Returns lines for the user.
    pub(super) async fn make(&self, target: Target) -> Result<Made, Failure> {
        let source = source_name(&self.source)?;
        let found = self.common.find(target).await?;
        found.must_use(&source)?;
        let history = History::read(&found.target, source.clone()).await?;
        let (name, snapshot) = history.find(&self.snapshot)?;
        let held = found.held();
        let workload = found.workload.reference();
        let names = BTreeMap::from([(source.clone(), name.clone())]);
        if self.hold {
            let said = found.says_held(&source, held.get(&source), name);
            let hold = found.hold_with(&names);
            let after = found
                .plan(to(&names, self.force), &snapshots(&names), Some(&hold), self.common.dry_run)
                .await?;
            return Ok(Made { said: vec![said], after, before: Some(found.workload) });
        }
        if history.is_present(snapshot) {
            let then = if held.get(&source) == Some(name) {
                format!("to keep it, add --hold, or run `kubectl confrev pause {workload}`")
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
            return Ok(Made::without_write(format!("{workload} already uses {name}")));
        }
        found.must_be_free(&names)?;
        let said = found.says_until(&source, held.get(&source), name);
        let after = found.plan(to(&names, self.force), &snapshots(&names), None, self.common.dry_run).await?;
        Ok(Made { said: vec![said], after, before: Some(found.workload) })
    }
}

/// What ends with a move to the present content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// The undo, the pin and the hold: `unpin`.
    Decisions,
    /// The wait for a gate alone: `roll`.
    Wait,
}

impl ToPresent {
    /// Rolls to the present content of one source, or of all.
    pub(super) async fn run(&self, ends: Ends) -> Result<(), Failure> {
        let target = Target::find(&self.common.flags).await?;
        self.common.done(&self.make(target, ends).await?.said)
    }

    /// Makes the move in this cluster. Returns lines for the user.
    pub(super) async fn make(&self, target: Target, ends: Ends) -> Result<Made, Failure> {
        let only = self.source.as_deref().map(source_name).transpose()?;
        let found = self.common.find(target).await?;
        if let Some(source) = &only {
            found.must_use(source)?;
        }
        match ends {
            Ends::Decisions => found.unpin(only.as_ref(), self.force, self.common.dry_run).await,
            Ends::Wait => found.roll(only.as_ref(), self.force, self.common.dry_run).await,
        }
    }
}

impl FoundWorkload {
    /// Ends the undo, the pin and the hold of one source, or of all. Returns a line for the user.
    async fn unpin(
        &self,
        only: Option<&ObjectName>,
        forced: bool,
        dry_run: Option<DryRun>,
    ) -> Result<Made, Failure> {
        let sources = self.sources(only).await?;
        let behind: Vec<_> = sources.iter().filter(|used| may_unpin(used.state)).collect();
        if let Some(hold) = self.hold_without(only) {
            return self.end_hold(&sources, &hold, forced, dry_run).await;
        }
        if behind.is_empty() {
            return Ok(Made::without_write(self.says_nothing("unpin", &sources)));
        }
        let said = match only {
            Some(source) => self.says(source, self.held().get(source), "its present content"),
            None => {
                format!("{}: rolls to the present content of all its sources", self.workload.reference())
            }
        };
        self.move_to_present(&behind, forced, (vec![said], None), dry_run).await
    }

    /// Rolls to the present content of one source, or of all, of which the workload is behind, without waiting for a gate. Undos, pins and
    /// holds stay. Returns a line for each source.
    async fn roll(
        &self,
        only: Option<&ObjectName>,
        forced: bool,
        dry_run: Option<DryRun>,
    ) -> Result<Made, Failure> {
        let sources = self.sources(only).await?;
        let is_behind = |state: SourceState| {
            matches!(state, SourceState::Pending | SourceState::Paused | SourceState::Refused)
        };
        let behind: Vec<_> = sources.iter().filter(|used| is_behind(used.state)).collect();
        if behind.is_empty() {
            let is_kept = |used: &UsedSource| matches!(used.state, SourceState::Pinned | SourceState::Held);
            let said = self.says_nothing("roll", &sources);
            let unpin = format!("to end that, run `kubectl confrev unpin {}`", self.workload.reference());
            let is_kept = sources.iter().any(is_kept);
            return Ok(Made::without_write(if is_kept { format!("{said}; {unpin}") } else { said }));
        }
        let held = self.held();
        let says = |used: &&UsedSource| {
            let says = self.says(&used.object, held.get(&used.object), "its present content");
            let waits = used.reason.iter().map(|reason| format!(", and does not wait: {reason}"));
            waits.fold(says, |says, waits| says + &waits)
        };
        self.move_to_present(&behind, forced, (behind.iter().map(says).collect(), None), dry_run).await
    }

    /// The states towards one source, or all.
    async fn sources(&self, only: Option<&ObjectName>) -> Result<Vec<UsedSource>, Failure> {
        let mut sources = source_state::of_workload(&self.target, &self.inventory, &self.workload).await?;
        sources.retain(|used| only.is_none_or(|only| *only == used.object));
        Ok(sources)
    }

    /// Moves to the present contents of these sources, with the `hold` annotation if it changes.
    async fn move_to_present(
        &self,
        behind: &[&UsedSource],
        forced: bool,
        (said, hold): (Vec<String>, Option<&Hold>),
        dry_run: Option<DryRun>,
    ) -> Result<Made, Failure> {
        // References to a source in mode `live` stay as written.
        let goal = |used: &&UsedSource| Some((used.object.clone(), Goal::Other(used.snapshot.clone()?)));
        let goals: BTreeMap<_, _> = behind.iter().filter_map(goal).collect();
        let present = |used: &&UsedSource| (used.object.clone(), Move { to: To::Present, forced });
        let moves = behind.iter().map(present).collect();
        let after = self.plan(moves, &goals, hold, dry_run).await?;
        Ok(Made { said, after, before: Some(self.workload.clone()) })
    }

    fn says_nothing(&self, verb: &str, sources: &[UsedSource]) -> String {
        let state = |used: &UsedSource| format!("{} {}", used.source, used.state.word());
        let states: Vec<_> = sources.iter().map(state).collect();
        format!("{}: nothing to {verb}: {}", self.workload.reference(), states.join(", "))
    }

    /// Removes the annotation, or this source from it. If another source has an undo or a pin, that ends too.
    async fn end_hold(
        &self,
        sources: &[UsedSource],
        hold: &Hold,
        forced: bool,
        dry_run: Option<DryRun>,
    ) -> Result<Made, Failure> {
        let moving: Vec<_> = sources
            .iter()
            .filter(|used| {
                let state = if used.state == SourceState::Held { used.beneath } else { used.state };
                may_unpin(state)
            })
            .collect();
        let with_snapshot = moving.iter().filter(|used| used.snapshot.is_some());
        let names: BTreeSet<_> = with_snapshot.map(|used| &used.object).collect();
        let names: Vec<_> = names.into_iter().map(|source| &*source.name).collect();
        let workload = self.workload.reference();
        let said = if names.is_empty() {
            format!("{workload}: the hold ends")
        } else {
            format!("{workload}: the hold ends: rolls to the present content of {}", names.join(", "))
        };
        self.move_to_present(&moving, forced, (vec![said], Some(hold)), dry_run).await
    }
}

/// Whether `unpin` moves a workload that stands so towards a source.
const fn may_unpin(state: SourceState) -> bool {
    matches!(state, SourceState::Pinned | SourceState::Paused | SourceState::Pending)
}

impl Track {
    /// Lets the workload follow changes by itself, or stops that.
    pub(super) async fn run(&self, follow: bool) -> Result<(), Failure> {
        let target = Target::find(&self.common.flags).await?;
        self.common.done(&self.make(target, follow).await?.said)
    }

    /// Makes the move in this cluster. Returns lines for the user.
    pub(super) async fn make(&self, target: Target, follow: bool) -> Result<Made, Failure> {
        let found = self.common.find(target).await?;
        let workload = found.workload.reference();
        if found.workload.record.track == follow {
            let already = if follow { "already follows changes" } else { "already paused" };
            return Ok(Made::without_write(format!("{workload}: {already}")));
        }
        if !found.workload.kind.rolls {
            let kind = &found.workload.kind;
            return Err(Failure::Refused(format!("{workload}: a stored {kind} never follows changes")));
        }
        let value = if follow { Value::Null } else { json!("false") };
        let body = found.annotation(annotations::TRACK, &value);
        // The controller reads this setting; admission has nothing to complete.
        if self.common.dry_run != Some(DryRun::Client) {
            let only_try = self.common.dry_run == Some(DryRun::Server);
            let path = found.workload.path();
            found.target.patch(&path, "application/merge-patch+json", &body, only_try).await?;
        }
        let what = if follow {
            "follows changes again"
        } else {
            "paused: ignores changes; an apply takes the present content once"
        };
        Ok(Made::without_write(format!("{workload}: {what}")))
    }
}
