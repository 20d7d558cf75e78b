//! One replica of confrev: its state, and the watches that deliver events late, one at a time.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
};

use confrev::{
    annotations,
    controller::{
        Config, LabelledSubject, NamespacesSubject, ReferringSubject, RevisionsSubject, Shared,
        SnapshotsSubject, State, Subject, UsedSourcesSubject, WorkloadsSubject, take,
    },
    kinds::Kinds,
    snapshot::SourceKind,
    telemetry::Readiness,
    world::{DigestKeys, ShareLimits},
};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::store::{Key, Kind, REVISION_KINDS, Store, has_labels_of_snapshot, installed, label};

/// The index of the watch of Rollouts among those of a namespace. The watches of sources come before it.
const ROLLOUTS: usize = usize::MAX;

/// The kinds of sources.
const SOURCE_KINDS: [SourceKind; 2] = [SourceKind::ConfigMap, SourceKind::Secret];

/// How long an unused snapshot is kept before the sweep.
pub(crate) const GRACE: SignedDuration = SignedDuration::from_mins(10);

/// The class of objects of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Workloads,
    Revisions,
    Snapshots,
    Sources,
    Namespaces,
}

type Selects = Box<dyn Fn(&Key, &Value) -> bool + Send>;

/// A watch of any subject.
trait Follow: Send {
    /// Delivers the next event, if any.
    fn step(&mut self, store: &Store, state: &mut State, now: Timestamp) -> bool;
    /// Whether there is certainly no event to deliver.
    fn is_idle(&self, store: &Store) -> bool;
    /// Starts again with a list.
    fn relist(&mut self, store: &Store);
    /// Whether a complete list has arrived.
    fn is_listed(&self) -> bool;
}

struct Feed<S: Subject> {
    subject: S,
    selects: Selects,
    /// The position in the store's log.
    seen: usize,
    /// Pending events that precede that position.
    list: VecDeque<Event<S::Object>>,
    listing: Option<HashSet<S::Key>>,
    listed: bool,
}

impl<S: Subject> Follow for Feed<S>
where
    S::Object: DeserializeOwned + Send,
{
    fn step(&mut self, store: &Store, state: &mut State, now: Timestamp) -> bool {
        let Some(event) = self.list.pop_front().or_else(|| self.next(store)) else { return false };
        self.listed |= matches!(event, Event::InitDone);
        take(&self.subject, state, event, &mut self.listing, now);
        true
    }

    fn is_idle(&self, store: &Store) -> bool {
        self.list.is_empty() && self.seen == store.log.len()
    }

    fn relist(&mut self, store: &Store) {
        self.seen = store.log.len();
        let objects = store.iter().filter(|(key, object)| (self.selects)(key, object));
        let objects = objects.map(|(_, object)| Event::InitApply(parse(object)));
        self.list = std::iter::once(Event::Init).chain(objects).chain([Event::InitDone]).collect();
    }

    fn is_listed(&self) -> bool {
        self.listed
    }
}

impl<S: Subject> Feed<S>
where
    S::Object: DeserializeOwned,
{
    fn next(&mut self, store: &Store) -> Option<Event<S::Object>> {
        while let Some(change) = store.log.get(self.seen) {
            self.seen += 1;
            let selected = |object: &Option<Arc<Value>>| {
                object.as_ref().filter(|object| (self.selects)(&change.key, object)).cloned()
            };
            match (selected(&change.old), selected(&change.new)) {
                (_, Some(new)) => return Some(Event::Apply(parse(&new))),
                // An object that no longer matches is reported as deleted, in its last state.
                (Some(old), None) => return Some(Event::Delete(parse(change.new.as_ref().unwrap_or(&old)))),
                (None, None) => {}
            }
        }
        None
    }
}

fn parse<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

/// A watch and its class.
type Watch = (Class, Box<dyn Follow>);

