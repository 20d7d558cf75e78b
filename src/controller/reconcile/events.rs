//! The Events that wait to be written: each once in a while, a few per second, and no more than anyone reads. Namespaces take
//! turns.
//!
//! Events report changes that this replica saw. Nothing is reported again at a start or when another replica takes over.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use crate::{
    cluster::{Event, ObjectRef, REPEAT_AFTER},
    telemetry::metrics::Reason,
    turns::{BoundedLanes, Bounds, Lanes, Ticket, patient_comes_first},
    world::{Name, User},
};

/// The time between two Events: at most ten in a second.
const PAUSE: SignedDuration = SignedDuration::from_millis(100);
/// How many may wait. A storm causes more Events than anyone reads; the metrics count all of them.
const BOUNDS: Bounds = Bounds { each: 100, total: 1000 };
/// How many Events are remembered as reported.
const MAX_REMEMBERED: usize = 1000;
/// How often writing an Event is tried.
const TRIES: u32 = 3;
/// The pause of a namespace after the first failure; it doubles with each further one.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_millis(500);

/// What makes two Events of a namespace the same: the uid of their object, the reason, and the part of the note that counts.
type EventKey = (String, Reason, String);

fn key(event: &Event) -> EventKey {
    (event.regarding.uid.clone(), event.reason, event.same.clone())
}

/// Events that wait to be written, and Events that were reported recently.
pub(crate) struct Events {
    waiting: BoundedLanes<Arc<str>, Timestamp, Waiting>,
    /// What Events are composed about when it is their turn. They wait a little longer than complete Events, and none is
    /// dropped: there are no more of them than objects.
    topics: Lanes<Arc<str>, Timestamp, Topic>,
    /// When each topic is due.
    due: HashMap<Topic, Timestamp>,
    /// The Event that is being written.
    in_progress: Option<Written>,
    reported: Reported,
    /// When the next one may be written.
    next: Option<Timestamp>,
    dropped: Vec<Reason>,
}

/// A complete Event.
pub(crate) struct Waiting {
    pub event: Event,
    /// How often it could not be written.
    failures: u32,
}

/// An Event whose turn it is.
pub(crate) type Written = Ticket<Arc<str>, Timestamp, Waiting>;

/// A subject of an Event that is not composed yet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Topic {
    /// A held change of a source. The number of held workloads is counted when the Event is written.
    Held(Name),
    /// An object that cannot be read. Nothing but its Event tells users about it.
    Unreadable(User),
}

impl Topic {
    fn namespace(&self) -> &Arc<str> {
        match self {
            Self::Held(source) => &source.namespace,
            Self::Unreadable(object) => object.namespace(),
        }
    }
}

/// What is next to write.
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and is never kept")]
pub(crate) enum Next {
    Event(Written),
    Topic(Topic),
}

/// Which Events make room for others: first those that inform.
fn rank(waiting: &Waiting) -> u8 {
    match waiting.event.reason {
        Reason::EventsDropped => 2,
        reason => reason.is_warning().into(),
    }
}

impl Default for Events {
    fn default() -> Self {
        Self {
            waiting: BoundedLanes::new(BOUNDS, rank),
            topics: Lanes::default(),
            due: HashMap::new(),
            in_progress: None,
            reported: Reported::default(),
            next: None,
            dropped: Vec::new(),
        }
    }
}

impl Events {
    /// Queues an Event. If too many wait, an informational one makes room for a warning.
    pub(crate) fn add(&mut self, event: Event, now: Timestamp) {
        let namespace = Arc::clone(&event.namespace);
        let dropped = self.waiting.push(&namespace, now, Waiting { event, failures: 0 });
        self.dropped.extend(dropped.map(|waiting| waiting.event.reason));
    }

    /// Queues a topic, which is due at a time. If it is already queued, the earlier time applies.
    pub(crate) fn add_topic(&mut self, topic: Topic, at: Timestamp) {
        let namespace = topic.namespace();
        if let Some(known) = self.due.get(&topic) {
            if *known <= at {
                return;
            }
            self.topics.remove(namespace, &(*known, topic.clone()));
        }
        self.topics.insert(namespace, (at, topic.clone()), ());
        self.due.insert(topic, at);
    }

    /// Records that an Event is reported now. Returns false if it was reported recently.
    pub(crate) fn is_new(&mut self, event: &Event, now: Timestamp) -> bool {
        self.reported.add(event, now)
    }

