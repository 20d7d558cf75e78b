//! The state that all pages show: one copy, whatever the number of readers, kept up to date by watches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, broadcast, watch};

use super::{links::Links, parts::Part, row::Row, store::Store};
use crate::{
    cli::{
        failure::Failure,
        inventory::Inventory,
        objects::{self, LiveSource, OptedIn, Scope},
        source_state::{self, SourceState, UsedSource},
        status,
        target::Target,
    },
    snapshot::SourceKind,
};

/// How long changes are collected before pages show them.
const COLLECT: Duration = Duration::from_millis(250);
/// The shortest pause between two checks of the reasons of pending workloads, which need calls.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How many reads run at the same time.
const READS: usize = 8;
/// How many updates a slow reader may lag behind before it has to load its page again.
const UPDATES: usize = 64;
/// How long a page waits for the first list of everything.
const FIRST_LIST: Duration = Duration::from_secs(20);

/// A namespace, as the pages show it.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Its objects.
    pub(super) inventory: Inventory,
    /// The rows of its workloads, by `Kind/name`.
    pub(super) rows: BTreeMap<String, Row>,
}

/// What changed in a namespace, for readers that have its page open.
#[derive(Debug)]
pub(super) struct Update {
    /// Its number.
    pub(super) version: u64,
    /// The namespace.
    pub(super) namespace: String,
    /// The changed rows as HTML, by their id; `None`: the row is removed.
    pub(super) rows: Vec<(String, Option<String>)>,
}

/// States that need calls to be known exactly, by namespace and workload.
type LookedUp = BTreeMap<(String, String), (Vec<UsedSource>, Vec<UsedSource>)>;

/// The state.
pub(super) struct Model {
    /// The cluster.
    pub(super) target: Target,
    /// The namespaces that are followed.
    pub(super) scope: Scope,
    /// The addresses of the pages.
    links: Links,
    /// The collections that are followed.
    pub(super) parts: Vec<Part>,
    store: Mutex<Store>,
    views: Mutex<BTreeMap<String, Arc<View>>>,
    looked_up: Mutex<LookedUp>,
    /// The namespaces whose pending workloads need another look.
    to_look: Mutex<BTreeSet<String>>,
    changed: Notify,
    look: Notify,
    /// Whether all collections were listed, and shown, once.
    ready: watch::Sender<(bool, bool)>,
    updates: broadcast::Sender<Arc<Update>>,
    /// The number of the last update. A page that was rendered before it lacks the update.
    version: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Model {
    /// An empty state of a cluster.
    pub(super) fn new(target: Target, scope: Scope, links: Links) -> Self {
        Self {
            parts: Part::all(&target),
            target,
            scope,
            links,
            store: Mutex::default(),
            views: Mutex::default(),
            looked_up: Mutex::default(),
            to_look: Mutex::default(),
            changed: Notify::new(),
            look: Notify::new(),
            ready: watch::Sender::new((false, false)),
            updates: broadcast::Sender::new(UPDATES),
            version: AtomicU64::new(0),
        }
    }

    /// Changes the store.
    pub(super) fn with_store<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let result = change(&mut lock(&self.store));
        self.changed.notify_one();
        result
    }

    /// Reads the store.
    pub(super) fn read_store<T>(&self, read: impl FnOnce(&Store) -> T) -> T {
        read(&lock(&self.store))
    }

    /// Waits until a workload uses a source of this kind.
    pub(super) async fn uses(&self, kind: SourceKind) {
        let mut updates = self.updates.subscribe();
        while !lock(&self.store).uses(kind) {
            let _ = updates.recv().await;
        }
    }

    /// Records that everything was listed once.
    pub(super) fn listed(&self) {
        self.ready.send_modify(|ready| ready.0 = true);
        self.changed.notify_one();
    }

    /// Waits until the first list is shown, for a limited time.
    pub(super) async fn ready(&self) -> bool {
        let mut ready = self.ready.subscribe();
        tokio::time::timeout(FIRST_LIST, ready.wait_for(|(_, shown)| *shown))
            .await
            .is_ok_and(|shown| shown.is_ok())
    }

    /// The view of a namespace.
    pub(super) fn view(&self, namespace: &str) -> Option<Arc<View>> {
        lock(&self.views).get(namespace).cloned()
    }

    /// All views, by namespace.
    pub(super) fn views(&self) -> BTreeMap<String, Arc<View>> {
        lock(&self.views).clone()
    }

