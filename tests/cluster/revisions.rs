//! When there is a new revision and when there is none.

use serde_json::Value;

use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{World, each_kind};

#[test]
fn a_then_b_then_a_returns_to_the_snapshot_and_the_replica_set_of_a() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("a-b-a");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A"]);
        let first = world.resolved(&web, "demo");
        world.set_config("demo", "B");
        world.wait_reads(&web, "demo", &["B"]);

        world.set_config("demo", "A");
        world.wait_reads(&web, "demo", &["A"]);
        assert_eq!(world.resolved(&web, "demo"), first);
        assert_eq!(world.replica_sets(&web).len(), 2, "A's and B's");
        assert_eq!(world.snapshot_texts("demo"), ["A", "B"]);
    });
}

/// How a manifest is applied again and again.
#[derive(Clone, Copy, PartialEq)]
enum Tool {
    ClientSide,
    ServerSide,
    Replace,
}

impl Tool {
    fn apply(self, world: &World, manifest: &Value) {
        let command: &[&str] = match self {
            Self::ClientSide => &["apply"],
            Self::ServerSide => &["apply", "--server-side"],
            Self::Replace => &["replace"],
        };
        world.with_file(command, manifest).ok();
    }

    /// What an apply of the same leaves as it is: all, with two exceptions that have nothing to do with confrev. A
    /// replace takes off what the workload's controller then writes anew, and a client-side apply of a custom resource
    /// sends its lists whole, so that the API server notes the time.
    fn unchanged(self, kind: Kind, mut object: Value) -> Value {
        if self == Self::Replace {
            return object["spec"].take();
        }
        if self == Self::ClientSide && kind == Kind::Rollout {
            for field in ["resourceVersion", "managedFields"] {
                object["metadata"][field].take();
            }
        }
        object
    }
}

/// Applies a manifest, lets the workload roll, and applies the manifest twice more.
fn applied_again(kind: Kind, first: Tool, again: Tool) {
    let world = World::new("reapply");
    let web = Workload::new(kind, "web", &["demo"]).replicas(0);
    world.set_config("demo", "A");
    first.apply(&world, &web.manifest());
    world.wait_replica_sets(&web, 1);
    world.set_config("demo", "B");
    world.wait_resolved(&web, "demo", "B");
    world.wait_replica_sets(&web, 2);
    world.wait_at_rest();

    again.apply(&world, &web.manifest());
    world.wait_at_rest();
    world.resolves_to(&web, "demo", "B").unwrap();
    let once = again.unchanged(kind, world.live(&web));
    again.apply(&world, &web.manifest());
    world.wait_at_rest();
    assert_eq!(again.unchanged(kind, world.live(&web)), once, "the same once more is no change");
    assert_eq!(world.replica_sets(&web).len(), 2);
}

#[test]
fn a_client_side_apply_after_a_roll_makes_no_new_replica_set() {
    let _confrev = running();
    each_kind(|kind| applied_again(kind, Tool::ClientSide, Tool::ClientSide));
}

#[test]
fn a_server_side_apply_after_a_roll_has_no_conflict_and_makes_no_new_replica_set() {
    let _confrev = running();
    each_kind(|kind| applied_again(kind, Tool::ServerSide, Tool::ServerSide));
}

#[test]
fn a_replace_after_a_roll_makes_no_new_replica_set() {
    let _confrev = running();
    each_kind(|kind| applied_again(kind, Tool::ClientSide, Tool::Replace));
}
