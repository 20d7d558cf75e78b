//! Who acts: the replica that holds the Lease, for as long as it can be sure of it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::{
    cluster::{Lease, lease},
    telemetry::Metrics,
};

/// How often the Lease is renewed, and tried for.
const RETRY: Duration = Duration::from_secs(3);
/// How long before the Lease's end its holder stops acting, so that a slow clock or call cannot make two act.
const MARGIN: Duration = Duration::from_secs(5);

/// Until when this replica leads.
#[derive(Clone, Default)]
pub struct Leadership(Arc<Mutex<Option<Instant>>>);

impl Leadership {
    /// Whether this replica may act now. A process that was stopped and wakes up late finds that it may not.
    pub fn holds(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// Tries for the Lease and keeps it until `stop` is set, then gives it up. `changed` is told at every turn.
pub async fn lead(
    mut lease: Lease,
    leadership: Leadership,
    changed: Arc<tokio::sync::Notify>,
    metrics: Metrics,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let start = Instant::now();
        match tokio::time::timeout(RETRY, lease.attempt()).await {
            Ok(Ok(true)) => leadership.set(Some(start + lease::DURATION - MARGIN)),
            Ok(Ok(false)) => leadership.set(None),
            Ok(Err(error)) => tracing::warn!(%error, "the Lease could not be read or written"),
            Err(_) => tracing::warn!("the Lease could not be read or written in time"),
        }
        metrics.set_leader(leadership.holds());
        changed.notify_one();
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    let held = leadership.holds();
    leadership.set(None);
    metrics.set_leader(false);
    if held && let Err(error) = lease.release().await {
        tracing::warn!(%error, "the Lease could not be given up: another replica waits for its end");
    }
}
