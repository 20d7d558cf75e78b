//! The namespaces that opt in, and those that confrev works in: sources are watched in these only.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use confrev_core::{gate_settings::Texts, resolve::NamespaceOptIn};

use crate::{change::WorldChange, name::Name, referrers::Referrers, world::World};

impl World {
    /// Applies what the label of a namespace says about its workloads.
    pub fn apply_namespace(
        &mut self,
        namespace: &Arc<str>,
        opt_in: NamespaceOptIn,
        changes: &mut Vec<WorldChange>,
    ) {
        let opt_in = if self.config.served.contains(namespace) { opt_in } else { NamespaceOptIn::Out };
        let known = self.opting_in.get_or_insert_default();
        let before = if opt_in.is_in() {
            known.insert(Arc::clone(namespace), opt_in)
        } else {
            known.remove(namespace)
        };
        let before = before.unwrap_or_default();
        if opt_in != before {
            changes.push(WorldChange::Namespace(Arc::clone(namespace)));
        }
    }

    /// The settings of a namespace that are gates.
    pub fn gates_of(&self, namespace: &str) -> Option<&Texts> {
        Some(&self.groups().settings(namespace)?.gates)
    }

    /// The namespaces whose label opts workloads in, now or later.
    pub fn opting_in(&self) -> impl Iterator<Item = &Arc<str>> {
        self.opting_in.iter().flatten().map(|(namespace, _)| namespace)
    }

    /// What the label of a namespace says about its workloads.
    pub fn opt_in_of(&self, namespace: &str) -> NamespaceOptIn {
        self.opting_in.as_ref().and_then(|known| known.get(namespace)).copied().unwrap_or_default()
    }

    /// The namespaces whose sources are watched: those with opted-in workloads, snapshots or labelled sources.
    pub fn watched_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.watched.names().cloned().collect()
    }

    /// A number that changes with [`World::watched_namespaces`] and with [`World::limited_namespaces`].
    pub fn watched_generation(&self) -> usize {
        self.watched.generation()
    }

    /// Counts one more object that requires a watch of the namespace's sources.
    pub(crate) fn watch_namespace(&mut self, namespace: &Arc<str>) {
        self.watched.add(namespace);
        self.update_grouped(namespace);
    }

    /// Watches the Rollouts of a namespace of a group: a source of another member may limit the changes of its workloads.
    pub(crate) fn update_grouped(&mut self, namespace: &Arc<str>) {
        let is_grouped = self.watched.contains(namespace) && self.groups.group(namespace).is_some();
        if self.referrers.set_grouped(namespace, is_grouped) {
            self.watched.bump();
        }
    }

    /// Counts one object less that requires a watch of the namespace's sources.
    pub fn unwatch_namespace(&mut self, namespace: &Arc<str>) {
        if self.watched.remove(namespace) {
            self.referrers.forget_namespace(namespace);
        }
    }

    /// The namespaces whose Rollouts are watched, each with the number of its watch.
    pub fn limited_namespaces(&self) -> BTreeMap<Arc<str>, usize> {
        self.referrers.namespaces().map(|(namespace, watch)| (Arc::clone(namespace), watch)).collect()
    }

    /// Records whether the change of a source depends on Rollouts: it is limited, or its state is reported.
    pub fn set_limited(&mut self, source: &Name, limited: bool) {
        // A watch that was just stopped may deliver one more event, which must not start a watch of Rollouts.
        let limited = limited && self.watched.contains(&source.namespace);
        if self.referrers.set_limited(source, limited) {
            self.watched.bump();
        }
    }

    /// The Rollouts that use the template of another workload.
    pub fn referrers(&self) -> &Referrers {
        &self.referrers
    }

    /// The Rollouts that use the template of another workload, for a watch of them.
    pub fn referrers_mut(&mut self) -> &mut Referrers {
        &mut self.referrers
    }
}
