//! A Secret of a group of namespaces, which moves in waves: each namespace has its own digest of the content, and its own name of
//! the snapshot.

use std::process::Command;
use std::time::Duration;

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::gates::with_open_gates;
use crate::shared::running;
use crate::world::{LIMIT, SNAPSHOTS, World, expect, name_of, text, verdict};

/// A Deployment that reads the password, and whose pods start when their gate is opened.
fn web() -> Load {
    let load = Load::new("deployments", "web", &[]).annotation("secrets", "true");
    let mut load = load.spec(json!({"replicas": 1, "progressDeadlineSeconds": 15}));
    let password = json!({"secretKeyRef": {"name": "keys", "key": "password"}});
    load.manifest["spec"]["template"]["spec"] = json!({
        "schedulingGates": [{"name": "test/sound"}],
        "containers": [{"name": "app", "image": "app:1", "env": [{"name": "PASSWORD", "valueFrom": password}]}],
    });
    load
}

/// What a pod reads, or why it does not start.
fn password(world: &World, pod: &Value) -> String {
    let config = world.cluster.pod_config(pod);
    config.map_or_else(|problem| problem, |config| config.env["app/PASSWORD"].clone())
}

fn write(world: &World, value: &str, bake: &str) {
    let annotations = json!({
        "confrev.dev/waves": "1", "confrev.dev/bake": bake, "confrev.dev/on-failure": "revert",
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"password": value},
        "metadata": {"name": "keys", "annotations": annotations},
    });
    // Decisions are annotations that kubectl does not own, so they stay.
    world.apply(&secret).ok();
}

/// The passwords that ready pods read.
fn read(worlds: &[World], load: &Load) -> Vec<String> {
    let pods =
        worlds.iter().flat_map(|world| load.pods(world).into_iter().map(move |pod| password(world, &pod)));
    pods.collect()
}

fn command(world: &World, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
    command.args(arguments).args(["--namespace", world.name()]);
    let output = command.env("KUBECONFIG", world.cluster.kubeconfig()).output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// The name of the refused snapshot of each namespace, and when it was refused.
fn refused(worlds: &[World]) -> Vec<(String, String)> {
    let of = |world: &World| {
        let snapshots = world.cluster.list("secrets", world.name(), SNAPSHOTS);
        let at = |snapshot: &Value| text(&verdict(snapshot)["failed"]["at"]);
        let marked = snapshots.iter().find(|snapshot| !at(snapshot).is_empty());
        marked.map(|snapshot| (name_of(snapshot), at(snapshot)))
    };
    worlds.iter().filter_map(of).collect()
}

/// The verdict on the present content of the Secret in each namespace.
fn verdicts(worlds: &[World; 2], field: &str) -> [Value; 2] {
    worlds.each_ref().map(|world| {
        let history: Value =
            serde_json::from_str(&command(world, &["history", "secret/keys", "-o=json"])).expect("JSON");
        let name = text(&history[0]["snapshot"]);
        let snapshot = world.cluster.get("secret", world.name(), &name).expect("the snapshot");
        verdict(&snapshot)[field].clone()
    })
}

#[test]
fn secret_of_group_moves_and_returns_together() {
    let _confrev = running();
    let worlds: [World; 2] = World::group("group-secrets", 2).try_into().ok().expect("two");
    let [one, two] = &worlds;
    for world in &worlds {
        let label = ["label", "namespace", world.name(), "confrev.dev/group-revert=true"];
        world.cluster.kubectl(&label).run().ok();
    }
    let load = web();
    with_open_gates(&worlds, password, || {
        for world in &worlds {
            write(world, "good", "0s");
            load.apply(world).ok();
        }
        let all_read = |value: &str, limit: Duration| {
            let wanted = [value, value].map(str::to_owned);
            wait_for(&format!("all pods to read {value}"), limit, || {
                expect(&read(&worlds, &load), &wanted[..])
            });
        };
        all_read("good", LIMIT);

        for world in &worlds {
            write(world, "bad", "0s");
        }
        let marks = wait_for("the refusal in both namespaces", 2 * LIMIT, || {
            let marks = refused(&worlds);
            if marks.len() == 2 { Ok(marks) } else { Err(format!("{marks:?}")) }
        });
        assert!(marks[0].0 != marks[1].0 && marks[0].1 == marks[1].1, "{marks:?}");
        all_read("good", LIMIT);
        let events = worlds.each_ref().map(|world| {
            let events = world.cluster.list("events", world.name(), "");
            events.iter().filter(|event| event["reason"] == "Rolled").count()
        });
        // Each workload resolved at its creation; one of them has moved.
        assert_eq!(events.iter().sum::<usize>(), 2, "{events:?}: the workload and its source");

        let said = command(two, &["waves", "retry", "secret/keys"]);
        assert!(said.ends_with(", in 2 namespaces\n"), "{said}");
        let retried = verdicts(&worlds, "retried");
        assert!(retried[0] == retried[1] && text(&retried[0]) > marks[0].1, "{retried:?}, {marks:?}");
        wait_for("another refusal in both namespaces", 2 * LIMIT, || {
            let again = refused(&worlds);
            let is_new = again.len() == 2 && again.iter().zip(&marks).all(|(again, mark)| again.1 > mark.1);
            if is_new { Ok(()) } else { Err(format!("{again:?}")) }
        });
        all_read("good", LIMIT);

        for world in &worlds {
            write(world, "better", "1h");
        }
        wait_for("the bake time of the first wave", LIMIT, || {
            let shown: Value = serde_json::from_str(&command(one, &["waves", "secret/keys", "-o=json"]))
                .map_err(|e| e.to_string())?;
            expect(&json!([shown["moved"], shown["workloads"]]), &json!([1, 2]))?;
            let reason = text(&shown["reason"]);
            if reason.starts_with("wave 1 of 2: bakes until") { Ok(()) } else { Err(reason) }
        });
        command(one, &["waves", "abort", "secret/keys"]);
        assert_eq!(verdicts(&worlds, "aborted"), [json!(true), json!(true)]);
        command(two, &["waves", "retry", "secret/keys"]);
        assert_eq!(verdicts(&worlds, "aborted"), [Value::Null, Value::Null]);
        command(two, &["waves", "promote", "secret/keys"]);
        assert_eq!(verdicts(&worlds, "promoted"), [json!("2"), json!("2")]);
        all_read("better", LIMIT);
    });
}
