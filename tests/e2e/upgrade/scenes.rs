//! The state that the older confrev leaves, and how it continues under the newer one.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::manifests::{Kind, Workload, config_map};
use crate::world::{LIMIT, World, expect, name_of, snapshot_of, text};

/// The kinds of which one workload exists.
pub(crate) const OTHERS: [(&str, &str); 4] =
    [("apps/v1", "StatefulSet"), ("apps/v1", "DaemonSet"), ("batch/v1", "Job"), ("batch/v1", "CronJob")];

const WORKLOADS: [&str; 6] = ["rollout", "deployment", "statefulset", "daemonset", "cronjob", "job"];

/// A line for each snapshot, with its digest and owners, and for each workload, with confrev's annotations.
pub(crate) fn kept(world: &World) -> Vec<String> {
    let snapshots = world.snapshots().into_iter().map(|snapshot| {
        let digest = text(&snapshot["metadata"]["annotations"]["confrev.dev/digest"]);
        let owners = snapshot["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        let owners: Vec<_> =
            owners.iter().map(|owner| format!("{}/{}", text(&owner["kind"]), text(&owner["name"]))).collect();
        format!("{} {digest} {}", name_of(&snapshot), owners.join(","))
    });
    let workloads = WORKLOADS.iter().flat_map(|kind| {
        world.cluster.list(kind, world.name(), "").into_iter().map(move |workload| {
            let template = workload.pointer("/spec/jobTemplate/spec/template");
            let template = template.or_else(|| workload.pointer("/spec/template")).unwrap_or(&Value::Null);
            let own = ["state", "roll"].map(|key| {
                format!("{key}={}", workload["metadata"]["annotations"][format!("confrev.dev/{key}")])
            });
            let sources = &template["metadata"]["annotations"]["confrev.dev/sources"];
            let revision = &template["metadata"]["labels"]["confrev.dev/revision"];
            format!("{kind}/{} {} sources={sources} revision={revision}", name_of(&workload), own.join(" "))
        })
    });
    snapshots.chain(workloads).collect()
}

/// The versions of all objects that confrev or a roll could write.
pub(crate) fn versions(world: &World) -> Vec<String> {
    let mut lines = world.versions();
    for kind in ["statefulset", "daemonset", "controllerrevision", "cronjob", "job"] {
        let objects = world.cluster.list(kind, world.name(), "");
        lines.extend(objects.iter().map(|object| {
            format!("{kind} {} {}", name_of(object), text(&object["metadata"]["resourceVersion"]))
        }));
    }
    lines
}

/// Workloads of one kind in each state.
pub(crate) struct Scene {
    pub(crate) world: World,
    /// Rolled from A to B.
    rolled: Workload,
    /// Rolled from A to B, and undone.
    undone: Workload,
    /// Resolves only when it is applied; its source has changed since.
    untracked: Workload,
    /// Paused in the middle of its roll from A to B.
    halfway: Workload,
    /// Opted in by its namespace, with `missing`, `mount` and an exclusion.
    settings: Workload,
}

impl Scene {
    pub(crate) fn set(kind: Kind) -> Self {
        let world = World::labelled("upgrade", &[("confrev.dev/enabled", "true")]);
        let scene = Self {
            rolled: Workload::new(kind, "rolled", &["rolled-config"]),
            undone: Workload::new(kind, "undone", &["undone-config"]),
            untracked: Workload::new(kind, "untracked", &["untracked-config"]).annotation("track", "false"),
            halfway: Workload::new(kind, "halfway", &["halfway-config"]).replicas(4).pausing(),
            settings: Workload::new(kind, "settings", &["settings-config", "nowhere", "plain"])
                .enabled(None)
                .annotation("missing", "allow")
                .annotation("exclude", "plain")
                .annotation("mount", "rolled-config"),
            world,
        };
        scene.begins();
        scene
    }

    fn all(&self) -> [&Workload; 5] {
        [&self.rolled, &self.undone, &self.untracked, &self.halfway, &self.settings]
    }

    fn begins(&self) {
        let world = &self.world;
        world.set_config("plain", "A");
        for workload in self.all() {
            let source = format!("{}-config", workload.name);
            world.set_config(&source, "A");
        }
        for workload in self.all() {
            world.apply(&workload.manifest()).ok();
            world.wait_resolved(workload, &format!("{}-config", workload.name), "A");
            world.wait_replica_sets(workload, 1);
        }
        world.wait_reads(&self.rolled, "rolled-config", &["A"]);
        world.wait_reads(&self.halfway, "halfway-config", &["A"; 4]);
        for workload in self.all().into_iter().take(4) {
            world.set_config(&format!("{}-config", workload.name), "B");
        }
        for workload in [&self.rolled, &self.undone] {
            world.wait_reads(workload, &format!("{}-config", workload.name), &["B"]);
        }
        world.wait_reads(&self.halfway, "halfway-config", &["A", "A", "A", "B"]);
        // `settings` mounts the source of `rolled`, so it rolls too.
        world.wait_replica_sets(&self.settings, 2);
        world.undo(&self.undone);
        world.wait_reads(&self.undone, "undone-config", &["A"]);
        assert_eq!(world.replica_sets(&self.untracked).len(), 1);
    }

    /// The newer confrev treats the state of the older one as the older one did.
    pub(crate) fn goes_on(&self) {
        let world = &self.world;
        world.reads_for(0, &self.halfway, "halfway-config", &["A", "A", "A", "B"]);
        // Another image, the same snapshots.
        let sources =
            |workload: &Workload| world.live(workload)["spec"]["template"]["metadata"]["annotations"].clone();
        for workload in [&self.undone, &self.untracked, &self.settings] {
            let before = sources(workload);
            assert!(before["confrev.dev/sources"].is_string(), "{before}");
            let sets = world.replica_sets(workload).len();
            world.set_image(workload, "app:2").ok();
            world.wait_replica_sets(workload, sets + 1);
            assert_eq!(sources(workload), before, "{}", workload.reference());
        }
        // When an earlier content returns, the earlier snapshot and the earlier ReplicaSet are used again.
        let (snapshots, first) = (world.snapshots().len(), world.snapshot_name("rolled-config", "A"));
        world.set_config("rolled-config", "A");
        world.wait_reads(&self.rolled, "rolled-config", &["A"]);
        assert_eq!(world.resolved(&self.rolled, "rolled-config"), Some(first));
        assert_eq!((world.replica_sets(&self.rolled).len(), world.snapshots().len()), (2, snapshots));
        // A change of its source rolls the undone workload once. A user's `roll` rolls the untracked workload.
        let sets = world.replica_sets(&self.undone).len();
        world.set_config("undone-config", "C");
        world.wait_reads(&self.undone, "undone-config", &["C"]);
        let roll = ["annotate", &self.untracked.reference(), "confrev.dev/roll=now", "--overwrite"];
        world.kubectl(&roll).ok();
        world.wait_reads(&self.untracked, "untracked-config", &["B"]);
        world.promote(&self.halfway);
        world.wait_reads(&self.halfway, "halfway-config", &["B"; 4]);
        holds_for("one roll of each workload", Duration::from_secs(3), || {
            let found = [&self.undone, &self.halfway].map(|workload| world.replica_sets(workload).len());
            expect(&found, &[sets + 1, 2])
        });
    }
}

/// The other kinds, a ConfigMap that keeps older snapshots, and a ConfigMap that is bound itself.
pub(crate) struct Others {
    pub(crate) world: World,
}

impl Others {
    pub(crate) fn set() -> Self {
        let world = World::new("upgrade-others");
        let mut kept = config_map("demo", "A");
        kept["metadata"]["annotations"] = json!({"confrev.dev/keep": "3"});
        world.apply(&kept).ok();
        let mut bound = config_map("tool-1", "A");
        bound["metadata"]["labels"] = json!({"confrev.dev/enabled": "bind"});
        world.apply(&bound).ok();
        for workload in others() {
            world.apply(&workload).ok();
        }
        let others = Self { world };
        others.read_by_all(0);
        kept["data"]["text"] = json!("B");
        others.world.apply(&kept).ok();
        others.read_by_all(1);
        others.world.wait_snapshot_texts("demo", &["A", "B"]);
        wait_for("the bound object to have owners", LIMIT, || {
            let owners = others.owners_of_bound();
            // At least the two revisions of each set.
            if owners >= 4 { Ok(()) } else { Err(format!("{owners}")) }
        });
        others
    }

    /// Waits until all workloads that can roll have rolled `rolls` times.
    fn read_by_all(&self, rolls: usize) {
        let wanted = ["A", "B", "C"][rolls];
        for kind in ["statefulset", "daemonset", "cronjob"] {
            wait_for(&format!("the {kind} to roll to {wanted}"), LIMIT, || {
                let object =
                    self.world.cluster.get(kind, self.world.name(), kind).ok_or("the workload is missing")?;
                let template = object.pointer("/spec/jobTemplate/spec/template");
                let template = template.or_else(|| object.pointer("/spec/template")).unwrap_or(&Value::Null);
                let snapshot = snapshot_of(template, "demo").ok_or("the template is not resolved")?;
                let live = self.world.cluster.get("configmap", self.world.name(), &snapshot);
                let found = text(&live.ok_or("the snapshot is missing")?["data"]["text"]);
                if found == wanted { Ok(()) } else { Err(found) }
            });
        }
        wait_for("a revision of each set for each roll", LIMIT, || {
            expect(&self.revisions(), &(2 * (rolls + 1)))
        });
    }

    fn revisions(&self) -> usize {
        self.world.cluster.list("controllerrevision", self.world.name(), "").len()
    }

    fn owners_of_bound(&self) -> usize {
        let bound = self.world.cluster.get("configmap", self.world.name(), "tool-1");
        let owners = bound.as_ref().and_then(|bound| bound["metadata"]["ownerReferences"].as_array());
        owners.map_or(0, Vec::len)
    }

    pub(crate) fn go_on(&self) {
        let before = self.owners_of_bound();
        self.world.set_config("demo", "C");
        self.read_by_all(2);
        wait_for("the new revisions to own the bound object too", LIMIT, || {
            let owners = self.owners_of_bound();
            if owners >= before + 2 { Ok(()) } else { Err(format!("{owners}, {before} before")) }
        });
        self.world.wait_snapshot_texts("demo", &["A", "B", "C"]);
        holds_for("one roll of each set", Duration::from_secs(3), || expect(&self.revisions(), &6));
    }
}

/// A workload of each kind, named after the kind.
fn others() -> Vec<Value> {
    let one = |(version, kind): (&str, &str)| {
        let name = kind.to_lowercase();
        let mut template = json!({
            "metadata": {"labels": {"app": name}},
            "spec": {
                "containers": [{
                    "name": "app", "image": "app:1", "envFrom": [{"configMapRef": {"name": "demo"}}],
                }],
                "volumes": [{"name": "tool", "configMap": {"name": "tool-1"}}],
            },
        });
        if kind.ends_with("Job") {
            template["spec"]["restartPolicy"] = json!("Never");
        }
        let spec = match kind {
            "Job" => json!({"template": template}),
            // The CronJob creates no Job during the test.
            "CronJob" => json!({
                "schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": {"spec": {"template": template}},
            }),
            _ => json!({"selector": {"matchLabels": {"app": name}}, "template": template}),
        };
        json!({
            "apiVersion": version,
            "kind": kind,
            "metadata": {
                "name": name,
                "labels": {"confrev.dev/enabled": "true"},
                "annotations": {"confrev.dev/min-interval": "0"},
            },
            "spec": spec,
        })
    };
    OTHERS.map(one).into()
}
