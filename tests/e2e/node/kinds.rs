//! The other kinds of workloads.

use confrev_controlplane::wait_for;
use serde_json::json;

use crate::printing::{
    delete_pod, delete_source, keep_printed, kill_container, pod_that_printed, printed, printing,
    wait_printed,
};
use crate::shared::{LIMIT, running};
use crate::world::{World, name_of};

#[test]
#[ignore = "it needs real nodes: make test-node"]
fn stateful_set_partition_keeps_both_configs() {
    let _confrev = running();
    let world = World::new("partition");
    let strategy =
        |partition: u32| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
    let web = printing("statefulsets", "web").spec(json!({"replicas": 2, "updateStrategy": strategy(1)}));
    world.set_config("demo", "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue", "blue"]);

    world.set_config("demo", "green");
    wait_printed(&world, &web, &["blue", "green"]);
    delete_source(&world, "configmap");
    delete_pod(&world, &pod_that_printed(&world, &web, "blue"));
    wait_printed(&world, &web, &["blue", "green"]);
    let blue = pod_that_printed(&world, &web, "blue");
    assert_eq!(name_of(&blue), "web-0");
    kill_container(&world, &blue);
    keep_printed(&world, &web, &["blue", "green"]);

    web.patch(&world, &json!({"spec": {"updateStrategy": strategy(0)}}));
    wait_printed(&world, &web, &["green", "green"]);
}

/// A pod moves to the new content when it is deleted, and not when its container starts again.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn daemon_set_moves_only_deleted_pods() {
    let _confrev = running();
    let world = World::new("daemon");
    let web = printing("daemonsets", "web").spec(json!({"updateStrategy": {"type": "OnDelete"}}));
    world.set_config("demo", "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue", "blue"]);

    world.set_config("demo", "green");
    web.wait_resolved(&world, "demo", "green");
    delete_source(&world, "configmap");
    kill_container(&world, &web.pods(&world)[0]);
    keep_printed(&world, &web, &["blue", "blue"]);
    delete_pod(&world, &pod_that_printed(&world, &web, "blue"));
    wait_printed(&world, &web, &["blue", "green"]);
    kill_container(&world, &pod_that_printed(&world, &web, "blue"));
    keep_printed(&world, &web, &["blue", "green"]);
}

/// A Job of the previous content replaces a lost pod with one that reads the same.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn jobs_of_cron_job_keep_configs() {
    let _confrev = running();
    let world = World::new("cron");
    let tick = printing("cronjobs", "tick");
    world.set_config("demo", "blue");
    tick.apply(&world).ok();
    world.kubectl(&["create", "job", "first", "--from=cronjob/tick"]).ok();
    wait_printed(&world, &tick, &["blue"]);

    world.set_config("demo", "green");
    tick.wait_resolved(&world, "demo", "green");
    world.kubectl(&["create", "job", "second", "--from=cronjob/tick"]).ok();
    wait_printed(&world, &tick, &["blue", "green"]);
    let blue = pod_that_printed(&world, &tick, "blue");
    delete_source(&world, "configmap");
    delete_pod(&world, &blue);
    wait_printed(&world, &tick, &["blue", "green"]);
    keep_printed(&world, &tick, &["blue", "green"]);
}

/// The schedule itself, which needs up to a minute.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn scheduled_job_prints_newest_config() {
    let _confrev = running();
    let world = World::new("schedule");
    let tick = printing("cronjobs", "tick").spec(json!({"schedule": "* * * * *", "suspend": false}));
    world.set_config("demo", "blue");
    tick.apply(&world).ok();
    world.set_config("demo", "green");
    tick.wait_resolved(&world, "demo", "green");
    wait_for("a pod of the schedule", LIMIT * 2, || {
        let pods = tick.pods(&world);
        let texts: Vec<_> = pods.iter().map(|pod| printed(&world, pod)).collect();
        if texts == ["green"] { Ok(()) } else { Err(format!("{texts:?}")) }
    });
}
