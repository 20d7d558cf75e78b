//! The Events that wait: which one is written next.

use jiff::Timestamp;

use crate::{
    cluster::{ApiError, Event},
    controller::{
        action::Action,
        queue::Task,
        reconcile::{
            event_texts::{self},
            events::{Next, Topic},
            state::State,
        },
        tasks::decided::Decided,
    },
};

impl State {
    /// The next Event to write.
    pub(super) fn next_event(&mut self, now: Timestamp) -> Decided {
        while let Some(due) = self.events.due() {
            if due > now {
                return Decided::Later(due);
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
                return Decided::Act(Action::WriteEvent(Box::new(event)));
            }
        }
        Decided::Done
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

    /// Handles the result of writing an Event. It is retried only a few times, because it is not essential, and its
    /// namespace alone pauses meanwhile.
    pub(super) fn event_written(&mut self, outcome: Result<(), &ApiError>, now: Timestamp) {
        let has_ended = self.events.end(outcome.is_err_and(ApiError::may_pass), now);
        if let Err(error) = outcome
            && has_ended
        {
            tracing::warn!(%error, "an Event was not written");
        }
        self.queue.done(&Task::WriteEvent);
        self.schedule_events();
    }
}
