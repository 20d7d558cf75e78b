//! `kubectl confrev waves`: how far a change of a source has spread in waves, and the decisions of a person about it.
//!
//! The progress is derived as the controller derives it. A decision is an annotation of the source that names the snapshot of its
//! present content. The controller takes it over to the verdict of the snapshot; then the command removes it.

use std::{collections::BTreeSet, time::Duration};

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::{
    analysis::{self, JudgingRun},
    delays,
    failure::Failure,
    flags::DryRun,
    group::{self, Others},
    history::History,
    inventory::Inventory,
    objects::{LiveSource, Scope, Snapshot, annotation, source_name},
    output::{self, OutputFlag, OutputFormat, Row, Text},
    target::{Flags, Target},
    world::{self, ReadWorld},
};
use crate::{
    annotations,
    gates::{self, About, Why},
    resolve::{ALL_WAVES, Health, MemberState, Observed, Progress, UserAction, UserDecision, Verdict},
    snapshot::{Authorship, ObjectName},
    world::{Name, WorkloadKey},
};

/// How often `--watch` reads the state.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// The width of the progress bar.
const BAR: usize = 40;
/// How long to wait until confrev has taken a decision over, and between two reads of the snapshot.
const TAKE_OVER: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(200));
/// How many workloads a line names.
const NAMED: usize = 5;
/// Of how many workloads whose turn it is the windows and sets are read.
const GATED: usize = 20;

/// Options of `waves`.
#[derive(Debug, Args)]
pub(super) struct WavesOptions {
    /// The source (NAME, configmap/NAME, secret/NAME), after an action, if any: `promote` begins the next wave at once, `abort`
    /// stops the change, `retry` ends an abort, or tries content that was refused again.
    /// Without a source, the changes in progress are listed.
    #[arg(num_args = 0..=2, value_name = "[ACTION] SOURCE")]
    words: Vec<String>,
    /// With `promote`: begin all further waves.
    #[arg(long)]
    all: bool,
    /// Check every two seconds, and print the progress again when it changes.
    #[arg(short, long)]
    watch: bool,
    /// Only print what would change. With `server`, the default, the API server and confrev check the change, and nothing is
    /// written.
    #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "server")]
    dry_run: Option<DryRun>,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// A decision of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaveCommand {
    /// Begin the next wave.
    Promote,
    /// Stop the change.
    Abort,
    /// End an abort, or a refusal of the content.
    Retry,
}

/// How far a change has spread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WavesStatus {
    pub(super) source: String,
    pub(super) namespace: String,
    /// The group of the namespace, whose workloads are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<String>,
    /// The strategy of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) strategy: Option<String>,
    /// The snapshot of the present content; empty if it does not exist yet, and its name is not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) snapshot: String,
    pub(super) wave: usize,
    pub(super) waves: usize,
    /// How many workloads may have moved in this wave.
    pub(super) limit: usize,
    pub(super) moved: usize,
    /// Which workloads these are.
    pub(super) moved_workloads: Vec<String>,
    /// How many workloads use the source and follow its changes.
    pub(super) workloads: usize,
    /// Whether a person has stopped the change.
    pub(super) aborted: bool,
    /// The AnalysisRun that decides about the next wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) analysis: Option<JudgingRun>,
    /// It has reached all workloads, which are healthy and have baked, and nothing speaks against it.
    pub(super) complete: bool,
    /// When the bake time of the moved workloads ends, if it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bakes_until: Option<Timestamp>,
    /// The workloads that may move now.
    pub(super) next: Vec<String>,
    /// Moved workloads whose rollout is in progress.
    pub(super) rolling: Vec<String>,
    /// Moved workloads that are not healthy.
    pub(super) unhealthy: Vec<String>,
    /// Why no further workload moves now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The gate that keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gate: Option<&'static str>,
}

impl WavesStatus {
    /// Why the change goes no further now.
    pub(super) fn waits(&self) -> Option<String> {
        let bakes = || Some(format!("bakes until {:.0}", self.bakes_until?));
        self.reason.clone().or_else(bakes)
    }

