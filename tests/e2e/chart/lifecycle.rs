//! Install, upgrade and uninstall with helm on a separate control plane. confrev runs outside the cluster, as in
//! development, since no Service network leads to pods.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, CONFIGURATIONS, LIMIT, OBJECTS_IN_THE_WAY, SNAPSHOTS, apply, reads, web};
use crate::helm::root;

#[test]
fn uninstall_keeps_snapshots_and_blocks_nothing() {
    let bare = Bare::new();
    let namespace = bare.cluster.namespace("left");
    let (mut program, _) = bare.running();
    apply(&bare, namespace.name(), &web("app:1", "A")).ok();
    let snapshot = reads(&bare, namespace.name());
    assert!(snapshot.starts_with("demo-"), "the installation works: {snapshot}");
    let pods = || bare.cluster.ready_pods(namespace.name(), "app=web").len();
    wait_for("a ready pod", LIMIT, || (pods() == 1).then_some(()));

    bare.uninstall().ok();
    program.kill();
    assert_eq!(bare.in_the_way(), [""; 0], "left behind");
    assert_eq!(reads(&bare, namespace.name()), snapshot, "uninstalling changes no workload");

    let kubectl =
        |arguments: &[&str]| bare.cluster.kubectl(arguments).arg("--namespace").arg(namespace.name()).run();
    kubectl(&["scale", "deployment/web", "--replicas=3"]).ok();
    wait_for("three ready pods of the same revision", LIMIT, || (pods() == 3).then_some(()));
    kubectl(&["set", "image", "deployment/web", "app=app:2"]).ok();
    apply(&bare, namespace.name(), &web("app:3", "B")).ok();
    // Guarded objects can be deleted: first one snapshot, then the namespace with the others, then confrev's namespace.
    kubectl(&["delete", "configmap", &snapshot]).ok();
    assert_eq!(bare.cluster.list("configmap", namespace.name(), SNAPSHOTS).len(), 0);
    bare.cluster.kubectl(&["delete", "namespace", namespace.name(), "--timeout=60s"]).run().ok();
    bare.cluster.kubectl(&["delete", "namespace", "confrev", "--timeout=60s"]).run().ok();
}

/// Without helm, the cluster-wide objects remain, and have no effect. Helm adopts them at the next installation.
#[test]
fn deleting_the_namespace_blocks_nothing_and_allows_reinstall() {
    let bare = Bare::new();
    let by_label = bare.cluster.namespace("alone");
    let by_namespace = bare.cluster.namespace_labelled("alone", &[("confrev.dev/enabled", "true")]);
    let both = [by_label.name(), by_namespace.name()];
    let (mut program, outside) = bare.running_with(&[("outage", json!("refuse"))], &[]);
    for namespace in both {
        apply(&bare, namespace, &web("app:1", "A")).ok();
    }
    let snapshots = both.map(|namespace| reads(&bare, namespace));
    assert!(snapshots.iter().all(|snapshot| snapshot.starts_with("demo-")), "{snapshots:?}");
    for (namespace, snapshot) in both.iter().zip(&snapshots) {
        wait_for("the snapshot to be bound", LIMIT, || {
            let snapshot = bare.cluster.get("configmap", namespace, snapshot)?;
            snapshot["metadata"]["ownerReferences"].as_array().map(Vec::len)
        });
    }
    program.kill();
    for (namespace, snapshot) in both.iter().zip(&snapshots) {
        let refused = apply(&bare, namespace, &web("app:2", "B")).refused();
        assert!(
            refused.contains("failed calling webhook"),
            "confrev is down, and still installed: {refused}"
        );
        let refused =
            bare.cluster.kubectl(&["delete", "configmap", snapshot, "-n", namespace]).run().refused();
        assert!(refused.contains("in use by"), "{refused}");
    }

    bare.cluster.kubectl(&["delete", "namespace", "confrev", "--timeout=60s"]).run().ok();
    assert_eq!(bare.in_the_way().len(), OBJECTS_IN_THE_WAY, "they remain");
    for (namespace, snapshot) in both.iter().zip(&snapshots) {
        // The API server learns with a delay, by its own watch, that the right was deleted.
        wait_for("a template to change", LIMIT, || {
            let applied = apply(&bare, namespace, &web("app:2", "B"));
            if applied.status.success() { Ok(()) } else { Err(applied.stderr) }
        });
        assert_eq!(reads(&bare, namespace), "demo", "as it was written");
        bare.cluster.kubectl(&["delete", "configmap", snapshot, "-n", namespace]).run().ok();
    }
    // With the settings of a confrev outside the cluster: the webhooks still have its URL.
    bare.install(&outside);
    bare.uninstall().ok();
    assert_eq!(bare.in_the_way(), [""; 0], "left behind");
}

