//! Groups of namespaces. The label `group` of a Namespace decides, so only administrators form groups.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::records::NamespaceSettings;

/// The settings of namespaces, and their groups.
#[derive(Debug, Default)]
pub struct Groups {
    /// Namespaces without settings are left out.
    settings: HashMap<Arc<str>, NamespaceSettings>,
    /// The namespaces of each group.
    members: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
}

impl Groups {
    /// The settings of a namespace.
    pub fn settings(&self, namespace: &str) -> Option<&NamespaceSettings> {
        self.settings.get(namespace)
    }

    /// The annotation `order` of a namespace, if it is valid.
    pub fn order(&self, namespace: &str) -> Option<i32> {
        self.settings(namespace)?.order.as_ref()?.as_ref().ok().copied()
    }

    /// Why the annotation `order` of a namespace cannot be followed; `None` if it can.
    pub fn invalid_order(&self, namespace: &str) -> Option<&str> {
        self.settings(namespace)?.order.as_ref()?.as_ref().err().map(|why| &**why)
    }

    /// The number of groups.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// The group of a namespace.
    pub(super) fn group(&self, namespace: &str) -> Option<&Arc<str>> {
        self.settings.get(namespace)?.group.as_ref()
    }

    /// The other namespaces of the group of a namespace.
    pub(super) fn others<'g>(&'g self, namespace: &'g str) -> impl Iterator<Item = &'g Arc<str>> {
        let members = self.group(namespace).and_then(|group| self.members.get(group));
        members.into_iter().flatten().filter(move |member| ***member != *namespace)
    }

    /// Whether a failure in another namespace of the group refuses content in this namespace too. The label of this namespace
    /// decides: no other namespace can make it give up content that it runs.
    pub fn reverts_with_group(&self, namespace: &str) -> bool {
        self.settings(namespace).is_some_and(|settings| settings.group_revert)
    }

    /// Replaces the settings of a namespace. Returns the previous ones.
    pub(super) fn set(&mut self, namespace: &Arc<str>, new: NamespaceSettings) -> NamespaceSettings {
        if let Some(group) = &new.group {
            self.members.entry(Arc::clone(group)).or_default().insert(Arc::clone(namespace));
        }
        let is_default = new == NamespaceSettings::default();
        let (group, old) = (new.group.clone(), self.settings.remove(namespace).unwrap_or_default());
        if !is_default {
            self.settings.insert(Arc::clone(namespace), new);
        }
        if let Some(left) = old.group.as_ref().filter(|left| Some(*left) != group.as_ref())
            && let Some(members) = self.members.get_mut(left)
        {
            members.remove(namespace);
            if members.is_empty() {
                self.members.remove(left);
            }
        }
        old
    }
}
