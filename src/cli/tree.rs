//! `kubectl confrev tree`: a workload, its revisions, their snapshots and pods.

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::{
    failure::Failure,
    inventory::Inventory,
    objects::{OptedIn, Scope, annotation, label, revision_number, revision_template, sources_of, text},
    output::{self, Colour, OutputFlag, OutputFormat, Text},
    pauses, source_state, status,
    target::{Flags, Target},
};
use crate::{annotations, snapshot::Digest, template::SourceMap};

/// The roles that a ReplicaSet may have in its workload.
const ROLES: [&str; 5] = ["active", "preview", "stable", "canary", "present"];
/// The note on a snapshot that is referenced but missing.
const LOST: &str = "not found";

/// Options of `tree`.
#[derive(Debug, Args)]
pub(super) struct TreeOptions {
    /// The workload, as kind/name or name.
    workload: String,
    /// Also show revisions without pods.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// A node with its children.
#[derive(Debug, Serialize)]
struct Node {
    /// `Kind/name`.
    object: String,
    /// Notes to print beside it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    below: Vec<Node>,
}

/// Runs the command.
pub(super) async fn run(options: &TreeOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let inventory = Inventory::read_partly(&target, &Scope::Namespace(target.namespace.clone())).await?;
    inventory.unread.warn();
    let workload = inventory.find(&target, &options.workload)?;
    let sources = source_state::of_workload(&target, &inventory, workload).await?;
    let template = status::template_state(&inventory, workload);
    let mut notes = vec![template.unwrap_or_else(|| status::state(&sources))];
    notes.extend(sources.iter().filter_map(|used| used.reason.clone()));
    notes.extend(pauses::of(&inventory, workload).map(|pause| pause.at));
    let mut root = Node { object: workload.reference(), notes, below: Vec::new() };
    if let Some(itself) = workload.own_revision() {
        root.below = revision_node(&inventory, workload, itself).below;
    }
    let mut hidden = 0;
    for revision in inventory.revisions_of(workload) {
        let node = revision_node(&inventory, workload, revision);
        let is_present = label(revision, annotations::REVISION).unwrap_or_default() == workload.revision();
        if options.all || is_present || !inventory.pods_of(workload, revision).is_empty() {
            root.below.push(node);
        } else {
            hidden += 1;
        }
    }
    match options.output.output {
        OutputFormat::Json => return output::json(&root),
        OutputFormat::Yaml => return output::yaml(&[&root]),
        OutputFormat::Name => return output::print(&root.names().into_iter().collect()),
        OutputFormat::Table | OutputFormat::Wide => {}
    }
    let mut out = Text::default();
    draw(&root, "", "", &mut out);
    if hidden > 0 {
        out.push(&format!("({hidden} more without pods: --all shows them)"));
    }
    output::print(&out)
}

/// The live sources of a template.
pub(super) fn live_of(template: Option<&Value>) -> SourceMap<Digest> {
    let entered = template.and_then(|template| annotation(template, annotations::LIVE));
    entered.and_then(SourceMap::parse).unwrap_or_default()
}

fn revision_node(inventory: &Inventory, workload: &OptedIn, revision: &Value) -> Node {
    let pods = inventory.pods_of(workload, revision);
    let config = label(revision, annotations::REVISION);
    let mut notes = vec![config.map_or("no config".to_owned(), |config| format!("config {config}"))];
    notes.extend(revision_number(revision).map(|number| format!("revision {number}")));
    notes.extend(role(inventory, workload, revision).map(str::to_owned));
    notes.push(output::count(pods.len(), "pod"));
    let sources = sources_of(revision_template(revision));
    let snapshots = sources.iter().map(|(source, snapshot)| {
        let key = workload.key(&crate::snapshot::ObjectName::new(source.kind, snapshot.clone()));
        let is_there = **snapshot == *source.name || inventory.snapshots.contains_key(&key);
        let notes = if is_there { Vec::new() } else { vec![LOST.to_owned()] };
        Node { object: format!("{}/{snapshot}", source.kind.as_str()), notes, below: Vec::new() }
    });
    let live = live_of(revision_template(revision));
    let live = live.iter().map(|(source, digest)| Node {
        object: format!("{}/{}", source.kind.as_str(), source.name),
        notes: vec!["live".to_owned(), digest.short(10)],
        below: Vec::new(),
    });
    let pods = pods.into_iter().map(|pod| Node {
        object: format!("Pod/{}", text(pod, "/metadata/name")),
        notes: vec![pod_state(pod)],
        below: Vec::new(),
    });
    let object = format!("{}/{}", text(revision, "/kind"), text(revision, "/metadata/name"));
    Node { object, notes, below: snapshots.chain(live).chain(pods).collect() }
}

impl Node {
    /// The parts of its line, each with its colour.
    fn parts(&self) -> Vec<(Option<Colour>, &str)> {
        let mut parts = vec![(None, self.object.as_str())];
        for note in &self.notes {
            let colour = match note.as_str() {
                LOST => Some(Colour::Red),
                note if ROLES.contains(&note) => Some(Colour::Green),
                _ => None,
            };
            parts.extend([(None, "   "), (colour, note)]);
        }
        parts
    }

    /// `kind/name` of this node and of all below.
    fn names(&self) -> Vec<String> {
        let below = self.below.iter().flat_map(Self::names);
        std::iter::once(self.object.to_lowercase()).chain(below).collect()
    }
}

/// The role of a ReplicaSet in its Rollout or Deployment, if these show it.
pub(super) fn role(inventory: &Inventory, workload: &OptedIn, revision: &Value) -> Option<&'static str> {
    if let Some(hash) = label(revision, "rollouts-pod-template-hash") {
        let owner = text(revision, "/metadata/ownerReferences/0/uid");
        let rollout = inventory.rollouts.iter().find(|rollout| text(rollout, "/metadata/uid") == owner)?;
        let status = |field: &str| text(rollout, &format!("/status/{field}")) == hash;
        let roles = [
            (status("blueGreen/activeSelector"), "active"),
            (status("blueGreen/previewSelector"), "preview"),
            (status("stableRS"), "stable"),
            (status("currentPodHash"), "canary"),
        ];
        return roles.iter().find(|(is, _)| *is).map(|(_, role)| *role);
    }
    let number = "deployment.kubernetes.io/revision";
    let present = annotation(&workload.value, number).is_some();
    (present && annotation(revision, number) == annotation(&workload.value, number)).then_some("present")
}

/// The state of a pod, in one word.
pub(super) fn pod_state(pod: &Value) -> String {
    let ready = pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_ready = ready.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    let phase = text(pod, "/status/phase");
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        "Terminating".to_owned()
    } else if is_ready {
        "Ready".to_owned()
    } else {
        phase.to_owned()
    }
}

fn draw(node: &Node, first: &str, rest: &str, out: &mut Text) {
    let mut parts = node.parts();
    parts.insert(0, (None, first));
    out.push_parts(&parts);
    let last = node.below.len().saturating_sub(1);
    for (i, below) in node.below.iter().enumerate() {
        let (branch, trunk) = if i == last { ("└── ", "    ") } else { ("├── ", "│   ") };
        draw(below, &format!("{rest}{branch}"), &format!("{rest}{trunk}"), out);
    }
}
