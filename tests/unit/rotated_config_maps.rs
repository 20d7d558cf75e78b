//! ConfigMaps that the platform rotates: the built-in names, and the configured ones.

use confrev::{
    annotations,
    resolve::{Health, Record, Workload},
    snapshot::Rotated,
};
use serde_json::{Value, json};

use super::{
    controller::Desk,
    world::{World, annotate, configmap, deployment, kind, volume},
};

fn world(rotated: &[&str]) -> World {
    let rotated = Rotated::with(rotated.iter().map(|name| (*name).to_owned()));
    let mut world = World { rotated, ..World::default() };
    for name in ["demo", "bundle", "istio-ca-root-cert"] {
        world.set(name, json!({"k": "v"}));
    }
    world
}

fn sources_used(stored: &Value, rotated: &Rotated) -> Vec<String> {
    let kind = kind("Deployment");
    let record = Record::of(&Workload::read(&kind, stored).unwrap(), Health::Settled, rotated);
    record.uses.iter().map(|used| used.source.name.to_string()).collect()
}

#[test]
fn references_to_rotated_configmaps_stay_as_written() {
    let workload = deployment(&["demo", "bundle", "istio-ca-root-cert"]);
    for (rotated, stays) in [(&["bundle"][..], true), (&[], false), (&["bundles", "bund"], false)] {
        let mut world = world(rotated);
        let stored = world.create(&workload);
        assert_ne!(volume(&stored, 0), "demo");
        assert_eq!(volume(&stored, 1) == "bundle", stays, "{rotated:?}");
        assert_eq!(volume(&stored, 2), "istio-ca-root-cert");
        // The controller does not read them, and their changes cause no roll.
        let used = sources_used(&stored, &world.rotated);
        assert_eq!(used.contains(&"bundle".to_owned()), !stays, "{used:?}");
        assert!(!used.contains(&"istio-ca-root-cert".to_owned()), "{used:?}");
    }
}

/// A snapshot's name in a reference becomes the ConfigMap's name again.
#[test]
fn newly_rotated_configmap_returns_to_its_name() {
    let mut world = world(&[]);
    let stored = world.create(&deployment(&["demo", "bundle"]));
    assert_ne!(volume(&stored, 1), "bundle");
    world.rotated = Rotated::with(["bundle".to_owned()]);
    let mut poked = stored.clone();
    annotate(&mut poked, annotations::ROLL, "auto-2026-01-02T03:04:05.678Z *");
    let poked = world.update(&poked, &stored);
    assert_eq!((volume(&poked, 0), volume(&poked, 1)), (volume(&stored, 0), "bundle"));
}

#[test]
fn rotated_configmap_is_not_snapshotted_by_its_label() {
    for (rotated, wanted) in [(&["demo"][..], 0), (&[], 1)] {
        let mut desk = Desk::new();
        let names = rotated.iter().map(|name| (*name).to_owned());
        desk.state = desk.state.leaving(Rotated::with(names));
        desk.state.set_labelled(&super::controller::name(&configmap("demo").name), true, desk.now);
        assert_eq!(desk.actions().len(), wanted, "{rotated:?}");
    }
}
