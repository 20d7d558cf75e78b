//! The watches: lists and changes from the API server, applied to the state.

pub(crate) mod follow;
pub(crate) mod object;
pub(crate) mod subjects;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::{sync::watch, task::JoinSet};

use self::{
    follow::follow,
    subjects::{
        InNamespace, LabelledSubject, NamespacesSubject, ReferringSubject, RefusedSubject, RevisionsSubject,
        SnapshotsSubject, Subject, UsedSourcesSubject, WorkloadsSubject,
    },
};
use super::{
    reconcile::state::State,
    shared::{Shared, SyncPoint},
};
use crate::{
    annotations,
    cluster::{KubeApi, Listed, path},
    kinds::{REVISION_KINDS, WorkloadKind},
    resolve::REFUSED_CONTENTS,
    snapshot::SourceKind,
};

/// Runs every watch. Returns only when a watch fails beyond repair; the process must then stop, because it misses changes.
/// `home`: confrev's own namespace.
pub async fn watch_all(api: KubeApi, shared: Shared, home: String) {
    let mut tasks = JoinSet::new();
    let namespaces_are_listed = watch::Sender::new(false);
    let kinds = Arc::clone(&shared.reader().kinds);
    for (world, kind) in kinds.iter().enumerate() {
        let of =
            everywhere(&kind.api_version(), &kind.plural, &format!("{}=true", annotations::ENABLED), false);
        let follow = follow(api.clone(), of, WorkloadsSubject(world), shared.clone(), shared.sync_point());
        // What a workload inherits is part of its record.
        let mut first = namespaces_are_listed.subscribe();
        tasks.spawn(async move {
            let _ = first.wait_for(|listed| *listed).await;
            follow.await;
        });
    }
    for (world, kind) in REVISION_KINDS.iter().enumerate() {
        let of = everywhere(&kind.api_version(), kind.plural, annotations::REVISION, false);
        tasks.spawn(follow(api.clone(), of, RevisionsSubject(world), shared.clone(), shared.sync_point()));
    }
    let source_kinds = shared.lock().config.source_kinds();
    for &kind in source_kinds {
        let snapshots =
            format!("{}={},{}", annotations::MANAGED_BY, annotations::MANAGER, annotations::SOURCE);
        let labelled = format!("{} in (true,bind)", annotations::ENABLED);
        // If only some namespaces are served, nothing else may be readable.
        let namespaces: Vec<_> = shared.served().listed().map(Arc::<str>::from).collect();
        for namespace in &namespaces {
            let Ok(collection) = path::collection("v1", namespace, kind.plural()) else { continue };
            let of = |selector: &str| Listed {
                collection: collection.clone(),
                selector: selector.to_owned(),
                only: None,
                metadata_only: true,
            };
            let subject = InNamespace(SnapshotsSubject(kind), Arc::clone(namespace));
            tasks.spawn(follow(api.clone(), of(&snapshots), subject, shared.clone(), shared.sync_point()));
            let subject = InNamespace(LabelledSubject(kind), Arc::clone(namespace));
            tasks.spawn(follow(api.clone(), of(&labelled), subject, shared.clone(), shared.sync_point()));
        }
        if namespaces.is_empty() {
            let of = everywhere("v1", kind.plural(), &snapshots, true);
            tasks.spawn(follow(api.clone(), of, SnapshotsSubject(kind), shared.clone(), shared.sync_point()));
            let of = everywhere("v1", kind.plural(), &labelled, true);
            tasks.spawn(follow(api.clone(), of, LabelledSubject(kind), shared.clone(), shared.sync_point()));
        }
    }
    if let Ok(collection) = path::collection("v1", &home, SourceKind::ConfigMap.plural()) {
        let of = Listed {
            collection,
            selector: String::new(),
            only: Some(REFUSED_CONTENTS),
            metadata_only: false,
        };
        tasks.spawn(follow(api.clone(), of, RefusedSubject, shared.clone(), shared.sync_point()));
    }
    // All of them: a window counts in a namespace that opts nothing in, too, and no selector finds annotations.
    let of = everywhere("v1", "namespaces", "", true);
    let subject = NamespacesSubject(namespaces_are_listed);
    tasks.spawn(follow(api.clone(), of, subject, shared.clone(), shared.sync_point()));
    shared.sync_points_are_complete();
    for &kind in source_kinds {
        tasks.spawn(watch_used_sources(kind, api.clone(), shared.clone()));
    }
    if let Some(rollouts) = kinds.by_resource("argoproj.io", "rollouts") {
        tasks.spawn(watch_referrers(rollouts.clone(), api.clone(), shared.clone()));
    }
    let ended = tasks.join_next().await;
    tracing::error!(?ended, "a watch ended");
}

