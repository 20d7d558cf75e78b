//! Settings that workloads and sources inherit from their namespace or from the installation.

use confrev::annotations;
use confrev::resolve::{Defaults, Health, Observed, Present, Record, Workload, is_pending};
use confrev::snapshot::{Rotated, SourceKind};
use serde_json::json;

use super::{
    story::{BLUE, undo, world},
    world::{annotate, configmap, deployment, kind, volume},
};

fn defaults(key: &'static str, value: &'static str) -> Defaults {
    Defaults::of_namespace(|wanted| (wanted == key).then_some(value))
}

/// The controller agrees with admission: nothing is pending that a write would leave as it is.
#[test]
fn namespace_excludes_by_pattern_and_label() {
    let mut world = world("blue");
    world.set("team-rules", json!({"n": "1"}));
    world.set_object(
        "dash",
        json!({"metadata": {"name": "dash", "uid": "uid-dash", "labels": {"grafana_dashboard": "1"}}, "data": {"n": "1"}}),
    );
    let object = deployment(&["demo", "team-rules", "dash"]);
    let names = |object: &serde_json::Value| [0, 1, 2].map(|at| volume(object, at).to_owned());
    let is_pending_in = |world: &super::world::World, stored: &serde_json::Value, defaults: &Defaults| {
        let (kind, text) = (kind("Deployment"), stored.to_string());
        let workload = Workload::parse(&kind, &text).unwrap().under(defaults.clone());
        let record = Record::of(&workload, Health::Settled, &Rotated::default());
        is_pending(&record, |source| {
            let json = world.objects.get(source)?.to_string();
            Some(Present::from(&Observed::read(SourceKind::ConfigMap, json.into_bytes()).unwrap()))
        })
    };
    for (list, written) in [
        ("*-rules", [false, true, false]),
        ("grafana_dashboard=1", [false, false, true]),
        ("grafana_dashboard=*, *-rules", [false, true, true]),
        ("grafana_dashboard=0", [false; 3]),
    ] {
        world.defaults = defaults(annotations::EXCLUDE, list);
        let stored = world.clone().create(&object);
        let found = names(&stored);
        let as_written = [0, 1, 2].map(|at| found[at] == names(&object)[at]);
        assert_eq!(as_written, written, "{list}: {found:?}");
        assert!(!is_pending_in(&world, &stored, &world.defaults), "{list}");
        // Without the setting, what was left as written is pending.
        assert_eq!(is_pending_in(&world, &stored, &Defaults::default()), written.contains(&true), "{list}");
    }
    // What the workload excludes itself comes in addition.
    world.defaults = defaults(annotations::EXCLUDE, "*-rules");
    let mut own = object.clone();
    annotate(&mut own, annotations::EXCLUDE, "demo");
    let found = names(&world.create(&own));
    assert!(found[0] == "demo" && found[1] == "team-rules" && found[2].starts_with("dash-"), "{found:?}");
}

/// A reference to a snapshot returns to the name of its source, and the other way round.
#[test]
fn new_exclusion_of_namespace_changes_references() {
    let mut world = world("blue");
    let stored = world.create(&deployment(&["demo"]));
    assert_eq!(volume(&stored, 0), BLUE);
    world.defaults = defaults(annotations::EXCLUDE, "d*");
    let excluded = world.update(&stored, &stored);
    assert_eq!(volume(&excluded, 0), "demo");
    world.defaults = Defaults::default();
    assert_eq!(volume(&world.update(&excluded, &excluded), 0), BLUE);
    assert!(world.objects.contains_key(&configmap(BLUE)));
}

