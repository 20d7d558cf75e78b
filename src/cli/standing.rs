//! How a workload stands to each of its sources: the words of `status`, `wait` and `impact`.

use serde::Serialize;

use super::{
    Failure,
    inventory::{Inventory, Live, OptedIn, source},
    target::Target,
};
use crate::{
    resolve::{Health, Observed, Workload},
    snapshot::ObjectName,
    template::{Reference, Template},
};

/// How a workload stands to one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Standing {
    /// It has the present content, or one that reads the same by the keys that it uses.
    Current,
    /// Its references stay as written.
    AsWritten,
    /// The source itself is bound to the workload's revisions.
    Bound,
    /// It is a Job, which keeps what it was created with, and there was a change since.
    AsCreated,
    /// It does not follow changes by itself (`track: "false"`), and there was one.
    Paused,
    /// An undo or a pin holds it, until the source changes again.
    Pinned,
    /// The source is gone; it keeps the snapshot it has.
    SourceGone,
    /// The source may not be read by who asks.
    Unknown,
    /// It will take the present content.
    Pending,
    /// There is no such source, and no snapshot of one.
    Missing,
}

impl Standing {
    /// The word for it.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::AsWritten => "as written",
            Self::Bound => "bound",
            Self::AsCreated => "as created",
            Self::Paused => "paused",
            Self::Pinned => "pinned",
            Self::SourceGone => "source gone",
            Self::Unknown => "unknown",
            Self::Pending => "pending",
            Self::Missing => "missing",
        }
    }

    /// Whether nothing is to be said of it.
    pub(super) const fn is_plain(self) -> bool {
        matches!(self, Self::Current | Self::AsWritten | Self::Bound)
    }
}

/// One source of a workload.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsedSource {
    /// `ConfigMap/name` or `Secret/name`.
    pub(super) source: String,
    /// The snapshot that stands for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<String>,
    /// How the workload stands to it.
    pub(super) standing: Standing,
    /// The object.
    #[serde(skip)]
    pub(super) object: ObjectName,
}

/// How a workload stands to all its sources, each once.
pub(super) async fn of_workload(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
) -> Result<Vec<UsedSource>, Failure> {
    let mut found: Vec<UsedSource> = Vec::new();
    for used in &workload.record.uses {
        // A second snapshot of one source stands under its own name; the first one speaks for the source.
        if used.snapshot.as_ref() == Some(&used.source.name) && !is_bound(inventory, workload, &used.source) {
            continue;
        }
        if found.iter().any(|known| known.object == used.source) {
            continue;
        }
        let present = inventory.sources.get(&workload.key(&used.source)).unwrap_or(&Live::Forbidden);
        let mut standing =
            without_contents(workload, inventory, &used.source, used.snapshot.as_deref(), present);
        // A change of keys that it does not read leaves it with the snapshot that it has.
        let may_read_the_same = matches!(standing, Standing::Pinned | Standing::AsCreated);
        if let (Live::There(present), Some(held), true) = (present, &used.snapshot, may_read_the_same) {
            let held = ObjectName::new(used.source.kind, held.clone());
            let held = source(target, &workload.key(&held)).await?;
            if held.is_some_and(|held| reads_the_same(workload, &used.source, &held, present)) {
                standing = Standing::Current;
            }
        }
        let name = format!("{}/{}", used.source.kind.as_str(), used.source.name);
        found.push(UsedSource {
            source: name,
            snapshot: used.snapshot.as_deref().map(str::to_owned),
            standing,
            object: used.source.clone(),
        });
    }
    Ok(found)
}

fn is_bound(inventory: &Inventory, workload: &OptedIn, object: &ObjectName) -> bool {
    let live = inventory.sources.get(&workload.key(object));
    matches!(live, Some(Live::There(live)) if live.is_bound_itself())
}

