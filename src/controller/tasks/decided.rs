//! What a task decides when it is due.

use jiff::Timestamp;

use crate::controller::action::Action;

/// What to do for a task now.
#[derive(Debug)]
pub(crate) enum Decided {
    /// Execute this action.
    Act(Action),
    /// Nothing.
    Done,
    /// Decide again at this time.
    Later(Timestamp),
}

impl From<Option<Action>> for Decided {
    fn from(action: Option<Action>) -> Self {
        action.map_or(Self::Done, Self::Act)
    }
}
