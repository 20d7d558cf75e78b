//! confrev, run with nothing but an administrator's kubeconfig.

use std::path::Path;

use confrev_controlplane::{ControlPlane, Program, wait_for};
use serde_json::Value;

use crate::manifests::Workload;
use crate::shared::exclusive;
use crate::world::{LIMIT, World, each_kind};

/// A change rolls a workload, and ReplicaSets own its snapshots.
#[test]
fn works_with_an_administrators_kubeconfig() {
    let mut confrev = exclusive();
    confrev.stop();
    let cluster = ControlPlane::shared();
    let binary = Path::new(env!("CARGO_BIN_EXE_confrev"));
    let mut administrators = Program::new(cluster, binary).as_user(cluster.kubeconfig());
    administrators.start();
    each_kind(|kind| {
        let world = World::new("acceptance");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A"]);
        world.set_config("demo", "B");
        world.wait_reads(&web, "demo", &["B"]);
        assert_eq!(world.replica_sets(&web).len(), 2);
        wait_for("each snapshot to be owned by a ReplicaSet", LIMIT, || {
            let snapshots = world.snapshots();
            let bound = snapshots.iter().filter(|snapshot| is_owned_by_a_replica_set(snapshot)).count();
            if bound == 2 && snapshots.len() == 2 { Ok(()) } else { Err(format!("{snapshots:?}")) }
        });
    });
    administrators.stop();
    confrev.start();
}

fn is_owned_by_a_replica_set(snapshot: &Value) -> bool {
    let owners = snapshot["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|owners| owners.iter().any(|owner| owner["kind"] == "ReplicaSet"))
}
