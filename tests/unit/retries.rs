//! Tasks that continue once their obstacle is removed.

use std::{collections::BTreeSet, sync::Arc};

use confrev::{
    annotations,
    cluster::ApiError,
    controller::{Action, Outcome},
    resolve::{Health, NamespaceOptIn, Record},
    snapshot::{ObjectName, SourceKind},
    world::{Name, Owner, Revision, RevisionKey},
};
use jiff::SignedDuration;
use serde_json::json;

use super::{
    controller::{BLUE, Desk, digest, key, name, observed, record, snapshot, stored, web_on_blue},
    event_orders::{pokes_for, told},
    world::World,
};

#[test]
fn lost_snapshot_is_restored_when_content_returns() {
    for annotations in [json!({}), json!({annotations::KEEP: "0"})] {
        let (_, web, mut desk) = web_on_blue();
        let green = json!({"color": "green"});
        // The workload is pinned to blue, whose snapshot is missing; the source is green.
        let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
        let mut pinned = record(&web, Health::Settled).tied(&demo, |tie| tie.seen = Some(digest("green")));
        // It rolls only by apply: otherwise it would roll to blue.
        pinned.track = false;
        desk.state.apply_workload(&key("web"), Some(pinned), desk.now);
        desk.act(&green, &annotations, "2");
        desk.state.apply_snapshot(&name("demo-736a916696"), Some(snapshot("green", "1", &[])), desk.now);
        desk.pass(5);
        let _ = desk.act(&green, &annotations, "2");
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
        desk.state.apply_snapshot(&name(BLUE), None, desk.now);
        assert_eq!(desk.lose(), BTreeSet::from([name(BLUE)]));
        // The Event says: write the old content to the source again.
        desk.state.apply_source(&name("demo"), Some(&told("3")), desk.now);
        let mut tried = Vec::new();
        for _ in 0..120 {
            tried.append(&mut desk.act(&json!({"color": "blue"}), &annotations, "3"));
            desk.pass(1);
        }
        let made = tried.iter().any(|action| match action {
            Action::Ensure { source, .. } => *source == name("demo"),
            Action::Restore { snapshot, .. } => *snapshot == name(BLUE),
            _ => false,
        });
        assert!(made, "with {annotations}: {tried:?}");
    }
}

/// Only a revision refers to it, and the source has its content again.
#[test]
fn lost_snapshot_of_revision_is_restored() {
    let (_, web, mut desk) = web_on_blue();
    let green = json!({"color": "green"});
    let uses = record(&web, Health::Settled).uses;
    let set = RevisionKey { kind: 0, namespace: "ns".into(), name: "web-1".into() };
    desk.state.apply_workload(&key("web"), None, desk.now);
    desk.state.apply_revision(&set, Some(Revision { uid: "rs".into(), uses }), desk.now);
    // Another snapshot of the source exists, so the source is watched.
    desk.state.apply_snapshot(&name("demo-736a916696"), Some(snapshot("green", "1", &[])), desk.now);
    desk.act(&green, &json!({}), "2");
    desk.pass(5);
    assert!(desk.lose().contains(&name(BLUE)));
    desk.state.apply_source(&name("demo"), Some(&told("3")), desk.now);
    let mut tried = Vec::new();
    for _ in 0..120 {
        tried.append(&mut desk.act(&json!({"color": "blue"}), &json!({}), "3"));
        desk.pass(1);
    }
    let made = tried.iter().any(|action| matches!(action, Action::Restore { .. } | Action::Ensure { .. }));
    assert!(made, "{tried:?}");
}

/// The webhook takes effect after ten minutes.
#[test]
fn namespace_opts_in_once_webhook_takes_effect() {
    let mut desk = Desk::new();
    desk.state.apply_namespace(&Arc::from("ns"), NamespaceOptIn::Now, desk.now);
    let mut taken_up = 0;
    for second in 0..7200 {
        desk.pass(1);
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::OptIn(..) if second < 600 => Err(ApiError::InVain { what: String::new() }),
                Action::OptIn(..) => {
                    taken_up += 1;
                    Ok(Outcome::Done)
                }
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
    }
    assert!(taken_up > 0, "no opt-in within two hours");
}

