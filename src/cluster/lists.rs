//! Lists that are read page by page.

use std::sync::Arc;

use serde_json::json;

use super::{
    ApiError, KubeApi, Precondition, WorkloadKey,
    api::{parse, workload_path},
    page::Page,
};
use crate::{kinds::WorkloadKind, names, snapshot::ObjectName};

/// Objects in one page of a list.
const PAGE: usize = 200;

impl KubeApi {
    pub(super) async fn unlabelled_of_kind(
        &self,
        index: usize,
        kind: &WorkloadKind,
        namespace: &str,
    ) -> Result<Vec<(WorkloadKey, Precondition)>, ApiError> {
        let namespace: Arc<str> = Arc::from(namespace);
        let mut found = Vec::new();
        let mut next = String::new();
        loop {
            let path = format!(
                "{}?labelSelector=%21{}&limit={PAGE}&continue={next}",
                workload_path(kind, &namespace, ""),
                names::ENABLED.replace('/', "%2F")
            );
            let bytes = match self.get(path.clone()).await {
                Err(error) if error.is_not_found() => return Ok(found),
                other => other?,
            };
            let page: Page = parse(&bytes, &path)?;
            found.extend(page.items.into_iter().filter(|item| !item.is_revision(kind)).map(|item| {
                let name = Arc::from(item.metadata.name.as_str());
                let key = WorkloadKey { kind: index, namespace: Arc::clone(&namespace), name };
                (key, item.unlabelled())
            }));
            if page.metadata.next.is_empty() {
                return Ok(found);
            }
            next = page.metadata.next;
        }
    }

    /// Whether an object of a collection names this one.
    pub(super) async fn is_named_in(
        &self,
        collection: &str,
        selector: &str,
        object: &ObjectName,
    ) -> Result<bool, ApiError> {
        // The name in quotes, anywhere: a chance hit only keeps what might have gone.
        let needle = json!(object.name).to_string();
        let escaped = json!(needle).to_string();
        let needles = [needle.as_str(), escaped.trim_matches('"')];
        let selector = selector.replace('/', "%2F");
        let mut next = String::new();
        loop {
            let path = format!("{collection}?labelSelector={selector}&limit={PAGE}&continue={next}");
            let bytes = self.get(path.clone()).await?;
            let text = String::from_utf8_lossy(&bytes);
            if needles.iter().any(|needle| text.contains(needle)) {
                return Ok(true);
            }
            let page: Page = parse(&bytes, &path)?;
            if page.metadata.next.is_empty() {
                return Ok(false);
            }
            next = page.metadata.next;
        }
    }
}
