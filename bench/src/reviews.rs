//! Reviews per second, compared with a server that does nothing.

use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::environment::{CONFREV, Environment, config_map, deployment};
use crate::load::{Protocol, Target};
use crate::row::{Reach, Row};
use crate::stats::quantile;

/// The number of connections of one load.
const CONNECTIONS: [usize; 3] = [1, 16, 64];
/// The number of references of the reviewed workload.
const REFERENCES: usize = 3;

/// The rows. Each load lasts `time`, and is repeated `rounds` times.
pub(crate) fn rows(env: &Environment, time: Duration, rounds: usize) -> Vec<Row> {
    let sources: Vec<_> = (0..REFERENCES).map(|i| format!("load-{i}")).collect();
    for source in &sources {
        env.cluster.create("configmap", CONFREV, &config_map(source, 1000));
    }
    // The snapshots exist, as in all reviews of a content but the first.
    env.cluster.create("deployment", CONFREV, &deployment("load", &sources));
    let nothing = review("", "configmaps", "ConfigMap", &config_map("unused", 1000));
    let resolved = review("apps", "deployments", "Deployment", &deployment("load-new", &sources));
    let mut rows = Vec::new();
    for (what, path, body, least) in [
        ("nothing to do", "/mutate/configmaps", nothing, 0.8),
        ("3 references read live", "/mutate/workloads", resolved, 0.4),
    ] {
        let bare = Target {
            pid: env.bare.pid(),
            port: env.bare.port,
            authority: env.bare.certificate.clone(),
            path: "/",
            body: body.clone(),
        };
        let (pid, port) = (env.confrev.pid(), env.confrev.port());
        let confrev = Target { pid, port, authority: env.authority(), path, body };
        for protocol in [Protocol::Http1, Protocol::Http2] {
            for connections in CONNECTIONS {
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                // The loads alternate, so that other work of the machine affects both.
                for _ in 0..rounds {
                    theirs.push(env.runtime.block_on(bare.load(protocol, connections, time)));
                    ours.push(env.runtime.block_on(confrev.load(protocol, connections, time)));
                }
                let rate = |rates: &[crate::load::Rate]| {
                    quantile(&rates.iter().map(|rate| rate.per_second).collect::<Vec<_>>(), 0.5)
                };
                let cpu = |rates: &[crate::load::Rate]| {
                    quantile(&rates.iter().map(|rate| rate.cpu).collect::<Vec<_>>(), 0.5)
                };
                let name = format!("reviews, {what}, {}, {connections} connections", protocol.name());
                rows.push(Row::new(&name, "1/s", rate(&ours), rate(&theirs), Reach::Part(least)));
                rows.push(Row::new(
                    format!("{name}: processor"),
                    "µs",
                    cpu(&ours),
                    cpu(&theirs),
                    Reach::Read,
                ));
            }
        }
    }
    rows
}

/// A review of a creation, as the API server sends it for a dry run.
fn review(group: &str, resource: &str, kind: &str, object: &Value) -> Bytes {
    let mut object = object.clone();
    object["kind"] = json!(kind);
    object["metadata"]["namespace"] = json!(CONFREV);
    let name = object["metadata"]["name"].clone();
    let review = json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": group, "version": "v1", "kind": kind},
            "resource": {"group": group, "version": "v1", "resource": resource},
            "name": name,
            "namespace": CONFREV,
            "operation": "CREATE",
            "userInfo": {"username": "bench", "groups": ["system:authenticated"]},
            "object": object,
            "oldObject": null,
            "dryRun": true,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    });
    Bytes::from(review.to_string())
}
