//! The recorded scenarios. Each is what people and the cluster do, with what must hold where it comes to rest.

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
    /// Whether how often a workload rolls depends on how long things take; where it ends does not.
    pub loose: bool,
    /// Whether a snapshot is lost in it for good.
    pub loses: bool,
    /// Whether a content stands in one replica's memory alone for a moment, and is lost with it.
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
