//! The requests of confrev for a change in waves, in the API server's audit log.

use std::collections::BTreeMap;

use confrev_controlplane::wait_for;
use serde_json::json;

use crate::any_kind::owners;
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{LIMIT, World, expect};

const COUNT: usize = 5;

/// The requests of confrev in a namespace, by verb and resource. Events are not counted.
type Requests = BTreeMap<(String, String), usize>;

/// Changes the sources of five workloads, which have these ConfigMaps.
fn change(prefix: &str, sources: &[&str], annotations: &serde_json::Value) -> Requests {
    let world = World::new(prefix);
    let names: Vec<_> = sources.iter().cycle().take(COUNT).collect();
    let loads: Vec<_> = (0..COUNT)
        .map(|i| Workload::new(Kind::Deployment, &format!("web-{i}"), &[names[i]]).replicas(0))
        .collect();
    for source in sources {
        world.set_config(source, "A");
        let path = format!("/api/v1/namespaces/{}/configmaps/{source}", world.name());
        let change = json!({"metadata": {"annotations": annotations}});
        let (code, answer) = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
        assert_eq!(code, 200, "{answer}");
    }
    for load in &loads {
        world.apply(&load.manifest()).ok();
    }
    world.wait_at_rest();
    let mut place = 0;
    world.cluster.requests_of_confrev_from(&mut place);
    for source in sources {
        world.set_config(source, "B");
    }
    for (load, source) in loads.iter().zip(names) {
        world.wait_resolved(load, source, "B");
    }
    wait_for("the workloads to own no previous snapshot", LIMIT, || {
        let of_previous = world.snapshots().into_iter().filter(|snapshot| snapshot["data"]["text"] == "A");
        let owners: Vec<_> = of_previous.flat_map(|snapshot| owners(&snapshot)).collect();
        if owners.iter().any(|owner| owner.starts_with("Deployment/")) {
            Err(format!("{owners:?}"))
        } else {
            Ok(())
        }
    });
    world.wait_at_rest();
    let mut requests = Requests::new();
    // The API server writes its log a moment later.
    wait_for("the rolls in the audit log", LIMIT, || {
        for request in world.cluster.requests_of_confrev_from(&mut place) {
            if request.namespace == world.name() && request.resource != "events" && request.verb != "watch" {
                *requests.entry((request.verb, request.resource)).or_default() += 1;
            }
        }
        expect(&requests.get(&("patch".to_owned(), "deployments".to_owned())), &Some(&COUNT))
    });
    requests
}

/// Deriving the state of a wave makes no request, and a roll in its turn makes those of any roll.
#[test]
fn workload_in_waves_costs_no_more_requests() {
    let _confrev = running();
    let plain = change("requests-plain", &["a", "b", "c", "d", "e"], &json!({}));
    let waves = json!({"confrev.dev/waves": "1, 2, 3, 4", "confrev.dev/bake": "2s"});
    let in_waves = change("requests-waves", &["a"], &waves);
    for (request, count) in &in_waves {
        let of_plain = plain.get(request).copied().unwrap_or_default();
        assert!(
            *count <= of_plain,
            "{request:?}: {count} in waves, {of_plain} without: {in_waves:?}, {plain:?}"
        );
    }
}
