//! The controller's state: the world, the queue, and what is remembered between two reconciles of an object.
//!
//! Nothing here does I/O. The watches update the world ([`super::enqueue`]), which queues [`crate::controller::tasks`]: they decide
//! when they are due, and apply the outcomes of their actions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    checked_schemas::CheckedSchemas, counted_changes::CountedChanges, events::Events, held::HeldWorkloads,
    missing_snapshots::MissingSnapshots, relists::Relists, rested::RestedWorkloads, rolls::Rolls,
    state_checks::StateChecks,
};
use crate::{
    controller::{config::Config, memory::Memory, queue::Queue},
    kinds::{Kinds, WorkloadKind},
    notify::Notices,
    resolve::{Health, Observed, Record},
    snapshot::{Digest, Digests, Rotated},
    world::{
        DigestKeys, Inherited, Name, Reader, RefusedList, Served, ShareLimits, SourceRecord, WorkloadKey,
        World, WorldChange, WorldConfig, objections::Objection,
    },
};

/// The controller's state.
pub struct State {
    pub(in crate::controller) config: Config,
    pub(in crate::controller) world: World,
    pub(in crate::controller) queue: Queue,
    pub(in crate::controller) memory: Memory,
    pub(in crate::controller) events: Events,
    pub(in crate::controller) rolls: Rolls,
    pub(in crate::controller) held_workloads: HeldWorkloads,
    /// Referenced snapshots that are missing.
    pub(in crate::controller) missing: MissingSnapshots,
    /// Since when a snapshot or bound object is unused.
    pub(in crate::controller) unused_since: HashMap<Name, Timestamp>,
    /// The workloads of changes whose rollout has ended.
    pub(in crate::controller) rested: RestedWorkloads,
    /// The changes that have moved workloads.
    pub(in crate::controller) counted_changes: CountedChanges,
    /// The checks of contents against their schemas.
    pub(in crate::controller) checked_schemas: CheckedSchemas,
    /// The last check of each change whose state is on its source.
    pub(in crate::controller) checks_of_states: StateChecks,
    /// How many snapshots were deleted early for the limit of bytes, since it was last asked.
    pub(in crate::controller) dropped_snapshots: u64,
    /// Whether the loss of a key was reported.
    pub(super) key_loss_is_reported: bool,
    /// Where important Events go, besides the API server.
    pub(in crate::controller) notices: Notices,
    /// Whether this replica leads, and therefore posts notifications. A state without a loop does.
    pub(in crate::controller) leads: bool,
    /// When the watches list their objects again.
    pub(in crate::controller) relists: Relists,
    /// When workloads are listed again, to be read with other settings.
    pub(super) relists_of_settings: Relists,
    /// Whether workloads were read with other settings than those that they inherit now.
    pub(super) inherits_anew: bool,
    /// An empty list that keeps its capacity: every event of a watch needs one.
    pub(in crate::controller) changes: Vec<WorldChange>,
}

impl State {
    /// An empty state.
    pub fn new(kinds: Arc<Kinds>, config: Config) -> Self {
        Self {
            config,
            world: World::new(WorldConfig::new(kinds)),
            queue: Queue::default(),
            memory: Memory::default(),
            events: Events::default(),
            rolls: Rolls::default(),
            held_workloads: HeldWorkloads::default(),
            missing: MissingSnapshots::default(),
            unused_since: HashMap::new(),
            rested: RestedWorkloads::default(),
            notices: Notices::default(),
            counted_changes: CountedChanges::default(),
            checks_of_states: StateChecks::default(),
            checked_schemas: CheckedSchemas::default(),
            dropped_snapshots: 0,
            key_loss_is_reported: false,
            leads: true,
            relists: Relists::default(),
            relists_of_settings: Relists::of_settings(),
            inherits_anew: false,
            changes: Vec::new(),
        }
    }

    /// Also posts important Events as notifications.
    #[must_use]
    pub fn notifying(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }

    /// Records whether this replica leads.
    pub(in crate::controller) fn set_leading(&mut self, leads: bool) {
        self.leads = leads;
    }

    /// Serves only these namespaces: workloads in others reach no webhook, so a roll would have no effect.
    #[must_use]
    pub fn serving(mut self, namespaces: Served) -> Self {
        self.world.config_mut().served = namespaces;
        self
    }

    /// Leaves references to these ConfigMaps as written.
    #[must_use]
    pub fn leaving(mut self, rotated: Rotated) -> Self {
        self.world.config_mut().rotated = rotated;
        self
    }

    /// Reads what sources and workloads inherit, too.
    #[must_use]
    pub fn under(mut self, inherited: Inherited) -> Self {
        self.world.config_mut().inherited = inherited;
        self
    }

    /// Refuses these contents.
    #[must_use]
    pub fn refusing(mut self, refused: RefusedList) -> Self {
        self.world.config_mut().refused = refused;
        self
    }

