//! A template names a snapshot that does not exist: the reference is one to its source.

use confrev::{annotations, snapshot::source_of_name};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, world},
    world::{World, annotate, annotation, deployment, kind, template, volume},
};

/// The manifest of a workload from an export, with or without the annotation that lists its snapshots.
fn exports() -> [Value; 2] {
    let listed = world("blue").create(&deployment(&["demo"]));
    assert_eq!(volume(&listed, 0), BLUE);
    [listed, deployment(&[BLUE])]
}

/// The names of sources and snapshots in `sources`.
fn sources(object: &Value) -> Value {
    annotation(&template(object)["metadata"], annotations::SOURCES)
}

#[test]
fn exported_workload_awaits_its_source() {
    for export in exports() {
        let mut world = World::default();
        let admitted = world.admit(&export, None);
        assert_eq!(volume(&admitted.object, 0), "demo");
        let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
        assert!(warning.contains("ConfigMap \"demo\" does not exist"), "{warning}");
        let stored = admitted.object;
        assert_eq!(world.update(&stored, &stored), stored, "another review changes nothing");
        let unseen = unseen(&export);
        assert_eq!(volume(&world.update(&unseen, &unseen), 0), "demo", "no webhook saw the creation");
        world.set("demo", json!({"color": "green"}));
        let rolled = poke(&mut world, &stored, 1);
        assert_eq!((volume(&rolled, 0), sources(&rolled)), (GREEN, json!({"configmaps": {"demo": GREEN}})));
    }
}

#[test]
fn export_resolves_after_its_snapshot_was_collected() {
    for export in exports() {
        let mut world = world("green");
        assert_eq!(volume(&world.clone().create(&export), 0), GREEN, "a creation");
        // An update of a workload that has another snapshot, that names the source, or that dangles: no webhook saw the write.
        let of_green = world.create(&deployment(&["demo"]));
        for stored in [of_green, unseen(&export)] {
            let mut new = stored.clone();
            new["spec"] = export["spec"].clone();
            let updated = world.update(&new, &stored);
            assert_eq!(
                (volume(&updated, 0), sources(&updated)),
                (GREEN, json!({"configmaps": {"demo": GREEN}}))
            );
            assert_eq!(world.update(&new, &updated), updated, "the same apply again");
        }
    }
}

/// The same workload, stored while no webhook was called.
fn unseen(export: &Value) -> Value {
    let mut unseen = export.clone();
    unseen["spec"]["template"]["metadata"].as_object_mut().unwrap().remove("annotations");
    unseen
}

/// An object of that name is what the reference means, and so it is for a reference that stays as written.
#[test]
fn existing_or_excluded_name_stays() {
    let mut world = world("green");
    world.set(BLUE, json!({"color": "mine"}));
    let own = world.create(&deployment(&[BLUE]));
    assert_eq!(sources(&own)["configmaps"][BLUE], json!(volume(&own, 0)), "it is a source itself");
    world.remove(BLUE);
    let mut excluded = deployment(&[BLUE]);
    annotate(&mut excluded, annotations::EXCLUDE, BLUE);
    assert_eq!(volume(&world.create(&excluded), 0), BLUE);
    let mut denies = deployment(&[BLUE]);
    annotate(&mut denies, annotations::MISSING, "deny");
    world.remove("demo");
    let denial = world.review(&kind("Deployment"), &denies, None).decision.denial.unwrap();
    assert!(denial.contains("ConfigMap \"demo\" does not exist"), "{denial}");
}

/// Two or three of 100 hashes of kustomize look like those of a snapshot. Where the workload comes first, its ConfigMap has that name.
#[test]
fn generated_name_awaits_its_config_map() {
    const GENERATED: &str = "demo-24567bcdf9";
    let mut world = World::default();
    let stored = world.create(&deployment(&[GENERATED]));
    assert_eq!(volume(&stored, 0), GENERATED);
    world.set(GENERATED, json!({"color": "green"}));
    let rolled = poke(&mut world, &stored, 1);
    assert!(volume(&rolled, 0).starts_with("demo-24567bcdf9-"), "{}", volume(&rolled, 0));
    let mut listed = deployment(&[GENERATED]);
    listed["spec"]["template"]["metadata"]["annotations"] =
        json!({annotations::SOURCES: json!({"configmaps": {"demo": GENERATED}}).to_string()});
    assert_eq!(volume(&World::default().create(&listed), 0), "demo", "the export says what it is");
}

#[test]
fn form_of_name_shows_its_source() {
    let (ten, spare) = ("0123456789", "0123456789".repeat(3));
    for (name, source) in [
        (format!("demo-{ten}"), Some("demo")),
        (format!("demo-v1-{ten}{}", &ten[..6]), Some("demo-v1")),
        (format!("demo-{spare}"), Some("demo")),
        (format!("demo-{}", &ten[..9]), None),
        (format!("demo-{ten}a"), None),
        ("demo-5hg2k8mf2t".to_owned(), None),
        (format!("-{ten}"), None),
        (ten.to_owned(), None),
    ] {
        assert_eq!(source_of_name(&name), source, "{name}");
    }
}
