//! The documented behavior of sources: modes, Secrets, `keep`, deletion and return.

use confrev::annotations;

use super::{
    super::{
        objects::{File, NAMESPACE, source_key},
        play::Play,
    },
    Scenario,
};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("bind", bind),
    Scenario::new("bind-deleted-in-use", bind_deleted_in_use).remembered(),
    Scenario::new("live", live),
    Scenario::new("live-secrets-of-a-namespace", live_secrets),
    Scenario::new("live-taken-off-a-secret", live_taken_off),
    Scenario::new("secrets-with-keyed-digests", secrets),
    Scenario::new("secrets-of-a-namespace", secrets_of_a_namespace),
    Scenario::new("source-left-alone", left_alone),
    Scenario::new("always-snapshotted", always),
    Scenario::new("keep", keep),
    Scenario::new("keep-none", keep_none),
    Scenario::new("used-keys", used_keys),
    Scenario::new("two-sources", two_sources).loose(),
    Scenario::new("source-deleted-and-made-again", deleted_and_made_again),
    Scenario::new("source-deleted-before-an-undo", deleted_before_an_undo),
    Scenario::new("name-is-taken", name_is_taken),
    Scenario::new("twins", twins),
];

fn bound(name: &str, content: &str) -> File {
    File::source(name, content).label(annotations::ENABLED, Some("bind"))
}

fn bind(play: &Play<'_>) {
    let file = File::deployment("w", &["s-1"]).history(1);
    play.apply(&bound("s-1", "one"));
    play.apply(&file);
    play.rest();
    for (number, content) in [(2, "two"), (3, "three")] {
        let name = format!("s-{number}");
        play.apply(&bound(&name, content));
        play.apply(&File::deployment("w", &[&name]).history(1));
        play.rest();
        play.reads(&file.key, &name, content);
        play.revisions(&file.key, number);
    }
    if play.model.get(&source_key("s-1")).is_some() {
        play.model.broken("no-leak", "a bound ConfigMap exists after its last revision");
    }
    play.undo(&file.key, 2);
    play.rest();
    play.reads(&file.key, "s-2", "two");
}

fn bind_deleted_in_use(play: &Play<'_>) {
    let file = File::deployment("w", &["s-1"]);
    play.apply(&bound("s-1", "one"));
    play.apply(&file);
    play.rest();
    // As Helm does.
    play.apply(&bound("s-2", "two"));
    play.apply(&File::deployment("w", &["s-2"]));
    play.delete(&source_key("s-1"));
    play.rest();
    play.undo(&file.key, 1);
    play.rest();
    play.reads(&file.key, "s-1", "one");
    play.revisions(&file.key, 3);
}

