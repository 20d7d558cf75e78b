//! How a workload stands towards a content of a source: one answer for the controller, admission and the commands.

use super::{Present, Record, Use};
use crate::{
    snapshot::{Digest, Digests},
    tie::Tie,
};

/// How pods get the content of a source by one reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// From a snapshot.
    Snapshot,
    /// From the source itself; its changes roll nothing.
    AsWritten,
    /// From the source itself; its changes roll the workload.
    Live,
    /// From the source itself, which is bound to the revisions.
    Bound,
}

impl Mode {
    /// Whether a change of the source rolls the workload.
    pub const fn rolls(self) -> bool {
        matches!(self, Self::Snapshot | Self::Live)
    }

    /// Whether pods read a snapshot.
    pub const fn has_snapshot(self) -> bool {
        matches!(self, Self::Snapshot)
    }
}

/// The values that pods read, beside a content that the workload has seen. The last one decides for a workload with several references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Values {
    /// Those of the content, as far as it is known.
    Present,
    /// Those of another content, which are the same in the keys that pods read.
    Equal,
    /// Others: an undo or a pin keeps them.
    Rejected,
}

/// How a workload stands towards a content of a source. The last one decides for a workload with several references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// Nothing moves it: the reference names a snapshot that a user chose, or a second one of the source.
    Apart,
    /// Pods read the source itself, as they should.
    AtSource(Mode),
    /// Pods read the source itself, since its content lacks a key that the template requires.
    Lacking,
    /// It has seen the content.
    Seen(Values),
    /// Pods read the source itself, but whether the workload has seen the content is not known: that digest uses another key.
    Unjudged,
    /// It uses the content, and has not recorded that.
    Unrecorded,
    /// A move would change its template.
    Behind,
}

impl Relation {
    /// Whether a move would change the template, or what the workload records.
    pub const fn is_pending(self) -> bool {
        matches!(self, Self::Behind | Self::Unrecorded | Self::Unjudged)
    }
}

impl Present {
    /// How pods get the content by this reference.
    pub fn mode_for(&self, used: &Use) -> Mode {
        let is_excluded = used.excludes(&self.labels);
        if !is_excluded && self.live.unwrap_or(used.live) {
            Mode::Live
        } else if is_excluded || (self.stays_as_written && !self.bound_itself) {
            Mode::AsWritten
        } else if self.bound_itself {
            Mode::Bound
        } else {
            Mode::Snapshot
        }
    }
}

impl Record {
    /// How the workload stands towards the content of a source by one reference, whatever holds it. `held`: the digest of the snapshot
    /// that the reference names, if it is known.
    pub fn relation(&self, used: &Use, source: &Present, held: Option<&Digest>) -> Relation {
        self.ties.get(&used.source).unwrap_or(&Tie::default()).relation(used, source, held)
    }

    /// Whether a move would change this reference, or the content of the source that the workload has seen.
    pub fn is_behind(&self, used: &Use, source: &Present) -> bool {
        self.relation(used, source, None).is_pending()
    }

    /// The same, for a reference that no hold keeps.
    pub fn is_pending_for(&self, used: &Use, source: &Present) -> bool {
        !used.on_hold && self.is_behind(used, source)
    }

    /// Whether an undo or a pin keeps other values than those of the content that the workload has seen, whatever the present content.
    pub fn keeps_other(&self, used: &Use, held: Option<&Digest>) -> bool {
        let tie = self.ties.get(&used.source).filter(|_| used.snapshot.is_some() && !used.on_hold);
        let Some((tie, seen)) = tie.and_then(|tie| Some((tie, tie.seen?))) else { return false };
        tie.values(used, &seen.into(), held) == Values::Rejected
    }
}

impl Tie {
    /// As of [`Record::relation`].
    pub(super) fn relation(&self, used: &Use, source: &Present, held: Option<&Digest>) -> Relation {
        // It is listed under its own name, and the first snapshot decides for the source.
        if source.is_snapshot {
            return Relation::Apart;
        }
        let (seen, has_seen) = (self.seen, self.has_seen(&source.digests));
        // A name that a user wrote is not recorded.
        let is_own = used.snapshot.is_some() && seen.is_some();
        match source.mode_for(used) {
            Mode::Live | Mode::AsWritten if is_own => Relation::Behind,
            Mode::Live | Mode::AsWritten if used.snapshot.is_some() => Relation::Apart,
            Mode::Live if !has_seen => match seen {
                Some(seen) if source.digests.judge(&seen).is_none() => Relation::Unjudged,
                _ => Relation::Behind,
            },
            Mode::Bound if used.snapshot.is_none() || seen.is_some() => Relation::Behind,
            mode @ (Mode::Live | Mode::AsWritten | Mode::Bound) => Relation::AtSource(mode),
            Mode::Snapshot if used.snapshot.is_none() && has_seen && self.lacking => Relation::Lacking,
            Mode::Snapshot if used.snapshot.is_none() => Relation::Behind,
            Mode::Snapshot if has_seen => Relation::Seen(self.values(used, &source.digests, held)),
            Mode::Snapshot if held.is_some_and(|held| source.digests.contains(held)) => Relation::Unrecorded,
            Mode::Snapshot => Relation::Behind,
        }
    }

    /// The values that pods read by a reference, beside a content that the workload has seen.
    pub(super) fn values(&self, used: &Use, content: &Digests, held: Option<&Digest>) -> Values {
        let holds_other = held.is_some_and(|held| content.judge(held) == Some(false));
        // Admission records this for a workload that reads some keys: both contents may have the same values there.
        let is_recorded = used.snapshot.is_some() && self.pinned.is_some();
        match holds_other {
            _ if is_recorded => Values::Rejected,
            true if used.whole => Values::Rejected,
            true => Values::Equal,
            false => Values::Present,
        }
    }
}
