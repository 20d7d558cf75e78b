//! Polls files, and compares their content with the content in use. A watch would miss changes: the kubelet swaps a mounted
//! Secret by renaming a symlink above the files.
use std::time::Duration;

/// The time between two reads.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What was read from watched files so far. `T` identifies a content, or the error of a read.
pub(super) struct PolledContent<T> {
    /// The content in use.
    loaded: T,
    /// Another content, at the last read. A file that is written in place may be incomplete, and a swap between the
    /// reads of two files looks broken for a moment, so some contents count only if the next read gives the same.
    suspect: Option<T>,
    /// The broken content that was last reported.
    reported: Option<T>,
}

impl<T: PartialEq> PolledContent<T> {
    pub(super) fn new(loaded: T) -> Self {
        Self { loaded, suspect: None, reported: None }
    }

    /// Whether the content is in use already. Other contents that were read before it no longer count.
    pub(super) fn is_loaded(&mut self, content: &T) -> bool {
        let is_loaded = self.loaded == *content;
        if is_loaded {
            (self.suspect, self.reported) = (None, None);
        }
        is_loaded
    }

    /// Whether the last read returned the same content.
    pub(super) fn is_repeated(&mut self, content: T) -> bool {
        let content = Some(content);
        let is_repeated = self.suspect == content;
        self.suspect = content;
        is_repeated
    }

    /// Whether a broken content is not reported yet. From now on, it is.
    pub(super) fn is_unreported(&mut self, content: T) -> bool {
        let content = Some(content);
        let is_unreported = self.reported != content;
        self.reported = content;
        is_unreported
    }
}

/// Reads repeatedly, and passes on each result. Never returns.
pub(super) async fn poll<T: Send + 'static>(
    read: impl Fn() -> T + Clone + Send + 'static,
    mut check: impl FnMut(T),
) {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        // On a blocking thread: a hung mount must not block a worker.
        if let Ok(content) = tokio::task::spawn_blocking(read.clone()).await {
            check(content);
        }
    }
}
