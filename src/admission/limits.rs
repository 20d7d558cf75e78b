//! The limits of one review and of all reviews together. A request beyond a limit gets a clear answer; others are served.

use std::time::Duration;

use axum::http::Uri;
use tokio::time::Instant;

use crate::{budget, resolve::parse_duration};

/// How long a review may take where the API server states no timeout. It ends before the longest timeout of the webhook
/// configurations (5 s), so that the answer can say why.
pub const DECISION_LIMIT: Duration = Duration::from_secs(4);
/// The longest time between the deadline of a review and the API server's timeout.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// The limits of reviews. Those of connections are [`crate::server::ServerLimits`]. Each limit of all reviews together is
/// divided fairly by source address and namespace (`server/fair.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReviewLimits {
    /// Bytes of one body. An AdmissionReview contains the object twice, and etcd accepts 1.5 MiB of each. The same as
    /// controller-runtime's limit.
    pub body: usize,
    /// Bytes of all bodies that are read, decided on or answered at once, except for one body, so that half-read bodies
    /// do not wait for each other. Further reviews wait. As much again is for what the bodies are parsed into, of which one
    /// review may take half.
    pub bodies: usize,
    /// Bytes of all reviews at once: their bodies, what bodies are parsed into, answers, and the objects that are read. The parts
    /// have limits of their own, which add up to more: no review needs all of them.
    pub memory: usize,
    /// Reviews that are decided on at once. Further reviews wait.
    pub decisions: usize,
    /// Calls to the API server at once for all reviews. Further calls wait.
    pub calls: usize,
    /// Objects that are read for one decision: two for each source, in the usual case.
    pub reads: usize,
    /// Bytes of all objects that are read for all decisions at once, counted while they arrive. One decision may read half
    /// of it.
    pub read_bytes: usize,
    /// Snapshots of a source. At this limit none is created in advance, before a workload references the content.
    pub snapshots: usize,
    /// The longest time for one review, whatever timeout the API server states.
    pub review: Duration,
}

impl Default for ReviewLimits {
    fn default() -> Self {
        Self {
            body: budget::BODY << 20,
            bodies: 64 << 20,
            memory: budget::REVIEWS << 20,
            decisions: 200,
            calls: 64,
            reads: 2000,
            read_bytes: 64 << 20,
            snapshots: 2000,
            review: Duration::from_secs(10),
        }
    }
}

impl ReviewLimits {
    /// Bytes of all objects that are read for one decision. Less than the share of a namespace that is alone.
    pub(super) fn bytes_of_one(&self) -> usize {
        self.read_bytes / 2
    }

    /// The time until which a review that began at `start` must be answered: before the timeout that the API server
    /// states in the query (`timeout=5s`).
    pub(super) fn deadline(&self, uri: &Uri, start: Instant) -> Instant {
        let query = uri.query().unwrap_or_default();
        let stated = query.split('&').find_map(|pair| parse_duration(pair.strip_prefix("timeout=")?));
        let time = stated
            .map_or(DECISION_LIMIT, |timeout| timeout.saturating_sub((timeout / 5).min(TIMEOUT_MARGIN)));
        start + time.min(self.review)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_ends_before_the_stated_timeout() {
        let (limits, start) = (ReviewLimits::default(), Instant::now());
        for (query, millis) in [
            ("", 4000),
            ("?timeout=5s", 4000),
            ("?timeout=3s", 2400),
            ("?x=1&timeout=1s", 800),
            ("?timeout=30s", 10_000),
            ("?timeout=soon", 4000),
            ("?timeout=", 4000),
        ] {
            let uri = format!("/mutate/workloads{query}").parse().unwrap();
            assert_eq!(limits.deadline(&uri, start) - start, Duration::from_millis(millis), "{query}");
        }
    }
}