    /// When the next Event is to be written.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        let at = self.waiting.next().into_iter().chain(self.topics.next()).min()?;
        Some(self.next.map_or(at, |next| next.max(at)))
    }

    /// Removes and returns what is to be written next.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<Next> {
        let waiting = self.waiting.first(now);
        let topic = self.topics.first(now).map(|(since, _)| since);
        let is_topic = match (waiting, topic) {
            (Some(waiting), Some(topic)) => patient_comes_first(topic, waiting),
            (waiting, _) => waiting.is_none(),
        };
        if is_topic {
            let (_, (_, topic), ()) = self.topics.pop(now)?;
            self.due.remove(&topic);
            return Some(Next::Topic(topic));
        }
        self.waiting.pop(now).map(Next::Event)
    }

    /// An Event that was composed about a topic, as one whose turn it is.
    pub(crate) fn composed(&mut self, event: Event, now: Timestamp) -> Written {
        self.waiting.ticket(Arc::clone(&event.namespace), now, Waiting { event, failures: 0 })
    }

    /// Records that an Event is being written.
    pub(crate) fn start(&mut self, written: Written, now: Timestamp) {
        self.next = Some(now + PAUSE);
        self.in_progress = Some(written);
    }

    /// Ends the writing of an Event. If it `may_pass` later, it is tried again, and its namespace pauses meanwhile. Returns
    /// whether the Event is not tried again.
    pub(crate) fn end(&mut self, may_pass: bool, now: Timestamp) -> bool {
        let Some(mut written) = self.in_progress.take() else { return true };
        let pause = FIRST_BACKOFF * (1 << written.item.failures);
        written.item.failures += 1;
        let again = may_pass && written.item.failures < TRIES;
        if again {
            self.waiting.put_back(written, now + pause);
        }
        !again
    }

    /// Drops the waiting Events: another replica writes them. None of them counts as reported.
    pub(crate) fn clear(&mut self) {
        self.topics = Lanes::default();
        self.due.clear();
        let reported = &mut self.reported;
        self.waiting.retain(|waiting| {
            reported.forget(&waiting.event);
            false
        });
    }

    /// The reasons of Events that were dropped for lack of room since the last call.
    pub(crate) fn take_dropped(&mut self) -> Vec<Reason> {
        std::mem::take(&mut self.dropped)
    }

    /// How many Events of each namespace were dropped for lack of room since the last call.
    pub(crate) fn take_dropped_by_namespace(&mut self) -> BTreeMap<Arc<str>, u64> {
        self.waiting.take_dropped()
    }
}

/// Events that were reported recently, by namespace.
#[derive(Default)]
struct Reported {
    namespaces: HashMap<Arc<str>, HashMap<EventKey, Timestamp>>,
}

impl Reported {
    /// Records that an Event is reported. Returns false if it was reported recently. If there are too many, the oldest of the
    /// namespace with the most is forgotten.
    fn add(&mut self, event: &Event, now: Timestamp) -> bool {
        let key = key(event);
        self.namespaces.retain(|_, reported| {
            reported.retain(|_, at| now.duration_since(*at) < REPEAT_AFTER);
            !reported.is_empty()
        });
        if self.namespaces.get(&event.namespace).is_some_and(|reported| reported.contains_key(&key)) {
            return false;
        }
        if self.namespaces.values().map(HashMap::len).sum::<usize>() >= MAX_REMEMBERED
            && let Some(most) = self.namespaces.values_mut().max_by_key(|reported| reported.len())
            && let Some(oldest) = most.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone())
        {
            most.remove(&oldest);
        }
        self.namespaces.entry(Arc::clone(&event.namespace)).or_default().insert(key, now);
        true
    }

    fn forget(&mut self, event: &Event) {
        if let Some(reported) = self.namespaces.get_mut(&event.namespace) {
            reported.remove(&key(event));
        }
    }
}

/// The Event that counts the dropped Events of a namespace.
pub(crate) fn events_dropped(namespace: &Arc<str>, count: u64, now: Timestamp) -> Event {
    let regarding = ObjectRef {
        api_version: "v1".to_owned(),
        kind: "Namespace".to_owned(),
        name: namespace.to_string(),
        uid: String::new(),
    };
    let of = if count == 1 { "1 Event" } else { &format!("{count} Events") };
    Event {
        namespace: Arc::clone(namespace),
        regarding,
        related: None,
        reason: Reason::EventsDropped,
        note: format!(
            "{of} of this namespace were dropped within a minute: more than {} waited. Notifications and metrics include them",
            BOUNDS.each
        ),
        same: String::new(),
        at: now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::reconcile::fixture::at;

    fn event(namespace: &str, number: usize) -> Event {
        Event { same: number.to_string(), ..events_dropped(&namespace.into(), 1, at(0)) }
    }

    /// Otherwise a flood would let Events of others be repeated.
    #[test]
    fn flood_forgets_only_its_own_reports() {
        let mut events = Events::default();
        assert!(events.is_new(&event("other", 0), at(0)));
        for number in 0..=MAX_REMEMBERED {
            let now = at(1) + SignedDuration::from_millis(i64::try_from(number).unwrap());
            assert!(events.is_new(&event("flood", number), now));
        }
        assert!(events.is_new(&event("flood", 0), at(3)), "it is forgotten");
        assert!(!events.is_new(&event("other", 0), at(3)));
        assert!(events.is_new(&event("other", 0), at(REPEAT_AFTER.as_secs())), "after a while it is new");
    }

    /// It is queued once, for the earlier time, and waits behind complete Events for a limited time.
    #[test]
    fn topics_wait_for_events_for_a_limited_time() {
        let mut events = Events::default();
        let topic = || {
            let source = crate::snapshot::ObjectName::new(crate::snapshot::SourceKind::ConfigMap, "a");
            Topic::Held(Name::new("ns", source))
        };
        for second in [9, 5, 7] {
            events.add_topic(topic(), at(second));
        }
        assert_eq!(events.due(), Some(at(5)));
        for number in 0..3 {
            events.add(event("flood", number), at(1));
        }
        let mut order = Vec::new();
        for second in 6..11 {
            order.extend(events.pop(at(second)).map(|next| matches!(next, Next::Topic(_))));
        }
        assert_eq!(order, [false, false, false, true]);
        events.add_topic(topic(), at(11));
        for number in 0..3 {
            events.add(event("flood", number), at(11));
        }
        let order: Vec<_> =
            [11, 15, 16].map(|second| matches!(events.pop(at(second)), Some(Next::Topic(_)))).into();
        assert_eq!(order, [false, false, true], "complete Events never end");
    }
}
