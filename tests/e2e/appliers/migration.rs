//! Migrations from other tools to confrev, as the page describes. The other tool has written into the workload; one write
//! removes the tool's annotation and opts the workload in, and the workload restarts once.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::json;

use crate::helm::run;
use crate::manifests::{Kind, Workload, config_map, list};
use crate::page::Page;
use crate::page_commands::yaml_under;
use crate::shared::running;
use crate::world::{LIMIT, World, expect};

const PAGE: &str = "docs/migrating.md";

impl Page {
    /// A reader with a workload that is not opted in, has this annotation, and has in its template what the other tool wrote.
    fn with_another_tool(annotation: (&str, &str), in_template: &serde_json::Value) -> Self {
        let page = Self::of(World::new("migrating"));
        let mut manifest = web().enabled(None).manifest();
        manifest["metadata"]["annotations"] = json!({annotation.0: annotation.1});
        page.world.apply(&list(&[config_map("demo", "blue"), manifest])).ok();
        page.world.patch(&web(), &json!({"spec": {"template": in_template}}));
        page.reads("web", &["blue"; 2]);
        page.world.wait_at_rest();
        page
    }

    /// Types the next line with the name of its namespace in place of that of the page.
    #[track_caller]
    fn types_in_its_namespace(&mut self, beginning: &str) -> String {
        let line = self.reader.next(beginning).line.replace("shop", self.world.name());
        run(self.reader.command("bash").args(["-c", &line])).ok()
    }

    /// Waits until the workload is resolved and at rest. Returns the number of its ReplicaSets.
    #[track_caller]
    fn comes_to_rest_with_a_snapshot(&self) -> usize {
        self.world.wait_resolved(&web(), "demo", "blue");
        self.world.wait_at_rest();
        self.reads("web", &["blue"; 2]);
        self.replica_sets("web")
    }
}

fn web() -> Workload {
    Workload::new(Kind::Deployment, "web", &["demo"]).replicas(2)
}

fn hash() -> serde_json::Value {
    json!({"metadata": {"annotations": {"wave.pusher.com/config-hash": "0a53c71d"}}})
}

#[test]
fn migration_of_a_namespace_restarts_nothing() {
    let _confrev = running();
    let reloader = ("reloader.stakater.com/auto", "true");
    let mut page = Page::with_another_tool(reloader, &json!({}));
    let before = page.replica_sets("web");
    page.reader.open("docs/migrating.md", "A namespace without a restart");
    let said = page.types_in_its_namespace("kubectl confrev impact --opt-in ");
    assert!(said.contains("Deployment/web") && said.contains("yes"), "{said}");
    page.types_in_its_namespace("kubectl label namespace ");
    let said = page.types_in_its_namespace("kubectl confrev migrate --namespace ");
    assert!(said.contains("Deployment/web in namespace ") && said.contains(" migrated"), "{said}");
    assert_eq!(page.world.live(&web())["metadata"]["annotations"][reloader.0], serde_json::Value::Null);
    let said = page.types_in_its_namespace("kubectl confrev status ");
    assert!(said.contains("not protected"), "{said}");
    page.world.apply(&config_map("demo", "green")).ok();
    holds_for("no restart", Duration::from_secs(3), || expect(&page.replica_sets("web"), &before));
    wait_for("the next deployment to be opted in", LIMIT, || {
        page.world.kubectl(&["rollout", "restart", "deployment/web"]).ok();
        page.world.resolves_to(&web(), "demo", "green")
    });
}

#[test]
fn migrate_shows_the_rows_of_the_page() {
    let _confrev = running();
    let mut page = Page::of(World::new("migrating"));
    let of_reloader = |name: &str, sources: &[&str], annotations: serde_json::Value| {
        let workload = Workload::new(Kind::Deployment, name, sources).replicas(0).enabled(None);
        let mut manifest = workload.manifest();
        manifest["metadata"]["annotations"] = annotations;
        page.world.apply(&manifest).ok();
    };
    of_reloader("api", &["demo", "other"], json!({"configmap.reloader.stakater.com/reload": "demo"}));
    let every = json!({
        "reloader.stakater.com/auto": "true",
        "deployment.reloader.stakater.com/pause-period": "5m",
    });
    of_reloader("web", &["demo"], every);
    page.reader.open("docs/migrating.md", "What is there");
    page.reader.says("kubectl confrev migrate");
}

