//! Runs actions: the few API calls of each.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::analysis::{self, WantedRun};
use crate::{
    annotations,
    cluster::{
        Api, ApiError, Created, Usage, ensure_snapshot, facts::spare_digits, own_owners, owners_but_our_own,
        owners_of_others,
    },
    controller::action::{Action, Outcome, Published, VerdictSet},
    resolve::{Ensure, Observed, Plan, roll_time},
    snapshot::{DIGITS, Digest, Identity, is_named_after, snapshot_name, spare_name},
    world::{MAX_OWNERS, Name, Owner, Verified, Version},
};

/// Runs an action. Every write in it is conditional or idempotent, so running it twice, or only in part, loses nothing.
pub async fn execute<A: Api>(api: &A, action: Action, now: Timestamp) -> Result<Outcome, ApiError> {
    match action {
        // A check needs more than the API server. Here it has no result.
        Action::Read(name) | Action::Check(name) => {
            Ok(Outcome::Read(api.read(&name.namespace, &name.object).await?.map(Box::new)))
        }
        Action::Compare { source, snapshots } => {
            let mut observed = api.read(&source.namespace, &source.object).await?;
            if let Some(observed) = &mut observed {
                for name in &snapshots {
                    let snapshot = api.read(&name.namespace, &name.object).await?;
                    if let Some(snapshot) = snapshot {
                        observed.learn(&snapshot);
                    }
                }
            }
            Ok(Outcome::Read(observed.map(Box::new)))
        }
        Action::Poke { workload, condition, last_plan, moves, names_contents, .. } => {
            let time = roll_time(now, last_plan);
            let plan =
                if names_contents { Plan::automatic(time, &moves) } else { Plan::to_newest(time, &moves) };
            match api.poke(&workload, &condition, &plan.to_value()).await {
                // A watch may report the change late, or never.
                Err(error) if error.is_conflict() => {
                    Ok(Outcome::Changed(api.read_workload(&workload).await?))
                }
                record => Ok(Outcome::Poked(Box::new(record?))),
            }
        }
        Action::SetOwners { snapshot, version, verify: Some(digest), .. }
            if !is_sound(api, &snapshot, &digest).await? =>
        {
            tracing::warn!(%snapshot, "object has the labels of a snapshot but is not one: left unchanged");
            Ok(Outcome::Impostor(version))
        }
        Action::SetOwners { snapshot, version, mut owners, hazard, own, .. } => {
            if own {
                owners = beside_others(api, &snapshot, owners).await?;
            }
            set_owners(api, &snapshot, &version, &owners, hazard).await
        }
        Action::SetVerdict { snapshot, version: before, digest, verdict, had_failed, decision } => {
            if !is_sound(api, &snapshot, &digest).await? {
                tracing::warn!(%snapshot, "object has the labels of a snapshot but is not one: left unchanged");
                return Ok(Outcome::Done);
            }
            let (namespace, name) = (&snapshot.namespace, &snapshot.object);
            let change = (annotations::VERDICT, verdict.text());
            let after = api.set_annotation(namespace, name, &before, change).await?;
            Ok(Outcome::VerdictSet(VerdictSet { snapshot, before, after, verdict, had_failed, decision }))
        }
        Action::Publish { source, version: before, change } => {
            let value = (annotations::CHANGE, change.as_deref().map(str::to_owned));
            let after = api.set_annotation(&source.namespace, &source.object, &before, value).await?;
            Ok(Outcome::Published(Published { before, after, change }))
        }
        Action::Verify { snapshot, owners } => verify(api, &snapshot, owners).await,
        Action::Ensure { source, content } => {
            let observed = match content {
                Some(content) => Some((*content).clone()),
                None => api.read(&source.namespace, &source.object).await?,
            };
            // While a snapshot is missing, its name may be taken for a source's. A snapshot gets no snapshots.
            if let Some(observed) = observed.filter(|observed| observed.identity().is_none()) {
                ensure(api, &source, &observed).await?;
            }
            Ok(Outcome::Done)
        }
        Action::Restore { snapshot, source, copies, content, owners, users } => {
            restore(api, &snapshot, &source, &copies, content.as_deref(), &owners, &users).await
        }
        Action::Free(name) => free(api, &name).await,
        Action::Sweep { snapshot, version, digest } => sweep(api, &snapshot, &version, &digest).await,
        Action::Release { object, version } => release(api, &object, &version).await,
        Action::WriteEvent(event) => {
            api.create_event(&event).await?;
            Ok(Outcome::Done)
        }
        Action::Analyse { source, uid, digest, analysis, wave, run } => {
            let (source, uid, digest, analysis, run) = (&source, &*uid, &digest, &analysis, &*run);
            analysis::analyse(api, &WantedRun { source, uid, digest, analysis, wave, run }).await
        }
        Action::EndAnalysis { source, uid, run } => analysis::terminate(api, &source, &uid, &run).await,
        Action::OptIn(namespace, opt_in) => {
            Ok(Outcome::Unlabelled(api.unlabelled(&namespace, opt_in).await?))
        }
    }
}

