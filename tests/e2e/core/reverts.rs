//! `on-failure: revert`: workloads go back from content that one of them failed with.

use std::{collections::BTreeSet, slice::from_ref, time::Duration};

use confrev_controlplane::{holds_for, wait_for};
use serde_json::json;

use crate::any_kind::Load;
use crate::commands::Commands as _;
use crate::gates::{close_gates, with_open_gates};
use crate::manifests;
use crate::rolls::moved_to;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, snapshot_of, text, verdict};

/// A workload that gives up a rollout when the test says so: see [`give_up`].
fn patient(kind: &'static str) -> Load {
    let load = Load::new(kind, kind.trim_end_matches('s'), &["demo"]);
    gated(match kind {
        "cronjobs" => return load,
        "daemonsets" => load.annotation("progress-deadline", "1h"),
        "statefulsets" => {
            let load = load.spec(json!({"replicas": 1, "podManagementPolicy": "Parallel"}));
            load.annotation("progress-deadline", "1h")
        }
        _ => load.spec(json!({"replicas": 1, "progressDeadlineSeconds": 3600})),
    })
}

/// Ends the time that this workload has for its rollout, until the bad content is refused, later than `before`. Returns when.
/// After a write of its spec, its failure would count as that write's.
#[track_caller]
fn give_up(world: &World, load: &Load, before: Option<&str>) -> String {
    load.annotate(world, "progress-deadline", Some("1s"));
    let refused = wait_for("the refusal of the content", LIMIT, || match refused_at(world, "bad") {
        Some(at) if before != Some(at.as_str()) => Ok(at),
        other => Err(format!("refused at {other:?}")),
    });
    load.annotate(world, "progress-deadline", Some("1h"));
    refused
}

/// The same workload, whose pods start when their gate is opened.
fn gated(mut load: Load) -> Load {
    close_gates(&mut load.manifest);
    load
}

/// A Rollout with two Services in place of a canary.
fn blue_green(world: &World) -> Load {
    for name in ["active", "preview"] {
        world.apply(&manifests::service(name, "blue-green")).ok();
    }
    let services =
        json!({"activeService": "active", "previewService": "preview", "scaleDownDelaySeconds": 1});
    let spec = json!({"replicas": 1, "progressDeadlineSeconds": 3600, "strategy": {"blueGreen": services}});
    gated(Load::new("rollouts", "blue-green", &["demo"]).spec(spec))
}

/// A Deployment without pods, whose template a Rollout uses.
fn by_reference(world: &World) -> Load {
    let load = gated(Load::new("deployments", "template", &["demo"]).spec(json!({"replicas": 0})));
    let mut rollout = Load::new("rollouts", "by-reference", &[]).unlabelled().spec(json!({
        "replicas": 1,
        "progressDeadlineSeconds": 3600,
        "selector": {"matchLabels": {"app": "template"}},
        "workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "template"},
    }));
    rollout.manifest["spec"].as_object_mut().expect("a spec").remove("template");
    rollout.apply(world).ok();
    load
}

/// Waits until the controller of the CronJob has created a Job, whose template reads this content.
fn next_job_reads(world: &World, cron_job: &Load, wanted: &str) {
    let runs = |suspend: bool| {
        cron_job.patch(world, &json!({"spec": {"schedule": "* * * * *", "suspend": suspend}}));
    };
    let snapshot = world.snapshot_name("demo", wanted);
    runs(false);
    // It creates one each minute.
    let read = wait_for("the next Job", 2 * LIMIT, || {
        let jobs = world.cluster.list("jobs", world.name(), "");
        jobs.first().and_then(|job| snapshot_of(&job["spec"]["template"], "demo")).ok_or("no Job")
    });
    runs(true);
    assert_eq!(read, snapshot, "the Job reads other content");
}

/// The uids of the ReplicaSets that have pods.
fn active(world: &World, load: &Load) -> BTreeSet<String> {
    let sets = world.cluster.list("replicasets", world.name(), &format!("app={}", load.name));
    let sets = sets.into_iter().filter(|set| set["spec"]["replicas"].as_i64() > Some(0));
    sets.map(|set| text(&set["metadata"]["uid"])).collect()
}

fn refused_at(world: &World, content: &str) -> Option<String> {
    let bad = world.snapshot_name("demo", content);
    let snapshots = world.snapshots();
    let snapshot = snapshots.iter().find(|snapshot| name_of(snapshot) == bad)?;
    verdict(snapshot)["failed"]["at"].as_str().map(str::to_owned)
}

