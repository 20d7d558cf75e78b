//! Secrets that other tools write on their own schedule, by the write patterns that `docs/comparison.md` lists. Each real change
//! rolls a workload once, and a rewrite of the same content rolls nothing.

use std::thread;

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::any_kind::{Load, crd};
use crate::manifests::config_map;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// The mode of a source: snapshots, or references as written.
const MODES: [Option<&str>; 2] = [None, Some("live")];
/// The key of the Secrets that every tool writes.
const KEY: &str = "tls.crt";

/// One write of a Secret by a tool.
struct Write {
    name: String,
    mode: Option<&'static str>,
    value: &'static str,
    /// The number of this write: the metadata of each write differ.
    round: u32,
}

impl Write {
    /// The Secret as a tool writes it, with these metadata. The tool writes the label of the mode, as the page says.
    fn secret(&self, mut metadata: Value) -> Value {
        metadata["name"] = json!(self.name);
        if let Some(mode) = self.mode {
            metadata["labels"]["confrev.dev/enabled"] = json!(mode);
        }
        let data = json!({KEY: self.value, "tls.key": "fixed"});
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "stringData": data})
    }

    fn present(&self, world: &World) -> Option<Value> {
        world.cluster.get("secret", world.name(), &self.name)
    }

    fn create(&self, world: &World, metadata: Value) {
        let path = format!("/api/v1/namespaces/{}/secrets", world.name());
        let (code, answer) = world.cluster.api().post(&path, &self.secret(metadata));
        assert_eq!(code, 201, "{answer}");
    }

    /// An update of the whole Secret, which begins with a read of the present one.
    fn replace(&self, world: &World, mut metadata: Value) {
        let Some(present) = self.present(world) else { return self.create(world, metadata) };
        metadata["resourceVersion"] = present["metadata"]["resourceVersion"].clone();
        let path = format!("/api/v1/namespaces/{}/secrets/{}", world.name(), self.name);
        let (code, answer) = world.cluster.api().put(&path, &self.secret(metadata));
        assert_eq!(code, 200, "{answer}");
    }
}

/// A tool, by the way it writes.
#[derive(Clone, Copy, Debug)]
enum Tool {
    /// An update at each refresh, with a hash of the data and the time.
    ExternalSecrets,
    /// An update after each change of the SealedSecret, which owns the Secret.
    SealedSecrets,
    /// A server-side apply at each issuance.
    CertManager,
    /// A patch of each copy, with the version of the original.
    Reflector,
    /// A deletion and a creation.
    Vault,
}

impl Tool {
    const ALL: [Self; 5] =
        [Self::ExternalSecrets, Self::SealedSecrets, Self::CertManager, Self::Reflector, Self::Vault];

    fn write(self, world: &World, write: &Write) {
        let round = write.round.to_string();
        match self {
            Self::ExternalSecrets => {
                let hash = format!("{}-{round}", write.value);
                write.replace(
                    world,
                    json!({"annotations": {
                        "reconcile.external-secrets.io/data-hash": hash,
                        "reconcile.external-secrets.io/refreshed": round,
                    }}),
                );
            }
            Self::SealedSecrets => {
                let owner = json!({
                    "apiVersion": "bitnami.com/v1alpha1", "kind": "SealedSecret", "name": "sealed",
                    "uid": sealed(world), "controller": true,
                });
                write.replace(world, json!({"labels": {"round": round}, "ownerReferences": [owner]}));
            }
            Self::CertManager => {
                let manager = "--field-manager=cert-manager-certificates-issuing";
                let annotations = json!({
                    "cert-manager.io/certificate-name": write.name,
                    "cert-manager.io/certificate-revision": round,
                });
                let apply = ["apply", "--server-side", "--force-conflicts", manager];
                world.with_file(&apply, &write.secret(json!({"annotations": annotations}))).ok();
            }
            Self::Reflector => {
                let annotations = json!({"reflector.v1.k8s.emberstack.com/reflected-version": round});
                let Some(_) = write.present(world) else {
                    return write.create(world, json!({"annotations": annotations}));
                };
                let patch = json!([
                    {"op": "replace", "path": "/metadata/annotations", "value": annotations},
                    {"op": "replace", "path": "/stringData", "value": write.secret(json!({}))["stringData"]},
                ]);
                let path = format!("/api/v1/namespaces/{}/secrets/{}", world.name(), write.name);
                let (code, answer) = world.cluster.api().patch(&path, "application/json-patch+json", &patch);
                assert_eq!(code, 200, "{answer}");
            }
            Self::Vault => {
                if write.present(world).is_some() {
                    self.delete(world, write);
                }
                write.create(world, json!({"labels": {"round": round}}));
            }
        }
    }

    fn delete(self, world: &World, write: &Write) {
        let path = format!("/api/v1/namespaces/{}/secrets/{}", world.name(), write.name);
        let (code, answer) = world.cluster.api().delete(&path);
        assert_eq!(code, 200, "{self:?}: {answer}");
    }
}

/// The uid of the SealedSecret that owns the Secrets of the namespace.
fn sealed(world: &World) -> Value {
    let path = format!("/apis/bitnami.com/v1alpha1/namespaces/{}/sealedsecrets", world.name());
    let object = json!({
        "apiVersion": "bitnami.com/v1alpha1", "kind": "SealedSecret", "metadata": {"name": "sealed"},
    });
    let api = world.cluster.api();
    wait_for("the SealedSecret", LIMIT, || {
        let (code, answer) = api.post(&path, &object);
        match code {
            201 => Ok(answer["metadata"]["uid"].clone()),
            409 => Ok(api.get(&format!("{path}/sealed")).1["metadata"]["uid"].clone()),
            _ => Err(format!("{code} {answer}")),
        }
    })
}

