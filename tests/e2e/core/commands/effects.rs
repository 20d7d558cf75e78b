//! The commands before and after a change, an undo, a pin and so on.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use confrev_controlplane::wait_for;
use serde_json::json;

use super::{Commands as _, confrev};
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, expect, text};

/// A workload that was rolled from A to B and is at rest.
pub(super) fn rolled(kind: Kind) -> (World, Workload) {
    let world = World::new("commands");
    let web = Workload::new(kind, "web", &["demo"]).replicas(2);
    world.set_config("demo", "A");
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A", "A"]);
    world.set_config("demo", "B");
    world.confrev(&["wait", "configmap/demo", "--timeout=60s"]).ok();
    world.wait_reads(&web, "demo", &["B", "B"]);
    (world, web)
}

pub(super) fn reference(web: &Workload) -> String {
    format!("{}/{}", if web.kind == Kind::Rollout { "Rollout" } else { "Deployment" }, web.name)
}

#[test]
fn status_history_diff_and_tree_show_running_config() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        let (a, b) = (world.snapshot_name("demo", "A"), world.snapshot_name("demo", "B"));
        let table = world.confrev(&["status"]).ok();
        let lines: Vec<_> = table.lines().collect();
        let cells: Vec<Vec<_>> = lines
            .iter()
            .map(|line| line.split("   ").map(str::trim).filter(|c| !c.is_empty()).collect())
            .collect();
        assert_eq!(cells[0], ["WORKLOAD", "CONFIG", "PODS", "STATE", "ROLLOUT", "REASON"]);
        assert_eq!(
            (cells[1][0], &cells[1][2..]),
            (&*reference(&web), &["2 present", "current", "settled"][..])
        );
        assert_eq!(lines.len(), 2, "{table}");

        let status = world.confrev_json(&["status", "web"]);
        let source = json!([{"source": "ConfigMap/demo", "snapshot": b, "state": "current"}]);
        assert_eq!(
            (status[0]["sources"].clone(), &status[0]["pods"][text(&status[0]["config"])]),
            (source, &json!(2))
        );
        for (line, is_shown) in [
            (&["status", "-o", "name"][..], true),
            (&["status", "-o", "name", "--state", "current"], true),
            (&["status", "-o", "name", "--state", "pending,source-gone"], false),
        ] {
            let shown =
                if is_shown { format!("{}\n", reference(&web).to_lowercase()) } else { String::new() };
            assert_eq!(world.confrev(line).ok(), shown, "{line:?}");
        }

        let history = world.confrev_json(&["history", "demo"]);
        let names: Vec<_> = history.as_array().unwrap().iter().map(|line| text(&line["snapshot"])).collect();
        assert_eq!(names, [b.clone(), a.clone()], "newest first");
        assert_eq!([&history[0]["present"], &history[1]["present"]], [true, false]);
        assert!(history[0]["usedBy"].as_array().unwrap().contains(&json!(reference(&web))), "{history}");
        assert!(text(&history[1]["usedBy"][0]).starts_with("ReplicaSet/web-"), "{history}");

        let diff = world.confrev(&["diff", "demo"]);
        assert_eq!(diff.code, 1, "{diff:?}");
        let diff = diff.stdout;
        assert!(diff.contains(&format!("--- {a} ")) && diff.contains("-A") && diff.contains("+B"), "{diff}");
        assert_eq!(
            world.confrev(&["diff", &web.reference()]).ok(),
            "",
            "the workload has the present content"
        );
        assert_eq!(world.confrev(&["diff", "demo", "~1", &a[a.len() - 10..]]).ok(), "");

        let tree = world.confrev(&["tree", "web", "--all"]).ok();
        for part in [format!("{}   current", reference(&web)), format!("ConfigMap/{a}"), "2 pods".to_owned()]
        {
            assert!(tree.contains(&part), "{part}: {tree}");
        }
        assert_eq!(tree.matches("Pod/web-").count(), 2, "{tree}");
        assert!(!tree.contains("not found"), "{tree}");
        assert!(world.confrev(&["tree", "web"]).ok().contains("(1 more without pods"));
    });
}

