//! Opting workloads, namespaces and sources in and out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::commands::Commands as _;
use crate::manifests::Workload;
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, expect, text};

/// Checks that the workload has no label or annotation of confrev's, and that its template names the source.
fn is_as_written(world: &World, web: &Workload) -> Result<(), String> {
    let live = world.live(web);
    let template = &live["spec"]["template"];
    expect(&template["spec"]["volumes"][0]["configMap"]["name"], &json!("demo"))?;
    expect(&template["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"], &json!("demo"))?;
    expect(&template["metadata"]["labels"]["confrev.dev/revision"], &json!(null))?;
    expect(&template["metadata"]["annotations"]["confrev.dev/sources"], &json!(null))?;
    expect(&live["metadata"]["annotations"]["confrev.dev/state"], &json!(null))
}

#[test]
fn namespace_opts_in_workloads_that_do_not_decline() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::labelled("opt-in", &[("confrev.dev/enabled", "true")]);
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).enabled(None);
        let not = Workload::new(kind, "not", &["demo"]).replicas(0).enabled(Some("false"));
        world.set_config("demo", "A");
        for workload in [&web, &not] {
            world.apply(&workload.manifest()).ok();
        }
        world.resolves_to(&web, "demo", "A").unwrap();
        assert_eq!(world.live(&web)["metadata"]["labels"]["confrev.dev/enabled"], "true");
        world.set_config("demo", "B");
        world.wait_resolved(&web, "demo", "B");
        is_as_written(&world, &not).unwrap();
        assert_eq!(world.replica_sets(&not).len(), 1);
    });
}

#[test]
fn later_namespace_label_opts_workloads_in_and_out() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("opt-later");
        let workload =
            |number| Workload::new(kind, &format!("web-{number}"), &["demo"]).replicas(0).enabled(None);
        let workloads: Vec<_> = (0..10).map(workload).collect();
        world.set_config("demo", "A");
        for web in &workloads {
            world.cluster.create(kind.name(), world.name(), &web.manifest());
        }
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Meanwhile, another client keeps writing them, as their controllers do. Admission does not see these writes.
            scope.spawn(|| {
                let start = Instant::now();
                while !done.load(Ordering::Relaxed) && start.elapsed() < LIMIT {
                    let count = start.elapsed().as_millis().to_string();
                    for web in &workloads {
                        world.patch(web, &json!({"metadata": {"annotations": {"count": count}}}));
                    }
                }
            });
            world
                .cluster
                .kubectl(&["label", "namespace", world.name(), "confrev.dev/enabled=true"])
                .run()
                .ok();
            for web in &workloads {
                world.wait_resolved(web, "demo", "A");
            }
            done.store(true, Ordering::Relaxed);
        });
        world.cluster.kubectl(&["label", "namespace", world.name(), "confrev.dev/enabled-"]).run().ok();
        for web in &workloads {
            wait_for("the workload to be as its user wrote it", LIMIT, || is_as_written(&world, web));
            assert_eq!(world.live(web)["metadata"]["labels"]["confrev.dev/enabled"], json!(null));
        }
    });
}

/// The label `next` of a namespace restarts nothing.
#[test]
fn next_deployment_opts_a_workload_in() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("opt-next");
        let workload = |name: &str| Workload::new(kind, name, &["demo"]).replicas(0).enabled(None);
        let (web, late) = (workload("web"), workload("late"));
        world.set_config("demo", "A");
        for workload in [&web, &late] {
            world.apply(&workload.manifest()).ok();
        }
        world.opt_in_next(&workload("probe").manifest());
        let states = || {
            let rows = world.confrev_json(&["status"]);
            let cell = |row: &Value| {
                let name = text(&row["workload"]).split_once('/').expect("a kind").1.to_owned();
                (name, row["template"].as_str().map(str::to_owned))
            };
            rows.as_array().expect("a list").iter().map(cell).collect::<Vec<_>>()
        };
        let row = |name: &str, is_protected: bool| {
            (name.to_owned(), (!is_protected).then(|| "not protected".to_owned()))
        };
        world.set_config("demo", "B");
        world.patch(&web, &json!({"metadata": {"annotations": {"note": "x"}}}));
        world.kubectl(&["scale", &web.reference(), "--replicas=1"]).ok();
        holds_for("no change", Duration::from_secs(3), || {
            [&web, &late].iter().try_for_each(|workload| is_as_written(&world, workload))
        });
        assert_eq!(states(), [row("late", false), row("web", false)]);

        world.patch(&web, &json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}}));
        world.resolves_to(&web, "demo", "B").unwrap();
        assert_eq!(states(), [row("late", false), row("web", true)]);
        world.set_config("demo", "C");
        world.wait_resolved(&web, "demo", "C");
        is_as_written(&world, &late).unwrap();
        let label = "confrev.dev/enabled=true";
        world.cluster.kubectl(&["label", "namespace", world.name(), "--overwrite", label]).run().ok();
        world.wait_resolved(&late, "demo", "C");
    });
}

