//! The changes of sources that have begun to move workloads, each counted once.

use std::{collections::HashMap, sync::Arc};

use crate::world::Name;

/// The changes that this replica has counted.
#[derive(Debug, Default)]
pub(crate) struct CountedChanges {
    /// The last snapshot of each source to which a workload moved.
    last: HashMap<Name, Arc<str>>,
    /// The strategies of the changes since the last [`take`](Self::take); empty for a change outside any.
    new: Vec<Box<str>>,
}

impl CountedChanges {
    /// A workload moved to a snapshot of the source.
    pub(crate) fn moved(&mut self, source: Name, snapshot: Arc<str>, strategy: Option<&str>) {
        let before = self.last.insert(source, Arc::clone(&snapshot));
        if before != Some(snapshot) {
            self.new.push(strategy.unwrap_or_default().into());
        }
    }

    /// Nothing uses the source any more.
    pub(crate) fn forget(&mut self, source: &Name) {
        self.last.remove(source);
    }

    /// The strategy of each change since the last call; empty for a change outside any.
    pub(crate) fn take(&mut self) -> Vec<Box<str>> {
        std::mem::take(&mut self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{ObjectName, SourceKind};

    #[test]
    fn change_of_many_workloads_counts_once() {
        let mut changes = CountedChanges::default();
        let source = |name: &str| Name::new(Arc::from("shop"), ObjectName::new(SourceKind::ConfigMap, name));
        for (name, snapshot, strategy) in [
            ("demo", "demo-1", Some("careful")),
            ("demo", "demo-1", Some("careful")),
            ("other", "other-1", None),
            ("demo", "demo-2", Some("steady")),
        ] {
            changes.moved(source(name), snapshot.into(), strategy);
        }
        assert_eq!(changes.take(), ["careful".into(), "".into(), Box::from("steady")]);
        changes.forget(&source("demo"));
        changes.moved(source("demo"), "demo-2".into(), None);
        assert_eq!((changes.take().len(), changes.take().len()), (1, 0));
    }
}