    /// Keeps the state of each change on its source, unless the source says otherwise.
    #[must_use]
    pub fn reporting(mut self, by_default: bool) -> Self {
        self.world.config_mut().report_changes = by_default;
        self
    }

    /// Compares the digests of Secrets under these keys.
    #[must_use]
    pub fn keyed_by(mut self, keys: DigestKeys) -> Self {
        self.world.config_mut().keys = keys;
        self
    }

    /// Skips workloads and revisions that refer to more names than this.
    #[must_use]
    pub fn naming_at_most(mut self, names: usize) -> Self {
        self.world.config_mut().max_names = names;
        self
    }

    /// Keeps at most so many bytes of a source's unused snapshots, and always the newest one.
    #[must_use]
    pub fn keeping_at_most(mut self, bytes: u64) -> Self {
        self.world.config_mut().max_snapshot_bytes = bytes;
        self
    }

    /// Limits the records of each namespace, and of all, to these sizes.
    #[must_use]
    pub fn sharing(mut self, shares: ShareLimits) -> Self {
        self.world.config_mut().shares = shares;
        self
    }

    /// The settings that decide how an object is read.
    pub(in crate::controller) fn reader(&self) -> Reader {
        self.world.config().reader()
    }

    /// Records that every watch has listed its objects.
    pub fn set_synced(&mut self) {
        self.world.set_synced();
    }

    /// How many snapshots were deleted early for the limit of bytes, since the last call.
    pub fn take_dropped_snapshots(&mut self) -> u64 {
        std::mem::take(&mut self.dropped_snapshots)
    }

    /// The strategy of each change that has begun to move workloads since the last call; empty for a change outside any.
    pub fn take_changes(&mut self) -> Vec<Box<str>> {
        self.counted_changes.take()
    }

    /// When the next task is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.queue.next(self.rolls.from())
    }

    /// How many pending workloads a gate keeps from new content.
    pub fn held(&self) -> usize {
        self.held_workloads.by_gate().iter().map(|(_, count)| count).sum()
    }

    /// The opted-in workloads whose templates use this source.
    pub fn workloads_using(&self, source: &Name) -> impl Iterator<Item = (&WorkloadKey, &Record)> {
        self.world.workloads_using(source)
    }

    /// Whether a write of this source gets a snapshot: an opted-in workload uses the source, or its label requires it.
    pub fn is_snapshotted(&self, source: &Name) -> bool {
        self.world.is_snapshotted(source)
    }

    /// How many snapshots a source has.
    pub fn snapshot_count(&self, source: &Name) -> usize {
        self.world.snapshots().count(source)
    }

    /// The snapshots of a source with one of these digests whose names have random digits, the newest first.
    pub fn spare_snapshots(&self, source: &Name, digests: &Digests) -> Vec<String> {
        self.world.snapshots().spare_with(source, digests)
    }

    /// Whether a workload or revision refers to this object itself.
    pub fn is_in_use(&self, name: &Name) -> bool {
        self.world.users().has_any(name)
    }

    /// The name of the snapshot that most likely holds the source's present content. This is a guess: watches lag, and the
    /// snapshot may not exist yet.
    pub fn newest_snapshot(&self, source: &Name) -> Option<String> {
        self.world.newest_snapshot(source)
    }

    /// The namespaces whose sources are watched: those with opted-in workloads, snapshots or labelled sources.
    pub fn watched_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.world.watched_namespaces()
    }

    /// The namespaces whose Rollouts are watched, each with the number of its watch.
    pub fn limited_namespaces(&self) -> BTreeMap<Arc<str>, usize> {
        self.world.limited_namespaces()
    }

    /// Records that all Rollouts of the namespace are known. Until then, the health of the workloads was not.
    pub fn set_referrers_listed(&mut self, namespace: &str, now: Timestamp) {
        if !self.world.referrers_mut().set_listed(namespace) {
            return;
        }
        let keys: Vec<_> = self.world.workloads_in(namespace).cloned().collect();
        for key in keys {
            self.enqueue_judgement(&key, now);
        }
    }

    /// The worst health of the Rollouts that use a workload's template, for this generation of the workload; `None` if they
    /// are not known.
    pub fn referrers_health(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        name: &str,
        generation: Option<i64>,
    ) -> Option<Health> {
        self.world.referrers_health(kind, namespace, name, generation)
    }

    /// The undo or pin by which a workload keeps other content of a source.
    pub fn pin(&self, key: &WorkloadKey, source: &Name) -> Option<Pin> {
        let record = self.world.workload(key)?;
        self.world.kept(&key.namespace, record).find(|used| used.source == source.object)?;
        let rejected = record.pinned(&source.object);
        let keys = record.keys_of(&source.object);
        let rejected =
            rejected.zip(keys).map(|(digest, keys)| (*digest, keys.into_iter().map(str::to_owned).collect()));
        Some(Pin { rejected })
    }

    /// The workloads that would not move to content that a source is about to get, and why.
    pub fn objections<'i>(
        &'i self,
        source: &'i Name,
        content: &'i SourceRecord,
        now: Timestamp,
    ) -> Vec<Objection<'i>> {
        self.world.objections(source, content, now)
    }

    /// The workload's name in messages to users of its namespace.
    pub fn display_short(&self, key: &WorkloadKey) -> String {
        self.world.display_short(key)
    }

    /// The workload's name in messages, with its namespace.
    pub fn display(&self, key: &WorkloadKey) -> String {
        self.world.display(key)
    }
}

