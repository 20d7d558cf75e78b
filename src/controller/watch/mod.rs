//! The watches: lists and changes from the API server, applied to the state.

pub(crate) mod follow;
pub(crate) mod object;
pub(crate) mod subjects;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::task::JoinSet;

use self::{
    follow::follow,
    subjects::{
        InNamespace, LabelledSubject, NamespacesSubject, ReferringSubject, RevisionsSubject,
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
    snapshot::SourceKind,
};

/// Runs every watch. Returns only when a watch fails beyond repair; the process must then stop, because it misses changes.
pub async fn watch_all(api: KubeApi, shared: Shared) {
    let mut tasks = JoinSet::new();
    let kinds = Arc::clone(&shared.reader().kinds);
    for (index, kind) in kinds.iter().enumerate() {
        let of =
            everywhere(&kind.api_version(), &kind.plural, &format!("{}=true", annotations::ENABLED), false);
        tasks.spawn(follow(api.clone(), of, WorkloadsSubject(index), shared.clone(), shared.sync_point()));
    }
    for (index, kind) in REVISION_KINDS.iter().enumerate() {
        let of = everywhere(&kind.api_version(), kind.plural, annotations::REVISION, false);
        tasks.spawn(follow(api.clone(), of, RevisionsSubject(index), shared.clone(), shared.sync_point()));
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
    // All of them: a window counts in a namespace that opts nothing in, too, and no selector finds annotations.
    let of = everywhere("v1", "namespaces", "", true);
    tasks.spawn(follow(api.clone(), of, NamespacesSubject, shared.clone(), shared.sync_point()));
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
        let of = Listed { collection, selector, metadata_only: true };
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
        let of = Listed { collection, selector: String::new(), metadata_only: false };
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
