//! ConfigMaps to which a tool gives a new name at each change: labelled `bind`, or snapshotted like others.

use std::collections::BTreeSet;

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::any_kind::owners;
use crate::manifests::{Kind, Workload, config_map, list};
use crate::shared::running;
use crate::tools::{kustomize, release, upgrade};
use crate::world::{LIMIT, World, each_kind, expect, name_of, text};

/// A tool that names a ConfigMap after its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    /// A chart with a checksum in the ConfigMap's name and in an annotation. After each upgrade, Helm deletes objects that
    /// the chart no longer has.
    Helm,
    /// `configMapGenerator`, which deletes nothing.
    Kustomize,
    /// `kubectl apply --prune` with names from a pipeline. It immediately deletes objects that are no longer in its input.
    Prune,
}

struct Site {
    world: World,
    tool: Tool,
    web: Workload,
    bind: bool,
}

impl Site {
    fn new(tool: Tool, kind: Kind, bind: bool) -> Self {
        let web = Workload::new(kind, "web", &["demo"]).replicas(4).pausing();
        Self { world: World::new("anew"), tool, web, bind }
    }

    /// The labels of the tool's ConfigMaps.
    fn labels(&self) -> Value {
        let label = if self.bind { "bind" } else { "" };
        if self.bind {
            json!({"part-of": "shop", "confrev.dev/enabled": label})
        } else {
            json!({"part-of": "shop"})
        }
    }

    /// The workload, with this name of its ConfigMap. It keeps one old ReplicaSet.
    fn manifest(&self, name: &str) -> Value {
        let mut manifest = self.web.manifest();
        manifest["metadata"]["labels"]["part-of"] = json!("shop");
        manifest["spec"]["revisionHistoryLimit"] = json!(1);
        let spec = &mut manifest["spec"]["template"]["spec"];
        spec["volumes"][0]["configMap"]["name"] = json!(name);
        spec["containers"][0]["envFrom"][0]["configMapRef"]["name"] = json!(name);
        manifest
    }

    fn deploy(&self, content: &str) {
        let output = match self.tool {
            Tool::Helm => {
                let sum = "{{ \"CONTENT\" | sha256sum | trunc 8 }}".replace("CONTENT", content);
                let mut config = config_map(&format!("demo-{sum}"), content);
                config["metadata"]["labels"] = self.labels();
                let mut manifest = self.manifest(&format!("demo-{sum}"));
                manifest["spec"]["template"]["metadata"]["annotations"] = json!({"checksum/config": sum});
                // Quotes within the template's braces belong to Helm's syntax, not to JSON.
                upgrade(&self.world, &format!("{config}\n---\n{manifest}").replace("\\\"", "\""))
            }
            Tool::Kustomize => {
                let generator = json!({
                    "name": "demo", "literals": [format!("text={content}")], "options": {"labels": self.labels()},
                });
                let kustomization = json!({
                    "configMapGenerator": [generator], "resources": ["web.yaml"], "configurations": ["names.yaml"],
                });
                // kustomize does not know the fields in which a Rollout names ConfigMaps.
                let fields = ["volumes/configMap/name", "containers/envFrom/configMapRef/name"];
                let fields = fields
                    .map(|field| json!({"kind": "Rollout", "path": format!("spec/template/spec/{field}")}));
                let names =
                    json!({"nameReference": [{"kind": "ConfigMap", "version": "v1", "fieldSpecs": fields}]});
                let files = [
                    ("kustomization.yaml", kustomization.to_string()),
                    ("web.yaml", self.manifest("demo").to_string()),
                    ("names.yaml", names.to_string()),
                ];
                kustomize(&self.world, &files)
            }
            Tool::Prune => {
                let name = format!("demo-{}", content.to_lowercase());
                let mut config = config_map(&name, content);
                config["metadata"]["labels"] = self.labels();
                let prune =
                    ["apply", "--prune", "--selector=part-of=shop", "--prune-allowlist=core/v1/ConfigMap"];
                let manifests = list(&[config, self.manifest(&name)]);
                // It lists the objects and then deletes them, and fails if the garbage collector has deleted one meanwhile.
                wait_for("what is pruned to be there until then", LIMIT, || {
                    let output = self.world.with_file(&prune, &manifests);
                    let is_gone =
                        ["error pruning", "not found"].iter().all(|text| output.stderr.contains(text));
                    if is_gone { Err(output.stderr) } else { Ok(output) }
                })
            }
        };
        output.ok();
    }