#[test]
fn migration_by_apply_restarts_the_workload_once() {
    let _confrev = running();
    let wave = ("wave.pusher.com/update-on-config-change", "true");
    let mut page = Page::with_another_tool(wave, &hash());
    let before = page.replica_sets("web");
    let mut manifest = web().manifest();
    manifest["metadata"]["annotations"] = json!({});
    page.reader.file("web.yaml", &manifest.to_string());
    page.reader.open("docs/migrating.md", "Coming from other tools");
    page.types("kubectl apply -f web.yaml");
    assert_eq!(page.comes_to_rest_with_a_snapshot(), before + 1);
    let live = page.world.live(&web());
    assert!(live["metadata"]["annotations"][wave.0].is_null(), "the tool's annotation is removed");
    let left = &live["spec"]["template"]["metadata"]["annotations"]["wave.pusher.com/config-hash"];
    assert_eq!(left, "0a53c71d", "the hash stays, as the page says");
    let status = page.types("kubectl confrev status");
    assert!(status.contains("Deployment/web") && status.contains("current"), "{status}");
}

#[test]
fn migration_from_wave_can_remove_its_remains() {
    let _confrev = running();
    let mut page = Page::with_another_tool(("wave.pusher.com/update-on-config-change", "true"), &hash());
    let before = page.replica_sets("web");
    page.reader.file("wave.yaml", &yaml_under(PAGE, "From Wave"));
    page.reader.open("docs/migrating.md", "From Wave");
    page.types("kubectl patch deployment web");
    assert_eq!(page.comes_to_rest_with_a_snapshot(), before + 1);
    let live = page.world.live(&web()).to_string();
    // kubectl's annotation with the last applied manifest has escaped quotes, so it does not match.
    assert!(!live.contains("config-hash\":\"0a53c71d"), "{live}");
}

#[test]
fn migration_from_reloader_removes_its_remains() {
    let _confrev = running();
    let mut container = web().manifest()["spec"]["template"]["spec"]["containers"][0].clone();
    container["env"] = json!([{"name": "STAKATER_DEMO_CONFIGMAP", "value": "6f3d"}]);
    let left = json!({"spec": {"containers": [container]}});
    let mut page = Page::with_another_tool(("reloader.stakater.com/auto", "true"), &left);
    let before = page.replica_sets("web");
    page.reader.file("reloader.yaml", &yaml_under(PAGE, "From Reloader"));
    page.reader.open("docs/migrating.md", "From Reloader");
    page.types("kubectl patch deployment web");
    assert_eq!(page.comes_to_rest_with_a_snapshot(), before + 1);
    let live = page.world.live(&web());
    assert!(live["metadata"]["annotations"]["reloader.stakater.com/auto"].is_null());
    assert!(
        live["spec"]["template"]["spec"]["containers"][0]["env"].as_array().is_none_or(Vec::is_empty),
        "{live}"
    );
}

