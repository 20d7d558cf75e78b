//! `kubectl confrev status`: the config that each workload runs.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use serde_json::Value;

use super::{
    failure::Failure,
    inventory::{Inventory, OptedIn, Scope, label},
    output::{self, OutputFlag, OutputFormat, Row},
    pauses,
    source_state::{self, UsedSource},
    target::{Flags, Target},
};
use crate::names;

/// How often `--watch` reads the state.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// Options of `status`.
#[derive(Debug, Args)]
pub(super) struct StatusOptions {
    /// One workload, as kind/name or name. Default: all opted-in workloads.
    workload: Option<String>,
    /// In all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "workload"])]
    all_namespaces: bool,
    /// Check every two seconds, and print the table again when it changes.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

impl StatusOptions {
    /// The flags that select the cluster.
    pub(super) fn flags(self) -> Flags {
        self.flags
    }
}

/// One workload.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorkloadStatus {
    #[serde(skip)]
    show_namespace: bool,
    namespace: String,
    workload: String,
    /// The `revision` label of the template.
    revision: String,
    /// Pods by revision.
    pods: BTreeMap<String, usize>,
    /// The state of the template's rollout.
    rollout: &'static str,
    sources: Vec<UsedSource>,
    /// Why the workload or its rollout is in this state, if that needs mention.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
    /// The state of a Rollout that takes its template from another workload, in place of its sources.
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
}

impl Row for WorkloadStatus {
    const COLUMNS: (&'static [&'static str], usize) =
        (&["NAMESPACE", "WORKLOAD", "REVISION", "PODS", "CONFIG", "ROLLOUT", "REASON", "SNAPSHOTS"], 7);
    const OPTIONAL: &'static [&'static str] = &["NAMESPACE"];

    fn cells(&self) -> Vec<String> {
        let namespace = if self.show_namespace { self.namespace.clone() } else { String::new() };
        let snapshots: Vec<_> = self.sources.iter().filter_map(|used| used.snapshot.as_deref()).collect();
        vec![
            namespace,
            self.workload.clone(),
            or_dash(self.revision.clone()),
            or_dash(pods(&self.pods, &self.revision)),
            self.template.clone().unwrap_or_else(|| config(&self.sources)),
            self.rollout.to_owned(),
            self.reasons.join("; "),
            snapshots.join(","),
        ]
    }

    fn name(&self) -> String {
        self.workload.to_lowercase()
    }
}

/// Runs the command.
pub(super) async fn run(options: &StatusOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let scope = if options.all_namespaces { Scope::All } else { Scope::Namespace(target.namespace.clone()) };
    let mut shown = String::new();
    loop {
        let rows = rows(&target, &scope, options.workload.as_deref()).await?;
        if !options.watch {
            return output::list(options.output.output, &rows, &nothing(&scope));
        }
        // An unchanged status is not printed again.
        let now = output::to_json(&rows)?;
        if now != shown {
            let format = match options.output.output {
                OutputFormat::Table if !shown.is_empty() => {
                    output::print("\n")?;
                    OutputFormat::Table
                }
                other => other,
            };
            output::list(format, &rows, &nothing(&scope))?;
            shown = now;
        }
        tokio::time::sleep(REFRESH_INTERVAL).await;
    }
}

fn nothing(scope: &Scope) -> String {
    match scope {
        Scope::All => "no opted-in workloads in any namespace".to_owned(),
        Scope::Namespace(namespace) => format!("no opted-in workloads in namespace {namespace}"),
    }
}

async fn rows(target: &Target, scope: &Scope, one: Option<&str>) -> Result<Vec<WorkloadStatus>, Failure> {
    let inventory = Inventory::read(target, scope).await?;
    let workloads: Vec<&OptedIn> = match one {
        Some(name) => vec![inventory.find(target, name)?],
        None => inventory.workloads.iter().collect(),
    };
    let show_namespace = matches!(scope, Scope::All);
    let inventory = &inventory;
    let rows = workloads.into_iter().map(|workload| async move {
        let sources = source_state::of_workload(target, inventory, workload).await?;
        Ok::<_, Failure>(status(inventory, workload, sources, show_namespace))
    });
    stream::iter(rows).buffered(8).try_collect().await
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
            *pods.entry(pod_revision(pod)).or_insert(0) += 1;
        }
    }
    let pause = pauses::of(inventory, workload);
    let delays = sources.iter().filter_map(|used| used.reason.clone());
    // A workload that does not follow changes says so before a change comes.
    let is_stopped = workload.kind.rolls && !workload.record.track;
    let stopped = is_stopped.then(|| format!("paused ({}=false)", names::TRACK));
    let mut reasons: Vec<_> = delays.chain(stopped).chain(pause.clone().map(|pause| pause.at)).collect();
    reasons.dedup();
    let template = inventory.template_of(workload).map(|(of, is_opted_in)| {
        if is_opted_in { format!("see {of}") } else { format!("not protected: {of} is not opted in") }
    });
    WorkloadStatus {
        show_namespace,
        namespace: workload.namespace().to_owned(),
        workload: workload.reference(),
        revision: workload.revision().to_owned(),
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

fn pod_revision(pod: &Value) -> String {
    label(pod, names::REVISION).unwrap_or_default().to_owned()
}

/// `8 present, 2 of 3f2a61c0de`.
fn pods(pods: &BTreeMap<String, usize>, present: &str) -> String {
    let mut parts: Vec<_> = pods
        .iter()
        .map(|(revision, count)| {
            let is_present = revision == present;
            let text = match (is_present, revision.is_empty()) {
                (true, _) => format!("{count} present"),
                (false, true) => format!("{count} without revision"),
                (false, false) => format!("{count} of {revision}"),
            };
            (!is_present, text)
        })
        .collect();
    parts.sort();
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(", ")
}

/// `current`, or the state towards each source where that needs mention.
pub(super) fn config(sources: &[UsedSource]) -> String {
    let mut said: Vec<_> = sources
        .iter()
        .filter(|used| !used.standing.is_plain())
        .map(|used| (used.standing, &*used.object.name))
        .collect();
    said.sort_by(|a, b| b.cmp(a));
    if said.is_empty() {
        return "current".to_owned();
    }
    said.iter().map(|(standing, name)| format!("{}: {name}", standing.word())).collect::<Vec<_>>().join(", ")
}
