//! Lists that are read page by page.

use std::{ops::ControlFlow, sync::Arc};

use serde::{Deserialize, de::DeserializeSeed as _};
use serde_json::value::RawValue;

use super::{
    ApiError, KubeApi, Precondition, WorkloadKey,
    api::{parse, workload_path},
    page::Page,
};
use crate::{json::At, kinds::WorkloadKind, names, snapshot::ObjectName, template::Template};

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

    /// Whether the template at that path of an object of a collection refers to this one.
    pub(super) async fn is_named_in<P: AsRef<str> + Sync>(
        &self,
        collection: &str,
        selector: &str,
        template: &[P],
        object: &ObjectName,
    ) -> Result<bool, ApiError> {
        let selector = selector.replace('/', "%2F");
        let mut is_named = false;
        let all = self.pages(collection, &selector, |bytes, _| {
            is_named = refers(bytes, template, object);
            if is_named { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        all.await?;
        Ok(is_named)
    }
}

/// Whether a template in a page refers to this object. Nearly no page has as much as its name; one that has it elsewhere, as
/// in what is left of an annotation, must not keep it for as long as that stands there.
fn refers<P: AsRef<str>>(page: &[u8], path: &[P], object: &ObjectName) -> bool {
    #[derive(Deserialize)]
    struct Items<'p> {
        #[serde(borrow, default)]
        items: Vec<&'p RawValue>,
    }
    if !String::from_utf8_lossy(page).contains(&*object.name) {
        return false;
    }
    let refers = |item: &&RawValue| {
        let mut item = serde_json::Deserializer::from_str(item.get());
        match At::<_, Template<'_>>::new(path).deserialize(&mut item) {
            Ok(template) => template.is_some_and(|template| {
                let mut all = template.references().into_iter();
                all.any(|reference| reference.kind == object.kind && *reference.name == *object.name)
            }),
            // What cannot be read may refer to anything.
            Err(_) => true,
        }
    };
    serde_json::from_slice::<Items<'_>>(page).is_ok_and(|page| page.items.iter().any(refers))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::snapshot::SourceKind;

    #[test]
    fn a_page_refers_to_what_a_template_in_it_refers_to_and_not_to_what_it_merely_mentions() {
        let volume = |name: &str| json!({"spec": {"volumes": [{"configMap": {"name": name}}]}});
        let mentioned =
            json!({"metadata": {"annotations": {"confrev.dev/sources": "{\"demo\":\"s-1\"}", "s-1": "s-1"}}});
        let of = |template: Value| json!({"spec": {"template": template}});
        let deep = |template: Value| json!({"data": {"spec": {"template": template}}});
        let [short, long] = [&["spec", "template"][..], &["data", "spec", "template"]];
        for (items, path, is_named) in [
            (json!([]), short, false),
            (json!([of(volume("s-1"))]), short, true),
            (json!([of(volume("s-12")), of(mentioned.clone()), of(json!(null)), {}]), short, false),
            (json!([of(volume("s-2")), of(mentioned), of(volume("s-1"))]), short, true),
            (json!([of(json!({"spec": {"volumes": [{"secret": {"secretName": "s-1"}}]}}))]), short, false),
            (json!([deep(volume("s-1"))]), long, true),
            (json!([deep(volume("s-1"))]), short, false),
            (json!([of(json!({"spec": {"volumes": "s-1"}}))]), short, true),
        ] {
            let page = json!({"kind": "List", "metadata": {}, "items": items}).to_string();
            let object = ObjectName::new(SourceKind::ConfigMap, "s-1");
            assert_eq!(refers(page.as_bytes(), path, &object), is_named, "{page}");
        }
    }
}
