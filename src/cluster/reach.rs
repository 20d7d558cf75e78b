//! Whether the API server answers this replica.
//!
//! A replica that cannot read refuses every review. API servers keep one long connection to the replica that they know, so such a
//! replica must send them away: the API server that calls it may be healthy, and another one does not answer. If no API server calls, none
//! has to be sent away: replicas stay ready while the only API server is down.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::lease;
use crate::telemetry::Condition;

/// How long the API server may give no answer. One lost call is no outage.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);
/// The time without an answer after which a call is made to get one. The Lease is read or written more often than that by a replica
/// that can lead.
const PAUSE: Duration = Duration::from_millis(2500);
/// The time limit of that call. An answer that takes longer is of no use to a review.
const PROBE: Duration = Duration::from_secs(3);

/// When the API server last answered this replica. Cheap to clone; clones are one.
#[derive(Clone, Debug)]
pub struct Reach(Arc<Known>);

#[derive(Debug)]
struct Known {
    calls: Mutex<Calls>,
    is_cut_off: watch::Sender<bool>,
    condition: Condition,
}

#[derive(Debug)]
struct Calls {
    answered: Instant,
    /// When the first call began that had no answer, after the last one that had.
    silent_since: Option<Instant>,
    /// Whether an API server has called since then.
    is_called: bool,
}

impl Reach {
    /// A replica that the API server answers. `condition` of the readiness follows.
    pub fn new(condition: Condition) -> Self {
        condition.meet();
        let (is_cut_off, _) = watch::channel(false);
        let calls = Calls { answered: Instant::now(), silent_since: None, is_called: false };
        Self(Arc::new(Known { calls: Mutex::new(calls), is_cut_off, condition }))
    }

    /// Whether this replica is cut off from the API server while one calls it, now and whenever that changes.
    pub fn cut_off(&self) -> watch::Receiver<bool> {
        self.0.is_cut_off.subscribe()
    }

    /// A call had an answer.
    pub fn answered(&self) {
        self.update(|calls| {
            *calls = Calls { answered: Instant::now(), silent_since: None, is_called: false }
        });
    }

    /// A call that began at this time had no answer. If another one had an answer meanwhile, it says nothing.
    pub fn unanswered(&self, began: Instant) {
        self.update(|calls| {
            if began >= calls.answered {
                calls.silent_since.get_or_insert(began);
            }
        });
    }

    /// An API server calls this replica. The next call without an answer decides.
    pub fn called(&self) {
        self.with(|calls| calls.is_called |= calls.silent_since.is_some());
    }

    /// Makes a call whenever there was no answer for some seconds. Never returns.
    pub async fn keep(self, client: Client, namespace: &str) {
        let leases = Api::<Lease>::namespaced(client, namespace);
        loop {
            let next = self.with(|calls| calls.answered) + PAUSE;
            if next > Instant::now() {
                tokio::time::sleep_until(next).await;
                continue;
            }
            let began = Instant::now();
            match tokio::time::timeout(PROBE, leases.get_opt(lease::NAME)).await {
                Ok(Ok(_)) => self.answered(),
                Ok(Err(kube::Error::Api(status))) if status.code < 500 => self.answered(),
                Ok(Err(_)) | Err(_) => {
                    self.unanswered(began);
                    tokio::time::sleep_until(began + PAUSE).await;
                }
            }
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Calls) -> T) -> T {
        act(&mut self.0.calls.lock())
    }

    fn update(&self, change: impl FnOnce(&mut Calls)) {
        // Under one lock, so that the readiness follows the last change.
        self.0.is_cut_off.send_if_modified(|known| {
            let (is_silent, is_cut_off) = self.with(|calls| {
                change(calls);
                let long = calls.silent_since.is_some_and(|since| since.elapsed() >= LONGEST_SILENCE);
                (calls.silent_since.is_some(), calls.is_called && long)
            });
            let before = *known;
            // Once cut off, only an answer ends that.
            *known = is_cut_off || (before && is_silent);
            let why =
                "it does not answer this replica, and one calls it: other replicas answer reviews meanwhile";
            match (before, *known) {
                (false, true) => self.0.condition.fail(why),
                (true, false) => self.0.condition.meet(),
                _ => return false,
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::telemetry::Readiness;

    #[tokio::test(start_paused = true)]
    async fn called_replica_without_answers_is_cut_off() {
        let readiness = Readiness::new();
        let reach = Reach::new(readiness.register("API server"));
        let state = || (*reach.cut_off().borrow(), readiness.ready());
        advance(LONGEST_SILENCE).await;
        reach.called();
        reach.unanswered(Instant::now());
        assert_eq!(state(), (false, true), "one lost call, after a time without calls");
        advance(LONGEST_SILENCE).await;
        reach.unanswered(Instant::now());
        assert_eq!(state(), (false, true), "no API server calls");
        reach.called();
        assert_eq!(state(), (false, true), "the next call may have an answer");
        reach.unanswered(Instant::now());
        assert_eq!(state(), (true, false));
        reach.unanswered(Instant::now());
        assert_eq!(state(), (true, false), "until there is an answer");
        let began = Instant::now();
        advance(Duration::from_secs(1)).await;
        reach.answered();
        assert_eq!(state(), (false, true));
        reach.unanswered(began);
        reach.called();
        advance(LONGEST_SILENCE).await;
        reach.unanswered(Instant::now());
        assert_eq!(state(), (false, true), "it began before the answer");
        reach.answered();

        reach.unanswered(Instant::now());
        reach.called();
        assert_eq!(state(), (false, true), "the silence has just begun");
        advance(LONGEST_SILENCE).await;
        assert_eq!(state(), (false, true), "nothing was tried");
        reach.unanswered(Instant::now());
        assert_eq!(state(), (true, false), "it was called in the silence");
    }
}
