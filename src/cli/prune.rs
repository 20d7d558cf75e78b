//! `kubectl confrev prune`: which snapshots can be deleted, and why or why not.

use std::collections::BTreeMap;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{
    failure::Failure,
    history::used_by,
    inventory::Inventory,
    objects::{Scope, Snapshot, SourceKey, annotation, source, text},
    output::{self, OutputFlag, Row},
    target::{Flags, Target},
};
use crate::{annotations, cluster::Api as _, resolve::parse_keep, snapshot::ObjectName, world::Version};

/// Options of `prune`.
#[derive(Debug, Args)]
pub(super) struct PruneOptions {
    /// In all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Delete the snapshots that can be deleted. Without this flag, nothing is written.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// A snapshot, and whether it can be deleted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PrunableSnapshot {
    namespace: String,
    snapshot: String,
    created: Timestamp,
    goes: bool,
    why: String,
}

impl Row for PrunableSnapshot {
    const COLUMNS: (&'static [&'static str], usize) =
        (&["NAMESPACE", "SNAPSHOT", "AGE", "DELETABLE", "WHY"], 5);

    fn cells(&self) -> Vec<String> {
        let age = output::age(self.created, Timestamp::now());
        let goes = if self.goes { "yes" } else { "no" }.to_owned();
        vec![self.namespace.clone(), self.snapshot.clone(), age, goes, self.why.clone()]
    }

    fn name(&self) -> String {
        self.snapshot.clone()
    }
}

/// Runs the command.
pub(super) async fn run(options: &PruneOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let scope = if options.all_namespaces { Scope::All } else { Scope::Namespace(target.namespace.clone()) };
    let inventory = Inventory::read(&target, &scope).await?;
    let mut sources: BTreeMap<SourceKey, Option<Value>> = BTreeMap::new();
    let mut verdicts = Vec::new();
    for (key, snapshot) in &inventory.snapshots {
        let of = (key.0.clone(), snapshot.source.clone());
        if !sources.contains_key(&of) {
            let live = source(&target, &of).await?;
            let live = live.and_then(|live| serde_json::from_slice(live.json()).ok());
            sources.insert(of.clone(), live);
        }
        let live = sources.get(&of).and_then(Option::as_ref);
        let verdict = verdict(&inventory, key, snapshot, live);
        if verdict.goes && options.yes {
            delete(&target, key, snapshot).await?;
        }
        verdicts.push(verdict);
    }
    output::list(options.output.output, &verdicts, "no snapshots")?;
    let going = verdicts.iter().filter(|verdict| verdict.goes).count();
    if !verdicts.is_empty() {
        let what = match (going, options.yes) {
            (0, _) => "can be deleted",
            (_, true) => "were deleted",
            (_, false) => "can be deleted: --yes deletes them",
        };
        output::note(&format!("{going} of {} {what}", output::count(verdicts.len(), "snapshot")));
    }
    Ok(())
}

fn verdict(
    inventory: &Inventory,
    key: &SourceKey,
    snapshot: &Snapshot,
    source: Option<&Value>,
) -> PrunableSnapshot {
    let users = used_by(inventory, key);
    let owners = snapshot.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let names: Vec<_> =
        owners.map(|owner| format!("{}/{}", text(owner, "/kind"), text(owner, "/name"))).collect();
    let newest = source.and_then(|source| newest_rank(inventory, key, snapshot, source));
    let (goes, why) = if !users.is_empty() {
        (false, format!("used by {}", users.join(",")))
    } else if let Some((rank, keep)) = newest {
        (false, format!("number {} of the newest {keep} of its source", rank + 1))
    } else if !names.is_empty() {
        (false, format!("unused; owned by {}; Kubernetes deletes it with its last owner", names.join(",")))
    } else {
        let gone = if source.is_some() {
            "it is older than the snapshots that its source keeps"
        } else {
            "its source does not exist"
        };
        (true, format!("nothing uses it, and {gone}"))
    };
    PrunableSnapshot {
        namespace: key.0.clone(),
        snapshot: key.1.name.to_string(),
        created: snapshot.created,
        goes,
        why,
    }
}

/// The rank of the snapshot among the newest that its source keeps, and their number; `None` if it is not one of them.
fn newest_rank(
    inventory: &Inventory,
    key: &SourceKey,
    snapshot: &Snapshot,
    source: &Value,
) -> Option<(usize, usize)> {
    let keep = parse_keep(annotation(source, annotations::KEEP)).or_else(|| parse_keep(None))?;
    let siblings = inventory
        .snapshots
        .iter()
        .filter(|(other, sibling)| other.0 == key.0 && sibling.source == snapshot.source);
    let mut ranked: Vec<(&Timestamp, &ObjectName)> =
        siblings.map(|(other, sibling)| (&sibling.created, &other.1)).collect();
    ranked.sort_by(|a, b| b.cmp(a));
    let rank = ranked.iter().position(|(_, name)| **name == key.1)?;
    (rank < keep).then_some((rank, keep))
}

async fn delete(target: &Target, key: &SourceKey, snapshot: &Snapshot) -> Result<(), Failure> {
    let version = Version {
        uid: text(&snapshot.value, "/metadata/uid").to_owned(),
        resource_version: text(&snapshot.value, "/metadata/resourceVersion").to_owned(),
    };
    match target.api.delete_snapshot(&key.0, &key.1, &version).await {
        Err(error) if error.is_not_found() => Ok(()),
        other => other.map_err(|error| target.failure(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshot::SourceKind;

    /// Sources with equal names and content have snapshots with equal names, in any namespace.
    #[test]
    fn prune_distinguishes_equal_names_in_two_namespaces() {
        let entered = json!({"configmaps": {"demo": "demo-1"}}).to_string();
        let revision = json!({
            "kind": "ReplicaSet",
            "metadata": {"namespace": "a", "name": "web-1", "labels": {annotations::REVISION: "x"}},
            "spec": {"template": {"metadata": {"annotations": {annotations::SOURCES: entered}}}},
        });
        let mut inventory = Inventory { revisions: vec![revision.into()], ..Inventory::default() };
        let name = ObjectName::new(SourceKind::ConfigMap, "demo-1");
        for namespace in ["a", "b"] {
            let snapshot = Snapshot {
                source: ObjectName::new(SourceKind::ConfigMap, "demo"),
                digest: None,
                created: Timestamp::UNIX_EPOCH,
                value: json!({}).into(),
            };
            inventory.snapshots.insert((namespace.to_owned(), name.clone()), snapshot);
        }
        let goes = ["a", "b"].map(|namespace| {
            let key = (namespace.to_owned(), name.clone());
            let verdict = verdict(&inventory, &key, &inventory.snapshots[&key], None);
            (verdict.goes, verdict.why)
        });
        assert_eq!(goes[0], (false, "used by ReplicaSet/web-1".to_owned()));
        assert_eq!(goes[1], (true, "nothing uses it, and its source does not exist".to_owned()));
    }
}
