//! The namespaces that confrev works in: sources are watched in these only.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use crate::controller::State;

/// The namespaces that confrev serves: all but some, or only some.
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

    /// Restricts them to these; an empty list restricts nothing.
    #[must_use]
    pub fn only(self, namespaces: impl IntoIterator<Item = String>) -> Self {
        Self { only: namespaces.into_iter().collect(), ..self }
    }

    /// Whether confrev serves a namespace: the webhooks are called for it, and the controller may write in it.
    pub fn contains(&self, namespace: &str) -> bool {
        !self.excluded.contains(namespace) && (self.only.is_empty() || self.only.contains(namespace))
    }

    /// The namespaces, if only some are served; empty if all but some are served.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &str> {
        self.only.iter().map(String::as_str)
    }
}

impl State {
    /// The namespaces whose sources are watched: those with opted-in workloads, snapshots or labelled sources.
    pub fn watched_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.namespace_holds.keys().cloned().collect()
    }

    /// A number that changes with [`State::watched_namespaces`] and with [`State::limited_namespaces`].
    pub(crate) fn watched_namespace_generation(&self) -> usize {
        self.namespace_generation
    }

    /// Counts one more object that requires a watch of the namespace's sources.
    pub(crate) fn hold_namespace(&mut self, namespace: &Arc<str>) {
        let holds = self.namespace_holds.entry(Arc::clone(namespace)).or_insert(0);
        *holds += 1;
        if *holds == 1 {
            self.namespace_generation += 1;
        }
    }

    /// Reverts one [`State::hold_namespace`].
    pub(crate) fn release_namespace(&mut self, namespace: &Arc<str>) {
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