/// What can be said by names and digests alone.
fn without_contents(
    workload: &OptedIn,
    inventory: &Inventory,
    source: &ObjectName,
    snapshot: Option<&str>,
    present: &Live,
) -> Standing {
    let record = &workload.record;
    let excluded = record.uses.iter().any(|used| used.source == *source && used.excluded);
    match (present, snapshot) {
        (Live::Forbidden, _) => Standing::Unknown,
        (Live::Gone, None) if is_optional(workload, source) => Standing::AsWritten,
        (Live::Gone, None) => Standing::Missing,
        (Live::Gone, Some(_)) => Standing::SourceGone,
        (Live::There(present), _) if present.is_bound_itself() => Standing::Bound,
        (Live::There(present), _) if excluded || present.stays_as_written() => Standing::AsWritten,
        (Live::There(_), None) if !workload.kind.rolls => Standing::AsWritten,
        (Live::There(_), None) if record.track => Standing::Pending,
        (Live::There(_), None) => Standing::Paused,
        (Live::There(present), Some(snapshot)) => {
            let held = ObjectName::new(source.kind, snapshot);
            let digest = inventory.snapshots.get(&workload.key(&held)).and_then(|snapshot| snapshot.digest);
            if digest == Some(present.digest()) {
                Standing::Current
            } else if !workload.kind.rolls {
                Standing::AsCreated
            } else if record.seen.get(source) == Some(&present.digest()) {
                Standing::Pinned
            } else if record.track {
                Standing::Pending
            } else {
                Standing::Paused
            }
        }
    }
}

/// Whether pods start without it: every reference to it says so.
fn is_optional(workload: &OptedIn, source: &ObjectName) -> bool {
    let Ok(parsed) = Workload::read(&workload.kind, &workload.value) else { return false };
    let references = parsed.template.as_ref().map(Template::references).unwrap_or_default();
    let mut to_it = references
        .iter()
        .filter(|reference| reference.kind == source.kind && *reference.name == *source.name);
    to_it.all(|reference| reference.optional)
}

/// Whether the workload reads the same from both: by the keys that it uses, or by everything where it takes the whole.
pub(super) fn reads_the_same(
    workload: &OptedIn,
    source: &ObjectName,
    held: &Observed,
    present: &Observed,
) -> bool {
    if held.digest() == present.digest() {
        return true;
    }
    let Ok(parsed) = Workload::read(&workload.kind, &workload.value) else { return false };
    let entered = parsed.sources();
    let references = parsed.template.as_ref().map(Template::references).unwrap_or_default();
    let concerned = |reference: &&Reference<'_>| {
        let of = entered.source_of(reference.kind, reference.name);
        of == Some(source) || (reference.kind == source.kind && *reference.name == *source.name)
    };
    references.iter().filter(concerned).all(|reference| match &reference.keys {
        None => false,
        Some(keys) => held.same_values(present, keys.iter().copied()),
    })
}

/// The word for the rollout; of a Job, which has none, what `kubectl get jobs` says of it.
pub(super) fn rollout(workload: &OptedIn) -> &'static str {
    if !workload.kind.rolls {
        let conditions = workload.value["status"]["conditions"].as_array();
        let is = |kind: &str| {
            conditions.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
        };
        let known = [("Complete", "complete"), ("Failed", "failed"), ("Suspended", "suspended")];
        return known.iter().find(|(kind, _)| is(kind)).map_or("running", |(_, word)| word);
    }
    match workload.record.health {
        Health::Settled => "settled",
        Health::Unobserved | Health::Progressing => "progressing",
        Health::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cli::inventory::Inventory, kinds::Kinds};

    #[test]
    fn of_a_deployment_that_holds_a_rollouts_template_the_rollout_says_how_it_fares() {
        let kinds = Kinds::default();
        let deployments = kinds.iter().find(|kind| kind.kind == "Deployment").unwrap();
        let told = |namespace: &str, of: &str, generation: &str, phase: &str| {
            let deployment = json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "d", "generation": 2},
                "spec": {"replicas": 0, "template": {}},
                "status": {"observedGeneration": 2},
            });
            let rollout = json!({
                "metadata": {"name": "web", "namespace": namespace, "uid": "r", "generation": 1},
                "spec": {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": of}},
                "status": {"observedGeneration": "1", "phase": phase, "workloadObservedGeneration": generation},
            });
            let mut inventory = Inventory {
                workloads: vec![OptedIn::read(deployments, deployment).unwrap()],
                rollouts: vec![rollout],
                ..Inventory::default()
            };
            inventory.let_rollouts_say_how_their_templates_fare();
            super::rollout(&inventory.workloads[0])
        };
        for (namespace, of, generation, phase, word) in [
            ("shop", "web", "2", "Healthy", "settled"),
            ("shop", "web", "2", "Paused", "progressing"),
            ("shop", "web", "2", "Degraded", "failed"),
            ("shop", "web", "1", "Healthy", "progressing"),
            ("shop", "web", "", "Healthy", "settled"),
            ("shop", "other", "1", "Degraded", "settled"),
            ("elsewhere", "web", "1", "Degraded", "settled"),
        ] {
            assert_eq!(told(namespace, of, generation, phase), word, "{namespace} {of} {generation} {phase}");
        }
    }
}
