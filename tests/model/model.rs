//! The world of one sequence: the store, two replicas of confrev, a clock, and the planned faults.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use confrev::{
    annotations,
    controller::{ObjectStep, Outcome, Task, execute},
    kinds::Kinds,
    snapshot::{KEY_BYTES, SourceKind},
    telemetry::Metrics,
    world::{DigestKeys, Owner, ShareLimits},
};
use futures::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    api::{Fault, Memory},
    event::{Event, How},
    ghost::Ghost,
    manifest::{Manifest, NAMESPACES, PRESENT, WORKLOADS, content, source_key},
    replica::Replica,
    store::{Key, Kind, Store, is_snapshot, label},
    trial::Trial,
};

/// Why the API server refused a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    Conflict,
    Denied(u16, String),
}

/// The purpose of a request, in addition to its object.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Intent {
    /// A user requests the newest content.
    pub roll: bool,
    /// confrev's own controller requests a roll.
    pub poke: bool,
    pub effect: Effect,
}

/// Whether a request takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    #[default]
    Taken,
    /// It takes effect, after a dry run.
    Rehearsed,
    /// A dry run: nothing may be written.
    Dry,
}

/// The settings of the world, and its time.
pub(crate) struct Conditions {
    /// The elapsed time.
    pub elapsed: SignedDuration,
    /// The offset of the wall clock, which a replica reads when it starts.
    pub skew: SignedDuration,
    /// The leader; `None` until the Lease has expired.
    pub leader: Option<usize>,
    /// The replica that answered the last review.
    pub served_by: usize,
    pub webhook: bool,
    /// A fault after this number of calls.
    pub fault: Option<(u8, Fault)>,
    /// An event before a call, after this number of calls.
    pub meanwhile: Option<(u8, Box<Event>)>,
    /// A fault or an event happened since this flag was last cleared.
    pub disturbed: bool,
    /// Pods that read a content with the key `breaks` are not available any more.
    pub breaks: bool,
    /// This number of actions begins, and their watch events arrive, before the first response is processed.
    pub side_by_side: usize,
}

/// One world.
pub(crate) struct Model {
    store: Mutex<Store>,
    ghost: Mutex<Ghost>,
    replicas: Mutex<Vec<Replica>>,
    conditions: Mutex<Conditions>,
    /// The number of confrev's writes.
    pub writes: AtomicUsize,
    served: AtomicUsize,
    /// The length of the log when the cluster's own controllers last found nothing to do.
    pub idle_at: [AtomicUsize; 2],
    pub kinds: Arc<Kinds>,
    pub metrics: Metrics,
    /// The keys of the digests of Secrets.
    pub keys: DigestKeys,
    /// The faults of an enumerated run.
    pub trial: Option<Mutex<Trial>>,
    /// The shares of namespaces in each replica.
    pub shares: ShareLimits,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Model {
    /// An empty world.
    pub(crate) fn empty() -> Arc<Self> {
        Arc::new(Self::of_kinds(Kinds::default(), None))
    }

    /// A world for one enumerated run: it is empty except for two replicas, and `trial` has the faults of calls.
    pub(crate) fn enumerated(trial: Trial) -> Arc<Self> {
        Self::sharing(trial, ShareLimits::default())
    }

    /// The same, with replicas that know only these shares of each namespace.
    pub(crate) fn sharing(trial: Trial, shares: ShareLimits) -> Arc<Self> {
        let clone_set = "apps.kruise.io/v1alpha1/clonesets/CloneSet=spec.template".parse().unwrap();
        let mut model = Self::of_kinds(Kinds::with(&[clone_set]), Some(Mutex::new(trial)));
        model.shares = shares;
        model.keys.set(&[7; KEY_BYTES]);
        model.store().counts_generations = true;
        for _ in 0..2 {
            let replica = model.new_replica();
            lock(&model.replicas).push(replica);
        }
        Arc::new(model)
    }

    fn of_kinds(kinds: Kinds, trial: Option<Mutex<Trial>>) -> Self {
        let conditions = Conditions {
            elapsed: SignedDuration::ZERO,
            skew: SignedDuration::ZERO,
            leader: Some(0),
            served_by: 0,
            webhook: true,
            fault: None,
            meanwhile: None,
            disturbed: false,
            breaks: false,
            side_by_side: 0,
        };
        Self {
            store: Mutex::default(),
            ghost: Mutex::default(),
            replicas: Mutex::default(),
            conditions: Mutex::new(conditions),
            writes: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
            idle_at: [const { AtomicUsize::new(0) }; 2],
            kinds: Arc::new(kinds),
            metrics: Metrics::new(),
            keys: DigestKeys::default(),
            trial,
            shares: ShareLimits::default(),
        }
    }

    /// A newly started replica.
    pub(crate) fn new_replica(&self) -> Replica {
        let skew = self.conditions().skew;
        let keys = self.is_enumerated().then(|| self.keys.clone());
        Replica::start(&self.kinds, &self.store(), skew, keys, self.shares)
    }

    /// Whether the leader knows only a part of a namespace.
    pub(crate) fn is_partly_known(&self, namespace: &str) -> bool {
        let Some(leader) = self.conditions().leader else { return false };
        let known = lock(&self.replicas)[leader].shared.lock().partly_known_namespaces();
        known.iter().any(|known| **known == *namespace)
    }

    /// Two namespaces with sources, and the workloads of the first manifests.
    pub(crate) fn start() -> Arc<Self> {
        let model = Self::empty();
        for namespace in NAMESPACES {
            model.commit(&Key::new(Kind::Namespace, "", namespace), json!({"metadata": {}}));
        }
        for index in 0..PRESENT {
            model.commit(&source_key(index), json!({"metadata": {}, "data": content(0)}));
        }
        for _ in 0..2 {
            let replica = model.new_replica();
            lock(&model.replicas).push(replica);
        }
        for index in 0..WORKLOADS.len() {
            model.apply_manifest(index, How::ClientSide, Manifest::first(index), Intent::default());
        }
        model
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    pub(crate) fn ghost(&self) -> MutexGuard<'_, Ghost> {
        lock(&self.ghost)
    }

    pub(crate) fn conditions(&self) -> MutexGuard<'_, Conditions> {
        lock(&self.conditions)
    }

