//! Concurrent calls for one object share one request. No caller gets the answer of a request that began before it asked.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::MutexGuard;

/// The calls in progress. An answer is kept while at least one caller waits for it.
#[derive(Debug)]
pub(super) struct SharedCalls<K: Eq + Hash, V> {
    callers: Mutex<HashMap<K, CallersOfKey<V>>>,
    /// How long a call waits for a request of another one. A hanging request must not delay all others.
    patience: Duration,
}

#[derive(Debug)]
struct CallersOfKey<V> {
    /// How many callers hold a [`CallerGuard`]. The `Arc`'s count does not serve: a caller drops its `Arc` only after it has
    /// left.
    callers: usize,
    turns: Arc<Turns<V>>,
}

#[derive(Debug)]
struct Turns<V> {
    /// How many requests have begun.
    begun: AtomicU64,
    /// Its holder sends a request. It contains the last answer and the number of the request that returned it.
    last: tokio::sync::Mutex<Option<(u64, V)>>,
}

impl<K: Eq + Hash + Clone, V: Clone> SharedCalls<K, V> {
    /// Calls that wait this long for each other.
    pub(super) fn new(patience: Duration) -> Self {
        Self { callers: Mutex::default(), patience }
    }

    /// The answer of `request`, or of a request for the same key that began after this call. Errors are not shared.
    pub(super) async fn call<E>(&self, key: K, request: impl Future<Output = Result<V, E>>) -> Result<V, E> {
        let turns = {
            let mut callers = self.callers.lock();
            let entry = callers.entry(key.clone()).or_insert_with(|| {
                let turns = Turns { begun: AtomicU64::new(0), last: tokio::sync::Mutex::new(None) };
                CallersOfKey { callers: 0, turns: Arc::new(turns) }
            });
            entry.callers += 1;
            Arc::clone(&entry.turns)
        };
        let guard = CallerGuard { calls: self, key, turns };
        let asked = guard.turns.begun.load(Ordering::SeqCst);
        let Some(mut last) = self.turn(&guard.turns, asked).await else { return request.await };
        if let Some((begun, answer)) = last.as_ref()
            && *begun > asked
        {
            return Ok(answer.clone());
        }
        let begun = guard.turns.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let answer = request.await?;
        *last = Some((begun, answer.clone()));
        Ok(answer)
    }

    /// The turn to send a request. `None`: this took too long. A request that will answer this call gets as long as the previous one.
    async fn turn<'t>(&self, turns: &'t Turns<V>, asked: u64) -> Option<MutexGuard<'t, Option<(u64, V)>>> {
        let turn = || tokio::time::timeout(self.patience, turns.last.lock());
        if let Ok(turn) = turn().await {
            return Some(turn);
        }
        if turns.begun.load(Ordering::SeqCst) > asked { turn().await.ok() } else { None }
    }
}

/// A caller's place among the callers of one key. The last caller to leave removes the answer.
struct CallerGuard<'c, K: Eq + Hash, V> {
    calls: &'c SharedCalls<K, V>,
    key: K,
    turns: Arc<Turns<V>>,
}

impl<K: Eq + Hash, V> Drop for CallerGuard<'_, K, V> {
    fn drop(&mut self) {
        let mut callers = self.calls.callers.lock();
        let Some(entry) = callers.get_mut(&self.key) else { return };
        entry.callers -= 1;
        if entry.callers == 0 {
            callers.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(250);

    /// A source whose value changes. Each read of it lasts until the test lets it finish.
    struct SlowSource {
        value: AtomicU64,
        begun: AtomicU64,
        calls: SharedCalls<&'static str, u64>,
    }

    impl Default for SlowSource {
        fn default() -> Self {
            Self { value: AtomicU64::new(0), begun: AtomicU64::new(0), calls: SharedCalls::new(PATIENCE) }
        }
    }

    impl SlowSource {
        async fn read(self: Arc<Self>, go: Arc<Semaphore>) -> u64 {
            let read = async {
                self.begun.fetch_add(1, Ordering::SeqCst);
                let value = self.value.load(Ordering::SeqCst);
                go.acquire().await.unwrap().forget();
                Ok::<_, Infallible>(value)
            };
            self.calls.call("key", read).await.unwrap()
        }
    }

    /// No reader gets the answer of a request that began before the reader asked.
    #[tokio::test(start_paused = true)]
    async fn concurrent_reads_share_the_next_request() {
        let (source, go) = (Arc::new(SlowSource::default()), Arc::new(Semaphore::new(0)));
        let ask = || tokio::spawn(Arc::clone(&source).read(Arc::clone(&go)));
        let first = ask();
        tokio::task::yield_now().await;
        // The first read has seen the old value; readers that ask from now on must not get it.
        source.value.store(1, Ordering::SeqCst);
        let later: Vec<_> = (0..50).map(|_| ask()).collect();
        tokio::task::yield_now().await;
        go.add_permits(2);
        assert_eq!(first.await.unwrap(), 0);
        for value in join_all(later).await {
            assert_eq!(value.unwrap(), 1, "the reader asked after the change");
        }
        assert_eq!(source.begun.load(Ordering::SeqCst), 2, "one read for all waiting readers");
        assert!(source.calls.callers.lock().is_empty(), "no answer is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_or_aborted_read_blocks_no_other() {
        let (source, go) = (Arc::new(SlowSource::default()), Arc::new(Semaphore::new(0)));
        let hangs = tokio::spawn(Arc::clone(&source).read(Arc::new(Semaphore::new(0))));
        tokio::task::yield_now().await;
        let waits = tokio::spawn(Arc::clone(&source).read(Arc::clone(&go)));
        go.add_permits(1);
        assert_eq!(waits.await.unwrap(), 0, "the waiting reader reads itself");
        hangs.abort();
        assert!(hangs.await.is_err());
        go.add_permits(1);
        assert_eq!(Arc::clone(&source).read(go).await, 0);
        assert!(source.calls.callers.lock().is_empty(), "no answer is kept");
    }

    /// A reader that has left does not count, even before its `Arc` is dropped.
    #[tokio::test]
    async fn finished_reader_keeps_no_answer() {
        let calls = SharedCalls::<&str, u64>::new(PATIENCE);
        let mut leaving = None;
        let read = async {
            leaving = calls.callers.lock().get("key").map(|entry| Arc::clone(&entry.turns));
            Ok::<_, Infallible>(0)
        };
        assert_eq!(calls.call("key", read).await, Ok(0));
        assert!(leaving.is_some() && calls.callers.lock().is_empty(), "the answer is kept");
    }
}
