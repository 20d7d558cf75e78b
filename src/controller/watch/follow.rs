//! Follows one watch: lists its objects, then applies each event, and starts again after a failure.

use std::{collections::HashSet, convert::Infallible, panic::AssertUnwindSafe, time::Duration};

use futures::{FutureExt as _, Stream, TryStreamExt as _};
use kube::{core::WatchEvent, runtime::watcher::Event};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{object::FromText, subjects::Subject};
use crate::{
    cluster::{ApiError, KubeApi, Listed, OPEN},
    controller::{
        reconcile::state::State,
        shared::{Shared, SyncPoint},
        vitals::Pulse,
    },
    world::Reader,
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

/// Follows one watch forever; reaches `listed` when its objects are known. After a panic, the objects are listed again.
pub(super) fn follow<S: Subject>(
    api: KubeApi,
    of: Listed,
    subject: S,
    shared: Shared,
    listed: SyncPoint,
) -> impl Future<Output = ()> + Send + use<S> {
    let receiver = Box::new(SubjectReceiver { subject, shared: shared.clone(), listing: None });
    follow_into(api, of, receiver, shared, listed)
}

/// The same. It is compiled once for all subjects.
async fn follow_into(
    api: KubeApi,
    of: Listed,
    mut receiver: Box<dyn Receiver>,
    shared: Shared,
    listed: SyncPoint,
) {
    let pulse = shared.pulse();
    let mut pause = RetryPause::default();
    loop {
        let following = follow_on(&api, &of, receiver.as_mut(), &shared, &listed, &pulse);
        let Err(_) = AssertUnwindSafe(following).catch_unwind().await;
        tracing::error!(
            path = of.collection,
            "a watch panicked, which is a bug in confrev; objects are listed again"
        );
        pause.rest().await;
    }
}

/// Follows one watch. Any answer of the API server, even a refusal, is a sign that the watch is alive.
async fn follow_on(
    api: &KubeApi,
    of: &Listed,
    receiver: &mut dyn Receiver,
    shared: &Shared,
    listed: &SyncPoint,
    pulse: &Pulse,
) -> Infallible {
    let mut pause = RetryPause::default();
    loop {
        let relists = shared.relists();
        let before = *relists.borrow();
        match list(api, of, receiver, shared, pulse).await {
            Ok(version) => {
                listed.reached();
                let begun = Instant::now();
                watch(api, of, receiver, version, pulse, (relists, before)).await;
                // A watch that repeatedly needs another list after a short time must not become a loop of lists.
                if begun.elapsed() > LONGEST_PAUSE {
                    pause = RetryPause::default();
                }
                pause.rest().await;
            }
            Err(error) if error.is_not_found() => {
                // The kind is not installed (yet, or any more): it is known that there are no objects.
                receiver.receive(Event::Init);
                receiver.receive(Event::InitDone);
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
async fn list(
    api: &KubeApi,
    of: &Listed,
    receiver: &mut dyn Receiver,
    shared: &Shared,
    pulse: &Pulse,
) -> Result<String, ApiError> {
    let _place = shared.place_to_list().await;
    receiver.receive(Event::Init);
    let (mut pages, mut version) = (api.pages(of), String::new());
    while let Some(page) = pages.next().await? {
        for item in page.items() {
            receiver.receive(Event::InitApply(item));
        }
        version.clone_from(&page.resource_version);
        pulse.beat();
    }
    receiver.receive(Event::InitDone);
    Ok(version)
}

/// Watches from a resourceVersion, until the objects have to be listed again.
async fn watch(
    api: &KubeApi,
    of: &Listed,
    receiver: &mut dyn Receiver,
    version: String,
    pulse: &Pulse,
    (mut relists, before): (tokio::sync::watch::Receiver<[usize; 2]>, [usize; 2]),
) {
    let mut position =
        Position { version, pause: RetryPause::default(), silences: 0, begun: Instant::now(), any: false };
    let asked = receiver.lists_again();
    loop {
        (position.begun, position.any) = (Instant::now(), false);
        let events = match api.watch(of, &position.version).await {
            Ok(events) => events,
            Err(error) if error.is_expired() || error.is_not_found() => return,
            Err(error) => {
                tracing::warn!(%error, path = of.collection, "watch failed and will be retried");
                if error.is_answer() {
                    pulse.beat();
                }
                position.pause.rest().await;
                continue;
            }
        };
        let next = position.follow(events, receiver, &of.collection, pulse);
        let is_asked = async {
            let is_one = |now: &[usize; 2]| (0..2).any(|one| asked[one] && now[one] != before[one]);
            if relists.wait_for(is_one).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            next = next => match next {
                NextRequest::Watch => {}
                NextRequest::List => return,
            },
            () = is_asked => return,
        }
    }
}

/// What follows the end of a request.
enum NextRequest {
    /// Watch from the last resourceVersion.
    Watch,
    /// List the objects again.
    List,
}

/// The position of a watch over several requests.
struct Position {
    /// The last resourceVersion.
    version: String,
    /// The pause after the next failure.
    pause: RetryPause,
    /// How many requests in a row were silent. After a restore of etcd, a watch may wait for a resourceVersion that never
    /// comes, without even a bookmark.
    silences: usize,
    /// When the present request began.
    begun: Instant,
    /// Whether it brought any event.
    any: bool,
}

impl Position {
    /// Reports the events of one request.
    async fn follow<E: std::fmt::Display>(
        &mut self,
        events: impl Stream<Item = Result<WatchEvent<Box<RawValue>>, E>>,
        receiver: &mut dyn Receiver,
        path: &str,
        pulse: &Pulse,
    ) -> NextRequest {
        let mut events = std::pin::pin!(events);
        loop {
            let event = match tokio::time::timeout(LONGEST_SILENCE, events.try_next()).await {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) => {
                    pulse.beat();
                    return self.answered().await;
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, path, "watch interrupted");
                    self.pause.rest().await;
                    return NextRequest::Watch;
                }
                Err(_) => {
                    tracing::warn!(path, "watch is silent and will be restarted");
                    return self.silent();
                }
            };
            self.any = true;
            let event = match &event {
                WatchEvent::Added(text) | WatchEvent::Modified(text) => Event::Apply(text.get()),
                WatchEvent::Deleted(text) => Event::Delete(text.get()),
                WatchEvent::Bookmark(bookmark) => {
                    self.version.clone_from(&bookmark.metadata.resource_version);
                    self.silences = 0;
                    pulse.beat();
                    continue;
                }
                WatchEvent::Error(status) => {
                    if status.code != 410 {
                        tracing::warn!(code = status.code, path, "watch failed; objects are listed again");
                    }
                    return NextRequest::List;
                }
            };
            (self.pause, self.silences) = (RetryPause::default(), 0);
            if let Some(at) = receiver.receive(event) {
                self.version = at;
            }
            pulse.beat();
        }
    }

    /// The API server ended the request, as it does with each watch after a while.
    async fn answered(&mut self) -> NextRequest {
        if !self.any && self.begun.elapsed() < SHORTEST_WATCH {
            self.pause.rest().await;
        }
        if !self.any && self.begun.elapsed() >= WHOLE_WATCH { self.silent() } else { self.known_silences() }
    }

    /// The request was silent.
    fn silent(&mut self) -> NextRequest {
        self.silences += 1;
        self.known_silences()
    }

    fn known_silences(&self) -> NextRequest {
        if self.silences > 1 { NextRequest::List } else { NextRequest::Watch }
    }
}

/// The pauses after failures in a row.
struct RetryPause(Duration);

impl Default for RetryPause {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl RetryPause {
    async fn rest(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

/// An event of a watch, reduced to what the state needs of it.
enum WatchUpdate<S: Subject> {
    /// A list begins.
    Begin,
    /// An object exists.
    Set(S::Key, S::Reading),
    /// An object is deleted.
    Remove(S::Key),
    /// The list is complete.
    Complete,
}

impl<S: Subject> WatchUpdate<S> {
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
    fn apply(
        self,
        subject: &S,
        state: &mut State,
        listing: &mut Option<HashSet<S::Key>>,
        now: jiff::Timestamp,
    ) {
        match self {
            Self::Begin => {
                *listing = Some(HashSet::new());
                subject.list_id().into_iter().for_each(|list| state.list_began(list));
            }
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
                subject.listed(state, now);
                subject.list_id().into_iter().for_each(|list| state.list_ended(&list, now));
            }
        }
    }
}

/// A subject, as the loop of a watch sees it.
trait Receiver: Send {
    /// Reads one event, whose object is text, and applies it to the shared state. Returns the resourceVersion of the object.
    fn receive(&mut self, event: Event<&str>) -> Option<String>;
    /// Whether it lists its objects again when some that were left out may fit, and when workloads inherit other settings.
    fn lists_again(&self) -> [bool; 2];
}

/// A subject, the state, and the keys that a list in progress has returned so far.
struct SubjectReceiver<S: Subject> {
    subject: S,
    shared: Shared,
    listing: Option<HashSet<S::Key>>,
}

impl<S: Subject> Receiver for SubjectReceiver<S> {
    fn receive(&mut self, event: Event<&str>) -> Option<String> {
        let event = match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(text) => Event::InitApply(S::Object::from_text(text)),
            Event::Apply(text) => Event::Apply(S::Object::from_text(text)),
            Event::Delete(text) => Event::Delete(S::Object::from_text(text)),
        };
        let version = match &event {
            Event::Apply(object) | Event::Delete(object) => object.resource_version().map(str::to_owned),
            Event::Init | Event::InitApply(_) | Event::InitDone => None,
        };
        let Self { subject, shared, listing } = self;
        let update = WatchUpdate::read(subject, shared.reader(), event);
        shared.change(|state, now| update.apply(subject, state, listing, now));
        version
    }

    fn lists_again(&self) -> [bool; 2] {
        [self.subject.list_id().is_some(), self.subject.inherits()]
    }
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
    WatchUpdate::read(subject, &state.reader(), event).apply(subject, state, listing, now);
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use futures::stream;
    use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
    use hyper::body::{Bytes, Frame};
    use jiff::SignedDuration;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::{
        annotations,
        controller::{Config, NamespacesSubject, PartialObject},
        kinds::Kinds,
        telemetry::{Metrics, Readiness},
    };

    /// Namespaces, with a panic at the first objects. Each object is read while the state is free.
    struct Panicking(AtomicUsize, Shared);

    impl Subject for Panicking {
        type Object = PartialObject;
        type Key = Arc<str>;
        type Reading = <NamespacesSubject as Subject>::Reading;

        fn key(&self, object: &PartialObject) -> Arc<str> {
            NamespacesSubject::default().key(object)
        }

        fn read(&self, object: &PartialObject, reader: &Reader) -> Self::Reading {
            assert!(!self.1.is_locked(), "an object is read while admission waits");
            NamespacesSubject::default().read(object, reader)
        }

        fn apply(&self, state: &mut State, key: &Arc<str>, record: Self::Reading, now: jiff::Timestamp) {
            assert!(self.1.is_locked());
            let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            assert!(left.is_err(), "a defect");
            NamespacesSubject::default().apply(state, key, record, now);
        }

        fn remove(&self, state: &mut State, key: &Arc<str>, now: jiff::Timestamp) {
            NamespacesSubject::default().remove(state, key, now);
        }

        fn known(&self, state: &State) -> Vec<Arc<str>> {
            NamespacesSubject::default().known(state)
        }
    }

    /// The requests, with their times.
    type Asked = Arc<Mutex<Vec<(Instant, String)>>>;

    /// The answer to a request.
    #[derive(Clone, Copy, Debug)]
    enum Reply {
        /// A list of one namespace.
        List,
        /// A watch without events.
        Silence,
        /// A watch that ends at once.
        End,
        /// A watch that reports an error with this code after that many seconds.
        Error(u16, u64),
        /// A status.
        Status(u16),
    }

    fn status(code: u16) -> serde_json::Value {
        json!({"kind": "Status", "status": "Failure", "message": "", "reason": "", "code": code})
    }

    impl Reply {
        fn response(self) -> http::Response<UnsyncBoxBody<Bytes, std::io::Error>> {
            let text =
                |text: String| Full::from(text).map_err(|never: Infallible| match never {}).boxed_unsync();
            let code = if let Self::Status(code) = self { code } else { 200 };
            let body = match self {
                Self::List => {
                    let labels = json!({annotations::ENABLED: "true"});
                    let metadata = json!({"name": "ns", "resourceVersion": "1", "labels": labels});
                    let items = [json!({"metadata": metadata})];
                    text(json!({"metadata": {"resourceVersion": "1"}, "items": items}).to_string())
                }
                Self::Silence => StreamBody::new(stream::pending()).boxed_unsync(),
                Self::End => text(String::new()),
                Self::Error(code, seconds) => {
                    let line = json!({"type": "ERROR", "object": status(code)}).to_string() + "\n";
                    StreamBody::new(stream::once(async move {
                        tokio::time::sleep(Duration::from_secs(seconds)).await;
                        Ok(Frame::data(Bytes::from(line)))
                    }))
                    .boxed_unsync()
                }
                Self::Status(_) => text(status(code).to_string()),
            };
            let mut response = http::Response::new(body);
            *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
            response
        }
    }

    /// An API server that answers lists and watches by these scripts; the last answer repeats.
    fn answering(lists: &[Reply], watches: &[Reply]) -> (KubeApi, Asked) {
        let asked = Asked::default();
        let log = Arc::clone(&asked);
        let scripts = [lists.to_vec(), watches.to_vec()];
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let mut log = log.lock().unwrap();
            let is_watch = |query: &str| query.contains("watch=true");
            let number = log.iter().filter(|(_, other)| is_watch(other) == is_watch(&query)).count();
            let script = &scripts[usize::from(is_watch(&query))];
            let reply = script[number.min(script.len() - 1)];
            log.push((Instant::now(), query));
            std::future::ready(Ok::<_, Infallible>(reply.response()))
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
        followed_with(shared, panics, time, answering(&[Reply::List], &[Reply::Silence])).await
    }

    async fn followed_with(
        shared: &Shared,
        panics: usize,
        time: Duration,
        (api, asked): (KubeApi, Asked),
    ) -> Vec<(Instant, String)> {
        let subject = Panicking(AtomicUsize::new(panics), shared.clone());
        let of = Listed {
            collection: "/api/v1/namespaces".to_owned(),
            selector: String::new(),
            only: None,
            metadata_only: true,
        };
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
        assert!(shared.lock().world.opt_in_of("ns").is_in());
    }

    /// Admission waits for the same lock. The subject itself asserts that the state is free.
    #[tokio::test(start_paused = true)]
    async fn objects_are_read_before_the_state_is_locked() {
        let shared = shared();
        followed(&shared, 0, Duration::from_secs(1)).await;
        assert!(shared.lock().world.opt_in_of("ns").is_in());
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

    /// The requests, as "list" or "watch" with their time in milliseconds.
    async fn requests(lists: &[Reply], watches: &[Reply], seconds: u64) -> Vec<(&'static str, u128)> {
        let (start, time) = (Instant::now(), Duration::from_secs(seconds));
        let asked = followed_with(&shared(), 0, time, answering(lists, watches)).await;
        let kind = |query: &str| if query.contains("watch=true") { "watch" } else { "list" };
        asked.iter().map(|(at, query)| (kind(query), (*at - start).as_millis())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn expired_watch_leads_to_a_list() {
        for (reply, next) in [
            (Reply::Status(410), "list"),
            (Reply::Status(404), "list"),
            (Reply::Status(500), "watch"),
            (Reply::Error(410, 0), "list"),
            (Reply::Error(500, 0), "list"),
            (Reply::End, "watch"),
        ] {
            let asked = requests(&[Reply::List], &[reply, Reply::Silence], 5).await;
            assert_eq!(asked[2], (next, 500), "{reply:?}: {asked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn missing_kind_counts_as_listed() {
        for (lists, is_listed, count) in [
            (&[Reply::Status(404)][..], true, 2),
            (&[Reply::Status(500)], false, 5),
            (&[Reply::Status(500), Reply::List], true, 2),
        ] {
            let shared = shared();
            let asked =
                followed_with(&shared, 0, Duration::from_secs(11), answering(lists, &[Reply::Silence])).await;
            let listed = asked.iter().filter(|(_, query)| !query.contains("watch=true")).count();
            assert_eq!(listed, count, "{lists:?}: {asked:?}");
            shared.sync_points_are_complete();
            let synced = tokio::time::timeout(Duration::from_secs(1), shared.wait_for_sync()).await;
            assert_eq!(synced.is_ok(), is_listed, "{lists:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_between_lists_grow_until_a_long_watch() {
        let expired = |seconds| Reply::Error(410, seconds);
        let watches = [expired(0), expired(0), expired(0), expired(30), expired(31), expired(0)];
        let asked = requests(&[Reply::List], &watches, 80).await;
        let lists: Vec<_> = asked.iter().filter(|(kind, _)| *kind == "list").map(|(_, at)| *at).collect();
        let halves = lists.windows(2).map(|pair| (pair[1] - pair[0]) / 500);
        let pauses: Vec<_> = halves.collect();
        assert_eq!(pauses[..6], [1, 2, 4, 60 + 8, 62 + 1, 2], "in half seconds");
        let failing = requests(&[Reply::Status(500)], &[Reply::Silence], 150).await;
        let times: Vec<_> = failing.iter().map(|(_, at)| *at / 100).collect();
        assert_eq!(times, [0, 5, 15, 35, 75, 155, 315, 615, 915, 1215], "in tenths of a second");
    }

    /// The API server ends each watch after a minute. By then it has sent a bookmark.
    #[tokio::test(start_paused = true)]
    async fn end_of_a_watch_shows_whether_it_lived() {
        let whole = u64::try_from(WHOLE_WATCH.as_millis()).unwrap();
        for (any, lasted, rests, silences) in [
            (false, 0, true, 0),
            (false, 999, true, 0),
            (false, 1000, false, 0),
            (true, 0, false, 0),
            (false, whole - 1, false, 0),
            (false, whole, false, 1),
            (true, whole, false, 0),
        ] {
            let (version, pause) = (String::new(), RetryPause::default());
            let mut position = Position { version, pause, silences: 0, begun: Instant::now(), any };
            tokio::time::advance(Duration::from_millis(lasted)).await;
            let ended = Instant::now();
            position.answered().await;
            assert_eq!(ended.elapsed() >= FIRST_PAUSE, rests, "{any} {lasted}");
            assert_eq!(position.silences, silences, "{any} {lasted}");
        }
    }
}
