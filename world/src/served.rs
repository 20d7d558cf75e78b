//! The namespaces that confrev serves.

use std::collections::{BTreeSet, HashSet};

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
    pub fn listed(&self) -> impl Iterator<Item = &str> {
        self.only.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_namespaces_exclude_all_others() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (excluded, only, served) in [
            (&[][..], &[][..], [true, true]),
            (&["a"], &[], [false, true]),
            (&[], &["a"], [true, false]),
            (&["a"], &["a", "b"], [false, true]),
        ] {
            let namespaces = Served::but(names(excluded)).only(names(only));
            assert_eq!(
                ["a", "b"].map(|name| namespaces.contains(name)),
                served,
                "not {excluded:?}, only {only:?}"
            );
            assert_eq!(namespaces.listed().collect::<Vec<_>>(), only);
        }
    }
}
