//! The watches: what the API server tells, put into the state.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use kube::{
    Api, Client, Resource,
    api::ApiResource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::{
    Shared, State,
    lean::{Lean, LeanMeta},
    run::SyncPoint,
    subjects::{Labelled, Namespaces, Revisions, Snapshots, Subject, UsedSources, Workloads},
};
use crate::{kinds::REVISION_KINDS, names, snapshot::SourceKind};

/// Objects in one page of a list: what bounds the memory of a start beside many objects.
const PAGE: u32 = 100;
/// How long a kind that is not installed is left before it is looked for again.
const NOT_INSTALLED: Duration = Duration::from_secs(10);

/// Runs every watch. Ends only when one of them fails beyond repair; the process must then not go on half blind.
pub async fn watch_all(client: Client, shared: Shared) {
    let mut tasks = JoinSet::new();
    let kinds = Arc::clone(&shared.lock().kinds);
    for (index, kind) in kinds.iter().enumerate() {
        let api = lean(&client, &kind.group, &kind.version, &kind.kind, &kind.plural);
        let config = selected(&format!("{}=true", names::ENABLED));
        tasks.spawn(follow(api, config, Workloads(index), shared.clone(), shared.sync_point()));
    }
    for (index, kind) in REVISION_KINDS.iter().enumerate() {
        let api = lean(&client, kind.group, kind.version, kind.kind, kind.plural);
        let config = selected(names::REVISION);
        tasks.spawn(follow(api, config, Revisions(index), shared.clone(), shared.sync_point()));
    }
    let source_kinds = shared.lock().config.source_kinds();
    for &kind in source_kinds {
        let api = Api::all_with(client.clone(), &source_resource(kind));
        let config = selected(&format!("{}={},{}", names::MANAGED_BY, names::MANAGER, names::SOURCE));
        tasks.spawn(follow(api.clone(), config, Snapshots(kind), shared.clone(), shared.sync_point()));
        let config = selected(&format!("{} in (true,bind)", names::ENABLED));
        tasks.spawn(follow(api, config, Labelled(kind), shared.clone(), shared.sync_point()));
    }
    let config = selected(&format!("{}=true", names::ENABLED));
    let api = Api::all_with(client.clone(), &core_v1("Namespace", "namespaces"));
    tasks.spawn(follow(api, config, Namespaces, shared.clone(), shared.sync_point()));
    shared.sync_points_are_complete();
    for &kind in source_kinds {
        tasks.spawn(watch_used_sources(kind, client.clone(), shared.clone()));
    }
    let ended = tasks.join_next().await;
    tracing::error!(?ended, "a watch ended");
}

fn selected(labels: &str) -> watcher::Config {
    watcher::Config::default().labels(labels).page_size(PAGE)
}

fn lean(client: &Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<Lean> {
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    Api::all_with(client.clone(), &resource)
}

/// The resource of a kind of source.
fn source_resource(kind: SourceKind) -> ApiResource {
    core_v1(kind.as_str(), kind.plural())
}

fn core_v1(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: String::new(),
        version: "v1".to_owned(),
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// Keeps one metadata-only watch of a kind of source in each namespace that has something to do with confrev.
///
/// One for the whole cluster would cost traffic for every namespace; one for each source, a connection each.
async fn watch_used_sources(kind: SourceKind, client: Client, shared: Shared) {
    let mut changes = shared.namespace_changes();
    let mut running: HashMap<Arc<str>, tokio::task::AbortHandle> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let wanted = shared.lock().watched_namespaces();
        running.retain(|namespace, task| {
            let keep = wanted.contains(namespace);
            if !keep {
                task.abort();
            }
            keep
        });
        for namespace in wanted {
            running.entry(namespace).or_insert_with_key(|namespace| {
                let api = Api::<LeanMeta>::namespaced_with(client.clone(), namespace, &source_resource(kind));
                // Snapshots never change.
                let config = selected(&format!("!{}", names::SOURCE));
                let subject = UsedSources(kind, Arc::clone(namespace));
                tasks.spawn(follow(api, config, subject, shared.clone(), SyncPoint::default()))
            });
        }
        while tasks.try_join_next().is_some() {}
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Follows one watch for ever; `listed` is told when its objects are known.
async fn follow<S: Subject>(
    api: Api<S::Object>,
    config: watcher::Config,
    subject: S,
    shared: Shared,
    listed: SyncPoint,
) where
    S::Object: Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (mut listing, mut turn) = (None, None);
    loop {
        let mut stream = watcher(api.clone(), config.clone()).default_backoff().boxed();
        loop {
            let next = stream.try_next().await;
            match &next {
                // The first page is asked for after this.
                Ok(Some(Event::Init)) => turn = shared.turn_to_list().await,
                Ok(Some(Event::InitDone)) | Err(_) => drop(turn.take()),
                _ => {}
            }
            match next {
                Ok(Some(event)) => {
                    let done = matches!(event, Event::InitDone);
                    shared.change(|state, now| take(&subject, state, event, &mut listing, now));
                    if done {
                        listed.reached();
                    }
                }
                Ok(None) => break,
                Err(error) if is_not_installed(&error) => {
                    // Not installed, yet or any more: there are none, and that is known.
                    listing = Some(HashSet::new());
                    shared.change(|state, now| take(&subject, state, Event::InitDone, &mut listing, now));
                    listed.reached();
                    tokio::time::sleep(NOT_INSTALLED).await;
                    break;
                }
                Err(error) => {
                    tracing::warn!(%error, path = api.resource_url(), "a watch failed, and is tried again");
                }
            }
        }
    }
}

/// Whether the API server knows no such resource.
fn is_not_installed(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

/// Puts one event into the state. `listing` holds what a list in progress has brought so far.
#[expect(clippy::implicit_hasher, reason = "called with one hasher only")]
pub fn take<S: Subject>(
    subject: &S,
    state: &mut State,
    event: Event<S::Object>,
    listing: &mut Option<HashSet<S::Key>>,
    now: jiff::Timestamp,
) where
    S::Object: Resource,
{
    match event {
        Event::Init => *listing = Some(HashSet::new()),
        Event::Apply(object) | Event::InitApply(object) => {
            if let Some(listing) = listing {
                listing.insert(subject.key(&object));
            }
            subject.apply(state, &object, now);
        }
        Event::Delete(object) => subject.remove(state, &subject.key(&object), now),
        Event::InitDone => {
            let listed = listing.take().unwrap_or_default();
            for key in subject.known(state) {
                if !listed.contains(&key) {
                    subject.remove(state, &key, now);
                }
            }
        }
    }
}
