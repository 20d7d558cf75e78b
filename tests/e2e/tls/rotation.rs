//! Certificates and CAs are renewed, replaced and lost while opted-in workloads are written without a pause. No write
//! fails, and none is stored unresolved.
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use confrev::tls::{Lifetimes, Transition};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::json;

use crate::control_plane::{NAMESPACE, SECRET, Stage};
use crate::mounted_secret::Mount;
use crate::replica::Replica;
use crate::test_cas::Authority;
use crate::until;
use crate::write_load::Load;

/// The time for API servers, and for other replicas, to learn of a new bundle. As short as a busy machine allows.
const SETTLE: Duration = Duration::from_secs(2);

/// The certificate of the current CA in the Secret.
async fn current(client: &Client) -> Option<Vec<u8>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    Some(secrets.get_opt(SECRET).await.unwrap()?.data?.remove("tls.crt")?.0)
}

/// The bundle that the API server trusts.
async fn published(client: &Client) -> String {
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = webhooks.get("confrev").await.unwrap();
    let mut bundles =
        configuration.webhooks.unwrap().into_iter().map(|webhook| webhook.client_config.ca_bundle);
    String::from_utf8(bundles.next().flatten().map_or_else(Vec::new, |bundle| bundle.0)).unwrap()
}

fn holds(bundle: &str, pem: &[u8]) -> bool {
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    plain(bundle).contains(&plain(&String::from_utf8_lossy(pem)))
}

/// Waits until all replicas serve a certificate of the CA `new`. Until then, `old` must be trusted.
async fn followed(client: &Client, replicas: &[Replica], load: &Load, old: &[u8], new: &[u8]) {
    until("every replica serves a certificate of the new CA", async || {
        load.check();
        let mut all = true;
        let trusted = published(client).await;
        for replica in replicas {
            let moved = replica.serves(new).await;
            // The certificate that a replica serves now was trusted before.
            assert!(moved || holds(&trusted, old), "the bundle lacks the CA of a served certificate");
            all &= moved;
        }
        all.then_some(())
    })
    .await;
}

/// Serving certificates and the CA are renewed, and the Secret is lost.
#[tokio::test(flavor = "multi_thread")]
async fn no_write_fails_while_own_ca_changes() {
    let stage = Stage::take().await;
    let (client, namespace) = (stage.client().await, stage.namespace().await);
    // The CA is old: the replicas create the next one immediately.
    let (old, old_key) = Authority::old();
    let secret = json!({
        "metadata": { "name": SECRET },
        "type": "kubernetes.io/tls",
        "stringData": { "tls.crt": old.pem, "tls.key": old_key, "ca.crt": old.pem },
    });
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let lifetimes = Lifetimes { serving: Duration::from_secs(10), settle: SETTLE, ..Lifetimes::default() };
    let replicas =
        [Replica::self_signed(&stage, lifetimes).await, Replica::self_signed(&stage, lifetimes).await];
    assert!(replicas[0].serves(old.pem.as_bytes()).await && replicas[1].serves(old.pem.as_bytes()).await);
    for replica in &replicas {
        replica.ready().await;
    }
    stage.service.behind(&[replicas[0].address, replicas[1].address]);
    let load = Load::start(&client, namespace.name()).await;

    let next = until("the next CA signs", async || {
        current(&client).await.filter(|current| current != old.pem.as_bytes())
    })
    .await;
    followed(&client, &replicas, &load, old.pem.as_bytes(), &next).await;

    let ends = replicas.each_ref().map(|replica| replica.source.serving().expires());
    until("renewed serving certificates", async || {
        load.check();
        let renewed =
            |(replica, end): (&Replica, &jiff::Timestamp)| replica.source.serving().expires() > *end;
        replicas.iter().zip(&ends).all(renewed).then_some(())
    })
    .await;
    until("the old CA leaves the bundle", async || {
        load.check();
        (!holds(&published(&client).await, old.pem.as_bytes())).then_some(())
    })
    .await;
    load.more(20).await;

    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    let other =
        until("another CA signs", async || current(&client).await.filter(|current| *current != next)).await;
    followed(&client, &replicas, &load, &next, &other).await;
    load.end().await;
}

/// New replicas start before the running one learns of the loss.
#[tokio::test(flavor = "multi_thread")]
async fn no_write_fails_when_ca_secret_is_lost() {
    let stage = Stage::take().await;
    let (client, namespace) = (stage.client().await, stage.namespace().await);
    // The previous CA stays in the bundle for this time.
    let lifetimes = Lifetimes { settle: Duration::from_mins(10), ..Lifetimes::default() };
    let mut replicas = vec![Replica::self_signed(&stage, lifetimes).await];
    replicas[0].ready().await;
    let old = current(&client).await.unwrap();
    stage.service.behind(&[replicas[0].address]);
    let load = Load::start(&client, namespace.name()).await;
    replicas[0].deaf();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    // Several replicas start at the same time.
    let started = futures::future::join_all((0..3).map(|_| Replica::self_signed(&stage, lifetimes))).await;
    replicas.extend(started);
    for replica in &replicas[1..] {
        replica.ready().await;
    }
    let addresses: Vec<_> = replicas.iter().map(|replica| replica.address).collect();
    stage.service.behind(&addresses);
    load.more(40).await;
    let new = current(&client).await.unwrap();
    assert!(new != old && replicas[0].serves(&old).await);
    for replica in &replicas[1..] {
        assert!(replica.serves(&new).await, "all started replicas share one CA");
    }
    load.end().await;
}

