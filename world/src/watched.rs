//! The namespaces whose sources are watched.

use std::{collections::HashMap, sync::Arc};

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
    pub(crate) fn remove(&mut self, namespace: &Arc<str>) -> bool {
        let Some(objects) = self.objects.get_mut(namespace) else { return false };
        *objects -= 1;
        let is_last = *objects == 0;
        if is_last {
            self.objects.remove(namespace);
            self.generation += 1;
        }
        is_last
    }

    /// Whether the sources of a namespace are watched.
    pub(crate) fn contains(&self, namespace: &str) -> bool {
        self.objects.contains_key(namespace)
    }

    /// Records another change of the set of namespaces to watch.
    pub(crate) fn bump(&mut self) {
        self.generation += 1;
    }

    /// The namespaces.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.objects.keys()
    }

    /// A number that changes with the set of namespaces to watch.
    pub(crate) fn generation(&self) -> usize {
        self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_has_a_new_number() {
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        let mut watched = WatchedNamespaces::default();
        let mut numbers = vec![watched.generation()];
        let mut next = |watched: &WatchedNamespaces| {
            assert!(!numbers.contains(&watched.generation()), "{numbers:?} {}", watched.generation());
            numbers.push(watched.generation());
        };
        watched.add(&a);
        next(&watched);
        watched.add(&b);
        next(&watched);
        let before = watched.generation();
        watched.add(&b);
        assert!(!watched.remove(&b), "one object is left");
        assert_eq!(watched.generation(), before, "the same namespaces");
        assert!(watched.remove(&b));
        next(&watched);
        assert!(!watched.contains("b") && watched.contains("a"));
        assert!(!watched.remove(&b), "it is gone");
        watched.bump();
        next(&watched);
        assert_eq!(watched.names().collect::<Vec<_>>(), [&a]);
    }
}
