//! The API server's processor time for three writes, and how much less it is without each part of confrev's admission.
//!
//! This is the API server's own share of a write, which no change of the program makes smaller.

use std::{fs, path::Path, time::Duration};

use confrev_controlplane::wait_for;
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::environment::{AT_ONCE, CONFREV, Client, Environment, LIMIT, config_map, deployment, deployments};
use crate::row::{Reach, Row};
use crate::stats::{number, quantile};

const WORKLOADS: usize = 50;
/// The writes of each workload in one measurement.
const TURNS: usize = 3;
/// How long the API server takes to learn from its watches that a part is removed.
const LEARNED: Duration = Duration::from_secs(2);
/// How long confrev must send no request before a measurement begins.
const REST: Duration = Duration::from_millis(300);
const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

/// What is removed.
#[derive(Clone, Copy)]
enum Part {
    /// Objects of [`GROUP`].
    Objects(&'static [&'static str]),
    /// The match conditions of the webhooks for workloads.
    Conditions,
}

const SPELLING: &str = "validatingadmissionpolicybindings/confrev-spelling";
const SELF: &str = "validatingadmissionpolicybindings/confrev-self";
const SNAPSHOTS: &str = "validatingadmissionpolicybindings/confrev-snapshots";
const CARRY_OWN: &str = "mutatingadmissionpolicybindings/confrev-carry-own";
const CARRY_NAMESPACED: &str = "mutatingadmissionpolicybindings/confrev-carry-namespaced";
const UNRESOLVED_OWN: &str = "validatingadmissionpolicybindings/confrev-unresolved-own";
const UNRESOLVED_NAMESPACED: &str = "validatingadmissionpolicybindings/confrev-unresolved-namespaced";
const VALIDATING: &str = "validatingwebhookconfigurations/confrev";
const MUTATING: &str = "mutatingwebhookconfigurations/confrev";

const PARTS: [(&str, Part); 10] = [
    ("all of admission", Part::Objects(&[])),
    ("without the policy confrev-spelling", Part::Objects(&[SPELLING])),
    ("without the policy confrev-self", Part::Objects(&[SELF])),
    ("without the policy confrev-snapshots", Part::Objects(&[SNAPSHOTS])),
    ("without the policy confrev-carry", Part::Objects(&[CARRY_OWN, CARRY_NAMESPACED])),
    ("without the policy confrev-unresolved", Part::Objects(&[UNRESOLVED_OWN, UNRESOLVED_NAMESPACED])),
    ("without the validating webhook", Part::Objects(&[VALIDATING])),
    ("without the match conditions", Part::Conditions),
    // Without the webhook, the policies would refuse a roll, and keep marks.
    (
        "without the mutating webhook, confrev-carry and confrev-unresolved",
        Part::Objects(&[MUTATING, CARRY_OWN, CARRY_NAMESPACED, UNRESOLVED_OWN, UNRESOLVED_NAMESPACED]),
    ),
    ("without any of it", Part::Objects(&EVERYTHING)),
];

const EVERYTHING: [&str; 9] = [
    SPELLING,
    SELF,
    SNAPSHOTS,
    CARRY_OWN,
    CARRY_NAMESPACED,
    UNRESOLVED_OWN,
    UNRESOLVED_NAMESPACED,
    VALIDATING,
    MUTATING,
];

/// A write that is measured.
#[derive(Clone, Copy)]
enum Write {
    /// confrev's own write of a workload.
    Roll,
    /// A user's change of the template of an opted-in workload.
    Template,
    /// The same change of a workload that is not opted in.
    Other,
}

impl Write {
    const ALL: [(&str, Self); 3] = [
        ("the write of a roll", Self::Roll),
        ("a template update of an opted-in workload", Self::Template),
        ("a template update of a workload that is not opted in", Self::Other),
    ];

    /// The name of a workload that is written.
    fn workload(self, i: usize) -> String {
        match self {
            Self::Roll => format!("roll-{i}"),
            Self::Template => format!("template-{i}"),
            Self::Other => format!("other-{i}"),
        }
    }

    /// A merge patch that changes what no earlier one has written.
    fn change(self, value: &str) -> Value {
        match self {
            Self::Roll => json!({"metadata": {"annotations": {"confrev.dev/roll": value}}}),
            Self::Template | Self::Other => {
                json!({"spec": {"template": {"metadata": {"annotations": {"bench": value}}}}})
            }
        }
    }
}

