//! When everything is listed again: objects that were left out of the world may fit, or their settings are others.

use jiff::{SignedDuration, Timestamp};

/// The first pause before everything is listed again, since what was left out may fit. It doubles with each further list.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(15);
/// The first pause before they are listed again to be read with other settings.
const FIRST_PAUSE_OF_SETTINGS: SignedDuration = SignedDuration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(10);

/// When everything is listed again.
#[derive(Debug, Default)]
pub(crate) struct Relists {
    /// When the next list may begin; `None` while everything that is left out would not fit.
    due: Option<Timestamp>,
    /// The time of the last one, and the pause before it.
    last: Option<(Timestamp, SignedDuration)>,
    /// Whether objects were read with other settings than those in force.
    is_outdated: bool,
}

impl Relists {
    /// The pause before the next list: it returns to the first one after a long time without lists.
    fn pause(&self, now: Timestamp) -> SignedDuration {
        let first = if self.is_outdated { FIRST_PAUSE_OF_SETTINGS } else { FIRST_PAUSE };
        match self.last {
            Some((at, pause)) if now.duration_since(at) < LONGEST_PAUSE * 2 => (pause * 2).min(LONGEST_PAUSE),
            _ => first,
        }
    }

    /// Records that objects were read with other settings than those in force.
    pub(super) fn outdate(&mut self) {
        if !self.is_outdated {
            (self.is_outdated, self.due) = (true, None);
        }
    }

    /// Whether everything is to be listed now. `may_fit`: whether what was left out may fit.
    pub(super) fn is_due(&mut self, may_fit: bool, now: Timestamp) -> bool {
        if !may_fit && !self.is_outdated {
            self.due = None;
            return false;
        }
        let pause = self.pause(now);
        let due = *self.due.get_or_insert(now + pause);
        if due > now {
            return false;
        }
        (self.due, self.last) = (None, Some((now, pause)));
        self.is_outdated = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::reconcile::fixture::at;

    #[test]
    fn other_settings_are_read_soon() {
        let mut relists = Relists::default();
        assert!(!relists.is_due(true, at(0)), "what was left out waits longer");
        relists.outdate();
        assert!(!relists.is_due(true, at(1)) && relists.is_due(true, at(2)));
        assert!(!relists.is_due(false, at(3)), "they were read");
        relists.outdate();
        let next = (4..60).find(|second| relists.is_due(false, at(*second)));
        assert_eq!(next, Some(6), "the pause doubles");
    }

    #[test]
    fn lists_follow_each_other_with_growing_pauses() {
        let mut relists = Relists::default();
        assert!(!relists.is_due(false, at(0)));
        let mut begun = Vec::new();
        for second in 0..3000 {
            if relists.is_due(true, at(second)) {
                begun.push(second);
            }
        }
        assert_eq!(begun, [15, 46, 107, 228, 469, 950, 1551, 2152, 2753]);
        assert!(!relists.is_due(true, at(3000)), "the pause begins");
        assert!(!relists.is_due(false, at(3001)), "nothing would fit");
        assert!(!relists.is_due(true, at(20_000)), "another pause");
        assert!(!relists.is_due(true, at(20_014)) && relists.is_due(true, at(20_015)), "the first pause");
    }
}
