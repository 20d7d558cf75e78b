//! Actions: each checks the live object before it writes, and tolerates what other clients do meanwhile.

use std::sync::Arc;

use confrev::{
    annotations,
    cluster::ApiError,
    controller::{Action, Outcome, ensure, execute},
    resolve::{Observed, Verdict},
    snapshot::{DIGITS, Identity, Made, SourceKind, is_named_after, is_spare, snapshot_json, snapshot_name},
    world::{Owner, Precondition, Version},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    api_server::{Race, Server},
    controller::{BLUE, digest, key, name, observed},
    world::deployment,
};

/// The path of the snapshot of blue.
const AT: &str = "ns/configmaps/demo-3a18d34e26";
/// The path of a bound object.
const BOUND: &str = "ns/configmaps/old";

fn version() -> Version {
    Version { uid: "s".to_owned(), resource_version: "1".to_owned() }
}

fn with_meta(mut object: Value, name: &str) -> Value {
    for (field, value) in [("name", name), ("namespace", "ns"), ("uid", "s"), ("resourceVersion", "1")] {
        object["metadata"][field] = json!(value);
    }
    object
}

/// A snapshot of a color, under any name.
fn sound(source: &str, name: &str, color: &str) -> Value {
    let of = observed(json!({"color": color}), json!({}), "1");
    let identity = Identity { source: source.to_owned(), digest: of.digest() };
    let json =
        snapshot_json(SourceKind::ConfigMap, "ns", name, &identity, of.json(), &[], Made::at(Timestamp::MAX))
            .unwrap();
    with_meta(serde_json::from_slice(&json).unwrap(), name)
}

/// An object with the name and the labels of the snapshot of blue.
fn impostor() -> Value {
    let mut object = sound("demo", BLUE, "blue");
    object["data"]["color"] = json!("red");
    object
}

/// A source of this color.
fn source(color: &str) -> Value {
    with_meta(json!({"kind": "ConfigMap", "data": {"color": color}}), "demo")
}

/// A ReplicaSet that uses an object. It has no label, so no watch reports it.
fn replica_set(object: &str) -> Value {
    let set = json!({"kind": "ReplicaSet", "spec": deployment(&[object])["spec"]});
    with_meta(set, "set")
}

fn server(objects: impl IntoIterator<Item = Value>) -> Server {
    let server = Server::default();
    objects.into_iter().for_each(|object| server.put(object));
    server
}

/// Runs an action. Returns the name of its outcome.
async fn run(server: &Server, action: Action) -> String {
    let first_word = |text: String| {
        text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
    };
    match execute(&server.api(), action, Timestamp::UNIX_EPOCH).await {
        Ok(outcome) => first_word(format!("{outcome:?}")),
        Err(error) => format!("error {}", first_word(format!("{error:?}"))),
    }
}

#[tokio::test]
async fn only_sound_snapshots_are_written() {
    let owner = Owner::new("apps/v1", "ReplicaSet", "set", "rs");
    for (what, stored, outcomes, writes) in [
        ("it is sound", Some(sound("demo", BLUE, "blue")), ["Done", "VerdictSet"], 1),
        ("its content changed", Some(impostor()), ["Impostor", "Done"], 0),
        ("it states another digest", Some(sound("demo", BLUE, "green")), ["Impostor", "Done"], 0),
        ("it does not exist", None, ["Impostor", "Done"], 0),
    ] {
        let (snapshot, digest) = (|| name(BLUE), digest("blue"));
        let (owners, verify) = (vec![owner.clone()], Some(digest));
        let set_owners = Action::SetOwners {
            snapshot: snapshot(),
            version: version(),
            owners,
            hazard: false,
            verify,
            own: false,
        };
        let verdict = Box::new(Verdict { aborted: true, ..Verdict::default() });
        let judge = Action::SetVerdict {
            snapshot: snapshot(),
            version: version(),
            digest,
            verdict,
            had_failed: false,
            decision: None,
        };
        for (action, outcome) in [set_owners, judge].into_iter().zip(outcomes) {
            let server = server(stored.clone());
            assert_eq!(run(&server, action).await, outcome, "{what}");
            assert_eq!(server.writes(), vec![format!("PATCH {AT}"); writes], "{what}");
        }
    }
}