/// The pause after a roll that failed, or moved nothing, is about its content. A write that changes only annotations does not end it.
#[test]
fn other_content_is_tried_at_once() {
    for in_vain in [false, true] {
        let (_, web, mut desk) = web_on_blue();
        let before = record(&web, Health::Settled);
        let tries = |desk: &mut Desk, seconds: usize| {
            let mut tries = Vec::new();
            for _ in 0..seconds {
                for (task, action) in desk.actions() {
                    let outcome = match action {
                        Action::Poke { names_contents, .. } => {
                            tries.push(names_contents);
                            let (what, message) = ("patch".to_owned(), "exceeded quota".to_owned());
                            let refused = ApiError::Refused { what, code: 403, message };
                            if in_vain { Ok(Outcome::Poked(Box::new(before.clone()))) } else { Err(refused) }
                        }
                        _ => Ok(Outcome::Done),
                    };
                    desk.state.finish(&task, outcome, desk.now);
                }
                desk.pass(1);
            }
            tries
        };
        desk.act(&json!({"color": "green"}), &json!({}), "2");
        let first = tries(&mut desk, 200);
        assert!((4..20).contains(&first.len()), "in vain: {in_vain}: {first:?}");
        assert!(
            first[0] && first[1] != in_vain,
            "in vain: {in_vain}: a source that changes all the time moves, too"
        );
        let write = |desk: &mut Desk, color: &str, version: &str| {
            desk.state.apply_source(&name("demo"), Some(&told(version)), desk.now);
            desk.act(&json!({"color": color}), &json!({}), version);
        };
        write(&mut desk, "green", "3");
        assert!(tries(&mut desk, 3).is_empty(), "in vain: {in_vain}: the same content");
        write(&mut desk, "red", "4");
        let other = tries(&mut desk, 3);
        assert!(other.len() > 1 && other[1] != in_vain, "in vain: {in_vain}: other content: {other:?}");
    }
}

/// A change breaks the first workload that rolls to it, and is reverted. Another workload was unhealthy before the change.
#[test]
fn failed_workload_may_return_to_previous_content() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let (blue, limit) = (json!({"color": "blue"}), json!({annotations::MAX_IN_FLIGHT: "1"}));
    let unwell = record(&stored(&mut world, "unwell"), Health::Failed);
    let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
    let mut broken = record(&stored(&mut world, "broken"), Health::Failed)
        .tied(&demo, |tie| tie.seen = Some(digest("green")));
    broken.uses[0].snapshot = Some("demo-736a916696".into());
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("unwell"), Some(unwell), desk.now);
    desk.state.apply_workload(&key("broken"), Some(broken), desk.now);
    // The source is blue again.
    desk.act(&blue, &limit, "3");
    assert!(pokes_for(&mut desk, 3600) > 0, "the workload is held at the content that broke it");
}

/// This does not depend on its present owners.
#[test]
fn labelled_snapshot_is_verified_before_it_is_bound() {
    for owners in [vec![], vec![Owner::new("v1", "Thing", "t", "foreign")]] {
        let (_, _, mut desk) = web_on_blue();
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &owners)), desk.now);
        desk.act(&json!({"color": "blue"}), &json!({}), "1");
        desk.pass(1);
        let acts = desk.act(&json!({"color": "blue"}), &json!({}), "1");
        let [Action::SetOwners { verify, .. }] = &acts[..] else { panic!("{acts:?}") };
        assert!(verify.is_some(), "owned by {owners:?}");
    }
}

#[test]
fn relabelled_namespace_opts_in_at_once() {
    let mut desk = Desk::new();
    let ns: Arc<str> = Arc::from("ns");
    desk.state.apply_namespace(&ns, NamespaceOptIn::Now, desk.now);
    for _ in 0..7200 {
        desk.pass(1);
        for (task, action) in desk.actions() {
            let outcome = if matches!(action, Action::OptIn(..)) {
                Err(ApiError::InVain { what: String::new() })
            } else {
                Ok(Outcome::Done)
            };
            desk.state.finish(&task, outcome, desk.now);
        }
    }
    // A user repairs the webhook, removes the label and sets it again.
    desk.state.apply_namespace(&ns, NamespaceOptIn::Out, desk.now);
    desk.pass(5);
    desk.state.apply_namespace(&ns, NamespaceOptIn::Now, desk.now);
    let after = (0..3700).find(|_| {
        desk.pass(1);
        let acts = desk.actions();
        acts.iter().any(|(_, action)| matches!(action, Action::OptIn(..)))
    });
    assert!(after.is_some_and(|seconds| seconds < 60), "after {after:?} s");
}

/// Each retry lists objects, and the content of the source does not change.
#[test]
fn lost_snapshots_are_not_retried_at_every_update() {
    let (_, web, mut desk) = web_on_blue();
    let uses = record(&web, Health::Settled).uses;
    desk.act(&json!({"color": "green"}), &json!({}), "2");
    // Fifty revisions, each with a missing snapshot.
    for number in 0..50 {
        let mut used = uses[0].clone();
        used.snapshot = Some(format!("demo-{number:010}").into());
        let set = RevisionKey { kind: 0, namespace: "ns".into(), name: format!("web-{number}").into() };
        desk.state.apply_revision(&set, Some(Revision { uid: "rs".into(), uses: vec![used] }), desk.now);
    }
    desk.pass(5);
    assert!(desk.lose().len() >= 50);
    desk.pass(60);
    desk.lose();
    let mut looks = 0;
    // The annotations of the source change every second, as with leader election.
    for version in 10..70 {
        desk.state.apply_source(&name("demo"), Some(&told(&version.to_string())), desk.now);
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Read(_) => Outcome::Read(Some(Box::new(observed(
                    json!({"color": "green"}),
                    json!({}),
                    &version.to_string(),
                )))),
                _ => Outcome::Done,
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        looks += desk.look_in_vain().len();
        desk.pass(1);
        looks += desk.look_in_vain().len();
    }
    assert!(looks < 100, "{looks} retries in a minute without a change of content");
}

