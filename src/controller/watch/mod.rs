//! The watches: lists and changes from the API server, applied to the state.

pub(crate) mod partial;
pub(crate) mod subjects;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, TryStreamExt as _};
use kube::{core::WatchEvent, runtime::watcher::Event};
use tokio::{task::JoinSet, time::Instant};

use self::{
    partial::FromText,
    subjects::{
        InNamespace, Labelled, Namespaces, Referring, Revisions, Snapshots, Subject, UsedSources, Workloads,
    },
};
use super::{
    index::settings::Reader,
    shared::{Shared, SyncPoint},
    state::State,
    vitals::Pulse,
};
use crate::{
    cluster::{ApiError, KubeApi, Listed, OPEN, path},
    kinds::{REVISION_KINDS, WorkloadKind},
    names,
    snapshot::SourceKind,
};

/// How long to wait before looking again for a kind that is not installed.
const NOT_INSTALLED: Duration = Duration::from_secs(10);
/// The longest that a watch may be silent. The API server ends each watch after [`OPEN`] seconds, so a watch that is silent
/// for longer is dead.
const LONGEST_SILENCE: Duration = Duration::from_secs(OPEN as u64 + 10);
/// A watch that lasted this long should have received a bookmark.
const WHOLE_WATCH: Duration = Duration::from_secs(OPEN as u64 - 5);
/// A watch that ends sooner, without an event, counts as failed.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// The first pause after a failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Runs every watch. Returns only when a watch fails beyond repair; the process must then stop, because it misses changes.
pub async fn watch_all(api: KubeApi, shared: Shared) {
    let mut tasks = JoinSet::new();
    let kinds = Arc::clone(&shared.reader().kinds);
    for (index, kind) in kinds.iter().enumerate() {
        let of = everywhere(&kind.api_version(), &kind.plural, &format!("{}=true", names::ENABLED), false);
        tasks.spawn(follow(api.clone(), of, Workloads(index), shared.clone(), shared.sync_point()));
    }
    for (index, kind) in REVISION_KINDS.iter().enumerate() {
        let of = everywhere(&kind.api_version(), kind.plural, names::REVISION, false);
        tasks.spawn(follow(api.clone(), of, Revisions(index), shared.clone(), shared.sync_point()));
    }
    let source_kinds = shared.lock().config.source_kinds();
    for &kind in source_kinds {
        let snapshots = format!("{}={},{}", names::MANAGED_BY, names::MANAGER, names::SOURCE);
        let labelled = format!("{} in (true,bind)", names::ENABLED);
        // If only some namespaces are served, nothing else may be readable.
        let namespaces: Vec<_> = shared.served().listed().map(Arc::<str>::from).collect();
        for namespace in &namespaces {
            let Ok(collection) = path::collection("v1", namespace, kind.plural()) else { continue };
            let of = |selector: &str| Listed {
                collection: collection.clone(),
                selector: selector.to_owned(),
                metadata_only: true,
            };
            let subject = InNamespace(Snapshots(kind), Arc::clone(namespace));
            tasks.spawn(follow(api.clone(), of(&snapshots), subject, shared.clone(), shared.sync_point()));
            let subject = InNamespace(Labelled(kind), Arc::clone(namespace));
            tasks.spawn(follow(api.clone(), of(&labelled), subject, shared.clone(), shared.sync_point()));
        }
        if namespaces.is_empty() {
            let of = everywhere("v1", kind.plural(), &snapshots, true);
            tasks.spawn(follow(api.clone(), of, Snapshots(kind), shared.clone(), shared.sync_point()));
            let of = everywhere("v1", kind.plural(), &labelled, true);
            tasks.spawn(follow(api.clone(), of, Labelled(kind), shared.clone(), shared.sync_point()));
        }
    }
    let of = everywhere("v1", "namespaces", &format!("{}=true", names::ENABLED), true);
    tasks.spawn(follow(api.clone(), of, Namespaces, shared.clone(), shared.sync_point()));
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
        let selector = format!("!{}", names::SOURCE);
        let of = Listed { collection, selector, metadata_only: true };
        Some((of, UsedSources(kind, Arc::clone(namespace))))
    };
    watch_namespaces(api, shared, State::watched_namespaces, watch).await;
}

/// Keeps one watch of Rollouts in each namespace in which a source has `max-in-flight`.
async fn watch_referrers(kind: WorkloadKind, api: KubeApi, shared: Shared) {
    let watch = |namespace: &Arc<str>| {
        let collection = path::collection(&kind.api_version(), namespace, &kind.plural).ok()?;
        let of = Listed { collection, selector: String::new(), metadata_only: false };
        Some((of, Referring(Arc::clone(namespace))))
    };
    watch_namespaces(api, shared, State::limited_namespaces, watch).await;
}

