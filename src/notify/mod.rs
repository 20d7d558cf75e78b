//! Notifications: posts important Events to a URL (`--notify`), as CloudEvents or in Slack's form.
//!
//! A post names objects, snapshots and digests, like the Event, and never holds content. Nothing waits for a post: Events are
//! queued up to a limit, and dropped beyond it. Namespaces take turns. A post does not depend on its Event, which may be
//! dropped or refused. Only the leader posts.

mod client;
mod form;
mod queue;
mod signature;

use std::time::Duration;

use http::{StatusCode, header};
use jiff::Timestamp;
use tokio::time::Instant;

pub use client::{ClientError, NotifyUrl, NotifyUrlError};
pub use form::NotifyFormat;
pub use queue::Notices;
pub use signature::{KeyFormatError, KeySource, KeySourceError, NotifyKey};

use crate::{
    cluster::Event,
    telemetry::{Metrics, metrics::NotificationOutcome},
};
use client::Poster;
use queue::Receiver;

/// The pause after the first attempt that failed. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// After so many failures the pause is the longest.
const LONGEST_SHIFT: u32 = 6;
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// For how long after its Event a notification is retried. Older ones are dropped.
const LONGEST_DELAY: jiff::SignedDuration = jiff::SignedDuration::from_mins(15);

/// How notifications are sent.
#[derive(Clone, Debug)]
pub struct NotifyOptions {
    /// Where they are posted.
    pub url: NotifyUrl,
    /// Their form.
    pub format: NotifyFormat,
    /// The key that signs them; `None`: they are not signed.
    pub key: Option<KeySource>,
    /// A file with the CA certificates of the receiver, in PEM. `None`: those of the system.
    pub ca: Option<std::path::PathBuf>,
    /// The `source` of CloudEvents.
    pub source: String,
}

/// Posts queued Events.
pub struct Notifier {
    options: NotifyOptions,
    client: Poster,
    queue: Receiver,
    metrics: Metrics,
}

/// The result of one attempt.
enum Attempt {
    /// The receiver accepted it.
    Sent,
    /// It may succeed later: not before this pause, if the receiver gives one.
    Again(String, Option<Duration>),
    /// It will never succeed.
    Refused(String),
}

impl Notifier {
    /// Prepares the client, and checks what can be checked before the first post. Returns the sender of the
    /// queue and the notifier.
    pub fn new(options: NotifyOptions, metrics: Metrics) -> Result<(Notices, Self), ClientError> {
        let client = Poster::new(&options.url, options.ca.as_deref())?;
        let (notices, queue) = queue::queue(metrics.clone());
        Ok((notices, Self { options, client, queue, metrics }))
    }

    /// Posts Events as they are queued, one after the other, until every sender of the queue is dropped.
    ///
    /// While an Event fails, the others of its namespace wait, and those of other namespaces are posted.
    pub async fn run(mut self) {
        while let Some(mut notice) = self.queue.next().await {
            let attempt = self.attempt(&notice.item.event).await;
            let event = notice.item.event.reason.text();
            let (reason, wait) = match attempt {
                Attempt::Sent => {
                    if notice.item.failures > 0 {
                        tracing::info!(
                            failures = notice.item.failures,
                            "the receiver of notifications answers again"
                        );
                    }
                    self.metrics.notification(NotificationOutcome::Sent);
                    continue;
                }
                Attempt::Refused(reason) => {
                    tracing::warn!(reason, event, "the receiver refused a notification");
                    self.metrics.notification(NotificationOutcome::Refused);
                    continue;
                }
                Attempt::Again(reason, wait) => (reason, wait),
            };
            self.metrics.notification(NotificationOutcome::Failed);
            let pause = FIRST_PAUSE * (1 << notice.item.failures.min(LONGEST_SHIFT));
            let pause = wait.unwrap_or(pause).max(pause).min(LONGEST_PAUSE);
            let age = Timestamp::now().duration_since(notice.item.event.at);
            if age + jiff::SignedDuration::try_from(pause).unwrap_or_default() > LONGEST_DELAY {
                let namespace = &*notice.item.event.namespace;
                tracing::warn!(reason, event, namespace, "a notification was dropped: the receiver is away");
                self.metrics.notification(NotificationOutcome::Dropped);
                continue;
            }
            if notice.item.failures == 0 {
                tracing::warn!(reason, "a notification was not sent, and is retried");
            }
            notice.item.failures += 1;
            self.queue.put_back(notice, Instant::now() + pause);
            // All namespaces have the same receiver.
            tokio::time::sleep(wait.unwrap_or(FIRST_PAUSE).min(LONGEST_PAUSE)).await;
        }
    }

    async fn attempt(&self, event: &Event) -> Attempt {
        let id = form::id(event);
        let (content_type, body) = self.options.format.body(event, &id, &self.options.source);
        let mut headers = vec![(header::CONTENT_TYPE.as_str(), content_type.to_owned())];
        if let Some(key) = &self.options.key {
            // Read again each time: the file of a mounted Secret changes when the key is rotated.
            match key.keys().await {
                Ok(keys) => headers.extend(signature::headers(&keys, &id, Timestamp::now(), &body)),
                Err(error) => return Attempt::Again(error.to_string(), None),
            }
        }
        match self.client.post(headers, body).await {
            Ok((status, _)) if status.is_success() => Attempt::Sent,
            Ok((status, retry_after)) => {
                let reason = format!("the receiver answered {status}");
                let may_pass = status.is_server_error()
                    || matches!(
                        status,
                        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
                    );
                if may_pass { Attempt::Again(reason, retry_after) } else { Attempt::Refused(reason) }
            }
            Err(error) => Attempt::Again(error.to_string(), None),
        }
    }
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}
