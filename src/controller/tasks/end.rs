//! How the work on a task ends.

use jiff::Timestamp;

/// How the work on a task ends.
pub(super) enum End {
    /// It is done.
    Done,
    /// It is tried again at that time.
    Again(Timestamp),
    /// It failed, and is tried again after a pause that grows.
    Failed,
    /// It conflicted although its object had not changed, and is tried again after a pause that grows to some seconds.
    Conflicted,
    /// It had no effect, and is tried again after a pause that grows to an hour.
    InVain,
}