/// An undo and a pin hold until `unpin`.
#[test]
fn undo_pin_and_unpin_change_only_the_config() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        world.set_image(&web, "app:2").ok();
        world.wait_reads(&web, "demo", &["B", "B"]);
        let image = || text(&world.live(&web)["spec"]["template"]["spec"]["containers"][0]["image"]);

        let said = world.confrev(&["undo", "web", "--dry-run"]).ok();
        assert!(said.contains("dry run"), "{said}");
        world.resolves_to(&web, "demo", "B").unwrap();
        let (a, b) = (world.snapshot_name("demo", "A"), world.snapshot_name("demo", "B"));
        let said = world.confrev(&["undo", "web"]).ok();
        let until = "until demo changes or the workload is applied (--hold keeps it)";
        assert_eq!(said, format!("{}: demo rolls from {b} to {a}, {until}\n", reference(&web)));
        world.wait_reads(&web, "demo", &["A", "A"]);
        assert_eq!(image(), "app:2", "the rest of the template stays");
        assert!(world.confrev(&["status"]).ok().contains("pinned: demo"));
        let refusal = world.confrev(&["wait", "demo", "--timeout=5s"]).failed(3);
        assert!(refusal.contains("unpin"), "{refusal}");

        let said = world.confrev(&["undo", "web", "--dry-run"]).ok();
        assert!(said.contains(&format!("demo rolls from {a} to {b}, which ends its undo")), "{said}");
        world.confrev(&["unpin", &web.reference()]).ok();
        world.wait_reads(&web, "demo", &["B", "B"]);
        world.confrev(&["pin", "web", "demo", "~1"]).ok();
        world.wait_reads(&web, "demo", &["A", "A"]);
        world.confrev(&["unpin", "web", "--source", "demo"]).ok();
        world.confrev(&["wait", &web.reference(), "--timeout=60s"]).ok();
        world.wait_reads(&web, "demo", &["B", "B"]);
        assert_eq!(image(), "app:2");
    });
}

/// `impact` reports the same.
#[test]
fn paused_workload_does_not_roll_until_resumed() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        let file = world.file("c.yaml", &config_map("demo", "C").to_string());
        let impact = || world.confrev_json(&["impact", "-f", &file])[0]["rolls"].clone();
        assert_eq!(impact(), true);
        assert_eq!(world.confrev_json(&["impact", "demo"])[0]["workload"], reference(&web));
        world.confrev(&["pause", "web"]).ok();
        assert_eq!(impact(), false);
        world.set_config("demo", "C");
        wait_for("the workload to be paused", LIMIT, || {
            expect(&world.confrev(&["status"]).ok().contains("paused: demo"), &true)
        });
        world.reads_for(2, &web, "demo", &["B", "B"]);
        world.confrev(&["resume", "web"]).ok();
        world.wait_reads(&web, "demo", &["C", "C"]);
        assert_eq!(impact(), false, "the workload has that content");
    });
}

/// `prune` reports each snapshot in use as kept.
#[test]
fn restore_writes_old_content_and_prune_keeps_used() {
    let _confrev = running();
    let (world, web) = rolled(Kind::Deployment);
    let refusal = world.confrev(&["restore", "demo", "~1"]);
    assert_eq!(refusal.code, 2, "{refusal:?}");
    assert!(refusal.stdout.contains("-B") && refusal.stdout.contains("+A"), "{refusal:?}");
    assert!(world.confrev(&["restore", "demo", "~1", "--dry-run"]).ok().contains("nothing was written"));
    world.confrev(&["restore", "demo", "~1", "--yes"]).ok();
    world.wait_reads(&web, "demo", &["A", "A"]);
    assert!(world.confrev(&["restore", "demo", "~0", "--yes"]).ok().contains("already"));

    let verdicts = world.confrev_json(&["prune"]);
    assert!(verdicts.as_array().unwrap().iter().all(|verdict| verdict["goes"] == false), "{verdicts}");
    assert!(verdicts.to_string().contains("used by"), "{verdicts}");
}

#[test]
fn render_matches_objects_that_the_api_server_stores() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("commands-render");
        world.set_config("demo", "A");
        let web = Workload::new(kind, "web", &["demo"]).manifest();
        let both = format!("{}\n---\n{web}", config_map("demo", "A"));
        let file = world.file("both.yaml", &both);
        let rendered = confrev(&["render", "-f", &file, "-o", "json", "--snapshots"]).ok();
        let rendered: serde_json::Value = serde_json::from_str(&rendered).unwrap();
        world.apply(&web).ok();
        let live = world.live(&Workload::new(kind, "web", &["demo"]));
        let snapshot = &world.snapshots()[0];
        for (path, live) in [
            ("/items/1/metadata/name", &snapshot["metadata"]["name"]),
            ("/items/1/metadata/annotations", &snapshot["metadata"]["annotations"]),
            ("/items/1/metadata/labels", &snapshot["metadata"]["labels"]),
            ("/items/1/data", &snapshot["data"]),
            ("/items/2/spec/template/metadata", &live["spec"]["template"]["metadata"]),
            (
                "/items/2/metadata/annotations/confrev.dev~1state",
                &live["metadata"]["annotations"]["confrev.dev/state"],
            ),
        ] {
            let mut live = live.clone();
            // A manifest shows neither when nor by whom it was written.
            if let Some(fields) = live.as_object_mut() {
                for field in ["creationTimestamp", "confrev.dev/changed-at", "confrev.dev/changed-by"] {
                    fields.remove(field);
                }
            }
            assert_eq!(rendered.pointer(path), Some(&live), "{path}");
        }
    });
}

