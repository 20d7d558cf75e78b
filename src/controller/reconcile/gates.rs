//! What the gates ask about a pending workload, from the index.
//!
//! Nothing is stored for them: the annotations, the verdicts and the time decide, so a restart changes nothing.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::event_texts::{invalid_on_source, invalid_on_workload};
use crate::{
    cluster::{Event, WorkloadKey},
    controller::{
        index::{Index, records::SourceRecord},
        name::Name,
    },
    gate_settings::{Closed, Place, Texts, closed},
    gates::{Asked, Why},
    resolve::{Membership, Observed, Present, Record, RecordedFailure, SetWait, Use, Wait},
    snapshot::ObjectName,
};

/// How long a held workload waits before its turn is checked again.
pub(crate) const TURN: SignedDuration = SignedDuration::from_secs(1);
/// The longest that it waits if the bake time of a wave lasts longer: a workload may be deleted meanwhile.
pub(super) const BAKE: SignedDuration = SignedDuration::from_secs(5);
/// The longest time until a workload is checked again that waits for a window or a set. A change of an annotation checks it at once;
/// this is for a system clock that is set.
const RECHECK: SignedDuration = SignedDuration::from_mins(10);

/// A pending workload, and a source to whose content it would move.
pub(super) struct Question<'q, W> {
    pub(super) index: &'q Index,
    pub(super) key: &'q WorkloadKey,
    pub(super) record: &'q Record,
    pub(super) source: &'q Name,
    pub(super) used: &'q Use,
    pub(super) known: &'q SourceRecord,
    /// Why others hold the workload.
    pub(super) wait: W,
    /// Since when the workload is pending.
    pub(super) since: Timestamp,
    pub(super) now: Timestamp,
}

impl<W: FnMut() -> Option<Wait<WorkloadKey>>> Asked for Question<'_, W> {
    type Key = WorkloadKey;

    fn record(&self) -> &Record {
        self.record
    }

    fn used(&self) -> &Use {
        self.used
    }

    fn present(&self) -> &Present {
        &self.known.present
    }

    fn settings(&self) -> Vec<(Place, &Texts)> {
        let of_source =
            self.known.gates.as_ref().map(|gates| &gates.settings).filter(|texts| !texts.is_empty());
        let of_source = of_source.map(|texts| (Place::Source(self.used.source.clone()), texts));
        of_workload(self.index, self.key, self.record).chain(of_source).collect()
    }

    fn sets(&self) -> Option<Vec<(&ObjectName, Membership<'_>)>> {
        fn set(known: &SourceRecord) -> Option<&str> {
            known.gates.as_ref()?.set.as_deref()
        }
        if set(self.known).is_none() {
            return Some(Vec::new());
        }
        if self.index.awaits_source(self.key) {
            return None;
        }
        let used = self.index.sources_of(self.key, self.record);
        let moving = used.filter(|(_, used, known)| known.present.mode_for(used).rolls());
        let stated =
            moving.filter_map(|(_, used, known)| Some((&used.source, Membership::Stated(set(known)?))));
        let missing = self.index.missing_of(self.key, self.record).filter_map(|used| {
            let tie = self.record.ties.get(&used.source)?;
            Some((&used.source, Membership::Missing(tie.set.as_deref()?)))
        });
        Some(stated.chain(missing).collect())
    }

    fn refusal(&self) -> Option<(String, &RecordedFailure)> {
        let (snapshot, failure) = self.index.refused_of(self.source, self.known)?;
        Some((snapshot.object.name.to_string(), failure))
    }

    fn wait(&mut self) -> Option<Wait<WorkloadKey>> {
        (self.wait)()
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn interval_left(&self) -> Option<SignedDuration> {
        interval_left(self.record, self.since, self.now)
    }
}

