//! Notifications: posts important Events to a URL (`--notify`), as CloudEvents or in Slack's form.
//!
//! A post names objects, snapshots and digests, like the Event, and never holds content. Nothing waits for a post: Events are
//! queued up to a limit, and dropped beyond it. Only the leader writes Events, so only the leader posts.

mod client;
mod form;
mod queue;
mod signature;

use std::time::Duration;

use http::{StatusCode, header};
use jiff::Timestamp;

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
    pub async fn run(mut self) {
        while let Some(event) = self.queue.next().await {
            self.deliver(&event).await;
        }
    }

    async fn deliver(&self, event: &Event) {
        let (mut pause, mut failures) = (FIRST_PAUSE, 0_u32);
        loop {
            let (reason, wait) = match self.attempt(event).await {
                Attempt::Sent => {
                    if failures > 0 {
                        tracing::info!(failures, "the receiver of notifications answers again");
                    }
                    return self.metrics.notification(NotificationOutcome::Sent);
                }
                Attempt::Refused(reason) => {
                    tracing::warn!(
                        reason,
                        event = event.reason.text(),
                        "the receiver refused a notification"
                    );
                    return self.metrics.notification(NotificationOutcome::Refused);
                }
                Attempt::Again(reason, wait) => (reason, wait),
            };
            failures += 1;
            self.metrics.notification(NotificationOutcome::Failed);
            let wait = wait.unwrap_or(pause).clamp(pause, LONGEST_PAUSE);
            let age = Timestamp::now().duration_since(event.at);
            if age + jiff::SignedDuration::try_from(wait).unwrap_or_default() > LONGEST_DELAY {
                tracing::warn!(
                    reason,
                    event = event.reason.text(),
                    "a notification was dropped: the receiver is away"
                );
                return self.metrics.notification(NotificationOutcome::Dropped);
            }
            if failures == 1 {
                tracing::warn!(reason, "a notification was not sent, and is retried");
            }
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
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
