//! What follows from the answer of a gate: when to ask it again, and its Events.

use jiff::{SignedDuration, Timestamp};

use super::event_texts::{invalid_on_source, invalid_on_workload, refused_content};
use crate::{
    cluster::Event,
    gate_settings::{Closed, Place},
    gates::Why,
    resolve::{SetWait, Wait},
    world::{Name, WorkloadKey, World},
};

/// How long a held workload waits before the gates are asked again.
pub(crate) const NEXT_CHECK: SignedDuration = SignedDuration::from_secs(1);
/// The longest that it waits if the bake time of a wave lasts longer: a workload may be deleted meanwhile.
pub(in crate::controller) const BAKE: SignedDuration = SignedDuration::from_secs(5);
/// The longest time until a workload is checked again that waits for a window or a set. A change of an annotation checks it at once;
/// this is for a system clock that is set.
const RECHECK: SignedDuration = SignedDuration::from_mins(10);

/// When to ask the gate of a workload again. What it depends on may change unseen, such as the health of others.
pub(super) fn ask_again(why: &Why<WorkloadKey>, now: Timestamp) -> Timestamp {
    match why {
        // Other content, another workload, another list and the end of a check queue it again.
        Why::Paused
        | Why::Held { .. }
        | Why::Listed { .. }
        | Why::Schema { .. }
        | Why::RequiredKey { .. }
        | Why::Closed(_)
        | Why::Set(_) => why.until(now).unwrap_or(Timestamp::MAX).min(now + RECHECK),
        Why::Interval(_) => why.until(now).unwrap_or(now + RECHECK),
        Why::Others(Wait::Bake(end)) => (now + NEXT_CHECK).max((*end).min(now + BAKE)),
        Why::SetUnread | Why::Others(_) => now + NEXT_CHECK,
        Why::Refused { .. } => now + BAKE,
    }
}

