//! `kubectl confrev revoke`: removes a content from the cluster. Its workloads move to the present content, and the revisions and
//! snapshots that hold it are deleted.
//!
//! Guarded snapshots are deleted by Kubernetes, once their last owner is deleted. The annotation `revoked` on a source makes
//! confrev release the snapshots that the source keeps.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    duration,
    failure::Failure,
    flags::DryRun,
    history::{History, used_by},
    inventory::{Inventory, SNAPSHOTS},
    moves,
    objects::{
        self, OptedIn, Scope, Snapshot, SourceKey, annotation, is_owned, label, revision_template,
        source_name, sources_of, text,
    },
    output::{self, OutputFlag, Row},
    restore::confirm,
    target::{Flags, Target},
    wait::{self, CHECK_INTERVAL, WaitState},
};
use crate::{
    annotations,
    kinds::REVISION_KINDS,
    resolve::Observed,
    snapshot::{ObjectName, SourceKind},
};

/// How long Kubernetes and confrev may take to delete unused snapshots: a few times the delays of confrev's own clean-up.
const CLEAN_UP: Duration = Duration::from_secs(90);

/// Options of `revoke`.
#[derive(Debug, Args)]
pub(super) struct RevokeOptions {
    /// The source: NAME, configmap/NAME or secret/NAME.
    source: String,
    /// The snapshot whose content is revoked: its name, the digits at its end, or ~N, the Nth in the source's history, counted from
    /// 0. Default: every content of the source except the present one.
    snapshot: Option<String>,
    /// Revoke the content in all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Write without asking.
    #[arg(short, long)]
    yes: bool,
    /// Only list the snapshots with the content, and what uses them.
    #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "server")]
    dry_run: Option<DryRun>,
    /// How long to wait for the rollouts of the workloads.
    #[arg(long, default_value = "10m", value_name = "DURATION", value_parser = duration::duration)]
    timeout: Duration,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// A snapshot with the content.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RevokedSnapshot {
    namespace: String,
    kind: &'static str,
    snapshot: String,
    source: String,
    /// The workloads and revisions that refer to it.
    used_by: Vec<String>,
    /// The pods that read it.
    pods: Vec<String>,
}

impl Row for RevokedSnapshot {
    const COLUMNS: (&'static [&'static str], usize) =
        (&["NAMESPACE", "SNAPSHOT", "SOURCE", "USED BY", "PODS"], 5);

    fn cells(&self) -> Vec<String> {
        let list = |of: &[String]| if of.is_empty() { "-".to_owned() } else { of.join(",") };
        vec![
            self.namespace.clone(),
            self.snapshot.clone(),
            self.source.clone(),
            list(&self.used_by),
            list(&self.pods),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.kind.to_lowercase(), self.snapshot)
    }
}

/// Runs the command.
pub(super) async fn run(options: &RevokeOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let history = History::read(&target, source_name(&options.source)?).await?;
    let contents = revoked_contents(&history, options.snapshot.as_deref())?;
    let scope = if options.all_namespaces { Scope::All } else { Scope::Namespace(target.namespace.clone()) };
    let revocation = Revocation { target, scope, kind: history.source.kind, contents };
    let found = revocation.find().await?;
    let nothing = format!("{} has no snapshot with another content than the present one", history.source);
    output::list(options.output.output, &found.rows(), &nothing)?;
    if found.snapshots.is_empty() {
        return Ok(());
    }
    revocation.must_be_replaced(&found).await?;
    if options.dry_run.is_some_and(|mode| mode != DryRun::None) {
        return Ok(());
    }
    if !(options.yes || confirm("move the workloads, and delete these snapshots and their revisions?")?) {
        return output::print_line("nothing was written");
    }
    let moved = revocation.move_workloads(&found).await?;
    let mut problems = revocation.wait_for(&moved, options.timeout).await?;
    let found = revocation.find().await?;
    let (deleted, kept) = revocation.delete_revisions(&found).await?;
    problems.extend(kept);
    revocation.release(&found).await?;
    let left = revocation.wait_for_deletion().await?;
    output::note(&format!("deleted {}", output::count(deleted, "revision")));
    for problem in &problems {
        output::warn(problem);
    }
    if left.snapshots.is_empty() {
        return output::print_line("no snapshot has the content");
    }
    output::list(options.output.output, &left.rows(), "")?;
    let count = left.snapshots.len();
    let verb = if count == 1 { "has" } else { "have" };
    Err(Failure::No(format!("{} still {verb} the content", output::count(count, "snapshot"))))
}

