//! Reports: queues Events and notifications.

use jiff::Timestamp;

use super::events::{Topic, events_dropped};
use crate::{
    cluster::Event,
    controller::{queue::Task, reconcile::state::State},
    telemetry::metrics::Reason,
    uid::Uid,
    world::{Name, User, skipped::Unreadable},
};

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
    pub(in crate::controller) fn notify(&self, event: &Event) {
        if self.leads {
            self.notices.add(event);
        }
    }

    /// Queues an Event about a held change of a source.
    pub(in crate::controller) fn report_hold(&mut self, source: Name, at: Timestamp) {
        self.events.add_topic(Topic::Held(source), at);
        self.schedule_events();
    }

    /// Queues the task that writes the next Event.
    pub(in crate::controller) fn schedule_events(&mut self) {
        if let Some(due) = self.events.due() {
            self.queue.schedule(Task::WriteEvent, due);
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