#[test]
fn check_passes_and_reports_an_excluded_namespace() {
    let running = running();
    wait_for("confrev to lead", LIMIT, || running.leads().then_some(()));
    let world = World::new("commands-check");
    let findings = world.confrev_json(&["check"]);
    for finding in findings.as_array().unwrap() {
        assert_eq!(finding["grade"], "ok", "{finding}");
    }
    // The webhooks exclude kube-system.
    let said = confrev(&["check", "--namespace", "kube-system"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.stdout.contains("the webhooks exclude namespace kube-system"), "{said:?}");
}

#[test]
fn completion_offers_names_of_live_objects() {
    let _confrev = running();
    let world = World::new("commands-complete");
    world.set_config("demo", "A");
    world.apply(&Workload::new(Kind::Deployment, "web", &["demo"]).manifest()).ok();
    world.set_config("other", "A");
    let other = Workload::new(Kind::Deployment, "other", &["other"]).annotation("track", "false");
    world.apply(&other.manifest()).ok();
    let complete = |words: &[&str]| confrev(&[&["__complete"][..], words].concat()).ok();
    assert!(complete(&["hist"]).starts_with("history\n"));
    let namespace = format!("--namespace={}", world.name());
    assert_eq!(complete(&["tree", &namespace, ""]), "deployment/other\ndeployment/web\n:4\n");
    // Only what fits: the workload's own sources, and workloads that are not paused yet.
    assert_eq!(complete(&["history", &namespace, ""]), "configmap/demo\nconfigmap/other\n:4\n");
    assert_eq!(complete(&["pause", &namespace, ""]), "deployment/web\n:4\n");
    assert_eq!(complete(&["resume", &namespace, ""]), "deployment/other\n:4\n");
    assert_eq!(complete(&["completion", "z"]), "zsh\n:4\n");
    assert_eq!(complete(&["pin", &namespace, "deployment/web", ""]), "configmap/demo\n:4\n");
    let snapshots = complete(&["pin", "-n", world.name(), "deployment/web", "configmap/demo", ""]);
    assert_eq!(snapshots, format!("{}\n:4\n", world.snapshot_name("demo", "A")));
    assert!(complete(&["status", "--all"]).starts_with("--all-namespaces\n"));
    // A name without its kind, and values of flags.
    assert_eq!(complete(&["tree", &namespace, "w"]), "web\n:4\n");
    assert_eq!(complete(&["undo", "-n", world.name(), "web", "--source", ""]), "configmap/demo\n:4\n");
    assert_eq!(complete(&["status", "-o", "y"]), "yaml\n:4\n");
    assert_eq!(complete(&["status", "-n", world.name()]), format!("{}\n:4\n", world.name()));
    assert_eq!(complete(&["render", "-f", ""]), ":0\n", "files");
}

/// As `kubectl confrev status --watch | head -1` does: nothing changes any more, so the command prints nothing that could fail.
#[test]
fn watch_ends_with_its_reader() {
    let _confrev = running();
    let world = World::new("commands-watch");
    world.set_config("demo", "A");
    world.apply(&Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0).manifest()).ok();
    world.wait_at_rest();
    let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
    command.args(["status", "--watch", "--namespace", world.name()]);
    command.env("KUBECONFIG", world.cluster.kubeconfig());
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut head = BufReader::new(watch.stdout.take().unwrap());
    let mut line = String::new();
    head.read_line(&mut line).unwrap();
    assert!(line.starts_with("WORKLOAD"), "{line:?}");
    assert!(watch.try_wait().unwrap().is_none(), "it watches while it is read");
    drop(head);
    let ended = wait_for("the command to end", LIMIT, || watch.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
}
