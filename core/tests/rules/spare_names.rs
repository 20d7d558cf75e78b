//! Names of snapshots when objects of others have those that follow from the content.

use confrev::{
    annotations,
    resolve::{Carried, Facts, NamespaceFacts, Need, Pass, Request, Spares, Workload, resolve},
    snapshot::{DIGITS, Digest, SPARE_DIGITS, snapshot_name, spare_name},
};
use serde_json::json;

use super::{
    story::world,
    world::{World, annotate, configmap, deployment, kind, volume},
};

const DATA: &str = "blue";

fn digest(world: &World) -> Digest {
    world.observe(&configmap("demo")).unwrap().digest()
}

fn digits(last: char) -> String {
    format!("{}{last}", "0".repeat(SPARE_DIGITS - 1))
}

/// A world in which objects of others have all names that follow from the content.
fn occupied() -> (World, Digest) {
    let mut world = world(DATA);
    let digest = digest(&world);
    for count in DIGITS {
        let name = snapshot_name("demo", &digest, count);
        world.objects.insert(configmap(&name), json!({"metadata": {"name": name}, "data": {}}));
    }
    world.spares.digits = digits('a');
    (world, digest)
}

#[test]
fn occupied_names_refuse_no_workload() {
    let (mut world, digest) = occupied();
    let stored = world.create(&deployment(&["demo"]));
    assert_eq!(volume(&stored, 0), spare_name("demo", &digest, &digits('a')));
    let snapshot = world.observe(&configmap(volume(&stored, 0))).unwrap();
    assert!(snapshot.is_snapshot_of("demo", &digest));
    // The next decisions draw other digits, and keep the name.
    world.spares.digits = digits('b');
    assert_eq!(world.update(&stored, &stored), stored);
    let mut applied = stored.clone();
    applied["spec"]["template"] = deployment(&["demo"])["spec"]["template"].clone();
    assert_eq!(world.update(&applied, &stored), stored);
}

#[test]
fn known_snapshot_with_random_digits_is_used_again() {
    let (mut world, digest) = occupied();
    let first = world.create(&deployment(&["demo"]));
    let taken = spare_name("demo", &digest, &digits('f'));
    world.objects.insert(configmap(&taken), json!({"metadata": {"name": taken}, "data": {}}));
    let of_other = spare_name("demo", &Digest::of_bytes("other"), &digits('a'));
    let known = vec!["demo-missing".to_owned(), of_other, taken, volume(&first, 0).to_owned()];
    world.spares = Spares { known, digits: digits('b') };
    assert_eq!(volume(&world.create(&deployment(&["demo"])), 0), volume(&first, 0));
}

#[test]
fn occupied_names_stop_no_roll() {
    let mut world = world("green");
    let stored = world.create(&deployment(&["demo"]));
    let (other, digest) = occupied();
    world.objects.extend(other.objects);
    world.spares = other.spares;
    let mut poked = stored.clone();
    annotate(&mut poked, annotations::ROLL, "auto-2026-01-01T00:00:00Z *");
    let rolled = world.update(&poked, &stored);
    assert_eq!(volume(&rolled, 0), spare_name("demo", &digest, &digits('a')));
}

/// However many names are taken, they are read in one round.
#[test]
fn occupied_names_cost_one_more_round() {
    let rounds = |world: &World| {
        let (kind, text) = (kind("Deployment"), deployment(&["demo"]).to_string());
        let new = Workload::parse(&kind, &text).unwrap();
        let request = Request { namespace: "ns", secrets: true, new, old: None, carried: Carried::default() };
        let mut facts = Facts::default();
        let mut rounds = 0;
        while let Pass::Needs(needs) = resolve(&request, &facts) {
            rounds += 1;
            for need in needs {
                match need {
                    Need::Object(name) => facts.set_object(name.clone(), world.observe(&name)),
                    Need::Namespace => facts.set_namespace(NamespaceFacts::default()),
                    Need::Spares(source) => facts.set_spares(source, world.spares.clone()),
                    Need::Newest { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        rounds
    };
    let free = rounds(&world(DATA));
    // The names that follow from the content, and the one with random digits.
    assert_eq!(rounds(&occupied().0), free + 2);
}
