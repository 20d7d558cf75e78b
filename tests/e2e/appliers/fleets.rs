//! A fleet of three clusters, staged by the script of `docs/fleets.md`: bad content stops in the first one.

use std::{fs, path::Path};

use confrev_controlplane::{ControlPlane, Program, wait_for};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::change_states::state;
use crate::gates::{close_gates, with_open_gates};
use crate::helm::run;
use crate::page::Page;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// A further cluster with a confrev of its own. It lives as long as this process.
fn cluster() -> (&'static ControlPlane, Program) {
    let cluster = ControlPlane::start().unwrap_or_else(|problem| panic!("{problem}"));
    let cluster: &'static ControlPlane = Box::leak(Box::new(cluster));
    Program::install(cluster);
    let mut program = Program::new(cluster, Path::new(env!("CARGO_BIN_EXE_confrev")));
    program.start();
    (cluster, program)
}

/// The ConfigMap as the stage tool applies it.
fn demo(content: &str) -> Value {
    let annotations =
        json!({"confrev.dev/report": "true", "confrev.dev/waves": "1", "confrev.dev/on-failure": "revert"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo", "annotations": annotations},
           "data": {"text": content}})
}

/// One kubeconfig with a context for the namespace of each cluster.
fn kubeconfig(worlds: &[World; 3]) -> String {
    let parts = ["first", "second", "third"].into_iter().zip(worlds).map(|(name, world)| {
        let file = fs::read_to_string(world.cluster.kubeconfig()).unwrap();
        let config: Value = serde_json::from_str(&file).unwrap();
        let context = json!({"cluster": name, "user": name, "namespace": world.name()});
        [
            json!({"name": name, "cluster": config["clusters"][0]["cluster"]}),
            json!({"name": name, "user": config["users"][0]["user"]}),
            json!({"name": name, "context": context}),
        ]
    });
    let parts: Vec<_> = parts.collect();
    let of = |place: usize| parts.iter().map(|part| part[place].clone()).collect::<Vec<_>>();
    json!({"apiVersion": "v1", "kind": "Config", "clusters": of(0), "users": of(1), "contexts": of(2)})
        .to_string()
}

fn phase(world: &World) -> Result<String, String> {
    Ok(text(&state(world).ok_or("it has no state")?["phase"]))
}

#[test]
fn bad_content_stops_in_the_first_cluster() {
    let _confrev = running();
    let [(second, mut of_second), (third, mut of_third)] = [cluster(), cluster()];
    let mut page = Page::of(World::new("fleet"));
    let worlds = [World::new("fleet"), World::of(second, "fleet"), World::of(third, "fleet")];
    let load = |name: &str| {
        let spec = json!({"replicas": 1, "progressDeadlineSeconds": 5});
        let mut load = Load::new("deployments", name, &["demo"]).spec(spec);
        close_gates(&mut load.manifest);
        load
    };
    let loads = ["one", "two"].map(load);
    page.reader.open("docs/fleets.md", "Stage a change");
    page.reader.file("home/fleet", &kubeconfig(&worlds));
    let stage = page.reader.next("examples/fleet/stage.sh demo.yaml demo first second third").line;
    let stages = |content: &str| {
        page.reader.file("demo.yaml", &demo(content).to_string());
        let mut command = page.reader.command("bash");
        command.env("KUBECONFIG", page.reader.folder().join("home/fleet")).env("TIMEOUT", "240s");
        run(command.args(["-c", &stage]))
    };
    with_open_gates(
        &worlds,
        |world, pod| world.pod_reads(pod, "demo"),
        || {
            for world in &worlds {
                world.apply(&demo("A")).ok();
                for load in &loads {
                    load.apply(world).ok();
                }
            }
            for world in &worlds {
                for load in &loads {
                    load.wait_reads(world, "demo", &["A"]);
                }
            }
            let failed = stages("bad");
            assert!(
                !failed.status.success() && failed.stderr.contains("the change stops in first"),
                "{failed}"
            );
            for world in &worlds[1..] {
                let source = world.cluster.get("configmap", world.name(), "demo").unwrap();
                assert_eq!(source["data"]["text"], "A", "the script did not apply it");
                // Another tool does, and the content is refused from the start.
                world.apply(&demo("bad")).ok();
                wait_for("the refusal", LIMIT, || expect(&phase(world)?, "refused"));
                let read: Vec<_> = loads.iter().flat_map(|load| load.reads(world, "demo")).collect();
                assert_eq!(read, ["A", "A"]);
            }
            stages("B").ok();
            for world in &worlds {
                wait_for("the state of the change", LIMIT, || expect(&phase(world)?, "complete"));
                for load in &loads {
                    load.wait_reads(world, "demo", &["B"]);
                }
            }
        },
    );
    drop(worlds);
    for (program, cluster) in [(&mut of_second, second), (&mut of_third, third)] {
        program.stop();
        cluster.stop();
    }
}
