//! When everything is listed again: objects that were left out of the world may fit, or their settings are others.

use jiff::{SignedDuration, Timestamp};

/// The first pause before everything is listed again, since what was left out may fit. It doubles with each further list.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(15);
/// The longest pause.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// The same, before workloads are listed again to be read with other settings: a namespace that changes its settings all the time must not
/// delay those of others for long.
const SETTINGS: [SignedDuration; 2] = [SignedDuration::from_secs(1), SignedDuration::from_mins(1)];

/// When everything is listed again.
#[derive(Debug)]
pub(crate) struct Relists {
    /// The first and the longest pause.
    pauses: [SignedDuration; 2],
    /// When the next list may begin; `None` while everything that is left out would not fit.
    due: Option<Timestamp>,
    /// The time of the last one, and the pause before it.
    last: Option<(Timestamp, SignedDuration)>,
}

impl Default for Relists {
    fn default() -> Self {
        Self { pauses: [FIRST_PAUSE, LONGEST_PAUSE], due: None, last: None }
    }
}

impl Relists {
    /// Those of workloads alone, to read them with other settings.
    pub(crate) const fn of_settings() -> Self {
        Self { pauses: SETTINGS, due: None, last: None }
    }

    /// The pause before the next list: it returns to the first one after a long time without lists.
    fn pause(&self, now: Timestamp) -> SignedDuration {
        let [first, longest] = self.pauses;
        match self.last {
            Some((at, pause)) if now.duration_since(at) < longest * 2 => (pause * 2).min(longest),
            _ => first,
        }
    }

    /// Whether everything is to be listed now. `may_fit`: whether what was left out may fit.
    pub(in crate::controller) fn is_due(&mut self, may_fit: bool, now: Timestamp) -> bool {
        if !may_fit {
            self.due = None;
            return false;
        }
        let pause = self.pause(now);
        let due = *self.due.get_or_insert(now + pause);
        if due > now {
            return false;
        }
        (self.due, self.last) = (None, Some((now, pause)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::reconcile::fixture::at;

    #[test]
    fn other_settings_are_read_soon() {
        let mut relists = Relists::of_settings();
        let begun: Vec<_> = (0..300).filter(|second| relists.is_due(true, at(*second))).collect();
        assert_eq!(begun, [1, 4, 9, 18, 35, 68, 129, 190, 251]);
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
