//! Namespaces take turns: what one tenant does costs another tenant a bounded delay, and nothing else.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use confrev_controlplane::wait_for;
use confrev_test_support::webhook_receiver::Receiver;
use serde_json::{Value, json};

use crate::events::told;
use crate::manifests::{Kind, Workload};
use crate::shared::exclusive;
use crate::world::{LIMIT, World};

/// Creates this many Deployments without pods at once, changed in some way.
fn create(world: &World, count: usize, change: impl Fn(usize, &mut Value)) -> Vec<Workload> {
    let workloads: Vec<_> = (0..count)
        .map(|number| Workload::new(Kind::Deployment, &format!("w{number}"), &["demo"]).replicas(0))
        .collect();
    let items = workloads.iter().enumerate().map(|(number, workload)| {
        let mut manifest = workload.manifest();
        change(number, &mut manifest);
        manifest
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()});
    world.with_file(&["create"], &list).ok();
    workloads
}

/// The snapshot's names that the templates of the namespace have.
fn in_use(world: &World) -> Vec<Value> {
    let deployments = world.cluster.list("deployments", world.name(), "");
    let of = |object: &Value| object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"].clone();
    deployments.iter().map(of).collect()
}

/// Before, the one roll waited for all rolls of the other namespace. The rate is low, so that those take a while on any machine.
#[test]
fn large_change_delays_no_other_namespace() {
    const COUNT: usize = 200;
    let mut confrev = exclusive();
    confrev.stop();
    confrev.start_with(&["--roll-rate=10"]);
    let [many, one] = ["turns-many", "turns-one"].map(World::new);
    for world in [&many, &one] {
        world.set_config("demo", "A");
    }
    create(&many, COUNT, |_, _| {});
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    one.apply(&web.manifest()).ok();
    one.wait_resolved(&web, "demo", "A");
    let left = || {
        let old = json!(many.snapshot_name("demo", "A"));
        in_use(&many).iter().filter(|name| **name == old).count()
    };
    assert_eq!(left(), COUNT);
    many.set_config("demo", "B");
    wait_for("the first rolls", LIMIT, || (left() < COUNT).then_some(()));
    one.set_config("demo", "B");
    one.wait_resolved(&web, "demo", "B");
    let left = left();
    println!("{left} of {COUNT} rolls of the other namespace are left");
    assert!(left > 0, "the roll waited for all others");
    wait_for("all rolls", 4 * LIMIT, || {
        let new = json!(many.snapshot_name("demo", "B"));
        in_use(&many).iter().all(|name| *name == new).then_some(())
    });
}

/// One tenant changes references to missing ConfigMaps without end. Its warnings fill its own queue alone.
#[test]
fn flood_of_warnings_silences_no_other_namespace() {
    const COUNT: usize = 250;
    const VICTIMS: usize = 5;
    let receiver = Receiver::start(&[]);
    let mut confrev = exclusive();
    confrev.stop();
    confrev.start_with(&["--notify", &receiver.url()]);
    let [flood, other] = ["turns-flood", "turns-other"].map(World::new);
    other.set_config("demo", "A");
    let victims = create(&other, VICTIMS, |_, _| {});
    for victim in &victims {
        other.wait_resolved(victim, "demo", "A");
    }
    wait_for("confrev to lead", LIMIT, || confrev.leads().then_some(()));
    let missing =
        |round: usize, number: usize| json!({"configMapRef": {"name": format!("none-{round}-{number}")}});
    let flooding = create(&flood, COUNT, |number, object| {
        object["spec"]["paused"] = json!(true);
        object["spec"]["template"]["spec"] =
            json!({"containers": [{"name": "app", "image": "app:1", "envFrom": [missing(0, number)]}]});
    });
    let is_over = AtomicBool::new(false);
    let dropped = || confrev.metric("confrev_events_total{reason=\"SourceMissing\",outcome=\"dropped\"}");
    thread::scope(|scope| {
        for part in 0..2 {
            let (flood, flooding, is_over) = (&flood, &flooding, &is_over);
            scope.spawn(move || {
                for round in 1.. {
                    for (number, workload) in
                        flooding.iter().enumerate().filter(|(number, _)| number % 2 == part)
                    {
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        let containers =
                            json!([{"name": "app", "image": "app:1", "envFrom": [missing(round, number)]}]);
                        flood.patch(
                            workload,
                            &json!({"spec": {"template": {"spec": {"containers": containers}}}}),
                        );
                    }
                }
            });
        }
        let end = End(&is_over);
        wait_for("a warning to be dropped", 2 * LIMIT, || (dropped() > 0.0).then_some(()));
        other.set_config("demo", "B");
        for victim in &victims {
            other.wait_resolved(victim, "demo", "B");
        }
        let mut wanted: Vec<_> =
            victims.iter().map(|victim| format!("Rolled Deployment/{}", victim.name)).collect();
        wanted.push("Rolled ConfigMap/demo".to_owned());
        wait_for("the Events of the other namespace", LIMIT, || {
            let events = told(&other);
            if wanted.iter().all(|name| events.contains_key(name)) {
                Ok(())
            } else {
                Err(format!("{events:?}"))
            }
        });
        wait_for("its notifications", LIMIT, || {
            let subjects: Vec<_> =
                receiver.posts().iter().map(|post| post.json()["subject"].clone()).collect();
            let is_posted = |victim: &Workload| {
                subjects.contains(&json!(format!("{}/Deployment/{}", other.name(), victim.name)))
            };
            victims.iter().all(is_posted).then_some(())
        });
        drop(end);
    });
    assert!(confrev.metric("confrev_events_total{reason=\"Rolled\",outcome=\"dropped\"}") < 1.0);
    // Each minute, the dropped Events are counted in their namespace.
    let is_counted = |world: &World| {
        let events = world.cluster.list("events", world.name(), "");
        events
            .iter()
            .any(|event| event["reason"] == "EventsDropped" && event["involvedObject"]["kind"] == "Namespace")
    };
    wait_for("the number of dropped Events", 2 * LIMIT, || is_counted(&flood).then_some(()));
    assert!(!is_counted(&other));
}

/// Ends the flood, even if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
