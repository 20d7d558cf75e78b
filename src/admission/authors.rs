//! The names of users in the annotation `changed-by` of snapshots (`--record-users`).
//!
//! A review is a hint: its write may be refused later, or changed by another webhook. So a user is remembered for a minute at
//! most, and written only to a snapshot that a live read proves to be of that write: the live source has the uid and the content
//! of the review, and its snapshot records the same field manager, operation and time. Reviews come to any replica, while the
//! leader creates the snapshot. Therefore the replica that got the review adds the user to the snapshot.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

use crate::{
    annotations,
    cluster::{Api, ApiError},
    controller::Shared,
    resolve::Observed,
    snapshot::{Authorship, DIGITS, Digest, snapshot_name},
    world::{Name, Version},
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
    since: Instant,
    due: Instant,
    reads: u32,
}

/// Forgets an older write, if as many are remembered as may be. The source, or else the namespace, with the most of them loses its
/// oldest: so no user's writes keep a later one from being recorded.
fn make_room(hints: &mut BTreeMap<(Name, Digest), Hint>, namespace: &str) {
    let of_namespace = hints.keys().filter(|(known, _)| *known.namespace == *namespace).count();
    let oldest_of_most = if of_namespace >= MAX_OF_NAMESPACE {
        let of = |known: &Name| (*known.namespace == *namespace).then(|| known.object.to_string());
        oldest_of_most(hints, of)
    } else if hints.len() >= MAX_HINTS {
        oldest_of_most(hints, |known| Some(known.namespace.to_string()))
    } else {
        None
    };
    if let Some(key) = oldest_of_most {
        tracing::debug!(source = %key.0, "too many writes wait for their snapshots: the user of one is not recorded");
        hints.remove(&key);
    }
}

/// The oldest write of the line with the most writes.
fn oldest_of_most(
    hints: &BTreeMap<(Name, Digest), Hint>,
    line: impl Fn(&Name) -> Option<String>,
) -> Option<(Name, Digest)> {
    let mut lines = BTreeMap::<String, Vec<_>>::new();
    for (key, hint) in hints {
        if let Some(line) = line(&key.0) {
            lines.entry(line).or_default().push((hint.since, key));
        }
    }
    let most = lines.into_values().max_by_key(Vec::len)?;
    most.into_iter().min().map(|(_, key)| key.clone())
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
        let since = Instant::now();
        let due = since + FIRST_READ;
        let hint = Hint { uid: observed.uid.clone(), change, user: user.to_owned(), since, due, reads: 0 };
        let mut hints = self.hints();
        if !hints.contains_key(&key) {
            make_room(&mut hints, &source.namespace);
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
        self.0.hints.lock()
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshot::{ObjectName, SourceKind};

    fn write(authors: &Authors, namespace: &str, source: &str, content: usize) {
        let object = json!({
            "metadata": {"name": source, "uid": "u", "managedFields": [{
                "manager": "kubectl", "operation": "Update", "time": "2026-05-01T10:00:00Z", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {"f:k": {}}},
            }]},
            "data": {"k": content.to_string()},
        });
        let observed = Observed::read(SourceKind::ConfigMap, object.to_string().as_bytes()).unwrap();
        let name = Name::new(Arc::from(namespace), ObjectName::new(SourceKind::ConfigMap, source));
        authors.remember(&name, &observed, "ann");
    }

    /// How many writes of a source are remembered.
    fn remembered(authors: &Authors, namespace: &str, source: &str) -> usize {
        let of = |(name, _): &&(Name, Digest)| &*name.namespace == namespace && &*name.object.name == source;
        authors.hints().keys().filter(of).count()
    }

    /// A user who writes often hides no name, not even that of the next write of the same source.
    #[test]
    fn many_writes_hide_no_later_one() {
        let authors = Authors::default();
        for content in 0..100 {
            write(&authors, "shop", "noisy", content);
        }
        assert_eq!(remembered(&authors, "shop", "noisy"), MAX_OF_NAMESPACE);
        let last = authors.hints().values().map(|hint| hint.since).max();
        write(&authors, "shop", "noisy", 100);
        assert!(authors.hints().values().map(|hint| hint.since).max() > last, "the last one is remembered");
        write(&authors, "shop", "quiet", 0);
        assert_eq!(remembered(&authors, "shop", "quiet"), 1);
        for namespace in 0..20 {
            for content in 0..100 {
                write(&authors, &format!("other-{namespace}"), "noisy", content);
            }
        }
        assert_eq!(remembered(&authors, "shop", "quiet"), 1, "a namespace with fewer writes loses none");
        assert_eq!(authors.hints().len(), MAX_HINTS);
    }
}
