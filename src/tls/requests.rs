//! Signals when a single object may have changed.
use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt, future};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};
use kube::{Api, Resource};

use crate::telemetry::causes;

/// The time limit of a request to the API server. kube's client itself has none.
pub(super) const REQUEST: Duration = Duration::from_secs(10);

/// A request to the API server that failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The API server refused, or the connection failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// No answer came in time.
    #[error("the API server did not answer within {} s", REQUEST.as_secs())]
    TimedOut,
}

impl RequestError {
    /// True if the object was not in the state that the write expected: read it again and repeat the decision.
    pub(super) fn stale(&self) -> bool {
        // The API server answers 422 if the `test` of a JSON patch fails.
        matches!(self, Self::Kube(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422))
    }

    /// True if this account may not send the request.
    pub(super) fn forbidden(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if matches!(status.code, 401 | 403))
    }
}

/// Sends a request, with a time limit.
pub(super) async fn within<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, RequestError> {
    tokio::time::timeout(REQUEST, request)
        .await
        .map_err(|_| RequestError::TimedOut)?
        .map_err(RequestError::Kube)
}

/// An item each time that the object `name` may have changed. The watch requests only metadata and selects by name, so
/// a role with one `resourceNames` entry suffices.
pub(super) fn changes<K>(api: Api<PartialObjectMeta<K>>, name: &str) -> impl Stream<Item = ()> + Send + use<K>
where
    K: Resource + Clone + Debug + Send + 'static,
    PartialObjectMeta<K>: Resource,
{
    watch_object(api, name).default_backoff().filter_map(|event| {
        if let Err(error) = &event {
            // The watch restarts by itself, and the periodic check covers what it missed meanwhile.
            let kind = std::any::type_name::<K>();
            tracing::debug!(kind, error = %causes(error as &watcher::Error), "watch interrupted");
        }
        future::ready(event.ok().map(|_| ()))
    })
}
