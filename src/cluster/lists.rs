//! Lists that are read page by page.

use std::{ops::ControlFlow, sync::Arc};

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
    /// Looks at a collection page by page, until `look` says that it has seen enough.
    async fn pages(
        &self,
        collection: &str,
        selector: &str,
        mut look: impl FnMut(&[u8], &Page) -> ControlFlow<()> + Send,
    ) -> Result<(), ApiError> {
        let mut next = String::new();
        loop {
            let path = format!("{collection}?labelSelector={selector}&limit={PAGE}&continue={next}");
            let bytes = self.get(path.clone()).await?;
            let page: Page = parse(&bytes, &path)?;
            if look(&bytes, &page).is_break() || page.metadata.next.is_empty() {
                return Ok(());
            }
            next = page.metadata.next;
        }
    }

    /// The workloads of a kind that carry no `enabled` label. A kind that is not installed has none.
    pub(super) async fn unlabelled_of_kind(
        &self,
        index: usize,
        kind: &WorkloadKind,
        namespace: &str,
    ) -> Result<Vec<(WorkloadKey, Precondition)>, ApiError> {
        let collection = workload_path(kind, namespace, "");
        let selector = format!("%21{}", names::ENABLED.replace('/', "%2F"));
        let namespace: Arc<str> = Arc::from(namespace);
        let mut found = Vec::new();
        let all = self.pages(&collection, &selector, |_, page| {
            found.extend(page.items.iter().filter(|item| !item.is_revision(kind)).map(|item| {
                let name = Arc::from(item.metadata.name.as_str());
                let key = WorkloadKey { kind: index, namespace: Arc::clone(&namespace), name };
                (key, item.unlabelled())
            }));
            ControlFlow::Continue(())
        });
        match all.await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(found),
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
        let mut is_named = false;
        let all = self.pages(collection, &selector, |bytes, _| {
            let text = String::from_utf8_lossy(bytes);
            is_named = needles.iter().any(|needle| text.contains(needle));
            if is_named { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        all.await?;
        Ok(is_named)
    }
}
