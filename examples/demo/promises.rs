//! The promises, and the observations for and against each.

use std::collections::BTreeMap;

use crate::screen::Screen;

/// The promises that a demo can check, in the order of the documentation. Only a benchmark checks `lean`.
const NAMES: [&str; 9] =
    ["frozen", "fresh", "rolls", "sticks", "kept", "no-leak", "quiet", "dry", "contained"];

/// The observations.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    held: BTreeMap<&'static str, Vec<String>>,
    broken: BTreeMap<&'static str, Vec<String>>,
}

impl Promises {
    /// Records an observation for a promise.
    pub(crate) fn held(&mut self, name: &'static str, seen: impl Into<String>) {
        debug_assert!(NAMES.contains(&name), "unknown promise {name}");
        self.held.entry(name).or_default().push(seen.into());
    }

    /// Records an observation against a promise.
    pub(crate) fn broken(&mut self, name: &'static str, seen: impl Into<String>) {
        debug_assert!(NAMES.contains(&name), "unknown promise {name}");
        self.broken.entry(name).or_default().push(seen.into());
    }

    /// Prints the table. Returns whether all promises hold; a promise that the story did not reach does not.
    pub(crate) fn table(&self, screen: &Screen) -> bool {
        let mut all = true;
        for name in NAMES {
            let unseen = vec!["not seen".to_owned()];
            let (holds, seen) = match (self.broken.get(name), self.held.get(name)) {
                (Some(problems), _) => (false, problems),
                (None, Some(seen)) => (true, seen),
                (None, None) => (false, &unseen),
            };
            screen.promise(name, holds, seen);
            all &= holds;
        }
        all
    }
}