/// The contents to revoke: that of a snapshot, or all except the present one.
fn revoked_contents(history: &History, snapshot: Option<&str>) -> Result<Vec<Observed>, Failure> {
    let source = &history.source;
    let found: Vec<_> = match snapshot {
        Some(text) => {
            let found = history.find(text)?;
            if history.is_present(&found.1) {
                return Err(Failure::Refused(format!(
                    "{} is the present content of {source}: change {source} first, then revoke the snapshot",
                    found.0
                )));
            }
            vec![found]
        }
        None => history.snapshots.iter().filter(|(_, snapshot)| !history.is_present(snapshot)).collect(),
    };
    found.into_iter().map(|(name, snapshot)| content(source.kind, name, snapshot)).collect()
}

fn content(kind: SourceKind, name: &str, snapshot: &Snapshot) -> Result<Observed, Failure> {
    let read = Observed::read(kind, snapshot.value.to_string().into_bytes());
    read.map_err(|error| Failure::Refused(format!("{}/{name}: {error}", kind.as_str())))
}

/// The contents to remove, and where.
struct Revocation {
    target: Target,
    scope: Scope,
    kind: SourceKind,
    contents: Vec<Observed>,
}

/// The snapshots with the content, and all objects that may use them.
struct Affected {
    inventory: Arc<Inventory>,
    snapshots: BTreeMap<SourceKey, Snapshot>,
}

impl Affected {
    fn rows(&self) -> Vec<RevokedSnapshot> {
        let row = |(key, snapshot): (&SourceKey, &Snapshot)| RevokedSnapshot {
            namespace: key.0.clone(),
            kind: key.1.kind.as_str(),
            snapshot: key.1.name.to_string(),
            source: snapshot.source.name.to_string(),
            used_by: used_by(&self.inventory, key),
            pods: self.pods_reading(key),
        };
        self.snapshots.iter().map(row).collect()
    }

    /// The names of the pods whose template referred to the snapshot.
    fn pods_reading(&self, (namespace, name): &SourceKey) -> Vec<String> {
        let reads = |pod: &&Arc<Value>| {
            text(pod, "/metadata/namespace") == namespace
                && sources_of(Some(pod)).source_of(name.kind, &name.name).is_some()
        };
        let pods = self.inventory.pods.iter().filter(reads);
        pods.map(|pod| text(pod, "/metadata/name").to_owned()).collect()
    }

    /// The workloads that refer to one of the snapshots now, each with the sources of those snapshots.
    fn workloads(&self) -> impl Iterator<Item = (&OptedIn, BTreeSet<&ObjectName>)> {
        let rolling = self.inventory.workloads.iter().filter(|workload| workload.kind.rolls);
        rolling.filter_map(|workload| {
            let uses = workload.record.uses.iter().filter(|used| {
                let name = used.snapshot.as_deref().map(|name| ObjectName::new(used.source.kind, name));
                name.is_some_and(|name| self.snapshots.contains_key(&workload.key(&name)))
            });
            let sources: BTreeSet<_> = uses.map(|used| &used.source).collect();
            (!sources.is_empty()).then_some((workload, sources))
        })
    }

    /// Whether the revision refers to one of the snapshots.
    fn is_used_by(&self, revision: &Value) -> bool {
        let sources = sources_of(revision_template(revision));
        let namespace = text(revision, "/metadata/namespace");
        label(revision, annotations::REVISION).is_some()
            && self
                .snapshots
                .keys()
                .any(|(of, name)| of == namespace && sources.source_of(name.kind, &name.name).is_some())
    }

