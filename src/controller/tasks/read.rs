//! The read of a source: when it is due, and what its content says.

use std::sync::Arc;

use jiff::Timestamp;

use crate::{
    cluster::{Api, ApiError},
    controller::{
        action::{Action, Outcome},
        queue::{ObjectStep, Task},
        reconcile::state::State,
    },
    resolve::Observed,
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
    /// Applies the result of a live read of a source, which a task did.
    pub(super) fn finish_read(&mut self, name: &Name, observed: Option<Box<Observed>>, now: Timestamp) {
        self.apply_read(name, observed.as_deref(), now);
        let ensures = self.queue.is_queued(&Task::Ensure(name.clone()));
        if let Some(observed) = observed.filter(|_| ensures && self.lacks_snapshot(name)) {
            self.memory.fresh.put(name, Arc::new(*observed));
        }
    }

    fn apply_read(&mut self, name: &Name, observed: Option<&Observed>, now: Timestamp) {
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
    pub(in crate::controller) fn enqueue_source(&mut self, name: Name, now: Timestamp) {
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
}

/// Reads a source live, and the snapshots whose digests cannot be computed.
pub(in crate::controller) async fn run<A: Api>(
    api: &A,
    source: &Name,
    snapshots: &[Name],
) -> Result<Outcome, ApiError> {
    let mut observed = api.read(&source.namespace, &source.object).await?;
    if let Some(observed) = &mut observed {
        for name in snapshots {
            let snapshot = api.read(&name.namespace, &name.object).await?;
            if let Some(snapshot) = snapshot {
                observed.learn(&snapshot);
            }
        }
    }
    Ok(Outcome::Read(observed.map(Box::new)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        annotations,
        controller::reconcile::fixture::{at, on, state},
        resolve::Health,
        snapshot::{DIGITS, SourceKind, snapshot_name},
        world::fixture::source,
    };

    /// The source a with a text, and with more metadata.
    fn observed(text: &str, metadata: &str) -> Box<Observed> {
        let json = format!(
            r#"{{"metadata":{{"name":"a","uid":"u","resourceVersion":"9"{metadata}}},"data":{{"k":"{text}"}}}}"#
        );
        Box::new(Observed::read(SourceKind::ConfigMap, json.into_bytes()).unwrap())
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
}
