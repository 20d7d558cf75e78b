//! Sources: when one is read, and when its content gets a snapshot.

use std::sync::Arc;

use jiff::Timestamp;

use crate::{
    controller::{
        action::Action,
        queue::{ObjectStep, Task},
        reconcile::state::State,
    },
    resolve::{Observed, Record},
    snapshot::is_named_after,
    world::{KnownSource, Name, SourceRecord, World},
};

/// Reads a source, and the snapshots to compare it with if their keys are lost.
pub(crate) fn read(world: &World, source: &Name) -> Option<Action> {
    if !world.is_watched(source) {
        return None;
    }
    let snapshots = world.unverifiable_of(source);
    Some(if snapshots.is_empty() {
        Action::Read(source.clone())
    } else {
        Action::Compare { source: source.clone(), snapshots }
    })
}

impl State {
    /// Creates the snapshot of a source's present content, or writes the verdict on it.
    pub(super) fn reconcile_source(&mut self, source: &Name) -> Option<Action> {
        let content = self.memory.fresh.take(source);
        let known = self.world.existing_source(source)?;
        let content = content.filter(|content| *content.resource_version == *known.resource_version);
        if self.lacks_snapshot(source) {
            return Some(Action::Ensure { source: source.clone(), content });
        }
        self.take_over(source).or_else(|| self.refuse_with_group(source))
    }

    /// Whether the present content of a source should have a snapshot, and has none.
    fn lacks_snapshot(&self, source: &Name) -> bool {
        let world = &self.world;
        let Some(known) = world.existing_source(source) else { return false };
        // Workloads that read the source live need no snapshot of it, nor do those that leave it as written.
        let is_used = |record: &Record| {
            let mut uses = record.uses.iter().filter(|used| used.source == source.object && !used.live);
            uses.any(|used| !used.excludes(&known.present.labels))
        };
        let is_used = world.workloads_using(source).any(|(_, record)| is_used(record));
        // With `keep: 0`, an unused snapshot would be deleted again; an admission that needs it creates it.
        let wanted =
            (is_used || world.is_labelled(source)) && !known.present.stays_as_written && known.keep > 0;
        wanted
            && !known.present.is_snapshot
            && !world.snapshots().has_content_of(source, known)
            && world.snapshots().count(source) < self.config.max_snapshots
            && world.has_room_for_snapshot(source)
    }

    /// Applies the result of a live read of a source, which a task did.
    pub(in crate::controller) fn finish_read(
        &mut self,
        name: &Name,
        observed: Option<Box<Observed>>,
        now: Timestamp,
    ) {
        self.apply_read(name, observed.as_deref(), now);
        let ensures = self.queue.is_queued(&Task::Ensure(name.clone()));
        if let Some(observed) = observed.filter(|_| ensures && self.lacks_snapshot(name)) {
            self.memory.fresh.put(name, Arc::new(*observed));
        }
    }

    pub(super) fn apply_read(&mut self, name: &Name, observed: Option<&Observed>, now: Timestamp) {
        // Nothing depends on it any more, so it was forgotten.
        if !self.world.is_watched(name) {
            return;
        }
        if observed.is_some_and(|observed| !observed.is_bound_itself() && observed.may_have_our_owners()) {
            self.queue.schedule(Task::Object(name.clone(), ObjectStep::Free), now);
        }
        // Without the snapshots that appeared during the read, the content would count as new.
        if self.queue.is_queued(&Task::Read(name.clone())) && !self.world.unverifiable_of(name).is_empty() {
            self.world.set_source_unknown(name);
            return;
        }
        let record = observed.map(SourceRecord::of);
        self.update(now, |world, changes| world.set_read(name, record, changes));
    }

    /// Queues a read of a source that is not known.
    pub(super) fn enqueue_source(&mut self, name: Name, now: Timestamp) {
        if !self.config.source_kinds().contains(&name.object.kind) {
            return;
        }
        match self.world.need_source(&name) {
            KnownSource::Unknown => self.queue.schedule(Task::Read(name), now),
            // A source that was known before anything used it may have no snapshot yet.
            KnownSource::Exists(_) => self.queue.schedule(Task::Ensure(name), now),
            KnownSource::Missing => {}
        }
    }

