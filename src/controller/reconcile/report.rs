//! Reports: queues Events, and decides which one to write next.

use jiff::{SignedDuration, Timestamp};

use super::{event_texts, events::Topic, reconciled::Reconciled};
use crate::{
    cluster::{Event, WorkloadKey},
    controller::{
        action::Action,
        index::{records::User, skipped::Unreadable},
        name::Name,
        queue::Task,
        reconcile::state::State,
    },
    telemetry::metrics::Reason,
    uid::Uid,
};

/// How long a reference may lead to nothing before it is reported: objects applied together do not arrive at once.
const MISSING_DELAY: SignedDuration = SignedDuration::from_secs(10);

impl State {
    /// Queues Events.
    pub(in crate::controller) fn report(&mut self, events: impl IntoIterator<Item = Event>, now: Timestamp) {
        for event in events {
            if self.events.report(event, now) {
                self.schedule_events();
            }
        }
    }

    /// Queues an Event about a held change of a source.
    pub(super) fn report_hold(&mut self, source: Name, at: Timestamp) {
        self.events.add(at, Topic::Held(source));
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
            let event = match self.events.pop() {
                Some(Topic::Event(event)) => Some(*event),
                Some(Topic::Held(source)) => self.held_workloads.event(&self.index, &source, now),
                Some(Topic::Unreadable(object)) => {
                    let skipped = self.index.skipped(&object);
                    let event =
                        skipped.map(|skipped| event_texts::unreadable(&self.index, &object, skipped, now));
                    event.filter(|event| self.events.is_new(event, now))
                }
                None => None,
            };
            if let Some(event) = event {
                self.events.start(event.clone(), now);
                return Reconciled::Act(Action::WriteEvent(Box::new(event)));
            }
        }
        Reconciled::Done
    }

    /// The reasons of Events that were dropped for lack of room since the last call.
    pub fn take_dropped_events(&mut self) -> Vec<Reason> {
        self.events.take_dropped()
    }

    /// Queues a check of a workload that may refer to a missing source.
    pub(super) fn enqueue_missing_sources(&mut self, key: &WorkloadKey, now: Timestamp) {
        let record = self.index.workload(key).filter(|_| self.index.is_synced());
        if record
            .is_some_and(|record| record.uses.iter().any(|used| used.snapshot.is_none() && !used.optional))
        {
            self.queue.schedule(Task::Report(key.clone()), now + MISSING_DELAY);
        }
    }

    /// Reports the sources that a workload refers to and that are still missing.
    pub(super) fn report_missing_sources(&mut self, key: &WorkloadKey, now: Timestamp) {
        self.report(event_texts::missing_sources(&self.index, key, now), now);
    }

    /// Records and reports that an object cannot be read.
    pub(in crate::controller) fn set_unreadable(&mut self, object: &User, uid: &Uid, error: &Unreadable) {
        if !self.index.set_unreadable(object, uid, error) {
            return;
        }
        let name = self.index.display_user(object);
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
        self.events.add_unreadable(object.clone());
        self.schedule_events();
    }

    /// Reports every object that cannot be read. Called when this replica begins to lead.
    pub(super) fn report_all_unreadable(&mut self) {
        for (object, _) in self.index.unreadable() {
            self.events.add_unreadable(object.clone());
        }
        self.schedule_events();
    }
}