    /// Deploys, and waits until one pod of four has the new content, and the others have the previous one.
    fn rolls(&self, before: &str, content: &str) {
        self.deploy(content);
        self.reads([before, before, before, content]);
    }

    /// Promotes the roll, and waits until it is finished.
    fn promotes(&self, content: &str) {
        self.world.promote(&self.web);
        self.reads([content; 4]);
    }

    #[track_caller]
    fn reads(&self, mut texts: [&str; 4]) {
        texts.sort_unstable();
        self.world.wait_reads(&self.web, "demo", &texts);
    }

    /// Deletes one of the pods that read this, as if its node failed.
    fn loses(&self, content: &str) {
        self.world.lose_pod(&self.web, "demo", content);
    }

    /// Undoes to the previous content, with the deployment tool if possible, otherwise with the tool of the kind.
    fn undoes(&self, to: &str) {
        if self.tool == Tool::Helm && !self.bind {
            release(&self.world, &["rollback", "web", "1"]).ok();
        } else {
            self.world.undo(&self.web);
        }
        let web = &self.web;
        wait_for(&format!("{} to begin to read {to:?}", web.reference()), LIMIT, || {
            self.world.reads(web, "demo").contains(&to.to_owned()).then_some(())
        });
    }

    /// Waits until one ConfigMap with this content exists for the pods, and ReplicaSets own it.
    fn wait_owned(&self, content: &str) {
        wait_for(&format!("ReplicaSets to own {content:?}"), LIMIT, || {
            let found = self.read_by_pods(content);
            let object = found.first().ok_or("no such ConfigMap exists")?;
            let owners = owners(object);
            let owned = owners.iter().any(|owner| owner.starts_with("ReplicaSet/"));
            if owned && found.len() == 1 { Ok(()) } else { Err(format!("{owners:?} of {}", found.len())) }
        });
    }

