//! The recorded scenarios. Each is a series of actions of users and the cluster, with the checks at each rest.

mod findings;
mod groups;
mod kinds;
mod owners;
mod sources;
mod stories;

use super::play::Play;

/// One scenario.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub name: &'static str,
    pub act: fn(&Play<'_>),
    /// Whether the number of rolls depends on timing. The final state does not.
    pub loose: bool,
    /// Whether the scenario loses a snapshot permanently.
    pub loses: bool,
    /// Whether a content exists for a moment only in one replica's memory, and is lost with that replica.
    pub remembered: bool,
}

impl Scenario {
    const fn new(name: &'static str, act: fn(&Play<'_>)) -> Self {
        Self { name, act, loose: false, loses: false, remembered: false }
    }

    const fn loose(self) -> Self {
        Self { loose: true, ..self }
    }

    const fn remembered(self) -> Self {
        Self { remembered: true, ..self }
    }
}

/// Every scenario.
pub(crate) fn scenarios() -> Vec<Scenario> {
    [kinds::ALL, stories::ALL, sources::ALL, owners::ALL, groups::ALL, findings::ALL].concat()
}