    fn may_analyse_again(&self) -> bool {
        self.analysis.as_ref().is_some_and(JudgingRun::may_be_repeated)
    }
}

/// Runs the command.
pub(super) async fn run(options: &WavesOptions) -> Result<(), Failure> {
    let (action, source) = match &options.words[..] {
        [] => return list(options).await,
        [action] if parse_action(action).is_ok() => {
            return Err(Failure::Usage(format!(
                "give the source, as in `waves {action} demo`; for a source of this name, give configmap/{action}"
            )));
        }
        [source] => (None, source),
        [action, source] => (Some(parse_action(action)?), source),
        _ => return Err(Failure::Usage("give one source".to_owned())),
    };
    let source = source_name(source)?;
    let target = Target::find(&options.flags).await?;
    let Some(action) = action else { return show(&target, &source, options).await };
    let said = act(&target, &source, action, options.all, options.dry_run).await?;
    let suffix = match options.dry_run {
        Some(DryRun::Client | DryRun::Server) => " (dry run: nothing was written)",
        Some(DryRun::None) | None => "",
    };
    output::print_line(&format!("{said}{suffix}"))
}

impl Row for WavesStatus {
    const COLUMNS: (&'static [&'static str], usize) =
        (&["SOURCE", "SNAPSHOT", "STRATEGY", "WAVE", "MOVED", "WAITS"], 6);

    fn cells(&self) -> Vec<String> {
        vec![
            self.source.clone(),
            self.snapshot.clone(),
            self.strategy.clone().unwrap_or_default(),
            format!("{} of {}", self.wave, self.waves),
            format!("{} of {}", self.moved, self.workloads),
            self.waits().unwrap_or_default(),
        ]
    }

    fn name(&self) -> String {
        self.source.to_lowercase()
    }
}

/// Lists the changes in progress of all sources with waves that workloads of the namespace use.
async fn list(options: &WavesOptions) -> Result<(), Failure> {
    if options.watch || options.all || options.dry_run.is_some() {
        return Err(Failure::Usage("give the source, as in `waves demo --watch`".to_owned()));
    }
    let target = Target::find(&options.flags).await?;
    let inventory = Inventory::read_partly(&target, &Scope::Namespace(target.namespace.clone())).await?;
    inventory.unread.warn();
    let mut changes = Vec::new();
    let is_grouped = group::is_grouped(&target).await?;
    for (key, live) in &inventory.sources {
        // One source without valid settings, or deleted meanwhile, hides no other one.
        match status_if_any(&target, &key.1, live, is_grouped).await {
            Ok(status) => changes.extend(status),
            Err(error @ (Failure::Refused(_) | Failure::NotFound(_))) => output::warn(&error.to_string()),
            Err(error) => return Err(error),
        }
    }
    changes.retain(|change| !change.complete);
    output::list(options.output.output, &changes, "no change in waves is in progress")
}