    /// Waits until this many ReplicaSets exist, with exactly the ConfigMaps that they read.
    fn wait_no_more_than(&self, replica_sets: usize) {
        wait_for("ConfigMaps that no ReplicaSet reads to be deleted", LIMIT, || {
            let sets = self.world.replica_sets(&self.web);
            let name =
                |set: &Value| text(&set["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]);
            let named: BTreeSet<_> = sets.iter().map(name).collect();
            let there: BTreeSet<_> = self.all().iter().map(name_of).collect();
            if sets.len() == replica_sets {
                expect(&there, &named)
            } else {
                Err(format!("{named:?} are read"))
            }
        });
    }

    /// The ConfigMaps that pods read, with this content.
    fn read_by_pods(&self, content: &str) -> Vec<Value> {
        self.all().into_iter().filter(|object| text(&object["data"]["text"]) == content).collect()
    }

    /// The ConfigMaps that pods read: the tool's own if they are bound, otherwise their snapshots.
    fn all(&self) -> Vec<Value> {
        if self.bind {
            self.world.cluster.list("configmap", self.world.name(), "confrev.dev/enabled=bind")
        } else {
            self.world.snapshots()
        }
    }
}

/// Rolls to A, halfway to B and then fully, back to A, and to C. One old ReplicaSet is kept, so B's is deleted then.
fn lived_through(tool: Tool, bind: bool) {
    let _confrev = running();
    each_kind(|kind| {
        let site = Site::new(tool, kind, bind);
        site.deploy("A");
        site.reads(["A"; 4]);
        site.wait_owned("A");
        site.rolls("A", "B");
        site.loses("A");
        site.reads(["A", "A", "A", "B"]);
        // A repeated deploy makes no revision, and the deleted ConfigMap is still kept.
        site.deploy("B");
        site.loses("A");
        site.reads(["A", "A", "A", "B"]);
        site.wait_owned("A");
        site.wait_owned("B");
        site.promotes("B");
        assert_eq!(site.world.replica_sets(&site.web).len(), 2);

        site.undoes("A");
        site.promotes("A");
        site.loses("A");
        site.reads(["A"; 4]);
        assert_eq!(site.world.replica_sets(&site.web).len(), 2, "A's ReplicaSet is used again");
        site.rolls("A", "C");
        site.loses("A");
        site.promotes("C");
        if tool == Tool::Kustomize && !bind {
            // kustomize deletes nothing, and an existing ConfigMap keeps its newest snapshot.
            site.world.wait_replica_sets(&site.web, 2);
            assert_eq!(site.all().len(), 3);
            site.world.kubectl(&["delete", "configmap", "--selector=part-of=shop"]).ok();
        }
        site.wait_no_more_than(2);
        site.wait_owned("C");
        site.reads(["C"; 4]);
    });
}

#[test]
fn checksum_named_config_map_of_chart_is_bound() {
    lived_through(Tool::Helm, true);
}

/// Helm rolls the release back.
#[test]
fn checksum_named_config_map_of_chart_is_snapshotted() {
    lived_through(Tool::Helm, false);
}

#[test]
fn generated_config_map_of_kustomize_is_bound() {
    lived_through(Tool::Kustomize, true);
}

#[test]
fn generated_config_map_of_kustomize_is_snapshotted() {
    lived_through(Tool::Kustomize, false);
}

#[test]
fn config_map_deleted_after_deploy_is_bound() {
    lived_through(Tool::Prune, true);
}

#[test]
fn config_map_deleted_after_deploy_is_snapshotted() {
    lived_through(Tool::Prune, false);
}

/// The tool creates an object under a name that confrev has kept. The result must be as if the tool had not deleted it.
fn comes_back(tool: Tool) {
    let _confrev = running();
    each_kind(|kind| {
        let mut site = Site::new(tool, kind, true);
        site.web = Workload::new(kind, "web", &["demo"]).replicas(4);
        site.deploy("A");
        site.reads(["A"; 4]);
        site.wait_owned("A");
        site.deploy("B");
        site.reads(["B"; 4]);
        site.wait_owned("A");
        site.deploy("A");
        site.reads(["A"; 4]);
        site.wait_owned("A");
        assert_eq!(site.world.replica_sets(&site.web).len(), 2, "A's ReplicaSet is used again");
        site.deploy("A");
        for content in ["C", "D"] {
            site.deploy(content);
            site.reads([content; 4]);
            site.wait_no_more_than(2);
        }
    });
}

#[test]
fn bound_config_map_of_chart_is_recreated() {
    comes_back(Tool::Helm);
}

#[test]
fn bound_config_map_of_kustomize_is_recreated() {
    comes_back(Tool::Kustomize);
}

#[test]
fn pruned_bound_config_map_is_recreated() {
    comes_back(Tool::Prune);
}

/// Helm cannot restore an object that exists but is not in the current release, so do not use `bind` for charts that are
/// rolled back. Nothing is lost, and the next upgrade succeeds.
#[test]
fn helm_cannot_roll_back_a_bound_config_map() {
    let _confrev = running();
    each_kind(|kind| {
        let mut site = Site::new(Tool::Helm, kind, true);
        site.web = Workload::new(kind, "web", &["demo"]).replicas(4);
        site.deploy("A");
        site.reads(["A"; 4]);
        site.deploy("B");
        site.reads(["B"; 4]);
        site.wait_owned("A");
        let refused = release(&site.world, &["rollback", "web", "1"]).refused();
        assert!(refused.contains("no ConfigMap with the name \"demo-"), "{refused}");
        site.loses("B");
        site.reads(["B"; 4]);
        site.deploy("C");
        site.reads(["C"; 4]);
        site.wait_no_more_than(2);
    });
}