/// Keeps one watch in each of the `wanted` namespaces.
async fn watch_namespaces<S: Subject + Sync>(
    api: KubeApi,
    shared: Shared,
    wanted: impl Fn(&State) -> BTreeSet<Arc<str>>,
    watch: impl Fn(&Arc<str>) -> Option<(Listed, S)>,
) {
    let mut changes = shared.namespace_changes();
    let mut running: HashMap<Arc<str>, tokio::task::AbortHandle> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let mut wanted = wanted(&shared.lock());
        wanted.retain(|namespace| shared.served().contains(namespace));
        running.retain(|namespace, task| {
            let keep = wanted.contains(namespace);
            if !keep {
                task.abort();
            }
            keep
        });
        for namespace in wanted {
            let Some((of, subject)) = watch(&namespace) else { continue };
            running.entry(namespace).or_insert_with(|| {
                tasks.spawn(follow(api.clone(), of, subject, shared.clone(), SyncPoint::default()))
            });
        }
        while tasks.try_join_next().is_some() {}
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Follows one watch forever; reaches `listed` when its objects are known. After a panic, the objects are listed again.
async fn follow<S: Subject>(api: KubeApi, of: Listed, subject: S, shared: Shared, listed: SyncPoint) {
    let pulse = shared.pulse();
    let mut pause = Pause::default();
    loop {
        let following = follow_on(&api, &of, &subject, &shared, &listed, &pulse);
        let Err(_) = AssertUnwindSafe(following).catch_unwind().await;
        tracing::error!(
            path = of.collection,
            "a watch panicked, which is a bug in confrev; objects are listed again"
        );
        pause.rest().await;
    }
}

/// Follows one watch. Any answer of the API server, even a refusal, is a sign that the watch is alive.
async fn follow_on<S: Subject>(
    api: &KubeApi,
    of: &Listed,
    subject: &S,
    shared: &Shared,
    listed: &SyncPoint,
    pulse: &Pulse,
) -> Infallible {
    let mut listing = None;
    let mut pause = Pause::default();
    loop {
        match list(api, of, subject, shared, &mut listing, pulse).await {
            Ok(version) => {
                listed.reached();
                let begun = Instant::now();
                watch(api, of, subject, shared, version, pulse).await;
                // A watch that repeatedly needs another list after a short time must not become a loop of lists.
                if begun.elapsed() > LONGEST_PAUSE {
                    pause = Pause::default();
                }
                pause.rest().await;
            }
            Err(error) if error.is_not_found() => {
                // The kind is not installed (yet, or any more): it is known that there are no objects.
                listing = Some(HashSet::new());
                report(subject, shared, Event::InitDone, &mut listing);
                listed.reached();
                pulse.beat();
                tokio::time::sleep(NOT_INSTALLED).await;
            }
            Err(error) => {
                if !error.is_expired() {
                    tracing::warn!(%error, path = of.collection, "list failed and will be retried");
                }
                if error.is_answer() {
                    pulse.beat();
                }
                pause.rest().await;
            }
        }
    }
}

/// Lists all objects into the state, page by page. Returns the resourceVersion from which to watch.
async fn list<S: Subject>(
    api: &KubeApi,
    of: &Listed,
    subject: &S,
    shared: &Shared,
    listing: &mut Option<HashSet<S::Key>>,
    pulse: &Pulse,
) -> Result<String, ApiError> {
    let _turn = shared.turn_to_list().await;
    report(subject, shared, Event::Init, listing);
    let (mut pages, mut version) = (api.pages(of), String::new());
    while let Some(page) = pages.next().await? {
        for item in page.items() {
            report(subject, shared, Event::InitApply(S::Object::from_text(item)), listing);
        }
        version.clone_from(&page.resource_version);
        pulse.beat();
    }
    report(subject, shared, Event::InitDone, listing);
    Ok(version)
}

/// Watches from a resourceVersion, until the objects have to be listed again.
async fn watch<S: Subject>(
    api: &KubeApi,
    of: &Listed,
    subject: &S,
    shared: &Shared,
    mut version: String,
    pulse: &Pulse,
) {
    let mut pause = Pause::default();
    // After a restore of etcd, a watch may wait for a resourceVersion that never comes, without even a bookmark.
    let mut silences = 0_usize;
    loop {
        let (begun, mut any) = (Instant::now(), false);
        let events = match api.watch(of, &version).await {
            Ok(events) => events,
            Err(error) if error.is_expired() || error.is_not_found() => return,
            Err(error) => {
                tracing::warn!(%error, path = of.collection, "watch failed and will be retried");
                if error.is_answer() {
                    pulse.beat();
                }
                pause.rest().await;
                continue;
            }
        };
        let mut events = std::pin::pin!(events);
        loop {
            let event = match tokio::time::timeout(LONGEST_SILENCE, events.try_next()).await {
                Ok(Ok(Some(event))) => event,
                // The API server ends each watch after a while.
                Ok(Ok(None)) => {
                    pulse.beat();
                    if !any && begun.elapsed() < SHORTEST_WATCH {
                        pause.rest().await;
                    }
                    silences += usize::from(!any && begun.elapsed() >= WHOLE_WATCH);
                    if silences > 1 {
                        return;
                    }
                    break;
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, path = of.collection, "watch interrupted");
                    pause.rest().await;
                    break;
                }
                Err(_) => {
                    tracing::warn!(path = of.collection, "watch is silent and will be restarted");
                    silences += 1;
                    if silences > 1 {
                        return;
                    }
                    break;
                }
            };
            let event = match event {
                WatchEvent::Added(text) | WatchEvent::Modified(text) => {
                    Event::Apply(S::Object::from_text(text.get()))
                }
                WatchEvent::Deleted(text) => Event::Delete(S::Object::from_text(text.get())),
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    (silences, any) = (0, true);
                    pulse.beat();
                    continue;
                }
                WatchEvent::Error(status) => {
                    if status.code != 410 {
                        tracing::warn!(
                            code = status.code,
                            path = of.collection,
                            "watch failed; objects are listed again"
                        );
                    }
                    return;
                }
            };
            (pause, silences, any) = (Pause::default(), 0, true);
            if let Event::Apply(object) | Event::Delete(object) = &event
                && let Some(at) = object.resource_version()
            {
                at.clone_into(&mut version);
            }
            report(subject, shared, event, &mut None);
            pulse.beat();
        }
    }
}

