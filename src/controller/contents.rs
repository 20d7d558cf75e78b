//! Lets one task at a time have a large content in memory. A task holds a content as text, parsed, and as the snapshot that it
//! writes, and many tasks run at once.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

use crate::cluster::{Call, Meter};

/// The tasks that may have a large content at once.
const LARGE_AT_ONCE: usize = 1;

/// The turns of tasks with large contents. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct LargeContents(Arc<Semaphore>);

/// The turn of one task, from its first large content until the task ends.
#[derive(Debug)]
struct TaskTurn {
    turns: Arc<Semaphore>,
    held: OnceCell<Option<OwnedSemaphorePermit>>,
}

impl Default for LargeContents {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_AT_ONCE)))
    }
}

impl LargeContents {
    /// The meter of a new task.
    pub(super) fn of_task(&self) -> Arc<dyn Meter> {
        Arc::new(TaskTurn { turns: Arc::clone(&self.0), held: OnceCell::new() })
    }
}

impl Meter for TaskTurn {
    fn begin(&self) -> BoxFuture<'_, Option<Call>> {
        Box::pin(std::future::ready(Some(Box::new(()) as Call)))
    }

    fn take(&self, _bytes: usize) -> bool {
        true
    }

    fn give_back(&self, _bytes: usize) {}

    fn large_content(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // The semaphore is never closed.
            self.held.get_or_init(async || Arc::clone(&self.turns).acquire_owned().await.ok()).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn large_contents_are_held_one_at_a_time() {
        let contents = LargeContents::default();
        let (first, second) = (contents.of_task(), contents.of_task());
        first.large_content().await;
        first.large_content().await;
        assert!(second.large_content().now_or_never().is_none(), "the first task has one");
        drop(first);
        assert!(second.large_content().now_or_never().is_some());
    }
}
