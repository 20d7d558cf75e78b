//! The Events that the controller writes, and when: each once in a while, a few per second, and no more than anyone reads.
//!
//! Events report changes that this replica saw. Nothing is reported again at a start or when another replica takes over.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use crate::controller::{
    Action, Name,
    index::records::{Source, User},
    queue::Task,
    state::State,
};
use crate::{
    cluster::{ApiError, Event, ObjectRef, REPEAT_AFTER, WorkloadKey},
    resolve::{Record, Use},
    snapshot::ObjectName,
    telemetry::metrics::Reason,
};

/// The time between two Events: at most ten in a second.
const PAUSE: SignedDuration = SignedDuration::from_millis(100);
/// How many may wait. A storm causes more Events than anyone reads; the metrics count all of them.
const MOST_WAITING: usize = 100;
/// How many Events are remembered as reported.
const MOST_REMEMBERED: usize = 1000;
/// How often writing an Event is tried.
const TRIES: u32 = 3;
/// How long a reference may lead to nothing before it is reported: objects applied together do not arrive at once.
const MISSING_DELAY: SignedDuration = SignedDuration::from_secs(10);
/// The time in which another replica restores a snapshot whose content it remembers: its own delay of two seconds, and its
/// retries after a failed call.
const OTHERS_RESTORE: SignedDuration = SignedDuration::from_secs(5);

/// Events that wait to be written, and Events that were reported recently.
#[derive(Default)]
pub(crate) struct Events {
    waiting: VecDeque<(Timestamp, Topic)>,
    /// The Event that is being written.
    under_way: Option<Event>,
    told: HashMap<(String, Reason, String), Timestamp>,
    /// When the next one may be written.
    next: Option<Timestamp>,
    dropped: Vec<Reason>,
}

/// What happened to a referenced snapshot.
#[derive(Clone, Copy)]
pub(crate) enum Loss {
    /// Its content is lost.
    Lost,
    /// An object that is no snapshot has its name.
    Taken,
    /// It was recreated.
    Restored,
}

/// A subject of an Event.
enum Topic {
    /// A complete Event.
    Event(Box<Event>),
    /// A held change of a source. The number of held workloads is counted when the Event is written.
    Held(Name),
}

impl Topic {
    fn reason(&self) -> Reason {
        match self {
            Self::Event(event) => event.reason,
            Self::Held(_) => Reason::RollHeld,
        }
    }
}

impl Events {
    /// Records that an Event is reported now. Returns false if it was reported recently.
    fn is_news(&mut self, event: &Event, now: Timestamp) -> bool {
        let key = (event.regarding.uid.clone(), event.reason, event.same.clone());
        self.told.retain(|_, at| now.duration_since(*at) < REPEAT_AFTER);
        if self.told.contains_key(&key) {
            return false;
        }
        if self.told.len() >= MOST_REMEMBERED
            && let Some(oldest) = self.told.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone())
        {
            self.told.remove(&oldest);
        }
        self.told.insert(key, now);
        true
    }

    /// Queues a topic. If too many wait, an informational topic makes room for a warning.
    fn enter(&mut self, at: Timestamp, topic: Topic) {
        if self.waiting.len() >= MOST_WAITING {
            let informs = self.waiting.iter().position(|(_, waiting)| !waiting.reason().is_warning());
            let Some(informs) = informs.filter(|_| topic.reason().is_warning()) else {
                return self.dropped.push(topic.reason());
            };
            self.dropped.extend(self.waiting.remove(informs).map(|(_, topic)| topic.reason()));
        }
        self.waiting.push_back((at, topic));
    }

    /// When the next Event is to be written.
    fn due(&self) -> Option<Timestamp> {
        let (at, _) = self.waiting.front()?;
        Some(self.next.map_or(*at, |next| next.max(*at)))
    }

    /// Drops the waiting Events: another replica writes them.
    pub(crate) fn leave(&mut self) {
        self.waiting.clear();
    }
}

impl State {
    /// The reasons of Events that were dropped for lack of room since the last call.
    pub fn take_dropped_events(&mut self) -> Vec<Reason> {
        std::mem::take(&mut self.events.dropped)
    }

    pub(crate) fn tell(&mut self, event: Event, now: Timestamp) {
        if self.events.is_news(&event, now) {
            self.events.enter(now, Topic::Event(Box::new(event)));
            self.schedule_events();
        }
    }

