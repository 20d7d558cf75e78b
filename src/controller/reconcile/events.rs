//! The Events that wait to be written: each once in a while, a few per second, and no more than anyone reads.
//!
//! Events report changes that this replica saw. Nothing is reported again at a start or when another replica takes over.

use std::collections::{BTreeSet, HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use crate::{
    cluster::{Event, REPEAT_AFTER},
    controller::{index::records::User, name::Name},
    telemetry::metrics::Reason,
};

/// The time between two Events: at most ten in a second.
const PAUSE: SignedDuration = SignedDuration::from_millis(100);
/// How many may wait. A storm causes more Events than anyone reads; the metrics count all of them.
const MAX_WAITING: usize = 100;
/// How many Events are remembered as reported.
const MAX_REMEMBERED: usize = 1000;

/// What makes two Events the same: the uid of their object, the reason, and the part of the note that counts.
type EventKey = (String, Reason, String);

fn key(event: &Event) -> EventKey {
    (event.regarding.uid.clone(), event.reason, event.same.clone())
}

/// Events that wait to be written, and Events that were reported recently.
#[derive(Default)]
pub(crate) struct Events {
    waiting: VecDeque<(Timestamp, Topic)>,
    /// The Event that is being written.
    in_progress: Option<Event>,
    reported: HashMap<EventKey, Timestamp>,
    /// When the next one may be written.
    next: Option<Timestamp>,
    dropped: Vec<Reason>,
    /// Objects that cannot be read, and whose Events are not written yet. They wait for all other Events, and are never
    /// dropped: nothing but their Events tells users about them.
    unreadable: BTreeSet<User>,
}

/// A subject of an Event.
pub(crate) enum Topic {
    /// A complete Event.
    Event(Box<Event>),
    /// A held change of a source. The number of held workloads is counted when the Event is written.
    Held(Name),
    /// An object that cannot be read.
    Unreadable(User),
}

impl Topic {
    fn reason(&self) -> Reason {
        match self {
            Self::Event(event) => event.reason,
            Self::Held(_) => Reason::RollHeld,
            Self::Unreadable(_) => Reason::ObjectUnreadable,
        }
    }
}

impl Events {
    /// Queues an Event, unless it was reported recently. Returns whether it is queued or dropped for lack of room.
    pub(crate) fn report(&mut self, event: Event, now: Timestamp) -> bool {
        let is_new = self.is_new(&event, now);
        if is_new {
            self.add(now, Topic::Event(Box::new(event)));
        }
        is_new
    }

    /// Queues an object that cannot be read.
    pub(crate) fn add_unreadable(&mut self, object: User) {
        self.unreadable.insert(object);
    }

    /// Records that an Event is reported now. Returns false if it was reported recently.
    pub(crate) fn is_new(&mut self, event: &Event, now: Timestamp) -> bool {
        let key = key(event);
        self.reported.retain(|_, at| now.duration_since(*at) < REPEAT_AFTER);
        if self.reported.contains_key(&key) {
            return false;
        }
        if self.reported.len() >= MAX_REMEMBERED
            && let Some(oldest) = self.reported.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone())
        {
            self.reported.remove(&oldest);
        }
        self.reported.insert(key, now);
        true
    }

    /// Queues a topic. If too many wait, an informational topic makes room for a warning.
    pub(crate) fn add(&mut self, at: Timestamp, topic: Topic) {
        if self.waiting.len() >= MAX_WAITING {
            let informs = self.waiting.iter().position(|(_, waiting)| !waiting.reason().is_warning());
            let Some(informs) = informs.filter(|_| topic.reason().is_warning()) else {
                return self.dropped.push(topic.reason());
            };
            self.dropped.extend(self.waiting.remove(informs).map(|(_, topic)| topic.reason()));
        }
        self.waiting.push_back((at, topic));
    }

    /// When the next Event is to be written.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        let waits = self.waiting.front().map(|(at, _)| *at);
        let at = waits.or_else(|| (!self.unreadable.is_empty()).then_some(Timestamp::MIN))?;
        Some(self.next.map_or(at, |next| next.max(at)))
    }

    /// Removes and returns the next topic.
    pub(crate) fn pop(&mut self) -> Option<Topic> {
        let waits = self.waiting.pop_front().map(|(_, topic)| topic);
        waits.or_else(|| self.unreadable.pop_first().map(Topic::Unreadable))
    }

    /// Records that an Event is being written.
    pub(crate) fn start(&mut self, event: Event, now: Timestamp) {
        self.next = Some(now + PAUSE);
        self.in_progress = Some(event);
    }

    /// Ends the writing of an Event, and returns it.
    pub(crate) fn end(&mut self) -> Option<Event> {
        self.in_progress.take()
    }

    /// Queues an Event that was not written, before all others.
    pub(crate) fn retry(&mut self, event: Event, now: Timestamp) {
        self.waiting.push_front((now, Topic::Event(Box::new(event))));
    }

    /// Drops the waiting Events: another replica writes them. None of them counts as reported.
    pub(crate) fn clear(&mut self) {
        self.unreadable.clear();
        for (_, topic) in self.waiting.drain(..) {
            if let Topic::Event(event) = topic {
                self.reported.remove(&key(&event));
            }
        }
    }

    /// The reasons of Events that were dropped for lack of room since the last call.
    pub(crate) fn take_dropped(&mut self) -> Vec<Reason> {
        std::mem::take(&mut self.dropped)
    }
}