/// One replica.
pub(crate) struct Replica {
    pub shared: Shared,
    feeds: Vec<Watch>,
    /// By index in [`SOURCE_KINDS`], and namespace.
    sources: BTreeMap<(usize, Arc<str>), Watch>,
    /// The numbers of the watches of Rollouts, by namespace.
    limited: BTreeMap<Arc<str>, usize>,
    synced: bool,
    /// The silent watches (`None`: all) and the end of their silence.
    silent: Vec<(Option<Class>, Timestamp)>,
    source_kinds: &'static [SourceKind],
    /// The offset of its clock from the cluster's. The clock runs evenly from the wall clock's time at the start.
    pub skew: SignedDuration,
}

impl Replica {
    /// A newly started replica. With keys, it handles Secrets too.
    pub(crate) fn start(
        kinds: &Arc<Kinds>,
        store: &Store,
        skew: SignedDuration,
        keys: Option<DigestKeys>,
        shares: ShareLimits,
    ) -> Self {
        let config = Config { orphan_grace: GRACE, secrets: keys.is_some(), ..Config::default() };
        let source_kinds = if keys.is_some() { &SOURCE_KINDS[..] } else { &SOURCE_KINDS[..1] };
        let state = State::new(Arc::clone(kinds), config)
            .keyed_by(keys.unwrap_or_default())
            .sharing(shares)
            .under(installed());
        let shared = Shared::new(state, Readiness::new().register("caches"));
        let mut feeds = Vec::new();
        // The random sequences have two kinds of workloads, and refer to watches by number.
        let all = source_kinds.len() > 1;
        for (index, kind) in kinds.iter().enumerate() {
            let kind = Kind::named(&kind.kind).unwrap();
            if all || matches!(kind, Kind::Rollout | Kind::Deployment) {
                let selects = move |key: &Key, object: &Value| key.kind == kind && is_enabled(object);
                feeds.push((Class::Workloads, feed(WorkloadsSubject(index), selects)));
            }
        }
        for (index, kind) in REVISION_KINDS.into_iter().enumerate().take(if all { 3 } else { 1 }) {
            let selects = move |key: &Key, object: &Value| {
                key.kind == kind && label(object, annotations::REVISION).is_some()
            };
            feeds.push((Class::Revisions, feed(RevisionsSubject(index), selects)));
        }
        for source_kind in source_kinds {
            let kind = Kind::from(*source_kind);
            let selects = move |key: &Key, object: &Value| key.kind == kind && has_labels_of_snapshot(object);
            feeds.push((Class::Snapshots, feed(SnapshotsSubject(*source_kind), selects)));
            let is_labelled =
                |object: &Value| matches!(label(object, annotations::ENABLED), Some("true" | "bind"));
            let selects = move |key: &Key, object: &Value| key.kind == kind && is_labelled(object);
            feeds.push((Class::Sources, feed(LabelledSubject(*source_kind), selects)));
        }
        let selects = |key: &Key, _: &Value| key.kind == Kind::Namespace;
        feeds.push((Class::Namespaces, feed(NamespacesSubject::default(), selects)));
        for (_, feed) in &mut feeds {
            feed.relist(store);
        }
        let (sources, limited) = (BTreeMap::new(), BTreeMap::new());
        Self { shared, feeds, sources, limited, synced: false, silent: Vec::new(), source_kinds, skew }
    }

    /// Silences watches until that time.
    pub(crate) fn silence(&mut self, class: Option<Class>, until: Timestamp) {
        self.silent.push((class, until));
    }

    /// Ends silences that are over. If all watches were silent, they list again.
    fn hear(&mut self, store: &Store, now: Timestamp) {
        let ended = self.silent.iter().any(|(class, until)| class.is_none() && *until <= now);
        self.silent.retain(|(_, until)| *until > now);
        if ended {
            for (_, feed) in self.feeds.iter_mut().chain(self.sources.values_mut()) {
                feed.relist(store);
            }
        }
    }