    /// Reads a source again, to compare it with a new snapshot whose digest cannot be computed.
    pub(super) fn enqueue_comparison(&mut self, snapshot: &Name, now: Timestamp) {
        let Some(record) = self.world.snapshot(snapshot) else { return };
        if !self.world.config().is_unverifiable(record) {
            return;
        }
        let source = snapshot.sibling(Arc::clone(&record.source));
        let read = Task::Read(source.clone());
        let is_old = match self.world.source(&source) {
            Some(KnownSource::Exists(known)) => !known.present.digests.contains(&record.digest),
            // A read in progress began without this snapshot.
            Some(KnownSource::Unknown) => self.queue.is_working(&read),
            Some(KnownSource::Missing) | None => false,
        };
        if is_old {
            self.world.set_source_unknown(&source);
            self.queue.schedule(read, now);
        }
    }

    /// Queues lost snapshots of a source to be recreated, if the source holds their content again.
    pub(super) fn enqueue_lost_of(&mut self, source: &Name, now: Timestamp) {
        let Some(known) = self.world.existing_source(source) else { return };
        let (of, digests) = (&*source.object.name, &known.present.digests);
        let fits = |lost: &&Name| {
            let is_its = lost.namespace == source.namespace
                && lost.object.kind == source.object.kind
                && self.world.source_of_referenced(lost).is_some_and(|name| *name == *of);
            is_its && digests.iter().any(|digest| is_named_after(&lost.object.name, of, digest))
        };
        for lost in self.missing.lost().filter(fits) {
            self.queue.schedule(Task::Object(lost.clone(), ObjectStep::Restore), now);
        }
    }