#[test]
fn helm_upgrade_keeps_ca_bundle_written_by_confrev() {
    let bare = Bare::new();
    bare.install(&[]);
    // Write it as confrev does in the cluster.
    let bundle = STANDARD.encode(bare.cluster.ca_pem());
    let bundles = || -> Vec<_> {
        bare.webhooks().iter().map(|webhook| webhook["clientConfig"]["caBundle"].clone()).collect()
    };
    let write = |index| json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle});
    for kind in CONFIGURATIONS {
        let patch: Vec<_> = (0..bare.webhooks_of(kind).len()).map(write).collect();
        let patch = Value::from(patch).to_string();
        bare.cluster.kubectl(&["patch", kind, "confrev", "--type=json", "--patch", &patch]).run().ok();
    }
    let count = bundles().len();

    bare.release("upgrade", &[("replicas", json!(3)), ("outage", json!("admit"))]).ok();
    assert_eq!(bundles(), vec![json!(bundle); count], "an upgrade must not cut the API server off");
    assert_eq!(bare.webhooks()[0]["failurePolicy"], "Ignore");
    assert_eq!(bare.cluster.get("deployment", "confrev", "confrev").unwrap()["spec"]["replicas"], 3);
    // More webhooks, in a list whose entries have changed meanwhile.
    bare.release("upgrade", &[("secrets.enabled", json!(true))]).ok();
    let secrets = [Value::Null, Value::Null, Value::Null];
    assert_eq!(bundles(), [vec![json!(bundle); count], secrets.to_vec()].concat());
    bare.uninstall().ok();
}

/// The webhooks then have confrev's URL. Without `webhookUrl`, the chart has a Service instead.
#[test]
fn helm_upgrade_works_with_confrev_outside_cluster() {
    let bare = Bare::new();
    let namespace = bare.cluster.namespace("outside");
    let (_program, outside) = bare.running();
    let before = bare.webhooks();
    bare.release("upgrade", &[&outside[..], &[("excludedNamespaces", json!(["legacy"]))]].concat()).ok();
    for (before, after) in before.iter().zip(bare.webhooks()) {
        assert_eq!(before["clientConfig"], after["clientConfig"], "as confrev wrote it");
    }
    apply(&bare, namespace.name(), &web("app:1", "A")).ok();
    assert!(reads(&bare, namespace.name()).starts_with("demo-"));

    // Back to the Service: confrev still runs outside, and writes its URL again.
    bare.release("upgrade", &[("replicas", json!(0))]).ok();
    wait_for("the webhooks to be as before", LIMIT, || {
        let same = |(before, after): (&Value, &Value)| before["clientConfig"] == after["clientConfig"];
        before.iter().zip(&bare.webhooks()).all(same).then_some(())
    });

    // Now the release has a Service and the cluster has a URL. Helm keeps the URL and adds the Service, so the API server
    // refuses the upgrade, and nothing changes. The solution is the value `webhookUrl`, as values.yaml says.
    let refused = bare.release("upgrade", &[("replicas", json!(1))]).refused();
    assert!(refused.contains("exactly one of url or service"), "{refused}");
    assert_eq!(bare.webhooks()[0]["clientConfig"], before[0]["clientConfig"]);
    bare.release("upgrade", &outside).ok();
    bare.uninstall().ok();
}

/// The manifests are applied client-side and server-side.
#[test]
fn manifests_reapply_and_delete_without_remains() {
    let bare = Bare::new();
    let manifests = root().join("manifests/self-signed.yaml").display().to_string();
    let client = ["apply", "-f", &manifests];
    let server = ["apply", "--server-side", "-f", &manifests];
    for apply in [&client[..], &client, &server, &server, &client] {
        bare.cluster.kubectl(apply).run().ok();
    }
    assert_eq!(bare.in_the_way().len(), OBJECTS_IN_THE_WAY, "{:?}", bare.in_the_way());
    bare.cluster.kubectl(&["delete", "--wait", "-f", &manifests]).run().ok();
    assert_eq!(bare.in_the_way(), [""; 0], "left behind");
}
