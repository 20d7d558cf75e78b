//! What happened with a content, and what people decided about it: the annotation `verdict` of its snapshot, and the annotation
//! `decision` of its source.
//!
//! Only confrev writes a snapshot. A command writes a decision on the source, and the controller takes it over. So no write of the
//! source ends what was decided. A promotion, an abort and a retry end when the source gets other content; a failure stays until a
//! person ends it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{annotations, snapshot::is_object_name};

/// The word for all waves in a promotion.
pub const ALL_WAVES: &str = "all";

/// What stands before the user's name in a decision.
const BY: &str = " by ";

/// The longest name of a user in a decision, in bytes. The decision stays below the limit of an annotation with it.
const LONGEST_USER: usize = 256;

/// What is known about a content: the annotation `verdict` of its snapshot. Its fields are in the order of their names, so equal
/// verdicts have equal bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// No further workload moves to the content.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub aborted: bool,
    /// The time of the last decision that was taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided: Option<Box<str>>,
    /// A workload failed with the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<RecordedFailure>,
    /// The wave that may begin whatever the state of the workloads: its number, or [`ALL_WAVES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promoted: Option<Box<str>>,
    /// When a person last ended a failure, or asked for another analysis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retried: Option<Box<str>>,
}

/// A failure with a content. If the source has `on-failure: revert`, it refuses the content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedFailure {
    /// When it was found.
    pub at: Box<str>,
    /// The snapshot for workloads that have no previous one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<Box<str>>,
    /// The workload that failed, and how.
    pub reason: Box<str>,
}

impl Verdict {
    /// Reads the annotation of a snapshot.
    pub fn read<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        serde_json::from_str(annotation(annotations::VERDICT)?).ok()
    }

    /// The text of the annotation; `None` without any verdict.
    pub fn text(&self) -> Option<String> {
        if *self == Self::default() { None } else { serde_json::to_string(self).ok() }
    }

    /// The wave that may begin whatever the state of the workloads, counted from 1; 0 if there is none.
    fn promoted_wave(&self) -> usize {
        match self.promoted.as_deref() {
            Some(ALL_WAVES) => usize::MAX,
            wave => wave.and_then(|wave| wave.parse().ok()).unwrap_or_default(),
        }
    }

    /// When the last decision was made.
    pub fn last_decision(&self) -> Option<Timestamp> {
        self.decided.as_ref()?.parse().ok()
    }

    /// The verdict after a decision; `None` if it was taken over already, or is older than the snapshot. So a decision that stays on
    /// the source, or comes back to it, counts once.
    #[must_use]
    pub fn after(&self, decision: &UserDecision, created: Option<Timestamp>) -> Option<Self> {
        let last = self.last_decision();
        if last.is_some_and(|last| decision.at <= last) || created.is_some_and(|from| decision.at < from) {
            return None;
        }
        let mut after = Self { decided: Some(decision.at.to_string().into()), ..self.clone() };
        match &decision.action {
            UserAction::Promote(wave) => after.promoted = Some(wave.clone()),
            UserAction::Abort => after.aborted = true,
            UserAction::Resume => after.aborted = false,
            UserAction::Retry => {
                after.aborted = false;
                after.retried = Some(decision.at.to_string().into());
                if after.failed.take().is_some() {
                    // The content goes through all waves again, whatever was promoted before.
                    after.promoted = None;
                }
            }
        }
        Some(after)
    }

    /// The verdict after the source got other content; `None` if nothing ends. `missed`: a decision about the old content, which came too
    /// late. It does not count when the content comes back.
    #[must_use]
    pub fn after_replacement(&self, missed: Option<&UserDecision>) -> Option<Self> {
        let Self { mut decided, failed, .. } = self.clone();
        if let Some(missed) = missed.filter(|missed| self.last_decision().is_none_or(|last| last < missed.at))
        {
            decided = Some(missed.at.to_string().into());
        }
        let after = Self { decided, failed, ..Self::default() };
        (after != *self).then_some(after)
    }

    /// Whether a person ended a failure of another namespace of the group: all that were known when the person decided.
    pub fn has_ended(&self, failed: &RecordedFailure) -> bool {
        let time = |text: &str| text.parse::<Timestamp>().ok();
        let ended = self.retried.as_deref().and_then(time);
        time(&failed.at).zip(ended).is_some_and(|(failed, ended)| failed <= ended)
    }

    /// The verdict about the change to the content, for the namespace of the snapshot. `reverts`: whether the source has
    /// `on-failure: revert`.
    pub fn of_change(self, reverts: bool) -> ChangeVerdict {
        let promoted = self.promoted_wave();
        let failed = self.failed.map(|failed| failed.reason);
        ChangeVerdict {
            promoted,
            aborted: self.aborted,
            refused: reverts && failed.is_some(),
            failed: failed.filter(|_| !reverts),
            failed_elsewhere: false,
        }
    }
}