    /// Queues lost snapshots to be recreated from a new snapshot, if it may hold their content.
    pub(super) fn enqueue_lost_beside(&mut self, snapshot: &Name, now: Timestamp) {
        let Some(record) = self.world.snapshot(snapshot) else { return };
        let fits = |lost: &&Name| {
            let is_near = lost.namespace == snapshot.namespace && lost.object.kind == snapshot.object.kind;
            let source = self.world.source_of_referenced(lost);
            is_near && source.is_none_or(|of| is_named_after(&lost.object.name, of, &record.digest))
        };
        for lost in self.missing.lost().filter(fits) {
            self.queue.schedule(Task::Object(lost.clone(), ObjectStep::Restore), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        annotations,
        controller::reconcile::fixture::{at, on, set_source, state},
        resolve::{Health, Present, Use},
        snapshot::{DIGITS, ObjectName, SourceKind, snapshot_name},
        world::{
            WorkloadKey,
            fixture::{key, object, record, source, source_record, used},
        },
    };

    /// The source a with a text, and with more metadata.
    fn observed(text: &str, metadata: &str) -> Box<Observed> {
        let json = format!(
            r#"{{"metadata":{{"name":"a","uid":"u","resourceVersion":"9"{metadata}}},"data":{{"k":"{text}"}}}}"#
        );
        Box::new(Observed::read(SourceKind::ConfigMap, json.into_bytes()).unwrap())
    }

    #[test]
    fn content_in_use_needs_a_snapshot() {
        let kept = || SourceRecord { keep: 1, ..source_record("a", 4) };
        let present = || kept().present;
        let with = |present| SourceRecord { present, ..kept() };
        let (a, b) = (used("a", Some(1)), used("b", Some(1)));
        let live = Use { live: true, ..used("a", None) };
        for (what, uses, known, lacks) in [
            ("it is used", [&a, &b], kept(), true),
            ("it is not used", [&b, &b], kept(), false),
            ("it is read live, beside another source", [&live, &b], kept(), false),
            ("its content has one", [&a, &b], SourceRecord { keep: 1, ..source_record("a", 2) }, false),
            ("it keeps none", [&a, &b], source_record("a", 4), false),
            ("it stays as written", [&a, &b], with(Present { stays_as_written: true, ..present() }), false),
            ("it is a snapshot itself", [&a, &b], with(Present { is_snapshot: true, ..present() }), false),
        ] {
            let web = record("web", &uses.map(Use::clone));
            let mut state = state(&[("web", &web)]);
            set_source(&mut state, "a", known);
            assert_eq!(state.lacks_snapshot(&source("a")), lacks, "{what}");
        }
        let mut state = state(&[]);
        set_source(&mut state, "a", kept());
        state.world.set_labelled(&source("a"), true, &mut Vec::new());
        assert!(state.lacks_snapshot(&source("a")), "its label asks for one");
        for (limit, lacks) in [(3, false), (4, true)] {
            state.config.max_snapshots = limit;
            assert_eq!(state.lacks_snapshot(&source("a")), lacks, "it has 3 of at most {limit}");
        }
    }

    #[test]
    fn content_is_kept_only_until_its_snapshot() {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        let is_kept = |state: &mut State, text| {
            state.finish_read(&source("a"), Some(observed(text, "")), at(1));
            state.memory.fresh.take(&source("a")).is_some()
        };
        assert!(is_kept(&mut state, "new"));
        state.queue.cancel(&Task::Ensure(source("a")));
        assert!(!is_kept(&mut state, "new"), "no task takes it");
        let new = observed("other", "");
        let record = crate::world::records::SnapshotRecord {
            digest: new.digest(),
            ..crate::world::fixture::snapshot_record("a", 3)
        };
        let name = source("a").sibling(snapshot_name("a", &new.digest(), DIGITS[0]));
        state.world.apply_snapshot(&name, Some(record), &mut Vec::new());
        assert!(!is_kept(&mut state, "other"), "it has a snapshot");
        assert!(state.queue.is_queued(&Task::Ensure(source("a"))), "a verdict may have to be written");
    }

    /// Only a comparison with snapshots whose key is lost begins again.
    #[test]
    fn read_counts_while_the_next_one_is_queued() {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        state.queue.schedule(Task::Read(source("a")), at(1));
        state.finish_read(&source("a"), Some(observed("new", "")), at(1));
        let known = state.world.existing_source(&source("a"));
        assert_eq!(known.map(|known| &*known.resource_version), Some("9"));
    }

    #[test]
    fn objects_outside_of_bind_mode_are_freed() {
        let owners = r#","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"p"}]"#;
        let by = |manager: &str| format!(r#","managedFields":[{{"manager":"{manager}"}}]"#);
        let ours = by(annotations::MANAGER);
        let bind = format!(r#","labels":{{"{}":"bind"}}"#, annotations::ENABLED);
        for (what, metadata, is_freed) in [
            ("it has left bind mode", format!("{owners}{ours}"), true),
            ("it is bound", format!("{owners}{ours}{bind}"), false),
            ("others added its owners", format!("{owners}{}", by("helm")), false),
            ("it has no owners", ours.clone(), false),
        ] {
            let mut state = state(&[("web", &on(1, Health::Settled))]);
            state.finish_read(&source("a"), Some(observed("new", &metadata)), at(1));
            let free = Task::Object(source("a"), ObjectStep::Free);
            assert_eq!(state.queue.is_queued(&free), is_freed, "{what}");
        }
    }

    #[test]
    fn lost_snapshots_of_a_returned_content_are_restored() {
        let a = used("a", Some(4));
        let secret = Use { source: ObjectName::new(SourceKind::Secret, "a"), ..a.clone() };
        for (what, namespace, used, is_restored) in [
            ("its own", "ns", a.clone(), true),
            ("that of another content", "ns", used("a", Some(5)), false),
            ("that of another namespace", "other", a.clone(), false),
            ("that of another source", "ns", Use { source: object("b"), ..a.clone() }, false),
            ("that of a Secret", "ns", secret, false),
        ] {
            let name = used.snapshot.clone().unwrap();
            let lost = Name::new(namespace, ObjectName::new(used.source.kind, name));
            let mut state = state(&[]);
            let web = WorkloadKey { namespace: namespace.into(), ..key("web") };
            state.world.apply_workload(&web, Some(record("web", &[used])), &mut Vec::new());
            for second in [0, 10] {
                state.missing.not_found(&lost, at(second));
            }
            set_source(&mut state, "a", source_record("a", 4));
            state.enqueue_lost_of(&source("a"), at(20));
            let restore = Task::Object(lost, ObjectStep::Restore);
            assert_eq!(state.queue.is_queued(&restore), is_restored, "{what}");
        }
    }
}