#[test]
fn own_annotation_comes_before_the_inherited_one() {
    let mut world = world("blue");
    world.defaults = defaults(annotations::MISSING, "deny");
    let mut object = deployment(&["gone"]);
    let denial = world.review(&kind("Deployment"), &object, None).decision.denial.unwrap();
    assert!(denial.contains("ConfigMap \"gone\""), "{denial}");
    annotate(&mut object, annotations::MISSING, "warn");
    assert_eq!(world.review(&kind("Deployment"), &object, None).decision.denial, None);

    world.defaults = defaults(annotations::ON_UNDO, "hold");
    for (own, is_held) in [(None, true), (Some("none"), false), (Some("hold"), true)] {
        let mut world = world.clone();
        let mut object = deployment(&["demo"]);
        if let Some(own) = own {
            annotate(&mut object, annotations::ON_UNDO, own);
        }
        let first = world.create(&object);
        world.set("demo", json!({"color": "green"}));
        let second = super::story::poke(&mut world, &first, 1);
        let undone = world.update(&undo(&second, &first), &second);
        let hold = &undone["metadata"]["annotations"][annotations::HOLD];
        assert_eq!(hold.is_string(), is_held, "{own:?}: {hold}");
    }
}

#[test]
fn source_inherits_max_in_flight() {
    let read = |annotations: serde_json::Value, defaults: Defaults| {
        let json = json!({"metadata": {"name": "demo", "annotations": annotations}, "data": {}}).to_string();
        let source = Observed::read(SourceKind::ConfigMap, json.into_bytes()).unwrap();
        let strategies =
            confrev::resolve::Strategies::parse(r#"{"few": {"max-in-flight": 2}}"#, None).unwrap();
        source.under(&strategies, None, defaults).spread_policy().max_in_flight
    };
    let three = || defaults(annotations::MAX_IN_FLIGHT, "3");
    assert_eq!(read(json!({}), three()), Some(3));
    assert_eq!(read(json!({annotations::MAX_IN_FLIGHT: "5"}), three()), Some(5));
    assert_eq!(read(json!({annotations::MAX_IN_FLIGHT: "none"}), three()), Some(3));
    assert_eq!(read(json!({annotations::STRATEGY: "few"}), three()), Some(2));
    assert_eq!(read(json!({}), Defaults::default()), None);
}

/// It takes its turn in the waves of the source, as with another mode of the source.
#[test]
fn return_to_excluded_source_waits_its_turn() {
    let mut world = world("blue");
    let stored = world.create(&deployment(&["demo"])).to_string();
    let (kind, demo) = (kind("Deployment"), configmap("demo"));
    let present = Present::from(&world.observe(&demo).unwrap());
    let member_state = |defaults: Defaults| {
        let workload = Workload::parse(&kind, &stored).unwrap().under(defaults);
        let view = confrev::resolve::WorkloadView {
            kind: &kind,
            path: ["ns", "web"],
            namespace_order: None,
            health: Health::Settled,
            source: &demo,
            present: &present,
            set: None,
        };
        Record::of(&workload, Health::Settled, &Rotated::default()).member_state(&view, |_| None)
    };
    let waits =
        |found: confrev::resolve::MemberState| matches!(found, confrev::resolve::MemberState::Waits(_));
    assert!(!waits(member_state(Defaults::default())));
    assert!(waits(member_state(defaults(annotations::EXCLUDE, "d*"))));
}

/// A name with the digits of a snapshot that does not exist is still one of its source.
#[test]
fn wildcard_keeps_no_name_of_a_missing_snapshot() {
    let mut world = world("blue");
    world.defaults = defaults(annotations::EXCLUDE, "demo-*");
    assert_eq!(volume(&world.create(&deployment(&["demo-0123456789"])), 0), BLUE);
}

/// Only an own list can name what the template does not have by mistake.
#[test]
fn inherited_exclusion_without_effect_is_no_mistake() {
    let mut world = world("blue");
    world.defaults = defaults(annotations::EXCLUDE, "ca-bundle");
    let mut object = deployment(&["demo"]);
    annotate(&mut object, annotations::EXCLUDE, "proxy");
    let warnings = world.admit(&object, None).decision.warnings;
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("ConfigMap \"proxy\""), "{warning}");
}