#[test]
fn returning_leader_lets_a_change_settle() {
    let (_, web, mut desk) = web_on_blue();
    let before = record(&web, Health::Settled);
    desk.act(&json!({"color": "green"}), &json!({}), "2");
    // The change is pending, and the Lease is lost before it has settled.
    desk.state.leave_to_the_leader();
    desk.state.apply_source(&name("demo"), Some(&told("3")), desk.now);
    desk.state.leave_to_the_leader();
    desk.pass(10);
    let rolled = Record {
        resource_version: "7".into(),
        last_roll: Some(desk.now),
        ..before.tied(&ObjectName::new(SourceKind::ConfigMap, "demo"), |tie| {
            tie.seen = Some(observed(json!({"color": "green"}), json!({}), "2").digest());
        })
    };
    desk.state.apply_workload(&key("web"), Some(rolled), desk.now);
    desk.state.leave_to_the_leader();
    desk.pass(86_400);
    // The replica leads again, and the source has just changed.
    desk.state.reconcile_all(desk.now);
    let mut pokes = 0;
    for _ in 0..5 {
        for action in desk.act(&json!({"color": "red"}), &json!({}), "4") {
            pokes += usize::from(matches!(action, Action::Poke { .. }));
        }
        desk.now += SignedDuration::from_millis(100);
    }
    assert_eq!(pokes, 0, "rolled within half a second, although `settle` is a second");
}

#[test]
fn new_leader_lets_a_pending_change_settle() {
    let (_, _, mut desk) = web_on_blue();
    let green = json!({"color": "green"});
    desk.act(&green, &json!({}), "2");
    desk.state.leave_to_the_leader();
    desk.pass(100);
    desk.state.reconcile_all(desk.now);
    let poked = |actions: Vec<Action>| actions.iter().any(|action| matches!(action, Action::Poke { .. }));
    assert!(!poked(desk.act(&green, &json!({}), "2")), "rolled at once, although `settle` is a second");
    desk.pass(2);
    assert!(poked(desk.act(&green, &json!({}), "2")));
}

/// A namespace that opts out for a moment makes its workloads pending.
#[test]
fn change_settles_after_its_namespace_returned() {
    let (_, web, mut desk) = web_on_blue();
    let (blue, ns): (_, Arc<str>) = (json!({"color": "blue"}), "ns".into());
    let poked = |actions: Vec<Action>| actions.iter().any(|action| matches!(action, Action::Poke { .. }));
    let given = Record { by_namespace: true, ..record(&web, Health::Settled) };
    desk.state.apply_namespace(&ns, NamespaceOptIn::Now, desk.now);
    desk.state.apply_workload(&key("web"), Some(given), desk.now);
    desk.act(&blue, &json!({}), "1");
    for opt_in in [NamespaceOptIn::Out, NamespaceOptIn::Now] {
        desk.state.apply_namespace(&ns, opt_in, desk.now);
    }
    for _ in 0..60 {
        assert!(!poked(desk.act(&blue, &json!({}), "1")));
        desk.pass(1);
    }
    desk.state.apply_source(&name("demo"), Some(&told("2")), desk.now);
    assert!(!poked(desk.act(&json!({"color": "green"}), &json!({}), "2")), "rolled at once");
    desk.pass(2);
    assert!(poked(desk.act(&json!({"color": "green"}), &json!({}), "2")));
}

/// Until then, a snapshot may only seem to be unused, or a workload to be pending.
#[test]
fn reads_only_until_all_watches_listed() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let web = stored(&mut world, "web");
    let mut desk = Desk::unsynced();
    desk.state.apply_workload(&key("web"), Some(record(&web, Health::Settled)), desk.now);
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
    let mut reads = 0;
    for _ in 0..10 {
        for (task, action) in desk.actions() {
            assert!(matches!(action, Action::Read(_)), "{action:?}");
            reads += 1;
            let found = observed(json!({"color": "green"}), json!({}), "2");
            desk.state.finish(&task, Ok(Outcome::Read(Some(Box::new(found)))), desk.now);
        }
        desk.pass(1);
    }
    assert!(reads > 0);
    desk.state.set_synced();
    desk.pass(1);
    let actions = desk.act(&json!({"color": "green"}), &json!({}), "2");
    assert!(actions.iter().any(|action| matches!(action, Action::Poke { .. })), "{actions:?}");
}

/// The second name of a content has more digits.
#[test]
fn lost_snapshot_is_restored_from_equal_snapshot() {
    let longer = format!("{BLUE}0123");
    for (namespace, color, restores) in
        [("ns", "blue", true), ("ns", "green", false), ("other", "blue", false)]
    {
        let (_, _, mut desk) = web_on_blue();
        desk.find_nothing();
        desk.pass(2);
        assert!(desk.lose().contains(&name(BLUE)));
        desk.pass(60);
        assert_eq!(desk.look_in_vain().len(), 0);
        let beside = Name::new(namespace, name(&longer).object);
        desk.state.apply_snapshot(&beside, Some(snapshot(color, "1", &[])), desk.now);
        assert_eq!(desk.look_in_vain().contains(&name(BLUE)), restores, "{namespace} {color}");
    }
}
