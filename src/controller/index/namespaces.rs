//! The namespaces that opt in, and those that confrev works in: sources are watched in these only.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Index, change::IndexChange, referrers::Referrers};
use crate::{controller::name::Name, gate_settings::Texts};

impl Index {
    /// Applies whether a namespace is labelled to opt its workloads in.
    pub(crate) fn apply_namespace(
        &mut self,
        namespace: &Arc<str>,
        enabled: bool,
        changes: &mut Vec<IndexChange>,
    ) {
        let enabled = enabled && self.config.served.contains(namespace);
        let known = self.opted_in.get_or_insert_default();
        if enabled {
            if known.insert(Arc::clone(namespace)) {
                changes.push(IndexChange::OptedIn(Arc::clone(namespace)));
            }
        } else if known.remove(namespace) {
            changes.push(IndexChange::OptedOut(Arc::clone(namespace)));
        }
    }

    /// The settings of a namespace that are gates.
    pub(crate) fn gates_of(&self, namespace: &str) -> Option<&Texts> {
        Some(&self.groups().settings(namespace)?.gates)
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
        self.watched.names().cloned().collect()
    }

    /// A number that changes with [`Index::watched_namespaces`] and with [`Index::limited_namespaces`].
    pub(crate) fn watched_generation(&self) -> usize {
        self.watched.generation()
    }

    /// Counts one object less that requires a watch of the namespace's sources.
    pub(crate) fn unwatch_namespace(&mut self, namespace: &Arc<str>) {
        if self.watched.remove(namespace) {
            self.referrers.forget_namespace(namespace);
        }
    }

    /// The namespaces whose Rollouts are watched, each with the number of its watch.
    pub(crate) fn limited_namespaces(&self) -> BTreeMap<Arc<str>, usize> {
        self.referrers.namespaces().map(|(namespace, watch)| (Arc::clone(namespace), watch)).collect()
    }

    /// Records whether a source has `max-in-flight`.
    pub(crate) fn set_limited(&mut self, source: &Name, limited: bool) {
        // A watch that was just stopped may deliver one more event, which must not start a watch of Rollouts.
        let limited = limited && self.watched.contains(&source.namespace);
        if self.referrers.set_limited(source, limited) {
            self.watched.bump();
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
