//! StatefulSets and DaemonSets, which have ControllerRevisions and their own update strategies.

use std::collections::BTreeSet;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::{Load, wait_owner};
use crate::shared::running;
use crate::threads::in_threads;
use crate::world::{LIMIT, World, expect, name_of};

/// A StatefulSet that starts all its pods in parallel.
fn stateful(replicas: usize) -> Load {
    let spec = json!({"replicas": replicas, "serviceName": "web", "podManagementPolicy": "Parallel"});
    Load::new("statefulsets", "web", &["demo"]).spec(spec)
}

fn daemon() -> Load {
    Load::new("daemonsets", "web", &["demo"])
}

/// Runs the body for both kinds in parallel.
fn both(body: impl Fn(&World, Load) + Sync) {
    let loads = [stateful(1), daemon()].map(|load| (load.reference(), load));
    in_threads(loads, |load| body(&World::new("sets"), load));
}

#[test]
fn change_rolls_set_once_and_revisions_own_snapshots() {
    let _confrev = running();
    both(|world, web| {
        world.set_config("demo", "A");
        web.apply(world).ok();
        web.wait_reads(world, "demo", &["A"]);
        wait_owner(world, "demo", "A", "ControllerRevision");

        world.set_config("demo", "B");
        web.wait_reads(world, "demo", &["B"]);
        let newer = wait_owner(world, "demo", "B", "ControllerRevision");
        let older = wait_owner(world, "demo", "A", "ControllerRevision");
        let names = || web.revisions(world).iter().map(name_of).collect::<BTreeSet<_>>();
        let two = BTreeSet::from([older, newer]);
        assert_eq!(names(), two);

        let generation = web.live(world)["metadata"]["generation"].clone();
        web.apply(world).ok();
        holds_for("two revisions", Duration::from_secs(3), || expect(&names(), &two));
        assert_eq!(web.live(world)["metadata"]["generation"], generation);
        assert_eq!(web.reads(world, "demo"), ["B"]);
    });
}

#[test]
fn undo_of_set_holds_until_next_change() {
    let _confrev = running();
    both(|world, web| {
        world.set_config("demo", "A");
        web.apply(world).ok();
        web.wait_reads(world, "demo", &["A"]);
        world.set_config("demo", "B");
        web.wait_reads(world, "demo", &["B"]);

        world.kubectl(&["rollout", "undo", &web.reference()]).ok();
        web.wait_reads(world, "demo", &["A"]);
        holds_for("the undo", Duration::from_secs(5), || expect(&web.reads(world, "demo"), &["A"]));
        world.set_config("demo", "C");
        web.wait_reads(world, "demo", &["C"]);
        assert_eq!(web.revisions(world).len(), 3);
    });
}

#[test]
fn replaced_pods_below_partition_keep_old_content() {
    let _confrev = running();
    let world = World::new("partition");
    let strategy = |partition: usize| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}});
    let web = stateful(3).spec(strategy(2));
    world.set_config("demo", "A");
    web.apply(&world).ok();
    web.wait_reads(&world, "demo", &["A", "A", "A"]);
    world.set_config("demo", "B");
    web.wait_reads(&world, "demo", &["A", "A", "B"]);

    lose(&world, &web, "web-0");
    let by_pod = || {
        let pods = web.pods(&world);
        pods.iter().map(|pod| (name_of(pod), world.pod_reads(pod, "demo"))).collect::<BTreeSet<_>>()
    };
    let wanted = [("web-0", "A"), ("web-1", "A"), ("web-2", "B")];
    let wanted = wanted.map(|(pod, text)| (pod.to_owned(), text.to_owned()));
    holds_for("the partition", Duration::from_secs(3), || expect(&by_pod(), &BTreeSet::from(wanted.clone())));
    // From the manifest, which has the source's name.
    web.clone().spec(strategy(0)).apply(&world).ok();
    web.wait_reads(&world, "demo", &["B", "B", "B"]);
    assert_eq!(web.revisions(&world).len(), 2);
}

#[test]
fn on_delete_set_updates_only_replaced_pods() {
    let _confrev = running();
    both(|world, web| {
        let web = web.spec(json!({"updateStrategy": {"type": "OnDelete"}}));
        world.set_config("demo", "A");
        web.apply(world).ok();
        web.wait_reads(world, "demo", &["A"]);
        let uids = || web.pods(world).iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
        let before = uids();

        world.set_config("demo", "B");
        web.wait_resolved(world, "demo", "B");
        holds_for("the old pod", Duration::from_secs(3), || {
            expect(&uids(), &before)?;
            expect(&web.reads(world, "demo"), &["A"])
        });
        let pod = name_of(web.pods(world).first().expect("a pod exists"));
        lose(world, &web, &pod);
        web.wait_reads(world, "demo", &["B"]);
    });
}

/// Deletes a pod and waits for its replacement.
fn lose(world: &World, web: &Load, name: &str) {
    let uids = || web.pods(world).iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<Value>>();
    let before = uids();
    let lost =
        world.cluster.get("pod", world.name(), name).expect("the object exists")["metadata"]["uid"].clone();
    world.delete("pod", name);
    wait_for("a replacement of the lost pod", LIMIT, || {
        let now = uids();
        (now.len() == before.len() && !now.contains(&lost)).then_some(())
    });
}
