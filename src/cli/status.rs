//! `kubectl confrev status`: the config that each workload runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use serde_json::Value;

use super::{
    failure::Failure,
    inventory::Inventory,
    objects::{OptedIn, Scope, label},
    output::{self, OutputFlag, OutputFormat, Row},
    pauses,
    source_state::{self, SourceState, UsedSource},
    target::{Flags, Target},
    unprotected::{self, Unprotected},
};
use crate::annotations;

/// How often `--watch` reads the state.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// The reason of a workload that confrev has not decided on.
const UNDECIDED: &str = "admitted while confrev did not answer";
/// The state of a workload that is not opted in yet, or whose template is not.
const NOT_PROTECTED: &str = "not protected";

/// Options of `status`.
#[derive(Debug, Args)]
pub(super) struct StatusOptions {
    /// One workload, as kind/name or name. Default: all opted-in workloads.
    workload: Option<String>,
    /// Only workloads with these labels, such as app=web.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "workload")]
    selector: Option<String>,
    /// In all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "workload"])]
    all_namespaces: bool,
    /// Only workloads in one of these states, as in the column STATE, such as pending,refused.
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = state_word, conflicts_with = "workload")]
    state: Vec<&'static str>,
    /// Check every two seconds, and print the table again when it changes.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// One workload.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorkloadStatus {
    #[serde(skip)]
    show_namespace: bool,
    pub(super) namespace: String,
    pub(super) workload: String,
    /// The digest of its config: the `revision` label of the template.
    pub(super) config: String,
    /// Pods by the digest of their config.
    pub(super) pods: BTreeMap<String, usize>,
    /// The state of the template's rollout.
    pub(super) rollout: &'static str,
    pub(super) sources: Vec<UsedSource>,
    /// Why the workload or its rollout is in this state, if that needs mention.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) reasons: Vec<String>,
    /// In place of its sources: the state of a Rollout that takes its template from another workload, or of a workload that is not opted
    /// in yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) template: Option<String>,
}

impl Row for WorkloadStatus {
    const COLUMNS: (&'static [&'static str], usize) = (
        &["NAMESPACE", "WORKLOAD", "CONFIG", "PODS", "STATE", "ROLLOUT", "REASON", "STRATEGY", "SNAPSHOTS"],
        7,
    );
    const OPTIONAL: &'static [&'static str] = &["NAMESPACE", "STRATEGY"];

    fn cells(&self) -> Vec<String> {
        let namespace = if self.show_namespace { self.namespace.clone() } else { String::new() };
        let snapshots: Vec<_> = self.sources.iter().filter_map(|used| used.snapshot.as_deref()).collect();
        let strategies: BTreeSet<_> =
            self.sources.iter().filter_map(|used| used.strategy.as_deref()).collect();
        vec![
            namespace,
            self.workload.clone(),
            or_dash(self.config.clone()),
            or_dash(pods(&self.pods, &self.config)),
            self.template.clone().unwrap_or_else(|| state(&self.sources)),
            self.rollout.to_owned(),
            self.reasons.join("; "),
            strategies.into_iter().collect::<Vec<_>>().join(","),
            snapshots.join(","),
        ]
    }

    fn name(&self) -> String {
        self.workload.to_lowercase()
    }
}

impl WorkloadStatus {
    /// Whether this is its state, or that towards one of its sources.
    fn is_in(&self, state: &str) -> bool {
        match &self.template {
            Some(of_template) => of_template.starts_with(state),
            None if state == SourceState::Current.word() => self::state(&self.sources) == state,
            None => self.sources.iter().any(|used| used.state.word() == state),
        }
    }
}

/// Reads a state. On a command line, it may have `-` in place of spaces.
fn state_word(text: &str) -> Result<&'static str, String> {
    let words = || SourceState::ALL.map(SourceState::word).into_iter().chain([NOT_PROTECTED]);
    let wanted = text.trim().replace('-', " ").to_lowercase();
    let known = || words().map(|word| word.replace(' ', "-")).collect::<Vec<_>>().join(", ");
    words().find(|word| *word == wanted).ok_or_else(|| format!("no such state: use {}", known()))
}

