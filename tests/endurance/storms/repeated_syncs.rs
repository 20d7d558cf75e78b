//! Repeated syncs of a ConfigMap with `max-in-flight` and of all its workloads, as GitOps tools do them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::manifests::{config_map, list};
use crate::max_in_flight::{Sound, Stop, gated, on, open_gates};
use crate::shared::running;
use crate::world::{LIMIT, World, expect};

const WORKLOADS: usize = 10;

/// The commands that tools use to write manifests.
const APPLIERS: [&[&str]; 3] =
    [&["apply"], &["apply", "--server-side", "--force-conflicts", "--field-manager=git"], &["replace"]];

/// The ConfigMap and all workloads, in the order of an apply by a tool.
fn manifests(loads: &[Load], content: &str) -> Value {
    let mut source = config_map("demo", content);
    source["metadata"]["annotations"] = json!({"confrev.dev/max-in-flight": "1"});
    let workloads = loads.iter().map(|load| load.manifest.clone());
    list(&[source].into_iter().chain(workloads).collect::<Vec<_>>())
}

/// The templates, and the number of revisions.
fn templates(world: &World, loads: &[Load]) -> (Vec<Value>, usize) {
    let templates = loads.iter().map(|load| {
        let mut template = load.live(world)["spec"]["template"].take();
        // Argo Rollouts adds this field to a template, and an apply removes it again.
        for container in template["spec"]["containers"].as_array_mut().into_iter().flatten() {
            container.as_object_mut().map(|container| container.remove("resources"));
        }
        template
    });
    (templates.collect(), world.cluster.list("replicasets", world.name(), "").len())
}

/// Writes manifests with the command `how`. `kubectl replace` reads an object before it writes it, and a controller may
/// write it meanwhile. Then this tries again, as a tool does.
fn deploy(world: &World, how: &[&str], manifests: &Value) {
    wait_for("the manifests to be written without a conflict", LIMIT, || {
        let output = world.with_file(how, manifests);
        let errors = output.stderr.lines().filter(|line| line.starts_with("Error"));
        let conflict = errors.clone().count() > 0 && errors.clone().all(|line| line.contains("(Conflict)"));
        if conflict { Err(output.stderr) } else { Ok(output.ok()) }
    });
}

/// Pods that read `bad` never start. So one workload has the content and the others keep theirs, however often and by
/// any command that applies the same manifests.
#[test]
fn sync_rolls_one_of_ten_workloads() {
    let (stopped, sound) = (AtomicBool::new(false), Sound::default());
    let _confrev = running();
    let worlds: Vec<_> = APPLIERS.iter().map(|_| World::new("synced")).collect();
    thread::scope(|scope| {
        let _stop = Stop(&stopped);
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                for world in &worlds {
                    open_gates(world, &sound);
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        let tests = APPLIERS.iter().zip(&worlds).map(|(how, world)| {
            thread::Builder::new()
                .name(how.join(" "))
                .spawn_scoped(scope, move || synced(world, how))
                .unwrap()
        });
        let tests: Vec<_> = tests.collect();
        for test in tests {
            test.join().expect("the test of one command");
        }
    });
}

fn synced(world: &World, how: &[&str]) {
    let loads: Vec<_> = (0..WORKLOADS).map(gated).collect();
    world.apply(&manifests(&loads, "good")).ok();
    for load in &loads {
        load.wait_reads(world, "demo", &["good"]);
    }
    let bad = manifests(&loads, "bad");
    deploy(world, how, &bad);
    let first = wait_for("the first workload to roll", LIMIT, || {
        on(world, &loads, "bad").pop_first().ok_or("no workload has rolled")
    });
    let alone = |others: &[&str]| {
        let all = [first.as_str()].iter().chain(others).map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        expect(&on(world, &loads, "bad"), &all)
    };
    holds_for("the wait of the other workloads", Duration::from_secs(2), || alone(&[]));
    let others: Vec<_> = loads.iter().filter(|load| load.name != first).collect();
    // `kubectl replace` drops the annotations of controllers, and an apply of a custom resource replaces whole lists.
    // Then the controllers write their part again.
    let versions = || -> Vec<_> {
        let asked = others.iter().filter(|load| how[0] == "apply" && load.kind().name == "Deployment");
        asked.map(|load| load.live(world)["metadata"]["resourceVersion"].clone()).collect()
    };
    let before = (templates(world, &loads), versions());
    holds_for("the wait of the other workloads during repeated applies", Duration::from_secs(6), || {
        deploy(world, how, &bad);
        expect(&templates(world, &loads), &before.0)?;
        expect(&versions(), &before.1)?;
        alone(&[])
    });

    // Setting the image of a waiting workload does not roll it to the new content; deploying its manifest does.
    let image =
        json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "app:2"}]);
    let patch =
        ["patch", &others[0].reference(), "--type=json", "--patch", &image.to_string()].map(str::to_owned);
    world.kubectl(&patch.each_ref().map(String::as_str)).ok();
    holds_for("the wait of the workload with a new image", Duration::from_secs(2), || alone(&[]));
    let mut deployed = others[1].manifest.clone();
    deployed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
    deploy(world, how, &deployed);
    alone(&[&others[1].name]).expect("a deployment resolves to the newest content");
}
