//! What holds for every kind alike, seen on those that `tests/cluster` leaves out.

use std::thread;
use std::time::Duration;

use confrev_controlplane::holds_for;
use serde_json::json;

use crate::load::Load;
use crate::manifests::{config_map, list};
use crate::shared::running;
use crate::world::{World, expect};

const KINDS: [&str; 3] = ["statefulsets", "daemonsets", "cronjobs"];

/// Does the same for each kind, at the same time.
fn each(body: impl Fn(&World, Load) + Sync) {
    thread::scope(|scope| {
        for kind in KINDS {
            let body = &body;
            let named = thread::Builder::new().name(kind.to_owned());
            let load = Load::new(kind, "web", &["demo"]);
            named.spawn_scoped(scope, move || body(&World::new("each"), load)).expect("a thread");
        }
    });
}

#[test]
fn every_kind_is_resolved_once_its_config_map_comes_and_goes_back_to_an_earlier_content() {
    let _confrev = running();
    each(|world, web| {
        let applied = web.apply(world);
        assert!(applied.stderr.contains("does not exist"), "{applied}");
        applied.ok();
        world.set_config("demo", "A");
        web.wait_resolved(world, "demo", "A");
        let first = web.live(world).pointer(web.template).cloned();

        world.set_config("demo", "B");
        web.wait_resolved(world, "demo", "B");
        world.set_config("demo", "A");
        web.wait_resolved(world, "demo", "A");
        assert_eq!(web.live(world).pointer(web.template).cloned(), first);
    });
}

#[test]
fn every_kind_changes_once_where_its_config_map_is_applied_with_it() {
    let _confrev = running();
    each(|world, mut web| {
        world.apply(&list(&[config_map("demo", "A"), web.manifest.clone()])).ok();
        web.resolves_to(world, "demo", "A").unwrap();
        let generation = || web.live(world)["metadata"]["generation"].as_i64();
        let before = generation().expect("a number");

        let mut manifest = web.manifest.clone();
        let image = format!("{}/spec/containers/0/image", web.template);
        *manifest.pointer_mut(&image).expect("it has an image") = json!("app:2");
        world.apply(&list(&[config_map("demo", "B"), manifest.clone()])).ok();
        web.resolves_to(world, "demo", "B").unwrap();
        holds_for("one change", Duration::from_secs(3), || expect(&generation(), &Some(before + 1)));
        web.manifest = manifest;
        web.apply(world).ok();
        assert_eq!(web.live(world)["metadata"]["generation"], before + 1);
    });
}

#[test]
fn every_kind_has_the_names_of_its_sources_back_once_it_opts_out() {
    let _confrev = running();
    each(|world, web| {
        world.set_config("demo", "A");
        web.apply(world).ok();
        web.resolves_to(world, "demo", "A").unwrap();
        world.kubectl(&["label", &web.reference(), "confrev.dev/enabled=false", "--overwrite"]).ok();
        let live = web.live(world);
        let template = live.pointer(web.template).expect("it has a template");
        assert_eq!(template["spec"]["volumes"][0]["configMap"]["name"], "demo");
        assert!(!template.to_string().contains("confrev.dev/"), "{template}");
    });
}