/// The state of a Rollout that takes its template from another workload; `None` for all others.
pub(super) fn template_state(inventory: &Inventory, workload: &OptedIn) -> Option<String> {
    let (of, is_opted_in) = inventory.template_of(workload)?;
    Some(if is_opted_in { format!("see {of}") } else { format!("{NOT_PROTECTED}: {of} is not opted in") })
}

/// Runs the command.
pub(super) async fn run(options: &StatusOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let scope = if options.all_namespaces { Scope::All } else { Scope::Namespace(target.namespace.clone()) };
    let mut shown = String::new();
    loop {
        let mut inventory = Inventory::read_partly(&target, &scope).await?;
        let labels = options.selector.as_deref().unwrap_or_default();
        let unprotected = unprotected::read(&target, &scope, labels, &mut inventory.unread).await?;
        if shown.is_empty() {
            inventory.unread.warn();
        }
        let rows = rows(&target, &scope, &inventory, unprotected, options).await?;
        if !options.watch {
            return output::list(options.output.output, &rows, &nothing(&scope, options));
        }
        // An unchanged status is not printed again.
        let now = output::to_json(&rows)?;
        if now != shown {
            let format = match options.output.output {
                OutputFormat::Table if !shown.is_empty() => {
                    output::print_line("")?;
                    OutputFormat::Table
                }
                other => other,
            };
            output::list(format, &rows, &nothing(&scope, options))?;
            shown = now;
        }
        tokio::time::sleep(REFRESH_INTERVAL).await;
        if output::is_closed() {
            return Ok(());
        }
    }
}

fn nothing(scope: &Scope, options: &StatusOptions) -> String {
    let labels = options.selector.as_deref().map(|labels| format!(" with labels {labels}"));
    let place = match scope {
        Scope::All => "any namespace".to_owned(),
        Scope::Namespace(namespace) => format!("namespace {namespace}"),
    };
    if !options.state.is_empty() {
        return format!("no workloads that are {} in {place}", options.state.join(" or "));
    }
    format!(
        "no opted-in workloads{} in {place}: label a workload {}=true to opt it in",
        labels.unwrap_or_default(),
        annotations::ENABLED
    )
}

async fn rows(
    target: &Target,
    scope: &Scope,
    inventory: &Inventory,
    mut unprotected: Vec<Unprotected<'_>>,
    options: &StatusOptions,
) -> Result<Vec<WorkloadStatus>, Failure> {
    if let Some(name) = &options.workload {
        unprotected.retain(|workload| workload.is_named(name));
    }
    let workloads: Vec<&OptedIn> = match (&options.workload, &options.selector) {
        (Some(name), _) => match inventory.find(target, name) {
            Err(Failure::NotFound(_)) if !unprotected.is_empty() => Vec::new(),
            found => vec![found?],
        },
        (None, Some(selector)) => inventory.selected(target, scope, selector).await?,
        (None, None) => inventory.workloads.iter().collect(),
    };
    let show_namespace = matches!(scope, Scope::All);
    let rows = workloads.into_iter().map(|workload| async move {
        let sources = source_state::of_workload(target, inventory, workload).await?;
        Ok::<_, Failure>(status(inventory, workload, sources, show_namespace))
    });
    let mut rows: Vec<_> = stream::iter(rows).buffered(8).try_collect().await?;
    rows.extend(unprotected.iter().map(|workload| not_protected(workload, show_namespace)));
    let name = |row: &WorkloadStatus| {
        let name = row.workload.split_once('/').map_or("", |(_, name)| name).to_owned();
        (row.namespace.clone(), name)
    };
    rows.sort_by_key(name);
    rows.retain(|row| options.state.is_empty() || options.state.iter().any(|state| row.is_in(state)));
    Ok(rows)
}

