//! Undo, pin, unpin and restore: commands that report success have an effect.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use super::Commands as _;
use super::effects::{reference, rolled};
use super::windows;
use crate::manifests::{Kind, Workload};
use crate::shared::{exclusive, running};
use crate::world::{LIMIT, World, each_kind, name_of};

#[test]
fn undo_and_pin_move_mounted_source() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("commands-mount");
        let web = Workload::new(kind, "web", &[]).annotation("mount", "demo=/etc/shop");
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_resolved(&web, "demo", "A");
        world.set_config("demo", "B");
        world.wait_resolved(&web, "demo", "B");
        world.wait_at_rest();
        let (a, b) = (world.snapshot_name("demo", "A"), world.snapshot_name("demo", "B"));

        world.confrev(&["undo", "web", "--dry-run"]).ok();
        assert_eq!(world.resolved(&web, "demo").as_ref(), Some(&b));
        let said = world.confrev(&["undo", "web"]).ok();
        let until = "until demo changes or the workload is applied (--hold keeps it)";
        assert_eq!(said, format!("{}: demo rolls from {b} to {a}, {until}\n", reference(&web)));
        assert_eq!(world.resolved(&web, "demo").as_ref(), Some(&a));
        let template = world.live(&web)["spec"]["template"].to_string();
        assert!(template.contains(&a) && !template.contains(&b), "{template}");
        assert!(world.confrev(&["status"]).ok().contains("pinned: demo"));

        world.confrev(&["unpin", "web", "--source", "demo"]).ok();
        assert_eq!(world.resolved(&web, "demo").as_ref(), Some(&b));
        world.confrev(&["pin", "web", "demo", &a]).ok();
        assert_eq!(world.resolved(&web, "demo").as_ref(), Some(&a));
    });
}

/// An apply of the source's name, which changes nothing else, would keep the undo.
#[test]
fn unpin_of_source_works_with_max_in_flight() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/max-in-flight=1"]).ok();
        world.confrev(&["undo", "web"]).ok();
        world.resolves_to(&web, "demo", "A").unwrap();
        world.confrev(&["unpin", "web", "--source", "demo"]).ok();
        world.resolves_to(&web, "demo", "B").unwrap();
    });
}

/// A window keeps the workload from a change; an undo, a pause and a hold stay what they are.
#[test]
fn roll_waits_for_no_gate() {
    let _confrev = running();
    let (world, web) = rolled(Kind::Deployment);
    let name = reference(&web);
    let window = format!("confrev.dev/window={}", windows::closed());
    world.kubectl(&["annotate", "configmap/demo", &window]).ok();
    world.set_config("demo", "C");
    let is_waiting = || {
        let status = world.confrev(&["status", "web"]).ok();
        if status.contains("outside the window of ConfigMap") { Ok(()) } else { Err(status) }
    };
    wait_for("the window to hold the workload", LIMIT, is_waiting);
    let b = world.snapshot_name("demo", "B");
    let said = format!(
        "{name}: demo rolls from {b} to its present content, and does not wait: outside the window of"
    );
    let tried = world.confrev(&["roll", "web", "--dry-run"]).ok();
    assert!(tried.starts_with(&said) && tried.ends_with(" (dry run: nothing was written)\n"), "{tried}");
    assert_eq!(world.resolved(&web, "demo").as_ref(), Some(&b));
    assert!(world.confrev(&["roll", "web"]).ok().starts_with(&said));
    world.resolves_to(&web, "demo", "C").unwrap();

    // It ends no decision of a person.
    world.confrev(&["undo", "web"]).ok();
    let kept = world.confrev(&["roll", "web"]).ok();
    let way = format!(
        "{name}: nothing to roll: ConfigMap/demo pinned; to end that, run `kubectl confrev unpin {name}`\n"
    );
    assert_eq!(kept, way);
    world.resolves_to(&web, "demo", "B").unwrap();
    world.confrev(&["unpin", "web"]).ok();
    world.confrev(&["pause", "web"]).ok();
    world.set_config("demo", "D");
    wait_for("the change to be seen", LIMIT, || {
        let status = world.confrev(&["status", "web"]).ok();
        if status.contains("paused: demo") { Ok(()) } else { Err(status) }
    });
    world.confrev(&["roll", "web", "--source", "demo"]).ok();
    world.resolves_to(&web, "demo", "D").unwrap();
}

