//! Watches, as a stream of unparsed objects: an object that cannot be parsed does not end the watch of the others.

use futures::Stream;
use http::{HeaderValue, header};
use kube::{
    api::WatchParams,
    core::{Request, WatchEvent},
};
use serde_json::value::RawValue;

use super::{
    api::CALL_LIMIT,
    error::ApiError,
    kube_api::{Accept, KubeApi},
    pages::Listed,
};

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
        let mut params = WatchParams::default().timeout(OPEN);
        if !of.selector.is_empty() {
            params = params.labels(&of.selector);
        }
        if let Some(name) = of.only {
            params = params.fields(&format!("metadata.name={name}"));
        }
        let mut request = Request::new(&*of.collection)
            .watch(&params, resource_version)
            .map_err(|error| ApiError::Answer { what: what.clone(), reason: error.to_string() })?;
        let accept = if of.metadata_only { Accept::Metadata } else { Accept::Json };
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(accept.value()));
        match tokio::time::timeout(CALL_LIMIT, self.client().request_events(request)).await {
            Err(_) => Err(ApiError::Late { what, seconds: CALL_LIMIT.as_secs() }),
            Ok(Ok(events)) => Ok(events),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err(ApiError::NotFound { what }),
            Ok(Err(kube::Error::Api(status))) => {
                Err(ApiError::Refused { what, code: status.code, message: status.message.clone() })
            }
            Ok(Err(source)) => Err(ApiError::Unreachable { what, source: Box::new(source) }),
        }
    }
}
