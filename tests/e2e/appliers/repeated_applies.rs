//! Tools that deploy the same repeatedly, which must change nothing.

use std::thread;

use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::drift::{drift, drift_of};
use crate::manifests::{Kind, Workload, config_map, list};
use crate::shared::running;
use crate::tools::{Tool, complete};
use crate::world::{World, each_kind};

/// The parts of a workload that a repeated deploy must not change.
#[derive(Debug, PartialEq)]
struct Revisions {
    /// `None` for a replace: it removes annotations of the workload's own controller, which changes a Deployment's generation.
    generation: Option<Value>,
    spec: Value,
    replica_sets: usize,
}

/// A workload and its ConfigMap, which one tool deploys.
struct Site {
    world: World,
    tool: Tool,
    kind: Kind,
}

impl Site {
    fn workload(&self, image: &str) -> Workload {
        Workload::new(self.kind, "web", &["demo"]).replicas(0).image(image)
    }

    fn deploy(&self, text: &str, image: &str) {
        let objects = [config_map("demo", text), complete(&self.workload(image))];
        let output = self.tool.deploy(&self.world, &objects);
        assert!(!output.stderr.contains("onflict"), "{output}");
        output.ok();
    }

    fn revisions(&self) -> Revisions {
        let web = self.workload("");
        let mut live = self.world.live(&web);
        let generation = (self.tool != Tool::Replace).then(|| generation(&live));
        Revisions { generation, spec: live["spec"].take(), replica_sets: self.world.replica_sets(&web).len() }
    }

    /// Deploys, and waits for this many ReplicaSets. Then deploys twice more, which changes nothing and leaves no drift.
    fn settles(&self, text: &str, image: &str, replica_sets: usize) {
        let web = self.workload(image);
        self.deploy(text, image);
        self.world.wait_replica_sets(&web, replica_sets);
        self.world.wait_resolved(&web, "demo", text);
        self.world.wait_at_rest();
        let before = self.revisions();
        assert_eq!(before.replica_sets, replica_sets, "one deploy makes at most one revision");
        self.deploy(text, image);
        self.deploy(text, image);
        self.world.wait_at_rest();
        assert_eq!(self.revisions(), before, "a repeated deploy makes no revision");
        assert_eq!(drift(&self.world, &web, &complete(&web)), [""; 0], "drift");
    }
}

/// Deploys with a tool: first, then the config alone, config and image together, and back to an earlier state.
fn repeated(tool: Tool) {
    let _confrev = running();
    each_kind(|kind| {
        let site = Site { world: World::new("again"), tool, kind };
        site.settles("A", "app:1", 1);
        site.settles("B", "app:1", 2);
        site.settles("C", "app:2", 3);
        site.settles("B", "app:1", 3);
    });
}

#[test]
fn repeated_client_side_apply_changes_nothing() {
    repeated(Tool::ClientSide);
}

#[test]
fn repeated_server_side_apply_changes_nothing() {
    repeated(Tool::ServerSide);
}

#[test]
fn repeated_replace_changes_nothing() {
    repeated(Tool::Replace);
}

#[test]
fn repeated_kustomize_changes_nothing() {
    repeated(Tool::Kustomize);
}

#[test]
fn repeated_helm_upgrade_changes_nothing() {
    repeated(Tool::Helm);
}

/// Both client-side and server-side apply are tested. There is no drift either.
#[test]
fn repeated_apply_of_other_kinds_changes_nothing() {
    let _confrev = running();
    let kinds = [("statefulsets", "apps"), ("daemonsets", "apps"), ("cronjobs", "batch"), ("jobs", "batch")];
    thread::scope(|scope| {
        for (kind, group) in kinds {
            for tool in [Tool::ClientSide, Tool::ServerSide] {
                scope.spawn(move || {
                    let world = World::new("others");
                    let mut web = Load::new(kind, "web", &["demo"]);
                    if kind == "statefulsets" {
                        web = web.spec(json!({"replicas": 0}));
                    }
                    let path = format!("/apis/{group}/v1/namespaces/{}/{kind}/web", world.name());
                    let deploy =
                        |text| tool.deploy(&world, &[config_map("demo", text), web.manifest.clone()]).ok();
                    // A Job's template never changes.
                    let texts = if kind == "jobs" { &["A"][..] } else { &["A", "B", "A"] };
                    for text in texts {
                        deploy(text);
                        web.wait_resolved(&world, "demo", text);
                        world.wait_at_rest();
                        let before = (generation(&web.live(&world)), web.revisions(&world).len());
                        deploy(text);
                        deploy(text);
                        world.wait_at_rest();
                        let after = (generation(&web.live(&world)), web.revisions(&world).len());
                        assert_eq!(after, before, "{kind}: a repeated deploy makes no revision");
                        assert_eq!(drift_of(&world, &path, &web.manifest), [""; 0], "{kind}: drift");
                    }
                });
            }
        }
    });
}

/// One pipeline applies client-side, another server-side, and a person replaces.
#[test]
fn alternating_tools_change_nothing() {
    let _confrev = running();
    each_kind(|kind| {
        let mut site = Site { world: World::new("turns"), tool: Tool::ClientSide, kind };
        site.settles("A", "app:1", 1);
        site.tool = Tool::Replace;
        let first = site.revisions();
        let web = site.workload("app:1");
        let objects = list(&[config_map("demo", "A"), complete(&web)]);
        let forced = &["apply", "--server-side", "--force-conflicts", "--field-manager=other"];
        site.world.with_file(forced, &objects).ok();
        site.tool = Tool::Kustomize;
        site.deploy("A", "app:1");
        site.tool = Tool::Replace;
        site.deploy("A", "app:1");
        site.world.with_file(forced, &objects).ok();
        site.world.wait_at_rest();
        assert_eq!(site.revisions(), first);
        assert_eq!(drift(&site.world, &web, &complete(&web)), [""; 0], "drift");
    });
}

fn generation(object: &Value) -> Value {
    object["metadata"]["generation"].clone()
}
