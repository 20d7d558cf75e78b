//! Which namespaces have something to do with confrev, so that their sources are watched, and no others'.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use super::State;

/// The namespaces that confrev serves: all but some, or some alone.
#[derive(Clone, Debug, Default)]
pub struct Served {
    excluded: HashSet<String>,
    /// Empty: every namespace.
    only: BTreeSet<String>,
}

impl Served {
    /// All namespaces but these.
    pub fn but(excluded: impl IntoIterator<Item = String>) -> Self {
        Self { excluded: excluded.into_iter().collect(), only: BTreeSet::new() }
    }

    /// Of those, these alone; with an empty list, all of them.
    #[must_use]
    pub fn only(self, namespaces: impl IntoIterator<Item = String>) -> Self {
        Self { only: namespaces.into_iter().collect(), ..self }
    }

    /// Whether confrev serves a namespace: the webhooks are called for it, and the controller may write in it.
    pub fn contains(&self, namespace: &str) -> bool {
        !self.excluded.contains(namespace) && (self.only.is_empty() || self.only.contains(namespace))
    }

    /// The namespaces that are served alone; empty where all but some are.
    pub(super) fn listed(&self) -> impl Iterator<Item = &str> {
        self.only.iter().map(String::as_str)
    }
}

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
                self.forget_limits(namespace);
                self.namespace_generation += 1;
            }
        }
    }
}
