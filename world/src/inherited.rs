//! What sources and workloads inherit: from the installation, and from their namespaces.

use std::{collections::HashMap, sync::Arc};

use confrev_core::{
    annotations,
    resolve::{Defaults, Observed, SpreadPolicy, Strategies, Workload},
};
use parking_lot::RwLock;

/// What a namespace gives to its objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceChoice {
    /// The annotation `strategy`.
    pub strategy: Option<Box<str>>,
    /// The annotations that are inherited.
    pub defaults: Defaults,
}

impl NamespaceChoice {
    /// Reads the annotations of a Namespace.
    pub fn read<'n>(annotation: impl Fn(&str) -> Option<&'n str>) -> Self {
        let strategy = annotation(annotations::STRATEGY).map(|name| annotations::bounded(name).into());
        Self { strategy, defaults: Defaults::of_namespace(annotation) }
    }
}

/// What the installation and each namespace give to their objects. Clones share the choices of namespaces.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    strategies: Arc<Strategies>,
    defaults: Defaults,
    /// The namespaces that choose anything. The choice of the installation is part of each.
    of_namespaces: Arc<RwLock<HashMap<Arc<str>, NamespaceChoice>>>,
}

impl Inherited {
    /// What the installation gives. No namespace has chosen anything yet.
    pub fn new(strategies: Strategies, defaults: Defaults) -> Self {
        Self { strategies: Arc::new(strategies), defaults, ..Self::default() }
    }

    /// Records what a namespace chooses.
    pub fn choose(&self, namespace: &Arc<str>, choice: NamespaceChoice) {
        let mut choices = self.of_namespaces.write();
        if choice == NamespaceChoice::default() {
            choices.remove(namespace);
        } else {
            let defaults = choice.defaults.under(&self.defaults);
            choices.insert(Arc::clone(namespace), NamespaceChoice { defaults, ..choice });
        }
    }

    /// A workload under what it inherits in this namespace.
    pub fn workload<'w>(&self, namespace: &str, workload: Workload<'w>) -> Workload<'w> {
        self.given(namespace, |_, defaults| workload.under(defaults.clone()))
    }

    /// A source of this namespace, under the strategy that applies to it and what it inherits.
    pub fn source(&self, namespace: &str, source: Observed) -> Observed {
        self.given(namespace, |strategy, defaults| source.under(&self.strategies, strategy, defaults.clone()))
    }

    /// The settings for the changes of a source in this namespace that has these annotations.
    pub fn policy<'a>(&self, namespace: &str, annotation: impl Fn(&str) -> Option<&'a str>) -> SpreadPolicy {
        self.given(namespace, |strategy, defaults| {
            let strategy = self.strategies.of(annotation(annotations::STRATEGY), strategy);
            SpreadPolicy::under(strategy.as_ref(), defaults, |key| annotation(key))
        })
    }

    /// Uses the strategy that a namespace chooses, and what its objects inherit.
    fn given<T>(&self, namespace: &str, use_it: impl FnOnce(Option<&str>, &Defaults) -> T) -> T {
        let choices = self.of_namespaces.read();
        match choices.get(namespace) {
            Some(choice) => use_it(choice.strategy.as_deref(), &choice.defaults),
            None => use_it(None, &self.defaults),
        }
    }
}