/// The files of one replica change after those of the other.
#[tokio::test(flavor = "multi_thread")]
async fn no_write_fails_while_mounted_ca_changes() {
    let stage = Stage::take().await;
    let (client, namespace) = (stage.client().await, stage.namespace().await);
    let authorities = [Authority::new(), Authority::new(), Authority::new()];
    let files = authorities.each_ref().map(|authority| (authority.server("confrev"), authority.pem.clone()));
    let content = |number: usize| {
        let (pair, authority) = &files[number];
        [
            ("tls.crt", pair.pem.as_bytes()),
            ("tls.key", pair.key_pem.as_bytes()),
            ("ca.crt", authority.as_bytes()),
        ]
    };
    let mut mounts = [Mount::new(&content(0)), Mount::new(&content(0))];
    let transition = Transition { settle: SETTLE, ..Transition::default() };
    let replicas = [
        Replica::files(&stage, &mounts[0], transition).await,
        Replica::files(&stage, &mounts[1], transition).await,
    ];
    for replica in &replicas {
        replica.ready().await;
    }
    stage.service.behind(&[replicas[0].address, replicas[1].address]);
    let load = Load::start(&client, namespace.name()).await;
    for number in 1..authorities.len() {
        let (old, new) = (authorities[number - 1].pem.as_bytes(), authorities[number].pem.as_bytes());
        mounts[0].swap(&content(number));
        followed(&client, &replicas[..1], &load, old, new).await;
        // The kubelet of the second replica's node is late.
        load.more(8).await;
        assert!(replicas[1].serves(old).await);
        mounts[1].swap(&content(number));
        followed(&client, &replicas, &load, old, new).await;
    }
    // The previous CA stays in the bundle for a while.
    assert!(holds(&published(&client).await, authorities[1].pem.as_bytes()));
    load.end().await;
}

/// Replaces the whole bundle, like cert-manager's injector.
async fn inject(client: &Client, pem: &str) {
    let kinds = [
        ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
    ];
    for kind in &kinds {
        let configurations: Api<DynamicObject> = Api::all_with(client.clone(), kind);
        until("a write of the injector", async || {
            let mut configuration = configurations.get("confrev").await.unwrap();
            let annotations = configuration.metadata.annotations.get_or_insert_default();
            annotations.insert("cert-manager.io/inject-ca-from".to_owned(), "confrev/confrev-tls".to_owned());
            for webhook in configuration.data["webhooks"].as_array_mut().unwrap() {
                webhook["clientConfig"]["caBundle"] = STANDARD.encode(pem).into();
            }
            // The write is refused if the replica has written its URL meanwhile.
            configurations.replace("confrev", &PostParams::default(), &configuration).await.ok()
        })
        .await;
    }
}

/// Another injector writes the bundle. New files are served once the bundle contains their CA.
#[tokio::test(flavor = "multi_thread")]
async fn new_files_wait_for_their_injected_ca() {
    let stage = Stage::take().await;
    let client = stage.client().await;
    let [old, new] = [Authority::new(), Authority::new()];
    let pairs = [&old, &new].map(|authority| (authority.server("confrev"), &authority.pem));
    let [before, after] = pairs.each_ref().map(|(pair, authority)| {
        [
            ("tls.crt", pair.pem.as_bytes()),
            ("tls.key", pair.key_pem.as_bytes()),
            ("ca.crt", authority.as_bytes()),
        ]
    });
    inject(&client, &old.pem).await;
    let mut mount = Mount::new(&before);
    let transition = Transition { settle: Duration::from_secs(1), linger: Duration::ZERO };
    let replica = Replica::files(&stage, &mount, transition).await;
    replica.ready().await;
    mount.swap(&after);
    let stays = async {
        loop {
            assert!(replica.serves(old.pem.as_bytes()).await, "the API server does not trust the new CA yet");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    // Several checks of the files, and more than the time to settle.
    tokio::time::timeout(Duration::from_secs(4), stays).await.expect_err("the certificate stays in use");
    assert_eq!(published(&client).await, old.pem, "only the injector writes the bundle");
    inject(&client, &new.pem).await;
    until("the new files are served", async || replica.serves(new.pem.as_bytes()).await.then_some(())).await;
    assert_eq!(published(&client).await, new.pem);
}
