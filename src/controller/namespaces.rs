//! Which namespaces have something to do with confrev, so that their sources are watched, and no others'.

use std::{collections::BTreeSet, sync::Arc};

use super::State;

impl State {
    /// The namespaces whose sources matter: those of opted-in workloads, of snapshots and of labelled sources.
    pub fn watched_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.namespace_holds.keys().cloned().collect()
    }

    /// A number that is another one after [`State::watched_namespaces`] has changed.
    pub(super) fn watched_namespace_generation(&self) -> usize {
        self.namespace_generation
    }

    /// Counts one more object for which a namespace's sources matter.
    pub(super) fn hold_namespace(&mut self, namespace: &Arc<str>) {
        let holds = self.namespace_holds.entry(Arc::clone(namespace)).or_insert(0);
        *holds += 1;
        if *holds == 1 {
            self.namespace_generation += 1;
        }
    }

    /// Takes back one [`State::hold_namespace`].
    pub(super) fn release_namespace(&mut self, namespace: &Arc<str>) {
        if let Some(holds) = self.namespace_holds.get_mut(namespace) {
            *holds -= 1;
            if *holds == 0 {
                self.namespace_holds.remove(namespace);
                self.namespace_generation += 1;
            }
        }
    }
}
