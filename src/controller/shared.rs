//! The state that the controller's loop shares with admission and the watches.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::{
    queue::clock::Clock,
    reconcile::state::State,
    vitals::{Pulse, Vitals},
};
use crate::{
    resolve::{Decision, Facts, Observed},
    snapshot::{ObjectName, Rotated},
    telemetry::Condition,
    world::{Inherited, Name, Reader, Served},
};

/// The most lists in progress at once: each holds a page in memory, as text and as objects.
const LISTS: usize = 2;
/// The longest that a list waits for a place: the lists before it may wait for a server that does not answer.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The state, shared by the watches, the loop and admission. It is locked only briefly, never across an await.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Copied from the state, where they never change: every review reads them.
    served: Served,
    reader: Reader,
    clock: Mutex<Clock>,
    changed: Arc<Notify>,
    namespaces: watch::Sender<usize>,
    /// How often all watches that leave objects out, and those of workloads alone, were to list their objects again.
    relists: watch::Sender<[usize; 2]>,
    lists: Arc<Semaphore>,
    lists_done: Arc<InitialLists>,
    vitals: Vitals,
}

/// Counts the watches that have not listed their objects yet.
struct InitialLists {
    open: AtomicUsize,
    complete: AtomicBool,
    /// Whether every watch has listed its objects.
    done: AtomicBool,
    condition: Condition,
    reached: Notify,
}

/// Notified once by a watch when its objects are known. The default value notifies nothing.
#[derive(Default)]
pub(super) struct SyncPoint(Mutex<Option<Arc<InitialLists>>>);

impl SyncPoint {
    /// Records that the watch's objects are known.
    pub(super) fn reached(&self) {
        if let Some(sync) = self.0.lock().take() {
            sync.open.fetch_sub(1, Ordering::SeqCst);
            sync.reached.notify_one();
        }
    }
}

impl Shared {
    /// Shares a state; `condition` holds once every watch has listed its objects.
    pub fn new(state: State, condition: Condition) -> Self {
        let lists_done = InitialLists {
            open: AtomicUsize::new(0),
            complete: AtomicBool::new(false),
            done: AtomicBool::new(false),
            condition,
            reached: Notify::new(),
        };
        Self(Arc::new(Inner {
            served: state.world.config().served.clone(),
            reader: state.reader(),
            state: Mutex::new(state),
            clock: Mutex::new(Clock::new()),
            changed: Arc::new(Notify::new()),
            namespaces: watch::Sender::new(0),
            relists: watch::Sender::new([0; 2]),
            lists: Arc::new(Semaphore::new(LISTS)),
            lists_done: Arc::new(lists_done),
            vitals: Vitals::new(),
        }))
    }

    /// Locks the state, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Whether the state is locked at this moment.
    #[cfg(test)]
    pub(super) fn is_locked(&self) -> bool {
        self.0.state.is_locked()
    }

