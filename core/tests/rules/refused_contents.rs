//! Contents that the installation refuses, at admission: no reference resolves to them.

use confrev::{
    annotations,
    resolve::{Move, Plan, RecordedFailure, RefusedContents, To, Verdict},
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, undo},
    world::{World, annotate, configmap, deployment, kind, remembered, volume},
};

/// A workload on blue, whose source gets the refused content green. `reverts`: the source has `on-failure: revert`.
fn refused(reverts: bool) -> (World, Value) {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    list_present(&mut world);
    if reverts {
        let source = world.objects.get_mut(&configmap("demo")).unwrap();
        source["metadata"]["annotations"] = json!({annotations::ON_FAILURE: "revert"});
    }
    (world, first)
}

/// Lists the present content of the source.
fn list_present(world: &mut World) {
    let digest = world.observe(&configmap("demo")).unwrap().digest();
    world.refused = RefusedContents::read([("list", &*format!("{digest} it is slow"))]).0;
}

fn applied(stored: &Value) -> Value {
    let mut new = stored.clone();
    new["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!("demo");
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    new
}

#[test]
fn no_write_moves_a_workload_to_refused_content() {
    for reverts in [false, true] {
        let (mut world, first) = refused(reverts);
        assert_eq!(volume(&poke(&mut world, &first, 5), 0), BLUE, "the controller");
        let admitted = world.admit(&applied(&first), Some(&first));
        assert_eq!(volume(&admitted.object, 0), BLUE, "a deployment");
        assert_eq!(remembered(&admitted.object, "seen"), remembered(&first, "seen"), "it stays pending");
        let warning = format!("{GREEN:?} was refused (ConfigMap confrev-refused lists it (it is slow))");
        let warnings = &admitted.decision.warnings;
        assert!(warnings.iter().any(|text| text.starts_with(&warning)), "{warnings:?}");
        // Without the list it moves, and so does one that may have other content.
        world.refused = RefusedContents::default();
        assert_eq!(volume(&poke(&mut world, &admitted.object, 7), 0), GREEN);
    }
}

#[test]
fn workload_without_earlier_snapshot_is_refused() {
    let mut world = World::default();
    world.set("demo", json!({"color": "green"}));
    list_present(&mut world);
    let denial = world.review(&kind("Deployment"), &deployment(&["demo"]), None).decision.denial;
    let expected = "Deployment \"web\": the content of ConfigMap \"demo\" was refused (ConfigMap confrev-refused lists it (it is slow)), and \
                    the workload has no earlier snapshot: correct ConfigMap \"demo\"";
    assert_eq!(denial.as_deref(), Some(expected));
}

/// A failure of a workload takes them back, with or without a list.
#[test]
fn workloads_with_listed_content_keep_it() {
    for (has_failed, expected) in [(false, GREEN), (true, BLUE)] {
        let (mut world, first) = refused(true);
        let list = std::mem::take(&mut world.refused);
        let second = poke(&mut world, &first, 5);
        assert_eq!(volume(&second, 0), GREEN);
        world.refused = list;
        if has_failed {
            let failed = RecordedFailure { reason: "it failed".into(), ..RecordedFailure::default() };
            let verdict = Verdict { failed: Some(failed), ..Verdict::default() }.text();
            world.objects.get_mut(&configmap(GREEN)).unwrap()["metadata"]["annotations"]
                [annotations::VERDICT] = json!(verdict);
        }
        assert_eq!(volume(&world.update(&applied(&second), &second), 0), expected, "{has_failed}");
        assert_eq!(volume(&poke(&mut world, &second, 7), 0), expected, "{has_failed}");
        assert_eq!(volume(&world.update(&undo(&second, &first), &second), 0), BLUE, "an undo");
    }
}

/// As in a manifest that was exported from another cluster.
#[test]
fn name_of_snapshot_evades_no_refusal() {
    let mut world = World::default();
    world.set("demo", json!({"color": "green"}));
    list_present(&mut world);
    let mut exported = deployment(&[GREEN]);
    let sources = json!({"configmaps": {"demo": GREEN}}).to_string();
    exported["spec"]["template"]["metadata"]["annotations"] = json!({annotations::SOURCES: sources});
    let denial = world.review(&kind("Deployment"), &exported, None).decision.denial;
    assert!(denial.is_some_and(|text| text.contains("was refused")));
}

/// The source has other content by now.
#[test]
fn undo_to_listed_content_is_warned_of() {
    let (mut world, first) = refused(false);
    let list = std::mem::take(&mut world.refused);
    let second = poke(&mut world, &first, 5);
    world.set("demo", json!({"color": "red"}));
    let third = poke(&mut world, &second, 7);
    world.refused = list;
    let admitted = world.admit(&undo(&third, &second), Some(&third));
    assert_eq!(volume(&admitted.object, 0), GREEN);
    let warnings = &admitted.decision.warnings;
    assert!(warnings.iter().any(|text| text.contains("rolls to it nevertheless")), "{warnings:?}");
}

#[test]
fn person_moves_to_refused_content_with_force_only() {
    let (mut world, first) = refused(false);
    let list = std::mem::take(&mut world.refused);
    let second = poke(&mut world, &first, 5);
    let back = world.update(&undo(&second, &first), &second);
    world.refused = list;
    let mut plan = |to: To, forced: bool| {
        let mut asked = back.clone();
        let moves = [(configmap("demo"), Move { to, forced })].into();
        let plan = Plan::of_person("2026-01-01T00:00:00Z".parse().unwrap(), moves);
        annotate(&mut asked, annotations::ROLL, &plan.to_value());
        let admitted = world.review(&kind("Deployment"), &asked, Some(&back));
        (volume(&admitted.object, 0).to_owned(), admitted.decision.denial)
    };
    let needs_force = |denial: Option<String>| denial.is_some_and(|text| text.contains("add --force"));
    assert!(needs_force(plan(To::Snapshot(GREEN.to_owned()), false).1), "a snapshot");
    assert!(needs_force(plan(To::Present, false).1), "the present content");
    assert_eq!(plan(To::Present, true), (GREEN.to_owned(), None));
    assert_eq!(plan(To::Snapshot(GREEN.to_owned()), true), (GREEN.to_owned(), None));
}
