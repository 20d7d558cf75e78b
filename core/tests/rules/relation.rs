//! How a workload stands towards a content of a source.

use std::sync::Arc;

use confrev::{
    resolve::{Health, MemberState, Mode, Present, Record, Relation, Use, Values, Workload, WorkloadView},
    snapshot::{Digest, ObjectName, Rotated, SourceKind},
};

use jiff::Timestamp;

use super::world::{deployment, kind};

fn digest(content: u8) -> Digest {
    Digest::of_bytes([content])
}

fn source() -> ObjectName {
    ObjectName::new(SourceKind::ConfigMap, "demo")
}

/// A Deployment that has seen this content of the source.
fn having_seen(content: Option<u8>) -> Record {
    let (kind, text) = (kind("Deployment"), deployment(&["demo"]).to_string());
    let record = Record::of(&Workload::parse(&kind, &text).unwrap(), Health::Settled, &Rotated::default());
    record.tied(&source(), |tie| tie.seen = content.map(digest))
}

/// A reference to the source, or to a snapshot of it.
fn reference(snapshot: bool) -> Use {
    let snapshot = snapshot.then(|| Arc::from("demo-3a18d34e26"));
    Use::new(source(), snapshot)
}

/// The source with content 2.
fn present() -> Present {
    Present::new(digest(2).into())
}

#[test]
fn each_mode_has_its_relations() {
    let plain = present();
    let as_written = Present { stays_as_written: true, ..present() };
    let live = Present { stays_as_written: true, live: Some(true), ..present() };
    let bound = Present { stays_as_written: true, bound_itself: true, ..present() };
    let second = Present { is_snapshot: true, ..present() };
    let (name, held) = (reference(false), reference(true));
    let excluded = Use { excluded: true, ..reference(false) };
    let held_excluded = Use { excluded: true, ..reference(true) };
    let in_live = Use { live: true, ..reference(false) };
    let present_values = Relation::Seen(Values::Present);
    for (what, source, used, [unseen, old, new]) in [
        ("its name", &plain, &name, [Relation::Behind; 3]),
        ("a snapshot", &plain, &held, [Relation::Behind, Relation::Behind, present_values]),
        ("a second snapshot", &second, &held, [Relation::Apart; 3]),
        ("excluded", &plain, &excluded, [Relation::AtSource(Mode::AsWritten); 3]),
        (
            "a snapshot of an excluded one",
            &plain,
            &held_excluded,
            [Relation::Apart, Relation::Behind, Relation::Behind],
        ),
        ("as written", &as_written, &name, [Relation::AtSource(Mode::AsWritten); 3]),
        ("a snapshot as written", &as_written, &held, [Relation::Apart, Relation::Behind, Relation::Behind]),
        ("live", &live, &in_live, [Relation::Behind, Relation::Behind, Relation::AtSource(Mode::Live)]),
        (
            "live as its namespace says",
            &as_written,
            &in_live,
            [Relation::Behind, Relation::Behind, Relation::AtSource(Mode::Live)],
        ),
        ("a snapshot of a live one", &live, &held, [Relation::Apart, Relation::Behind, Relation::Behind]),
        ("its name, bound", &bound, &name, [Relation::Behind; 3]),
        ("bound", &bound, &held, [Relation::AtSource(Mode::Bound), Relation::Behind, Relation::Behind]),
    ] {
        let found = [None, Some(1), Some(2)].map(|seen| having_seen(seen).relation(used, source, None));
        assert_eq!(found, [unseen, old, new], "{what}");
        for (seen, found) in [None, Some(1), Some(2)].into_iter().zip(found) {
            let record = having_seen(seen);
            assert_eq!(record.is_pending_for(used, source), found.is_pending(), "{what}");
            let on_hold = Use { on_hold: true, ..used.clone() };
            assert!(!record.is_pending_for(&on_hold, source), "{what}");
        }
    }
}

#[test]
fn undo_and_pin_reject_values() {
    let whole = reference(true);
    let keys = Use { whole: false, ..reference(true) };
    let pinned = |record: Record| record.tied(&source(), |tie| tie.pinned = Some(Box::new(digest(9))));
    for (what, record, used, held, expected) in [
        ("its content", having_seen(Some(2)), &whole, Some(2), Values::Present),
        ("an unknown one", having_seen(Some(2)), &whole, None, Values::Present),
        ("another one", having_seen(Some(2)), &whole, Some(1), Values::Rejected),
        ("another one, in other keys", having_seen(Some(2)), &keys, Some(1), Values::Equal),
        ("another one, in its keys", pinned(having_seen(Some(2))), &keys, Some(1), Values::Rejected),
    ] {
        let held = held.map(digest);
        assert_eq!(record.relation(used, &present(), held.as_ref()), Relation::Seen(expected), "{what}");
        assert_eq!(record.keeps_other(used, held.as_ref()), expected == Values::Rejected, "{what}");
        let on_hold = Use { on_hold: true, ..used.clone() };
        assert!(!record.keeps_other(&on_hold, held.as_ref()), "{what}");
    }
    // It uses the content that the source has again.
    let unrecorded = having_seen(Some(1)).relation(&whole, &present(), Some(&digest(2)));
    assert_eq!((unrecorded, unrecorded.is_pending()), (Relation::Unrecorded, true));
}

/// The webhook's change of the template is no write of a manager: managedFields show an older time than that of the move.
#[test]
fn move_counts_from_its_own_time() {
    let second = |second| Timestamp::from_second(second).unwrap();
    let kind = kind("Deployment");
    for (moved, written, is_later) in [(100, 100, false), (86_400, 100, false), (100, 86_400, true)] {
        let mut record = having_seen(Some(2)).tied(&source(), |tie| tie.moved = Some(second(moved)));
        record.uses = vec![reference(true)];
        record.pace.written = Some(second(written));
        let view = WorkloadView {
            kind: &kind,
            path: ["ns", "web"],
            namespace_order: None,
            health: Health::Settled,
            source: &source(),
            present: &present(),
            set: None,
        };
        let MemberState::Moved(found) = record.member_state(&view, |_| None) else { panic!("{moved}") };
        let expected = (Some(second(moved)), true, is_later);
        assert_eq!((found.since, found.in_turn, found.written_since), expected, "{moved}, {written}");
    }
}

/// A change of the mode alone waits for its turn, but not behind the rollout of the same workload.
#[test]
fn change_of_mode_waits_for_its_turn() {
    let kind = kind("Deployment");
    let live = Present { live: Some(true), ..present() };
    for (what, source_now, health, track, expected) in [
        ("the same mode", &present(), Health::Settled, true, false),
        ("another mode", &live, Health::Settled, true, true),
        ("it rolls already", &live, Health::Progressing, true, false),
        ("it does not track", &live, Health::Settled, false, false),
    ] {
        let record = Record { uses: vec![reference(true)], track, ..having_seen(Some(2)) };
        let view = WorkloadView {
            kind: &kind,
            path: ["ns", "web"],
            namespace_order: None,
            health,
            source: &source(),
            present: source_now,
            set: None,
        };
        let member_state = record.member_state(&view, |_| None);
        assert_eq!(matches!(member_state, MemberState::Waits(_)), expected, "{what}: {member_state:?}");
    }
}
