//! Install, upgrade, uninstall: helm on a control plane of its own, with confrev beside it as in development, as there
//! is no Service network that pods could be reached by.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::bare::{Bare, LIMIT, OBJECTS_IN_THE_WAY, SNAPSHOTS, apply, reads, web};
use crate::helm::root;

#[test]
fn after_uninstall_workloads_go_on_with_their_snapshots_and_nothing_is_blocked() {
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
    // What was guarded can be removed: first one object, then the namespace with all of it, then confrev's own.
    kubectl(&["delete", "configmap", &snapshot]).ok();
    assert_eq!(bare.cluster.list("configmap", namespace.name(), SNAPSHOTS).len(), 0);
    bare.cluster.kubectl(&["delete", "namespace", namespace.name(), "--timeout=60s"]).run().ok();
    bare.cluster.kubectl(&["delete", "namespace", "confrev", "--timeout=60s"]).run().ok();
}

/// In a hurry, without helm: the cluster-wide objects stay, and step aside. Helm takes them over when it installs again.
#[test]
fn deleting_the_namespace_alone_blocks_nothing_and_helm_installs_again() {
    let bare = Bare::new();
    let by_label = bare.cluster.namespace("alone");
    let by_namespace = bare.cluster.namespace_labelled("alone", &[("confrev.dev/enabled", "true")]);
    let both = [by_label.name(), by_namespace.name()];
    let (mut program, outside) = bare.running();
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
    assert_eq!(bare.in_the_way().len(), OBJECTS_IN_THE_WAY, "they are left behind");
    for (namespace, snapshot) in both.iter().zip(&snapshots) {
        // The API server learns by a watch of its own that the right is gone.
        wait_for("a template to change", LIMIT, || {
            let applied = apply(&bare, namespace, &web("app:2", "B"));
            if applied.status.success() { Ok(()) } else { Err(applied.stderr) }
        });
        assert_eq!(reads(&bare, namespace), "demo", "as it was written");
        bare.cluster.kubectl(&["delete", "configmap", snapshot, "-n", namespace]).run().ok();
    }
    // As it ran outside the cluster: the webhooks still hold its URL.
    bare.install(&outside);
    bare.uninstall().ok();
    assert_eq!(bare.in_the_way(), [""; 0], "left behind");
}

#[test]
fn an_upgrade_changes_what_it_is_told_to_and_keeps_the_ca_bundle_that_confrev_wrote() {
    let bare = Bare::new();
    bare.install(&[]);
    // As confrev writes it in the cluster.
    let bundle = STANDARD.encode(bare.cluster.ca_pem());
    let bundles = || -> Vec<_> {
        bare.webhooks().iter().map(|webhook| webhook["clientConfig"]["caBundle"].clone()).collect()
    };
    let write = |index| json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle});
    let patch = Value::from((0..bundles().len()).map(write).collect::<Vec<_>>()).to_string();
    let configuration =
        ["patch", "mutatingwebhookconfiguration", "confrev", "--type=json", "--patch", &patch];
    bare.cluster.kubectl(&configuration).run().ok();

    bare.release("upgrade", &[("replicas", json!(3)), ("failurePolicy", json!("Ignore"))]).ok();
    assert_eq!(bundles(), vec![json!(bundle); 4], "an upgrade must not cut the API server off");
    assert_eq!(bare.webhooks()[0]["failurePolicy"], "Ignore");
    assert_eq!(bare.cluster.get("deployment", "confrev", "confrev").unwrap()["spec"]["replicas"], 3);
    // More webhooks, in the list that others were written into meanwhile.
    bare.release("upgrade", &[("secrets.enabled", json!(true))]).ok();
    let secrets = [Value::Null, Value::Null];
    assert_eq!(bundles(), [vec![json!(bundle); 4], secrets.to_vec()].concat());
    bare.uninstall().ok();
}

/// The webhooks point at confrev's URL then, where the chart without `webhookUrl` has a Service.
#[test]
fn an_upgrade_works_while_confrev_runs_outside_the_cluster() {
    let bare = Bare::new();
    let namespace = bare.cluster.namespace("outside");
    let (_program, outside) = bare.running();
    let before = bare.webhooks();
    bare.release("upgrade", &[&outside[..], &[("excludedNamespaces", json!(["legacy"]))]].concat()).ok();
    for (before, after) in before.iter().zip(bare.webhooks()) {
        assert_eq!(before["clientConfig"], after["clientConfig"], "as confrev has it");
    }
    apply(&bare, namespace.name(), &web("app:1", "A")).ok();
    assert!(reads(&bare, namespace.name()).starts_with("demo-"));

    // Back to the Service: confrev, which still runs outside, makes it its URL again.
    bare.release("upgrade", &[("replicas", json!(0))]).ok();
    wait_for("the webhooks to be as before", LIMIT, || {
        let same = |(before, after): (&Value, &Value)| before["clientConfig"] == after["clientConfig"];
        before.iter().zip(&bare.webhooks()).all(same).then_some(())
    });

    // Now a Service stands in the release and a URL in the cluster. Helm keeps the one and so cannot write the other:
    // the API server refuses, nothing is changed, and the value is the way out, as values.yaml says.
    let refused = bare.release("upgrade", &[("replicas", json!(1))]).refused();
    assert!(refused.contains("exactly one of url or service"), "{refused}");
    assert_eq!(bare.webhooks()[0]["clientConfig"], before[0]["clientConfig"]);
    bare.release("upgrade", &outside).ok();
    bare.uninstall().ok();
}

#[test]
fn the_manifests_are_applied_again_and_again_in_both_ways_and_deleted_without_a_trace() {
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