/// Writes a decision. Returns a line for the user.
pub(super) async fn act(
    target: &Target,
    source: &ObjectName,
    action: WaveCommand,
    all_waves: bool,
    dry_run: Option<DryRun>,
) -> Result<String, Failure> {
    let history = History::read(target, source.clone()).await?;
    if history.present.is_some() && snapshot_of(&history).is_none() {
        return Err(Failure::Refused(format!(
            "{source}: the snapshot of its present content does not exist yet, so its name is not known: try again"
        )));
    }
    // No decision of a person about the change ends that.
    if action != WaveCommand::Abort
        && let Some(why) = history.present.as_ref().and_then(Observed::refused)
    {
        return Err(Failure::Refused(format!(
            "{source}: no workload moves to its content: {why}: correct {source}, or take its digest off the list"
        )));
    }
    let others = Others::of(target, &history).await?;
    let all = || std::iter::once(&history).chain(&others.sources);
    // A failure is in the verdict of its own namespace.
    let ended = all().find_map(failure).filter(|_| action == WaveCommand::Retry);
    let (decided, said) = if let Some((snapshot, failed, refused)) = &ended {
        let (no_longer, unless) = match refused {
            true => ("is no longer refused", ""),
            false => ("is no longer held by a failure", ", unless one still fails"),
        };
        (UserAction::Retry, format!("{snapshot} {no_longer} ({failed}): workloads move to it again{unless}"))
    } else {
        let status = status_of(target, source, &history, &others).await?;
        if let Some(stop) = all().find_map(stop).filter(|_| action == WaveCommand::Promote) {
            return Err(Failure::Refused(format!(
                "{}: {} {stop}, so no workload moves to it: run {} first",
                status.source,
                status.snapshot,
                gates::retry(source)
            )));
        }
        // The sources of the other namespaces of a group may lack the decision.
        let nothing = match action {
            _ if status.group.is_some() => None,
            WaveCommand::Abort if status.aborted => Some("is already aborted"),
            WaveCommand::Retry if status.may_analyse_again() => None,
            WaveCommand::Retry if !status.aborted => Some("is neither aborted nor refused: nothing to retry"),
            _ => None,
        };
        if let Some(nothing) = nothing {
            return Ok(format!("{}: {} {nothing}", status.source, status.snapshot));
        }
        decision(action, &status, all_waves)?
    };
    let concerned: Vec<_> = all().filter(|of| ended.is_none() || failure(of).is_some()).collect();
    // One time for all namespaces of a group: a retry ends all failures that are known by then. This machine's clock may be behind.
    let now = Timestamp::now();
    let last = concerned.iter().filter_map(|of| {
        let changed = of.present.as_ref().and_then(|present| Authorship::of(present.json(), now));
        let changed = changed.and_then(|changed| changed.at.parse().ok());
        let Some((_, snapshot)) = judged(of) else { return changed };
        let verdict = snapshot.verdict().unwrap_or_default();
        let failed = verdict.failed.as_ref().and_then(|failed| failed.at.parse().ok());
        verdict.last_decision().max(failed).max(Some(snapshot.created)).max(changed)
    });
    let last = last.max();
    let mut written = Vec::new();
    let user = target.user().await;
    for of in &concerned {
        // In a group, the decision is about the change in all namespaces.
        let Some(name) = snapshot_of(of) else { continue };
        let decision = UserDecision::new(decided.clone(), &name, last, now).by(&user);
        let body = |decision: Option<String>| json!({"metadata": {"annotations": {annotations::DECISION: decision}}});
        let path = format!("/api/v1/namespaces/{}/{}/{}", of.namespace, source.kind.plural(), source.name);
        if dry_run != Some(DryRun::Client) {
            let only_try = dry_run == Some(DryRun::Server);
            let write = body(Some(decision.to_string()));
            target.patch(&path, "application/merge-patch+json", &write, only_try).await?;
        }
        if matches!(dry_run, None | Some(DryRun::None)) && judged(of).is_some() {
            written.push((path, body(None), of.namespace.as_str(), decision));
        }
    }
    let mut late = "";
    for (path, removal, namespace, decision) in written {
        if is_taken_over(target, source, namespace, &decision).await? {
            target.patch(&path, "application/merge-patch+json", &removal, false).await?;
        } else {
            late = "; confrev has not taken the decision over yet";
        }
    }
    let of_group =
        if concerned.len() > 1 { format!(", in {} namespaces", concerned.len()) } else { String::new() };
    Ok(format!("{}/{}: {said}{of_group}{late}", source.kind.as_str(), source.name))
}

/// Waits until the verdict of a snapshot has a decision. From then on, no write of the source ends the decision.
async fn is_taken_over(
    target: &Target,
    source: &ObjectName,
    namespace: &str,
    decision: &UserDecision,
) -> Result<bool, Failure> {
    let path = format!("/api/v1/namespaces/{namespace}/{}/{}", source.kind.plural(), decision.snapshot);
    let (limit, pause) = TAKE_OVER;
    let begun = tokio::time::Instant::now();
    loop {
        let Some(snapshot) = target.get(&path).await? else { return Ok(false) };
        let verdict = Verdict::read(|key| annotation(&snapshot, key));
        if verdict.and_then(|verdict| verdict.last_decision()) == Some(decision.at) {
            return Ok(true);
        }
        if begun.elapsed() > limit {
            return Ok(false);
        }
        tokio::time::sleep(pause).await;
    }
}

