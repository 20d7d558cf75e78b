//! The reads of all decisions: the bytes that they hold, and their calls to the API server.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{
    bodies::{KIB, review_memory},
    limits::ReviewLimits,
};
use crate::{
    cluster::{Call, Meter},
    server::{Client, FairSemaphore, Pool, PoolPermit},
};

/// The bytes that all decisions have read, and their calls to the API server.
#[derive(Clone, Debug)]
pub struct ReadBudget {
    bytes: Pool,
    calls: FairSemaphore,
}

/// The share of one decision, released when dropped.
#[derive(Clone, Debug)]
pub struct ReadShare(Arc<ReadAccount>);

/// What one decision uses.
#[derive(Debug)]
struct ReadAccount {
    calls: FairSemaphore,
    bytes: Pool,
    client: Client,
    /// When the decision ends at the latest.
    by: Instant,
    amounts: Mutex<ReadAmounts>,
}

/// The bytes of one decision, and the permit for their sum.
#[derive(Debug, Default)]
struct ReadAmounts {
    /// The bytes of objects that the decision has read.
    kept: usize,
    /// The bytes of answers that are being read.
    arriving: usize,
    permit: Option<PoolPermit>,
}

/// Counts calls, and not their answers.
#[derive(Debug)]
struct CallsOnly(Arc<ReadAccount>);

impl Default for ReadBudget {
    fn default() -> Self {
        Self::new(&ReviewLimits::default())
    }
}

impl ReadBudget {
    /// Creates the shared counts, with nothing read yet.
    pub fn new(limits: &ReviewLimits) -> Self {
        Self::within(limits, &review_memory(limits))
    }

    /// The same, as a part of the memory for all reviews.
    pub(super) fn within(limits: &ReviewLimits, of_all: &FairSemaphore) -> Self {
        Self {
            bytes: Pool::new(limits.read_bytes.div_ceil(KIB), of_all),
            calls: FairSemaphore::new(limits.calls),
        }
    }

    /// The share of a new decision, which ends at `by` at the latest.
    pub fn share(&self, client: Client, by: Instant) -> ReadShare {
        let (bytes, calls) = (self.bytes.clone(), self.calls.clone());
        ReadShare(Arc::new(ReadAccount { calls, bytes, client, by, amounts: Mutex::default() }))
    }
}

impl ReadShare {
    /// Records how many bytes the decision has read so far. Returns false if its namespace would exceed its share.
    pub fn set(&self, bytes: usize) -> bool {
        self.0.change(|amounts| amounts.kept = bytes)
    }

    /// The client, and when its decision ends at the latest.
    pub(super) fn whose(&self) -> (&Client, Instant) {
        (&self.0.client, self.0.by)
    }

    /// Counts calls against the share, and their answers while they arrive.
    pub fn meter(&self) -> Arc<dyn Meter> {
        Arc::<ReadAccount>::clone(&self.0)
    }

    /// Counts calls against the share, and not their answers.
    pub fn meter_of_calls(&self) -> Arc<dyn Meter> {
        Arc::new(CallsOnly(Arc::clone(&self.0)))
    }
}

impl ReadAccount {
    fn amounts(&self) -> MutexGuard<'_, ReadAmounts> {
        self.amounts.lock()
    }

    /// Changes the amounts. Returns false and changes nothing if their sum would exceed the namespace's share.
    fn change(&self, change: impl FnOnce(&mut ReadAmounts)) -> bool {
        let mut amounts = self.amounts();
        let (kept, arriving) = (amounts.kept, amounts.arriving);
        change(&mut amounts);
        let wanted = (amounts.kept + amounts.arriving).div_ceil(KIB);
        let before = amounts.permit.as_ref().map_or(0, PoolPermit::amount);
        if wanted <= before {
            amounts.permit.iter_mut().for_each(|permit| permit.shrink(wanted));
            return true;
        }
        let Some(more) = self.bytes.try_acquire(&self.client, wanted - before) else {
            (amounts.kept, amounts.arriving) = (kept, arriving);
            return false;
        };
        match &mut amounts.permit {
            Some(permit) => permit.merge(more),
            None => amounts.permit = Some(more),
        }
        true
    }
}

impl Meter for ReadAccount {
    fn begin(&self) -> BoxFuture<'_, Option<Call>> {
        let begun = async { Some(Box::new(self.calls.acquire(&self.client, 1, self.by).await?) as Call) };
        Box::pin(begun)
    }

    fn take(&self, bytes: usize) -> bool {
        self.change(|amounts| amounts.arriving += bytes)
    }

    fn give_back(&self, bytes: usize) {
        self.change(|amounts| amounts.arriving -= bytes);
    }
}

impl Meter for CallsOnly {
    fn begin(&self) -> BoxFuture<'_, Option<Call>> {
        self.0.begin()
    }

    fn take(&self, _bytes: usize) -> bool {
        true
    }

    fn give_back(&self, _bytes: usize) {}
}

#[cfg(test)]
mod tests {
    use super::{super::limits::DECISION_LIMIT, *};

    #[test]
    fn read_bytes_are_counted_until_decisions_end() {
        let reading = ReadBudget::new(&ReviewLimits { read_bytes: 100 * KIB, ..ReviewLimits::default() });
        let share = |namespace| reading.share(Client::default().of_namespace(namespace), Instant::now());
        let (one, two) = (share("one"), share("two"));
        assert!(one.set(3 * KIB) && one.set(50 * KIB) && two.set(4 * KIB));
        assert!(!one.set(60 * KIB), "more than its share");
        assert!(two.set(8 * KIB), "another namespace can read");
        drop(one);
        assert!(two.set(50 * KIB));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_one_namespace_leave_room() {
        let reading = ReadBudget::new(&ReviewLimits { calls: 16, ..ReviewLimits::default() });
        let by = Instant::now() + DECISION_LIMIT;
        let meter = |namespace| reading.share(Client::default().of_namespace(namespace), by).meter();
        let mut held = Vec::new();
        let one = meter("one");
        // The last call waits until the deadline.
        while let Some(call) = one.begin().await {
            held.push(call);
            assert!(held.len() < 16, "one namespace holds all calls");
        }
        assert!(meter("two").begin().await.is_some());
    }
}