/// The Events about a setting that cannot be followed, or a content that is refused, if that is why: on the object to correct, or on the
/// workload. `source`: the one that does not move.
pub(in crate::controller) fn reported(
    world: &World,
    key: &WorkloadKey,
    source: Option<&Name>,
    why: &Why<WorkloadKey>,
    now: Timestamp,
) -> Vec<Event> {
    let event = match why {
        Why::Closed(Closed::Invalid { of: Place::Workload, why, .. }) => {
            invalid_on_workload(world, key, false, why, now)
        }
        Why::Closed(Closed::Invalid { of: Place::Namespace, why, .. }) => {
            invalid_on_workload(world, key, true, why, now)
        }
        Why::Closed(Closed::Invalid { of: Place::Source(source), why, .. })
        | Why::Set(SetWait::Invalid { source, why }) => {
            let source = key.beside(source.clone());
            invalid_on_source(world, &source, why, now)
        }
        Why::Others(Wait::Invalid(why)) => {
            source.and_then(|source| invalid_on_source(world, source, why, now))
        }
        Why::Listed { .. } | Why::Schema { .. } | Why::RequiredKey { .. } => {
            let of = |source| refused_content(world, key, source, why, now);
            return source.map(of).unwrap_or_default();
        }
        Why::Paused
        | Why::Held { .. }
        | Why::Refused { .. }
        | Why::Closed(_)
        | Why::Set(_)
        | Why::SetUnread
        | Why::Interval(_)
        | Why::Others(_) => None,
    };
    event.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::held::{GateCheck, HeldWorkloads},
        *,
    };
    use crate::{
        resolve::{Present, Record, SpreadPolicy, Use},
        world::{
            NamespaceSettings, SnapshotRecord, SourceRecord,
            fixture::{
                digest, failed, having_seen, held, key, object, record, reverting, snapshot, snapshot_record,
                source, source_record, used, window, world,
            },
            records::Gates,
        },
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
            check: None,
        };
        SourceRecord { gates: Some(gates.into()), ..source_record(name, 2) }
    }

    /// Until when the workload waits in seconds, whether the wait ends by itself, and the notes of the Events.
    fn wait(world: &World) -> Option<(i64, bool, Vec<String>)> {
        let mut held = HeldWorkloads::default();
        let GateCheck { held: found, events, .. } =
            held.check(world, &key("web"), |_, _, _| false, (NOW, NOW));
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
            let mut world = world(&[("web", record)]);
            world.set_read(&source("a"), Some(gated("a", of_source, None)), &mut Vec::new());
            let settings = NamespaceSettings {
                gates: of_namespace.map(window).unwrap_or_default(),
                ..NamespaceSettings::default()
            };
            world.apply_namespace_settings(&"ns".into(), settings, &mut Vec::new());
            assert_eq!(wait(&world), expected.map(|until| (until, true, Vec::new())), "{what}");
        }
        let seen = record("web", &[used("a", Some(2))]);
        let mut world = world(&[("web", &seen)]);
        world.set_read(&source("a"), Some(gated("a", Some("12:00-13:00"), None)), &mut Vec::new());
        assert_eq!(wait(&world), None, "the source moves nothing");
    }

    #[test]
    fn invalid_settings_are_reported() {
        let record = pending(&[used("a", Some(1))]);
        for (invalid, set, part) in
            [(Some("never"), None, "confrev.dev/window"), (None, Some("shop"), "confrev.dev/set")]
        {
            let mut world = world(&[("web", &record)]);
            world.set_read(&source("a"), Some(gated("a", invalid, set)), &mut Vec::new());
            let (until, is_expected, notes) = wait(&world).unwrap();
            assert_eq!((until, is_expected, notes.len()), (600, false, 1), "{notes:?}");
            assert!(notes[0].contains(part), "{notes:?}");
        }
    }

    /// The metric names the gate that the commands name.
    #[test]
    fn window_of_workload_hides_no_invalid_setting() {
        let record = Record { gates: window("12:00-13:00"), ..pending(&[used("a", Some(1))]) };
        let mut world = world(&[("web", &record)]);
        world.set_read(&source("a"), Some(gated("a", Some("never"), None)), &mut Vec::new());
        let mut held = HeldWorkloads::default();
        held.check(&world, &key("web"), |_, _, _| false, (NOW, NOW));
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
            let mut world = world(&[("web", &record)]);
            let changes = &mut Vec::new();
            world.set_read(&source("a"), Some(gated("a", None, Some("shop/1"))), changes);
            world.set_read(&source("b"), Some(known), changes);
            assert_eq!(wait(&world), expected, "{what}");
            world.set_source_unknown(&source("b"));
            assert_eq!(wait(&world), Some((1, true, Vec::new())), "{what}, and is read again");
        }
    }

    /// The source a is on hold, and both have changed.
    #[test]
    fn hold_keeps_the_other_sources_of_its_set() {
        for (set, expected) in [(Some("shop/1"), Some((600, true, Vec::new()))), (None, None)] {
            let record = record("web", &[held("a", 1), used("b", Some(1))]);
            let record = having_seen(record, &[("a", 1), ("b", 1)]);
            let mut world = world(&[("web", &record)]);
            for name in ["a", "b"] {
                let spread = SpreadPolicy { set: set.map(Into::into), ..SpreadPolicy::default() };
                let known = SourceRecord { spread: spread.into(), ..gated(name, None, set) };
                world.set_read(&source(name), Some(known), &mut Vec::new());
            }
            assert_eq!(wait(&world), expected, "{set:?}");
        }
    }

    /// The workload has moved to the content of a. The content of b has another version of the set.
    #[test]
    fn set_holds_no_return_from_refused_content() {
        let record = record("web", &[used("a", Some(2)), used("b", Some(1))]);
        let record = having_seen(record, &[("a", 2), ("b", 1)])
            .tied(&object("a"), |tie| tie.previous = Some(snapshot("a", 1)));
        let mut world = world(&[("web", &record)]);
        let changes = &mut Vec::new();
        let a = SourceRecord { gates: gated("a", None, Some("shop/1")).gates, ..reverting("a", 2) };
        world.set_read(&source("a"), Some(a), changes);
        world.set_read(&source("b"), Some(gated("b", None, Some("shop/2"))), changes);
        assert_eq!(wait(&world), Some((600, false, Vec::new())));
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        world.apply_snapshot(&source("a").sibling(snapshot("a", 2)), Some(refused), changes);
        assert_eq!(wait(&world), None, "it goes back");
    }
}
