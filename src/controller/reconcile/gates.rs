//! When a pending workload may roll, whatever the others do: inside its windows, and when all sources of a set that it uses have
//! the same version.
//!
//! Nothing is stored for it: the annotations and the time decide, so a restart changes nothing.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    event_texts::{invalid_on_source, invalid_on_workload},
    held::TURN,
};
use crate::{
    cluster::{Event, WorkloadKey},
    controller::{
        index::{Index, records::SourceRecord},
        name::Name,
    },
    resolve::{Closed, Observed, Record, SetWait, WindowOf},
};

/// The longest time until a postponed workload is checked again. A change of an annotation checks it at once; this is for a
/// system clock that is set.
const RECHECK: SignedDuration = SignedDuration::from_mins(10);

/// Why a pending workload may not roll now.
#[derive(Debug)]
pub(super) struct Shut {
    /// The gate: `window` or `set`.
    pub gate: &'static str,
    /// When to check it again.
    pub until: Timestamp,
    /// Only the time decides: no person needs to act.
    pub is_expected: bool,
    /// The Events about settings that cannot be followed.
    pub events: Vec<Event>,
}

/// Why a pending workload may not roll now; `None` if it may.
pub(super) fn shut(index: &Index, key: &WorkloadKey, record: &Record, now: Timestamp) -> Option<Shut> {
    let later = now + RECHECK;
    let known = || index.sources_of(key, record).map(|(_, used, known)| (used, known));
    let is_joining = index.joining(key).is_some();
    let moving = || known().filter(|(used, known)| is_joining || record.is_pending_for(used, &known.present));
    let of_sources = moving().filter_map(|(used, known)| {
        let window = known.gates.as_ref()?.window.as_deref()?;
        Some((WindowOf::Source(used.source.clone()), window))
    });
    match Closed::of(of_workload(index, key, record).chain(of_sources), now) {
        None => {}
        Some(Closed::Until { opens, .. }) => {
            let until = opens.map_or(later, |opens| opens.min(later));
            return Some(Shut { gate: "window", until, is_expected: true, events: Vec::new() });
        }
        Some(Closed::Invalid { of, why }) => {
            let events = invalid(index, key, &of, &why, now).into_iter().collect();
            return Some(Shut { gate: "window", until: later, is_expected: false, events });
        }
    }
    let set = |known: &'_ SourceRecord| known.gates.as_ref().is_some_and(|gates| gates.set.is_some());
    // A workload that returns from refused content does not wait for a set: admission keeps its snapshots of the set's sources.
    if !moving().any(|(_, known)| set(known)) || index.is_returning(key, record) {
        return None;
    }
    if index.awaits_source(key) {
        return Some(Shut { gate: "set", until: now + TURN, is_expected: true, events: Vec::new() });
    }
    let sets: Vec<_> = known()
        .filter(|(used, known)| known.present.mode_for(used).rolls())
        .filter_map(|(used, known)| Some((&used.source, known.gates.as_ref()?.set.as_deref()?)))
        .collect();
    let wait = moving().find_map(|(used, _)| SetWait::of(&used.source, sets.iter().copied()))?;
    let events = match wait {
        SetWait::Differs { .. } => Vec::new(),
        SetWait::Invalid { source, why } => {
            invalid(index, key, &WindowOf::Source(source), &why, now).into_iter().collect()
        }
    };
    Some(Shut { gate: "set", until: later, is_expected: false, events })
}

/// When a workload would roll to content that a source is about to get, as far as windows decide that; `None` if it is now.
pub(crate) fn postponed(
    index: &Index,
    key: &WorkloadKey,
    record: &Record,
    source: &Name,
    content: &Observed,
    now: Timestamp,
) -> Option<String> {
    let window = content.annotation(crate::annotations::WINDOW);
    let of_source = window.as_deref().map(|window| (WindowOf::Source(source.object.clone()), window));
    Closed::of(of_workload(index, key, record).chain(of_source), now).map(|closed| closed.to_string())
}

