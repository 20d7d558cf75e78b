//! The plan in the annotation `roll`: what moves, and to which content. Whatever it does not name stays as it is.
//!
//! `auto-TIME MOVE...` is the controller's plan, `plan-TEXT MOVE...` a person's; any other value of a person means that everything moves
//! to its newest content. A move is one of these, with `secret/` before the name of a Secret:
//!
//! | move | meaning |
//! |---|---|
//! | `SOURCE` | to its present content |
//! | `SOURCE@DIGEST` | to its present content, if that has this digest; otherwise it stays |
//! | `SOURCE=SNAPSHOT` | to this snapshot of it |
//! | `*` | every source to its present content |
//!
//! A `!` after a move means: even if the content was refused.

use std::{collections::BTreeMap, fmt::Write as _};

use jiff::{SignedDuration, Timestamp};

use super::{Request, Workload, used::has_other_roll, values::parse_source};
use crate::{
    annotations,
    snapshot::{Digest, ObjectName, SourceKind, is_object_name},
};

/// The prefix of the controller's plan; its time follows.
const AUTO: &str = "auto-";
/// The prefix of a person's plan; any text without a space follows.
const PERSON: &str = "plan-";
/// In place of a source: every source.
const EVERY: &str = "*";
/// The digits of a digest.
const DIGITS: usize = 10;
/// The latest time that counts: 9999-12-30. Each plan and each decision is later than the previous one.
const LATEST: Timestamp = Timestamp::constant(253_402_128_000, 0);

/// The content to which a source moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// Its present content.
    Present,
    /// Its present content, if its digest begins with these digits.
    Content(String),
    /// This snapshot of it.
    Snapshot(String),
}

/// One move of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where to.
    pub to: To,
    /// Refused content is no obstacle.
    pub forced: bool,
}

impl From<To> for Move {
    fn from(to: To) -> Self {
        Self { to, forced: false }
    }
}

/// What the annotation `roll` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The time in it, which orders the plans of a workload.
    pub time: Option<Timestamp>,
    /// The controller wrote it.
    pub is_automatic: bool,
    /// What moves, by source.
    pub moves: BTreeMap<ObjectName, Move>,
    /// How every other source moves; `None` if they stay.
    pub every: Option<Move>,
}

impl Plan {
    /// The controller's plan at that time: each source moves to this content.
    pub fn automatic(time: Timestamp, moves: &[(ObjectName, Digest)]) -> Self {
        let content = |digest: &Digest| Move::from(To::Content(digest.hex(DIGITS)));
        let moves = moves.iter().map(|(source, digest)| (source.clone(), content(digest))).collect();
        Self { time: Some(time), is_automatic: true, moves, every: None }
    }

    /// The controller's plan at that time: each of these sources moves to the content that it has when the plan is admitted.
    pub fn to_newest(time: Timestamp, moves: &[(ObjectName, Digest)]) -> Self {
        let moves = moves.iter().map(|(source, _)| (source.clone(), To::Present.into())).collect();
        Self { moves, ..Self::automatic(time, &[]) }
    }

    /// A person's plan.
    pub fn of_person(time: Timestamp, moves: BTreeMap<ObjectName, Move>) -> Self {
        Self { time: Some(time), is_automatic: false, moves, every: None }
    }

    /// A person's plan, or the controller's, at that time: every source moves to its present content.
    pub fn every(time: Timestamp, is_automatic: bool) -> Self {
        Self { time: Some(time), is_automatic, moves: BTreeMap::new(), every: Some(To::Present.into()) }
    }

