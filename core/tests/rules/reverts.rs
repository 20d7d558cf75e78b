//! `on-failure: revert` at admission: no reference resolves to refused content.

use confrev::{
    annotations,
    resolve::{RecordedFailure, SpreadPolicy, Verdict, hold_text},
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, undo},
    world::{World, annotate, configmap, deployment, kind, remembered, volume},
};

const AT: &str = "2026-01-01T00:00:00Z";
const REASON: &str = "Deployment/api failed: ProgressDeadlineExceeded";

fn set(world: &mut World, color: &str, more: &Value) {
    world.set("demo", json!({"color": color}));
    let object = world.objects.get_mut(&configmap("demo")).unwrap();
    object["metadata"]["annotations"] = json!({annotations::ON_FAILURE: "revert"});
    for (key, value) in more.as_object().into_iter().flatten() {
        object["metadata"]["annotations"][key] = value.clone();
    }
}

/// A workload that moved from blue to green, and the stored object before.
fn moved() -> (World, Value, Value) {
    let mut world = World::default();
    set(&mut world, "blue", &Value::Null);
    let first = world.create(&deployment(&["demo"]));
    set(&mut world, "green", &Value::Null);
    let second = poke(&mut world, &first, 5);
    (world, first, second)
}

fn refuse(world: &mut World, snapshot: &str, previous: Option<&str>) {
    let annotations = &mut world.objects.get_mut(&configmap(snapshot)).unwrap()["metadata"]["annotations"];
    annotations[annotations::VERDICT] = json!(failed(previous));
}

fn failed(previous: Option<&str>) -> Option<String> {
    let failed = RecordedFailure { reason: REASON.into(), at: AT.into(), previous: previous.map(Into::into) };
    Verdict { failed: Some(failed), ..Verdict::default() }.text()
}

fn previous(object: &Value) -> Value {
    remembered(object, "previous")
}

fn seen(object: &Value) -> Value {
    remembered(object, "seen")
}