fn live(play: &Play<'_>) {
    let source = |content: &str| File::source("s", content).label(annotations::ENABLED, Some("live"));
    let file = File::deployment("w", &["s"]);
    play.apply(&source("one"));
    play.apply(&file);
    play.rest();
    play.apply(&source("two"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 2);
    play.apply_all_again();
    play.apply(&File::source("s", "three"));
    play.rest();
    play.reads(&file.key, "s", "three");
    play.revisions(&file.key, 3);
}

fn live_secrets(play: &Play<'_>) {
    let notes =
        [(annotations::ENABLED, "true"), (annotations::SECRETS, "true"), (annotations::SECRETS_MODE, "live")];
    play.namespace(NAMESPACE, &notes);
    let file = File::deployment("w", &["secret/s"]);
    play.apply(&File::source("secret/s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("secret/s", "two"));
    play.rest();
    play.reads(&file.key, "secret/s", "two");
    play.revisions(&file.key, 2);
}

/// The mode is that of the Secret, then that of its namespace. After each, one roll brings the snapshot back.
fn live_taken_off(play: &Play<'_>) {
    let enabled = (annotations::ENABLED, "true");
    play.namespace(NAMESPACE, &[enabled]);
    let file = File::deployment("w", &["secret/s"]).note(annotations::SECRETS, "true");
    play.apply(&File::source("secret/s", "one").label(annotations::ENABLED, Some("live")));
    play.apply(&file);
    play.rest();
    let is_resolved = || {
        let name = play.snapshot("secret/s", "one");
        let live = play.model.get(&file.key).unwrap();
        live["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"] == *name
    };
    play.apply(&File::source("secret/s", "one"));
    play.rest();
    play.revisions(&file.key, 2);
    if !is_resolved() {
        play.model.broken("rolls", "the snapshot did not come back");
    }
    play.namespace(NAMESPACE, &[enabled, (annotations::SECRETS_MODE, "live")]);
    play.apply(&file.clone().image(1));
    play.rest();
    play.revisions(&file.key, 3);
    play.namespace(NAMESPACE, &[enabled]);
    play.rest();
    play.revisions(&file.key, 4);
    if !is_resolved() {
        play.model.broken("rolls", "the snapshot did not come back after its namespace had the mode");
    }
}

fn secrets(play: &Play<'_>) {
    let file = File::deployment("w", &["secret/s", "secret/t:v", "s"]).note(annotations::SECRETS, "true");
    play.apply(&File::source("secret/s", "one"));
    play.apply(&File::source("secret/t", "one"));
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("secret/s", "two"));
    play.rest();
    play.reads(&file.key, "secret/s", "two");
    play.reads(&file.key, "secret/t", "one");
    play.revisions(&file.key, 2);
    play.undo(&file.key, 1);
    play.rest();
    play.reads(&file.key, "secret/s", "one");
    play.revisions(&file.key, 3);
    play.annotate(&file.key, annotations::SECRETS, None);
    play.rest();
}

fn secrets_of_a_namespace(play: &Play<'_>) {
    play.namespace(NAMESPACE, &[(annotations::ENABLED, "true"), (annotations::SECRETS, "true")]);
    let file = File::deployment("w", &["secret/s"]).unlabelled();
    play.apply(&File::source("secret/s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("secret/s", "two"));
    play.rest();
    play.reads(&file.key, "secret/s", "two");
    play.revisions(&file.key, 2);
}

fn left_alone(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.label(&source_key("s"), annotations::ENABLED, Some("false"));
    play.rest();
    play.revisions(&file.key, 2);
    play.edit(&source_key("s"), |object| object["data"]["v"] = serde_json::json!("two"));
    play.rest();
    play.revisions(&file.key, 2);
    play.label(&source_key("s"), annotations::ENABLED, None);
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 3);
}

fn always(play: &Play<'_>) {
    let source = |content: &str| {
        File::source("s", content).label(annotations::ENABLED, Some("true")).note(annotations::KEEP, "2")
    };
    play.apply(&source("one"));
    play.rest();
    play.apply(&source("two"));
    play.rest();
    let (first, _) = (play.snapshot("s", "one"), play.snapshot("s", "two"));
    let file = File::deployment("w", &[&first]);
    play.apply(&file);
    play.rest();
    play.reads(&file.key, "s", "one");
    play.apply(&source("three"));
    play.rest();
    play.delete(&file.key);
}

fn keep(play: &Play<'_>) {
    let source = |content: &str, keep: &str| File::source("s", content).note(annotations::KEEP, keep);
    let file = File::deployment("w", &["s"]).history(0);
    play.apply(&source("one", "3"));
    play.apply(&file);
    play.rest();
    for content in ["two", "three", "four"] {
        play.apply(&source(content, "3"));
        play.rest();
    }
    let expect = |count: usize| {
        let names = play.snapshots_of(&source_key("s"));
        if names.len() != count {
            play.model.broken("no-leak", format!("{names:?} are kept, not {count}"));
        }
    };
    expect(3);
    play.apply(&source("four", "1"));
    play.rest();
    expect(1);
}

fn keep_none(play: &Play<'_>) {
    let source = |content: &str| File::source("s", content).note(annotations::KEEP, "0");
    let file = File::deployment("w", &["s"]).history(0);
    play.apply(&source("one"));
    play.apply(&file);
    play.rest();
    play.apply(&source("two"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.delete(&file.key);
    play.rest();
    if !play.snapshots_of(&source_key("s")).is_empty() {
        play.model.broken("no-leak", "a snapshot exists that nothing keeps");
    }
}

fn used_keys(play: &Play<'_>) {
    let file = File::deployment("w", &["s:v"]);
    play.apply(&File::entries("s", &[("v", "one"), ("other", "1")]));
    play.apply(&file);
    play.rest();
    play.apply(&File::entries("s", &[("v", "one"), ("other", "2")]));
    play.rest();
    play.revisions(&file.key, 1);
    play.apply(&file.clone().image(1));
    play.rest();
    play.apply(&File::entries("s", &[("v", "two"), ("other", "2")]));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 3);
}

fn two_sources(play: &Play<'_>) {
    let file = File::deployment("w", &["s", "from:t", "t:v"]);
    play.apply(&File::source("s", "one"));
    play.apply(&File::source("t", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.apply(&File::source("t", "two"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.reads(&file.key, "t", "two");
    play.undo(&file.key, 1);
    play.rest();
    play.apply(&File::source("t", "three"));
    play.rest();
    play.reads(&file.key, "s", "one");
    play.reads(&file.key, "t", "three");
}

fn deleted_and_made_again(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.delete(&source_key("s"));
    play.rest();
    play.apply(&file.clone().image(1));
    play.rest();
    play.apply(&File::source("s", "one"));
    play.rest();
    play.delete(&source_key("s"));
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&file.key, "s", "two");
}

fn deleted_before_an_undo(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.delete(&source_key("s"));
    play.undo(&file.key, 1);
    play.rest();
    play.revisions(&file.key, 3);
    play.apply(&File::source("s", "three"));
    play.rest();
    play.reads(&file.key, "s", "three");
    play.revisions(&file.key, 4);
}

fn name_is_taken(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    // A foreign object has the name that the next snapshot would get.
    let digest = {
        let json = serde_json::json!({"data": {"v": "two"}}).to_string();
        let object = confrev::snapshot::Object::parse(json.as_bytes()).unwrap();
        object.digest(confrev::snapshot::SourceKind::ConfigMap).unwrap()
    };
    let name = confrev::snapshot::snapshot_name("s", &digest, 10);
    play.apply(&File::source(&name, "a squatter"));
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 2);
}

fn twins(play: &Play<'_>) {
    let files = [("v", "s"), ("w", "t")].map(|(name, source)| File::deployment(name, &[source]));
    for source in ["s", "t"] {
        play.apply(&File::source(source, "one"));
    }
    for file in &files {
        play.apply(file);
    }
    play.rest();
    for source in ["s", "t"] {
        play.apply(&File::source(source, "two"));
    }
    play.rest();
    play.delete(&source_key("s"));
    play.delete(&files[0].key);
    play.rest();
    play.reads(&files[1].key, "t", "two");
}