    /// Reads a value; `Ok(None)` if it is not a plan. An error says what is wrong.
    pub fn parse(roll: &str) -> Result<Option<Self>, String> {
        let (head, moves) = roll.split_once(' ').unwrap_or((roll, ""));
        let (time, is_automatic) = match (head.strip_prefix(AUTO), head.strip_prefix(PERSON)) {
            (Some(time), _) => match parse_time(time) {
                Some(time) => (Some(time), true),
                // A text of a person.
                None => return Ok(None),
            },
            (None, Some(text)) => (parse_time(text), false),
            (None, None) => return Ok(None),
        };
        if roll.len() > annotations::MAX_ANNOTATION {
            return Err(format!("a plan has at most {} bytes", annotations::MAX_ANNOTATION));
        }
        let mut plan = Self { time, is_automatic, ..Self::default() };
        for text in moves.split(' ').filter(|text| !text.is_empty()) {
            let wrong = || {
                let text = annotations::bounded(text);
                format!(
                    "{text:?} is no move, use SOURCE, SOURCE=SNAPSHOT, secret/SOURCE, secret/SOURCE=SNAPSHOT or {EVERY}"
                )
            };
            let (rest, forced) = text.strip_suffix('!').map_or((text, false), |rest| (rest, true));
            if rest == EVERY {
                plan.every = Some(Move { to: To::Present, forced });
                continue;
            }
            let (source, to) = if let Some((source, snapshot)) = rest.split_once('=') {
                (
                    source,
                    To::Snapshot(
                        Some(snapshot).filter(|name| is_object_name(name)).ok_or_else(wrong)?.to_owned(),
                    ),
                )
            } else if let Some((source, digits)) = rest.split_once('@') {
                let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                (source, To::Content(Some(digits).filter(|_| is_hex).ok_or_else(wrong)?.to_owned()))
            } else {
                (rest, To::Present)
            };
            let source = parse_source(source).ok_or_else(wrong)?;
            if plan.moves.insert(source.clone(), Move { to, forced }).is_some() {
                return Err(format!("{source} has two moves"));
            }
        }
        Ok(Some(plan))
    }

    /// The value of the annotation.
    pub fn to_value(&self) -> String {
        let mut text = if self.is_automatic { AUTO } else { PERSON }.to_owned();
        if let Some(time) = self.time {
            // Writing to a text never fails.
            let _ = write!(text, "{time:.3}");
        }
        for (source, Move { to, forced }) in &self.moves {
            text.push(' ');
            if source.kind == SourceKind::Secret {
                text.push_str("secret/");
            }
            text.push_str(&source.name);
            match to {
                To::Present => {}
                To::Content(digits) => {
                    text.push('@');
                    text.push_str(digits);
                }
                To::Snapshot(name) => {
                    text.push('=');
                    text.push_str(name);
                }
            }
            text.push_str(if *forced { "!" } else { "" });
        }
        if let Some(every) = &self.every {
            text.push(' ');
            text.push_str(EVERY);
            text.push_str(if every.forced { "!" } else { "" });
        }
        text
    }

    /// The plan of a request; `None` if its value of `roll` is no plan, or is not new. An older time comes from an undo: `kubectl rollout
    /// undo` of a Deployment restores all annotations of the old `ReplicaSet`.
    pub(super) fn of(request: &Request<'_>) -> Result<Option<Self>, String> {
        let roll = |workload: &Workload<'_>| workload.annotation(annotations::ROLL).map(str::to_owned);
        let Some(new) = roll(&request.new).filter(|_| has_other_roll(request)) else { return Ok(None) };
        let last = request.old.as_ref().and_then(roll).and_then(|old| plan_time(&old));
        let plan = Self::parse(&new).map_err(|wrong| format!("annotation {}: {wrong}", annotations::ROLL))?;
        Ok(plan.filter(|plan| plan.time.zip(last).is_none_or(|(time, last)| time >= last)))
    }

    /// The move of a source; `None` if it stays.
    pub(super) fn of_source(&self, source: &ObjectName) -> Option<&Move> {
        self.moves.get(source).or(self.every.as_ref())
    }
}

/// The time of a plan at `now`: later than the last one, whatever the clocks of those that wrote both. Admission tells an undo from a roll
/// by the order of these times.
pub fn roll_time(now: Timestamp, last: Option<Timestamp>) -> Timestamp {
    let next = last.and_then(|last| last.checked_add(SignedDuration::from_millis(1)).ok());
    next.map_or(now, |next| next.max(now))
}