/// The windows of a workload and its namespace.
fn of_workload<'i>(
    index: &'i Index,
    key: &WorkloadKey,
    record: &'i Record,
) -> impl Iterator<Item = (WindowOf, &'i str)> {
    let own = record.window.as_deref().map(|window| (WindowOf::Workload, window));
    let of_namespace = index.window_of(&key.namespace).map(|window| (WindowOf::Namespace, window));
    own.into_iter().chain(of_namespace)
}

/// The Event about a setting that cannot be followed: on the object that has it, or on the workload.
fn invalid(index: &Index, key: &WorkloadKey, of: &WindowOf, why: &str, now: Timestamp) -> Option<Event> {
    match of {
        WindowOf::Source(source) => {
            let source = Name::new(Arc::clone(&key.namespace), source.clone());
            invalid_on_source(index, &source, why, now)
        }
        WindowOf::Workload => invalid_on_workload(index, key, false, why, now),
        WindowOf::Namespace => invalid_on_workload(index, key, true, why, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::index::{
            fixture::{
                digest, failed, having_seen, index, key, object, record, reverting, snapshot,
                snapshot_record, source, source_record, used,
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

    fn gated(name: &str, window: Option<&str>, set: Option<&str>) -> SourceRecord {
        let gates = Gates { window: window.map(Into::into), set: set.map(Into::into), has_schema: false };
        SourceRecord { gates: Some(gates.into()), ..source_record(name, 2) }
    }

    /// Until when the workload waits in seconds, whether for the time only, and the notes of the Events.
    fn wait(index: &Index, record: &Record) -> Option<(i64, bool, Vec<String>)> {
        let shut = shut(index, &key("web"), record, NOW)?;
        Some((
            shut.until.as_second(),
            shut.is_expected,
            shut.events.into_iter().map(|event| event.note).collect(),
        ))
    }

    #[test]
    fn closed_windows_postpone_until_they_open() {
        let own = |window: &str| Record { window: Some(window.into()), ..pending(&[used("a", Some(1))]) };
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
            let settings =
                NamespaceSettings { window: of_namespace.map(Into::into), ..NamespaceSettings::default() };
            index.apply_namespace_settings(&"ns".into(), settings, &mut Vec::new());
            assert_eq!(wait(&index, record), expected.map(|until| (until, true, Vec::new())), "{what}");
        }
        let seen = record("web", &[used("a", Some(2))]);
        let mut index = index(&[("web", &seen)]);
        index.set_read(&source("a"), Some(gated("a", Some("12:00-13:00"), None)), &mut Vec::new());
        assert_eq!(wait(&index, &seen), None, "the source moves nothing");
    }

    #[test]
    fn invalid_settings_are_reported() {
        let record = pending(&[used("a", Some(1))]);
        for (window, set, part) in
            [(Some("never"), None, "confrev.dev/window"), (None, Some("shop"), "confrev.dev/set")]
        {
            let mut index = index(&[("web", &record)]);
            index.set_read(&source("a"), Some(gated("a", window, set)), &mut Vec::new());
            let (until, is_expected, notes) = wait(&index, &record).unwrap();
            assert_eq!((until, is_expected, notes.len()), (600, false, 1), "{notes:?}");
            assert!(notes[0].contains(part), "{notes:?}");
        }
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
            assert_eq!(wait(&index, &record), expected, "{what}");
            index.set_source_unknown(&source("b"));
            assert_eq!(wait(&index, &record), Some((1, true, Vec::new())), "{what}, and is read again");
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
        assert_eq!(wait(&index, &record), Some((600, false, Vec::new())));
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        index.apply_snapshot(&source("a").sibling(snapshot("a", 2)), Some(refused), changes);
        assert_eq!(wait(&index, &record), None, "it goes back");
    }

    #[test]
    fn new_content_is_postponed_by_its_own_window() {
        let record = Record { window: Some("00:00-12:00".into()), ..pending(&[used("a", Some(1))]) };
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
        assert!(why.contains("outside the window of ConfigMap \"a\""), "{why}");
    }
}
