//! One replica of confrev: its state, and the watches that feed it late, one event at a time.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
};

use confrev::{
    controller::{
        Config, Labelled, Namespaces, Revisions, Shared, Snapshots, State, Subject, UsedSources, Workloads,
        take,
    },
    kinds::Kinds,
    names,
    snapshot::SourceKind,
    telemetry::Readiness,
};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::store::{Key, Kind, Store, is_snapshot, label};

/// How long nothing wants a snapshot before it is swept.
pub(crate) const GRACE: SignedDuration = SignedDuration::from_mins(10);

type Selects = Box<dyn Fn(&Key, &Value) -> bool + Send>;

/// A watch, whatever its subject.
trait Follow: Send {
    /// Delivers the next event, if there is one.
    fn step(&mut self, store: &Store, state: &mut State, now: Timestamp) -> bool;
    /// Starts over with a list.
    fn relist(&mut self, store: &Store);
    /// Whether a list has arrived whole.
    fn is_listed(&self) -> bool;
}

struct Feed<S: Subject> {
    subject: S,
    selects: Selects,
    /// How much of the store's log has been looked at.
    seen: usize,
    /// What is on the way before that.
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
                // What no longer matches is told as deleted, in its last state.
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

/// One replica.
pub(crate) struct Replica {
    pub shared: Shared,
    feeds: Vec<Box<dyn Follow>>,
    sources: BTreeMap<Arc<str>, Box<dyn Follow>>,
    synced: bool,
    /// How far its clock is from the cluster's. It runs evenly from what the wall clock said at the start.
    pub skew: SignedDuration,
}

impl Replica {
    /// A replica that starts now.
    pub(crate) fn start(kinds: &Arc<Kinds>, store: &Store, skew: SignedDuration) -> Self {
        let config = Config {
            settle: SignedDuration::from_secs(1),
            orphan_grace: GRACE,
            rolls_per_second: 200,
            max_snapshots: 2000,
            secrets: false,
        };
        let state = State::new(Arc::clone(kinds), config);
        let shared = Shared::new(state, Readiness::new().register("caches"));
        let mut feeds = Vec::new();
        for (index, kind) in kinds.iter().enumerate() {
            let kind = match kind.kind.as_str() {
                "Rollout" => Kind::Rollout,
                "Deployment" => Kind::Deployment,
                _ => continue,
            };
            feeds.push(feed(Workloads(index), move |key, object| key.kind == kind && is_enabled(object)));
        }
        feeds.push(feed(Revisions(0), |key, object| {
            key.kind == Kind::ReplicaSet && label(object, names::REVISION).is_some()
        }));
        let configmap = SourceKind::ConfigMap;
        feeds.push(feed(Snapshots(configmap), |key, object| {
            key.kind == Kind::ConfigMap && is_snapshot(object)
        }));
        feeds
            .push(feed(Labelled(configmap), |key, object| key.kind == Kind::ConfigMap && is_enabled(object)));
        feeds.push(feed(Namespaces, |key, object| key.kind == Kind::Namespace && is_enabled(object)));
        for feed in &mut feeds {
            feed.relist(store);
        }
        Self { shared, feeds, sources: BTreeMap::new(), synced: false, skew }
    }

    /// Delivers up to `most` events of one watch. Answers whether there was any.
    pub(crate) fn deliver(&mut self, watch: usize, most: usize, store: &Store, now: Timestamp) -> bool {
        let count = self.feeds.len() + self.sources.len();
        let Some(feed) = self.feeds.iter_mut().chain(self.sources.values_mut()).nth(watch % count) else {
            return false;
        };
        let mut any = false;
        for _ in 0..most {
            any |= feed.step(store, &mut self.shared.lock(), now);
        }
        if any {
            self.follow_namespaces(store);
            self.sync(now);
        }
        any
    }

    /// Delivers everything, watch by watch. Answers whether there was anything.
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

    /// One watch starts over.
    pub(crate) fn relist(&mut self, watch: usize, store: &Store) {
        let count = self.feeds.len() + self.sources.len();
        if let Some(feed) = self.feeds.iter_mut().chain(self.sources.values_mut()).nth(watch % count) {
            feed.relist(store);
        }
    }

    pub(crate) fn watches(&self) -> usize {
        self.feeds.len() + self.sources.len()
    }

    /// One watch of sources in each namespace that matters.
    fn follow_namespaces(&mut self, store: &Store) {
        let wanted = self.shared.lock().watched_namespaces();
        self.sources.retain(|namespace, _| wanted.contains(namespace));
        for namespace in wanted {
            self.sources.entry(namespace).or_insert_with_key(|namespace| {
                let own = Arc::clone(namespace);
                let mut feed =
                    feed(UsedSources(SourceKind::ConfigMap, Arc::clone(namespace)), move |key, object| {
                        key.kind == Kind::ConfigMap
                            && *key.namespace == *own
                            && label(object, names::SOURCE).is_none()
                    });
                feed.relist(store);
                feed
            });
        }
    }

    fn sync(&mut self, now: Timestamp) {
        if !self.synced && self.feeds.iter().all(|feed| feed.is_listed()) {
            self.synced = true;
            let mut state = self.shared.lock();
            state.set_synced();
            state.look_at_all(now);
        }
    }
}

fn is_enabled(object: &Value) -> bool {
    label(object, names::ENABLED) == Some("true")
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
