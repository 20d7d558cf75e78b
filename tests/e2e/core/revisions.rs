//! Which writes make a new revision, and which do not.

use serde_json::Value;

use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{World, each_kind};

#[test]
fn earlier_content_reuses_its_snapshot_and_replica_set() {
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

/// The command that applies a manifest repeatedly.
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

    /// The part of the object that a repeated apply must not change. Two exceptions are unrelated to confrev. A replace
    /// removes fields that the workload's controller then writes again. A client-side apply of a custom resource sends
    /// whole lists, so the API server records the time.
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
    assert_eq!(again.unchanged(kind, world.live(&web)), once, "a repeated apply changes nothing");
    assert_eq!(world.replica_sets(&web).len(), 2);
}

#[test]
fn client_side_apply_after_roll_makes_no_revision() {
    let _confrev = running();
    each_kind(|kind| applied_again(kind, Tool::ClientSide, Tool::ClientSide));
}

/// Nor does the apply conflict with another field manager.
#[test]
fn server_side_apply_after_roll_makes_no_revision() {
    let _confrev = running();
    each_kind(|kind| applied_again(kind, Tool::ServerSide, Tool::ServerSide));
}

#[test]
fn replace_after_roll_makes_no_revision() {
    let _confrev = running();
    each_kind(|kind| applied_again(kind, Tool::ClientSide, Tool::Replace));
}
