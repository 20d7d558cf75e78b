//! Certificates and authorities are renewed, replaced and lost while opted-in workloads are written without a pause: no
//! write fails, and none is admitted without confrev.
use std::time::Duration;

use confrev::tls::{Lifetimes, Transition};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::authorities::Authority;
use crate::load::Load;
use crate::mount::Mount;
use crate::replica::Replica;
use crate::stage::{NAMESPACE, SECRET, Stage};
use crate::until;

/// For API servers to hear of a new bundle, and for replicas of each other. As short as a busy machine allows.
const SETTLE: Duration = Duration::from_secs(2);

/// One authority's certificate in the Secret.
async fn current(client: &Client) -> Option<Vec<u8>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    Some(secrets.get_opt(SECRET).await.unwrap()?.data?.remove("tls.crt")?.0)
}

/// What the API server is told to trust.
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

/// Waits until all replicas serve what the authority `new` has signed. Until then `old` has to be trusted.
async fn followed(client: &Client, replicas: &[Replica], load: &Load, old: &[u8], new: &[u8]) {
    until("every replica serves a certificate of the new authority", async || {
        load.check();
        let mut all = true;
        let trusted = published(client).await;
        for replica in replicas {
            let moved = replica.serves(new).await;
            // What a replica serves now was trusted before.
            assert!(moved || holds(&trusted, old), "the authority of what is served has left the bundle");
            all &= moved;
        }
        all.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_write_fails_while_self_signed_certificates_and_their_authority_are_renewed_and_lost() {
    let stage = Stage::take().await;
    let (client, namespace) = (stage.client().await, stage.namespace().await);
    // The next one is made at once.
    let (old, old_key) = Authority::old();
    let secret = json!({
        "metadata": { "name": SECRET },
        "type": "kubernetes.io/tls",
        "stringData": { "tls.crt": old.pem, "tls.key": old_key, "ca.crt": old.pem },
    });
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let lifetimes = Lifetimes { serving: Duration::from_secs(12), settle: SETTLE, ..Lifetimes::default() };
    let replicas =
        [Replica::self_signed(&stage, lifetimes).await, Replica::self_signed(&stage, lifetimes).await];
    assert!(replicas[0].serves(old.pem.as_bytes()).await && replicas[1].serves(old.pem.as_bytes()).await);
    for replica in &replicas {
        replica.ready().await;
    }
    stage.service.behind(&[replicas[0].address, replicas[1].address]);
    let load = Load::start(&client, namespace.name()).await;

    let next = until("the next authority signs", async || {
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
    until("the old authority leaves the bundle", async || {
        load.check();
        (!holds(&published(&client).await, old.pem.as_bytes())).then_some(())
    })
    .await;
    load.more(20).await;

    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    let other =
        until("another authority signs", async || current(&client).await.filter(|current| *current != next))
            .await;
    followed(&client, &replicas, &load, &next, &other).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_write_fails_when_the_secret_is_lost_and_a_replica_starts_before_the_others_have_heard_of_it() {
    let stage = Stage::take().await;
    let (client, namespace) = (stage.client().await, stage.namespace().await);
    // The authority before stays in the bundle for as long.
    let lifetimes = Lifetimes { settle: Duration::from_mins(10), ..Lifetimes::default() };
    let mut replicas = vec![Replica::self_signed(&stage, lifetimes).await];
    replicas[0].ready().await;
    let old = current(&client).await.unwrap();
    stage.service.behind(&[replicas[0].address]);
    let load = Load::start(&client, namespace.name()).await;
    replicas[0].deaf();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    // Several at once.
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
        assert!(replica.serves(&new).await, "all that start share one authority");
    }
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_write_fails_while_the_files_of_one_replica_after_the_other_come_to_have_another_authority() {
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
    let transition = Transition { settle: SETTLE, linger: Duration::from_secs(10) };
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
        // The other node's kubelet is late.
        load.more(8).await;
        assert!(replicas[1].serves(old).await);
        mounts[1].swap(&content(number));
        followed(&client, &replicas, &load, old, new).await;
    }
    until("the authority before leaves the bundle", async || {
        load.check();
        (published(&client).await == authorities[2].pem).then_some(())
    })
    .await;
    load.end().await;
}