    /// Why a revision cannot be deleted now; `None` if it can.
    fn in_use(&self, revision: &Value) -> Option<&'static str> {
        let (uid, name) = (text(revision, "/metadata/uid"), text(revision, "/metadata/name"));
        let count = |at: &str| revision.pointer(at).and_then(Value::as_i64).unwrap_or_default();
        let controller = controller_uid(revision);
        let hash = label(revision, "controller-revision-hash").unwrap_or(name);
        let has_pods = self.inventory.pods.iter().any(|pod| {
            let of_set = label(pod, "controller-revision-hash").is_some_and(|of| of == hash || of == name);
            is_owned(pod, |owner| owner == uid || (of_set && controller == Some(owner)))
        });
        match text(revision, "/kind") {
            "Job" => (!is_finished(revision)).then_some("it has not finished"),
            "ReplicaSet" if count("/spec/replicas") > 0 => Some("it is not scaled to 0"),
            "ControllerRevision" if self.is_current(revision) => {
                Some("it is a current revision of its workload")
            }
            _ => has_pods.then_some("it has pods"),
        }
    }

    /// Whether the status of a workload names this ControllerRevision.
    fn is_current(&self, revision: &Value) -> bool {
        let name = text(revision, "/metadata/name");
        let owner = self
            .inventory
            .workloads
            .iter()
            .find(|workload| controller_uid(revision) == Some(text(&workload.value, "/metadata/uid")));
        // No other workload's status is known.
        owner.is_none_or(|owner| {
            ["/status/currentRevision", "/status/updateRevision"]
                .iter()
                .any(|at| text(&owner.value, at) == name)
        })
    }
}

fn controller_uid(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true).map(|owner| text(owner, "/uid"))
}

fn is_finished(job: &Value) -> bool {
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        ["Complete", "Failed"].contains(&text(condition, "/type")) && condition["status"] == "True"
    })
}

impl Revocation {
    /// Reads all snapshots with the content, and all objects that may use them.
    async fn find(&self) -> Result<Affected, Failure> {
        let inventory = Arc::new(Inventory::read(&self.target, &self.scope).await?);
        let collection = self.scope.collection("v1", self.kind.plural());
        let listed = self.target.list(&collection, self.kind.as_str(), SNAPSHOTS).await?;
        let mut snapshots = BTreeMap::new();
        for (key, snapshot) in listed.into_iter().filter_map(|value| Snapshot::read(self.kind, value)) {
            if content(self.kind, &key.1.name, &snapshot).is_ok_and(|content| self.is_revoked(&content)) {
                snapshots.insert(key, snapshot);
            }
        }
        Ok(Affected { inventory, snapshots })
    }

    fn is_revoked(&self, content: &Observed) -> bool {
        self.contents.iter().any(|revoked| revoked.same_content(content))
    }

    /// Fails if a source still has the content to revoke: its workloads would move to it.
    async fn must_be_replaced(&self, found: &Affected) -> Result<(), Failure> {
        let sources: BTreeSet<SourceKey> =
            found.snapshots.iter().map(|(key, snapshot)| (key.0.clone(), snapshot.source.clone())).collect();
        for key in sources {
            let live = objects::source(&self.target, &key).await?;
            if live.is_some_and(|live| self.is_revoked(&live)) {
                return Err(Failure::Refused(format!(
                    "{} in namespace {:?} has the content that is revoked: change it first; nothing was written",
                    key.1, key.0
                )));
            }
        }
        Ok(())
    }

    /// Rolls each workload that refers to a snapshot to the present content. Returns the workloads by uid, with their sources.
    async fn move_workloads(&self, found: &Affected) -> Result<Vec<(String, ObjectName)>, Failure> {
        let mut moved = Vec::new();
        for (workload, sources) in found.workloads() {
            let mut target = self.target.clone();
            target.namespace = workload.namespace().to_owned();
            for source in sources {
                let said = moves::to_present(&target, &found.inventory, workload, source).await;
                match said {
                    Ok(said) => output::note(&said),
                    // One workload must not stop the others.
                    Err(failure) => output::warn(&format!("{}: {failure}", workload.reference())),
                }
                moved.push((text(&workload.value, "/metadata/uid").to_owned(), source.clone()));
            }
        }
        Ok(moved)
    }

