//! Concurrent reads of one object share one request. No reader gets the answer of a request that began before the
//! reader asked.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long a read waits for another one. A hanging read must not delay all others.
const MAX_WAIT: Duration = Duration::from_millis(250);

/// The reads in progress. An answer is kept while at least one reader waits for it.
#[derive(Debug)]
pub(super) struct SharedReads<K: Eq + Hash, V>(Mutex<HashMap<K, ReadersOfKey<V>>>);

#[derive(Debug)]
struct ReadersOfKey<V> {
    /// How many readers hold a [`ReaderGuard`]. The `Arc`'s count does not serve: a reader drops its `Arc` only after it has
    /// left.
    readers: usize,
    turns: Arc<ReadTurns<V>>,
}

#[derive(Debug)]
struct ReadTurns<V> {
    /// How many reads have begun.
    begun: AtomicU64,
    /// Its holder reads. It contains the last answer and the number of the read that returned it.
    last: tokio::sync::Mutex<Option<(u64, V)>>,
}

impl<K: Eq + Hash, V> Default for SharedReads<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone, V: Clone> SharedReads<K, V> {
    /// The answer of `read`, or of a read of the same key that began after this call. Errors are not shared.
    pub(super) async fn read<E>(&self, key: K, read: impl Future<Output = Result<V, E>>) -> Result<V, E> {
        let turns = {
            let mut reads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = reads.entry(key.clone()).or_insert_with(|| {
                let turns = ReadTurns { begun: AtomicU64::new(0), last: tokio::sync::Mutex::new(None) };
                ReadersOfKey { readers: 0, turns: Arc::new(turns) }
            });
            entry.readers += 1;
            Arc::clone(&entry.turns)
        };
        let guard = ReaderGuard { reads: self, key, turns };
        let asked = guard.turns.begun.load(Ordering::SeqCst);
        let Ok(mut last) = tokio::time::timeout(MAX_WAIT, guard.turns.last.lock()).await else {
            return read.await;
        };
        if let Some((begun, answer)) = last.as_ref()
            && *begun > asked
        {
            return Ok(answer.clone());
        }
        let begun = guard.turns.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let answer = read.await?;
        *last = Some((begun, answer.clone()));
        Ok(answer)
    }
}

/// A reader's place among the readers of one key. The last reader to leave removes the answer.
struct ReaderGuard<'r, K: Eq + Hash, V> {
    reads: &'r SharedReads<K, V>,
    key: K,
    turns: Arc<ReadTurns<V>>,
}

impl<K: Eq + Hash, V> Drop for ReaderGuard<'_, K, V> {
    fn drop(&mut self) {
        let mut reads = self.reads.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = reads.get_mut(&self.key) else { return };
        entry.readers -= 1;
        if entry.readers == 0 {
            reads.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    /// A source whose value changes. Each read of it lasts until the test lets it finish.
    #[derive(Default)]
    struct SlowSource {
        value: AtomicU64,
        begun: AtomicU64,
        reads: SharedReads<&'static str, u64>,
    }

    impl SlowSource {
        async fn read(self: Arc<Self>, go: Arc<Semaphore>) -> u64 {
            let read = async {
                self.begun.fetch_add(1, Ordering::SeqCst);
                let value = self.value.load(Ordering::SeqCst);
                go.acquire().await.unwrap().forget();
                Ok::<_, Infallible>(value)
            };
            self.reads.read("key", read).await.unwrap()
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
        assert!(source.reads.0.lock().unwrap().is_empty(), "no answer is kept");
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
        assert!(source.reads.0.lock().unwrap().is_empty(), "no answer is kept");
    }
    /// A reader that has left does not count, even before its `Arc` is dropped.
    #[tokio::test]
    async fn finished_reader_keeps_no_answer() {
        let reads = SharedReads::<&str, u64>::default();
        let mut leaving = None;
        let read = async {
            leaving = reads.0.lock().unwrap().get("key").map(|entry| Arc::clone(&entry.turns));
            Ok::<_, Infallible>(0)
        };
        assert_eq!(reads.read("key", read).await, Ok(0));
        assert!(leaving.is_some() && reads.0.lock().unwrap().is_empty(), "the answer is kept");
    }
}
