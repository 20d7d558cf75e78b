//! Installations with fewer rights: confrev works, and the API server refuses other requests with its token.

use std::path::Path;

use confrev_controlplane::{Program, wait_for};
use serde_json::json;

use crate::empty_cluster::{Bare, LIMIT, apply, reads, web};
use crate::mounted_secret::Mount;

const MERGE: &str = "application/merge-patch+json";

/// Waits until the Deployment `web` reads another snapshot than this one.
fn wait_rolled(bare: &Bare, namespace: &str, before: &str) -> String {
    wait_for("the workload to roll", LIMIT, || {
        let now = reads(bare, namespace);
        if now.starts_with("demo-") && now != before { Ok(now) } else { Err(now) }
    })
}

fn change(bare: &Bare, namespace: &str, text: &str) {
    let source = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo"}, "data": {"text": text}});
    apply(bare, namespace, &source).ok();
}

#[test]
fn confrev_acts_only_in_listed_namespaces() {
    let bare = Bare::new();
    let cluster = bare.cluster;
    let [listed, other] = ["listed", "other"].map(|name| cluster.namespace(name));
    // In `default`, the tests see whether the API server calls confrev.
    let namespaces = json!([listed.name(), "default"]);
    let settings = [("rbac.namespaces", namespaces), ("secrets.enabled", json!(true))];
    let only = format!("--namespaces={},default", listed.name());
    let (mut program, _) = bare.running_with(&settings, &["--secrets", &only]);
    apply(&bare, listed.name(), &web("app:1", "A")).ok();
    let first = wait_rolled(&bare, listed.name(), "");
    change(&bare, listed.name(), "B");
    wait_rolled(&bare, listed.name(), &first);

    // The webhook is not called elsewhere, and the token has no rights there.
    apply(&bare, other.name(), &web("app:1", "A")).ok();
    assert_eq!(reads(&bare, other.name()), "demo");
    let confrev = cluster.api_as(&cluster.kubeconfig_for_service_account("confrev", "confrev"));
    let configmaps = format!("/api/v1/namespaces/{}/configmaps", other.name());
    let secrets = format!("/api/v1/namespaces/{}/secrets", other.name());
    let workload = format!("/apis/apps/v1/namespaces/{}/deployments/web?dryRun=All", other.name());
    for (what, (code, answer)) in [
        ("create a ConfigMap", confrev.post(&configmaps, &json!({"metadata": {"name": "any"}}))),
        ("delete a ConfigMap", confrev.delete(&format!("{configmaps}/demo?dryRun=All"))),
        ("patch a ConfigMap", confrev.patch(&format!("{configmaps}/demo?dryRun=All"), MERGE, &json!({}))),
        ("create a Secret", confrev.post(&secrets, &json!({"metadata": {"name": "any"}}))),
        ("get a Secret", confrev.get(&format!("{secrets}/any"))),
        ("list Secrets", confrev.get(&secrets)),
        ("list all Secrets", confrev.get("/api/v1/secrets")),
        ("patch a workload", confrev.patch(&workload, MERGE, &json!({}))),
    ] {
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(code == 403 && message.contains(" cannot "), "{what}: {code} {answer}");
    }
    program.stop();
    bare.uninstall().ok();
}

/// With a certificate of another CA, and its `caBundle` in the chart, confrev has nothing to write there.
#[test]
fn own_certificate_needs_no_right_on_webhooks() {
    let bare = Bare::new();
    let cluster = bare.cluster;
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
    let mount = Mount::new(&[("tls.crt", certificate.as_bytes()), ("tls.key", key.as_bytes())]);
    let settings = [
        ("certificates.mode", json!("secret")),
        ("certificates.secret.name", json!("pair")),
        ("certificates.secret.caBundle", json!(certificate)),
    ];
    bare.install(&settings);
    let program = Program::new(cluster, Path::new(env!("CARGO_BIN_EXE_confrev")));
    let mut outside = settings.to_vec();
    outside.extend([("webhookUrl", json!(program.webhook_url())), ("replicas", json!(0))]);
    bare.release("upgrade", &outside).ok();
    let mut program = program.with_certificates(mount.dir());
    program.start();
    let namespace = cluster.namespace("limited");
    apply(&bare, namespace.name(), &web("app:1", "A")).ok();
    let first = wait_rolled(&bare, namespace.name(), "");
    change(&bare, namespace.name(), "B");
    wait_rolled(&bare, namespace.name(), &first);

    let confrev = cluster.api_as(&cluster.kubeconfig_for_service_account("confrev", "confrev"));
    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/confrev");
        assert_eq!(confrev.get(&path).0, 200, "{kind} can be read");
        let (code, answer) = confrev.patch(&format!("{path}?dryRun=All"), MERGE, &json!({}));
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(code == 403 && message.contains(" cannot patch "), "{kind}: {code} {answer}");
    }
    program.stop();
    bare.uninstall().ok();
}
