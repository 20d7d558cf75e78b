//! The contents that the installation refuses, as this replica knows them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use confrev_core::{
    resolve::RefusedContents,
    snapshot::{Digest, SourceKind},
};

/// The contents that the installation refuses. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct RefusedList(Arc<ArcSwap<RefusedContents>>);

impl RefusedList {
    /// The contents.
    pub fn contents(&self) -> Arc<RefusedContents> {
        self.0.load_full()
    }

    /// Why it refuses a content of such a source.
    pub(crate) fn why<'d>(
        &self,
        kind: SourceKind,
        digests: impl IntoIterator<Item = &'d Digest>,
    ) -> Option<String> {
        self.0.load().why(kind, digests)
    }

    /// Sets the contents. Returns those before.
    pub(crate) fn replace(&self, contents: RefusedContents) -> Arc<RefusedContents> {
        self.0.swap(Arc::new(contents))
    }
}