/// What was found and decided about a change, in one namespace or in all of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeVerdict {
    /// The wave that may begin whatever the state of the workloads, counted from 1; 0 if there is none.
    pub promoted: usize,
    /// No further workload may move.
    pub aborted: bool,
    /// The content is refused, since a workload failed with it.
    pub refused: bool,
    /// A workload failed with the content, and how. It holds the others.
    pub failed: Option<Box<str>>,
    /// A workload failed with the content in another namespace of the group. It holds this one, and takes nothing back here.
    pub failed_elsewhere: bool,
}

impl ChangeVerdict {
    /// The same verdict, as the other namespaces of the group heed it: a failure there is only a hold here.
    #[must_use]
    pub fn from_elsewhere(self) -> Self {
        let failed_elsewhere = self.refused || self.failed.is_some() || self.failed_elsewhere;
        Self { refused: false, failed: None, failed_elsewhere, ..self }
    }

    /// The verdict about a change that is in several sources: a wave is promoted if all of them say so, and any of them stops the
    /// change.
    #[must_use]
    pub fn strictest(self, other: Self) -> Self {
        Self {
            promoted: self.promoted.min(other.promoted),
            aborted: self.aborted || other.aborted,
            refused: self.refused || other.refused,
            failed: self.failed.or(other.failed),
            failed_elsewhere: self.failed_elsewhere || other.failed_elsewhere,
        }
    }
}

/// What a person decided about the content of a snapshot: the annotation `decision` of its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserDecision {
    /// What was decided.
    pub action: UserAction,
    /// The snapshot.
    pub snapshot: String,
    /// When it was decided. It is later than the decision before.
    pub at: Timestamp,
    /// Who says to have decided it. Who may write the source may write any name.
    pub by: Option<String>,
}

/// What a person decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserAction {
    /// This wave begins, or [`ALL_WAVES`].
    Promote(Box<str>),
    /// No further workload moves.
    Abort,
    /// An abort ends.
    Resume,
    /// An abort and a failure end, and the content is analysed again.
    Retry,
}

impl UserDecision {
    /// A decision about a snapshot. `last`: the last decision about it, or its creation. The clock of this machine may be behind.
    pub fn new(action: UserAction, snapshot: &str, last: Option<Timestamp>, now: Timestamp) -> Self {
        let at = now.round(jiff::Unit::Millisecond).unwrap_or(now);
        Self { action, snapshot: snapshot.to_owned(), at: super::roll_time(at, last), by: None }
    }

    /// The same decision, by this user. A long name is left out, and one with other characters than names of users usually have: who
    /// receives the Event may interpret them.
    #[must_use]
    pub fn by(self, user: &str) -> Self {
        let is_plain = |c: char| c.is_alphanumeric() || "-._/:@+#".contains(c);
        let is_name = user.starts_with(char::is_alphanumeric) && user.chars().all(is_plain);
        Self { by: (is_name && user.len() <= LONGEST_USER).then(|| user.to_owned()), ..self }
    }