    pub(crate) fn replicas(&self) -> MutexGuard<'_, Vec<Replica>> {
        lock(&self.replicas)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.store().get(key)
    }

    /// The time of the cluster.
    pub(crate) fn cluster_time(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1000) + self.conditions().elapsed
    }

    /// The time of a replica.
    pub(crate) fn now(&self, replica: usize) -> Timestamp {
        self.cluster_time() + self.replicas()[replica].skew
    }

    /// Stores an object of any writer.
    pub(crate) fn commit(&self, key: &Key, object: Value) -> Arc<Value> {
        let now = self.cluster_time();
        let stored = self.store().put(key, object, now);
        self.ghost().stored(key, &stored);
        stored
    }

    pub(crate) fn delete(&self, key: &Key) {
        self.store().delete(key);
        self.ghost().deleted(key);
    }

    /// Deletes an object on behalf of confrev.
    pub(crate) fn confrev_deletes(&self, key: &Key, object: &Value) {
        let is_bound = label(object, annotations::ENABLED) == Some("bind");
        if !is_snapshot(object) && !is_bound {
            self.broken("no-leak", format!("confrev deleted {key}, which is not a snapshot"));
        }
        self.delete(key);
    }

    /// Records a broken promise; only the first one counts.
    pub(crate) fn broken(&self, promise: &str, what: impl Into<String>) {
        self.ghost().broken.get_or_insert_with(|| format!("{promise}: {}", what.into()));
    }

    /// Runs before a call of confrev: performs the planned event, and returns the planned fault.
    pub(crate) fn before_call(self: &Arc<Self>, what: &str, writes: bool) -> Option<Fault> {
        if writes {
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
        let between = {
            let mut conditions = self.conditions();
            match conditions.meanwhile.take() {
                Some((0, event)) => {
                    conditions.disturbed = true;
                    Some(event)
                }
                later => {
                    conditions.meanwhile = later.map(|(after, event)| (after - 1, event));
                    None
                }
            }
        };
        if let Some(event) = between {
            crate::trace!("  before {what}:");
            self.perform(&event);
        }
        let mut conditions = self.conditions();
        let fault = match conditions.fault.take() {
            Some((0, fault)) => {
                conditions.disturbed = true;
                Some(fault)
            }
            later => {
                conditions.fault = later.map(|(after, fault)| (after - 1, fault));
                None
            }
        };
        crate::trace!("  {what}{}", fault.map_or(String::new(), |fault| format!(": {fault:?}")));
        fault
    }

    /// Runs `act`, unless nothing has changed since it last had no effect. Returns whether it had an effect.
    pub(crate) fn unless_idle(&self, of: usize, act: impl FnOnce()) -> bool {
        let before = self.store().log.len();
        if !self.has_timers() && self.idle_at[of].load(Ordering::Relaxed) == before {
            return false;
        }
        act();
        let after = self.store().log.len();
        if before == after {
            self.idle_at[of].store(after, Ordering::Relaxed);
        }
        before != after
    }

    /// Lets each replica perform up to `limit` actions that are due. Returns whether there was any.
    pub(crate) fn work(self: &Arc<Self>, limit: usize) -> bool {
        let mut any = false;
        let replicas = self.replicas().len();
        for replica in 0..replicas {
            let done = (0..limit).take_while(|_| self.work_once(replica)).count();
            any |= done > 0;
        }
        any
    }

    /// Lets a replica perform one action that is due. If it does not lead, it performs only the actions of all
    /// replicas.
    fn work_once(self: &Arc<Self>, replica: usize) -> bool {
        let now = self.now(replica);
        let leads = self.conditions().leader == Some(replica);
        let shared = self.replicas()[replica].shared.clone();
        if self.is_down(replica) {
            return false;
        }
        if !leads {
            shared.lock().leave_to_the_leader();
        }
        let next = shared.lock().next_action(now);
        let Some((task, action)) = next else { return false };
        let api = self.calls_of(replica, false);
        if self.is_enumerated() {
            self.begin(replica, task, Box::pin(async move { execute(&api, action, now).await }));
            return true;
        }
        let outcome = execute(&api, action, now).now_or_never();
        let outcome = outcome.unwrap_or_else(|| panic!("{task:?} did not end without waiting"));
        if let (Task::Object(name, ObjectStep::Restore), Ok(Outcome::Lost)) = (&task, &outcome) {
            self.check_lost(&name.namespace, &name.object.name);
        }
        // A watch may report the action before its response is processed.
        let depth = self.conditions().side_by_side;
        if depth > 0 {
            let now = self.now(replica);
            self.replicas()[replica].deliver_all(&self.store(), now);
            self.conditions().side_by_side = depth - 1;
            for _ in 0..2 {
                self.work_once(replica);
                let now = self.now(replica);
                self.replicas()[replica].deliver_all(&self.store(), now);
            }
            self.conditions().side_by_side = depth;
        }
        shared.lock().finish(&task, outcome, self.now(replica));
        true
    }

    /// The calls of a replica.
    pub(crate) fn calls_of(self: &Arc<Self>, replica: usize, for_review: bool) -> Memory {
        Memory { model: Arc::clone(self), replica, life: self.life(replica), for_review }
    }

    /// Checks that a snapshot that is reported as lost is lost.
    fn check_lost(&self, namespace: &str, snapshot: &str) {
        let live = self.get(&Key::configmap(namespace, snapshot));
        let wrong = if live.is_some_and(|object| is_snapshot(&object)) {
            "it exists"
        } else if self.users_of(namespace, snapshot).is_empty() {
            "nothing refers to it"
        } else {
            return;
        };
        let what = format!("kept: {namespace}/{snapshot} is reported as lost, but {wrong}");
        self.ghost().broken.get_or_insert(what);
    }

    /// The opted-in workloads, and all revisions with any labels, whose templates refer to a ConfigMap.
    pub(crate) fn users_of(&self, namespace: &str, name: &str) -> Vec<Owner> {
        self.users_of_kind(SourceKind::ConfigMap, namespace, name)
    }

    /// The opted-in workloads, and all revisions with any labels, whose templates refer to that object.
    pub(crate) fn users_of_kind(&self, of: SourceKind, namespace: &str, name: &str) -> Vec<Owner> {
        let store = self.store();
        let refers = |key: &Key, object: &Value| {
            let references = crate::manifest::references(key.kind.template(object));
            references.iter().any(|reference| reference.kind == of && reference.name == name)
        };
        let all = store.iter().filter(|(key, object)| {
            let is_in = key.kind.is_workload() && label(object, annotations::ENABLED) == Some("true");
            (is_in || key.kind.is_revision()) && key.namespace == namespace
        });
        let users = all.filter(|(key, object)| refers(key, object));
        users
            .map(|(key, object)| {
                let uid = object["metadata"]["uid"].as_str().unwrap();
                Owner::new(key.kind.api_version(), key.kind.as_str(), key.name.as_str(), uid)
            })
            .collect()
    }

    /// The replica for the next review: the replicas alternate.
    pub(crate) fn serving(&self) -> (usize, confrev::controller::Shared) {
        let replicas = self.replicas();
        let mut turn = self.served.fetch_add(1, Ordering::Relaxed) % replicas.len();
        if self.is_down(turn) {
            turn = 1 - turn;
        }
        self.conditions().served_by = turn;
        (turn, replicas[turn].shared.clone())
    }

    pub(crate) fn writes(&self) -> usize {
        self.writes.load(Ordering::Relaxed)
    }
}

/// Prints the events if `CONFREV_MODEL_TRACE` is set.
#[macro_export]
macro_rules! trace {
    ($($text:tt)*) => {
        if $crate::model::traces() {
            eprintln!($($text)*);
        }
    };
}

/// Whether `CONFREV_MODEL_TRACE` is set.
pub(crate) fn traces() -> bool {
    static TRACES: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("CONFREV_MODEL_TRACE").is_some());
    *TRACES
}