/// The row of a workload that is not opted in yet.
fn not_protected(workload: &Unprotected<'_>, show_namespace: bool) -> WorkloadStatus {
    WorkloadStatus {
        show_namespace,
        namespace: workload.namespace.clone(),
        workload: workload.reference(),
        config: String::new(),
        pods: BTreeMap::new(),
        rollout: "-",
        sources: Vec::new(),
        reasons: vec![format!("its next deployment opts it in (namespace: {}=next)", annotations::ENABLED)],
        template: Some(NOT_PROTECTED.to_owned()),
    }
}

/// The status of one workload.
pub(super) fn status(
    inventory: &Inventory,
    workload: &OptedIn,
    sources: Vec<UsedSource>,
    show_namespace: bool,
) -> WorkloadStatus {
    let mut pods = BTreeMap::new();
    for revision in inventory.revisions_of(workload).into_iter().chain(workload.own_revision()) {
        for pod in inventory.pods_of(workload, revision) {
            *pods.entry(pod_config(pod)).or_insert(0) += 1;
        }
    }
    let pause = pauses::of(inventory, workload);
    let delays = sources.iter().filter_map(|used| used.reason.clone());
    // A workload that does not follow changes says so before a change comes.
    let is_stopped = workload.kind.rolls && !workload.record.track;
    let stopped = is_stopped.then(|| format!("paused ({}=false)", annotations::TRACK));
    let undecided = workload.record.is_marked.then(|| UNDECIDED.to_owned());
    let mut reasons: Vec<_> = undecided
        .into_iter()
        .chain(delays)
        .chain(stopped)
        .chain(pause.clone().map(|pause| pause.at))
        .collect();
    reasons.dedup();
    let template = template_state(inventory, workload);
    WorkloadStatus {
        show_namespace,
        namespace: workload.namespace().to_owned(),
        workload: workload.reference(),
        config: workload.revision().to_owned(),
        pods,
        rollout: source_state::rollout(workload, pause.as_ref()),
        sources,
        reasons,
        template,
    }
}

fn or_dash(cell: String) -> String {
    if cell.is_empty() { "-".to_owned() } else { cell }
}

fn pod_config(pod: &Value) -> String {
    label(pod, annotations::REVISION).unwrap_or_default().to_owned()
}

/// `8 present, 2 of 3f2a61c0de`.
pub(super) fn pods(pods: &BTreeMap<String, usize>, present: &str) -> String {
    let mut parts: Vec<_> = pods
        .iter()
        .map(|(config, count)| {
            let is_present = config == present;
            let text = match (is_present, config.is_empty()) {
                (true, _) => format!("{count} present"),
                (false, true) => format!("{count} without config"),
                (false, false) => format!("{count} of {config}"),
            };
            (!is_present, text)
        })
        .collect();
    parts.sort();
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(", ")
}

/// `current`, or the state towards each source where that needs mention.
pub(super) fn state(sources: &[UsedSource]) -> String {
    let mut said: Vec<_> = sources
        .iter()
        .filter(|used| !used.state.is_plain())
        .map(|used| (used.state, &*used.object.name))
        .collect();
    said.sort_by(|a, b| b.cmp(a));
    if said.is_empty() {
        return "current".to_owned();
    }
    said.iter().map(|(state, name)| format!("{}: {name}", state.word())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_a_command_line_are_those_shown() {
        assert_eq!(state_word("source-gone"), Ok("source gone"));
        assert_eq!(state_word("not-protected"), Ok("not protected"));
        assert_eq!(state_word("Pending"), Ok("pending"));
        let error = state_word("broken").unwrap_err();
        assert!(error.contains("use current, as-written, ") && error.ends_with("not-protected"), "{error}");
        let words: BTreeSet<_> = SourceState::ALL.map(SourceState::word).into();
        assert_eq!(words.len(), SourceState::ALL.len());
    }
}