/// The mutating webhook configuration, deleted while this exists.
struct WithoutWebhook<'w> {
    world: &'w World,
    configuration: Value,
}

impl<'w> WithoutWebhook<'w> {
    fn new(world: &'w World) -> Self {
        let mut configuration =
            world.cluster.get("mutatingwebhookconfiguration", "", "confrev").expect("the object exists");
        for field in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"] {
            configuration["metadata"].as_object_mut().unwrap().remove(field);
        }
        world.cluster.kubectl(&["delete", "mutatingwebhookconfiguration", "confrev"]).run().ok();
        Self { world, configuration }
    }
}

impl Drop for WithoutWebhook<'_> {
    fn drop(&mut self) {
        let create = self.world.cluster.kubectl(&["create", "--filename", "-"]);
        let created = create.stdin(&self.configuration).run();
        assert!(created.status.success() || std::thread::panicking(), "{created}");
    }
}

/// The API server stores a write without calling confrev while the webhook configuration is deleted.
#[test]
fn moves_are_refused_if_confrev_does_not_answer() {
    let _confrev = exclusive();
    // One after the other: they share the webhook configuration.
    for kind in Kind::ALL {
        let (world, web) = rolled(kind);
        let pinned = world.snapshot_name("demo", "A");
        let stored = || world.live(&web)["metadata"]["generation"].clone();
        let before = stored();
        let without = WithoutWebhook::new(&world);
        // The API server learns of the deletion with a delay, by its own watch.
        let refusal = wait_for("a refusal", LIMIT, || {
            let said = world.confrev(&["undo", "web", "--dry-run"]);
            if said.code == 1 { Ok(said.failed(1)) } else { Err(said.stdout) }
        });
        let of = reference(&web);
        assert_eq!(
            refusal,
            format!(
                "error: confrev did not answer: the API server did not call its webhook for {of}; nothing was written"
            )
        );
        for moves in [&["undo", "web"][..], &["pin", "web", "demo", &pinned]] {
            let refusal = world.confrev(moves).failed(1);
            assert!(refusal.contains("confrev did not answer"), "{moves:?}: {refusal}");
        }
        assert_eq!(stored(), before);
        drop(without);
        wait_for("confrev to be called again", LIMIT, || {
            let said = world.confrev(&["undo", "web", "--dry-run"]);
            if said.code == 0 { Ok(()) } else { Err(said.stderr) }
        });
        world.confrev(&["undo", "web"]).ok();
        world.wait_reads(&web, "demo", &["A", "A"]);
    }
}

#[test]
fn moves_with_nothing_to_do_say_so() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        let web = &reference(&web);
        let (a, b) = (world.snapshot_name("demo", "A"), world.snapshot_name("demo", "B"));
        let stored = || world.versions();
        world.wait_at_rest();
        let before = stored();
        for (line, said) in [
            (&["unpin", "web"][..], format!("{web}: nothing to unpin: ConfigMap/demo current\n")),
            (
                &["unpin", "web", "--source=demo"],
                format!("{web}: nothing to unpin: ConfigMap/demo current\n"),
            ),
            (&["roll", "web"], format!("{web}: nothing to roll: ConfigMap/demo current\n")),
            (&["resume", "web"], format!("{web}: already follows changes\n")),
        ] {
            assert_eq!(world.confrev(line).ok(), said);
        }
        // A pin of the present content would end with the next change.
        let refusal = world.confrev(&["pin", "web", "demo", &b]).failed(1);
        assert!(refusal.contains(&format!("kubectl confrev pause {web}")), "{refusal}");
        assert_eq!(stored(), before);
        world.confrev(&["pause", "web", "--dry-run=client"]).ok();
        world.confrev(&["pause", "web"]).ok();
        assert_eq!(world.confrev(&["pause", "web"]).ok(), format!("{web}: already paused\n"));
        world.confrev(&["pin", "web", "demo", &a]).ok();
        assert_eq!(world.confrev(&["pin", "web", "demo", &a]).ok(), format!("{web} already uses {a}\n"));
    });
}

