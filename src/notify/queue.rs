//! The Events that wait to be posted. The entrance never waits, and namespaces take turns.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    cluster::Event,
    telemetry::{Metrics, metrics::NotificationOutcome},
    turns::{BoundedLanes, Bounds, Ticket},
};

/// How many may wait. Each has a few hundred bytes, and at most some KiB.
const BOUNDS: Bounds = Bounds { each: 256, total: 1024 };

/// The sender of the queue. Without a URL to post to, it drops every Event.
#[derive(Clone, Debug, Default)]
pub struct Notices(Option<Sender>);

#[derive(Clone, Debug)]
struct Sender {
    waiting: Waiting,
    /// Wakes the receiver. It learns by this that every sender is dropped.
    wake: mpsc::Sender<()>,
    metrics: Metrics,
}

impl Notices {
    /// Queues an Event if it is important. If too many wait, one of the namespace with the most is dropped and counted.
    pub fn add(&self, event: &Event) {
        let Some(sender) = self.0.as_ref().filter(|_| event.reason.is_notified()) else { return };
        let notice = Notice { event: event.clone(), failures: 0 };
        let dropped = sender.waiting.lock().push(&event.namespace, Instant::now(), notice);
        if dropped.is_some() {
            sender.metrics.notification(NotificationOutcome::Dropped);
        }
        // If the receiver is to be woken already, it finds this Event too.
        let _ = sender.wake.try_send(());
    }

    /// How many notifications of each namespace were dropped for lack of room since the last call.
    pub(crate) fn take_dropped(&self) -> BTreeMap<Arc<str>, u64> {
        self.0.as_ref().map(|sender| sender.waiting.lock().take_dropped()).unwrap_or_default()
    }
}

#[cfg(test)]
impl Notices {
    /// A queue without a receiver.
    pub(crate) fn unread() -> Self {
        queue(Metrics::new()).0
    }

    /// How many notifications wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.as_ref().map_or(0, |sender| sender.waiting.lock().len())
    }
}

/// An Event to post.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) event: Event,
    /// How many attempts failed.
    pub(super) failures: u32,
}

type Lines = BoundedLanes<Arc<str>, Instant, Notice>;

/// The queue.
#[derive(Clone, Debug)]
struct Waiting(Arc<Mutex<Lines>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock()
    }
}

/// The receiver of the queue.
pub(super) struct Receiver {
    waiting: Waiting,
    woken: mpsc::Receiver<()>,
}

impl Receiver {
    /// The Event whose turn it is; `None` when every sender is dropped and none waits.
    pub(super) async fn next(&mut self) -> Option<Ticket<Arc<str>, Instant, Notice>> {
        loop {
            let due = {
                let mut waiting = self.waiting.lock();
                if let Some(notice) = waiting.pop(Instant::now()) {
                    return Some(notice);
                }
                waiting.next()
            };
            match due {
                None => self.woken.recv().await?,
                Some(due) if self.woken.is_closed() => tokio::time::sleep_until(due).await,
                Some(due) => tokio::select! {
                    () = tokio::time::sleep_until(due) => {}
                    _ = self.woken.recv() => {}
                },
            }
        }
    }

    /// Lets an Event wait again, and the others of its namespace with it.
    pub(super) fn put_back(&self, notice: Ticket<Arc<str>, Instant, Notice>, until: Instant) {
        self.waiting.lock().put_back(notice, until);
    }
}

pub(super) fn queue(metrics: Metrics) -> (Notices, Receiver) {
    // All notifications are of equal rank: the oldest are sent first, and the newest are dropped.
    let waiting = Waiting(Arc::new(Mutex::new(Lines::new(BOUNDS, |_| 0))));
    let (wake, woken) = mpsc::channel(1);
    (Notices(Some(Sender { waiting: waiting.clone(), wake, metrics })), Receiver { waiting, woken })
}