/// All workloads move at once. The first failure takes them all back, to the ReplicaSets that they had.
#[test]
fn failure_takes_moved_workloads_back() {
    let _confrev = running();
    let world = World::new("reverts");
    with_open_gates(
        from_ref(&world),
        |world, pod| world.pod_reads(pod, "demo"),
        || {
            world.set_config("demo", "good");
            world.kubectl(&["annotate", "configmap/demo", "confrev.dev/on-failure=revert"]).ok();
            let [deployment, stateful_set, daemon_set, rollout, cron_job] =
                ["deployments", "statefulsets", "daemonsets", "rollouts", "cronjobs"].map(patient);
            let (blue_green, template) = (blue_green(&world), by_reference(&world));
            let loads = [deployment, stateful_set, daemon_set, rollout, blue_green, template, cron_job];
            let (cron_job, with_pods) = loads.split_last().expect("workloads");
            let [_, stateful_set, ..] = &loads;
            let all = manifests::list(&loads.each_ref().map(|load| load.manifest.clone()));
            world.apply(&all).ok();
            for load in with_pods {
                load.wait_reads(&world, "demo", &["good"]);
            }
            cron_job.wait_resolved(&world, "demo", "good");
            let template = |load: &Load| {
                let mut template = load.live(&world).pointer(load.template).cloned().expect("a template");
                // The controller of Rollouts adds it, sooner or later.
                let container = template["spec"]["containers"][0].as_object_mut().expect("a container");
                container.remove("resources");
                template
            };
            let before = loads.each_ref().map(template);
            let sets = loads.each_ref().map(|load| active(&world, load));
            let is_back = || {
                expect(&loads.each_ref().map(template), &before)?;
                expect(&loads.each_ref().map(|load| active(&world, load)), &sets)
            };

            let all_move = || {
                wait_for("all workloads to move", LIMIT, || {
                    expect(&moved_to(&world, &loads, "bad").len(), &loads.len())
                });
            };
            world.set_config("demo", "bad");
            all_move();
            let first = give_up(&world, stateful_set, None);
            wait_for("all workloads to go back", 2 * LIMIT, is_back);
            for load in with_pods {
                load.wait_reads(&world, "demo", &["good"]);
            }
            next_job_reads(&world, cron_job, "good");
            world.apply(&all).ok();
            holds_for("the refusal, after a sync", Duration::from_secs(4), is_back);
            let bad = world.snapshot_name("demo", "bad");
            let history = world.confrev_json(&["history", "demo"]);
            let reason = text(&history[0]["failed"]);
            assert!(history[0]["snapshot"] == *bad && reason.contains("failed: "), "{history}");
            let status = world.confrev(&["status", "deployment"]).ok();
            assert!(status.contains("was refused"), "{status}");
            // No command moves a workload to that content by mistake.
            let versions = loads.each_ref().map(template);
            for line in [
                &["undo", "deployment/deployment"][..],
                &["pin", "deployment/deployment", "demo", &bad, "--hold"],
            ] {
                let refusal = world.confrev(line).failed(1);
                assert!(
                    refusal.contains("was refused") && refusal.contains("--force"),
                    "{line:?}: {refusal}"
                );
            }
            assert_eq!(loads.each_ref().map(template), versions);
            let events = world.cluster.list("events", world.name(), "");
            let of = |reason: &str| events.iter().filter(|event| event["reason"] == reason).count();
            assert!(of("ContentRefused") >= 1 && of("Reverted") >= loads.len(), "{events:#?}");

            let stopped = world.confrev(&["waves", "promote", "demo"]).failed(1);
            assert!(stopped.contains("has no waves"), "{stopped}");
            world.confrev(&["waves", "retry", "demo"]).ok();
            all_move();
            give_up(&world, stateful_set, Some(&first));
            wait_for("all workloads to go back again", 2 * LIMIT, is_back);

            world.set_config("demo", "better");
            for load in with_pods {
                load.wait_reads(&world, "demo", &["better"]);
            }
            cron_job.wait_resolved(&world, "demo", "better");
        },
    );
}

/// The first Rollout pauses in its canary, and a person aborts it.
#[test]
fn aborted_rollout_refuses_content() {
    let _confrev = running();
    let world = World::new("reverts-aborted");
    world.set_config("demo", "A");
    let settings = ["confrev.dev/waves=1", "confrev.dev/on-failure=revert"];
    world.kubectl(&["annotate", "configmap/demo", settings[0], settings[1]]).ok();
    let strategy = json!({"canary": {"steps": [{"setWeight": 50}, {"pause": {}}]}});
    let loads = ["one", "two"].map(|name| {
        Load::new("rollouts", name, &["demo"]).spec(json!({"replicas": 2, "strategy": strategy}))
    });
    for load in &loads {
        load.apply(&world).ok();
        load.wait_reads(&world, "demo", &["A", "A"]);
    }
    world.wait_at_rest();
    world.set_config("demo", "B");
    let first = wait_for("the first Rollout to move", LIMIT, || {
        moved_to(&world, &loads, "B").pop_first().ok_or("no Rollout has moved")
    });
    let moved = loads.iter().find(|load| load.name == first).expect("one of the Rollouts");
    moved.wait_reads(&world, "demo", &["A", "B"]);
    world.argo(&["abort", &first]).ok();
    wait_for("the Rollout to go back", LIMIT, || expect(&moved_to(&world, &loads, "A").len(), &2));
    moved.wait_reads(&world, "demo", &["A", "A"]);
    let reason = text(&world.confrev_json(&["history", "demo"])[0]["failed"]);
    assert_eq!(reason, format!("Rollout/{first} failed: aborted or degraded"));
    let shown = text(&world.confrev_json(&["waves", "demo"])["reason"]);
    assert!(shown.contains("refused"), "{shown}");
    let stopped = world.confrev(&["waves", "promote", "demo"]).failed(1);
    assert!(stopped.contains("was refused, so no workload moves to it"), "{stopped}");
    let set = |load: &Load| active(&world, load).len();
    wait_for("one ReplicaSet each", LIMIT, || expect(&loads.each_ref().map(set), &[1, 1]));
    holds_for("the refusal", Duration::from_secs(4), || expect(&moved_to(&world, &loads, "A").len(), &2));
}
