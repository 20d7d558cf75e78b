//! The names of users in the annotation `changed-by` of snapshots (`--record-users`).
//!
//! A review is a hint: its write may be refused later, or changed by another webhook. So a user is remembered for a minute at
//! most, and written only to a snapshot that a live read proves to be of that write: the live source has the uid and the content
//! of the review, and its snapshot records the same field manager, operation and time. Reviews come to any replica, while the
//! leader creates the snapshot. Therefore the replica that got the review adds the user to the snapshot.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::Notify, time::Instant};

use crate::{
    annotations,
    cluster::{Api, ApiError, Version},
    controller::{Name, Shared},
    resolve::Observed,
    snapshot::{Authorship, DIGITS, Digest, snapshot_name},
};

/// The most writes that are remembered.
const MAX_HINTS: usize = 512;
/// The most writes of one namespace that are remembered.
const MAX_OF_NAMESPACE: usize = 64;
/// The time until the first read. The write has to be stored, and its snapshot created.
const FIRST_READ: Duration = Duration::from_millis(500);
/// The number of reads. The time between two of them doubles, so the last one is 31 seconds after the review.
const READS: u32 = 6;

/// The users of writes that were reviewed lately.
#[derive(Clone, Default)]
pub struct Authors(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// By source and content: of two reviews of one content, the last one counts.
    hints: Mutex<BTreeMap<(Name, Digest), Hint>>,
    added: Notify,
}

/// A write, according to its review.
struct Hint {
    /// The source's uid; empty if it is created.
    uid: String,
    change: Authorship,
    user: String,
    due: Instant,
    reads: u32,
}

/// Whether a user has been recorded.
enum Recording {
    /// The snapshot does not exist yet, or the write is not stored yet.
    NotYet,
    /// The snapshot has the user's name, or is of another write.
    Done,
}

impl Authors {
    /// Remembers the user of a reviewed write.
    pub(super) fn remember(&self, source: &Name, observed: &Observed, user: &str) {
        let Some(change) = Authorship::of(observed.json(), Timestamp::now()).filter(|_| !user.is_empty())
        else {
            return;
        };
        let key = (source.clone(), observed.digest());
        let due = Instant::now() + FIRST_READ;
        let hint = Hint { uid: observed.uid.clone(), change, user: user.to_owned(), due, reads: 0 };
        let mut hints = self.hints();
        let of_namespace =
            hints.keys().filter(|(known, _)| known.namespace == source.namespace).take(MAX_OF_NAMESPACE);
        if !hints.contains_key(&key) && (hints.len() >= MAX_HINTS || of_namespace.count() >= MAX_OF_NAMESPACE)
        {
            tracing::debug!(%source, "too many writes wait for their snapshots: the user of one is not recorded");
            return;
        }
        hints.insert(key, hint);
        self.0.added.notify_one();
    }

    /// Writes the names of users to snapshots, until the program ends.
    pub async fn run<A: Api>(self, api: A, shared: Shared) {
        loop {
            let next = self.hints().values().map(|hint| hint.due).min();
            match next {
                None => self.0.added.notified().await,
                Some(due) => tokio::time::sleep_until(due).await,
            }
            let now = Instant::now();
            let is_due = |hint: &Hint| hint.due <= now;
            let due: Vec<_> =
                self.hints().iter().filter(|(_, hint)| is_due(hint)).map(|(key, _)| key.clone()).collect();
            for key in due {
                let Some(mut hint) = self.hints().remove(&key) else { continue };
                let found = record(&api, &shared, &key, &hint).await;
                if let Err(error) = &found {
                    tracing::debug!(source = %key.0, %error, "the user of a change could not be recorded yet");
                }
                hint.reads += 1;
                if hint.reads < READS && !matches!(found, Ok(Recording::Done)) {
                    hint.due = Instant::now() + FIRST_READ * 2_u32.pow(hint.reads);
                    // A newer review of the same content takes precedence.
                    self.hints().entry(key).or_insert(hint);
                }
            }
        }
    }

    fn hints(&self) -> MutexGuard<'_, BTreeMap<(Name, Digest), Hint>> {
        self.0.hints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the user's name to the snapshot of the reviewed write, if a live read finds that write.
async fn record<A: Api>(
    api: &A,
    shared: &Shared,
    (source, digest): &(Name, Digest),
    hint: &Hint,
) -> Result<Recording, ApiError> {
    let Some(live) = api.read(&source.namespace, &source.object).await? else { return Ok(Recording::NotYet) };
    let is_it = live.digests().contains(digest) && (hint.uid.is_empty() || live.uid == hint.uid);
    if !is_it {
        return Ok(Recording::NotYet);
    }
    let usual = DIGITS.map(|digits| snapshot_name(&source.object.name, &live.digest(), digits));
    let spare = shared.lock().spare_snapshots(source, live.digests());
    for name in usual.into_iter().chain(spare) {
        let name = source.sibling(name);
        let Some(snapshot) = api.read(&name.namespace, &name.object).await? else {
            return Ok(Recording::NotYet);
        };
        if !snapshot.is_snapshot_of(&source.object.name, &live.digest()) {
            continue;
        }
        let stated = |key| snapshot.annotation(key).unwrap_or_default();
        if stated(annotations::CHANGED_AT) == hint.change.at
            && hint.change.is_without_user(&stated(annotations::CHANGED_BY))
        {
            let version =
                Version { uid: snapshot.uid.clone(), resource_version: snapshot.resource_version.clone() };
            let by = hint.change.by_user(&hint.user);
            api.set_changed_by(&name.namespace, &name.object, &version, &by).await?;
        }
        return Ok(Recording::Done);
    }
    // Others have all usual names, and no watch has reported the snapshot.
    Ok(Recording::NotYet)
}