/// `undo --hold` and `pin --hold` write the annotation, and `unpin` removes it and nothing else.
#[test]
fn undo_and_pin_hold_until_unpin() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        let name = &reference(&web);
        let (a, b) = (world.snapshot_name("demo", "A"), world.snapshot_name("demo", "B"));
        let annotations = || world.live(&web)["metadata"]["annotations"].clone();
        let hold = || annotations()["confrev.dev/hold"].clone();
        let dry = world.confrev(&["undo", "web", "--hold", "--dry-run"]).ok();
        assert_eq!(
            dry,
            format!("{name}: demo rolls from {b} to {a}, and is held there (dry run: nothing was written)\n")
        );
        assert_eq!(hold(), Value::Null);
        world.confrev(&["undo", "web", "--hold"]).ok();
        assert_eq!((hold(), world.resolved(&web, "demo").as_ref()), (json!(a), Some(&a)));
        world.apply(&web.manifest()).ok();
        assert_eq!(world.resolved(&web, "demo").as_ref(), Some(&a));
        assert!(world.confrev(&["status"]).ok().contains("held: demo"));
        assert_eq!(world.confrev_json(&["status", "web"])[0]["sources"][0]["state"], "held");
        let impact = world.confrev(&["impact", "demo"]).ok();
        assert!(impact.contains("no") && impact.contains(&format!("held at {a}")), "{impact}");
        let refusal = world.confrev(&["wait", "configmap/demo", "--timeout=60s"]).failed(3);
        assert!(refusal.contains("kubectl confrev unpin"), "{refusal}");

        // A hold is moved by a hold only.
        for line in [&["pin", "web", "demo", &a][..], &["undo", "web"]] {
            let said = world.confrev(line);
            assert!(said.code == 0 || said.stderr.contains("add --hold"), "{said:?}");
            assert_eq!(hold(), a);
        }
        let said = world.confrev(&["pin", "web", "demo", &b, "--hold"]).ok();
        assert_eq!(said, format!("{name}: demo rolls from {a} to {b}, and is held there\n"));
        assert_eq!((hold(), world.resolved(&web, "demo").as_ref()), (json!(b), Some(&b)));
        world.set_config("demo", "C");
        world.snapshot_name("demo", "C");
        world.wait_at_rest();
        assert_eq!(world.resolved(&web, "demo").as_ref(), Some(&b), "the present content was held");

        let before = annotations();
        let said = world.confrev(&["unpin", "web"]).ok();
        assert_eq!(said, format!("{name}: the hold ends: rolls to the present content of demo\n"));
        world.wait_resolved(&web, "demo", "C");
        let mut wanted = before;
        wanted.as_object_mut().unwrap().remove("confrev.dev/hold");
        for changed in ["confrev.dev/state", "confrev.dev/roll"] {
            wanted[changed] = annotations()[changed].clone();
        }
        let mut found = annotations();
        for ours in ["deployment.kubernetes.io/revision", "rollout.argoproj.io/revision"] {
            for all in [&mut wanted, &mut found] {
                all.as_object_mut().unwrap().remove(ours);
            }
        }
        assert_eq!(found, wanted, "nothing else is removed");
    });
}

/// The answer names the annotation, and nothing is written.
#[test]
fn hold_of_no_snapshot_is_refused_when_written() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        let before = world.live(&web)["metadata"]["annotations"].clone();
        let both = world.snapshots().iter().map(name_of).collect::<Vec<_>>().join(",");
        for name in [
            "demo",
            "demo-0123456789",
            "secret/demo-0123456789",
            "pod/web",
            "kube-system/demo-0123456789",
            "Bad_Name",
            ",",
            "",
            &both,
        ] {
            let annotate =
                world.kubectl(&["annotate", &web.reference(), &format!("confrev.dev/hold={name}")]);
            let said = annotate.refused();
            assert!(said.contains("annotation confrev.dev/hold"), "{name}: {said}");
        }
        assert_eq!(world.live(&web)["metadata"]["annotations"], before);
    });
}

