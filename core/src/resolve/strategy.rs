//! The strategy that applies to a source.

use std::sync::Arc;

use crate::annotations;

/// The settings of a strategy: annotations with their values.
pub(super) type Settings = Vec<(&'static str, Box<str>)>;

/// The strategy that applies to a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Its name.
    pub name: Box<str>,
    /// `None`: the installation does not define it.
    pub(super) settings: Option<Arc<Settings>>,
}

impl Strategy {
    /// The value of a source's annotation, if the strategy sets it.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        value(self.settings.as_deref()?, key)
    }

    /// Whether the installation defines it.
    pub fn is_defined(&self) -> bool {
        self.settings.is_some()
    }

    /// Why the strategy cannot be followed; `None` if it can.
    pub(super) fn invalid(&self) -> Option<String> {
        let Self { name, settings } = self;
        settings.is_none().then(|| {
            format!(
                "annotation {}: the installation has no strategy {name:?} (chart value `strategies`)",
                annotations::STRATEGY
            )
        })
    }
}

/// The value of an annotation.
pub(super) fn value<'s>(settings: &'s Settings, key: &str) -> Option<&'s str> {
    settings.iter().find(|(known, _)| *known == key).map(|(_, value)| &**value)
}
