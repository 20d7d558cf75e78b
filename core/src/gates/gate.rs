//! The gates by their names, for metrics, machines and messages.

use crate::gate_settings;

/// A gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gate(&'static str);

impl Gate {
    /// The workload does not follow changes by itself.
    pub(super) const PAUSED: Self = Self("paused");
    /// The annotation `hold` keeps its snapshot.
    pub(super) const HOLD: Self = Self("hold");
    /// A setting of a gate, a set or waves cannot be followed.
    pub(super) const INVALID: Self = Self("invalid");
    /// A workload failed with the content, and its source reverts.
    pub const REFUSED: Self = Self("refused");
    /// The content fails its schema.
    pub(super) const SCHEMA: Self = Self("schema");
    /// The content lacks a key that the template requires.
    pub(super) const REQUIRED_KEYS: Self = Self("required-keys");
    /// The sources of a set have different versions, or another one of them stays where it is.
    pub const SET: Self = Self("set");
    /// The workload rolled less than its `min-interval` ago.
    pub(super) const MIN_INTERVAL: Self = Self("min-interval");
    /// A person stopped the change.
    pub(super) const ABORTED: Self = Self("aborted");
    /// A workload failed with the content.
    pub const FAILED: Self = Self("failed");
    /// The wave has not come to the workload.
    pub(super) const WAVE: Self = Self("wave");
    /// As many workloads as allowed are rolling.
    pub(super) const MAX_IN_FLIGHT: Self = Self("max-in-flight");
    /// Those about the other workloads of the change.
    const ABOUT_OTHERS: [Self; 5] =
        [Self::REFUSED, Self::ABORTED, Self::FAILED, Self::WAVE, Self::MAX_IN_FLIGHT];

    /// The gate of a setting, which has its name.
    pub(super) const fn of_setting(name: &'static str) -> Self {
        Self(name)
    }

    /// All gates.
    pub fn all() -> impl Iterator<Item = Self> {
        let settings = gate_settings::names().map(Self::of_setting);
        let others = [Self::SET, Self::MIN_INTERVAL, Self::ABORTED, Self::FAILED, Self::WAVE];
        let of_content = [Self::REFUSED, Self::SCHEMA, Self::REQUIRED_KEYS];
        [Self::PAUSED, Self::HOLD, Self::INVALID]
            .into_iter()
            .chain(of_content)
            .chain(settings)
            .chain(others)
            .chain([Self::MAX_IN_FLIGHT])
    }

    /// The gate of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|gate| gate.0 == name)
    }

    /// Whether it is about the other workloads of the change.
    pub fn is_about_others(self) -> bool {
        Self::ABOUT_OTHERS.contains(&self)
    }

    /// Its name, as in metrics.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_gates_have_one_name() {
        let names: Vec<_> = Gate::all().map(Gate::name).collect();
        for (place, name) in names.iter().enumerate() {
            assert!(!names[..place].contains(name), "{name}");
            assert_eq!(Gate::named(name).map(Gate::name), Some(*name));
        }
        assert_eq!(Gate::named("door"), None);
        assert!(Gate::ABOUT_OTHERS.iter().all(|gate| names.contains(&gate.name())));
    }
}