/// A workload that reads the Secret of its own name.
fn reader(name: &str) -> Load {
    let mut load = Load::new("deployments", name, &[]).annotation("secrets", "true");
    load.manifest["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "secret", "secret": {"secretName": name}}]);
    load
}

/// The value that the only ready pod of a workload reads.
fn read(world: &World, reader: &Load) -> Result<String, String> {
    let pods = reader.pods(world);
    let [pod] = &pods[..] else { return Err(format!("{} pods are ready", pods.len())) };
    Ok(world.cluster.pod_config(pod)?.files[&format!("secret/{KEY}")].clone())
}

/// The parts of a workload that a roll changes, and the number of its changes so far.
fn state(world: &World, reader: &Load) -> (u64, Value) {
    let live = reader.live(world);
    let generation = live["metadata"]["generation"].as_u64().unwrap();
    let seen =
        ["roll", "state"].map(|key| text(&live["metadata"]["annotations"][format!("confrev.dev/{key}")]));
    (generation, json!([seen, live["spec"]["template"]]))
}

/// Returns when confrev has taken every earlier change of the namespace into account: a later change of another source has rolled.
fn wait_for_later_roll(world: &World, round: u32) {
    let later = Load::new("deployments", "later", &["later"]).spec(json!({"replicas": 0}));
    let wanted = round.to_string();
    world.apply(&config_map("later", &wanted)).ok();
    if round == 1 {
        later.apply(world).ok();
    }
    wait_for("the roll of a later change", LIMIT, || {
        let name = text(&later.stored(world)["spec"]["volumes"][0]["configMap"]["name"]);
        let snapshot = world.cluster.get("configmap", world.name(), &name).ok_or("no snapshot")?;
        expect(&text(&snapshot["data"]["text"]), &wanted)
    });
}

/// All modes of one tool, each with a Secret and its reader.
fn rolls_once_per_real_change(tool: Tool) {
    let world = World::new("generated");
    let readers = MODES.map(|mode| reader(mode.unwrap_or("kept")));
    let write = |value, round| {
        for (mode, reader) in MODES.into_iter().zip(&readers) {
            tool.write(&world, &Write { name: reader.name.clone(), mode, value, round });
        }
    };
    let wait_read = |value| {
        for reader in &readers {
            let what = format!("{tool:?}: {} to read {value}", reader.name);
            wait_for(&what, LIMIT, || expect(&read(&world, reader)?, value));
        }
    };
    let states = || [0, 1].map(|index| state(&world, &readers[index]));
    write("old", 1);
    for reader in &readers {
        reader.apply(&world).ok();
    }
    wait_read("old");
    wait_for_later_roll(&world, 1);

    let mut changes = 1;
    for (round, value, is_change) in
        [(2, "old", false), (3, "old", false), (4, "new", true), (5, "new", false), (6, "old", true)]
    {
        let before = states();
        write(value, round);
        changes += u64::from(is_change);
        wait_read(value);
        wait_for_later_roll(&world, round);
        let after = states();
        assert_eq!(after.each_ref().map(|(changes, _)| *changes), [changes; 2], "{tool:?}, write {round}");
        assert!(is_change || before == after, "{tool:?}, write {round}: {before:?} became {after:?}");
    }
    for reader in &readers {
        assert_eq!(reader.changes(&world), 2, "{tool:?}: {} uses the earlier ReplicaSet again", reader.name);
    }
    // An undo restores a content that has a snapshot. Without one, all pods keep the present content.
    for (reader, value) in readers.iter().zip(["new", "old"]) {
        reader.undo(&world, &Value::Null);
        let what = format!("{tool:?}: {} to read {value} after an undo", reader.name);
        wait_for(&what, LIMIT, || expect(&read(&world, reader)?, value));
    }
}

#[test]
fn generated_secrets_roll_once_per_real_change() {
    let _confrev = running();
    let cluster = World::new("generated").cluster;
    let sealed_secrets = crd("bitnami.com", "v1alpha1", "sealedsecrets", "SealedSecret").to_string();
    cluster.kubectl(&["apply", "--server-side", "--filename", "-"]).stdin(sealed_secrets).run().ok();
    thread::scope(|scope| {
        for tool in Tool::ALL {
            let named = thread::Builder::new().name(format!("{tool:?}"));
            named.spawn_scoped(scope, move || rolls_once_per_real_change(tool)).unwrap();
        }
    });
}

/// A tool deletes a Secret and creates it again. Meanwhile, pods start from the snapshot, and nothing rolls.
#[test]
fn pods_start_while_generated_secret_is_missing() {
    let _confrev = running();
    let world = World::new("generated");
    let reader = reader("kept");
    let write = |round| Write { name: "kept".to_owned(), mode: None, value: "old", round };
    Tool::Vault.write(&world, &write(1));
    reader.apply(&world).ok();
    wait_for("the pod to read the Secret", LIMIT, || expect(&read(&world, &reader)?, "old"));
    let before = state(&world, &reader);
    wait_for_later_roll(&world, 1);

    Tool::Vault.delete(&world, &write(1));
    let lost = text(&reader.pods(&world)[0]["metadata"]["name"]);
    world.delete("pod", &lost);
    wait_for("the replacement of the pod to read the Secret", LIMIT, || {
        let present = text(&reader.pods(&world).first().ok_or("no pod is ready")?["metadata"]["name"]);
        if present == lost {
            Err("the pod still exists".to_owned())
        } else {
            expect(&read(&world, &reader)?, "old")
        }
    });
    wait_for_later_roll(&world, 2);
    assert_eq!(state(&world, &reader), before, "the Secret is missing");
    Tool::Vault.write(&world, &write(2));
    wait_for_later_roll(&world, 3);
    assert_eq!(state(&world, &reader), before, "the Secret was created again");
}
