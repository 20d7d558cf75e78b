//! `--record-users`: the user in the annotation `changed-by` of snapshots.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;

use crate::control_plane::{API_SERVER, Stage};
use crate::mounted_secret::Mount;
use crate::processes::start;
use crate::until;

const MANAGER: &str = "editor";

/// The ConfigMaps of a namespace, as this user sees them.
async fn config_maps_as(stage: &Stage, user: &str, namespace: &str) -> Api<ConfigMap> {
    let kubeconfig = Kubeconfig::read_from(stage.plane.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    Api::namespaced(Client::try_from(config).unwrap(), namespace)
}

fn content(text: &str) -> Patch<serde_json::Value> {
    Patch::Merge(json!({"data": {"text": text}}))
}

fn workload(source: &str) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "labels": {"confrev.dev/enabled": "true"}},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "image": "app:1",
                "envFrom": [{"configMapRef": {"name": source}}]}]}}},
    }))
    .unwrap()
}

/// The annotation of the snapshot with this content, once the snapshot has it.
async fn changed_by(config_maps: &Api<ConfigMap>, text: &str) -> Option<String> {
    let found =
        config_maps.list(&kube::api::ListParams::default().labels("confrev.dev/source")).await.ok()?;
    let holds = |snapshot: &&ConfigMap| snapshot.data.as_ref().is_some_and(|data| data["text"] == text);
    found.items.iter().find(holds)?.metadata.annotations.as_ref()?.get("confrev.dev/changed-by").cloned()
}

/// Two replicas: either may get the review, and one of them creates the snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn snapshot_names_user_of_its_change() {
    let stage = Stage::take().await;
    let namespace = stage.namespace().await;
    let mount = Mount::new(&[("ca.crt", stage.clients.pem.as_bytes())]);
    let ca = format!("--client-ca={}", mount.dir().join("ca.crt").display());
    let name = format!("--client-name={API_SERVER}");
    let _programs = start(&stage, 2, &[], &[&ca, &name, "--record-users"]).await;
    let admin: Api<ConfigMap> = Api::namespaced(stage.client().await, namespace.name());
    let workloads: Api<Deployment> = Api::namespaced(stage.client().await, namespace.name());
    until("the workload", async || workloads.create(&PostParams::default(), &workload("demo")).await.ok())
        .await;

    let by = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    for (user, text) in
        [("alice", "B"), ("system:serviceaccount:shop:bob", "C"), ("carol", "D"), ("alice", "E")]
    {
        let own = config_maps_as(&stage, user, namespace.name()).await;
        own.patch("demo", &by, &content(text)).await.unwrap();
        let expected = format!("{MANAGER} (Update) by {user}");
        until("the user's name", async || (changed_by(&admin, text).await? == expected).then_some(())).await;
    }

    // Neither a dry run nor a write that is refused after its review counts.
    let eve = config_maps_as(&stage, "eve", namespace.name()).await;
    eve.patch("demo", &PatchParams { dry_run: true, ..by.clone() }, &content("F")).await.unwrap();
    let mut stale = admin.get("demo").await.unwrap();
    stale.metadata.managed_fields = None;
    stale.data = Some([("text".to_owned(), "F".to_owned())].into());
    admin.patch("demo", &by, &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}))).await.unwrap();
    let as_manager = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    eve.replace("demo", &as_manager, &stale).await.expect_err("the version is old");
    // Writes of one content by one field manager in one second cannot be distinguished.
    let second = jiff::Timestamp::now().as_second();
    until("the next second", async || (jiff::Timestamp::now().as_second() > second).then_some(())).await;
    let carol = config_maps_as(&stage, "carol", namespace.name()).await;
    carol.patch("demo", &by, &content("F")).await.unwrap();
    let expected = format!("{MANAGER} (Update) by carol");
    until("the user's name", async || (changed_by(&admin, "F").await? == expected).then_some(())).await;
}

/// Both managers have the same time then, and the API server keeps the creator as an owner of the map.
#[tokio::test(flavor = "multi_thread")]
async fn change_in_second_of_creation_has_author() {
    let stage = Stage::take().await;
    let namespace = stage.namespace().await;
    let _programs = start(&stage, 1, &[], &[]).await;
    let config_maps: Api<ConfigMap> = Api::namespaced(stage.client().await, namespace.name());
    let workloads: Api<Deployment> = Api::namespaced(stage.client().await, namespace.name());
    let by = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let mut numbers = 0..;
    let source = until("a change in the second of its object's creation", async || {
        let name = format!("young-{}", numbers.next()?);
        let created = ConfigMap {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            data: Some([("text".to_owned(), "A".to_owned())].into()),
            ..ConfigMap::default()
        };
        config_maps.create(&PostParams::default(), &created).await.ok()?;
        let changed = config_maps.patch(&name, &by, &content("B")).await.ok()?;
        let managers = changed.metadata.managed_fields?;
        (managers.len() == 2 && managers[0].time == managers[1].time).then_some(name)
    })
    .await;
    until("the workload", async || workloads.create(&PostParams::default(), &workload(&source)).await.ok())
        .await;
    assert_eq!(changed_by(&config_maps, "B").await.as_deref(), Some("editor (Update)"));
}
