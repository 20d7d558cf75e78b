//! Units for several uses: each use has a limit of its own, and all uses together have another one.

use tokio::time::Instant;

use super::fair::{Client, FairSemaphore, Permit};

/// The units of one use. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    of_use: FairSemaphore,
    of_all: FairSemaphore,
}

/// Units in use. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct PoolPermit {
    of_use: Permit,
    of_all: Permit,
}

impl Pool {
    /// A use of at most this many units, which also count towards those of all uses.
    pub(crate) fn new(units: usize, of_all: &FairSemaphore) -> Self {
        Self { of_use: FairSemaphore::new(units), of_all: of_all.clone() }
    }

    /// The most units that one request may ask for: half of the fewer.
    pub(crate) fn most_of_one(&self) -> usize {
        self.of_use.units().min(self.of_all.units()) / 2
    }

    /// Takes units if the client's shares have them now.
    pub(crate) fn try_acquire(&self, client: &Client, amount: usize) -> Option<PoolPermit> {
        let of_use = self.of_use.try_acquire(client, amount)?;
        let of_all = self.of_all.try_acquire(client, amount)?;
        Some(PoolPermit { of_use, of_all })
    }

    /// Takes units, and waits for them until `by`. `None` if a share of the client had too few units until then.
    pub(crate) async fn acquire(&self, client: &Client, amount: usize, by: Instant) -> Option<PoolPermit> {
        let of_use = self.of_use.acquire(client, amount, by).await?;
        let of_all = self.of_all.acquire(client, amount, by).await?;
        Some(PoolPermit { of_use, of_all })
    }
}

impl PoolPermit {
    /// Adds the units of another permit of the same client and use.
    pub(crate) fn merge(&mut self, other: Self) {
        self.of_use.merge(other.of_use);
        self.of_all.merge(other.of_all);
    }

    /// Counts the units for a namespace of the client's address from now on. Returns false if the namespace would exceed a share:
    /// the caller then drops the permit.
    pub(crate) fn assign(&mut self, namespace: &str) -> bool {
        self.of_use.assign(namespace) && self.of_all.assign(namespace)
    }

    /// Frees all but `amount` units.
    pub(crate) fn shrink(&mut self, amount: usize) {
        self.of_use.shrink(amount);
        self.of_all.shrink(amount);
    }

    /// How many units the permit holds.
    pub(crate) fn amount(&self) -> usize {
        self.of_use.amount()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn uses_share_one_total() {
        let of_all = FairSemaphore::new(100);
        let [one, two] = [60, 60].map(|units| Pool::new(units, &of_all));
        let [first, second] = [1, 2].map(|last| Client::new([10, 0, 0, last].into()));
        let by = Instant::now() + Duration::from_secs(1);
        let mut held = one.try_acquire(&first, 60).expect("all of its use");
        assert!(one.try_acquire(&second, 1).is_none(), "the use has no more");
        assert!(two.try_acquire(&second, 41).is_none(), "all uses together have no more");
        assert!(two.acquire(&second, 41, by).await.is_none());
        let rest = two.acquire(&second, 40, by).await.expect("the rest of all");
        held.shrink(10);
        assert_eq!(held.amount(), 10);
        assert!(two.try_acquire(&second, 5).is_some(), "freed in both");
        drop((held, rest));
        assert!(one.try_acquire(&second, 60).is_some(), "all are free again");
    }
}