/// The time that remains of the workload's `min-interval`. The last roll may have a time too far ahead, from a wrong clock: no workload
/// waits longer than its interval.
fn interval_left(record: &Record, since: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let interval = SignedDuration::try_from(record.min_interval).unwrap_or(SignedDuration::ZERO);
    let rested = record.last_roll?.checked_add(interval).ok()?;
    let left = rested.min(since.checked_add(interval).ok()?).duration_since(now);
    left.is_positive().then_some(left)
}

/// Why a workload may not roll now, whatever moves: by its own settings and those of its namespace, and by its interval if no source moves
/// it, but its namespace.
pub(super) fn of_workload_alone(
    index: &Index,
    key: &WorkloadKey,
    record: &Record,
    moves_sources: bool,
    (since, now): (Timestamp, Timestamp),
) -> Option<Why<WorkloadKey>> {
    let closed = closed(of_workload(index, key, record), now).map(Why::Closed);
    let interval = || interval_left(record, since, now).filter(|_| !moves_sources).map(Why::Interval);
    closed.or_else(interval)
}

/// When to ask the gate of a workload again. What it depends on may change unseen, such as the health of others.
pub(super) fn ask_again(why: &Why<WorkloadKey>, now: Timestamp) -> Timestamp {
    match why {
        Why::Closed(_) | Why::Set(_) => why.until(now).unwrap_or(Timestamp::MAX).min(now + RECHECK),
        Why::Interval(_) => why.until(now).unwrap_or(now + RECHECK),
        Why::Others(Wait::Bake(end)) => (now + TURN).max((*end).min(now + BAKE)),
        Why::SetUnread | Why::Others(_) => now + TURN,
        Why::Refused { .. } => now + BAKE,
    }
}

/// The Event about a setting that cannot be followed, if that is why: on the object that has it, or on the workload. `source`: the one
/// that does not move.
pub(super) fn invalid(
    index: &Index,
    key: &WorkloadKey,
    source: Option<&Name>,
    why: &Why<WorkloadKey>,
    now: Timestamp,
) -> Option<Event> {
    match why {
        Why::Closed(Closed::Invalid { of: Place::Workload, why, .. }) => {
            invalid_on_workload(index, key, false, why, now)
        }
        Why::Closed(Closed::Invalid { of: Place::Namespace, why, .. }) => {
            invalid_on_workload(index, key, true, why, now)
        }
        Why::Closed(Closed::Invalid { of: Place::Source(source), why, .. })
        | Why::Set(SetWait::Invalid { source, why }) => {
            let source = Name::new(Arc::clone(&key.namespace), source.clone());
            invalid_on_source(index, &source, why, now)
        }
        Why::Others(Wait::Invalid(why)) => invalid_on_source(index, source?, why, now),
        Why::Refused { .. }
        | Why::Closed(_)
        | Why::Set(_)
        | Why::SetUnread
        | Why::Interval(_)
        | Why::Others(_) => None,
    }
}

/// When a workload would roll to content that a source is about to get, as far as settings decide that; `None` if it is now.
pub(crate) fn postponed(
    index: &Index,
    key: &WorkloadKey,
    record: &Record,
    source: &Name,
    content: &Observed,
    now: Timestamp,
) -> Option<Closed> {
    let of_source = Texts::read(|key| content.annotation(key));
    let of_source = (Place::Source(source.object.clone()), &of_source);
    closed(of_workload(index, key, record).chain([of_source]), now)
}

