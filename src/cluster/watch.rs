//! Watches, as a stream of unparsed objects: an object that cannot be parsed does not end the watch of the others.

use futures::Stream;
use http::{Request, header};
use kube::core::WatchEvent;
use serde_json::value::RawValue;

use super::{ApiError, KubeApi, Listed, api::Accept, path};

/// How long the API server keeps a watch open, in seconds. The API server sends a bookmark shortly before the end
/// (source: `nextBookmarkTime` in k8s.io/apiserver's cacher), so a dead connection shows soon after.
pub(crate) const OPEN: u32 = 60;

impl KubeApi {
    /// Watches from this resourceVersion on, with bookmarks.
    pub async fn watch(
        &self,
        of: &Listed,
        resource_version: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Box<RawValue>>, kube::Error>> + use<>, ApiError> {
        let what = format!("watch {}", of.collection);
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={OPEN}&labelSelector={}&resourceVersion={resource_version}",
            of.collection,
            path::selector(&of.selector),
        );
        let accept = if of.metadata_only { Accept::Metadata } else { Accept::Json };
        let request = Request::get(path)
            .header(header::ACCEPT, accept.value())
            .body(Vec::new())
            .map_err(|error| ApiError::Answer { what: what.clone(), reason: error.to_string() })?;
        match tokio::time::timeout(super::CALL_LIMIT, self.client().request_events(request)).await {
            Err(_) => Err(ApiError::Late { what, seconds: super::CALL_LIMIT.as_secs() }),
            Ok(Ok(events)) => Ok(events),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err(ApiError::NotFound { what }),
            Ok(Err(kube::Error::Api(status))) => {
                Err(ApiError::Refused { what, code: status.code, message: status.message.clone() })
            }
            Ok(Err(source)) => Err(ApiError::Unreachable { what, source: Box::new(source) }),
        }
    }
}