/// Whether the object's content matches its labels; false if the object is missing.
async fn is_sound<A: Api>(api: &A, snapshot: &Name, digest: &Digest) -> Result<bool, ApiError> {
    let observed = api.read(&snapshot.namespace, &snapshot.object).await?;
    Ok(observed.is_some_and(|observed| {
        observed.identity().is_some_and(|identity| observed.is_snapshot_of(&identity.source, digest))
    }))
}

/// These owners, and those that others added. The object's managedFields show who added which.
async fn beside_others<A: Api>(api: &A, object: &Name, owners: Vec<Owner>) -> Result<Vec<Owner>, ApiError> {
    let Some(observed) = api.read(&object.namespace, &object.object).await? else { return Ok(owners) };
    let others = owners_but_our_own(observed.json());
    let more: Vec<_> =
        others.into_iter().filter(|other| owners.iter().all(|owner| owner.uid != other.uid)).collect();
    Ok(owners.into_iter().chain(more).collect())
}

/// Sets a snapshot's owners. If the collector may be deleting it, it is read again: older collectors delete what they
/// judged before the owners changed (kubernetes#132632). A watch then reports the deletion while the content is remembered.
async fn set_owners<A: Api>(
    api: &A,
    snapshot: &Name,
    version: &Version,
    owners: &[Owner],
    hazard: bool,
) -> Result<Outcome, ApiError> {
    let observed = api.set_owners(&snapshot.namespace, &snapshot.object, version, owners).await?;
    if !hazard {
        return Ok(Outcome::Done);
    }
    if api.read(&snapshot.namespace, &snapshot.object).await?.is_none()
        && let Some(identity) = observed.identity()
    {
        api.create_snapshot(&snapshot.namespace, &snapshot.object, identity, observed.json(), owners).await?;
    }
    Ok(Outcome::OwnersSet(Box::new(observed)))
}

/// Reads owners live, and checks whether they use a snapshot.
async fn verify<A: Api>(api: &A, snapshot: &Name, owners: Vec<Owner>) -> Result<Outcome, ApiError> {
    let mut verified = Verified::default();
    let usages = api.usages(&snapshot.namespace, &owners, &snapshot.object).await?;
    for (owner, usage) in owners.into_iter().zip(usages) {
        let same = match usage {
            Usage::Used | Usage::Leaving => &mut verified.used,
            Usage::Unused => &mut verified.unused,
            Usage::Gone => &mut verified.deleted,
        };
        same.push(owner);
    }
    Ok(Outcome::Verified(verified))
}

