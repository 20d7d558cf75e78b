//! An object that is referenced and missing: when it is restored, from what, and when it counts as lost.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::owners::free;
use crate::{
    cluster::{Api, ApiError, Created, Usage, own_owners},
    controller::{
        action::{Action, Outcome},
        queue::{ObjectStep, Task},
        reconcile::{
            event_texts::{self, Loss},
            missing_snapshots::Conclusion,
            state::State,
        },
        tasks::end::End,
    },
    resolve::Observed,
    snapshot::{Digest, Identity, is_named_after},
    world::{MAX_OWNERS, Name, Owner},
};

/// How long a referenced snapshot may be unknown, because the watches are not in step with each other.
const RESTORE_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// The most users of a lost snapshot that are read one by one, before the whole namespace is searched.
const MAX_USERS_READ: usize = 3;

impl State {
    /// Queues a restore of an object that may only be unknown yet. The delay also leaves time for a tool that deletes an
    /// object in order to create it again, as `kubectl replace --force` does.
    pub(in crate::controller) fn enqueue_restore(&mut self, name: Name, now: Timestamp) {
        self.queue.schedule(Task::Object(name, ObjectStep::Restore), now + RESTORE_DELAY);
    }

    /// Queues lost snapshots of a source to be recreated, if the source holds their content again.
    pub(in crate::controller) fn enqueue_lost_of(&mut self, source: &Name, now: Timestamp) {
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
    pub(in crate::controller) fn enqueue_lost_beside(&mut self, snapshot: &Name, now: Timestamp) {
        let Some(record) = self.world.snapshot(snapshot) else { return };
        let fits = |lost: &&Name| {
            let is_near = lost.namespace == snapshot.namespace && lost.object.kind == snapshot.object.kind;
            let of_source = || self.world.source_of_referenced(lost);
            is_near && of_source().is_none_or(|of| is_named_after(&lost.object.name, of, &record.digest))
        };
        for lost in self.missing.lost().filter(fits) {
            self.queue.schedule(Task::Object(lost.clone(), ObjectStep::Restore), now);
        }
    }

    /// Recreates a snapshot, or source in bind mode, that is referenced but missing.
    pub(in crate::controller) fn restore(&self, name: &Name) -> Option<Action> {
        let world = &self.world;
        // Nothing is known of a kind that is not watched, and every read would fail without the right to it.
        if !self.config.source_kinds().contains(&name.object.kind) {
            return None;
        }
        let content = self.memory.recall(name).map(Arc::clone);
        // No watch may report the users of a bound object: its owners are read live.
        let is_bound = content.as_ref().is_some_and(|content| content.is_bound_itself());
        let referenced =
            world.source_of_referenced(name).or_else(|| is_bound.then_some(&*name.object.name))?;
        // A template records the second snapshot of a source under its own name: the snapshot's own identity takes
        // precedence.
        let remembered = content.as_ref().and_then(|content| content.identity());
        let source = remembered.map_or(referenced, |identity| &identity.source).to_owned();
        // A source in bind mode is recreated from memory only: its snapshots may hold any earlier content.
        let bound_itself = *source == *name.object.name;
        let copies = if bound_itself { Vec::new() } else { world.snapshots().twins(name, &source) };
        let owners = if bound_itself { world.owners_by_use(name).into_iter().collect() } else { Vec::new() };
        let staying = world.users().staying(name);
        let users = staying.filter_map(|user| world.owner(user)).take(MAX_USERS_READ).collect();
        Some(Action::Restore { snapshot: name.clone(), source, copies, content, owners, users })
    }

    pub(super) fn restore_finished(&mut self, name: &Name, outcome: &Outcome, now: Timestamp) -> End {
        if let Outcome::Lost | Outcome::Taken = outcome {
            let is_taken = matches!(outcome, Outcome::Taken);
            return match self.lose(name, is_taken, now) {
                Some(at) => End::Again(at),
                // No watch reports the deletion of the object that has the name.
                None if is_taken => End::Failed,
                None => End::Done,
            };
        }
        self.missing.changed(name);
        if matches!(outcome, Outcome::Restored) {
            self.report_loss(name, Loss::Restored, now);
        }
        End::Done
    }

    /// Records a restore that found no content: the snapshot is lost, or another object has its name. Returns when to try
    /// again; `None` once the loss is reported.
    pub(in crate::controller) fn lose(
        &mut self,
        snapshot: &Name,
        is_taken: bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        match self.missing.not_found(snapshot, now) {
            Conclusion::KnownLost => return None,
            Conclusion::Again(at) => return Some(at),
            Conclusion::Lost => {}
        }
        if is_taken {
            tracing::error!(%snapshot, "referenced snapshot is missing and another object has its name: pods of the \
                 revisions that refer to it read that object");
        } else {
            tracing::error!(%snapshot, "referenced snapshot is missing and its content is lost: pods of the revisions \
                 that refer to it do not start");
        }
        self.report_loss(snapshot, if is_taken { Loss::Taken } else { Loss::Lost }, now);
        None
    }

    /// Reports a referenced snapshot that was missing, and was recreated or is lost.
    fn report_loss(&mut self, snapshot: &Name, loss: Loss, now: Timestamp) {
        let events = event_texts::loss(&self.world, snapshot, loss, now);
        self.report(events, now);
    }
}

/// Recreates a snapshot: from memory, from the source if it still holds the content, or from another snapshot that does. A
/// source in bind mode is recreated from memory only.
pub(super) async fn restore<A: Api>(
    api: &A,
    snapshot: &Name,
    source: &str,
    copies: &[Name],
    content: Option<&Observed>,
    owners: &[Owner],
    users: &[Owner],
) -> Result<Outcome, ApiError> {
    let bound_itself = *source == *snapshot.object.name;
    let mut live = None;
    if bound_itself || content.is_none() {
        live = api.read(&snapshot.namespace, &snapshot.sibling(source).object).await?;
    }
    if bound_itself && live.is_some() {
        // It exists after all, but may have left bind mode unnoticed.
        return free(api, snapshot).await;
    }
    // Owners that use the object, but that no watch reports.
    let former = if bound_itself { content.map(|content| own_owners(content.json())) } else { None };
    let former = using(api, snapshot, former.unwrap_or_default()).await?;
    if former.is_empty() && !stays_used(api, snapshot, users).await? {
        if bound_itself && users.is_empty() {
            return Ok(Outcome::Done);
        }
        return Err(ApiError::Conflict { what: format!("restore {snapshot}") });
    }
    let named_after = |content: &Observed| {
        let is_its = |digest: &&Digest| is_named_after(&snapshot.object.name, source, digest);
        content.digests().iter().find(is_its).copied()
    };
    let fits = |content: &&Observed| bound_itself || named_after(content).is_some();
    if !bound_itself && !content.or(live.as_ref()).as_ref().is_some_and(fits) {
        live = twin(api, copies).await?;
    }
    let fits = content.filter(fits).or_else(|| live.as_ref().filter(fits));
    let Some(content) = fits else { return not_restored(api, snapshot, source).await };
    let digest = named_after(content).unwrap_or_else(|| content.digest());
    let identity = Identity { source: source.to_owned(), digest };
    let owners: BTreeSet<_> = owners.iter().cloned().chain(former).collect();
    let owners: Vec<_> = owners.into_iter().take(MAX_OWNERS).collect();
    let created = api
        .create_snapshot(&snapshot.namespace, &snapshot.object, &identity, content.json(), &owners)
        .await?;
    if created == Created::Exists {
        return already_restored(api, snapshot, source).await;
    }
    tracing::warn!(%snapshot, "referenced snapshot was missing and was recreated");
    Ok(Outcome::Restored)
}

/// Whether anything that is not being deleted uses the object. An object that is being deleted starts no pods, and the
/// collector would delete this object again. Each watch may lag or stall, so this is a live read: of the known users first,
/// of which one is nearly always enough.
async fn stays_used<A: Api>(api: &A, object: &Name, users: &[Owner]) -> Result<bool, ApiError> {
    let (namespace, name) = (&*object.namespace, &object.object);
    if api.usages(namespace, users, name).await?.contains(&Usage::Used) {
        return Ok(true);
    }
    let all = api.users_of(namespace, name).await?;
    Ok(api.usages(namespace, &all, name).await?.contains(&Usage::Used))
}

/// The owners among these that use the object and are not being deleted; a live read.
async fn using<A: Api>(api: &A, object: &Name, owners: Vec<Owner>) -> Result<Vec<Owner>, ApiError> {
    if owners.is_empty() {
        return Ok(owners);
    }
    let usages = api.usages(&object.namespace, &owners, &object.object).await?;
    let used = owners.into_iter().zip(usages).filter(|(_, usage)| *usage == Usage::Used);
    Ok(used.map(|(owner, _)| owner).collect())
}

/// The outcome of a restore that found no content.
async fn not_restored<A: Api>(api: &A, snapshot: &Name, source: &str) -> Result<Outcome, ApiError> {
    let bound_itself = *source == *snapshot.object.name;
    if api.namespace(&snapshot.namespace).await?.terminating {
        return Ok(Outcome::Done);
    }
    // It may exist without having been seen: each watch may lag or stall.
    match api.read(&snapshot.namespace, &snapshot.object).await? {
        None => Ok(Outcome::Lost),
        Some(found) if !bound_itself && is_other(&found, snapshot, source) => Ok(Outcome::Taken),
        Some(_) => Err(ApiError::Conflict { what: format!("restore {snapshot}") }),
    }
}

/// The outcome of a restore of an object whose name exists by now. A tool may create a bound object again. The name of a
/// snapshot may be taken by any object.
async fn already_restored<A: Api>(api: &A, snapshot: &Name, source: &str) -> Result<Outcome, ApiError> {
    let bound_itself = *source == *snapshot.object.name;
    match api.read(&snapshot.namespace, &snapshot.object).await? {
        Some(_) if bound_itself => Ok(Outcome::Done),
        Some(found) if is_other(&found, snapshot, source) => Ok(Outcome::Taken),
        Some(found) if !found.is_being_deleted() => Ok(Outcome::Done),
        _ => Err(ApiError::Conflict { what: format!("restore {snapshot}") }),
    }
}

/// Whether the object only has the name of this snapshot: it is not a sound snapshot of the source, named after its content. The
/// name of an object that is being deleted will be free.
fn is_other(found: &Observed, name: &Name, source: &str) -> bool {
    let names = |digest: &Digest| is_named_after(&name.object.name, source, digest);
    let is_it = found.is_snapshot_of_source(source)
        && found.identity().is_some_and(|identity| names(&identity.digest));
    !is_it && !found.is_being_deleted()
}

/// The first of these snapshots whose content matches its labels.
async fn twin<A: Api>(api: &A, twins: &[Name]) -> Result<Option<Observed>, ApiError> {
    for name in twins {
        let found = api.read(&name.namespace, &name.object).await?;
        let is_sound = |found: &Observed| {
            found.identity().is_some_and(|identity| found.is_snapshot_of(&identity.source, &identity.digest))
        };
        if found.as_ref().is_some_and(is_sound) {
            return Ok(found);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, set_source, state},
        resolve::Use,
        snapshot::{ObjectName, SourceKind},
        world::{
            WorkloadKey,
            fixture::{key, object, record, source, source_record, used},
        },
    };

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
