//! Reports: queues Events, and decides which one to write next.

use jiff::{SignedDuration, Timestamp};

use super::{
    event_texts,
    events::{Next, Topic, events_dropped},
    reconciled::Reconciled,
};
use crate::{
    cluster::Event,
    controller::{action::Action, queue::Task, reconcile::state::State},
    telemetry::metrics::Reason,
    uid::Uid,
    world::{Name, User, WorkloadKey, skipped::Unreadable},
};

/// How long a reference may lead to nothing before it is reported: objects applied together do not arrive at once.
const MISSING_DELAY: SignedDuration = SignedDuration::from_secs(10);

impl State {
    /// Queues Events, and notifications of them, unless they were reported recently. A notification does not depend on its
    /// Event, which may be dropped or refused.
    pub(in crate::controller) fn report(&mut self, events: impl IntoIterator<Item = Event>, now: Timestamp) {
        for event in events {
            let event = event.within_limits();
            if self.events.is_new(&event, now) {
                self.notify(&event);
                self.events.add(event, now);
                self.schedule_events();
            }
        }
    }

    /// Posts an important Event as a notification, if this replica leads.
    fn notify(&self, event: &Event) {
        if self.leads {
            self.notices.add(event);
        }
    }

    /// Queues an Event about a held change of a source.
    pub(super) fn report_hold(&mut self, source: Name, at: Timestamp) {
        self.events.add_topic(Topic::Held(source), at);
        self.schedule_events();
    }

    /// Queues the task that writes the next Event.
    pub(in crate::controller) fn schedule_events(&mut self) {
        if let Some(due) = self.events.due() {
            self.queue.schedule(Task::WriteEvent, due);
        }
    }

    /// The next Event to write.
    pub(super) fn next_event(&mut self, now: Timestamp) -> Reconciled {
        while let Some(due) = self.events.due() {
            if due > now {
                return Reconciled::Later(due);
            }
            let event = match self.events.pop(now) {
                Some(Next::Event(written)) => Some(written),
                Some(Next::Topic(topic)) => {
                    let event = self.compose(&topic, now);
                    event.map(|event| self.events.composed(event, now))
                }
                None => None,
            };
            if let Some(written) = event {
                let event = written.item.event.clone();
                self.events.start(written, now);
                return Reconciled::Act(Action::WriteEvent(Box::new(event)));
            }
        }
        Reconciled::Done
    }

    /// The Event about a topic; `None` if there is nothing to report any more.
    fn compose(&mut self, topic: &Topic, now: Timestamp) -> Option<Event> {
        match topic {
            Topic::Held(source) => {
                let event = self.held_workloads.event(&self.world, source, now)?.within_limits();
                self.notify(&event);
                Some(event)
            }
            Topic::Unreadable(object) => {
                let skipped = self.world.skipped(object)?;
                let event = event_texts::unreadable(&self.world, object, skipped, now);
                let event = event.within_limits();
                self.events.is_new(&event, now).then_some(event)
            }
        }
    }

    /// The reasons of Events that were dropped for lack of room since the last call.
    pub fn take_dropped_events(&mut self) -> Vec<Reason> {
        self.events.take_dropped()
    }

    /// Reports the namespaces whose Events or notifications were dropped for lack of room since the last call: in the log, and
    /// by an Event in the namespace.
    pub fn report_dropped(&mut self, now: Timestamp) {
        for (namespace, count) in self.notices.take_dropped() {
            tracing::warn!(%namespace, count, "notifications of a namespace were dropped: too many waited");
        }
        for (namespace, count) in self.events.take_dropped_by_namespace() {
            tracing::warn!(%namespace, count, "Events of a namespace were dropped: too many waited");
            self.report([events_dropped(&namespace, count, now)], now);
        }
    }

    /// Queues a check of a workload that may refer to a missing source.
    pub(super) fn enqueue_missing_sources(&mut self, key: &WorkloadKey, now: Timestamp) {
        let record = self.world.workload(key).filter(|_| self.world.is_synced());
        if record
            .is_some_and(|record| record.uses.iter().any(|used| used.snapshot.is_none() && !used.optional))
        {
            self.queue.schedule(Task::Report(key.clone()), now + MISSING_DELAY);
        }
    }

    /// Reports the sources that a workload refers to and that are still missing.
    pub(super) fn report_missing_sources(&mut self, key: &WorkloadKey, now: Timestamp) {
        self.report(event_texts::missing_sources(&self.world, key, now), now);
    }

    /// Records and reports that an object cannot be read.
    pub(in crate::controller) fn set_unreadable(
        &mut self,
        object: &User,
        (uid, error): (&Uid, &Unreadable),
        now: Timestamp,
    ) {
        let mut is_new = false;
        self.update(now, |world, changes| is_new = world.set_unreadable(object, uid, error, changes));
        if !is_new {
            return;
        }
        let name = self.world.display_user(object);
        match error {
            Unreadable::Form(error) => {
                let (line, column, category) = (error.line(), error.column(), error.classify());
                tracing::warn!(
                    object = name,
                    ?category,
                    line,
                    column,
                    "object cannot be read and is skipped"
                );
            }
            Unreadable::Names { limit } => {
                tracing::warn!(object = name, limit, "object refers to too many names and is skipped");
            }
        }
        self.report_unreadable(object.clone(), now);
    }

    /// Queues an Event about an object that cannot be read, which waits for the Events about changes.
    fn report_unreadable(&mut self, object: User, now: Timestamp) {
        self.events.add_topic(Topic::Unreadable(object), now);
        self.schedule_events();
    }

    /// Reports every object that cannot be read. Called when this replica begins to lead.
    pub(super) fn report_all_unreadable(&mut self, now: Timestamp) {
        let objects: Vec<_> = self.world.unreadable().map(|(object, _)| object.clone()).collect();
        for object in objects {
            self.report_unreadable(object, now);
        }
    }
}
