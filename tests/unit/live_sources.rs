//! Live sources: references stay as written, and a change rolls the workload.

use confrev::{
    annotations,
    resolve::{Health, NamespaceFacts, NamespaceOptIn, Observed, Present, is_pending},
    snapshot::ObjectName,
};
use serde_json::{Value, json};

use super::{
    controller::record,
    secret_digests::{keying, secret, set as set_secret, volume as secret_volume, web},
    story::{poke, undo},
    world::{World, annotate, annotation, configmap, deployment, kind, template, volume},
};

/// A world with the live ConfigMap `demo`.
fn world(color: &str) -> World {
    let mut world = World::default();
    set(&mut world, color);
    world
}

fn set(world: &mut World, color: &str) {
    world.set("demo", json!({"color": color, "size": "1"}));
    world.labelled("demo", "live");
}

fn live(object: &Value) -> Value {
    annotation(&template(object)["metadata"], annotations::LIVE)
}

/// Whether the controller considers a change of this workload pending.
fn pending(world: &World, stored: &Value) -> bool {
    let mut stored = stored.clone();
    stored["metadata"]["uid"] = json!("w");
    let present = |name: &ObjectName| world.observe(name).as_ref().map(Present::from);
    is_pending(&record(&stored, Health::Settled), present)
}

#[test]
fn live_reference_stays_and_change_rolls_once() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    assert_eq!(volume(&first, 0), "demo");
    let digest = world.observe(&configmap("demo")).unwrap().digest().to_string();
    assert_eq!(live(&first), json!({"configmaps": {"demo": digest}}));
    assert_eq!(world.objects.len(), 1, "no snapshot is created");
    assert!(!pending(&world, &first));

    set(&mut world, "green");
    assert!(pending(&world, &first));
    let second = poke(&mut world, &first, 1);
    assert_eq!(volume(&second, 0), "demo");
    assert_ne!(live(&second), live(&first));
    assert!(!pending(&world, &second));
    assert_eq!(template(&poke(&mut world, &second, 2)), template(&second), "once");
    assert_eq!(world.update(&deployment(&["demo"]), &second)["spec"], second["spec"], "applied again");
}

