//! Workloads without a controller: Deployments, the ReplicaSets that they would have, and a ConfigMap for each.

use futures::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::environment::{
    AT_ONCE, CONFREV, Environment, config_map, config_maps, deployment, deployments, replica_sets,
};

/// The number of ReplicaSets of each Deployment.
pub(crate) const SETS: usize = 2;

/// Creates `count` of them. The controller manager is stopped for the rest of the run: it would create ReplicaSets
/// itself, and use a part of the measured resources.
pub(crate) fn create(env: &Environment, count: usize) {
    env.cluster.kill("kube-controller-manager");
    env.runtime.block_on(async {
        let sources = (0..count).map(|i| config_map(&source(i), 1000));
        env.client.create_all(&config_maps(CONFREV), sources).await;
        let created = stream::iter(0..count).map(|i| async move {
            let object = deployment(&format!("beside-{i}"), &[source(i)]);
            let created = env.client.create(&deployments(CONFREV), &object).await;
            for number in 1..=SETS {
                env.client.create(&replica_sets(CONFREV), &replica_set(&created, number)).await;
            }
        });
        created.buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    });
}

fn source(number: usize) -> String {
    format!("beside-{number}")
}

/// A ReplicaSet as the Deployment's controller would create it.
fn replica_set(deployment: &Value, number: usize) -> Value {
    let name = &deployment["metadata"]["name"];
    let hash = format!("revision{number}");
    let mut template = deployment["spec"]["template"].clone();
    template["metadata"]["labels"]["pod-template-hash"] = json!(hash);
    let labels = template["metadata"]["labels"].clone();
    json!({
        "metadata": {
            "name": format!("{}-{hash}", name.as_str().expect("a name")),
            "labels": labels,
            "annotations": {"deployment.kubernetes.io/revision": number.to_string()},
            "ownerReferences": [{
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": name,
                "uid": deployment["metadata"]["uid"],
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    })
}