#[tokio::test]
async fn only_conflicts_of_rolls_read_the_workload() {
    let mut web = with_meta(deployment(&["demo"]), "web");
    web["kind"] = json!("Deployment");
    let poke = |version: &str| Action::Poke {
        workload: key("web"),
        condition: Precondition::Version(version.to_owned()),
        last_plan: None,
        names_contents: true,
        moves: Vec::new(),
    };
    assert_eq!(run(&server([web.clone()]), poke("1")).await, "Poked");
    assert_eq!(run(&server([web.clone()]), poke("0")).await, "Changed");
    assert_eq!(run(&server([]), poke("1")).await, "error NotFound");
    let server = server([web]);
    server.plan("PATCH ns/deployments/web", Race::Refused(403, "exceeded quota"));
    assert_eq!(run(&server, poke("1")).await, "error Refused");
}

/// The clock of the previous leader, or of a person, may have been ahead.
#[tokio::test]
async fn roll_is_later_than_the_last_plan() {
    let mut web = with_meta(deployment(&["demo"]), "web");
    web["kind"] = json!("Deployment");
    let server = server([web]);
    let last_plan: Timestamp = "2200-01-01T00:00:00Z".parse().unwrap();
    let condition = Precondition::Version("1".to_owned());
    let poke = Action::Poke {
        workload: key("web"),
        condition,
        last_plan: Some(last_plan),
        names_contents: true,
        moves: Vec::new(),
    };
    assert_eq!(run(&server, poke).await, "Poked");
    let stored = server.get("ns/deployments/web").unwrap();
    assert_eq!(stored["metadata"]["annotations"][annotations::ROLL], "auto-2200-01-01T00:00:00.001Z");
}

/// Older garbage collectors delete what they judged before the owners changed.
#[tokio::test]
async fn collected_snapshot_is_created_again() {
    for (hazard, is_collected, outcome, exists) in [
        (false, false, "Done", true),
        (true, false, "OwnersSet", true),
        (true, true, "OwnersSet", true),
        (false, true, "Done", false),
    ] {
        let server = server([sound("demo", BLUE, "blue")]);
        if is_collected {
            server.plan(&format!("PATCH {AT}"), Race::Collected);
        }
        let owners = vec![Owner::new("apps/v1", "ReplicaSet", "set", "rs")];
        let wanted = json!(owners.iter().map(Owner::to_json).collect::<Vec<_>>());
        let action = Action::SetOwners {
            snapshot: name(BLUE),
            version: version(),
            owners,
            hazard,
            verify: None,
            own: false,
        };
        assert_eq!(run(&server, action).await, outcome, "hazard: {hazard}");
        let found = server.get(AT);
        assert_eq!(found.is_some(), exists, "hazard: {hazard}");
        assert!(found.is_none_or(|found| found["metadata"]["ownerReferences"] == wanted));
    }
}

#[tokio::test]
async fn snapshot_gets_the_first_free_name() {
    let names = DIGITS.map(|digits| snapshot_name("demo", &digest("blue"), digits));
    let taken = |name: &String| {
        let mut object = impostor();
        object["metadata"]["name"] = json!(name);
        object
    };
    for (what, stored, expected, is_created) in [
        ("no object exists", Vec::new(), Some(&names[0]), true),
        ("it exists", vec![sound("demo", BLUE, "blue")], Some(&names[0]), false),
        ("another object has its name", vec![impostor()], Some(&names[1]), true),
    ] {
        let server = server(stored);
        let blue = observed(json!({"color": "blue"}), json!({}), "1");
        let found = ensure(&server.api(), &name("demo"), &blue).await.unwrap();
        assert_eq!(found.as_ref(), expected, "{what}");
        let created = expected.filter(|_| is_created).map(|name| format!("POST ns/configmaps/{name}"));
        assert_eq!(server.writes(), Vec::from_iter(created), "{what}");
    }
    let all: Vec<_> = names.iter().map(taken).collect();
    let server = server(all);
    let blue = observed(json!({"color": "blue"}), json!({}), "1");
    let found = ensure(&server.api(), &name("demo"), &blue).await.unwrap().unwrap();
    assert!(is_spare(&found) && is_named_after(&found, "demo", &digest("blue")), "{found}");
    assert_eq!(
        server.writes(),
        [format!("POST ns/configmaps/{found}")],
        "others have all names that follow from it"
    );
}

