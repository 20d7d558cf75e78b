//! The Events that wait to be posted. The entrance never waits.

use tokio::sync::mpsc;

use crate::{
    cluster::Event,
    telemetry::{Metrics, metrics::NotificationOutcome},
};

/// How many may wait. Each has a few hundred bytes.
const MAX_WAITING: usize = 256;

/// The entrance of the queue. Without a receiver, it takes nothing.
#[derive(Clone, Debug, Default)]
pub struct Notices(Option<(mpsc::Sender<Event>, Metrics)>);

impl Notices {
    /// Queues an Event if it is important. If too many wait, it is dropped and counted.
    pub fn add(&self, event: &Event) {
        let Some((sender, metrics)) = self.0.as_ref().filter(|_| event.reason.is_notified()) else { return };
        if sender.try_send(event.clone()).is_err() {
            metrics.notification(NotificationOutcome::Dropped);
        }
    }
}

/// The other end.
pub(super) struct Queue(mpsc::Receiver<Event>);

impl Queue {
    /// The next Event; `None` when no entrance is left.
    pub(super) async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

pub(super) fn queue(metrics: Metrics) -> (Notices, Queue) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    (Notices(Some((sender, metrics))), Queue(receiver))
}