fn applied(stored: &Value) -> Value {
    let mut new = stored.clone();
    new["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!("demo");
    new
}

#[test]
fn move_records_previous_snapshot() {
    let (mut world, first, second) = moved();
    assert_eq!((volume(&second, 0), previous(&first)), (GREEN, Value::Null));
    let blue = json!({"configmaps": {"demo": BLUE}});
    assert_eq!(previous(&second), blue);
    assert_eq!(remembered(&second, "moved"), json!({"configmaps": {"demo": "1970-01-01T00:00:05Z"}}));
    assert_eq!(world.update(&second, &first), second, "admitted again");
    assert_eq!(world.update(&applied(&second), &second), second, "a sync");
    let mut stripped = applied(&second);
    stripped["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(previous(&world.update(&stripped, &second)), blue, "an apply without the annotation");
    assert_eq!(previous(&world.update(&undo(&second, &first), &second)), Value::Null, "an undo");
    let mut copied = deployment(&["demo"]);
    annotate(&mut copied, annotations::STATE, r#"{"configmaps":{"demo":{"previous":"demo-1"}}}"#);
    assert_eq!(previous(&world.create(&copied)), Value::Null, "a copy");
}

#[test]
fn sources_without_limit_record_nothing() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    assert_eq!(previous(&poke(&mut world, &first, 5)), Value::Null);
}

#[test]
fn sync_moves_no_workload_of_reverting_source() {
    let (mut world, _, second) = moved();
    set(&mut world, "red", &Value::Null);
    let admitted = world.admit(&applied(&second), Some(&second));
    assert_eq!((volume(&admitted.object, 0), seen(&admitted.object)), (GREEN, seen(&second)));
    let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
    assert!(warning.contains(annotations::ON_FAILURE), "{warning}");
}

/// By the controller, and by any other write of the workload. The template is the one that the workload had.
#[test]
fn refused_content_returns_to_previous() {
    let (mut world, first, second) = moved();
    refuse(&mut world, GREEN, None);
    let back = poke(&mut world, &second, 9);
    assert_eq!(back["spec"], first["spec"], "the same template, so the same ReplicaSet");
    assert_eq!((seen(&back), previous(&back)), (seen(&first), Value::Null));
    for field in ["moved", "unhealthy", "pinned"] {
        assert_eq!(remembered(&back, field), Value::Null, "{field}");
    }
    assert_eq!(world.update(&back, &second), back, "admitted again");
    assert_eq!(world.update(&back, &back), back);
    let admitted = world.admit(&applied(&second), Some(&second));
    assert_eq!(volume(&admitted.object, 0), BLUE, "a sync");
    assert!(admitted.decision.warnings[0].contains(REASON), "{:?}", admitted.decision.warnings);
    // Nothing moves it forward again, and the change stays pending.
    for new in [applied(&back), back.clone()] {
        let again = world.update(&new, &back);
        assert_eq!((volume(&again, 0), seen(&again)), (BLUE, seen(&first)));
    }
    let mut asked = back.clone();
    annotate(&mut asked, annotations::ROLL, "now");
    assert_eq!(volume(&world.update(&asked, &back), 0), BLUE, "a person asks for the newest content");
    let mut deployed = applied(&back);
    deployed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    assert_eq!(volume(&world.update(&deployed, &back), 0), BLUE, "a deployment");
    // Other content moves it.
    set(&mut world, "red", &Value::Null);
    let third = poke(&mut world, &back, 11);
    assert_ne!(volume(&third, 0), BLUE);
    assert_eq!(previous(&third), json!({"configmaps": {"demo": BLUE}}));
}

#[test]
fn workload_that_has_not_moved_keeps_snapshot() {
    let (mut world, first, _) = moved();
    refuse(&mut world, GREEN, None);
    for new in [applied(&first), first.clone()] {
        let admitted = world.admit(&new, Some(&first));
        assert_eq!((&admitted.object["spec"], seen(&admitted.object)), (&first["spec"], seen(&first)));
    }
    assert_eq!(volume(&poke(&mut world, &first, 9), 0), BLUE);
}

#[test]
fn new_workload_gets_snapshot_of_the_mark() {
    let (mut world, ..) = moved();
    refuse(&mut world, GREEN, Some(BLUE));
    let created = world.create(&deployment(&["demo"]));
    assert_eq!(volume(&created, 0), BLUE);
    assert_eq!(world.create(&created), created, "admitted again");
    refuse(&mut world, BLUE, None);
    let refused = world.review(&kind("Deployment"), &deployment(&["demo"]), None);
    let denial = refused.decision.denial.expect("a denial");
    assert!(denial.contains(REASON) && denial.contains("waves retry demo"), "{denial}");
}

#[test]
fn workload_without_way_back_stays() {
    let (mut world, _, second) = moved();
    refuse(&mut world, GREEN, None);
    world.remove(BLUE);
    let admitted = world.admit(&applied(&second), Some(&second));
    assert_eq!((&admitted.object["spec"], seen(&admitted.object)), (&second["spec"], seen(&second)));
    assert!(
        admitted.decision.warnings[0].contains("no earlier snapshot"),
        "{:?}",
        admitted.decision.warnings
    );
}

#[test]
fn revoked_snapshot_is_no_way_back() {
    let (mut world, _, second) = moved();
    refuse(&mut world, GREEN, None);
    set(&mut world, "green", &json!({annotations::REVOKED: format!("demo-1, {BLUE}")}));
    assert_eq!(volume(&world.update(&applied(&second), &second), 0), GREEN);
}

/// An undo to refused content is a person's choice: it lasts.
#[test]
fn chosen_refused_content_stays() {
    let (mut world, _, second) = moved();
    refuse(&mut world, GREEN, None);
    let back = poke(&mut world, &second, 9);
    let admitted = world.admit(&undo(&back, &second), Some(&back));
    assert_eq!(volume(&admitted.object, 0), GREEN);
    assert!(admitted.decision.warnings[0].contains(REASON), "{:?}", admitted.decision.warnings);
    let chosen = admitted.object;
    assert_eq!(previous(&chosen), json!({"configmaps": {"demo": GREEN}}));
    assert_eq!(volume(&poke(&mut world, &chosen, 12), 0), GREEN);
    assert_eq!(world.update(&applied(&chosen), &chosen), chosen);
    // The way back from there is to the content before it.
    set(&mut world, "red", &Value::Null);
    let third = poke(&mut world, &chosen, 15);
    assert_eq!(previous(&third), Value::Null);
}

#[test]
fn hold_comes_before_refusal() {
    let (mut world, _, second) = moved();
    let mut held = second.clone();
    annotate(&mut held, annotations::HOLD, &hold_text([&configmap(GREEN)]));
    let held = world.update(&held, &second);
    refuse(&mut world, GREEN, None);
    assert_eq!(volume(&poke(&mut world, &held, 9), 0), GREEN);
    assert_eq!(volume(&world.update(&applied(&held), &held), 0), GREEN);
}

/// A retry ends the failure in the verdict.
#[test]
fn retried_content_is_not_refused() {
    let (mut world, first, second) = moved();
    refuse(&mut world, GREEN, None);
    let back = poke(&mut world, &second, 9);
    let retried = Verdict { retried: Some(AT.into()), ..Verdict::default() }.text();
    world.objects.get_mut(&configmap(GREEN)).unwrap()["metadata"]["annotations"][annotations::VERDICT] =
        json!(retried);
    let again = poke(&mut world, &back, 12);
    assert_eq!((volume(&again, 0), previous(&again)), (GREEN, json!({"configmaps": {"demo": BLUE}})));
    refuse(&mut world, GREEN, None);
    assert_eq!(poke(&mut world, &again, 15)["spec"], first["spec"]);
    // Without the setting, nothing is refused.
    world.objects.get_mut(&configmap("demo")).unwrap()["metadata"]["annotations"] = json!({});
    assert_eq!(volume(&poke(&mut world, &back, 20), 0), GREEN);
}

#[test]
fn later_refusal_returns_past_refused_content() {
    let (mut world, _, second) = moved();
    refuse(&mut world, GREEN, None);
    // The source changes before the workload went back.
    set(&mut world, "red", &Value::Null);
    let third = poke(&mut world, &second, 9);
    assert_eq!(previous(&third), json!({"configmaps": {"demo": BLUE}}));
}

#[test]
fn reads_on_failure() {
    let policy = |value| SpreadPolicy::read(|key| (key == annotations::ON_FAILURE).then_some(value));
    assert_eq!(policy("hold"), SpreadPolicy::default());
    assert!(policy("revert").reverts && policy("revert").is_limited());
    for value in ["", "Revert", "rollback"] {
        let policy = policy(value);
        assert!(!policy.reverts && policy.is_limited(), "{value}");
        assert!(policy.invalid.is_some_and(|why| why.contains("\"hold\" or \"revert\"")), "{value}");
    }
}

/// The workload keeps its snapshot, and a warning says so once the change is pending.
#[test]
fn pending_refused_content_is_warned_about() {
    let (mut world, first, second) = moved();
    refuse(&mut world, GREEN, None);
    let warnings =
        |world: &mut World, new: &Value, old: &Value| world.admit(new, Some(old)).decision.warnings;
    let [warning] = &warnings(&mut world, &applied(&first), &first)[..] else { panic!("a warning") };
    assert!(
        warning.contains(&format!("was refused ({REASON}): Deployment \"web\" keeps {BLUE:?}")),
        "{warning}"
    );
    // An undo has rejected the content before it was refused.
    let mut world = moved().0;
    let undone = world.update(&undo(&second, &first), &second);
    refuse(&mut world, GREEN, None);
    assert_eq!(warnings(&mut world, &undone, &undone), [""; 0]);
}

/// It chose the content although it was refused, so a sync has nothing to report.
#[test]
fn sync_of_chosen_refused_content_is_silent() {
    let (mut world, _, second) = moved();
    refuse(&mut world, GREEN, None);
    let back = poke(&mut world, &second, 9);
    let chosen = world.update(&undo(&back, &second), &back);
    let admitted = world.admit(&applied(&chosen), Some(&chosen));
    assert_eq!((&admitted.object, &admitted.decision.warnings[..]), (&chosen, &[][..]));
}

/// Only an undo of a person becomes a hold. A workload that the controller moves back follows the next change.
#[test]
fn controllers_return_makes_no_hold() {
    for by_controller in [false, true] {
        let (mut world, first, second) = moved();
        let mut holding = second.clone();
        annotate(&mut holding, annotations::ON_UNDO, "hold");
        let second = world.update(&holding, &second);
        refuse(&mut world, GREEN, None);
        let mut request = undo(&second, &first);
        if by_controller {
            // A later pass of the admission of a roll sees the snapshot to which the first pass returned.
            let roll = poke(&mut world.clone(), &second, 9);
            request["metadata"]["annotations"] = roll["metadata"]["annotations"].clone();
        }
        let undone = world.update(&request, &second);
        assert_eq!(volume(&undone, 0), BLUE);
        let hold = undone["metadata"]["annotations"][annotations::HOLD].as_str();
        assert_eq!(hold, (!by_controller).then_some(BLUE), "by the controller: {by_controller}");
        assert_eq!(world.update(&undone, &second), undone, "admitted again");
    }
}

/// An older roll than the last one shows an undo of the annotations, too.
#[test]
fn undo_with_older_roll_makes_hold() {
    let (mut world, first, second) = moved();
    let mut holding = second.clone();
    annotate(&mut holding, annotations::ON_UNDO, "hold");
    let second = world.update(&holding, &second);
    refuse(&mut world, GREEN, None);
    for roll in ["auto-1970-01-01T00:00:05Z *", "auto-1970-01-01T00:00:03Z *"] {
        let mut request = undo(&second, &first);
        annotate(&mut request, annotations::ROLL, roll);
        let undone = world.clone().update(&request, &second);
        let hold = undone["metadata"]["annotations"][annotations::HOLD].as_str();
        assert_eq!((volume(&undone, 0), hold), (BLUE, Some(BLUE)), "{roll}");
    }
}

/// Only a snapshot to which the workload did not refer is bound at once.
#[test]
fn snapshot_of_return_is_bound_at_once() {
    let (mut world, _, second) = moved();
    refuse(&mut world, GREEN, None);
    let admitted = world.admit(&applied(&second), Some(&second));
    assert_eq!((volume(&admitted.object, 0), &admitted.decision.adopt[..]), (BLUE, &[configmap(BLUE)][..]));
    let back = admitted.object;
    let mut deployed = applied(&back);
    deployed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    assert_eq!(world.admit(&deployed, Some(&back)).decision.adopt, []);
}

/// Names of other snapshots in the annotation change nothing.
#[test]
fn other_revoked_snapshots_change_nothing() {
    let (mut world, _, second) = moved();
    refuse(&mut world, GREEN, None);
    set(&mut world, "green", &json!({annotations::REVOKED: "demo-1, demo-2"}));
    assert_eq!(volume(&world.update(&applied(&second), &second), 0), BLUE);
}

/// The refusal of the present content counts, whether or not the workload's own snapshot exists.
#[test]
fn lost_snapshot_does_not_hide_refusal() {
    let (mut world, first, _) = moved();
    refuse(&mut world, GREEN, None);
    world.remove(BLUE);
    for new in [applied(&first), first.clone()] {
        assert_ne!(volume(&world.clone().update(&new, &first), 0), GREEN);
    }
}

/// The digest key of Secrets may change: the snapshot then has a name that no present digest gives.
#[test]
fn refusal_of_secret_outlives_its_key() {
    use confrev::snapshot::{DigestKey, Keying, ObjectName, SourceKind};
    let secret = |name: &str| ObjectName::new(SourceKind::Secret, name);
    let key = |byte: u8| DigestKey::new(&[byte; 32]);
    let mut world = World { keying: Keying::new("ns", [key(1)].into()), ..World::default() };
    let mut object = deployment(&[]);
    annotate(&mut object, annotations::SECRETS, "true");
    object["spec"]["template"]["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "db"}}]);
    let name = |object: &Value| {
        object["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"].as_str().unwrap().to_owned()
    };
    let set = |world: &mut World, value: &str| {
        let annotations = json!({annotations::ON_FAILURE: "revert"});
        let metadata = json!({"name": "db", "uid": "uid-db", "annotations": annotations});
        world
            .objects
            .insert(secret("db"), json!({"metadata": metadata, "type": "Opaque", "data": {"k": value}}));
    };
    set(&mut world, "YQ==");
    let first = world.create(&object);
    set(&mut world, "Yg==");
    let second = poke(&mut world, &first, 5);
    assert_ne!(name(&second), name(&first));
    let mark = &mut world.objects.get_mut(&secret(&name(&second))).unwrap()["metadata"]["annotations"];
    mark[annotations::VERDICT] = json!(failed(None));
    world.keying = Keying::new("ns", [key(2), key(1)].into());
    assert_eq!(name(&poke(&mut world, &second, 9)), name(&first));
}

/// `kubectl rollout undo` of a Deployment may restore an older `roll`: the controller did not move the workload then.
#[test]
fn undo_records_no_move() {
    let (mut world, _, second) = moved();
    let third = poke(&mut world, &second, 9);
    set(&mut world, "red", &Value::Null);
    let mut request = third.clone();
    request["spec"]["template"]["metadata"]["labels"]["version"] = json!("1");
    request["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!("demo");
    request["metadata"]["annotations"] = second["metadata"]["annotations"].clone();
    let undone = world.update(&request, &third);
    assert_ne!(volume(&undone, 0), volume(&third, 0));
    let moved = remembered(&undone, "moved")["configmaps"]["demo"].clone();
    assert_ne!(moved, json!("1970-01-01T00:00:05Z"), "{undone}");
}