/// An action that restores the snapshot of blue.
fn restore(content: Option<&str>, copies: &[&str]) -> Action {
    let content = content.map(|color| Arc::new(observed(json!({"color": color}), json!({}), "1")));
    let copies = copies.iter().map(|copy| name(copy)).collect();
    Action::Restore {
        snapshot: name(BLUE),
        source: "demo".to_owned(),
        copies,
        content,
        owners: vec![],
        users: vec![],
    }
}

#[tokio::test]
async fn snapshot_is_restored_with_its_own_content() {
    let twin = &*snapshot_name("other", &digest("blue"), DIGITS[0]);
    let mut false_twin = sound("other", twin, "blue");
    false_twin["data"]["color"] = json!("red");
    for (what, stored, action, outcome) in [
        ("its source has the content", vec![source("blue")], restore(None, &[]), "Restored"),
        ("its source has another content", vec![source("green")], restore(None, &[]), "Lost"),
        (
            "another snapshot has it",
            vec![source("green"), sound("other", twin, "blue")],
            restore(None, &[twin]),
            "Restored",
        ),
        ("the other snapshot changed", vec![source("green"), false_twin], restore(None, &[twin]), "Lost"),
        ("it is remembered", vec![], restore(Some("blue"), &[]), "Restored"),
        ("another content is remembered", vec![], restore(Some("green"), &[]), "Lost"),
        ("it exists", vec![sound("demo", BLUE, "blue")], restore(None, &[]), "error Conflict"),
        ("an object has its name", vec![impostor()], restore(None, &[]), "Taken"),
        (
            "a snapshot of another content has its name",
            vec![sound("demo", BLUE, "green")],
            restore(None, &[]),
            "Taken",
        ),
        (
            "the same, and its source has the content",
            vec![sound("demo", BLUE, "green"), source("blue")],
            restore(None, &[]),
            "Taken",
        ),
    ] {
        let server = server(stored.into_iter().chain([replica_set(BLUE)]));
        assert_eq!(run(&server, action).await, outcome, "{what}");
        let writes = if outcome == "Restored" { vec![format!("POST {AT}")] } else { Vec::new() };
        assert_eq!(server.writes(), writes, "{what}");
    }
    let unused = server([source("blue")]);
    assert_eq!(run(&unused, restore(None, &[])).await, "error Conflict", "a watch may lag");
    let ending = server([replica_set(BLUE)]);
    ending.put_at("ns", json!({"metadata": {"name": "ns", "deletionTimestamp": "2026-01-02T03:04:05Z"}}));
    assert_eq!(run(&ending, restore(None, &[])).await, "Done", "the namespace is being deleted");
}

/// A bound object with owners of confrev and of another manager.
fn bound(label: &str, ours: &[&str], theirs: &[&str]) -> Value {
    let owner = |uid: &&str| Owner::new("apps/v1", "ReplicaSet", *uid, *uid).to_json();
    let added = |manager: &str, uids: &[&str]| {
        let fields = uids.iter().map(|uid| (format!("k:{{\"uid\":\"{uid}\"}}"), json!({})));
        let fields: serde_json::Map<_, _> = fields.collect();
        json!({"manager": manager, "operation": "Update", "fieldsV1": {"f:metadata": {"f:ownerReferences": fields}}})
    };
    let object = json!({
        "kind": "ConfigMap",
        "metadata": {
            "labels": {annotations::ENABLED: label},
            "ownerReferences": ours.iter().chain(theirs).map(owner).collect::<Vec<_>>(),
            "managedFields": [added(annotations::MANAGER, ours), added("helm", theirs)],
        },
        "data": {"color": "old"},
    });
    with_meta(object, "old")
}

