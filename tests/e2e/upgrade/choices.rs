//! The upgrade while clients write, and then the value of `outage` in both directions.

use std::fs;

use confrev_controlplane::{ControlPlane, Service, wait_for};
use confrev_test_support::root;

use crate::world::{LIMIT, World};
use crate::writer::Writer;
use crate::{alone, install_older, newer};

const ENOUGH: usize = 20;

/// Nothing is refused, and nothing is stored as it was written: by the older confrev, by both, by the newer one with either
/// choice, and by none.
#[test]
#[ignore = "needs an older confrev: make test-upgrade OLD=<revision>"]
fn upgrade_and_choice_of_outage_lose_no_write() {
    let (_alone, cluster) = (alone(), ControlPlane::shared());
    let service: &'static Service = Box::leak(Box::new(Service::start().unwrap()));
    let mut older = install_older().behind(&service.url());
    service.behind(&[older.address()]);
    older.start();
    let world = World::new("choice");
    let writer = Writer::start(&world);
    writer.more(ENOUGH);

    apply(cluster, service, "self-signed.yaml");
    writer.more(ENOUGH);
    let mut newer = newer().behind(&service.url());
    newer.start();
    service.behind(&[newer.address()]);
    older.stop();
    writer.more(ENOUGH);

    apply(cluster, service, "carry.yaml");
    let write = || cluster.get("deployment", world.name(), "written").expect("it is written");
    let carried = || write()["metadata"]["labels"]["confrev.dev/carried"] == "true";
    writer.more(ENOUGH);
    let unmarked = || newer.metric("confrev_uncarried_reviews_total");
    wait_for("the policies to mark each write", LIMIT, || {
        let before = unmarked();
        writer.more(ENOUGH);
        if unmarked() > before { Err("a review had no mark") } else { Ok(()) }
    });
    newer.kill();
    wait_for("a write to be stored with the mark", LIMIT, || carried().then_some(()));
    writer.more(ENOUGH);
    newer.start();
    wait_for("confrev to decide again", LIMIT, || (!carried()).then_some(()));

    apply(cluster, service, "self-signed.yaml");
    writer.more(ENOUGH);
    let policies = fs::read_to_string(root().join("manifests/carry.yaml")).unwrap();
    let policies = policies.split("\n---\n").filter(|document| document.contains("AdmissionPolicy"));
    let policies = policies.collect::<Vec<_>>().join("\n---\n");
    cluster.kubectl(&["delete", "--filename", "-"]).stdin(policies).run().ok();
    writer.more(ENOUGH);
    let writes = writer.stop();
    newer.stop();
    eprintln!("during the upgrade and two choices: {writes}");
    assert!(writes.refused.is_empty(), "{writes}");
}

/// Applies a manifest of this tree, as for replicas behind this Service.
fn apply(cluster: &ControlPlane, service: &Service, manifest: &str) {
    let text = fs::read_to_string(root().join("manifests").join(manifest)).unwrap();
    let behind = "      service:\n        name: confrev\n        namespace: confrev\n        path: ";
    assert!(text.contains(behind), "{manifest} has a webhook");
    let text = text.replace(behind, &format!("      url: {}", service.url()));
    let force = ["apply", "--server-side", "--force-conflicts", "--filename", "-"];
    cluster.kubectl(&force).stdin(text).run().ok();
}
