//! The API server's processor time for a roll, and how much less it is without each part of confrev's admission.
//!
//! This is the API server's own share of a roll, which no change of the program makes smaller.

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
    Nothing,
    /// One object.
    Object(&'static str),
    /// The match conditions of both webhooks.
    Conditions,
}

const PARTS: [(&str, Part); 8] = [
    ("all of admission", Part::Nothing),
    (
        "without the policy confrev-spelling",
        Part::Object("validatingadmissionpolicybindings/confrev-spelling"),
    ),
    ("without the policy confrev-self", Part::Object("validatingadmissionpolicybindings/confrev-self")),
    (
        "without the policy confrev-snapshots",
        Part::Object("validatingadmissionpolicybindings/confrev-snapshots"),
    ),
    ("without the policy confrev-carry", Part::Object("mutatingadmissionpolicybindings/confrev-carry-own")),
    ("without the validating webhook", Part::Object("validatingwebhookconfigurations/confrev")),
    ("without the match conditions", Part::Conditions),
    ("without the mutating webhook", Part::Object("mutatingwebhookconfigurations/confrev")),
];

/// The rows, as medians of `rounds` rounds.
pub(crate) fn rows(env: &Environment, rounds: usize) -> Vec<Row> {
    let name = "parts".to_owned();
    env.cluster.create("configmap", CONFREV, &config_map(&name, 1000));
    let workloads = (0..WORKLOADS).map(|i| {
        let mut object = deployment(&format!("parts-{i}"), std::slice::from_ref(&name));
        // The controllers of the cluster ignore it.
        object["spec"]["paused"] = json!(true);
        object
    });
    env.runtime.block_on(env.client.create_all(&deployments(CONFREV), workloads));
    env.wait_at_rest(Duration::from_secs(2));
    keep_snapshots(env);
    // As confrev: the policy confrev-self applies to no other user.
    let client = env.client_of(&env.cluster.kubeconfig_for_service_account("confrev", "confrev"));
    let mut times = PARTS.map(|_| Vec::new());
    for round in 0..rounds {
        for (i, (_, part)) in PARTS.into_iter().enumerate() {
            let restore = remove(env, part);
            std::thread::sleep(LEARNED);
            env.wait_at_rest(REST);
            let before = env.api_server_cpu();
            env.runtime.block_on(write_all(&client, &format!("{round}-{i}")));
            let each = (env.api_server_cpu() - before) * 1e3 / number(WORKLOADS * TURNS);
            times[i].push(each);
            put_back(env, restore);
        }
    }
    std::thread::sleep(LEARNED);
    let middle = times.map(|times| quantile(&times, 0.5));
    let row = |(i, (name, _)): (usize, &(&str, Part))| {
        let what = format!("processor time of the API server for the write of a roll, {name}");
        Row::new(what, "ms", middle[i], (i > 0).then_some(middle[0]), Reach::Read)
    };
    PARTS.iter().enumerate().map(row).collect()
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

/// Writes `roll` of every workload several times.
async fn write_all(client: &Client, round: &str) {
    for turn in 0..TURNS {
        let writes = stream::iter(0..WORKLOADS).map(|i| async move {
            let path = format!("{}/parts-{i}", deployments(CONFREV));
            let change =
                json!({"metadata": {"annotations": {"confrev.dev/roll": format!("{round}-{turn}")}}});
            client.merge(&path, &change).await;
        });
        writes.buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    }
}

/// Removes a part. Returns the path and the object to put back.
fn remove(env: &Environment, part: Part) -> Option<(String, Value)> {
    let path = match part {
        Part::Nothing => return None,
        Part::Object(path) => format!("{GROUP}/{path}"),
        Part::Conditions => format!("{GROUP}/mutatingwebhookconfigurations/confrev"),
    };
    let (code, object) = env.cluster.api().get(&path);
    assert_eq!(code, 200, "{object}");
    if let Part::Conditions = part {
        let mut without = object.clone();
        for webhook in without["webhooks"].as_array_mut().into_iter().flatten() {
            // A webhook for sources would be called for confrev's own writes.
            if webhook["name"].as_str().is_some_and(|name| name.contains("workloads")) {
                webhook["matchConditions"] = json!([]);
            }
        }
        let (code, answer) = env.cluster.api().put(&path, &without);
        assert_eq!(code, 200, "{answer}");
    } else {
        let (code, answer) = env.cluster.api().delete(&path);
        assert_eq!(code, 200, "{answer}");
    }
    Some((path, object))
}

/// Creates the object again, or writes it over what is there.
fn put_back(env: &Environment, removed: Option<(String, Value)>) {
    let Some((path, mut object)) = removed else { return };
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