#[tokio::test]
async fn tool_may_create_deleted_bound_object_first() {
    let content = || Observed::read(SourceKind::ConfigMap, bound("bind", &[], &[]).to_string().into_bytes());
    let set = Owner::new("apps/v1", "ReplicaSet", "set", "s");
    let restore = |content| Action::Restore {
        snapshot: name("old"),
        source: "old".to_owned(),
        copies: vec![],
        content,
        owners: vec![set.clone()],
        users: vec![set.clone()],
    };
    let remembered = || Some(Arc::new(content().unwrap()));
    for (what, race, content, outcome) in [
        ("nobody creates it", None, remembered(), "Restored"),
        ("a tool creates it", Some(Race::Created(bound("bind", &[], &[]))), remembered(), "Done"),
        ("another replica remembers it", None, None, "Lost"),
    ] {
        let server = server([replica_set("old")]);
        if let Some(race) = race {
            server.plan(&format!("POST {BOUND}"), race);
        }
        assert_eq!(run(&server, restore(content)).await, outcome, "{what}");
        assert_eq!(server.get(BOUND).is_some(), outcome != "Lost", "{what}");
    }
}

#[tokio::test]
async fn only_unused_sound_snapshots_are_swept() {
    let sweep = Action::Sweep { snapshot: name(BLUE), version: version(), digest: digest("blue") };
    let blue = || sound("demo", BLUE, "blue");
    let with = |field: &str, value: &str| {
        let mut object = blue();
        object["metadata"][field] = json!(value);
        object
    };
    for (what, stored, outcome, is_deleted) in [
        ("it is unused", vec![blue()], "Done", true),
        ("it is deleted", vec![], "Done", true),
        ("a revision uses it", vec![blue(), replica_set(BLUE)], "Verified", false),
        ("its content changed", vec![impostor()], "Done", false),
        ("it was created again", vec![with("uid", "t")], "Done", false),
        ("it changed", vec![with("resourceVersion", "2")], "error Conflict", false),
    ] {
        let server = server(stored);
        assert_eq!(run(&server, sweep.clone()).await, outcome, "{what}");
        assert_eq!(server.get(AT).is_none(), is_deleted, "{what}");
    }
}

#[tokio::test]
async fn only_objects_of_our_owners_are_released() {
    let release = Action::Release { object: name("old"), version: version() };
    for (what, stored, outcome, is_deleted) in [
        ("all owners are ours", vec![bound("bind", &["a"], &[])], "Released", true),
        ("it is deleted", vec![], "Done", true),
        ("a revision uses it", vec![bound("bind", &["a"], &[]), replica_set("old")], "Verified", false),
        ("it has left bind mode", vec![bound("true", &["a"], &[])], "Done", false),
        ("no owner is ours", vec![bound("bind", &[], &["b"])], "Done", false),
        ("one owner is not ours", vec![bound("bind", &["a"], &["b"])], "Done", false),
    ] {
        let server = server(stored);
        assert_eq!(run(&server, release.clone()).await, outcome, "{what}");
        assert_eq!(server.get(BOUND).is_none(), is_deleted, "{what}");
    }
}

/// The findings state who uses the object.
#[tokio::test]
async fn found_users_are_reported() {
    let [sweep, release] = [
        Action::Sweep { snapshot: name(BLUE), version: version(), digest: digest("blue") },
        Action::Release { object: name("old"), version: version() },
    ];
    for (action, object) in [(sweep, BLUE), (release, "old")] {
        let server = server([sound("demo", BLUE, "blue"), bound("bind", &["a"], &[]), replica_set(object)]);
        let outcome: Result<_, ApiError> = execute(&server.api(), action, Timestamp::UNIX_EPOCH).await;
        let Ok(Outcome::Verified(found)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(found.used, [Owner::new("apps/v1", "ReplicaSet", "set", "s")], "{object}");
        assert_eq!((found.unused.len(), found.deleted.len()), (0, 0));
    }
}
