//! Tests of every kind. A new kind needs a row in `any_kind::KINDS`, and all these tests cover it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use confrev::kinds::Kinds;
use confrev_controlplane::{holds_for, wait_for};
use serde_json::json;

use crate::any_kind::{KINDS, Load, wait_owner};
use crate::manifests::{config_map, list};
use crate::shared::running;
use crate::threads::in_threads;
use crate::world::{LIMIT, World, expect, snapshot_of};

/// Runs the body for each kind in parallel.
fn each(rolls: &[bool], body: impl Fn(&World, Load) + Sync) {
    let kinds = KINDS.iter().filter(|kind| rolls.contains(&kind.rolls));
    let loads = kinds.map(|kind| (kind.name.to_owned(), Load::new(kind.resource, "web", &["demo"])));
    in_threads(loads, |load| body(&World::new("each"), load));
}

/// Runs the body for the kinds whose stored templates can change.
fn each_that_rolls(body: impl Fn(&World, Load) + Sync) {
    each(&[true], body);
}

#[test]
fn every_built_in_kind_has_a_row() {
    for kind in Kinds::default().iter() {
        let row = KINDS.iter().find(|row| row.name == kind.kind);
        let row = row.unwrap_or_else(|| panic!("{kind} has no row"));
        let template = Load::new(row.resource, "web", &["demo"]).template;
        assert_eq!((template, row.rolls), (kind.template_pointer().as_str(), kind.rolls), "{kind}");
    }
}

/// Its snapshot is bound to the workload.
#[test]
fn every_kind_resolves_on_create_and_reapplies_unchanged() {
    let _confrev = running();
    each(&[true, false], |world, web| {
        world.set_config("demo", "A");
        web.apply(world).ok();
        web.resolves_to(world, "demo", "A").unwrap();
        assert_eq!(wait_owner(world, "demo", "A", web.kind().name), "web");
        wait_for("its first revision", LIMIT, || if web.changes(world) > 0 { Ok(()) } else { Err("none") });
        let decided = web.decided(world);
        let changes = web.changes(world);
        web.apply(world).ok();
        web.apply(world).ok();
        holds_for("the stored object", Duration::from_secs(3), || {
            expect(&web.decided(world), &decided)?;
            expect(&web.changes(world), &changes)
        });
    });
}

/// The workload also returns to an earlier content.
#[test]
fn every_kind_resolves_when_its_config_map_appears() {
    let _confrev = running();
    each(&[true, false], |world, web| {
        let applied = web.apply(world);
        assert!(applied.stderr.contains("does not exist"), "{applied}");
        applied.ok();
        world.set_config("demo", "A");
        if !web.kind().rolls {
            let as_written = || expect(&snapshot_of(&web.stored(world), "demo"), &None::<String>);
            return holds_for("a template that cannot change", Duration::from_secs(4), as_written);
        }
        web.wait_resolved(world, "demo", "A");
        let first = web.decided(world);

        world.set_config("demo", "B");
        web.wait_resolved(world, "demo", "B");
        world.set_config("demo", "A");
        web.wait_resolved(world, "demo", "A");
        assert_eq!(web.decided(world), first);
    });
}

/// On a busy machine, both writes may take longer than a change settles, and are then two changes.
#[test]
fn every_kind_rolls_once_with_its_config_map() {
    const TRIES: usize = 8;
    let _confrev = running();
    each(&[true, false], |world, web| {
        let is_one = rolls_once(world, web.clone())
            || (1..TRIES).any(|_| rolls_once(&World::new("each"), web.clone()));
        assert!(is_one, "{}: {TRIES} times, two writes took longer than a change settles", web.reference());
    });
}

/// One user changes the ConfigMap and the image, as one apply of both does. Returns whether both were one change.
fn rolls_once(world: &World, mut web: Load) -> bool {
    world.apply(&list(&[config_map("demo", "A"), web.manifest.clone()])).ok();
    web.resolves_to(world, "demo", "A").unwrap();
    if !web.kind().rolls {
        return true;
    }
    let before = wait_for("its first revision", LIMIT, || Some(web.changes(world)).filter(|n| *n > 0));

    let image = format!("{}/spec/containers/0/image", web.template);
    *web.manifest.pointer_mut(&image).expect("the container has an image") = json!("app:2");
    {
        // One pair of writes at a time, so that they delay no others.
        static WRITES: Mutex<()> = Mutex::new(());
        let _turn = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        world.set_config("demo", "B");
        web.patch(world, &web.manifest);
        // A change settles for three seconds. It began after `start`.
        if start.elapsed() > Duration::from_millis(2500) {
            return false;
        }
    }
    web.resolves_to(world, "demo", "B").unwrap();
    wait_for("the change", LIMIT, || expect(&web.changes(world), &(before + 1)));
    holds_for("one change", Duration::from_secs(3), || expect(&web.changes(world), &(before + 1)));
    web.apply(world).ok();
    assert_eq!(web.changes(world), before + 1);
    true
}

