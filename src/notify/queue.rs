//! The Events that wait to be posted. The entrance never waits.

use tokio::sync::mpsc;

use crate::{
    cluster::Event,
    telemetry::{Metrics, metrics::NotificationOutcome},
};

/// How many may wait. Each has a few hundred bytes.
const MAX_WAITING: usize = 256;

/// The sender of the queue. Without a URL to post to, it drops every Event.
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

/// The receiver of the queue.
pub(super) struct Receiver(mpsc::Receiver<Event>);

impl Receiver {
    /// The next Event; `None` when every sender is dropped.
    pub(super) async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

pub(super) fn queue(metrics: Metrics) -> (Notices, Receiver) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    (Notices(Some((sender, metrics))), Receiver(receiver))
}
