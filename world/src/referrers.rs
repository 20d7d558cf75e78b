//! Rollouts that use the template of another workload (`workloadRef`). The health of such a Rollout counts as the
//! workload's.
//!
//! Only changes that are limited (`max-in-flight`, waves, `on-failure: revert`) or reported depend on them. So a
//! namespace's Rollouts are watched, opted in or not, if a source there limits or reports its change, or a source of another
//! namespace of its group may.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use confrev_core::{
    compact::CompactSet,
    kinds::WorkloadKind,
    resolve::{Health, Referrer, may_lend_template},
};

use crate::name::Name;

/// The Rollouts of all namespaces in which a change is limited.
#[derive(Debug, Default)]
pub struct Referrers {
    /// The sources whose changes are limited, used or not.
    limited: HashSet<Name>,
    /// The namespaces that are in a group.
    grouped: HashSet<Arc<str>>,
    namespaces: HashMap<Arc<str>, NamespaceRollouts>,
    /// How many watches were needed so far.
    watches: usize,
}

/// The Rollouts of one namespace.
#[derive(Debug, Default)]
struct NamespaceRollouts {
    /// The number of the watch that reports them.
    watch: usize,
    /// Whether all Rollouts are known.
    is_listed: bool,
    /// By the Rollout's name.
    rollouts: HashMap<Arc<str>, Referrer>,
    /// The Rollouts by the name of the workload whose template they use.
    by_target: HashMap<Arc<str>, CompactSet<Arc<str>>>,
}

impl NamespaceRollouts {
    fn set(&mut self, rollout: &Arc<str>, referrer: Option<Referrer>) {
        let old = match &referrer {
            Some(new) => self.rollouts.insert(Arc::clone(rollout), new.clone()),
            None => self.rollouts.remove(rollout),
        };
        if let Some(old) = old
            && let Some(known) = self.by_target.get_mut(old.target_name())
        {
            known.remove(rollout);
            if known.is_empty() {
                self.by_target.remove(old.target_name());
            }
        }
        if let Some(new) = referrer {
            self.by_target.entry(new.target_name().into()).or_default().insert(Arc::clone(rollout));
        }
    }

    fn of<'r>(&'r self, kind: &'r WorkloadKind, name: &str) -> impl Iterator<Item = &'r Referrer> {
        let rollouts = self.by_target.get_key_value(name).into_iter();
        rollouts.flat_map(move |(name, rollouts)| {
            let rollouts = rollouts.iter().filter_map(|rollout| self.rollouts.get(rollout));
            rollouts.filter(move |rollout| rollout.refers_to(kind, name))
        })
    }
}

impl Referrers {
    /// Records whether the change of a source is limited. Returns whether the set of watched namespaces changed.
    pub fn set_limited(&mut self, source: &Name, limited: bool) -> bool {
        let changed = if limited { self.limited.insert(source.clone()) } else { self.limited.remove(source) };
        changed && self.update(&source.namespace)
    }

    /// Records whether a namespace is in a group. Returns whether the set of watched namespaces changed.
    pub fn set_grouped(&mut self, namespace: &Arc<str>, is_grouped: bool) -> bool {
        let changed = if is_grouped {
            self.grouped.insert(Arc::clone(namespace))
        } else {
            self.grouped.remove(namespace)
        };
        changed && self.update(namespace)
    }

    /// Begins or ends to know the Rollouts of a namespace. Returns whether either happened.
    fn update(&mut self, namespace: &Arc<str>) -> bool {
        let is_needed = self.grouped.contains(namespace) || self.limited_in(namespace).next().is_some();
        if is_needed == self.namespaces.contains_key(namespace) {
            return false;
        }
        if is_needed {
            self.watches += 1;
            let rollouts = NamespaceRollouts { watch: self.watches, ..NamespaceRollouts::default() };
            self.namespaces.insert(Arc::clone(namespace), rollouts);
        } else {
            self.namespaces.remove(namespace);
        }
        true
    }

    /// Forgets a namespace that no longer matters.
    pub fn forget_namespace(&mut self, namespace: &str) {
        self.limited.retain(|source| *source.namespace != *namespace);
        self.grouped.remove(namespace);
        self.namespaces.remove(namespace);
    }

    /// The sources of a namespace whose changes are limited.
    pub fn limited_in(&self, namespace: &str) -> impl Iterator<Item = &Name> {
        self.limited.iter().filter(move |source| *source.namespace == *namespace)
    }

    /// The namespaces whose Rollouts are watched, each with the number of its watch. A namespace that was forgotten, and
    /// matters again, needs a new watch: the previous one does not list its Rollouts again.
    pub fn namespaces(&self) -> impl Iterator<Item = (&Arc<str>, usize)> {
        self.namespaces.iter().map(|(namespace, known)| (namespace, known.watch))
    }

    /// Applies a Rollout as it is now; `None` if it is deleted, or has its own template.
    pub fn apply(&mut self, namespace: &str, rollout: &Arc<str>, referrer: Option<Referrer>) {
        // A watch that was just stopped may deliver one more event.
        if let Some(known) = self.namespaces.get_mut(namespace) {
            known.set(rollout, referrer);
        }
    }

    /// Records that all Rollouts of the namespace are known. Returns whether they were not before.
    pub fn set_listed(&mut self, namespace: &str) -> bool {
        let known = self.namespaces.get_mut(namespace);
        known.is_some_and(|known| !std::mem::replace(&mut known.is_listed, true))
    }

    /// Whether all Rollouts of the namespace are known.
    pub fn is_listed(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|known| known.is_listed)
    }

    /// The names of the known Rollouts that use the template of another workload.
    pub fn names_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<str>> {
        self.namespaces.get(namespace).into_iter().flat_map(|known| known.rollouts.keys())
    }

    /// The worst health of the Rollouts that use a workload's template, for this generation of the workload: idle if there are
    /// none; `None` if they are not known.
    pub fn health(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        name: &str,
        generation: Option<i64>,
    ) -> Option<Health> {
        if !may_lend_template(&kind.kind) {
            return Some(Health::Idle);
        }
        let known = self.namespaces.get(namespace).filter(|known| known.is_listed)?;
        Some(known.of(kind, name).map(|rollout| rollout.health(generation)).max().unwrap_or(Health::Idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::source;

    #[test]
    fn forgotten_namespace_leaves_others_watched() {
        let other = Name::new("other", source("a").object);
        let mut referrers = Referrers::default();
        assert!(referrers.set_limited(&source("a"), true) && referrers.set_limited(&other, true));
        assert!(!referrers.set_limited(&source("b"), true), "its namespace is watched already");
        referrers.forget_namespace("ns");
        let limited = |namespace: &str| referrers.limited_in(namespace).count();
        assert_eq!(["ns", "other"].map(limited), [0, 1]);
        assert_eq!(referrers.namespaces().map(|(namespace, _)| &**namespace).collect::<Vec<_>>(), ["other"]);
        assert!(referrers.set_limited(&source("a"), true), "it is watched again");
    }
}
