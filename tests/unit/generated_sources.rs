//! Secrets that other tools write on their own schedule, by the write patterns of these tools: each real change rolls a workload
//! once, and a rewrite of the same content rolls nothing.

use confrev::{
    annotations,
    resolve::{Health, Present, is_pending},
    snapshot::ObjectName,
};
use serde_json::{Value, json};

use super::{
    controller::record,
    secret_digests::{keying, secret, web},
    story::poke,
    world::{World, template},
};

/// The value of the Secret's key, in base64.
const OLD: &str = "b2xk";
const NEW: &str = "bmV3";

/// How a tool writes a Secret. `round`: which write of the tool it is.
type Write = fn(&mut World, value: &str, round: u32);

/// A Secret as a tool writes it: the value, and metadata that changes with each round.
fn object(value: &str, uid: &str, round: u32, metadata: &Value) -> Value {
    let mut object = json!({
        "metadata": {"name": "demo", "uid": uid, "resourceVersion": round.to_string()},
        "type": "Opaque",
        "data": {"password": value},
    });
    let fields = metadata.as_object().unwrap().clone();
    object["metadata"].as_object_mut().unwrap().extend(fields);
    object
}

fn put(world: &mut World, mut object: Value) {
    let name = secret("demo");
    // The tools keep a label that they did not write, except where they create the object again from their own template.
    if let Some(mode) =
        world.objects.get(&name).and_then(|old| old["metadata"]["labels"].get(annotations::ENABLED))
    {
        object["metadata"]["labels"][annotations::ENABLED] = mode.clone();
    }
    world.objects.insert(name, object);
}

/// External Secrets: an update with the hash of the data and the time of the refresh.
fn external_secrets(world: &mut World, value: &str, round: u32) {
    let annotations = json!({
        "reconcile.external-secrets.io/data-hash": format!("{value}-{round}"),
        "reconcile.external-secrets.io/refreshed": round.to_string(),
    });
    put(world, object(value, "u", round, &json!({"annotations": annotations, "labels": {}})));
}

/// Sealed Secrets: the controller updates the Secret from the unsealed template.
fn sealed_secrets(world: &mut World, value: &str, round: u32) {
    let owner = json!([{"apiVersion": "bitnami.com/v1alpha1", "kind": "SealedSecret", "name": "demo", "uid": "s", "controller": true}]);
    put(
        world,
        object(value, "u", round, &json!({"ownerReferences": owner, "labels": {"round": round.to_string()}})),
    );
}

/// cert-manager: a server-side apply, with annotations about the certificate.
fn cert_manager(world: &mut World, value: &str, round: u32) {
    let fields = json!([{"manager": "cert-manager-certificates-issuing", "operation": "Apply", "time": format!("2026-01-01T00:00:{round:02}Z")}]);
    let annotations =
        json!({"cert-manager.io/certificate-name": "demo", "cert-manager.io/revision": round.to_string()});
    put(
        world,
        object(
            value,
            "u",
            round,
            &json!({"managedFields": fields, "annotations": annotations, "labels": {}}),
        ),
    );
}

/// Reflector: an update of the copy, with the version of the original.
fn reflector(world: &mut World, value: &str, round: u32) {
    let annotations = json!({"reflector.v1.k8s.emberstack.com/reflected-version": round.to_string()});
    put(world, object(value, "u", round, &json!({"annotations": annotations, "labels": {}})));
}

/// Vault's operator: it deletes the Secret, and creates it again.
fn created_again(world: &mut World, value: &str, round: u32) {
    let labels = world.objects.remove(&secret("demo")).map(|old| old["metadata"]["labels"].clone());
    let labels = labels.filter(Value::is_object).unwrap_or_else(|| json!({}));
    put(world, object(value, &format!("u-{round}"), round, &json!({"labels": labels})));
}

const TOOLS: [(&str, Write); 5] = [
    ("External Secrets", external_secrets),
    ("Sealed Secrets", sealed_secrets),
    ("cert-manager", cert_manager),
    ("Reflector", reflector),
    ("Vault's operator", created_again),
];

fn pending(world: &World, stored: &Value) -> bool {
    let mut stored = stored.clone();
    stored["metadata"]["uid"] = json!("w");
    let present = |name: &ObjectName| world.observe(name).as_ref().map(Present::from);
    is_pending(&record(&stored, Health::Settled), present)
}

#[test]
fn generated_secret_rolls_once_per_real_change() {
    for (tool, write) in TOOLS {
        for mode in [None, Some("live")] {
            let mut world = World { keying: keying(&[1]), ..World::default() };
            write(&mut world, OLD, 1);
            if let Some(mode) = mode {
                world.objects.get_mut(&secret("demo")).unwrap()["metadata"]["labels"][annotations::ENABLED] =
                    json!(mode);
            }
            let mut stored = world.create(&web());
            for (round, value, changes) in
                [(2, OLD, false), (3, OLD, false), (4, NEW, true), (5, NEW, false), (6, OLD, true)]
            {
                let what = format!("{tool}, {mode:?}, write {round}");
                write(&mut world, value, round);
                assert_eq!(pending(&world, &stored), changes, "{what}");
                // The controller rolls what is pending; a roll that is not needed changes no pod.
                let rolled = poke(&mut world, &stored, round.into());
                assert_eq!(template(&rolled) != template(&stored), changes, "{what}");
                assert!(!pending(&world, &rolled), "{what}");
                // An apply of the workload is no further change.
                let applied = world.update(&web(), &rolled);
                assert_eq!(template(&applied), template(&rolled), "{what}");
                stored = applied;
            }
        }
    }
}

/// Between a deletion and the creation, nothing changes.
#[test]
fn secret_that_is_deleted_for_moment_rolls_nothing() {
    for mode in [None, Some("live")] {
        let mut world = World { keying: keying(&[1]), ..World::default() };
        external_secrets(&mut world, OLD, 1);
        if let Some(mode) = mode {
            world.objects.get_mut(&secret("demo")).unwrap()["metadata"]["labels"][annotations::ENABLED] =
                json!(mode);
        }
        let stored = world.create(&web());
        let kept = world.objects.remove(&secret("demo")).unwrap();
        assert!(!pending(&world, &stored), "{mode:?}");
        assert_eq!(
            template(&world.update(&web(), &stored)),
            template(&stored),
            "{mode:?}: applied meanwhile"
        );
        world.objects.insert(secret("demo"), kept);
        assert!(!pending(&world, &stored), "{mode:?}");
    }
}
