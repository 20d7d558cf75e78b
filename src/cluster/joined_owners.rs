//! Owners that are added to one snapshot at the same time are added by one request.
//!
//! A return, or the last wave of a change, lets many workloads refer to one snapshot within a second. If each sent its own
//! patch, the API server would repeat most of them for their conflicts.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use super::shared_calls::SharedCalls;
use crate::{snapshot::ObjectName, world::Owner};

/// How long an addition waits for the request of another one. A review has four seconds, unless it states less.
const PATIENCE: Duration = Duration::from_secs(1);

/// A snapshot by its namespace and name.
type Key = (String, ObjectName);

/// The owners of the additions to a snapshot that have not ended, with the number of the additions of each.
type Waiting = BTreeMap<Owner, usize>;

/// The additions in progress.
#[derive(Debug)]
pub(super) struct JoinedOwners {
    waiting: Mutex<HashMap<Key, Waiting>>,
    calls: SharedCalls<Key, ()>,
}

impl Default for JoinedOwners {
    fn default() -> Self {
        Self { waiting: Mutex::default(), calls: SharedCalls::new(PATIENCE) }
    }
}

impl JoinedOwners {
    /// Adds an owner by `send`, which gets the owners of all additions that wait, or by another addition's call of it that
    /// began later than this. An error is that of the caller alone: the others send again.
    pub(super) async fn add<E, F: Future<Output = Result<(), E>>>(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        owner: &Owner,
        send: impl FnOnce(Vec<Owner>) -> F,
    ) -> Result<(), E> {
        let key = (namespace.to_owned(), snapshot.clone());
        // From here on, each request that begins has this owner.
        *self.lock().entry(key.clone()).or_default().entry(owner.clone()).or_default() += 1;
        let addition = Addition { joined: self, key, owner };
        let request = async { send(self.owners(&addition.key)).await };
        self.calls.call(addition.key.clone(), request).await
    }

    /// The owners of all additions to a snapshot.
    fn owners(&self, key: &Key) -> Vec<Owner> {
        self.lock().get(key).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Waiting>> {
        self.waiting.lock()
    }
}

/// One addition. It ends on drop, also if its review is given up.
struct Addition<'j> {
    joined: &'j JoinedOwners,
    key: Key,
    owner: &'j Owner,
}

impl Drop for Addition<'_> {
    fn drop(&mut self) {
        let mut waiting = self.joined.lock();
        let Some(owners) = waiting.get_mut(&self.key) else { return };
        let Some(additions) = owners.get_mut(self.owner) else { return };
        *additions -= 1;
        if *additions == 0 {
            owners.remove(self.owner);
        }
        if owners.is_empty() {
            waiting.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{
        FutureExt as _,
        future::{join, join_all},
    };
    use tokio::{
        sync::Semaphore,
        time::{sleep, timeout},
    };

    use super::*;
    use crate::snapshot::SourceKind;

    /// A snapshot whose API server answers when the test lets it.
    struct Slow {
        joined: JoinedOwners,
        /// The uids of each request.
        requests: Mutex<Vec<Vec<String>>>,
        answers: Semaphore,
    }

    impl Slow {
        fn new() -> Self {
            let (joined, requests) = (JoinedOwners::default(), Mutex::default());
            Self { joined, requests, answers: Semaphore::new(0) }
        }

        /// Adds an owner. Its own request fails if `fails`.
        async fn add(&self, uid: &str, fails: bool) -> Result<(), ()> {
            let owner = Owner::new("apps/v1", "Deployment", "web", uid);
            let send = |owners: Vec<Owner>| async move {
                self.requests.lock().push(owners.iter().map(|owner| owner.uid.to_string()).collect());
                self.answers.acquire().await.map_err(drop)?.forget();
                if fails { Err(()) } else { Ok(()) }
            };
            self.joined.add("ns", &ObjectName::new(SourceKind::ConfigMap, "demo-1"), &owner, send).await
        }

        fn sent(&self) -> Vec<Vec<String>> {
            assert!(self.joined.lock().is_empty(), "nothing waits after the last answer");
            self.requests.lock().clone()
        }
    }

    #[tokio::test]
    async fn owners_that_wait_are_added_together() {
        let slow = Slow::new();
        let uids = ["a", "b", "c", "b"];
        let adds = join_all(uids.map(|uid| slow.add(uid, false)));
        let (added, ()) = join(adds, async { slow.answers.add_permits(2) }).await;
        assert_eq!(added, [Ok(()); 4]);
        assert_eq!(slow.sent(), [vec!["a"], vec!["b", "c"]], "one request for all that came meanwhile");
    }

    #[tokio::test]
    async fn failure_is_that_of_one_caller() {
        let slow = Slow::new();
        let adds =
            join_all([("a", false), ("b", true), ("c", false)].map(|(uid, fails)| slow.add(uid, fails)));
        let (added, ()) = join(adds, async { slow.answers.add_permits(3) }).await;
        assert_eq!(added, [Ok(()), Err(()), Ok(())]);
        assert_eq!(
            slow.sent(),
            [vec!["a"], vec!["b", "c"], vec!["c"]],
            "the one after the failure sends again"
        );
    }

    /// A review that is given up in the middle of its request takes the owners of no other with it.
    #[tokio::test]
    async fn abandoned_addition_loses_no_other_owner() {
        let slow = Slow::new();
        let mut first = Box::pin(slow.add("a", false));
        assert!(first.as_mut().now_or_never().is_none());
        let mut sender = Box::pin(slow.add("b", false));
        let mut waits = Box::pin(slow.add("c", false));
        assert!(sender.as_mut().now_or_never().is_none() && waits.as_mut().now_or_never().is_none());
        slow.answers.add_permits(1);
        assert_eq!(first.await, Ok(()));
        // It sends for both now, and ends before the answer.
        assert!(sender.as_mut().now_or_never().is_none());
        drop(sender);
        slow.answers.add_permits(1);
        assert_eq!(waits.await, Ok(()));
        assert_eq!(slow.sent(), [vec!["a"], vec!["b", "c"], vec!["c"]]);
    }

    /// The next caller sends itself, and all others share its request, however slow the API server is.
    #[tokio::test(start_paused = true)]
    async fn hanging_addition_stops_no_other() {
        let slow = Slow::new();
        let mut hangs = Box::pin(slow.add("a", false));
        assert!(hangs.as_mut().now_or_never().is_none());
        let (added, ()) = join(timeout(3 * PATIENCE, slow.add("b", false)), async {
            sleep(2 * PATIENCE).await;
            slow.answers.add_permits(2);
        })
        .await;
        assert_eq!(added, Ok(Ok(())));
        assert_eq!(hangs.await, Ok(()));
        assert_eq!(slow.sent(), [vec!["a"], vec!["a", "b"]]);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_addition_answers_those_that_wait() {
        let slow = Slow::new();
        let adds = join_all(["a", "b", "c", "d"].map(|uid| slow.add(uid, false)));
        let (added, ()) = join(adds, async {
            for _ in 0..2 {
                sleep(PATIENCE * 3 / 4).await;
                slow.answers.add_permits(1);
            }
        })
        .await;
        assert_eq!(added, [Ok(()); 4]);
        assert_eq!(slow.sent(), [vec!["a"], vec!["b", "c", "d"]]);
    }
}