    /// Queues an Event about a held change of a source.
    pub(crate) fn tell_later_of_hold(&mut self, source: Name, at: Timestamp) {
        self.events.enter(at, Topic::Held(source));
        self.schedule_events();
    }

    fn schedule_events(&mut self) {
        if let Some(due) = self.events.due() {
            self.agenda.schedule(Task::Tell, due);
        }
    }

    /// The next Event to write.
    pub(crate) fn next_event(&mut self, now: Timestamp) -> Option<Action> {
        while let Some(due) = self.events.due() {
            if due > now {
                self.agenda.postpone(Task::Tell, due);
                return None;
            }
            let (_, topic) = self.events.waiting.pop_front()?;
            let event = match topic {
                Topic::Event(event) => Some(*event),
                Topic::Held(source) => self.hold_event(&source, now),
            };
            if let Some(event) = event {
                self.events.next = Some(now + PAUSE);
                self.events.under_way = Some(event.clone());
                return Some(Action::Tell(Box::new(event)));
            }
        }
        self.agenda.done(&Task::Tell);
        None
    }

    /// Handles the result of writing an Event. It is retried only a few times, because it is not essential.
    pub(crate) fn told(&mut self, outcome: Result<(), &ApiError>, now: Timestamp) {
        let event = self.events.under_way.take();
        let again = outcome.is_err_and(ApiError::may_pass) && self.agenda.failures(&Task::Tell) + 1 < TRIES;
        if let Some(event) = event.filter(|_| again) {
            self.events.waiting.push_front((now, Topic::Event(Box::new(event))));
            self.agenda.failed(Task::Tell, now);
        } else {
            if let Err(error) = outcome {
                tracing::warn!(%error, "an Event was not written");
            }
            self.agenda.done(&Task::Tell);
        }
        self.schedule_events();
    }

    /// An Event on a source; `None` if the source does not exist.
    pub(crate) fn event_on_source(
        &self,
        source: &Name,
        reason: Reason,
        note: String,
        now: Timestamp,
    ) -> Option<Event> {
        let regarding = self.source_ref(source)?;
        let namespace = std::sync::Arc::clone(&source.namespace);
        Some(Event { namespace, regarding, related: None, reason, same: note.clone(), note, at: now })
    }

    fn source_ref(&self, source: &Name) -> Option<ObjectRef> {
        let Some(Source::Found(found)) = self.sources.get(source) else { return None };
        Some(ObjectRef {
            api_version: "v1".to_owned(),
            kind: source.object.kind.as_str().to_owned(),
            name: source.object.name.to_string(),
            uid: found.uid.to_string(),
        })
    }

    fn event_on_user(&self, user: &User, reason: Reason, note: String, now: Timestamp) -> Option<Event> {
        let namespace = match user {
            User::Workload(key) => &key.namespace,
            User::Revision(key) => &key.namespace,
        };
        let (namespace, regarding) = (Arc::clone(namespace), self.owner(user)?.into());
        Some(Event { namespace, regarding, related: None, reason, same: note.clone(), note, at: now })
    }

    /// Reports a roll: one Event on the workload, and one on each source for each of its contents, however many workloads
    /// roll to it.
    pub(crate) fn tell_roll(&mut self, key: &WorkloadKey, before: &Record, after: &Record, now: Timestamp) {
        let name_in = |record: &Record, used: &Use| {
            let held = record.uses.iter().find(|held| held.source == used.source);
            held.map(|held| held.snapshot.clone().unwrap_or_else(|| held.source.name.clone()))
        };
        let mut moves: Vec<(ObjectName, Arc<str>, Arc<str>)> = Vec::new();
        for used in after.uses.iter().filter(|used| used.snapshot.is_some()) {
            let (from, to) = (name_in(before, used), name_in(after, used));
            if let (Some(from), Some(to)) = (from, to)
                && from != to
                && !moves.iter().any(|(source, ..)| *source == used.source)
            {
                moves.push((used.source.clone(), from, to));
            }
        }
        let Some((first, ..)) = moves.first() else { return };
        let related = self.source_ref(&Name::new(Arc::clone(&key.namespace), first.clone()));
        let told = moves.iter().map(|(source, from, to)| {
            let is_first = *from == source.name;
            if is_first {
                format!("{source} resolved to {to}")
            } else {
                format!("{source} changed: from {from} to {to}")
            }
        });
        let told: Vec<_> = told.collect();
        let event = self.event_on_user(&User::Workload(key.clone()), Reason::Rolled, told.join("; "), now);
        if let Some(event) = event {
            self.tell(Event { related, ..event }, now);
        }
        for (source, _, to) in moves {
            let source = Name::new(Arc::clone(&key.namespace), source);
            let count = self.workloads_using(&source).count();
            let note =
                format!("{to} is now used by {}, the first of {count} workloads", self.display_short(key));
            if let Some(event) = self.event_on_source(&source, Reason::Rolled, note, now) {
                self.tell(Event { same: to.to_string(), ..event }, now);
            }
        }
    }