    /// Waits until the rollouts of these workloads are complete. Returns why some are not.
    async fn wait_for(
        &self,
        moved: &[(String, ObjectName)],
        timeout: Duration,
    ) -> Result<Vec<String>, Failure> {
        let end = Instant::now() + timeout;
        loop {
            let inventory = Inventory::read(&self.target, &self.scope).await?;
            let (mut stuck, mut waits) = (Vec::new(), Vec::new());
            for (uid, source) in moved {
                let mut workloads = inventory.workloads.iter();
                let is_it = |workload: &&OptedIn| text(&workload.value, "/metadata/uid") == uid;
                let Some(workload) = workloads.find(is_it) else { continue };
                let mut target = self.target.clone();
                target.namespace = workload.namespace().to_owned();
                match wait::of_workload(&target, &inventory, workload, Some(source), (end, false)).await? {
                    WaitState::Done(..) => {}
                    WaitState::Waits(reason) | WaitState::Unanswered(reason) => waits.push(reason),
                    WaitState::Stuck(reason) => stuck.push(reason),
                }
            }
            if waits.is_empty() || Instant::now() + CHECK_INTERVAL > end {
                stuck.extend(waits);
                return Ok(stuck);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Deletes the revisions that refer to a snapshot and have no pods. Returns their number, and why others are kept.
    async fn delete_revisions(&self, found: &Affected) -> Result<(usize, Vec<String>), Failure> {
        let (mut deleted, mut kept) = (0, Vec::new());
        for revision in found.inventory.revisions.iter().filter(|revision| found.is_used_by(revision)) {
            let name = format!("{}/{}", text(revision, "/kind"), text(revision, "/metadata/name"));
            let problem = match found.in_use(revision) {
                Some(why) => Some(why.to_owned()),
                None => self.delete(revision).await.err().map(|failure| failure.to_string()),
            };
            match problem {
                Some(problem) => kept.push(format!("{name} refers to the content: {problem}")),
                None => deleted += 1,
            }
        }
        Ok((deleted, kept))
    }

    /// Deletes a revision, unless it was changed or replaced in the meantime.
    async fn delete(&self, revision: &Value) -> Result<(), Failure> {
        let Some(kind) = REVISION_KINDS.iter().find(|kind| revision["kind"] == kind.kind) else {
            return Ok(());
        };
        let metadata = &revision["metadata"];
        let scope = Scope::Namespace(text(metadata, "/namespace").to_owned());
        let path =
            format!("{}/{}", scope.collection(&kind.api_version(), kind.plural), text(metadata, "/name"));
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        });
        let body = body.to_string().into_bytes();
        match self.target.api.call("delete", Method::DELETE, path, "application/json", body).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop).map_err(|error| self.target.failure(error)),
        }
    }

    /// Makes confrev release the snapshots that their sources keep.
    async fn release(&self, found: &Affected) -> Result<(), Failure> {
        let mut by_source: BTreeMap<SourceKey, BTreeSet<String>> = BTreeMap::new();
        for ((namespace, name), snapshot) in &found.snapshots {
            let owners = snapshot.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let is_kept = owners.into_iter().any(|owner| {
                text(owner, "/kind") == self.kind.as_str() && *text(owner, "/name") == *snapshot.source.name
            });
            if is_kept {
                let names = by_source.entry((namespace.clone(), snapshot.source.clone())).or_default();
                names.insert(name.name.to_string());
            }
        }
        for ((namespace, source), mut revoked) in by_source {
            let collection = Scope::Namespace(namespace).collection("v1", self.kind.plural());
            let path = format!("{collection}/{}", source.name);
            let Some(live) = self.target.get(&path).await? else { continue };
            let earlier =
                annotation(&live, annotations::REVOKED).unwrap_or_default().split(',').map(str::trim);
            revoked.extend(earlier.filter(|name| !name.is_empty()).map(str::to_owned));
            let names = revoked.into_iter().collect::<Vec<_>>().join(",");
            if names.len() > annotations::MAX_REVOKED {
                return Err(Failure::Refused(format!(
                    "{path}: its annotation {} would have more than {} bytes: remove names of \
                     snapshots that nothing can restore any more",
                    annotations::REVOKED,
                    annotations::MAX_REVOKED
                )));
            }
            let version = &live["metadata"]["resourceVersion"];
            let body = json!({"metadata": {
                "resourceVersion": version, "annotations": {annotations::REVOKED: names},
            }});
            self.target.patch(&path, "application/merge-patch+json", &body, false).await?;
        }
        Ok(())
    }

    /// Waits until every snapshot that nothing uses is deleted. Returns the remaining snapshots.
    async fn wait_for_deletion(&self) -> Result<Affected, Failure> {
        let end = Instant::now() + CLEAN_UP;
        loop {
            let found = self.find().await?;
            let waits = found
                .snapshots
                .keys()
                .any(|key| used_by(&found.inventory, key).is_empty() && found.pods_reading(key).is_empty());
            if !waits || Instant::now() + CHECK_INTERVAL > end {
                return Ok(found);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}
