//! The differences between kinds: Secrets beside ConfigMaps, Jobs and CronJobs, Rollouts without a template.

use confrev::{
    annotations,
    resolve::{
        Carried, Facts, Health, NamespaceFacts, NamespaceOptIn, Observed, Pass, Request, Workload, resolve,
    },
    snapshot::{Identity, Made, ObjectName, SourceKind, snapshot_json},
    template::revision_of,
};
use serde_json::{Value, json};

use super::world::{NAMESPACE, World, annotate, deployment, kind, remembered};

fn secret(world: &mut World, secret_type: &str) {
    let name = ObjectName::new(SourceKind::Secret, "demo");
    let object =
        json!({"metadata": {"name": "demo"}, "type": secret_type, "data": {"password": "aHVudGVyMg=="}});
    world.objects.insert(name, object);
}

fn with_secrets() -> Value {
    let mut object = deployment(&[]);
    let spec = &mut object["spec"]["template"]["spec"];
    spec["volumes"] = json!([
        {"name": "s", "secret": {"secretName": "demo"}},
        {"name": "p", "projected": {"sources": [{"secret": {"name": "demo"}}]}},
    ]);
    spec["containers"] = json!([{
        "name": "c",
        "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "demo", "key": "password"}}}],
        "envFrom": [{"secretRef": {"name": "demo"}}],
    }]);
    object
}

const SNAPSHOT: &str = "demo-9aed6f85b6";

/// The annotation of the workload takes precedence. Every form of reference is resolved.
#[test]
fn resolves_secrets_when_workload_or_namespace_asks() {
    for (annotation, namespace, resolved) in
        [(None, false, false), (None, true, true), (Some("true"), false, true), (Some("false"), true, false)]
    {
        let facts =
            NamespaceFacts { opt_in: NamespaceOptIn::Now, secrets: namespace, ..NamespaceFacts::default() };
        let mut world = World { namespace: facts, ..World::default() };
        secret(&mut world, "Opaque");
        let mut object = with_secrets();
        if let Some(value) = annotation {
            annotate(&mut object, annotations::SECRETS, value);
        }
        let text = world.create(&object)["spec"]["template"]["spec"].to_string();
        let expected = if resolved { 4 } else { 0 };
        assert_eq!(text.matches(SNAPSHOT).count(), expected, "{annotation:?} {namespace}: {text}");
        if resolved {
            let snapshot = &world.objects[&ObjectName::new(SourceKind::Secret, SNAPSHOT)];
            assert_eq!(snapshot["type"], "Opaque");
            assert_eq!(snapshot["immutable"], true);
            assert_eq!(snapshot["data"], json!({"password": "aHVudGVyMg=="}));
        }
    }
}

#[test]
fn platform_secrets_are_never_snapshotted() {
    for secret_type in
        ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token", "helm.sh/release.v1"]
    {
        let mut world = World::default();
        secret(&mut world, secret_type);
        let mut object = with_secrets();
        annotate(&mut object, annotations::SECRETS, "true");
        assert_eq!(world.create(&object)["spec"], object["spec"], "{secret_type}");
    }
}

/// The controller finds Jobs by this label.
#[test]
fn jobs_and_cronjobs_get_revision_label() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let revision = revision_of(r#"{"configmaps":{"demo":"demo-3a18d34e26"}}"#);
    let job = world.review(&kind("Job"), &deployment(&["demo"]), None).object;
    assert_eq!(job["metadata"]["labels"][annotations::REVISION], json!(revision));
    let template = deployment(&["demo"])["spec"]["template"].clone();
    for (metadata, expected) in [
        (json!({}), json!({})),
        (json!({"labels": {"a": "b"}}), json!({"labels": {"a": "b", annotations::REVISION: revision}})),
    ] {
        let cronjob = json!({
            "metadata": {"name": "c", "namespace": NAMESPACE, "labels": {annotations::ENABLED: "true"}},
            "spec": {"suspend": true, "jobTemplate": {"metadata": metadata, "spec": {"template": template}}},
        });
        let stored = world.review(&kind("CronJob"), &cronjob, None).object;
        assert_eq!(stored["spec"]["jobTemplate"]["metadata"], expected);
        assert_eq!(stored["metadata"]["labels"].get(annotations::REVISION), None);
        assert_eq!(world.review(&kind("CronJob"), &stored, Some(&stored)).object, stored);
        let mut out = stored.clone();
        out["metadata"]["labels"][annotations::ENABLED] = json!("false");
        let left = world.review(&kind("CronJob"), &out, Some(&stored)).object;
        assert_eq!(left["spec"]["jobTemplate"]["metadata"], cronjob["spec"]["jobTemplate"]["metadata"]);
    }
}