/// An undo or a pin that keeps other content of a source. It is compared with content apart from the state: the digests of some
/// keys take a while, and the state is locked for all clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The digest of the keys that the workload reads, in the content that it does not take; `None` if every other content ends it.
    rejected: Option<(Digest, Vec<String>)>,
}

impl Pin {
    /// Whether this content of the source would end it.
    pub fn ends_with(&self, content: &Observed) -> bool {
        self.rejected.as_ref().is_none_or(|(rejected, keys)| {
            let keys = keys.iter().map(String::as_str).collect();
            content.digests_of(Some(&keys)).judge(rejected) != Some(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, limited, on, set_source, state},
        resolve::{Referrer, Use},
        snapshot::SourceKind,
        tie::{ReadKey, Reads},
        world::fixture::{key, object, record, source, used},
    };

    /// The source a with a text, and with more metadata.
    fn content(text: &str, metadata: &str) -> Observed {
        let json =
            format!(r#"{{"metadata":{{"name":"a"{metadata}}},"data":{{"k":"{text}","other":"{text}"}}}}"#);
        Observed::read(SourceKind::ConfigMap, json.into_bytes()).unwrap()
    }

    #[test]
    fn admission_learns_what_is_watched() {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        let sources = ["a", "b", "c"].map(source);
        let snapshotted = |state: &State| sources.each_ref().map(|source| state.is_snapshotted(source));
        assert_eq!(snapshotted(&state), [true, false, false]);
        state.set_labelled(&source("c"), true, at(0));
        assert_eq!(snapshotted(&state), [true, false, true]);
        assert_eq!(sources.each_ref().map(|source| state.snapshot_count(source)), [3, 3, 0]);
        assert_eq!(state.watched_namespaces(), ["ns".into()].into_iter().collect());
        assert_eq!(state.display(&key("web")), "Deployment ns/web");
        assert_eq!(state.display_short(&key("web")), "Deployment/web");
    }

    /// They are known once a watch has listed them.
    #[test]
    fn health_of_borrowed_templates_includes_rollouts() {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        let health = |state: &State| {
            let kind = state.world.kind(&key("web")).unwrap().clone();
            state.referrers_health(&kind, "ns", "web", Some(1))
        };
        assert_eq!(health(&state), None);
        set_source(&mut state, "a", limited("a", 2, &[("max-in-flight", "1")]));
        assert_eq!(health(&state), Some(Health::Idle), "no Rollout uses the template");
        let text = r#"{"spec":{"workloadRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}},
            "metadata":{"generation":1},"status":{"phase":"Degraded","observedGeneration":"1"}}"#;
        let rollout = Referrer::read(text);
        state.apply_referrer(&"ns".into(), &"rollout".into(), rollout, at(0));
        assert_eq!(health(&state), Some(Health::Failed));
    }

    #[test]
    fn only_change_of_read_keys_ends_undo() {
        let read = ReadKey { key: "k".into(), required: true };
        let reads = Reads { whole: false, keys: Box::new([read]) };
        let rejected = content("same", "").digests_of(Some(&["k"].into())).current();
        let keys = record("web", &[Use { whole: false, ..used("a", Some(1)) }]).tied(&object("a"), |tie| {
            tie.reads = Some(Box::new(reads));
            tie.pinned = Some(Box::new(rejected));
        });
        let whole = record("web", &[used("a", Some(1))]);
        let ends_pin = |state: &State, workload, name, text| {
            state.pin(&key(workload), &source(name)).is_some_and(|pin| pin.ends_with(&content(text, "")))
        };
        for (what, record, text, ends) in [
            ("it reads all of the source", &whole, "other", true),
            ("a key that it reads changes", &keys, "other", true),
            ("only other keys change", &keys, "same", false),
            ("it keeps nothing", &on(2, Health::Settled), "other", false),
        ] {
            let state = state(&[("web", record)]);
            assert_eq!(ends_pin(&state, "web", "a", text), ends, "{what}");
            assert!(!ends_pin(&state, "web", "b", text), "{what}, of a");
            assert!(!ends_pin(&state, "gone", "a", text), "of no workload");
        }
    }
}
