//! The namespaces that confrev works in: sources are watched in these only.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use super::{Index, change::Change, referrers::Referrers};
use crate::controller::name::Name;

/// The namespaces with workloads, snapshots or labelled sources.
#[derive(Debug, Default)]
pub(crate) struct WatchedNamespaces {
    /// How many of these objects each namespace has.
    objects: HashMap<Arc<str>, usize>,
    /// Changes with the set of watched namespaces.
    generation: usize,
}

impl WatchedNamespaces {
    /// Counts one more object that requires a watch of the namespace's sources.
    pub(crate) fn add(&mut self, namespace: &Arc<str>) {
        let objects = self.objects.entry(Arc::clone(namespace)).or_insert(0);
        *objects += 1;
        if *objects == 1 {
            self.generation += 1;
        }
    }

    /// Counts one object less. Returns whether it was the last one.
    fn remove(&mut self, namespace: &Arc<str>) -> bool {
        let Some(objects) = self.objects.get_mut(namespace) else { return false };
        *objects -= 1;
        let is_last = *objects == 0;
        if is_last {
            self.objects.remove(namespace);
            self.generation += 1;
        }
        is_last
    }
}

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

impl Index {
    /// Applies whether a namespace is labelled to opt its workloads in.
    pub(crate) fn apply_namespace(&mut self, namespace: &Arc<str>, enabled: bool, changes: &mut Vec<Change>) {
        let enabled = enabled && self.settings.served.contains(namespace);
        let known = self.opted_in.get_or_insert_default();
        if enabled {
            if known.insert(Arc::clone(namespace)) {
                changes.push(Change::OptedIn(Arc::clone(namespace)));
            }
        } else if known.remove(namespace) {
            changes.push(Change::OptedOut(Arc::clone(namespace)));
        }
    }

    /// The namespaces that opt their workloads in.
    pub(crate) fn opted_in(&self) -> impl Iterator<Item = &Arc<str>> {
        self.opted_in.iter().flatten()
    }

    /// Whether a namespace opts its workloads in.
    pub(crate) fn opts_in(&self, namespace: &str) -> bool {
        self.opted_in.as_ref().is_some_and(|known| known.contains(namespace))
    }

    /// The namespaces whose sources are watched: those with opted-in workloads, snapshots or labelled sources.
    pub(crate) fn watched_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.watched.objects.keys().cloned().collect()
    }

    /// A number that changes with [`Index::watched_namespaces`] and with [`Index::limited_namespaces`].
    pub(crate) fn watched_generation(&self) -> usize {
        self.watched.generation
    }

    /// Counts one object less that requires a watch of the namespace's sources.
    pub(crate) fn unwatch_namespace(&mut self, namespace: &Arc<str>) {
        if self.watched.remove(namespace) {
            self.referrers.forget_namespace(namespace);
        }
    }

    /// The namespaces whose Rollouts are watched.
    pub(crate) fn limited_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.referrers.namespaces().cloned().collect()
    }

    /// Records whether a source has `max-in-flight`.
    pub(crate) fn set_limited(&mut self, source: &Name, limited: bool) {
        if self.referrers.set_limited(source, limited) {
            self.watched.generation += 1;
        }
    }

    /// The Rollouts that use the template of another workload.
    pub(crate) fn referrers(&self) -> &Referrers {
        &self.referrers
    }

    /// The Rollouts that use the template of another workload, for a watch of them.
    pub(crate) fn referrers_mut(&mut self) -> &mut Referrers {
        &mut self.referrers
    }
}
