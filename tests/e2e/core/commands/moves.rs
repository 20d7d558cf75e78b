//! Undo, pin, unpin and restore: commands that report success have an effect.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use super::Commands as _;
use super::effects::{reference, rolled};
use crate::manifests::{Kind, Workload};
use crate::shared::{exclusive, running};
use crate::world::{LIMIT, World, each_kind};

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
        assert_eq!(said, format!("{}: demo rolls from {b} to {a}\n", reference(&web)));
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
        for part in ["confrev did not answer", &reference(&web), "nothing was written"] {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
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
        assert_eq!(
            world.confrev(&["pause", "web"]).ok(),
            format!("{web}: already does not follow changes\n")
        );
        world.confrev(&["pin", "web", "demo", &a]).ok();
        assert_eq!(world.confrev(&["pin", "web", "demo", &a]).ok(), format!("{web} already uses {a}\n"));
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
        let line = tree.lines().find(|line| line.contains("number 1 ") || line.contains("number 1   "));
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
