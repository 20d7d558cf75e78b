//! What is taken up again when what was in its way is gone.

use std::{collections::BTreeSet, sync::Arc};

use confrev::{
    cluster::{ApiError, Owner},
    controller::{Action, Outcome, Revision, RevisionKey},
    names,
    resolve::{Health, Record},
    snapshot::{ObjectName, SourceKind},
};
use jiff::SignedDuration;
use serde_json::json;

use super::{
    controller::{BLUE, Desk, digest, key, name, observed, record, snapshot, stored, web_on_blue},
    orders::{pokes_for, told},
    world::World,
};

#[test]
fn a_lost_snapshot_is_made_again_when_its_source_holds_its_content_once_more() {
    for annotations in [json!({}), json!({names::KEEP: "0"})] {
        let (_, web, mut desk) = web_on_blue();
        let green = json!({"color": "green"});
        // The workload is pinned to blue, and blue is gone; the source is green.
        let mut pinned = record(&web, Health::Settled);
        let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
        pinned.seen = [(demo.clone(), digest("green"))].into_iter().collect();
        // It rolls by apply only, or blue would roll it.
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

#[test]
fn a_lost_snapshot_that_only_a_revision_names_is_made_again_when_its_source_holds_its_content_once_more() {
    let (_, web, mut desk) = web_on_blue();
    let green = json!({"color": "green"});
    let uses = record(&web, Health::Settled).uses;
    let set = RevisionKey { kind: 0, namespace: "ns".into(), name: "web-1".into() };
    desk.state.apply_workload(&key("web"), None, desk.now);
    desk.state.apply_revision(&set, Some(Revision { uid: "rs".into(), uses }), desk.now);
    // Another snapshot of the source is there, so that it is watched.
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

#[test]
fn a_namespace_is_taken_up_when_the_webhook_comes_into_force_after_ten_minutes() {
    let mut desk = Desk::new();
    desk.state.apply_namespace(&Arc::from("ns"), true, desk.now);
    let mut taken_up = 0;
    for second in 0..7200 {
        desk.pass(1);
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::OptIn(_) if second < 600 => Err(ApiError::InVain { what: String::new() }),
                Action::OptIn(_) => {
                    taken_up += 1;
                    Ok(Outcome::Done)
                }
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
    }
    assert!(taken_up > 0, "not within two hours");
}

/// A change breaks the first that takes it, and is taken back; another one was unwell before all this.
#[test]
fn who_failed_with_a_content_is_not_held_from_the_one_before_it_by_one_that_was_unwell_before() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let (blue, limit) = (json!({"color": "blue"}), json!({names::MAX_IN_FLIGHT: "1"}));
    let unwell = record(&stored(&mut world, "unwell"), Health::Failed);
    let mut broken = record(&stored(&mut world, "broken"), Health::Failed);
    broken.seen = [(ObjectName::new(SourceKind::ConfigMap, "demo"), digest("green"))].into_iter().collect();
    broken.uses[0].snapshot = Some("demo-736a916696".into());
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("unwell"), Some(unwell), desk.now);
    desk.state.apply_workload(&key("broken"), Some(broken), desk.now);
    // The source is blue again.
    desk.act(&blue, &limit, "3");
    assert!(pokes_for(&mut desk, 3600) > 0, "it is held at the content that broke it");
}

#[test]
fn what_bears_the_labels_of_a_snapshot_is_looked_at_before_it_is_bound_whoever_owns_it() {
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
fn a_namespace_that_is_labelled_anew_is_taken_up_at_once() {
    let mut desk = Desk::new();
    let ns: Arc<str> = Arc::from("ns");
    desk.state.apply_namespace(&ns, true, desk.now);
    for _ in 0..7200 {
        desk.pass(1);
        for (task, action) in desk.actions() {
            let outcome = if matches!(action, Action::OptIn(_)) {
                Err(ApiError::InVain { what: String::new() })
            } else {
                Ok(Outcome::Done)
            };
            desk.state.finish(&task, outcome, desk.now);
        }
    }
    // Somebody mends the webhook, takes the label off and sets it again.
    desk.state.apply_namespace(&ns, false, desk.now);
    desk.pass(5);
    desk.state.apply_namespace(&ns, true, desk.now);
    let after = (0..3700).find(|_| {
        desk.pass(1);
        let acts = desk.actions();
        acts.iter().any(|(_, action)| matches!(action, Action::OptIn(_)))
    });
    assert!(after.is_some_and(|seconds| seconds < 60), "after {after:?} s");
}

#[test]
fn what_is_lost_is_not_looked_for_at_every_touch_of_another_source() {
    let (_, web, mut desk) = web_on_blue();
    let uses = record(&web, Health::Settled).uses;
    desk.act(&json!({"color": "green"}), &json!({}), "2");
    // Fifty revisions, each of a snapshot that is gone.
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
    // Its annotations are written once in a second, as leader election does.
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
    assert!(looks < 100, "{looks} looks, each at lists, in a minute without any change of content");
}

#[test]
fn a_replica_that_leads_again_lets_a_change_settle() {
    let (_, web, mut desk) = web_on_blue();
    let before = record(&web, Health::Settled);
    desk.act(&json!({"color": "green"}), &json!({}), "2");
    // It is pending, and the Lease is lost before it has settled.
    desk.state.leave_to_the_leader();
    desk.state.apply_source(&name("demo"), Some(&told("3")), desk.now);
    desk.state.leave_to_the_leader();
    desk.pass(10);
    let rolled = Record {
        resource_version: "7".to_owned(),
        last_roll: Some(desk.now),
        seen: [(
            ObjectName::new(SourceKind::ConfigMap, "demo"),
            observed(json!({"color": "green"}), json!({}), "2").digest(),
        )]
        .into_iter()
        .collect(),
        ..before
    };
    desk.state.apply_workload(&key("web"), Some(rolled), desk.now);
    desk.state.leave_to_the_leader();
    desk.pass(86_400);
    // It leads again, and the source has just changed.
    desk.state.look_at_all(desk.now);
    let mut pokes = 0;
    for _ in 0..5 {
        for action in desk.act(&json!({"color": "red"}), &json!({}), "4") {
            pokes += usize::from(matches!(action, Action::Poke { .. }));
        }
        desk.now += SignedDuration::from_millis(100);
    }
    assert_eq!(pokes, 0, "within half a second, where `settle` is a second");
}