#[test]
fn warns_about_workload_ref_without_opt_in() {
    for (of, target, warned) in [
        ("Deployment", Some(true), false),
        ("Deployment", Some(false), true),
        ("Deployment", None, true),
        ("PodTemplate", Some(false), true),
    ] {
        let mut rollout = deployment(&[]);
        rollout["spec"] = json!({"workloadRef": {"apiVersion": "apps/v1", "kind": of, "name": "web"}});
        let mut world = World { target_enabled: target, ..World::default() };
        let admitted = world.review(&kind("Rollout"), &rollout, None);
        assert_eq!(admitted.object, rollout);
        let warnings = admitted.decision.warnings;
        assert_eq!(!warnings.is_empty(), warned, "{target:?}");
        assert!(warnings.iter().all(|text| text.contains(&format!("{of} \"web\""))), "{warnings:?}");
        // Other kinds are workloads only if they are configured.
        let is_configured = of == "Deployment";
        assert!(warnings.iter().all(|text| text.contains("--kind") != is_configured), "{warnings:?}");
    }
}

/// The pods of such a Deployment are the Rollout's.
#[test]
fn workload_with_failed_rollout_is_marked_unhealthy() {
    for (health, is_marked) in
        [(Health::Settled, false), (Health::Progressing, false), (Health::Failed, true)]
    {
        let mut world = World { referrers: health, ..World::default() };
        world.set("demo", json!({"color": "blue"}));
        let mut stored = world.create(&deployment(&["demo"]));
        stored["status"] = json!({"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
        world.set("demo", json!({"color": "green"}));
        let rolled = super::story::poke(&mut world, &stored, 1);
        assert_eq!(!remembered(&rolled, "unhealthy").is_null(), is_marked, "{health:?}");
    }
}

/// Its status may be that of an older template: what its controller last reported counts.
#[test]
fn failed_workload_is_marked_unhealthy() {
    let reason = |reason: &str| json!([{"type": "Progressing", "reason": reason}]);
    for (status, is_marked) in [
        (json!({"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}), false),
        (json!({"replicas": 1, "updatedReplicas": 0, "conditions": reason("ReplicaSetUpdated")}), false),
        (json!({"replicas": 1, "updatedReplicas": 1, "conditions": reason("NewReplicaSetAvailable")}), true),
        (
            json!({"replicas": 2, "updatedReplicas": 1, "conditions": reason("ProgressDeadlineExceeded")}),
            true,
        ),
    ] {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue"}));
        let mut stored = world.create(&deployment(&["demo"]));
        stored["metadata"]["generation"] = json!(2);
        stored["status"] = status;
        stored["status"]["observedGeneration"] = json!(1);
        world.set("demo", json!({"color": "green"}));
        let rolled = super::story::poke(&mut world, &stored, 1);
        assert_eq!(!remembered(&rolled, "unhealthy").is_null(), is_marked, "{}", stored["status"]);
    }
}

/// Its name in `sources` counts only as long as it is bound itself.
#[test]
fn unlabelled_source_is_never_its_own_snapshot() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    world.labelled("demo", "bind");
    let mut manifest = deployment(&["demo"]);
    manifest["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"] =
        json!([{"key": "color", "path": "color"}]);
    let stored = world.create(&manifest);
    let digest = world.observe(&super::world::configmap("demo")).unwrap().digest().to_string();
    let annotations = json!({annotations::SOURCE_NAME: "demo", annotations::DIGEST: digest});
    let labels = json!({annotations::MANAGED_BY: annotations::MANAGER, annotations::SOURCE: "demo"});
    let metadata = json!({"name": "demo", "labels": labels, "annotations": annotations});
    world.set_object("demo", json!({"metadata": metadata, "immutable": true, "data": {"color": "blue"}}));
    assert_eq!(super::world::volume(&world.update(&manifest, &stored), 0), "demo-3a18d34e26");
}

/// `sources` names the bound object, so that its revisions are found.
#[test]
fn bound_source_stays_as_written_and_in_sources() {
    let mut world = World::default();
    world.set("demo-v1", json!({"color": "blue"}));
    world.labelled("demo-v1", "bind");
    let stored = world.create(&deployment(&["demo-v1"]));
    assert_eq!(super::world::volume(&stored, 0), "demo-v1");
    let metadata = &stored["spec"]["template"]["metadata"];
    assert_eq!(metadata["annotations"][annotations::SOURCES], r#"{"configmaps":{"demo-v1":"demo-v1"}}"#);
    assert!(metadata["labels"][annotations::REVISION].is_string());
    assert_eq!(world.objects.len(), 1, "no snapshot is taken");
    assert_eq!(world.update(&stored, &stored), stored);
    assert_eq!(world.update(&deployment(&["demo-v1"]), &stored), stored);
    // A tool deletes the source: the template keeps its name.
    let mut gone = world.clone();
    gone.remove("demo-v1");
    assert_eq!(gone.update(&stored, &stored)["spec"], stored["spec"]);
    // The source is created again without the label: it is now resolved like other sources.
    world.set("demo-v1", json!({"color": "blue"}));
    assert_eq!(
        super::world::volume(&world.update(&deployment(&["demo-v1"]), &stored), 0),
        "demo-v1-3a18d34e26"
    );
}

/// A snapshot of it, as of any source, has none of its labels and annotations.
#[test]
fn restores_bound_source_with_its_own_metadata() {
    let copied = |object: &Value, name: &str| {
        let observed = Observed::read(SourceKind::ConfigMap, object.to_string().into_bytes()).unwrap();
        let identity = Identity { source: "demo-v1".to_owned(), digest: observed.digest() };
        let json = observed.json();
        let json = snapshot_json(
            SourceKind::ConfigMap,
            NAMESPACE,
            name,
            &identity,
            json,
            &[],
            Made::at(jiff::Timestamp::MAX),
        )
        .unwrap();
        serde_json::from_slice::<Value>(&json).unwrap()
    };
    for immutable in [None, Some(false), Some(true)] {
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": "demo-v1",
                "namespace": NAMESPACE,
                "labels": {annotations::ENABLED: "bind", annotations::MANAGED_BY: "Helm", "quote": ""},
                "annotations": {
                    "meta.helm.sh/release-name": "shop", "text": "\"{}\n", "long": "x".repeat(201 << 10),
                },
            },
            "data": {"color": "blue"},
        });
        if let Some(immutable) = immutable {
            object["immutable"] = json!(immutable);
        }
        let wanted = object.clone();
        // Because of these marks, tools would delete the source repeatedly.
        object["metadata"]["annotations"][annotations::LAST_APPLIED] = json!(wanted.to_string());
        object["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] =
            json!("shop:/ConfigMap:ns/demo-v1");
        object["metadata"]["labels"]["app.kubernetes.io/instance"] = json!("shop");
        assert_eq!(copied(&object, "demo-v1"), wanted);
        let snapshot = copied(&object, "demo-v1-3a18d34e26");
        assert_eq!(
            snapshot["metadata"]["labels"][annotations::MANAGED_BY],
            annotations::MANAGER,
            "like any snapshot"
        );
        assert_eq!(snapshot["immutable"], true);
        let annotations: Vec<_> = snapshot["metadata"]["annotations"].as_object().unwrap().keys().collect();
        assert_eq!(annotations, [annotations::BYTES, annotations::DIGEST, annotations::SOURCE_NAME]);
    }
}

/// This holds for Secrets that the template refers to, and for snapshots of Secrets.
#[test]
fn reads_no_secrets_when_secrets_are_disabled() {
    let mut world = World::default();
    secret(&mut world, "Opaque");
    let mut object = with_secrets();
    let plain = object.to_string();
    annotate(&mut object, annotations::SECRETS, "true");
    let stored = world.create(&object).to_string();
    assert!(stored.contains(SNAPSHOT), "{stored}");
    let kind = kind("Deployment");
    // Written by hand; resolved while Secrets were on and then applied again; undone; copied.
    for (new, old) in [
        (plain.as_str(), None),
        (&plain, Some(stored.as_str())),
        (&stored, Some(&stored)),
        (&stored, Some(&plain)),
        (&stored, None),
    ] {
        let parse = |text| Workload::parse(&kind, text).unwrap();
        let request = Request {
            namespace: "ns",
            secrets: false,
            new: parse(new),
            old: old.map(parse),
            carried: Carried::default(),
        };
        let mut facts = Facts::default();
        facts.set_revisions(Vec::new());
        let pass = resolve(&request, &facts);
        let Pass::Decided(decision) = pass else { panic!("{pass:?}: {new}, {old:?}") };
        assert_eq!(decision.denial, None);
    }
}