    /// Reports a refused roll on the workload and on each source that it did not roll to, with the API server's message.
    pub(crate) fn tell_refusal(&mut self, key: &WorkloadKey, code: u16, message: &str, now: Timestamp) {
        let Some(record) = self.workloads.get(key) else { return };
        let is_untaken = |used: &&Use| {
            let source = Name::new(Arc::clone(&key.namespace), used.source.clone());
            let Some(Source::Found(found)) = self.sources.get(&source) else { return false };
            used.snapshot.is_none() || !record.has_seen(&used.source, &found.present.digests)
        };
        let untaken: BTreeSet<_> =
            record.uses.iter().filter(is_untaken).map(|used| used.source.clone()).collect();
        // One Event for each kind of refusal in a while: the message may differ each time, like that of a quota.
        let same = code.to_string();
        let note = format!("the roll to the present content was refused and will be retried: {message}");
        let related = untaken
            .first()
            .and_then(|first| self.source_ref(&Name::new(Arc::clone(&key.namespace), first.clone())));
        let user = User::Workload(key.clone());
        if let Some(event) = self.event_on_user(&user, Reason::RollRefused, note, now) {
            self.tell(Event { related, same: same.clone(), ..event }, now);
        }
        for source in untaken {
            let source = Name::new(Arc::clone(&key.namespace), source);
            let note = format!(
                "the roll of {} to the present content was refused and will be retried: {message}",
                self.display_short(key)
            );
            if let Some(event) = self.event_on_source(&source, Reason::RollRefused, note, now) {
                self.tell(Event { same: same.clone(), ..event }, now);
            }
        }
    }

    /// Reports a workload that begins to keep other content than the present one, on the workload and on the source.
    pub(crate) fn tell_pins(&mut self, key: &WorkloadKey, before: &Record, after: &Record, now: Timestamp) {
        let was_so = |used: &Use| {
            self.pinned(&key.namespace, before)
                .any(|before| (&before.source, &before.snapshot) == (&used.source, &used.snapshot))
        };
        let new: Vec<_> = self.pinned(&key.namespace, after).filter(|used| !was_so(used)).cloned().collect();
        for Use { source, snapshot, .. } in new {
            let (name, held) = (Name::new(Arc::clone(&key.namespace), source), snapshot.unwrap_or_default());
            let related = self.source_ref(&name);
            let user = User::Workload(key.clone());
            let note = format!(
                "keeps {held}, which is not the present content of {}: confrev does not roll the workload until the \
                 source changes again, or the workload is applied with the source's name",
                name.object
            );
            if let Some(event) = self.event_on_user(&user, Reason::Pinned, note, now) {
                self.tell(Event { related, ..event }, now);
            }
            let note = format!("{} keeps {held}, which is not the present content", self.display_short(key));
            if let Some(event) = self.event_on_source(&name, Reason::Pinned, note, now) {
                self.tell(event, now);
            }
        }
    }

    /// Queues a check of a workload that may refer to a missing object.
    pub(crate) fn look_for_missing(&mut self, key: &WorkloadKey, now: Timestamp) {
        let suspect =
            |record: &Record| record.uses.iter().any(|used| used.snapshot.is_none() && !used.optional);
        if self.synced && self.workloads.get(key).is_some_and(suspect) {
            self.agenda.schedule(Task::Report(key.clone()), now + MISSING_DELAY);
        }
    }