/// The rows, as medians of `rounds` rounds.
pub(crate) fn rows(env: &Environment, rounds: usize) -> Vec<Row> {
    let name = "parts".to_owned();
    env.cluster.create("configmap", CONFREV, &config_map(&name, 1000));
    let workloads = (0..WORKLOADS).flat_map(|i| {
        Write::ALL.map(|(_, write)| {
            let mut object = deployment(&write.workload(i), std::slice::from_ref(&name));
            // Its controller starts no ReplicaSet.
            object["spec"]["paused"] = json!(true);
            if let Write::Other = write {
                object["metadata"]["labels"] = json!({});
            }
            object
        })
    });
    env.runtime.block_on(env.client.create_all(&deployments(CONFREV), workloads));
    env.wait_at_rest(Duration::from_secs(2));
    keep_snapshots(env);
    // As confrev: the policy confrev-self applies to no other user.
    let confrev = env.client_of(&env.cluster.kubeconfig_for_service_account("confrev", "confrev"));
    let mut times = Write::ALL.map(|_| PARTS.map(|_| Vec::new()));
    for round in 0..rounds {
        for (i, (_, part)) in PARTS.into_iter().enumerate() {
            let removed = remove(env, part);
            std::thread::sleep(LEARNED);
            for (j, (_, write)) in Write::ALL.into_iter().enumerate() {
                let client = if let Write::Roll = write { &confrev } else { &env.client };
                env.wait_at_rest(REST);
                let before = env.api_server_cpu();
                env.runtime.block_on(write_all(client, write, &format!("{round}-{i}")));
                times[j][i].push((env.api_server_cpu() - before) * 1e3 / number(WORKLOADS * TURNS));
            }
            put_back(env, removed);
        }
    }
    std::thread::sleep(LEARNED);
    let mut rows = Vec::new();
    for ((write, _), times) in Write::ALL.into_iter().zip(times) {
        let middle = times.map(|times| quantile(&times, 0.5));
        rows.extend(PARTS.iter().zip(middle).enumerate().map(|(i, ((part, _), time))| {
            let what = format!("processor time of the API server for {write}, {part}");
            Row::new(what, "ms", time, (i > 0).then_some(middle[0]), Reach::Read)
        }));
    }
    rows
}

/// Installs the policies of an outage, without the webhooks that are asked beside them.
fn keep_snapshots(env: &Environment) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/carry.yaml");
    let text = fs::read_to_string(path).expect("the manifests can be read");
    let is_policy = |document: &&str| {
        let kind = document.lines().find_map(|line| line.strip_prefix("kind: "));
        kind.is_some_and(|kind| kind.contains("AdmissionPolicy"))
    };
    let policies: Vec<_> = text.split("\n---\n").filter(is_policy).collect();
    env.cluster.kubectl(&["apply", "--filename", "-"]).stdin(policies.join("\n---\n")).run().ok();
}

/// Writes every workload several times.
async fn write_all(client: &Client, write: Write, round: &str) {
    for turn in 0..TURNS {
        let writes = stream::iter(0..WORKLOADS).map(|i| async move {
            let path = format!("{}/{}", deployments(CONFREV), write.workload(i));
            client.merge(&path, &write.change(&format!("{round}-{turn}"))).await;
        });
        writes.buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    }
}

/// Removes a part. Returns the paths and the objects to put back.
fn remove(env: &Environment, part: Part) -> Vec<(String, Value)> {
    match part {
        Part::Objects(names) => names.iter().map(|name| delete(env, name)).collect(),
        Part::Conditions => vec![without_conditions(env)],
    }
}

fn read(env: &Environment, name: &str) -> (String, Value) {
    let path = format!("{GROUP}/{name}");
    let (code, object) = env.cluster.api().get(&path);
    assert_eq!(code, 200, "{object}");
    (path, object)
}

fn delete(env: &Environment, name: &str) -> (String, Value) {
    let (path, object) = read(env, name);
    let (code, answer) = env.cluster.api().delete(&path);
    assert_eq!(code, 200, "{answer}");
    (path, object)
}

fn without_conditions(env: &Environment) -> (String, Value) {
    let (path, object) = read(env, MUTATING);
    let mut without = object.clone();
    for webhook in without["webhooks"].as_array_mut().into_iter().flatten() {
        // A webhook for sources would be called for confrev's own writes.
        if webhook["name"].as_str().is_some_and(|name| name.contains("workloads")) {
            webhook["matchConditions"] = json!([]);
        }
    }
    let (code, answer) = env.cluster.api().put(&path, &without);
    assert_eq!(code, 200, "{answer}");
    (path, object)
}

/// Creates the objects again, or writes them over what is there.
fn put_back(env: &Environment, removed: Vec<(String, Value)>) {
    for (path, mut object) in removed {
        let (folder, _) = path.rsplit_once('/').unwrap_or_default();
        for field in ["resourceVersion", "uid", "managedFields", "creationTimestamp", "generation"] {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove(field);
            }
        }
        // confrev itself may write to the configuration of its webhooks at any time.
        wait_for("admission to be complete again", LIMIT, || {
            let (code, present) = env.cluster.api().get(&path);
            let (code, _) = if code == 404 {
                env.cluster.api().post(folder, &object)
            } else {
                object["metadata"]["resourceVersion"] = present["metadata"]["resourceVersion"].clone();
                env.cluster.api().put(&path, &object)
            };
            (code < 300).then_some(())
        });
    }
}
