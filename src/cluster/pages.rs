//! Lists, read page by page in bounded memory and parsed object by object: an unreadable object does not affect the
//! others. kube's `Api::list` reads a page of any size, and fails if one object in it cannot be parsed.

use std::ops::Range;

use kube::{api::ListParams, core::Request};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    error::ApiError,
    kube_api::{Accept, KubeApi, parse},
    meter::MeteredBytes,
};

/// The most objects in one page.
const MAX_PAGE_OBJECTS: usize = 100;
/// The most bytes of one page. A larger page is requested again with fewer objects. Each watch may read a page at the same time.
const MAX_PAGE_BYTES: usize = 2 << 20;

/// A list or watch: its collection, the objects selected in it, and the part of each object that is sent.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The path of the collection.
    pub collection: String,
    /// A label selector; empty for all objects.
    pub selector: String,
    /// The name of the only object; `None` for all objects.
    pub only: Option<&'static str>,
    /// Whether the API server sends metadata only.
    pub metadata_only: bool,
}

/// The pages of a list, in order.
pub struct Pages<'a> {
    api: &'a KubeApi,
    of: &'a Listed,
    /// The most objects in the next page.
    limit: usize,
    /// The most bytes in a page of several objects.
    max_bytes: usize,
    /// The token of the next page; `None` after the last.
    next: Option<String>,
}

/// One page: its text, and the position of each object in it.
#[derive(Debug)]
pub struct ListPage {
    text: String,
    /// The range of each object in the text.
    objects: Vec<Range<usize>>,
    /// The resourceVersion of the list.
    pub resource_version: String,
    /// The memory of the text.
    _metered: MeteredBytes,
}

#[derive(Deserialize)]
struct ListBody<'p> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'p RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    next: Option<String>,
}

impl ListPage {
    /// The text of each object.
    pub fn items(&self) -> impl Iterator<Item = &str> {
        self.objects.iter().filter_map(|object| self.text.get(object.clone()))
    }
}

impl KubeApi {
    /// The pages of a list, from the first.
    pub fn pages<'a>(&'a self, of: &'a Listed) -> Pages<'a> {
        Pages { api: self, of, limit: MAX_PAGE_OBJECTS, max_bytes: MAX_PAGE_BYTES, next: Some(String::new()) }
    }
}

impl Pages<'_> {
    /// The same list in pages of at most that many bytes.
    #[must_use]
    pub(super) fn with_max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// The path and query of the page with this token.
    fn path(&self, token: &str) -> Result<String, ApiError> {
        let of = self.of;
        let mut params = ListParams::default().limit(u32::try_from(self.limit).unwrap_or(u32::MAX));
        if !of.selector.is_empty() {
            params = params.labels(&of.selector);
        }
        if let Some(name) = of.only {
            params = params.fields(&format!("metadata.name={name}"));
        }
        if !token.is_empty() {
            params = params.continue_token(token);
        }
        let request = Request::new(&*of.collection).list(&params).map_err(|error| ApiError::Answer {
            what: format!("list {}", of.collection),
            reason: error.to_string(),
        })?;
        Ok(request.uri().to_string())
    }

    /// The next page; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<ListPage>, ApiError> {
        let Some(token) = self.next.clone() else { return Ok(None) };
        let accept = if self.of.metadata_only { Accept::MetadataList } else { Accept::Json };
        loop {
            let path = self.path(&token)?;
            // A single object is always read: etcd limits its size, to 1.5 MiB by default, though its JSON may be larger.
            let max = if self.limit > 1 { self.max_bytes } else { usize::MAX };
            let answer = match self.api.get_up_to(path.clone(), accept, max).await {
                Err(ApiError::TooLarge { .. }) => {
                    self.limit = (self.limit / 4).max(1);
                    continue;
                }
                other => other?,
            };
            let (bytes, metered) = answer.into_parts();
            if bytes.len() < self.max_bytes / 4 {
                self.limit = (self.limit * 2).min(MAX_PAGE_OBJECTS);
            }
            let text = String::from_utf8(bytes).map_err(|error| ApiError::Answer {
                what: path.clone(),
                reason: error.utf8_error().to_string(),
            })?;
            let ListBody { metadata, items } = parse(text.as_bytes(), &path)?;
            let place = |item: &RawValue| {
                let from = item.get().as_ptr() as usize - text.as_ptr() as usize;
                from..from + item.get().len()
            };
            let objects = items.into_iter().flatten().map(place).collect();
            self.next = metadata.next.filter(|token| !token.is_empty());
            let resource_version = metadata.resource_version.unwrap_or_default();
            return Ok(Some(ListPage { text, objects, resource_version, _metered: metered }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::{kinds::Kinds, telemetry::Metrics};

    /// An API server with `count` objects of `bytes` bytes each, and the limits of the requests that it got.
    fn server(count: usize, bytes: usize) -> (KubeApi, Arc<Mutex<Vec<usize>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let limits = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let number = |key: &str| {
                let value = query.split('&').find_map(|pair| pair.strip_prefix(key)).unwrap_or_default();
                value.parse::<usize>().unwrap_or(0)
            };
            let (limit, from) = (number("limit="), number("continue="));
            limits.lock().unwrap().push(limit);
            let to = (from + limit).min(count);
            let items: Vec<_> = (from..to)
                .map(|i| json!({"metadata": {"name": i.to_string()}, "x": "x".repeat(bytes)}))
                .collect();
            let next = if to < count { to.to_string() } else { String::new() };
            let list = json!({"metadata": {"resourceVersion": "7", "continue": next}, "items": items});
            std::future::ready(Ok::<_, std::io::Error>(Response::new(Body::from(
                list.to_string().into_bytes(),
            ))))
        });
        let client = kube::Client::new(service, "default");
        (KubeApi::new(client, Arc::new(Kinds::default()), Metrics::new()), asked)
    }

    #[tokio::test]
    async fn pages_shrink_while_objects_are_large() {
        for (count, bytes, max) in [(250, 10, 100), (40, 1 << 18, 7), (40, 1 << 20, 1), (3, 9 << 20, 1)] {
            let (api, asked) = server(count, bytes);
            let of = Listed {
                collection: "/api/v1/configmaps".into(),
                selector: String::new(),
                only: None,
                metadata_only: false,
            };
            let (mut pages, mut seen) = (api.pages(&of), 0);
            while let Some(page) = pages.next().await.unwrap() {
                let items = page.items().count();
                assert!(items <= max, "{items} objects of {bytes} bytes");
                assert_eq!(page.resource_version, "7");
                seen += items;
            }
            assert_eq!(seen, count);
            assert!(asked.lock().unwrap().len() < count + 10, "{:?}", asked.lock().unwrap());
        }
    }

    #[tokio::test]
    async fn selectors_are_encoded_for_a_query() {
        let (api, _) = server(0, 0);
        let of = Listed {
            collection: "/api/v1/configmaps".into(),
            selector: "a/b in (x,y),!c=1".into(),
            only: None,
            metadata_only: false,
        };
        let path = api.pages(&of).path("").unwrap();
        assert_eq!(path, "/api/v1/configmaps?&labelSelector=a%2Fb+in+%28x%2Cy%29%2C%21c%3D1&limit=100");
    }
}