/// The settings of a workload and its namespace that are gates.
fn of_workload<'i>(
    index: &'i Index,
    key: &WorkloadKey,
    record: &'i Record,
) -> impl Iterator<Item = (Place, &'i Texts)> {
    let of_namespace = index.gates_of(&key.namespace).map(|texts| (Place::Namespace, texts));
    [(Place::Workload, &record.gates)].into_iter().chain(of_namespace).filter(|(_, texts)| !texts.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{
        super::held::{HeldWorkloads, Turn},
        *,
    };
    use crate::{
        controller::index::{
            fixture::{
                digest, failed, having_seen, index, key, object, record, reverting, snapshot,
                snapshot_record, source, source_record, used, window,
            },
            records::{Gates, NamespaceSettings, SnapshotRecord},
        },
        resolve::{Present, Use},
        snapshot::SourceKind,
    };

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// A workload that has not seen the content 2 of its sources.
    fn pending(uses: &[Use]) -> Record {
        let record = record("web", uses);
        uses.iter().fold(record, |record, used| record.tied(&used.source, |tie| tie.seen = Some(digest(1))))
    }

    fn gated(name: &str, opens: Option<&str>, set: Option<&str>) -> SourceRecord {
        let gates = Gates {
            settings: opens.map(window).unwrap_or_default(),
            set: set.map(Into::into),
            has_schema: false,
        };
        SourceRecord { gates: Some(gates.into()), ..source_record(name, 2) }
    }

    /// Until when the workload waits in seconds, whether the wait ends by itself, and the notes of the Events.
    fn wait(index: &Index) -> Option<(i64, bool, Vec<String>)> {
        let mut held = HeldWorkloads::default();
        let Turn { held: found, events, .. } = held.check(index, &key("web"), |_, _, _| false, (NOW, NOW));
        let notes = events.into_iter().map(|event| event.note).collect();
        Some((found?.until.as_second(), held.blocked() == 0, notes))
    }

    #[test]
    fn closed_windows_postpone_until_they_open() {
        let own = |text: &str| Record { gates: window(text), ..pending(&[used("a", Some(1))]) };
        let none = pending(&[used("a", Some(1))]);
        // It is midnight.
        for (what, record, of_source, of_namespace, expected) in [
            ("no window", &none, None, None, None),
            ("its own is open", &own("00:00-01:00"), None, None, None),
            ("its own opens soon", &own("00:05-01:00"), None, None, Some(300)),
            ("its own opens later", &own("12:00-13:00"), None, None, Some(600)),
            ("that of the source", &none, Some("00:05-01:00"), None, Some(300)),
            ("that of the namespace", &none, None, Some("00:05-01:00"), Some(300)),
            ("the last one counts", &own("00:05-01:00"), Some("00:06-01:00"), Some("00:07-01:00"), Some(420)),
        ] {
            let mut index = index(&[("web", record)]);
            index.set_read(&source("a"), Some(gated("a", of_source, None)), &mut Vec::new());
            let settings = NamespaceSettings {
                gates: of_namespace.map(window).unwrap_or_default(),
                ..NamespaceSettings::default()
            };
            index.apply_namespace_settings(&"ns".into(), settings, &mut Vec::new());
            assert_eq!(wait(&index), expected.map(|until| (until, true, Vec::new())), "{what}");
        }
        let seen = record("web", &[used("a", Some(2))]);
        let mut index = index(&[("web", &seen)]);
        index.set_read(&source("a"), Some(gated("a", Some("12:00-13:00"), None)), &mut Vec::new());
        assert_eq!(wait(&index), None, "the source moves nothing");
    }

    #[test]
    fn invalid_settings_are_reported() {
        let record = pending(&[used("a", Some(1))]);
        for (invalid, set, part) in
            [(Some("never"), None, "confrev.dev/window"), (None, Some("shop"), "confrev.dev/set")]
        {
            let mut index = index(&[("web", &record)]);
            index.set_read(&source("a"), Some(gated("a", invalid, set)), &mut Vec::new());
            let (until, is_expected, notes) = wait(&index).unwrap();
            assert_eq!((until, is_expected, notes.len()), (600, false, 1), "{notes:?}");
            assert!(notes[0].contains(part), "{notes:?}");
        }
    }

    /// The metric names the gate that the commands name.
    #[test]
    fn window_of_workload_hides_no_invalid_setting() {
        let record = Record { gates: window("12:00-13:00"), ..pending(&[used("a", Some(1))]) };
        let mut index = index(&[("web", &record)]);
        index.set_read(&source("a"), Some(gated("a", Some("never"), None)), &mut Vec::new());
        let mut held = HeldWorkloads::default();
        held.check(&index, &key("web"), |_, _, _| false, (NOW, NOW));
        let gates = held.by_gate().into_iter().filter(|(_, count)| *count > 0);
        assert_eq!(gates.map(|(gate, _)| gate.name()).collect::<Vec<_>>(), ["invalid"]);
    }

    /// The source a of the set changes. What is the source b to the workload?
    #[test]
    fn workload_waits_for_the_sources_of_a_set() {
        let plain = used("b", Some(2));
        let excluded = Use { excluded: true, ..plain.clone() };
        let live = Use { live: true, snapshot: None, ..plain.clone() };
        let as_written = Present { stays_as_written: true, ..source_record("b", 2).present };
        let read_live = Present { live: Some(true), ..as_written.clone() };
        let b = |version: &str| gated("b", None, Some(version));
        let other = |present: Present| SourceRecord { present, ..b("shop/2") };
        let differs = Some((600, false, Vec::new()));
        for (what, used_b, known, expected) in [
            ("another version", &plain, b("shop/2"), differs.clone()),
            ("the same version", &plain, b("shop/1"), None),
            ("another set", &plain, b("other/2"), None),
            ("no set", &plain, source_record("b", 2), None),
            ("its reference is excluded", &excluded, b("shop/2"), None),
            ("it stays as written", &plain, other(as_written.clone()), None),
            ("it is read live", &plain, other(read_live), differs.clone()),
            ("the workload reads it live", &live, other(as_written), differs),
        ] {
            let record = record("web", &[used("a", Some(1)), used_b.clone()]);
            let record = having_seen(record, &[("a", 1), ("b", 2)]);
            let mut index = index(&[("web", &record)]);
            let changes = &mut Vec::new();
            index.set_read(&source("a"), Some(gated("a", None, Some("shop/1"))), changes);
            index.set_read(&source("b"), Some(known), changes);
            assert_eq!(wait(&index), expected, "{what}");
            index.set_source_unknown(&source("b"));
            assert_eq!(wait(&index), Some((1, true, Vec::new())), "{what}, and is read again");
        }
    }

    /// The workload has moved to the content of a. The content of b has another version of the set.
    #[test]
    fn set_holds_no_return_from_refused_content() {
        let record = record("web", &[used("a", Some(2)), used("b", Some(1))]);
        let record = having_seen(record, &[("a", 2), ("b", 1)])
            .tied(&object("a"), |tie| tie.previous = Some(snapshot("a", 1)));
        let mut index = index(&[("web", &record)]);
        let changes = &mut Vec::new();
        let a = SourceRecord { gates: gated("a", None, Some("shop/1")).gates, ..reverting("a", 2) };
        index.set_read(&source("a"), Some(a), changes);
        index.set_read(&source("b"), Some(gated("b", None, Some("shop/2"))), changes);
        assert_eq!(wait(&index), Some((600, false, Vec::new())));
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        index.apply_snapshot(&source("a").sibling(snapshot("a", 2)), Some(refused), changes);
        assert_eq!(wait(&index), None, "it goes back");
    }

    #[test]
    fn new_content_is_postponed_by_its_own_window() {
        let record = Record { gates: window("00:00-12:00"), ..pending(&[used("a", Some(1))]) };
        let index = index(&[("web", &record)]);
        let reason = |window: &str| {
            let json = format!(
                r#"{{"metadata":{{"name":"a","annotations":{{"confrev.dev/window":"{window}"}}}},"data":{{}}}}"#
            );
            let content = Observed::read(SourceKind::ConfigMap, json.as_bytes()).unwrap();
            postponed(&index, &key("web"), &record, &source("a"), &content, NOW)
        };
        assert_eq!(reason("00:00-01:00"), None);
        let why = reason("01:00-02:00").unwrap();
        assert!(why.to_string().contains("outside the window of ConfigMap \"a\""), "{why}");
    }
}