/// The snapshot of the present content that has the verdict, or gets it.
fn judged(history: &History) -> Option<&(String, Snapshot)> {
    let present = || history.snapshots.iter().filter(|(_, snapshot)| history.is_present(snapshot));
    present().find(|(_, snapshot)| snapshot.verdict().is_some()).or_else(|| present().next())
}

/// The failure with the present content, with the snapshot and whether the content is refused; `None` without one.
fn failure(history: &History) -> Option<(String, String, bool)> {
    let reverts = history.present.as_ref()?.spread_policy().reverts;
    let (name, snapshot) = judged(history)?;
    Some((name.clone(), snapshot.verdict()?.failed?.reason.into(), reverts))
}

/// What stops the change in a source, whatever is promoted.
fn stop(history: &History) -> Option<&'static str> {
    match failure(history) {
        Some((.., true)) => Some("was refused"),
        _ => is_aborted(history).then_some("is aborted"),
    }
}

/// Whether a person stopped the change to the present content.
fn is_aborted(history: &History) -> bool {
    let Some(present) = &history.present else { return false };
    let stored = judged(history).map(|(_, snapshot)| snapshot.verdict());
    present.spread_policy().verdict(&history.source, present.digests(), stored).aborted
}

/// The name of the snapshot of the present content, which a source has or gets; `None` for a Secret without that snapshot.
fn snapshot_of(history: &History) -> Option<String> {
    let expected = || analysis::expected_name(&history.source, history.present.as_ref()?);
    judged(history).map(|(name, _)| name.clone()).or_else(expected)
}

/// The action with this name.
pub(super) fn parse_action(text: &str) -> Result<WaveCommand, Failure> {
    match text {
        "promote" => Ok(WaveCommand::Promote),
        "abort" => Ok(WaveCommand::Abort),
        "retry" => Ok(WaveCommand::Retry),
        _ => Err(Failure::Usage(format!("unknown action {text:?}, use promote, abort or retry"))),
    }
}

/// The decision, and what to print about it.
fn decision(action: WaveCommand, status: &WavesStatus, all: bool) -> Result<(UserAction, String), Failure> {
    let WavesStatus { snapshot, wave, waves, .. } = status;
    let promote = |wave: usize| UserAction::Promote(wave.to_string().into());
    Ok(match action {
        WaveCommand::Promote if all => {
            (UserAction::Promote(ALL_WAVES.into()), format!("all waves of {snapshot} begin now"))
        }
        // The rest may be held by a workload that failed.
        WaveCommand::Promote if wave == waves && status.reason.is_some() => {
            (promote(*waves), format!("wave {waves} of {waves} of {snapshot} continues now"))
        }
        WaveCommand::Promote if wave == waves => {
            return Err(Failure::Refused(format!(
                "{}: the last wave of {snapshot} has begun, so none is left to promote",
                status.source
            )));
        }
        WaveCommand::Promote => {
            (promote(wave + 1), format!("wave {} of {waves} of {snapshot} begins now", wave + 1))
        }
        WaveCommand::Abort => (UserAction::Abort, format!("no further workload moves to {snapshot}")),
        WaveCommand::Retry if status.may_analyse_again() => {
            (UserAction::Retry, format!("wave {wave} of {snapshot} is analysed again"))
        }
        WaveCommand::Retry => (UserAction::Resume, format!("{snapshot} moves on in waves")),
    })
}

async fn show(target: &Target, source: &ObjectName, options: &WavesOptions) -> Result<(), Failure> {
    let mut shown = None;
    loop {
        let status = status(target, source).await?;
        if shown.as_ref() != Some(&status) {
            if shown.is_some() && options.output.output == OutputFormat::Table {
                output::print_line("")?;
            }
            print(&status, options.output.output)?;
            shown = Some(status);
        }
        if !options.watch {
            return Ok(());
        }
        tokio::time::sleep(REFRESH_INTERVAL).await;
    }
}