/// It causes no further roll.
#[test]
fn undo_of_live_source_gets_present_digest() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    set(&mut world, "green");
    let mut second = poke(&mut world, &first, 1);
    second["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let second = world.update(&second.clone(), &second);
    let undone = world.update(&undo(&second, &first), &second);
    assert_eq!(template(&undone)["spec"], template(&first)["spec"]);
    assert_eq!(live(&undone), live(&second), "the content is the present one");
    assert!(!pending(&world, &undone));
    assert_eq!(template(&poke(&mut world, &undone, 2)), template(&undone));
    // An undo of a Deployment restores all annotations.
    let mut restored = undo(&second, &first);
    restored["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
    let restored = world.update(&restored, &second);
    assert_eq!(live(&restored), live(&second));
    assert!(!pending(&world, &restored));
}

#[test]
fn each_mode_change_causes_one_roll() {
    let mut world = world("blue");
    world.set("demo", json!({"color": "blue"}));
    let resolved = world.create(&deployment(&["demo"]));
    let snapshot = volume(&resolved, 0).to_owned();
    assert_ne!(snapshot, "demo");

    world.labelled("demo", "live");
    assert!(pending(&world, &resolved));
    let as_written = poke(&mut world, &resolved, 1);
    assert_eq!(volume(&as_written, 0), "demo");
    assert!(live(&as_written)["configmaps"]["demo"].is_string());
    assert!(!pending(&world, &as_written));
    assert_eq!(template(&poke(&mut world, &as_written, 2)), template(&as_written));

    world.set("demo", json!({"color": "blue"}));
    assert!(pending(&world, &as_written));
    let again = poke(&mut world, &as_written, 3);
    assert_eq!(template(&again), template(&resolved), "the old template again");
    assert!(!pending(&world, &again));
}

#[test]
fn undo_to_snapshot_of_live_source_holds() {
    let mut world = world("blue");
    world.set("demo", json!({"color": "blue"}));
    let resolved = world.create(&deployment(&["demo"]));
    world.labelled("demo", "live");
    let as_written = poke(&mut world, &resolved, 1);
    let undone = world.update(&undo(&as_written, &resolved), &as_written);
    assert_eq!(volume(&undone, 0), volume(&resolved, 0));
    assert!(!pending(&world, &undone), "it does not roll to the present content");
}

#[test]
fn unread_keys_of_live_source_roll_nothing() {
    let mut world = world("blue");
    let mut object = deployment(&[]);
    object["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "C", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "color"}}}]);
    let first = world.create(&object);
    world.set("demo", json!({"color": "blue", "size": "2"}));
    world.labelled("demo", "live");
    let second = poke(&mut world, &first, 1);
    for (what, after) in [("poked", &second), ("applied", &world.update(&object, &first))] {
        assert_eq!(template(after), template(&first), "{what}");
        assert!(!pending(&world, after), "{what}: the change is accounted for");
    }
    world.set("demo", json!({"color": "green", "size": "2"}));
    world.labelled("demo", "live");
    assert_ne!(template(&poke(&mut world, &second, 2)), template(&second));
}

#[test]
fn only_user_rolls_paused_live_workload() {
    let mut world = world("blue");
    let mut object = deployment(&["demo"]);
    annotate(&mut object, annotations::TRACK, "false");
    let first = world.create(&object);
    set(&mut world, "green");
    assert!(!pending(&world, &first));
    let mut edited = first.clone();
    annotate(&mut edited, annotations::MISSING, "allow");
    let edited = world.update(&edited, &first);
    assert_eq!(template(&edited), template(&first), "a setting restarts no pod");
    let mut resumed = edited.clone();
    resumed["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::TRACK);
    assert!(pending(&world, &resumed), "the change is pending when the workload tracks again");
    let mut rolled = edited.clone();
    annotate(&mut rolled, annotations::ROLL, "x");
    assert_ne!(template(&world.update(&rolled, &edited)), template(&first));
}

#[test]
fn missing_live_source_keeps_its_digest() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.remove("demo");
    let mut edited = first.clone();
    edited["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let edited = world.update(&edited, &first);
    assert_eq!(live(&edited), live(&first));
    set(&mut world, "blue");
    assert!(!pending(&world, &edited), "the source returned with the same content");
    set(&mut world, "green");
    assert!(pending(&world, &edited));
}

#[test]
fn opting_out_removes_the_digest() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    let mut out = first.clone();
    out["metadata"]["labels"][annotations::ENABLED] = json!("false");
    assert_eq!(live(&world.update(&out, &first)), Value::Null);
}

#[test]
fn stored_job_keeps_its_digest() {
    let mut world = world("blue");
    world.set("other", json!({"k": "v"}));
    for sources in [&["demo", "other"][..], &["demo"]] {
        let mut job = deployment(sources);
        job["kind"] = json!("Job");
        job["apiVersion"] = json!("batch/v1");
        let stored = world.review(&kind("Job"), &job, None).object;
        assert_eq!(volume(&stored, 0), "demo");
        assert!(!stored["spec"].to_string().contains("{\"name\":\"other\"}"), "{stored}");
        assert!(live(&stored)["configmaps"]["demo"].is_string());
        set(&mut world, "green");
        let again = world.review(&kind("Job"), &stored, Some(&stored));
        assert_eq!(again.object, stored);
        // The API server refuses any change of the template.
        let applied = world.review(&kind("Job"), &job, Some(&stored)).object;
        assert_eq!(applied["spec"], stored["spec"], "{sources:?}");
    }
}

#[test]
fn digest_of_another_cluster_is_replaced() {
    let mut world = world("blue");
    let mut copied = deployment(&["demo"]);
    let foreign = json!({"configmaps": {"demo": format!("sha256:{}", "0".repeat(64))}}).to_string();
    template_annotation(&mut copied, &foreign);
    let digest = world.observe(&configmap("demo")).unwrap().digest().to_string();
    assert_eq!(live(&world.create(&copied)), json!({"configmaps": {"demo": digest}}));
}

fn template_annotation(object: &mut Value, live: &str) {
    object["spec"]["template"]["metadata"]["annotations"] = json!({annotations::LIVE: live});
}

/// The mode of a Secret, by its own label and by its namespace.
#[test]
fn namespace_sets_the_mode_of_secrets() {
    for (label, namespace, expected) in [
        (None, false, "snapshot"),
        (None, true, "live"),
        (Some("true"), true, "snapshot"),
        (Some("live"), false, "live"),
        (Some("false"), true, "as written"),
    ] {
        let facts = NamespaceFacts { live_secrets: namespace, ..NamespaceFacts::default() };
        let mut world = World { namespace: facts, keying: keying(&[1]), ..World::default() };
        set_secret(&mut world, "YQ==");
        if let Some(label) = label {
            world.objects.get_mut(&secret("demo")).unwrap()["metadata"]["labels"] =
                json!({annotations::ENABLED: label});
        }
        let stored = world.create(&web());
        let found = match (secret_volume(&stored), live(&stored).is_null()) {
            ("demo", true) => "as written",
            ("demo", false) => "live",
            _ => "snapshot",
        };
        assert_eq!(found, expected, "{label:?} {namespace}");
        assert!(!pending(&world, &stored), "{label:?} {namespace}");
    }
}

#[test]
fn secret_enabled_by_namespace_alone_rolls() {
    let facts = NamespaceFacts {
        opt_in: NamespaceOptIn::Now,
        secrets: true,
        live_secrets: true,
        ..NamespaceFacts::default()
    };
    let mut world = World { namespace: facts, keying: keying(&[1]), ..World::default() };
    set_secret(&mut world, "YQ==");
    let mut object = web();
    object["metadata"].as_object_mut().unwrap().remove("annotations");
    let stored = world.create(&object);
    set_secret(&mut world, "Yg==");
    assert!(pending(&world, &stored));
    assert_ne!(live(&poke(&mut world, &stored, 1)), live(&stored));
}

/// Only the Secret itself holds the content of a live Secret. Once the key is lost, the present content counts as seen.
#[test]
fn lost_key_rolls_no_live_secret() {
    let facts = NamespaceFacts { live_secrets: true, ..NamespaceFacts::default() };
    let mut world = World { namespace: facts, keying: keying(&[1]), ..World::default() };
    set_secret(&mut world, "YQ==");
    let first = world.create(&web());
    world.keying = keying(&[2]);
    assert_eq!(world.update(&web(), &first)["spec"], first["spec"]);
    let poked = poke(&mut world, &first, 1);
    assert_eq!(template(&poked), template(&first), "no pod restarts");
    assert!(!pending(&world, &poked), "the present content counts as seen under the new key");
    set_secret(&mut world, "Yg==");
    assert!(pending(&world, &poked));
    let rolled = poke(&mut world, &poked, 2);
    assert_ne!(template(&rolled), template(&first));
    assert_eq!(template(&poke(&mut world, &rolled, 3)), template(&rolled));
}

#[test]
fn platform_secrets_are_never_live() {
    let json = json!({"metadata": {"name": "a", "labels": {annotations::ENABLED: "live"}}, "type": "helm.sh/release.v1"});
    let observed =
        Observed::read(confrev::snapshot::SourceKind::Secret, json.to_string().into_bytes()).unwrap();
    assert_eq!(observed.is_live(), Some(false));
}