/// The Events of a hold differ from those of an undo, and the gauge counts the workload.
#[test]
fn holds_are_reported_and_counted() {
    let confrev = running();
    each_kind(|kind| {
        let (world, _) = rolled(kind);
        let told = |reason: &str| {
            wait_for(&format!("the Event {reason}"), LIMIT, || {
                let events = world.cluster.list("events", world.name(), "");
                let about = |event: &&Value| event["reason"] == reason;
                let mut kinds: Vec<_> = events
                    .iter()
                    .filter(about)
                    .map(|event| event["involvedObject"]["kind"].as_str().unwrap_or_default().to_owned())
                    .collect();
                kinds.sort();
                if kinds.len() == 2 { Ok(kinds) } else { Err(format!("{kinds:?}")) }
            })
        };
        world.confrev(&["undo", "web", "--hold"]).ok();
        let kinds = told("Held");
        assert!(kinds.contains(&"ConfigMap".to_owned()), "{kinds:?}");
        wait_for("the gauge", LIMIT, || (confrev.metric("confrev_on_hold_workloads") >= 1.0).then_some(()));
        world.confrev(&["unpin", "web"]).ok();
        told("HoldEnded");
        let events = world.cluster.list("events", world.name(), "");
        assert!(events.iter().all(|event| event["reason"] != "Pinned" && event["reason"] != "Unpinned"));
    });
}

/// The numbers are those that kubectl and Argo Rollouts show.
#[test]
fn undo_rolls_back_to_numbered_revision() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        world.set_config("demo", "C");
        world.wait_reads(&web, "demo", &["C", "C"]);
        world.wait_at_rest();
        let tree = world.confrev(&["tree", "web", "--all"]).ok();
        let line = tree.lines().find(|line| line.contains("   revision 1   "));
        assert!(line.is_some(), "{tree}");
        let refusal = world.confrev(&["undo", "web", "--to-revision=9"]).failed(1);
        assert!(refusal.contains("no revision 9"), "{refusal}");
        let said = world.confrev(&["undo", "web", "--to-revision=3"]).ok();
        assert!(said.contains("already uses the config of revision 3"), "{said}");
        world.confrev(&["undo", "web", "--to-revision=1"]).ok();
        world.wait_reads(&web, "demo", &["A", "A"]);
    });
}

/// The workload keeps its snapshot while the source is deleted, and rolls nowhere when it is restored.
#[test]
fn restore_creates_deleted_source() {
    let _confrev = running();
    let (world, web) = rolled(Kind::Deployment);
    let b = world.snapshot_name("demo", "B");
    let refusal = world.confrev(&["restore", "demo", "--yes"]).failed(1);
    assert!(refusal.contains("ConfigMap \"demo\" exists"), "{refusal}");
    world.delete("configmap", "demo");
    world.wait_at_rest();
    let source = || world.cluster.get("configmap", world.name(), "demo");

    let said = world.confrev(&["restore", "demo", "--dry-run"]).ok();
    assert!(said.contains("+B") && said.contains("nothing was written"), "{said}");
    assert_eq!(source(), None);
    let view = ["create", "rolebinding", "view", "--clusterrole=view", "--user=viewer"];
    world.kubectl(&view).ok();
    let refusal = wait_for("the right to read", LIMIT, || {
        let said = world.confrev(&["restore", "demo", "--yes", "--as=viewer"]);
        if said.stderr.contains("cannot create") { Ok(said) } else { Err(said.stderr) }
    });
    assert!(refusal.failed(1).contains("\"viewer\""));
    assert_eq!(source(), None);

    let generation = world.live(&web)["metadata"]["generation"].clone();
    let said = world.confrev(&["restore", "demo", "--yes"]).ok();
    assert!(said.contains(&format!("created with the content of {b}")), "{said}");
    let restored = source().expect("the source exists");
    assert_eq!((&restored["data"], &restored["immutable"]), (&json!({"text": "B"}), &Value::Null));
    assert_eq!(restored["metadata"]["labels"], Value::Null);
    world.wait_at_rest();
    assert_eq!(world.live(&web)["metadata"]["generation"], generation);
    let refusal = world.confrev(&["restore", "other", "--yes"]).failed(1);
    assert!(refusal.contains("nor does a snapshot of it"), "{refusal}");
}