/// A collection over all namespaces.
fn everywhere(api_version: &str, plural: &str, selector: &str, metadata_only: bool) -> Listed {
    let root = if api_version.contains('/') { "/apis" } else { "/api" };
    Listed {
        collection: format!("{root}/{api_version}/{plural}"),
        selector: selector.to_owned(),
        only: None,
        metadata_only,
    }
}

/// Keeps one metadata-only watch of a kind of source in each namespace that confrev works in.
///
/// One watch of the cluster would cost traffic for every namespace; one for each source would need a connection each.
async fn watch_used_sources(kind: SourceKind, api: KubeApi, shared: Shared) {
    let watch = |namespace: &Arc<str>| {
        // The namespace comes from an object in it.
        let collection = path::collection("v1", namespace, kind.plural()).ok()?;
        // Snapshots never change.
        let selector = format!("!{}", annotations::SOURCE);
        let of = Listed { collection, selector, only: None, metadata_only: true };
        Some((of, UsedSourcesSubject(kind, Arc::clone(namespace))))
    };
    let wanted =
        |state: &State| state.watched_namespaces().into_iter().map(|namespace| (namespace, 0)).collect();
    watch_namespaces(api, shared, wanted, watch).await;
}

/// Keeps one watch of Rollouts in each namespace in which a source has `max-in-flight`.
async fn watch_referrers(kind: WorkloadKind, api: KubeApi, shared: Shared) {
    let watch = |namespace: &Arc<str>| {
        let collection = path::collection(&kind.api_version(), namespace, &kind.plural).ok()?;
        let of = Listed { collection, selector: String::new(), only: None, metadata_only: false };
        Some((of, ReferringSubject(Arc::clone(namespace))))
    };
    watch_namespaces(api, shared, State::limited_namespaces, watch).await;
}

