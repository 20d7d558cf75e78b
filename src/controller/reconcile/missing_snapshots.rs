//! Referenced snapshots that are missing, and for which this replica found no content.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use crate::world::Name;

/// The time in which another replica restores a snapshot whose content it remembers: its own delay of two seconds, and its
/// retries after a failed call.
const OTHERS_RESTORE: SignedDuration = SignedDuration::from_secs(5);

/// The missing snapshots.
#[derive(Debug, Default)]
pub(crate) struct MissingSnapshots(HashMap<Name, Stage>);

/// How long a snapshot is missing.
#[derive(Debug)]
enum Stage {
    /// Since the first restore that found no content. Another replica may know it.
    Since(Timestamp),
    /// So long that its content is lost.
    Lost,
}

/// What follows from a restore that found no content.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Conclusion {
    /// Try again at that time.
    Again(Timestamp),
    /// The content is lost, which is to be reported.
    Lost,
    /// The loss was reported before.
    KnownLost,
}

impl MissingSnapshots {
    /// Records a restore for which this replica found no content.
    ///
    /// Another replica may still have that content in memory, and restore the snapshot. The content is therefore lost only
    /// if a second try, [`OTHERS_RESTORE`] after the first, finds nothing either.
    pub(crate) fn not_found(&mut self, name: &Name, now: Timestamp) -> Conclusion {
        let stage = self.0.entry(name.clone()).or_insert(Stage::Since(now));
        match stage {
            Stage::Lost => Conclusion::KnownLost,
            Stage::Since(since) if now < *since + OTHERS_RESTORE => {
                Conclusion::Again(*since + OTHERS_RESTORE)
            }
            Stage::Since(_) => {
                *stage = Stage::Lost;
                Conclusion::Lost
            }
        }
    }

    /// Records a change of the snapshot, or the end of a restore. A loss counts until the next [`MissingSnapshots::retain`].
    pub(crate) fn changed(&mut self, name: &Name) {
        if let Some(Stage::Since(_)) = self.0.get(name) {
            self.0.remove(name);
        }
    }

    /// Forgets all but these.
    pub(crate) fn retain(&mut self, is_missing: impl Fn(&Name) -> bool) {
        self.0.retain(|name, _| is_missing(name));
    }

    /// The snapshots whose content is lost.
    pub(crate) fn lost(&self) -> impl Iterator<Item = &Name> {
        self.0.iter().filter(|(_, stage)| matches!(stage, Stage::Lost)).map(|(name, _)| name)
    }
}