#[test]
fn every_kind_holds_an_undo_until_next_change() {
    let _confrev = running();
    each_that_rolls(|world, web| {
        world.set_config("demo", "A");
        // A kind without revisions has no other owner of the earlier snapshot.
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/keep=2"]).ok();
        web.apply(world).ok();
        web.resolves_to(world, "demo", "A").unwrap();
        let before = wait_for("its first revision", LIMIT, || Some(web.changes(world)).filter(|n| *n > 0));
        let first = web.stored(world);
        world.set_config("demo", "B");
        web.wait_resolved(world, "demo", "B");
        wait_for("the change", LIMIT, || expect(&web.changes(world), &(before + 1)));

        web.undo(world, &first);
        web.wait_resolved(world, "demo", "A");
        holds_for("the undo", Duration::from_secs(4), || web.resolves_to(world, "demo", "A"));
        world.set_config("demo", "C");
        web.wait_resolved(world, "demo", "C");
    });
}

/// Whatever a request names, and whatever the source holds.
#[test]
fn every_kind_holds_its_snapshot_until_unheld() {
    let _confrev = running();
    each_that_rolls(|world, web| {
        world.set_config("demo", "A");
        // A kind without revisions has no other owner of the earlier snapshot.
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/keep=2"]).ok();
        web.apply(world).ok();
        world.set_config("demo", "B");
        web.wait_resolved(world, "demo", "B");
        let snapshot = world.snapshot_name("demo", "A");
        web.annotate(world, "hold", Some(&snapshot));
        web.resolves_to(world, "demo", "A").unwrap();
        assert!(wait_owner(world, "demo", "A", web.kind().name) == "web");
        let before = web.decided(world);
        for text in ["C", "D"] {
            world.set_config("demo", text);
            web.apply(world).ok();
            web.annotate(world, "roll", Some(text));
            holds_for("the hold", Duration::from_secs(2), || expect(&web.decided(world), &before));
        }
        web.annotate(world, "hold", None);
        web.resolves_to(world, "demo", "D").unwrap();
    });
}

/// When the ConfigMap is created again, the workload rolls to it.
#[test]
fn every_kind_keeps_snapshot_of_deleted_config_map() {
    let _confrev = running();
    each_that_rolls(|world, web| {
        world.set_config("demo", "A");
        web.apply(world).ok();
        web.resolves_to(world, "demo", "A").unwrap();
        // Until then the source is the only owner, and the snapshot is deleted with it and created again.
        assert_eq!(wait_owner(world, "demo", "A", web.kind().name), "web");
        world.delete("configmap", "demo");
        // From the manifest, which has the source's name.
        let applied = web.apply(world);
        assert!(applied.stderr.is_empty() || applied.stderr.contains("no longer exists"), "{applied}");
        applied.ok();
        // Longer than unowned snapshots are kept.
        holds_for("its snapshot", Duration::from_secs(7), || web.resolves_to(world, "demo", "A"));
        world.set_config("demo", "B");
        web.wait_resolved(world, "demo", "B");
    });
}

/// Its pods read the source itself until then, and start as soon as the key exists.
#[test]
fn every_kind_waits_for_a_required_key() {
    let _confrev = running();
    each(&[true, false], |world, mut web| {
        let mut empty = config_map("demo", "");
        empty["data"] = json!({});
        world.apply(&empty).ok();
        let pods = web.manifest.pointer_mut(web.template).expect("the manifest has a template");
        pods["spec"]["volumes"][0]["configMap"]["items"] = json!([{"key": "text", "path": "text"}]);
        let applied = web.apply(world);
        assert!(applied.stderr.contains("has no key \"text\""), "{applied}");
        applied.ok();
        let as_written = || {
            let template = web.stored(world);
            expect(&template["spec"]["volumes"][0]["configMap"]["name"], &json!("demo"))
        };
        holds_for("the reference", Duration::from_secs(3), as_written);
        world.set_config("demo", "A");
        if web.kind().rolls {
            web.wait_resolved(world, "demo", "A");
        } else {
            holds_for("the reference of a Job", Duration::from_secs(3), as_written);
        }
    });
}

/// Its references change to the sources' names, and back to snapshots.
#[test]
fn every_kind_can_opt_out_and_in_again() {
    let _confrev = running();
    each_that_rolls(|world, web| {
        world.set_config("demo", "A");
        web.apply(world).ok();
        web.resolves_to(world, "demo", "A").unwrap();
        let label = |value| world.kubectl(&["label", &web.reference(), value, "--overwrite"]).ok();
        for out in ["confrev.dev/enabled=false", "confrev.dev/enabled-"] {
            label(out);
            let template = web.stored(world);
            assert_eq!(template["spec"]["volumes"][0]["configMap"]["name"], "demo", "{out}");
            assert!(!template.to_string().contains("confrev.dev/"), "{template}");
            label("confrev.dev/enabled=true");
            web.resolves_to(world, "demo", "A").unwrap();
        }
    });
}

#[test]
fn every_untracked_kind_rolls_on_request() {
    let _confrev = running();
    each_that_rolls(|world, web| {
        let web = web.annotation("track", "false");
        world.set_config("demo", "A");
        web.apply(world).ok();
        world.set_config("demo", "B");
        holds_for("A", Duration::from_secs(3), || web.resolves_to(world, "demo", "A"));
        web.annotate(world, "roll", Some("now"));
        web.resolves_to(world, "demo", "B").unwrap();
        // When it tracks again, it rolls to the missed change.
        world.set_config("demo", "C");
        web.annotate(world, "track", None);
        web.wait_resolved(world, "demo", "C");
    });
}
