//! What holds for every kind alike. A new kind has a row in `load::KINDS`, and with it all of this.

use std::thread;
use std::time::Duration;

use confrev::kinds::Kinds;
use confrev_controlplane::{holds_for, wait_for};
use serde_json::json;

use crate::load::{KINDS, Load, wait_owner};
use crate::manifests::{config_map, list};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, snapshot_of};

/// Does the same for each kind, at the same time.
fn each(rolls: &[bool], body: impl Fn(&World, Load) + Sync) {
    thread::scope(|scope| {
        for kind in KINDS.iter().filter(|kind| rolls.contains(&kind.rolls)) {
            let body = &body;
            let named = thread::Builder::new().name(kind.name.to_owned());
            let load = Load::new(kind.resource, "web", &["demo"]);
            named.spawn_scoped(scope, move || body(&World::new("each"), load)).expect("a thread");
        }
    });
}

/// Those whose stored templates can change.
fn each_that_rolls(body: impl Fn(&World, Load) + Sync) {
    each(&[true], body);
}

#[test]
fn every_built_in_kind_is_among_those_of_these_tests() {
    for kind in Kinds::default().iter() {
        let row = KINDS.iter().find(|row| row.name == kind.kind);
        let row = row.unwrap_or_else(|| panic!("{kind} has no row"));
        let template = Load::new(row.resource, "web", &["demo"]).template;
        assert_eq!((template, row.rolls), (kind.template_pointer().as_str(), kind.rolls), "{kind}");
    }
}

#[test]
fn every_kind_is_resolved_when_it_is_created_is_told_of_its_owner_and_is_quiet_when_it_is_applied_again() {
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
        holds_for("what is stored", Duration::from_secs(3), || {
            expect(&web.decided(world), &decided)?;
            expect(&web.changes(world), &changes)
        });
    });
}

#[test]
fn every_kind_is_resolved_once_its_config_map_comes_and_goes_back_to_an_earlier_content() {
    let _confrev = running();
    each(&[true, false], |world, web| {
        let applied = web.apply(world);
        assert!(applied.stderr.contains("does not exist"), "{applied}");
        applied.ok();
        world.set_config("demo", "A");
        if !web.kind().rolls {
            let as_written = || expect(&snapshot_of(&web.stored(world), "demo"), &None::<String>);
            return holds_for("what cannot change", Duration::from_secs(4), as_written);
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

#[test]
fn every_kind_changes_once_where_its_config_map_is_applied_with_it() {
    let _confrev = running();
    each(&[true, false], |world, mut web| {
        world.apply(&list(&[config_map("demo", "A"), web.manifest.clone()])).ok();
        web.resolves_to(world, "demo", "A").unwrap();
        if !web.kind().rolls {
            return;
        }
        let before = wait_for("its first revision", LIMIT, || Some(web.changes(world)).filter(|n| *n > 0));

        let mut manifest = web.manifest.clone();
        let image = format!("{}/spec/containers/0/image", web.template);
        *manifest.pointer_mut(&image).expect("it has an image") = json!("app:2");
        world.apply(&list(&[config_map("demo", "B"), manifest.clone()])).ok();
        web.resolves_to(world, "demo", "B").unwrap();
        wait_for("the change", LIMIT, || expect(&web.changes(world), &(before + 1)));
        holds_for("one change", Duration::from_secs(3), || expect(&web.changes(world), &(before + 1)));
        web.manifest = manifest;
        web.apply(world).ok();
        assert_eq!(web.changes(world), before + 1);
    });
}

#[test]
fn every_kind_keeps_what_it_was_put_back_to_until_its_config_map_changes_again() {
    let _confrev = running();
    each_that_rolls(|world, web| {
        world.set_config("demo", "A");
        // What a kind without revisions is put back to is nobody's meanwhile.
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
        holds_for("what it was put back to", Duration::from_secs(4), || web.resolves_to(world, "demo", "A"));
        world.set_config("demo", "C");
        web.wait_resolved(world, "demo", "C");
    });
}

#[test]
fn every_kind_keeps_its_snapshot_while_its_config_map_is_gone_and_takes_the_next_one_up() {
    let _confrev = running();
    each_that_rolls(|world, web| {
        world.set_config("demo", "A");
        web.apply(world).ok();
        web.resolves_to(world, "demo", "A").unwrap();
        world.delete("configmap", "demo");
        // From the manifest, with the name of the source in it.
        let applied = web.apply(world);
        assert!(applied.stderr.is_empty() || applied.stderr.contains("no longer exists"), "{applied}");
        applied.ok();
        // Beyond the time after which unowned snapshots are swept.
        holds_for("its snapshot", Duration::from_secs(7), || web.resolves_to(world, "demo", "A"));
        world.set_config("demo", "B");
        web.wait_resolved(world, "demo", "B");
    });
}

#[test]
fn every_kind_has_the_names_of_its_sources_back_once_it_opts_out_and_snapshots_once_it_opts_in_again() {
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
fn every_kind_takes_the_newest_when_it_is_told_to_where_it_does_not_track() {
    let _confrev = running();
    each_that_rolls(|world, web| {
        let web = web.annotation("track", "false");
        world.set_config("demo", "A");
        web.apply(world).ok();
        world.set_config("demo", "B");
        holds_for("A", Duration::from_secs(3), || web.resolves_to(world, "demo", "A"));
        web.annotate(world, "roll", Some("now"));
        web.resolves_to(world, "demo", "B").unwrap();
        // Told to track later, it catches up.
        world.set_config("demo", "C");
        web.annotate(world, "track", None);
        web.wait_resolved(world, "demo", "C");
    });
}