    /// The changes from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<Update>> {
        self.updates.subscribe()
    }

    /// The number of the last update. Read it before the state: a page may then have a later state, and never lacks an update.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// `resource.group` of collections that the user may not list.
    pub(super) fn unread(&self) -> BTreeSet<String> {
        lock(&self.store).unread().clone()
    }

    /// The cluster, with this namespace selected.
    pub(super) fn target_in(&self, namespace: &str) -> Target {
        Target { namespace: namespace.to_owned(), ..self.target.clone() }
    }

    /// Shows the changes of the store, forever.
    pub(super) async fn show_changes(&self) {
        loop {
            self.changed.notified().await;
            if !self.ready.borrow().0 {
                continue;
            }
            if self.ready.borrow().1 {
                tokio::time::sleep(COLLECT).await;
            }
            let changed = lock(&self.store).take_changed();
            for namespace in changed {
                self.show(&namespace).await;
            }
            self.ready.send_modify(|ready| ready.1 = true);
        }
    }

    /// Makes the view of a namespace again.
    async fn show(&self, namespace: &str) {
        let mut inventory = lock(&self.store).inventory(&self.target, &self.parts, namespace);
        let stale = lock(&self.store).stale_sources(&self.parts, &inventory);
        let target = &self.target;
        let read: Vec<_> = stream::iter(stale)
            .map(|(key, version)| async move {
                let live = objects::source(target, &key).await;
                (key, version, live)
            })
            .buffer_unordered(READS)
            .collect()
            .await;
        for (key, version, live) in read {
            let live = match live {
                Ok(Some(observed)) => LiveSource::Present(Arc::new(observed)),
                Ok(None) => LiveSource::Missing,
                Err(Failure::Refused(_)) => LiveSource::Forbidden,
                // The next change or list reads it again.
                Err(_) => continue,
            };
            inventory.sources.insert(key.clone(), live.clone());
            lock(&self.store).set_source(key, version, live);
        }
        lock(&self.store).keep_sources_of(&inventory, namespace);
        let known = lock(&self.looked_up);
        let mut rows = BTreeMap::new();
        let mut needs_look = false;
        for workload in &inventory.workloads {
            let glance = source_state::at_a_glance(&inventory, workload);
            needs_look |= needs_calls(&glance);
            let key = (namespace.to_owned(), workload.reference());
            let sources = match known.get(&key) {
                Some((before, looked_up)) if is_same(before, &glance) => looked_up.clone(),
                _ => glance,
            };
            rows.insert(key.1, row(&inventory, workload, sources, self.links));
        }
        drop(known);
        self.publish(namespace, View { inventory, rows });
        if needs_look {
            lock(&self.to_look).insert(namespace.to_owned());
            self.look.notify_one();
        }
    }

    /// Replaces a view, and reports the rows that differ.
    fn publish(&self, namespace: &str, view: View) {
        let before = {
            let mut views = lock(&self.views);
            let before = views.remove(namespace);
            if !view.inventory.workloads.is_empty() {
                views.insert(namespace.to_owned(), Arc::new(view));
            }
            before
        };
        let (none, after) = (BTreeMap::new(), self.view(namespace));
        let before = before.as_ref().map_or(&none, |view| &view.rows);
        let after = after.as_ref().map_or(&none, |view| &view.rows);
        let removed = before.keys().filter(|key| !after.contains_key(*key));
        let mut rows: Vec<_> = removed.map(|key| (before[key].id.clone(), None)).collect();
        for (key, row) in after {
            if before.get(key).is_none_or(|before| before.html != row.html) {
                rows.push((row.id.clone(), Some(row.html.clone())));
            }
        }
        // There may be no reader.
        let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
        let _ = self.updates.send(Arc::new(Update { version, namespace: namespace.to_owned(), rows }));
    }

    /// Looks up the reasons of pending workloads, forever. The more calls a look needs, the longer is the pause after it.
    pub(super) async fn look_up_reasons(&self) {
        loop {
            self.look.notified().await;
            let namespaces = std::mem::take(&mut *lock(&self.to_look));
            let begun = Instant::now();
            for namespace in namespaces {
                let Some(view) = self.view(&namespace) else { continue };
                let pending: Vec<_> = view
                    .inventory
                    .workloads
                    .iter()
                    .filter_map(|workload| {
                        let glance = source_state::at_a_glance(&view.inventory, workload);
                        needs_calls(&glance).then_some((workload, glance))
                    })
                    .collect();
                let (target, inventory) = (self.target_in(&namespace), &view.inventory);
                let target = &target;
                let found: Vec<_> = stream::iter(pending)
                    .map(|(workload, glance)| async move {
                        let looked_up = source_state::of_workload(target, inventory, workload).await;
                        (workload.reference(), glance, looked_up)
                    })
                    .buffer_unordered(READS)
                    .collect()
                    .await;
                {
                    let mut known = lock(&self.looked_up);
                    known.retain(|(of, _), _| *of != namespace);
                    for (reference, glance, looked_up) in found {
                        if let Ok(looked_up) = looked_up {
                            known.insert((namespace.clone(), reference), (glance, looked_up));
                        }
                    }
                }
                self.show_looked_up(&namespace);
            }
            tokio::time::sleep(LOOK_INTERVAL.max(begun.elapsed() * 4)).await;
        }
    }

    /// Shows what a look has found.
    fn show_looked_up(&self, namespace: &str) {
        let mut store = lock(&self.store);
        let before = self.view(namespace);
        let known = lock(&self.looked_up);
        let is_news = before.is_some_and(|view| {
            view.rows.iter().any(|(reference, row)| {
                let found = known.get(&(namespace.to_owned(), reference.clone()));
                found.is_some_and(|(_, looked_up)| !is_same(looked_up, &row.status.sources))
            })
        });
        if is_news {
            store.touch(namespace);
            self.changed.notify_one();
        }
    }
}

/// Whether the exact state needs calls: a pin, an undo, a pending change, or a Secret, whose digest only the installation can make.
fn needs_calls(sources: &[UsedSource]) -> bool {
    sources.iter().any(|used| {
        let state = used.beneath;
        let is_open = matches!(
            state,
            SourceState::Pending | SourceState::Pinned | SourceState::AsCreated | SourceState::Paused
        );
        is_open || (used.object.kind == SourceKind::Secret && !state.is_plain())
    })
}

fn is_same(a: &[UsedSource], b: &[UsedSource]) -> bool {
    let parts =
        |used: &UsedSource| (used.object.clone(), used.snapshot.clone(), used.state, used.reason.clone());
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| parts(a) == parts(b))
}

/// The row of a workload.
pub(super) fn row(inventory: &Inventory, workload: &OptedIn, sources: Vec<UsedSource>, links: Links) -> Row {
    let is_paused = workload.kind.rolls && !workload.record.track;
    Row::new(status::status(inventory, workload, sources, true), is_paused, links)
}
