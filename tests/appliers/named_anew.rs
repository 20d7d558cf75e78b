//! ConfigMaps that a tool names anew on each change: labelled `bind`, or snapshotted as any other.

use std::collections::BTreeSet;

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::load::owners;
use crate::manifests::{Kind, Workload, config_map, list};
use crate::shared::running;
use crate::tools::{kustomize, release, upgrade};
use crate::world::{LIMIT, World, each_kind, expect, name_of, text};

/// A tool that names a ConfigMap after its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    /// A chart with a checksum in the name, and one in an annotation beside it. It deletes what the chart has no longer,
    /// after each upgrade.
    Helm,
    /// `configMapGenerator`. It deletes nothing.
    Kustomize,
    /// `kubectl apply --prune` of names that a pipeline makes. It deletes what it is not given any more, at once.
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

    /// The labels of its ConfigMaps.
    fn labels(&self) -> Value {
        let label = if self.bind { "bind" } else { "" };
        if self.bind {
            json!({"part-of": "shop", "confrev.dev/enabled": label})
        } else {
            json!({"part-of": "shop"})
        }
    }

    /// The workload, with this as its ConfigMap's name, and one old ReplicaSet kept.
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
                // Quotes within the template's braces are Helm's, not JSON's.
                upgrade(&self.world, &format!("{config}\n---\n{manifest}").replace("\\\"", "\""))
            }
            Tool::Kustomize => {
                let generator = json!({
                    "name": "demo", "literals": [format!("text={content}")], "options": {"labels": self.labels()},
                });
                let kustomization = json!({
                    "configMapGenerator": [generator], "resources": ["web.yaml"], "configurations": ["names.yaml"],
                });
                // kustomize does not know where a Rollout names its ConfigMaps.
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
                self.world.with_file(&prune, &list(&[config, self.manifest(&name)]))
            }
        };
        output.ok();
    }

    /// Deploys, and waits until one pod of four has it, and the others what was before.
    fn rolls(&self, before: &str, content: &str) {
        self.deploy(content);
        self.reads([before, before, before, content]);
    }

    /// Lets the roll go on to its end.
    fn promotes(&self, content: &str) {
        self.world.promote(&self.web);
        self.reads([content; 4]);
    }

    #[track_caller]
    fn reads(&self, mut texts: [&str; 4]) {
        texts.sort_unstable();
        self.world.wait_reads(&self.web, "demo", &texts);
    }

    /// A node goes, with one of the pods that read this.
    fn loses(&self, content: &str) {
        self.world.lose_pod(&self.web, "demo", content);
    }

    /// Back to what was before, by the tool where it can, else by that of the kind.
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

    /// The ConfigMap that pods with this content read: there is one, and ReplicaSets own it.
    fn wait_owned(&self, content: &str) {
        wait_for(&format!("ReplicaSets to own {content:?}"), LIMIT, || {
            let found = self.read_by_pods(content);
            let object = found.first().ok_or("there is none")?;
            let owners = owners(object);
            let owned = owners.iter().any(|owner| owner.starts_with("ReplicaSet/"));
            if owned && found.len() == 1 { Ok(()) } else { Err(format!("{owners:?} of {}", found.len())) }
        });
    }

    /// Waits until there are ConfigMaps for exactly what these many ReplicaSets read.
    fn wait_no_more_than(&self, replica_sets: usize) {
        wait_for("what no ReplicaSet reads any more to go", LIMIT, || {
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

    /// Those of this content.
    fn read_by_pods(&self, content: &str) -> Vec<Value> {
        self.all().into_iter().filter(|object| text(&object["data"]["text"]) == content).collect()
    }

    /// The ConfigMaps that pods read: the tool's own where they are bound, else their snapshots.
    fn all(&self) -> Vec<Value> {
        if self.bind {
            self.world.cluster.list("configmap", self.world.name(), "confrev.dev/enabled=bind")
        } else {
            self.world.snapshots()
        }
    }
}

/// A, then B halfway and to its end, back to A, and on to C: with one old ReplicaSet kept, B's goes then.
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
        // Once more: no revision, and what is deleted is kept once more.
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
        assert_eq!(site.world.replica_sets(&site.web).len(), 2, "A's own, again");
        site.rolls("A", "C");
        site.loses("A");
        site.promotes("C");
        if tool == Tool::Kustomize && !bind {
            // It deletes nothing, and of a ConfigMap that is there the newest content is kept.
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
fn a_chart_with_checksums_in_its_names_is_bound() {
    lived_through(Tool::Helm, true);
}

#[test]
fn a_chart_with_checksums_in_its_names_is_snapshotted_and_rolled_back_by_helm() {
    lived_through(Tool::Helm, false);
}

#[test]
fn what_kustomize_generates_is_bound() {
    lived_through(Tool::Kustomize, true);
}

#[test]
fn what_kustomize_generates_is_snapshotted() {
    lived_through(Tool::Kustomize, false);
}

#[test]
fn what_a_tool_deletes_right_after_the_deploy_is_bound() {
    lived_through(Tool::Prune, true);
}

#[test]
fn what_a_tool_deletes_right_after_the_deploy_is_snapshotted() {
    lived_through(Tool::Prune, false);
}

/// The tool makes an object under a name that confrev has kept: it must be as if the tool had never deleted it.
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
        assert_eq!(site.world.replica_sets(&site.web).len(), 2, "A's own, again");
        site.deploy("A");
        for content in ["C", "D"] {
            site.deploy(content);
            site.reads([content; 4]);
            site.wait_no_more_than(2);
        }
    });
}

#[test]
fn a_bound_config_map_of_a_chart_comes_back_under_its_name() {
    comes_back(Tool::Helm);
}

#[test]
fn a_bound_config_map_of_kustomizes_comes_back_under_its_name() {
    comes_back(Tool::Kustomize);
}

#[test]
fn a_bound_config_map_that_is_pruned_comes_back_under_its_name() {
    comes_back(Tool::Prune);
}

/// Helm's own limit, of any object that is there and was not in the release before: where charts are rolled back, `bind`
/// is to be left off.
#[test]
fn helm_refuses_to_roll_a_bound_config_map_back_and_nothing_is_lost_and_the_next_upgrade_goes_through() {
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
