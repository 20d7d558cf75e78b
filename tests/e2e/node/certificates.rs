//! confrev from the manifest of each kind of certificates.

use std::time::Duration;

use confrev_controlplane::{CertManager, Program, wait_for};
use confrev_test_support::root;
use serde_json::{Value, json};

use crate::printing::{printing, wait_printed};
use crate::shared::{LIMIT, cluster, confrev_pods, exclusive, remove, wait_serving};
use crate::world::World;
use crate::writer::Writer;

/// A change of a ConfigMap rolls a workload, whose pods print the new content.
fn rolls(world: &World, name: &str) {
    let web = printing("deployments", name);
    world.set_config("demo", "blue");
    web.apply(world).ok();
    wait_printed(world, &web, &["blue"]);
    world.set_config("demo", "green");
    wait_printed(world, &web, &["green"]);
}

#[test]
#[ignore = "it needs real nodes: make test-node"]
fn self_signed_manifest_installs_confrev() {
    let _alone = exclusive();
    remove();
    Program::install_from(cluster(), &root().join("manifests/self-signed.yaml"));
    wait_serving(2);
    rolls(&World::new("self-signed"), "web");
}

/// cert-manager renews the certificate, and the kubelet updates the mounted Secret. No write is refused meanwhile.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn mounted_certificate_is_renewed_without_refused_writes() {
    let _alone = exclusive();
    let _issuer = CertManager::start(cluster());
    remove();
    Program::install_from(cluster(), &root().join("manifests/cert-manager.yaml"));
    wait_serving(2);
    let world = World::new("renewal");
    rolls(&world, "web");

    let expiry = || -> Vec<f64> {
        confrev_pods().iter().map(|pod| metric(pod, "confrev_certificate_expiry_timestamp_seconds")).collect()
    };
    let before = expiry();
    let writer = Writer::start(&world);
    // A shorter duration is another certificate.
    let change = json!({"spec": {"duration": "2000h"}}).to_string();
    let patch =
        ["patch", "certificate", "confrev-tls", "--namespace=confrev", "--type=merge", "--patch", &change];
    cluster().kubectl(&patch).run().ok();
    wait_for("both replicas to serve the renewed certificate", LIMIT * 3, || {
        let now = expiry();
        let renewed = now.len() == 2 && now.iter().zip(&before).all(|(now, before)| now < before);
        if renewed { Ok(()) } else { Err(format!("{now:?}, not earlier than {before:?}")) }
    });
    let writes = writer.stop();
    assert!(writes.refused.is_empty(), "{writes}");
}

/// A metric of one replica, as Prometheus would read it.
fn metric(pod: &Value, name: &str) -> f64 {
    let address = pod["status"]["podIP"].as_str().expect("a ready pod has an address");
    let admin = cluster().api().at(&format!("http://{address}:8080")).within(Duration::from_secs(5));
    let (code, text) = admin.get("/metrics");
    assert_eq!(code, 200, "{text}");
    let text = text.as_str().unwrap_or_default().to_owned();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().expect("a number")
}