/// The pauses after failures in a row.
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Pause {
    async fn rest(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

/// An event, reduced to what the state needs of it.
enum Change<S: Subject> {
    /// A list begins.
    Begin,
    /// An object exists.
    Set(S::Key, S::Record),
    /// An object is deleted.
    Remove(S::Key),
    /// The list is complete.
    Complete,
}

impl<S: Subject> Change<S> {
    /// Reads an event. This takes as long as the object is large, so it happens before the state is locked: admission needs
    /// the same lock.
    fn read(subject: &S, reader: &Reader, event: Event<S::Object>) -> Self {
        match event {
            Event::Init => Self::Begin,
            Event::Apply(object) | Event::InitApply(object) => {
                Self::Set(subject.key(&object), subject.read(&object, reader))
            }
            Event::Delete(object) => Self::Remove(subject.key(&object)),
            Event::InitDone => Self::Complete,
        }
    }

    /// Applies the event to the state. `listing` holds the keys that a list in progress has returned so far.
    fn enter(
        self,
        subject: &S,
        state: &mut State,
        listing: &mut Option<HashSet<S::Key>>,
        now: jiff::Timestamp,
    ) {
        match self {
            Self::Begin => *listing = Some(HashSet::new()),
            Self::Set(key, record) => {
                subject.apply(state, &key, record, now);
                if let Some(listing) = listing {
                    listing.insert(key);
                }
            }
            Self::Remove(key) => subject.remove(state, &key, now),
            Self::Complete => {
                let listed = listing.take().unwrap_or_default();
                for key in subject.known(state) {
                    if !listed.contains(&key) {
                        subject.remove(state, &key, now);
                    }
                }
                subject.listed(state);
            }
        }
    }
}

/// Reads one event, and applies it to the shared state.
fn report<S: Subject>(
    subject: &S,
    shared: &Shared,
    event: Event<S::Object>,
    listing: &mut Option<HashSet<S::Key>>,
) {
    let change = Change::read(subject, shared.reader(), event);
    shared.change(|state, now| change.enter(subject, state, listing, now));
}

/// Applies one event to a state that nothing else uses. `listing` holds the keys that a list in progress has returned so far.
#[expect(clippy::implicit_hasher, reason = "called with one hasher only")]
pub fn take<S: Subject>(
    subject: &S,
    state: &mut State,
    event: Event<S::Object>,
    listing: &mut Option<HashSet<S::Key>>,
    now: jiff::Timestamp,
) {
    Change::read(subject, &state.reader(), event).enter(subject, state, listing, now);
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use futures::stream;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use hyper::body::{Bytes, Frame};
    use jiff::SignedDuration;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::{
        controller::{Config, LeanMeta},
        kinds::Kinds,
        telemetry::{Metrics, Readiness},
    };

    /// Namespaces, with a panic at the first objects. Each object is read while the state is free.
    struct Panicking(AtomicUsize, Shared);

    impl Subject for Panicking {
        type Object = LeanMeta;
        type Key = Arc<str>;
        type Record = ();

        fn key(&self, object: &LeanMeta) -> Arc<str> {
            Namespaces.key(object)
        }

        fn read(&self, object: &LeanMeta, reader: &Reader) {
            assert!(!self.1.is_locked(), "an object is read while admission waits");
            Namespaces.read(object, reader);
        }

        fn apply(&self, state: &mut State, key: &Arc<str>, record: (), now: jiff::Timestamp) {
            assert!(self.1.is_locked());
            let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            assert!(left.is_err(), "a defect");
            Namespaces.apply(state, key, record, now);
        }

        fn remove(&self, state: &mut State, key: &Arc<str>, now: jiff::Timestamp) {
            Namespaces.remove(state, key, now);
        }

        fn known(&self, state: &State) -> Vec<Arc<str>> {
            Namespaces.known(state)
        }
    }

    /// The requests, with their times.
    type Asked = Arc<Mutex<Vec<(Instant, String)>>>;

    /// An API server with one namespace, whose watches stay silent.
    fn silent() -> (KubeApi, Asked) {
        let asked = Asked::default();
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let body = if query.contains("watch=true") {
                let nothing = stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
                StreamBody::new(nothing).boxed_unsync()
            } else {
                let items = [json!({"metadata": {"name": "ns", "resourceVersion": "1"}})];
                let list = json!({"metadata": {"resourceVersion": "1"}, "items": items});
                Full::from(list.to_string()).map_err(|never: Infallible| match never {}).boxed_unsync()
            };
            log.lock().unwrap().push((Instant::now(), query));
            std::future::ready(Ok::<_, Infallible>(http::Response::new(body)))
        });
        let client = kube::Client::new(service, "default");
        (KubeApi::new(client, Arc::new(Kinds::default()), Metrics::new()), asked)
    }

    fn shared() -> Shared {
        let config = Config {
            settle: SignedDuration::ZERO,
            orphan_grace: SignedDuration::ZERO,
            rolls_per_second: 1,
            max_snapshots: 1,
            secrets: false,
        };
        Shared::new(State::new(Arc::default(), config), Readiness::new().register("caches"))
    }

    /// Follows namespaces for that time. Returns the requests.
    async fn followed(shared: &Shared, panics: usize, time: Duration) -> Vec<(Instant, String)> {
        let (api, asked) = silent();
        let subject = Panicking(AtomicUsize::new(panics), shared.clone());
        let of = everywhere("v1", "namespaces", "", true);
        let following = tokio::spawn(follow(api, of, subject, shared.clone(), shared.sync_point()));
        tokio::time::sleep(time).await;
        assert!(!following.is_finished());
        following.abort();
        std::mem::take(&mut *asked.lock().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn panicking_watch_restarts() {
        let shared = shared();
        let asked = followed(&shared, 3, Duration::from_secs(20)).await;
        let lists = asked.iter().filter(|(_, query)| !query.contains("watch=true")).count();
        assert_eq!(lists, 4, "{asked:?}");
        assert!(shared.lock().index.opts_in("ns"));
    }

    /// Admission waits for the same lock. The subject itself asserts that the state is free.
    #[tokio::test(start_paused = true)]
    async fn objects_are_read_before_the_state_is_locked() {
        let shared = shared();
        followed(&shared, 0, Duration::from_secs(1)).await;
        assert!(shared.lock().index.opts_in("ns"));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_watch_restarts_within_a_minute() {
        let asked = followed(&shared(), 0, Duration::from_mins(5)).await;
        let watches: Vec<_> = asked.iter().filter(|(_, query)| query.contains("watch=true")).collect();
        assert!(watches.iter().all(|(_, query)| query.contains("timeoutSeconds=60&")), "{asked:?}");
        for pair in asked.windows(2) {
            assert!(pair[1].0 - pair[0].0 <= Duration::from_secs(75), "{asked:?}");
        }
        // After two silent watches in a row, the objects are listed again.
        assert_eq!((watches.len(), asked.len()), (5, 8), "{asked:?}");
    }
}
