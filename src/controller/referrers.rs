//! Rollouts that use the template of another workload (`workloadRef`). The health of such a Rollout counts as the
//! workload's.
//!
//! Only `max-in-flight` depends on them. So a namespace's Rollouts are watched, opted in or not, if a source there has that
//! annotation.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use super::{Name, State};
use crate::{
    cluster::WorkloadKey,
    compact::CompactSet,
    kinds::WorkloadKind,
    resolve::{Health, Record, Referrer, may_lend_template},
};

/// The Rollouts of all namespaces in which a source has `max-in-flight`.
#[derive(Debug, Default)]
pub(super) struct Referrers {
    /// The sources with `max-in-flight`, used or not.
    limited: HashSet<Name>,
    namespaces: HashMap<Arc<str>, InNamespace>,
}

/// The Rollouts of one namespace.
#[derive(Debug, Default)]
struct InNamespace {
    /// Whether all Rollouts are known.
    is_listed: bool,
    /// By the Rollout's name.
    rollouts: HashMap<Arc<str>, Referrer>,
    /// The Rollouts by the name of the workload whose template they use.
    by_target: HashMap<Arc<str>, CompactSet<Arc<str>>>,
}

impl InNamespace {
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

impl State {
    /// Records whether a source has `max-in-flight`.
    pub(super) fn set_limited(&mut self, source: &Name, limited: bool) {
        let namespace = &source.namespace;
        let referrers = &mut self.referrers;
        let changed =
            if limited { referrers.limited.insert(source.clone()) } else { referrers.limited.remove(source) };
        if !changed {
            return;
        }
        let is_limited = referrers.limited.iter().any(|limited| limited.namespace == *namespace);
        if is_limited != referrers.namespaces.contains_key(namespace) {
            if is_limited {
                referrers.namespaces.insert(Arc::clone(namespace), InNamespace::default());
            } else {
                referrers.namespaces.remove(namespace);
            }
            self.namespace_generation += 1;
        }
    }

    /// Forgets a namespace that no longer matters.
    pub(super) fn forget_limits(&mut self, namespace: &str) {
        self.referrers.limited.retain(|source| *source.namespace != *namespace);
        self.referrers.namespaces.remove(namespace);
    }

    /// The sources with `max-in-flight` in a namespace.
    pub(super) fn limited_in(&self, namespace: &str) -> impl Iterator<Item = &Name> {
        self.referrers.limited.iter().filter(move |source| *source.namespace == *namespace)
    }

    /// The namespaces whose Rollouts are watched.
    pub fn limited_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.referrers.namespaces.keys().cloned().collect()
    }

    /// Applies a Rollout as it is now; `None` if it is deleted, or has its own template.
    pub(super) fn apply_referrer(&mut self, namespace: &str, rollout: &Arc<str>, referrer: Option<Referrer>) {
        // A watch that was just stopped may deliver one more event.
        if let Some(known) = self.referrers.namespaces.get_mut(namespace) {
            known.set(rollout, referrer);
        }
    }

    /// Records that all Rollouts of the namespace are known.
    pub fn set_referrers_listed(&mut self, namespace: &str) {
        if let Some(known) = self.referrers.namespaces.get_mut(namespace) {
            known.is_listed = true;
        }
    }

    /// The names of the known Rollouts that use the template of another workload.
    pub(super) fn referrers_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<str>> {
        self.referrers.namespaces.get(namespace).into_iter().flat_map(|known| known.rollouts.keys())
    }

    /// The worst health of the Rollouts that use a workload's template, for this generation of the workload; `None` if they
    /// are not known.
    pub fn referrers_health(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        name: &str,
        generation: Option<i64>,
    ) -> Option<Health> {
        if !may_lend_template(&kind.kind) {
            return Some(Health::Settled);
        }
        let known = self.referrers.namespaces.get(namespace).filter(|known| known.is_listed)?;
        Some(known.of(kind, name).map(|rollout| rollout.health(generation)).max().unwrap_or_default())
    }

    /// A workload's health: the worst of its own and of the Rollouts that use its template. While the Rollouts are not
    /// known, the workload counts as unobserved.
    pub(super) fn health(&self, key: &WorkloadKey, record: &Record) -> Health {
        let Some(kind) = self.kinds.iter().nth(key.kind) else { return record.health };
        let referrers = self.referrers_health(kind, &key.namespace, &key.name, record.generation);
        record.health.max(referrers.unwrap_or(Health::Unobserved))
    }
}