fn print(status: &WavesStatus, format: OutputFormat) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => output::json(status),
        OutputFormat::Yaml => output::yaml(&[status]),
        OutputFormat::Name => output::print_line(&status.source.to_lowercase()),
        OutputFormat::Table | OutputFormat::Wide => output::print(&text(status, output::is_terminal())),
    }
}

/// The progress for people. `bar`: with a progress bar.
fn text(status: &WavesStatus, bar: bool) -> Text {
    let mut text = Text::default();
    let mut line = |head: &str, value: &str| text.push(&format!("{head:<11}{value}"));
    line("SOURCE", &status.source);
    if let Some(group) = &status.group {
        line("GROUP", group);
    }
    line("SNAPSHOT", if status.snapshot.is_empty() { "does not exist yet" } else { &status.snapshot });
    let wave = format!("{} of {}", status.wave, status.waves);
    line("WAVE", if status.complete { "complete" } else { &wave });
    line("MOVED", &format!("{} of {}, up to {} in this wave", status.moved, status.workloads, status.limit));
    if bar && status.workloads > 0 {
        let cells = |count: usize| (count * BAR).div_ceil(status.workloads).min(BAR);
        let (moved, limit) = (cells(status.moved), cells(status.limit));
        let open = limit.saturating_sub(moved);
        let rest = BAR - moved - open;
        line("", &format!("[{}{}{}]", "#".repeat(moved), "-".repeat(open), " ".repeat(rest)));
    }
    if !status.moved_workloads.is_empty() {
        line("", &gates::listed(&status.moved_workloads, NAMED));
    }
    if !status.rolling.is_empty() {
        line("ROLLING", &gates::listed(&status.rolling, NAMED));
    }
    if !status.unhealthy.is_empty() {
        line("UNHEALTHY", &gates::listed(&status.unhealthy, NAMED));
    }
    if !status.next.is_empty() {
        line("NEXT", &gates::listed(&status.next, NAMED));
    }
    if let Some(run) = &status.analysis {
        line("ANALYSIS", &run.line());
    }
    if let Some(reason) = status.waits() {
        line("WAITS", &reason);
    }
    text
}

/// Derives how far the present content of a source has spread.
pub(super) async fn status(target: &Target, source: &ObjectName) -> Result<WavesStatus, Failure> {
    let history = History::read(target, source.clone()).await?;
    let others = Others::of(target, &history).await?;
    status_of(target, source, &history, &others).await
}

/// The same, if the source has waves, or another one of its group has; `None` otherwise. `is_grouped`: its namespace is in a group.
pub(super) async fn status_if_any(
    target: &Target,
    source: &ObjectName,
    live: &LiveSource,
    is_grouped: bool,
) -> Result<Option<WavesStatus>, Failure> {
    let LiveSource::Present(live) = live else { return Ok(None) };
    let has_waves = live.spread_policy().has_waves();
    if !has_waves && !is_grouped {
        return Ok(None);
    }
    match status(target, source).await {
        Err(Failure::NotFound(_)) if !has_waves => Ok(None),
        found => found.map(Some),
    }
}