    /// Delivers up to `limit` events of one watch. Returns whether there was any.
    pub(crate) fn deliver(&mut self, watch: usize, limit: usize, store: &Store, now: Timestamp) -> bool {
        let count = self.feeds.len() + self.sources.len();
        if self.shared.lock().take_relists(now) != [false; 2] {
            for (_, feed) in &mut self.feeds {
                feed.relist(store);
            }
        }
        if !self.silent.is_empty() {
            self.hear(store, now);
        }
        let Some((class, feed)) = self.feeds.iter_mut().chain(self.sources.values_mut()).nth(watch % count)
        else {
            return false;
        };
        if self.silent.iter().any(|(silent, _)| silent.is_none_or(|silent| silent == *class)) {
            return false;
        }
        let mut any = false;
        for _ in 0..limit {
            if feed.is_idle(store) || !feed.step(store, &mut self.shared.lock(), now) {
                break;
            }
            any = true;
        }
        if any {
            self.follow_namespaces(store);
            self.sync(now);
        }
        any
    }

    /// Delivers all events, watch by watch. Returns whether there was any.
    pub(crate) fn deliver_all(&mut self, store: &Store, now: Timestamp) -> bool {
        let mut any = false;
        let mut more = true;
        while more {
            more = false;
            for watch in 0..self.feeds.len() + self.sources.len() {
                more |= self.deliver(watch, 8, store, now);
            }
            any |= more;
        }
        any
    }

    /// Starts one watch again.
    pub(crate) fn relist(&mut self, watch: usize, store: &Store) {
        let count = self.feeds.len() + self.sources.len();
        if let Some((_, feed)) = self.feeds.iter_mut().chain(self.sources.values_mut()).nth(watch % count) {
            feed.relist(store);
        }
    }

    pub(crate) fn watches(&self) -> usize {
        self.feeds.len() + self.sources.len()
    }

    /// Keeps a watch of sources in each watched namespace, and a watch of Rollouts in namespaces with a limited source.
    fn follow_namespaces(&mut self, store: &Store) {
        let (wanted, limited) = {
            let state = self.shared.lock();
            (state.watched_namespaces(), state.limited_namespaces())
        };
        self.sources.retain(|(place, namespace), _| {
            if *place == ROLLOUTS {
                let number = limited.get(namespace);
                number.is_some() && number == self.limited.get(namespace)
            } else {
                wanted.contains(namespace)
            }
        });
        self.limited.clone_from(&limited);
        for namespace in limited.into_keys() {
            self.sources.entry((ROLLOUTS, Arc::clone(&namespace))).or_insert_with(|| {
                let own = Arc::clone(&namespace);
                let selects = move |key: &Key, _: &Value| key.kind == Kind::Rollout && *key.namespace == *own;
                let mut feed = feed(ReferringSubject(namespace), selects);
                feed.relist(store);
                (Class::Workloads, feed)
            });
        }
        for namespace in wanted {
            for (place, source_kind) in self.source_kinds.iter().enumerate() {
                self.sources.entry((place, Arc::clone(&namespace))).or_insert_with_key(|(_, namespace)| {
                    let (own, kind) = (Arc::clone(namespace), Kind::from(*source_kind));
                    let selects = move |key: &Key, object: &Value| {
                        key.kind == kind
                            && *key.namespace == *own
                            && label(object, annotations::SOURCE).is_none()
                    };
                    let mut feed = feed(UsedSourcesSubject(*source_kind, Arc::clone(namespace)), selects);
                    feed.relist(store);
                    (Class::Sources, feed)
                });
            }
        }
    }

    fn sync(&mut self, now: Timestamp) {
        if !self.synced && self.feeds.iter().all(|(_, feed)| feed.is_listed()) {
            self.synced = true;
            let mut state = self.shared.lock();
            state.set_synced();
            state.reconcile_all(now);
        }
    }
}

fn is_enabled(object: &Value) -> bool {
    label(object, annotations::ENABLED) == Some("true")
}

fn feed<S: Subject>(subject: S, selects: impl Fn(&Key, &Value) -> bool + Send + 'static) -> Box<dyn Follow>
where
    S::Object: DeserializeOwned + Send,
{
    Box::new(Feed {
        subject,
        selects: Box::new(selects),
        seen: 0,
        list: VecDeque::new(),
        listing: None,
        listed: false,
    })
}