/// The time of confrev's last roll of the workload; `None` if a person wrote the value.
pub fn auto_roll_time(roll: &str) -> Option<Timestamp> {
    roll.starts_with(AUTO).then(|| plan_time(roll))?
}

/// The time of a plan of the controller or a person; `None` if the value is no plan, or has no time.
pub fn plan_time(roll: &str) -> Option<Timestamp> {
    let text = roll.strip_prefix(AUTO).or_else(|| roll.strip_prefix(PERSON))?;
    parse_time(text.split_once(' ').map_or(text, |(time, _)| time))
}

/// Reads the time that a plan or a decision states; `None` if it is malformed, or so late that none could follow it.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok().filter(|time: &Timestamp| *time <= LATEST)
}

/// What a plan says about a reference.
pub(super) enum Planned {
    /// The request has no plan, or the reference is new: the other rules decide.
    Free,
    /// It stays as it is.
    Stays,
    /// It moves to the present content.
    Moves,
    /// It moves to this snapshot.
    To(ObjectName),
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: &str = "2026-01-02T03:04:05.678Z";

    #[test]
    fn plans_are_read_as_they_are_written() {
        let all = format!("auto-{TIME} a.b@0123456789 c@abc secret/a.b@0123456789");
        for text in [
            &*all,
            &format!("auto-{TIME}"),
            &format!("plan-{TIME} demo demo-2=demo-2-3a18d34e26 secret/db=db-1! secret/other!"),
            &format!("plan-{TIME} *"),
        ] {
            let plan = Plan::parse(text).unwrap().unwrap();
            assert_eq!(plan.to_value(), *text);
            assert_eq!(plan.time, TIME.parse().ok());
        }
        let plan = Plan::parse("plan-tonight configmap/demo=demo-1").unwrap().unwrap();
        assert_eq!((plan.time, plan.moves.len(), plan.is_automatic), (None, 1, false));
    }

    #[test]
    fn any_other_text_is_no_plan() {
        for text in ["now", "auto-matic", "unpin", "", "planned", "demo=demo-1"] {
            assert_eq!(Plan::parse(text), Ok(None), "{text}");
        }
        for text in
            ["plan-1 A", "plan-1 demo=", "plan-1 demo@x", "plan-1 pod/demo", "plan-1 demo demo=demo-1"]
        {
            assert!(Plan::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn plan_has_a_bound() {
        let moves = |bytes: usize| format!("plan-1{}", " ".repeat(bytes - "plan-1".len()));
        assert!(Plan::parse(&moves(annotations::MAX_ANNOTATION)).is_ok_and(|plan| plan.is_some()));
        assert!(
            Plan::parse(&moves(annotations::MAX_ANNOTATION + 1)).is_err_and(|why| why.contains("at most"))
        );
        let wrong = Plan::parse(&format!("plan-1 {}", "A".repeat(100_000))).unwrap_err();
        assert!(wrong.len() < 2 * annotations::LONGEST, "{} bytes", wrong.len());
    }

    #[test]
    fn only_plans_of_the_controller_are_rolls() {
        let time = TIME.parse().ok();
        for (text, of_roll, of_plan) in [
            (format!("auto-{TIME}"), time, time),
            (format!("auto-{TIME} demo@0123456789"), time, time),
            (format!("plan-{TIME} demo"), None, time),
            ("plan-1 demo".to_owned(), None, None),
            ("now".to_owned(), None, None),
            ("auto-matic".to_owned(), None, None),
            ("auto-9999-12-31T00:00:00Z demo".to_owned(), None, None),
            ("plan-9999-12-31T00:00:00Z demo".to_owned(), None, None),
        ] {
            assert_eq!((auto_roll_time(&text), plan_time(&text)), (of_roll, of_plan), "{text}");
        }
    }
}
