//! Leadership: the replica that holds the Lease acts, as long as it can be sure of the Lease and can do a leader's work.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::{
    cluster::{Lease, Reach, lease},
    telemetry::Metrics,
};

/// How often the Lease is renewed, and tried for.
const RETRY: Duration = Duration::from_secs(2);
/// How often a replica without the Lease checks whether it has become fit to hold it.
const FITNESS: Duration = Duration::from_millis(250);
/// How long before the Lease ends its holder begins nothing new, so that a slow clock cannot make two replicas act. A call that has begun
/// may still have its effect later: each is conditional.
const MARGIN: Duration = Duration::from_secs(2);

/// Until when this replica leads.
#[derive(Clone, Default)]
pub struct Leadership(Arc<Mutex<Option<Instant>>>);

impl Leadership {
    /// Whether this replica may act now. A process that was stopped and wakes up late finds that it may not.
    pub fn holds(&self) -> bool {
        let until = *self.0.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    pub(super) fn set(&self, until: Option<Instant>) {
        *self.0.lock() = until;
    }
}

/// Tries for the Lease and keeps it until `stop` is set, then releases it. Notifies `changed` at every turn.
///
/// `unfit` says why this replica cannot act. Such a replica does not take the Lease, and releases the Lease that it holds:
/// otherwise it would keep every other replica from acting. `reach` learns of each answer.
pub async fn lead(
    mut lease: Lease,
    leadership: Leadership,
    changed: Arc<tokio::sync::Notify>,
    metrics: Metrics,
    unfit: impl Fn() -> Option<&'static str>,
    reach: Reach,
    mut stop: watch::Receiver<bool>,
) {
    // Whether this replica may hold the Lease, whatever the result of the last attempt.
    let mut may_hold = false;
    let mut reported = None;
    loop {
        let start = Instant::now();
        let reason = unfit();
        let is_fit = reason.is_none();
        if let Some(reason) = reason.filter(|_| reported != reason) {
            tracing::info!(reason, "this replica cannot lead");
        }
        reported = reason;
        if is_fit {
            may_hold = true;
            match tokio::time::timeout(RETRY, lease.attempt()).await {
                Ok(Ok(true)) => {
                    reach.answered();
                    leadership.set(Some(start + lease::DURATION - MARGIN));
                }
                Ok(Ok(false)) => {
                    reach.answered();
                    may_hold = false;
                    leadership.set(None);
                }
                Ok(Err(error)) => tracing::warn!(%error, "the Lease could not be read or written"),
                Err(_) => tracing::warn!("the Lease could not be read or written in time"),
            }
            if *reach.cut_off().borrow() {
                leadership.set(None);
            }
        } else {
            leadership.set(None);
            if may_hold {
                tracing::warn!("releasing the Lease: this replica cannot act");
                may_hold = !release(&mut lease).await;
            }
        }
        metrics.set_leader(leadership.holds());
        changed.notify_one();
        let now = Instant::now();
        let turn = if is_fit || may_hold { RETRY } else { FITNESS };
        // A free Lease is taken at once.
        let next = lease.expires().filter(|at| *at > now).map_or(start + turn, |at| at.min(start + turn));
        let rest = next.saturating_duration_since(now).max(FITNESS);
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    let held = leadership.holds();
    leadership.set(None);
    metrics.set_leader(false);
    if held {
        release(&mut lease).await;
    }
}

/// Releases the Lease. Returns whether another replica may take it now.
async fn release(lease: &mut Lease) -> bool {
    match tokio::time::timeout(RETRY, lease.release()).await {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the Lease could not be released: another replica waits until it expires");
        }
        Err(_) => {
            tracing::warn!("the Lease could not be released in time: another replica waits until it expires");
        }
    }
    false
}
