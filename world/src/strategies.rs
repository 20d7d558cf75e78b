//! The strategies that apply to sources: what the installation defines, and what each namespace chooses.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use confrev_core::resolve::{Observed, Strategies, Strategy};

/// The strategies of the installation, with the choices of namespaces. Clones share the choices.
#[derive(Clone, Debug, Default)]
pub struct ChosenStrategies {
    strategies: Arc<Strategies>,
    /// The annotation `strategy` of each namespace that has one.
    of_namespaces: Arc<RwLock<HashMap<Arc<str>, Box<str>>>>,
}

impl ChosenStrategies {
    /// These strategies, of which no namespace has chosen one yet.
    pub fn new(strategies: Strategies) -> Self {
        Self { strategies: Arc::new(strategies), ..Self::default() }
    }

    /// Records the choice of a namespace. Returns whether it is another one than before.
    pub fn choose(&self, namespace: &Arc<str>, strategy: Option<&str>) -> bool {
        let mut choices = self.of_namespaces.write().unwrap_or_else(PoisonError::into_inner);
        let before = match strategy {
            Some(strategy) => choices.insert(Arc::clone(namespace), strategy.into()),
            None => choices.remove(namespace),
        };
        before.as_deref() != strategy
    }

    /// The strategy of a source in this namespace; `own` is its annotation.
    pub fn of(&self, namespace: &str, own: Option<&str>) -> Option<Strategy> {
        self.with_choice(namespace, |choice| self.strategies.of(own, choice))
    }

    /// A source of this namespace, under the strategy that applies to it.
    pub fn apply(&self, namespace: &str, source: Observed) -> Observed {
        self.with_choice(namespace, |choice| source.under(&self.strategies, choice))
    }

    fn with_choice<T>(&self, namespace: &str, use_it: impl FnOnce(Option<&str>) -> T) -> T {
        let choices = self.of_namespaces.read().unwrap_or_else(PoisonError::into_inner);
        use_it(choices.get(namespace).map(|choice| &**choice))
    }
}