/// Without the mark, the label would count as the workload's own, and would stay when the namespace opts out.
#[test]
fn removed_mark_of_namespace_is_restored() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::labelled("opt-mark", &[("confrev.dev/enabled", "true")]);
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).enabled(None);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        let mark =
            |live: &serde_json::Value| live["metadata"]["annotations"]["confrev.dev/enabled-by"].clone();
        assert_eq!(mark(&world.live(&web)), "namespace");
        world.kubectl(&["annotate", &web.reference(), "confrev.dev/enabled-by-"]).ok();
        assert_eq!(mark(&world.live(&web)), "namespace", "the same write restores the mark");
        world.cluster.kubectl(&["label", "namespace", world.name(), "confrev.dev/enabled-"]).run().ok();
        wait_for("the workload to be as its user wrote it", LIMIT, || is_as_written(&world, &web));
        assert_eq!(world.live(&web)["metadata"]["labels"]["confrev.dev/enabled"], json!(null));
    });
}

/// The label that its namespace gave a workload opts nothing in where the workload is copied to.
#[test]
fn copy_in_another_namespace_is_not_opted_in() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::labelled("opt-copy", &[("confrev.dev/enabled", "true")]);
        let elsewhere = World::new("opt-copy");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).enabled(None);
        for world in [&world, &elsewhere] {
            world.set_config("demo", "A");
        }
        world.apply(&web.manifest()).ok();
        world.resolves_to(&web, "demo", "A").unwrap();
        let mut copy = world.live(&web);
        copy["metadata"]["namespace"] = json!(elsewhere.name());
        for field in ["uid", "resourceVersion", "managedFields"] {
            copy["metadata"].as_object_mut().unwrap().remove(field);
        }
        elsewhere.with_file(&["create"], &copy).ok();
        is_as_written(&elsewhere, &web).unwrap();
        assert_eq!(elsewhere.live(&web)["metadata"]["labels"]["confrev.dev/enabled"], json!(null));
        elsewhere.set_config("demo", "B");
        holds_for("no roll", Duration::from_secs(3), || is_as_written(&elsewhere, &web));
    });
}

#[test]
fn opting_out_restores_the_names_of_the_sources() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("opt-out");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A"]);
        world.kubectl(&["label", &web.reference(), "confrev.dev/enabled=false", "--overwrite"]).ok();
        is_as_written(&world, &web).unwrap();
        world.wait_replica_sets(&web, 2);
        world.set_config("demo", "B");
        world.wait_reads(&web, "demo", &["B"]);
        holds_for("no roll", Duration::from_secs(3), || expect(&world.replica_sets(&web).len(), &2));
    });
}

#[test]
fn disabled_source_stays_as_written_and_rolls_nothing() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("source-out");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        let metadata = json!({"name": "demo", "labels": {"confrev.dev/enabled": "false"}});
        let source =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": "A"}});
        world.apply(&source).ok();
        world.apply(&web.manifest()).ok();
        is_as_written(&world, &web).unwrap();
        world.wait_replica_sets(&web, 1);
        world.set_config("demo", "B");
        holds_for("no roll and no snapshot", Duration::from_secs(3), || {
            is_as_written(&world, &web)?;
            expect(&world.snapshots().len(), &0)?;
            expect(&world.replica_sets(&web).len(), &1)
        });
    });
}