/// Creates a snapshot of that content under the first free name, unless a sound one exists. Objects of others may have all
/// names that follow from the content, but not one with random digits.
pub async fn ensure<A: Api>(api: &A, source: &Name, observed: &Observed) -> Result<Option<String>, ApiError> {
    let digest = observed.digest();
    let usual = DIGITS.map(|digits| snapshot_name(&source.object.name, &digest, digits));
    let spare = spare_name(&source.object.name, &digest, &spare_digits());
    for name in usual.into_iter().chain([spare]) {
        let wanted = Ensure { source: source.object.clone(), digest, name: name.clone() };
        if ensure_snapshot(api, &source.namespace, &wanted, observed.json()).await? == Created::Now {
            return Ok(Some(name));
        }
        let existing = api.read(&source.namespace, &source.sibling(name.as_str()).object).await?;
        if existing.is_some_and(|existing| existing.is_snapshot_of(&source.object.name, &digest)) {
            return Ok(Some(name));
        }
    }
    tracing::warn!(%source, "every possible snapshot name of the source is used by another object");
    Ok(None)
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

/// Recreates a snapshot: from memory, from the source if it still holds the content, or from another snapshot that does. A
/// source in bind mode is recreated from memory only.
async fn restore<A: Api>(
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

/// Removes confrev's owners from a user's object that has left bind mode: otherwise it would be deleted with the workloads
/// that used it. The object's managedFields show who added which.
async fn free<A: Api>(api: &A, name: &Name) -> Result<Outcome, ApiError> {
    let Some(observed) = api.read(&name.namespace, &name.object).await? else { return Ok(Outcome::Done) };
    if observed.is_bound_itself() || observed.identity().is_some() {
        return Ok(Outcome::Done);
    }
    if let Some(others) = owners_of_others(observed.json()) {
        let version =
            Version { uid: observed.uid.clone(), resource_version: observed.resource_version.clone() };
        api.set_owners(&name.namespace, &name.object, &version, &others).await?;
    }
    Ok(Outcome::Done)
}

/// Deletes a snapshot after a last live read: an object that only has the labels of one is left alone.
async fn sweep<A: Api>(
    api: &A,
    snapshot: &Name,
    version: &Version,
    digest: &Digest,
) -> Result<Outcome, ApiError> {
    let Some(observed) = api.read(&snapshot.namespace, &snapshot.object).await? else {
        return Ok(Outcome::Done);
    };
    let sound = observed.identity().is_some_and(|identity| observed.is_snapshot_of(&identity.source, digest));
    // Each watch may lag or stall, and none reports a revision without its label.
    let used = api.users_of(&snapshot.namespace, &snapshot.object).await?;
    if !used.is_empty() {
        return Ok(Outcome::Verified(Verified { used, ..Verified::default() }));
    }
    if sound && observed.uid == version.uid {
        api.delete_snapshot(&snapshot.namespace, &snapshot.object, version).await?;
    } else {
        tracing::warn!(%snapshot, "object has the labels of a snapshot but is not one: left unchanged");
    }
    Ok(Outcome::Done)
}

/// Deletes a source in bind mode after a last live read: it must be unchanged since it was found to be unused.
async fn release<A: Api>(api: &A, object: &Name, version: &Version) -> Result<Outcome, ApiError> {
    let Some(observed) = api.read(&object.namespace, &object.object).await? else {
        return Ok(Outcome::Done);
    };
    // Each watch may lag or stall, and none reports a revision without its label.
    let used = api.users_of(&object.namespace, &object.object).await?;
    if !used.is_empty() {
        return Ok(Outcome::Verified(Verified { used, ..Verified::default() }));
    }
    // Without an owner that confrev added, or with an owner that others added, deleting it is left to others.
    if !observed.is_bound_itself()
        || owners_of_others(observed.json()).is_none_or(|others| !others.is_empty())
    {
        return Ok(Outcome::Done);
    }
    api.delete_snapshot(&object.namespace, &object.object, version).await?;
    Ok(Outcome::Released(Box::new(observed)))
}