    /// Reads the annotation. Returns `None` if it is malformed, or too long.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > annotations::LONGEST {
            return None;
        }
        let (text, by) = text.rsplit_once(BY).unwrap_or((text, ""));
        let mut words = text.split(' ');
        let (action, snapshot, at) = (words.next()?, words.next()?, super::plan::parse_time(words.next()?)?);
        let action = match (action, words.next(), words.next()) {
            ("promote", Some(ALL_WAVES), None) => UserAction::Promote(ALL_WAVES.into()),
            ("promote", Some(wave), None) => {
                UserAction::Promote(wave.parse::<usize>().ok()?.to_string().into())
            }
            ("abort", None, _) => UserAction::Abort,
            ("resume", None, _) => UserAction::Resume,
            ("retry", None, _) => UserAction::Retry,
            _ => return None,
        };
        is_object_name(snapshot).then(|| Self { action, snapshot: snapshot.to_owned(), at, by: None }.by(by))
    }
}

impl fmt::Display for UserDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, snapshot, at, by } = self;
        match action {
            UserAction::Promote(wave) => write!(f, "promote {snapshot} {at} {wave}"),
            UserAction::Abort => write!(f, "abort {snapshot} {at}"),
            UserAction::Resume => write!(f, "resume {snapshot} {at}"),
            UserAction::Retry => write!(f, "retry {snapshot} {at}"),
        }?;
        by.as_ref().map_or(Ok(()), |by| write!(f, "{BY}{by}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn decision(action: UserAction, second: i64) -> UserDecision {
        UserDecision { action, snapshot: "demo-3a18d34e26".to_owned(), at: at(second), by: None }
    }

    fn failed() -> Verdict {
        let failed =
            RecordedFailure { at: "then".into(), previous: Some("demo-1".into()), reason: "it fails".into() };
        Verdict { failed: Some(failed), ..Verdict::default() }
    }

    #[test]
    fn verdict_has_stable_bytes() {
        let all = Verdict {
            aborted: true,
            decided: Some(at(1).to_string().into()),
            promoted: Some("2".into()),
            retried: Some("then".into()),
            ..failed()
        };
        let text = concat!(
            r#"{"aborted":true,"decided":"1970-01-01T00:00:01Z","#,
            r#""failed":{"at":"then","previous":"demo-1","reason":"it fails"},"promoted":"2","retried":"then"}"#
        );
        assert_eq!(all.text().as_deref(), Some(text));
        assert_eq!(Verdict::read(|_| Some(text)), Some(all));
        assert_eq!(Verdict::default().text(), None);
        assert_eq!(Verdict::read(|_| Some("{}")), Some(Verdict::default()));
        assert_eq!(Verdict::read(|_| Some("x")), None);
    }

    #[test]
    fn decision_survives_its_text() {
        for action in [
            UserAction::Promote("2".into()),
            UserAction::Promote(ALL_WAVES.into()),
            UserAction::Abort,
            UserAction::Resume,
            UserAction::Retry,
        ] {
            let decision = decision(action, 5);
            let by_user = decision.clone().by("system:serviceaccount:ns:ci");
            assert_eq!(UserDecision::parse(&by_user.to_string()), Some(by_user.clone()));
            assert_eq!(by_user.by.as_deref(), Some("system:serviceaccount:ns:ci"));
            assert_eq!(UserDecision::parse(&format!("{decision} by a\u{7}b")), Some(decision.clone()));
            let long = "u".repeat(LONGEST_USER + 1);
            for unfit in ["two words", "@all", "a](b)", "", &long] {
                assert_eq!(UserDecision::parse(&decision.to_string()), Some(decision.clone().by(unfit)));
            }
        }
        let time = "2026-01-02T03:04:05Z";
        for text in [
            "",
            "abort",
            "abort demo-1",
            "abort demo-1 soon",
            &format!("abort A {time}"),
            &format!("abort demo-1 {time} 2"),
            &format!("promote demo-1 {time}"),
            &format!("promote demo-1 {time} x"),
            &format!("promote demo-1 {time} 2 3"),
            annotations::bounded(&format!("promote demo-1 {time} {}2", "0".repeat(annotations::LONGEST))),
            &format!("stop demo-1 {time}"),
            "abort demo-1 9999-12-31T00:00:00Z",
        ] {
            assert_eq!(UserDecision::parse(text), None, "{text}");
        }
    }

    /// A decision may stay on the source, or come back with a file, after its content was replaced.
    #[test]
    fn decision_counts_once() {
        let abort = decision(UserAction::Abort, 5);
        let aborted = Verdict::default().after(&abort, Some(at(4))).unwrap();
        assert!(aborted.aborted);
        assert_eq!(aborted.after(&abort, Some(at(4))), None);
        let over = aborted.after_replacement(None).unwrap();
        assert!(!over.aborted);
        assert_eq!(over.after(&abort, Some(at(4))), None);
        assert_eq!(over.after_replacement(None), None);
        assert_eq!(over.after_replacement(Some(&abort)), None);
        let missed = Verdict::default().after_replacement(Some(&abort)).unwrap();
        assert_eq!(missed.after(&abort, Some(at(4))), None, "it came after the content was replaced");
        assert_eq!(Verdict::default().after(&abort, Some(at(6))), None, "its snapshot is a new one");
        let next = UserDecision::new(UserAction::Resume, "demo-1", aborted.last_decision(), at(0));
        assert!(aborted.after(&next, Some(at(4))).is_some_and(|after| !after.aborted), "a clock is behind");
    }

    #[test]
    fn retry_ends_failure_and_promotion() {
        let promoted = failed().after(&decision(UserAction::Promote("3".into()), 5), None).unwrap();
        assert_eq!(promoted.promoted_wave(), 3);
        let retried = promoted.after(&decision(UserAction::Retry, 6), None).unwrap();
        let expected = Verdict {
            decided: Some(at(6).to_string().into()),
            retried: Some(at(6).to_string().into()),
            ..Verdict::default()
        };
        assert_eq!(retried, expected);
        let unfailed = Verdict { promoted: Some("all".into()), ..Verdict::default() };
        let retried = unfailed.after(&decision(UserAction::Retry, 7), None).unwrap();
        assert_eq!((retried.promoted_wave(), retried.retried), (usize::MAX, Some(at(7).to_string().into())));
    }

    #[test]
    fn retry_ends_failures_that_were_known() {
        let retried = failed().after(&decision(UserAction::Retry, 6), None).unwrap();
        for (time, has_ended) in [(5, true), (6, true), (7, false)] {
            let failed = RecordedFailure { at: at(time).to_string().into(), ..RecordedFailure::default() };
            assert_eq!(retried.has_ended(&failed), has_ended, "{time}");
            assert!(!Verdict::default().has_ended(&failed), "{time}, without a retry");
        }
        assert!(!retried.has_ended(&RecordedFailure::default()), "of an unknown time");
    }

    /// A failure stays until a person ends it. What people decided is about one change.
    #[test]
    fn failure_outlives_the_content() {
        let promoted = failed().after(&decision(UserAction::Promote("3".into()), 5), None).unwrap();
        let after = promoted.after_replacement(None).unwrap();
        assert_eq!(after, Verdict { decided: Some(at(5).to_string().into()), ..failed() });
    }

    /// In a group, a wave is promoted only as far as in all sources, and as long as in all of them.
    #[test]
    fn strictest_verdict_has_each_limit_of_both() {
        let verdict = |promoted, aborted, refused| ChangeVerdict {
            promoted,
            aborted,
            refused,
            failed: None,
            failed_elsewhere: refused,
        };
        for (one, other, expected) in [
            (verdict(1, false, false), verdict(2, true, false), verdict(1, true, false)),
            (verdict(3, false, true), verdict(0, false, false), verdict(0, false, true)),
            (ChangeVerdict::default(), ChangeVerdict::default(), ChangeVerdict::default()),
        ] {
            assert_eq!(one.clone().strictest(other.clone()), expected);
            assert_eq!(other.strictest(one), expected);
        }
    }

    /// A failure refuses content only if the source reverts, and only in its own namespace.
    #[test]
    fn failure_refuses_or_holds() {
        for (reverts, refused, held) in [(true, true, None), (false, false, Some("it fails"))] {
            let own = failed().of_change(reverts);
            assert_eq!((own.refused, own.failed.as_deref()), (refused, held));
            let elsewhere = own.from_elsewhere();
            assert_eq!((elsewhere.refused, elsewhere.failed), (false, None));
            assert!(elsewhere.failed_elsewhere);
        }
    }
}