    /// Reports the objects that a workload refers to and that are still missing.
    pub(crate) fn report(&mut self, key: &WorkloadKey, now: Timestamp) {
        let Some(record) = self.workloads.get(key) else { return };
        let mut missing: Vec<_> = self.unresolved(&key.namespace, record).map(ToString::to_string).collect();
        missing.dedup();
        if missing.is_empty() {
            return;
        }
        let verb = if missing.len() == 1 { "does" } else { "do" };
        let note = format!(
            "{} {verb} not exist: pods that refer to it do not start until it does",
            missing.join(", ")
        );
        if let Some(event) =
            self.event_on_user(&User::Workload(key.clone()), Reason::SourceMissing, note, now)
        {
            self.tell(event, now);
        }
    }

    /// Handles a restore for which this replica found no content.
    ///
    /// Another replica may still have that content in memory, and restore the snapshot. The loss is therefore reported
    /// only if a second try, [`OTHERS_RESTORE`] after the first, finds nothing either. Returns when that try is due;
    /// `None` once the loss is reported.
    pub(crate) fn lose(&mut self, snapshot: &Name, is_taken: bool, now: Timestamp) -> Option<Timestamp> {
        if self.lost.contains(snapshot) {
            return None;
        }
        let since = *self.missing_since.entry(snapshot.clone()).or_insert(now);
        let due = since + OTHERS_RESTORE;
        if now < due {
            return Some(due);
        }
        self.missing_since.remove(snapshot);
        self.lost.insert(snapshot.clone());
        if is_taken {
            tracing::error!(%snapshot, "referenced snapshot is missing and another object has its name: pods of the \
                 revisions that refer to it read that object");
        } else {
            tracing::error!(%snapshot, "referenced snapshot is missing and its content is lost: pods of the revisions \
                 that refer to it do not start");
        }
        self.tell_of_loss(snapshot, if is_taken { Loss::Taken } else { Loss::Lost }, now);
        None
    }

    /// Reports a referenced snapshot that was missing, and was recreated or is lost: on its source, and on the first
    /// workload and revision that refer to it.
    pub(crate) fn tell_of_loss(&mut self, snapshot: &Name, loss: Loss, now: Timestamp) {
        let users: Vec<_> = self.staying_users(snapshot).cloned().collect();
        let named: Vec<_> = users.iter().filter_map(|user| self.owner(user)).collect();
        let mut names: Vec<_> =
            named.iter().rev().take(3).map(|owner| format!("{} {}", owner.kind, owner.name)).collect();
        if named.len() > names.len() {
            names.push(format!("{} more", named.len() - names.len()));
        }
        let who = names.join(", ");
        let name = &snapshot.object;
        let (reason, note) = match loss {
            Loss::Lost => (
                Reason::SnapshotLost,
                format!(
                    "{name} is missing and its content is lost: pods of {who} do not start. Apply the workload again, or \
                     write the old content to the source again"
                ),
            ),
            Loss::Taken => (
                Reason::SnapshotLost,
                format!(
                    "{name} is missing, and its name is taken by an object that is no snapshot: pods of {who} read that \
                     object. Delete it, so that confrev can recreate the snapshot, or apply the workload again"
                ),
            ),
            Loss::Restored => (
                Reason::SnapshotRestored,
                format!("{name} was missing while {who} referred to it, and was recreated"),
            ),
        };
        let sources: Vec<_> =
            users.iter().filter_map(|user| self.source_used_by(user, snapshot)).take(1).collect();
        for source in sources {
            if let Some(event) = self.event_on_source(&source, reason, note.clone(), now) {
                self.tell(Event { same: snapshot.object.name.to_string(), ..event }, now);
            }
        }
        let workload = users.iter().find(|user| matches!(user, User::Workload(_)));
        let revision = users.iter().find(|user| matches!(user, User::Revision(_)));
        for user in workload.into_iter().chain(revision) {
            if let Some(event) = self.event_on_user(user, reason, note.clone(), now) {
                self.tell(Event { same: snapshot.object.name.to_string(), ..event }, now);
            }
        }
    }

    /// The source of a snapshot, according to one of its users.
    fn source_used_by(&self, user: &User, snapshot: &Name) -> Option<Name> {
        let uses = match user {
            User::Workload(key) => &self.workloads.get(key)?.uses,
            User::Revision(key) => &self.revisions.get(key)?.uses,
        };
        let used = uses.iter().find(|used| used.snapshot.as_ref() == Some(&snapshot.object.name))?;
        Some(Name::new(Arc::clone(&snapshot.namespace), used.source.clone()))
    }
}