async fn status_of(
    target: &Target,
    source: &ObjectName,
    history: &History,
    others: &Others,
) -> Result<WavesStatus, Failure> {
    let Some(present) = &history.present else {
        return Err(Failure::NotFound(format!(
            "{source} does not exist in namespace {:?}",
            target.namespace
        )));
    };
    let policy = present.spread_policy();
    if let Some(invalid) = &policy.invalid {
        return Err(Failure::Refused(format!("{source}: {invalid}")));
    }
    let has_waves = |(_, other): (&str, &Observed)| other.spread_policy().waves.is_some();
    if policy.waves.is_none() && !others.present().any(has_waves) {
        return Err(Failure::NotFound(format!(
            "{source} has no waves: see the annotation {}",
            annotations::WAVES
        )));
    }
    let mut inventory = Inventory::read_moves(target, &Scope::Namespace(target.namespace.clone())).await?;
    others.join(target, &mut inventory).await?;
    let name = Name::new(target.namespace.as_str(), source.clone());
    let mut world = inventory.world(target).await;
    world.enter(target, &target.namespace).await?;
    world.add_checked(target, &name, present).await;
    let named = |key: &WorkloadKey| world.name(&target.namespace, key);
    let (mut moved_workloads, mut rolls) = (Vec::new(), BTreeSet::new());
    for (workload, member_state) in world.member_states(&name) {
        let MemberState::Moved(moved) = member_state else { continue };
        if matches!(moved.health, Health::Progressing | Health::Unobserved) {
            rolls.insert(named(&workload));
        }
        moved_workloads.push(named(&workload));
    }
    moved_workloads.sort();
    let judged = world.spread(target, &name).await?;
    let Some((spread, analysis)) = judged else {
        return Err(Failure::NotFound(format!("{source} has no waves")));
    };
    let Some(progress) = spread.progress() else {
        return Err(Failure::NotFound(format!("{source} has no waves")));
    };
    let snapshot = snapshot_of(history).unwrap_or_default();
    let waiting = progress.total > progress.moved;
    let why = spread.reason().filter(|_| waiting).map(Why::Others);
    let gated = match why {
        None if waiting => gate(target, &inventory, &mut world, (&name, present), &progress.next).await?,
        _ => None,
    };
    let named = |key: &WorkloadKey| world.name(&target.namespace, key);
    let about = About { source, spread: Some(&spread), has_failed: false, name: &named };
    let reason = why.map(|why| (why.text(&about), Some(why.gate().name()))).or(gated);
    let group = others.group.clone();
    let aborted = is_aborted(history);
    let status = of_progress(source, target, snapshot, progress, &named, reason);
    let (rolling, unhealthy) =
        status.unhealthy.iter().cloned().partition(|workload| rolls.contains(workload));
    let complete = spread.is_complete();
    let strategy = policy.strategy.as_deref().map(str::to_owned);
    Ok(WavesStatus {
        group,
        strategy,
        moved_workloads,
        aborted,
        analysis,
        complete,
        rolling,
        unhealthy,
        ..status
    })
}

/// Why the workloads whose turn it is do not move, and the gate that keeps them; `None` if one of them may, or if that is not known.
async fn gate(
    target: &Target,
    inventory: &Inventory,
    world: &mut ReadWorld,
    (source, present): (&Name, &Observed),
    next: &[WorkloadKey],
) -> Result<Option<(String, Option<&'static str>)>, Failure> {
    let mut first = None;
    for key in next.iter().take(GATED) {
        let mut workloads =
            inventory.workloads.iter().filter(|workload| *workload.namespace() == *source.namespace);
        let Some(workload) = workloads.find(|workload| world.key(workload) == *key) else { return Ok(None) };
        if world::is_in_set(present) {
            world.add_sources_of(target, workload).await?;
        }
        let delay = match delays::of_next(world, key, source) {
            None => delays::probe(target, workload, None).await,
            shut => shut,
        };
        let Some(delay) = delay else { return Ok(None) };
        first.get_or_insert_with(|| (format!("{}: {delay}", workload.reference()), delay.gate()));
    }
    Ok(first)
}

fn of_progress(
    source: &ObjectName,
    target: &Target,
    snapshot: String,
    progress: &Progress<WorkloadKey>,
    name: &dyn Fn(&WorkloadKey) -> String,
    reason: Option<(String, Option<&'static str>)>,
) -> WavesStatus {
    let sorted = |keys: &[WorkloadKey]| {
        let mut names: Vec<_> = keys.iter().map(name).collect();
        names.sort();
        names
    };
    let (reason, gate) = reason.unzip();
    WavesStatus {
        source: format!("{}/{}", source.kind.as_str(), source.name),
        namespace: target.namespace.clone(),
        group: None,
        strategy: None,
        snapshot,
        wave: progress.wave,
        waves: progress.waves,
        limit: progress.limit,
        moved: progress.moved,
        moved_workloads: Vec::new(),
        workloads: progress.total,
        aborted: false,
        analysis: None,
        complete: false,
        bakes_until: progress.bakes_until,
        next: sorted(&progress.next),
        rolling: Vec::new(),
        unhealthy: sorted(&progress.unhealthy),
        reason,
        gate: gate.flatten(),
    }
}
