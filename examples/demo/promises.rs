//! What was seen of each promise.

use std::collections::BTreeMap;

use crate::screen::Screen;

/// The promises of the design that a demo can see, in its order. Only a benchmark sees `lean`.
const NAMES: [&str; 9] =
    ["frozen", "fresh", "rolls", "sticks", "kept", "no-leak", "quiet", "dry", "contained"];

/// The evidence.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    held: BTreeMap<&'static str, Vec<String>>,
    broken: BTreeMap<&'static str, Vec<String>>,
}

impl Promises {
    /// Something was seen that the promise says.
    pub(crate) fn held(&mut self, name: &'static str, seen: impl Into<String>) {
        debug_assert!(NAMES.contains(&name), "{name} is no promise");
        self.held.entry(name).or_default().push(seen.into());
    }

    /// Something was seen that the promise excludes.
    pub(crate) fn broken(&mut self, name: &'static str, seen: impl Into<String>) {
        debug_assert!(NAMES.contains(&name), "{name} is no promise");
        self.broken.entry(name).or_default().push(seen.into());
    }

    /// Writes the table. Whether all promises were seen to hold: one that the story did not reach did not.
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
