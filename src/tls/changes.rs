//! Wakes whoever looks after one object when that object may have changed.
use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt, future};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};
use kube::{Api, Resource};

use crate::telemetry::log::causes;

/// How long a request to the API server may take. kube's client itself waits for ever.
pub(super) const REQUEST: Duration = Duration::from_secs(10);

/// A request to the API server that got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Refused, or the connection failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// No answer in time.
    #[error("the API server did not answer within {} s", REQUEST.as_secs())]
    TimedOut,
}

impl Failure {
    /// True where the object was not in the state that the write supposed: read it again and think anew.
    pub(super) fn stale(&self) -> bool {
        // 422 is what a JSON patch gets whose `test` does not hold.
        matches!(self, Self::Kube(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422))
    }

    /// True where the request is not allowed to this account.
    pub(super) fn forbidden(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if matches!(status.code, 401 | 403))
    }
}

/// Sends a request, within its time.
pub(super) async fn within<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failure> {
    tokio::time::timeout(REQUEST, request).await.map_err(|_| Failure::TimedOut)?.map_err(Failure::Kube)
}

/// Something for each time that the object named `name` may have changed. It asks for metadata alone and selects by
/// name, so a role that allows one `resourceName` suffices.
pub(super) fn changes<K>(api: Api<PartialObjectMeta<K>>, name: &str) -> impl Stream<Item = ()> + Send + use<K>
where
    K: Resource + Clone + Debug + Send + 'static,
    PartialObjectMeta<K>: Resource,
{
    watch_object(api, name).default_backoff().filter_map(|event| {
        if let Err(error) = &event {
            // The watch begins anew by itself, and the periodic look makes up for what is missed meanwhile.
            let kind = std::any::type_name::<K>();
            tracing::debug!(kind, error = %causes(error as &watcher::Error), "watch interrupted");
        }
        future::ready(event.ok().map(|_| ()))
    })
}