    /// The current time on the controller's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.clock().now()
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.0.clock.lock()
    }

    /// The duration until a time on the controller's clock.
    pub(super) fn until(&self, then: Timestamp) -> Duration {
        self.clock().until(then)
    }

    /// Waits for a change of the state.
    pub(super) async fn woken(&self) {
        self.0.changed.notified().await;
    }

    /// Records an iteration of the loop.
    pub(super) fn pass(&self) {
        self.0.vitals.pass();
    }

    /// The notification that wakes the loop.
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.0.changed)
    }

    /// Whether every watch has listed its objects.
    pub fn is_synced(&self) -> bool {
        self.lock().world.is_synced()
    }

    /// Why this replica cannot do a leader's work; `None` if it can.
    pub fn unfit_to_lead(&self) -> Option<&'static str> {
        if self.0.lists_done.done.load(Ordering::SeqCst) {
            self.0.vitals.failing()
        } else {
            Some("not every watch has listed its objects")
        }
    }

    /// Adds a watch, and returns its pulse.
    pub(super) fn pulse(&self) -> Arc<Pulse> {
        self.0.vitals.watch()
    }

    /// Queues everything for a check, sources first: the digests of Secrets have changed.
    pub fn reconcile_all(&self) {
        self.change(State::reconcile_all);
    }

    /// The namespaces for which the webhooks are called.
    pub fn served(&self) -> &Served {
        &self.0.served
    }

    /// The ConfigMaps that are never snapshotted.
    pub fn rotated(&self) -> &Rotated {
        &self.0.reader.rotated
    }

    /// Whether the watch has reported a namespace. Before all namespaces are listed, this is not known.
    pub fn knows_namespace(&self, namespace: &str) -> bool {
        let state = self.lock();
        !state.world.is_synced() || state.world.knows_namespace(namespace)
    }

    /// What the sources and workloads of reviews inherit.
    pub fn inherited(&self) -> &Inherited {
        &self.0.reader.inherited
    }

    /// The settings that decide how a watched object is read.
    pub(super) fn reader(&self) -> &Reader {
        &self.0.reader
    }

    /// Whether a write of this source is to be snapshotted.
    pub fn is_snapshotted(&self, source: &Name) -> bool {
        self.lock().is_snapshotted(source)
    }

    /// How many snapshots a source has.
    pub fn snapshot_count(&self, source: &Name) -> usize {
        self.lock().snapshot_count(source)
    }

    /// Remembers the snapshots to which a decision newly refers, in case the garbage collector deletes one before it is bound.
    pub fn remember_snapshots(&self, namespace: &str, decision: &Decision, facts: &Facts) {
        let now = self.now();
        let sound = |name: &ObjectName| facts.object(name)?.filter(|observed| observed.is_sound());
        let contents =
            decision.refers.iter().filter_map(|name| Some((name.clone(), Arc::new(sound(name)?.clone()))));
        let contents: Vec<_> = contents.collect();
        let mut state = self.lock();
        for (name, content) in contents {
            state.memory.remember_admitted(Name::new(namespace, name), content, now);
        }
    }

    /// Remembers a source in bind mode that is about to be deleted, so that it can be recreated while it is in use.
    pub fn remember(&self, name: &Name, content: &Observed) {
        let content = Arc::new(content.clone());
        let displaced = self.lock().memory.remember_deleted(name.clone(), content, self.now());
        for object in displaced {
            tracing::warn!(%object, "too many bound objects are being deleted: the content of one of them is forgotten");
        }
    }

    /// Changes the state, and wakes the loop and the watches of namespaces.
    pub(super) fn change(&self, change: impl FnOnce(&mut State, Timestamp)) {
        let generation = {
            let mut state = self.lock();
            change(&mut state, self.now());
            state.world.watched_generation()
        };
        self.0.namespaces.send_if_modified(|known| std::mem::replace(known, generation) != generation);
        self.0.changed.notify_one();
    }

    /// Waits for a place to list, but not for long. The place is free again when the permit is dropped.
    pub(super) async fn place_to_list(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.0.lists).acquire_owned();
        tokio::time::timeout(LONGEST_WAIT, place).await.ok()?.ok()
    }

    /// Creates a point that a watch must reach before the state counts as known.
    pub(super) fn sync_point(&self) -> SyncPoint {
        self.0.lists_done.open.fetch_add(1, Ordering::SeqCst);
        SyncPoint(Mutex::new(Some(Arc::clone(&self.0.lists_done))))
    }

    /// Records that no further sync point will be created.
    pub(super) fn sync_points_are_complete(&self) {
        self.0.lists_done.complete.store(true, Ordering::SeqCst);
        self.0.lists_done.reached.notify_one();
    }

    /// Reports every change of the set of namespaces to watch.
    pub(super) fn namespace_changes(&self) -> watch::Receiver<usize> {
        self.0.namespaces.subscribe()
    }

    /// Reports every request to list objects again, from now on.
    pub(super) fn relists(&self) -> watch::Receiver<[usize; 2]> {
        self.0.relists.subscribe()
    }

    /// Makes watches list their objects again, if some were left out that may fit now, or workloads inherit other settings.
    pub(super) fn relist_if_due(&self) {
        let now = self.now();
        let due = self.lock().take_relists(now);
        if due != [false; 2] {
            self.0.relists.send_modify(|numbers| {
                numbers.iter_mut().zip(due).for_each(|(number, due)| *number += usize::from(due));
            });
        }
    }

    /// Waits until every watch has listed its objects, then lets the controller act.
    pub(super) async fn wait_for_sync(&self) {
        let sync = &self.0.lists_done;
        while !(sync.complete.load(Ordering::SeqCst) && sync.open.load(Ordering::SeqCst) == 0) {
            sync.reached.notified().await;
        }
        self.change(|state, _| state.set_synced());
        // The first pass of the loop starts now.
        self.0.vitals.pass();
        sync.done.store(true, Ordering::SeqCst);
        sync.condition.meet();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::{
            queue::Task,
            reconcile::fixture::{on, state},
        },
        resolve::Health,
        snapshot::{DIGITS, Identity, Made, SourceKind, snapshot_json, snapshot_name},
        telemetry::Readiness,
        world::{
            WorkloadKey,
            fixture::{key, source},
        },
    };

    fn shared(state: State) -> Shared {
        Shared::new(state, Readiness::new().register("caches"))
    }

    /// A state that has listed nothing.
    fn empty() -> State {
        State::new(Arc::default(), state(&[]).config)
    }

    #[tokio::test(start_paused = true)]
    async fn replica_is_fit_once_all_is_listed() {
        let shared = shared(empty());
        let points = [(); 2].map(|()| shared.sync_point());
        let waiting = shared.clone();
        tokio::spawn(async move { waiting.wait_for_sync().await });
        let steps: [(&str, &dyn Fn(), bool); 5] = [
            ("nothing is listed", &|| {}, false),
            ("one of two watches has listed", &|| points[0].reached(), false),
            ("it lists again", &|| points[0].reached(), false),
            ("no watch will follow", &|| shared.sync_points_are_complete(), false),
            ("both watches have listed", &|| points[1].reached(), true),
        ];
        for (what, step, is_fit) in steps {
            step();
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(shared.is_synced(), is_fit, "{what}");
            let unfit = (!is_fit).then_some("not every watch has listed its objects");
            assert_eq!(shared.unfit_to_lead(), unfit, "{what}");
        }
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(shared.unfit_to_lead(), Some("the controller's loop is stuck"));
        shared.pass();
        assert_eq!(shared.unfit_to_lead(), None);
        let pulse = shared.pulse();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            shared.pass();
        }
        assert_eq!(shared.unfit_to_lead(), Some("a watch receives nothing from the API server"));
        drop(pulse);
    }

    #[tokio::test(start_paused = true)]
    async fn no_watch_means_no_wait() {
        let shared = shared(empty());
        shared.sync_points_are_complete();
        shared.wait_for_sync().await;
        assert!(shared.is_synced());
    }

    #[tokio::test(start_paused = true)]
    async fn change_wakes_the_loop_and_new_namespaces() {
        let shared = shared(state(&[]));
        let is_woken = async || tokio::time::timeout(Duration::from_secs(1), shared.woken()).await.is_ok();
        assert!(!is_woken().await, "nothing changed");
        shared.changed().notify_one();
        assert!(is_woken().await);
        let mut namespaces = shared.namespace_changes();
        let web = WorkloadKey { namespace: "new".into(), ..key("web") };
        for (record, is_new) in
            [(Some(on(1, Health::Settled)), true), (Some(on(2, Health::Settled)), false), (None, true)]
        {
            shared.change(|state, now| state.apply_workload(&web, record, now));
            assert!(is_woken().await);
            assert_eq!(namespaces.has_changed().unwrap(), is_new);
            namespaces.mark_unchanged();
        }
    }

    #[test]
    fn clock_has_the_present_time() {
        let shared = shared(empty());
        let (before, now) = (Timestamp::now(), shared.now());
        assert!(now >= before);
        let later = now + jiff::SignedDuration::from_hours(1);
        assert!(shared.until(later) > Duration::from_mins(59));
    }

    #[test]
    fn admission_reads_settings_and_sources() {
        let served = Served::but(["excluded".to_owned()]);
        let rotated = Rotated::with(["ca".to_owned()]);
        let shared = shared(state(&[("web", &on(1, Health::Settled))]).serving(served).leaving(rotated));
        assert_eq!(["ns", "excluded"].map(|name| shared.served().contains(name)), [true, false]);
        let objects = ["a", "ca"].map(|name| source(name).object);
        assert_eq!(objects.map(|object| shared.rotated().contains(&object)), [false, true]);
        assert_eq!(["a", "b"].map(|name| shared.is_snapshotted(&source(name))), [true, false]);
        assert_eq!(["a", "c"].map(|name| shared.snapshot_count(&source(name))), [3, 0]);
        shared.reconcile_all();
        assert!(shared.lock().queue.is_queued(&Task::Read(source("a"))));
    }

    #[tokio::test(start_paused = true)]
    async fn lists_wait_for_each_other_briefly() {
        let shared = shared(empty());
        let mut places = Vec::new();
        for _ in 0..LISTS {
            places.push(shared.place_to_list().await.unwrap());
        }
        let start = tokio::time::Instant::now();
        assert!(shared.place_to_list().await.is_none(), "all places are taken");
        assert_eq!(start.elapsed(), LONGEST_WAIT);
        places.pop();
        assert!(shared.place_to_list().await.is_some());
    }

    /// The garbage collector may delete them before they are bound.
    #[test]
    fn sound_snapshots_of_a_decision_are_remembered() {
        let read = |json: &[u8]| Observed::read(SourceKind::ConfigMap, json).unwrap();
        let of = read(br#"{"metadata":{"name":"a"},"data":{"k":"v"}}"#);
        let identity = Identity { source: "a".to_owned(), digest: of.digest() };
        let make = |name: &str| {
            snapshot_json(
                SourceKind::ConfigMap,
                "ns",
                name,
                &identity,
                of.json(),
                &[],
                Made::at(Timestamp::MAX),
            )
            .unwrap()
        };
        let names = DIGITS.map(|digits| snapshot_name("a", &identity.digest, digits));
        let [first, second, third, _] = &names;
        let changed = String::from_utf8(make(second)).unwrap().replace("\"v\"", "\"w\"");
        let mut facts = Facts::default();
        let name = |name: &str| source(name).object;
        facts.set_object(name(first), Some(read(&make(first))));
        facts.set_object(name(second), Some(read(changed.as_bytes())));
        facts.set_object(name(third), None);
        let refers = names.each_ref().map(|of| name(of)).into();
        let shared = shared(empty());
        shared.remember_snapshots("ns", &Decision { refers, ..Decision::default() }, &facts);
        let is_known = |name: &String| shared.lock().memory.recall(&source(name)).is_some();
        assert_eq!(names.each_ref().map(is_known), [true, false, false, false]);
    }
}