/// Two workloads of two other tools move one after the other, while their live source changes. The test does what the other tools
/// would do at a change, to the workloads that still have their annotations. Each step and each change restarts a workload once.
#[test]
fn migration_by_workload_restarts_each_once() {
    let _confrev = running();
    let mut page = Page::of(World::new("migrating"));
    let api = Workload::new(Kind::Deployment, "api", &["demo"]).replicas(2).enabled(None);
    let web = web().enabled(None);
    let with = |workload: &Workload, annotation: &str| {
        let mut manifest = workload.manifest();
        manifest["metadata"]["annotations"] = json!({annotation: "true"});
        manifest
    };
    let wave = |page: &Page, hash: &str| {
        let marks = json!({"metadata": {"annotations": {"wave.pusher.com/config-hash": hash}}});
        page.world.patch(&web, &json!({"spec": {"template": marks}}));
    };
    let reloader = |page: &Page, hash: &str| {
        let mut container = page.world.live(&api)["spec"]["template"]["spec"]["containers"][0].clone();
        container["env"] = json!([{"name": "STAKATER_DEMO_CONFIGMAP", "value": hash}]);
        page.world.patch(&api, &json!({"spec": {"template": {"spec": {"containers": [container]}}}}));
    };
    let revisions = |page: &Page, text: &str| {
        page.reads("web", &[text; 2]);
        page.reads("api", &[text; 2]);
        page.world.wait_at_rest();
        (page.replica_sets("web"), page.replica_sets("api"))
    };
    let manifests = [
        config_map("demo", "blue"),
        with(&web, "wave.pusher.com/update-on-config-change"),
        with(&api, "reloader.stakater.com/auto"),
    ];
    page.world.apply(&list(&manifests)).ok();
    wave(&page, "1");
    reloader(&page, "1");
    let (at_first_web, at_first_api) = revisions(&page, "blue");
    let since = |page: &Page, text: &str| {
        let (web, api) = revisions(page, text);
        (web - at_first_web, api - at_first_api)
    };
    page.reader.file("wave.yaml", &yaml_under(PAGE, "From Wave"));
    page.reader.file("reloader.yaml", &yaml_under(PAGE, "From Reloader"));
    page.reader.open("docs/migrating.md", "Workload by workload");

    page.types("kubectl label configmap demo confrev.dev/enabled=live");
    assert_eq!(since(&page, "blue"), (0, 0), "the label of the source rolls nothing");
    page.types("kubectl patch deployment web");
    page.world.wait_replica_sets(&web, at_first_web + 1);
    assert_eq!(since(&page, "blue"), (1, 0), "the patch restarts its workload once");

    page.world.set_config("demo", "green");
    reloader(&page, "2");
    page.world.wait_replica_sets(&web, at_first_web + 2);
    assert_eq!(since(&page, "green"), (2, 1), "a change restarts both workloads once");

    page.types("kubectl patch deployment api");
    page.world.wait_replica_sets(&api, at_first_api + 2);
    assert_eq!(since(&page, "green"), (2, 2));

    page.world.set_config("demo", "red");
    page.world.wait_replica_sets(&web, at_first_web + 3);
    page.world.wait_replica_sets(&api, at_first_api + 3);
    assert_eq!(since(&page, "red"), (3, 3));
    assert!(page.world.snapshots().is_empty(), "a live source has no snapshots");

    page.types("kubectl label configmap demo confrev.dev/enabled-");
    for workload in [&web, &api] {
        page.world.wait_resolved(workload, "demo", "red");
    }
    assert_eq!(since(&page, "red"), (4, 4), "snapshots are one more roll");
    let status = page.types("kubectl confrev status");
    assert!(status.contains("Deployment/web") && status.contains("Deployment/api"), "{status}");
}

/// The page has two ways, binding and snapshots. Each restarts the workload once.
#[test]
fn migration_from_kustomize_hashes_restarts_once() {
    let _confrev = running();
    let bound = format!(
        "generatorOptions:{}",
        yaml_under(PAGE, "From kustomize's hashes")
            .split_once("generatorOptions:")
            .expect("the page has generatorOptions")
            .1
    );
    for options in [bound.as_str(), "generatorOptions: {disableNameSuffixHash: true}"] {
        let mut page = Page::of(World::new("migrating"));
        let write = |options: &str, web: &Workload| {
            let generated = "configMapGenerator: [{name: demo, literals: [text=blue]}]";
            page.reader
                .file("kustomization.yaml", &format!("resources: [web.yaml]\n{generated}\n{options}\n"));
            page.reader.file("web.yaml", &web.manifest().to_string());
        };
        write("", &web().enabled(None));
        let folder = page.reader.folder().display().to_string();
        page.world.kubectl(&["apply", "-k", &folder]).ok();
        page.reads("web", &["blue"; 2]);
        page.world.wait_at_rest();
        assert_eq!(page.replica_sets("web"), 1);

        write(options, &web());
        page.reader.open("docs/migrating.md", "From kustomize's hashes");
        page.types("kubectl apply -k .");
        page.world.wait_replica_sets(&web(), 2);
        page.world.wait_at_rest();
        page.reads("web", &["blue"; 2]);
        assert_eq!(page.replica_sets("web"), 2, "{options}");
        let is_bound = options.contains("bind");
        assert_eq!(page.world.snapshots().is_empty(), is_bound, "{options}");
        if is_bound {
            let maps = page.world.cluster.list("configmap", page.world.name(), "confrev.dev/enabled=bind");
            assert_eq!(maps.len(), 1, "{maps:?}");
            assert!(maps[0]["metadata"]["ownerReferences"].is_array(), "the ConfigMap is bound: {maps:?}");
        }
    }
}