/// Keeps one watch in each of the `wanted` namespaces. If the number of a namespace changes, its watch is replaced.
async fn watch_namespaces<S: Subject + Sync>(
    api: KubeApi,
    shared: Shared,
    wanted: impl Fn(&State) -> BTreeMap<Arc<str>, usize>,
    watch: impl Fn(&Arc<str>) -> Option<(Listed, S)>,
) {
    let mut changes = shared.namespace_changes();
    let mut running: HashMap<Arc<str>, (usize, tokio::task::AbortHandle)> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let mut wanted = wanted(&shared.lock());
        wanted.retain(|namespace, _| shared.served().contains(namespace));
        running.retain(|namespace, (number, task)| {
            let keep = wanted.get(namespace) == Some(number);
            if !keep {
                task.abort();
            }
            keep
        });
        for (namespace, number) in wanted {
            let Some((of, subject)) = watch(&namespace) else { continue };
            running.entry(namespace).or_insert_with(|| {
                let following = follow(api.clone(), of, subject, shared.clone(), SyncPoint::default());
                (number, tasks.spawn(following))
            });
        }
        while tasks.try_join_next().is_some() {}
        if changes.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, convert::Infallible, sync::Mutex, time::Duration};

    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::{
        controller::reconcile::fixture::{limited, on, set_source, state},
        resolve::Health,
        telemetry::{Metrics, Readiness},
        world::{Served, WorkloadKey, fixture::key},
    };

    /// The collections and selectors that are listed. Every kind is missing.
    async fn listed(state: State) -> BTreeSet<String> {
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let selector = query.split('&').find_map(|part| part.strip_prefix("labelSelector="));
            log.lock().unwrap().insert(format!("{} {}", request.uri().path(), selector.unwrap_or_default()));
            let body = json!({"kind": "Status", "message": "not found"}).to_string();
            let mut response = http::Response::new(Body::from(body.into_bytes()));
            *response.status_mut() = http::StatusCode::NOT_FOUND;
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let client = kube::Client::new(service, "ns");
        let api = KubeApi::new(client, Arc::clone(&state.reader().kinds), Metrics::new());
        let shared = Shared::new(state, Readiness::new().register("caches"));
        let watching = tokio::spawn(watch_all(api, shared.clone(), "home".to_owned()));
        tokio::time::timeout(Duration::from_secs(5), shared.wait_for_sync()).await.unwrap();
        // A watch of a namespace begins with the first object in it.
        shared.change(|state, now| {
            for namespace in ["ns", "later"] {
                let web = WorkloadKey { namespace: namespace.into(), ..key("web") };
                state.apply_workload(&web, Some(on(1, Health::Settled)), now);
            }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        shared.change(|state, _| set_source(state, "a", limited("a", 2, &[("max-in-flight", "1")])));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!watching.is_finished());
        watching.abort();
        std::mem::take(&mut *asked.lock().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn each_kind_is_watched_by_its_label() {
        let mut all = state(&[]);
        all.config.secrets = true;
        let some = state(&[]).serving(Served::default().only(["ns".to_owned()]));
        let enabled = "confrev.dev%2Fenabled%3Dtrue";
        let snapshots = "app.kubernetes.io%2Fmanaged-by%3Dconfrev%2Cconfrev.dev%2Fsource";
        let labelled = "confrev.dev%2Fenabled+in+%28true%2Cbind%29";
        let own = "%21confrev.dev%2Fsource";
        let revision = "confrev.dev%2Frevision";
        let everywhere = [
            format!("/apis/apps/v1/deployments {enabled}"),
            format!("/apis/apps/v1/statefulsets {enabled}"),
            format!("/apis/apps/v1/daemonsets {enabled}"),
            format!("/apis/argoproj.io/v1alpha1/rollouts {enabled}"),
            format!("/apis/batch/v1/cronjobs {enabled}"),
            format!("/apis/batch/v1/jobs {enabled}"),
            format!("/apis/apps/v1/replicasets {revision}"),
            format!("/apis/apps/v1/controllerrevisions {revision}"),
            format!("/apis/batch/v1/jobs {revision}"),
            "/api/v1/namespaces ".to_owned(),
            "/api/v1/namespaces/home/configmaps ".to_owned(),
            "/apis/argoproj.io/v1alpha1/namespaces/ns/rollouts ".to_owned(),
            format!("/api/v1/namespaces/ns/configmaps {own}"),
        ];
        let of_all = [
            format!("/api/v1/configmaps {snapshots}"),
            format!("/api/v1/configmaps {labelled}"),
            format!("/api/v1/secrets {snapshots}"),
            format!("/api/v1/secrets {labelled}"),
            format!("/api/v1/namespaces/later/configmaps {own}"),
            format!("/api/v1/namespaces/ns/secrets {own}"),
            format!("/api/v1/namespaces/later/secrets {own}"),
        ];
        let of_some = [
            format!("/api/v1/namespaces/ns/configmaps {snapshots}"),
            format!("/api/v1/namespaces/ns/configmaps {labelled}"),
        ];
        assert_eq!(listed(all).await, everywhere.iter().chain(&of_all).cloned().collect());
        assert_eq!(listed(some).await, everywhere.iter().chain(&of_some).cloned().collect());
    }
}
