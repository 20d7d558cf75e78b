//! Sequences of events that once broke a promise.

use confrev::annotations;
use jiff::SignedDuration;
use serde_json::json;

use super::{
    super::{
        objects::{File, NAMESPACE},
        play::Play,
    },
    Scenario,
};
use crate::{
    manifest::references,
    store::{Key, annotation, label},
};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("limited-apply", limited_apply).loose(),
    Scenario::new("unhealthy-before", unhealthy_before).loose(),
    Scenario::new("limited-workload-ref", limited_workload_ref).loose(),
    Scenario::new("undo-keeps-settings", undo_keeps_settings),
    Scenario::new("uses-another-key", uses_another_key),
    Scenario::new("deleted-in-the-foreground", foreground),
    Scenario::new("undo-while-a-change-is-pending", undo_while_pending).loose(),
    Scenario::new("namespace-mark-is-removed", mark_removed),
    Scenario::new("limited-image", limited_image).loose(),
    Scenario::new("undo-of-a-paused-workload", undo_of_paused),
    Scenario::new("opt-in-within-max-in-flight", opt_in_limited),
    Scenario::new("opt-in-with-a-refusal", opt_in_refused).loose(),
    Scenario::new("workload-before-its-source", workload_first).loose(),
    Scenario::new("refused-roll", refused_roll).loose(),
    Scenario::new("rotated-config-map", rotated),
];

/// A ConfigMap whose changes reach one workload at a time.
fn limited(content: &str) -> File {
    File::source("s", content).note(annotations::MAX_IN_FLIGHT, "1")
}

/// The same ConfigMap with content with which no pod starts.
fn bad(content: &str) -> File {
    File::entries("s", &[("v", content), ("bad", "yes")]).note(annotations::MAX_IN_FLIGHT, "1")
}

/// The number of files whose workloads refer to the snapshot of `s` with this content.
fn at(play: &Play<'_>, files: &[File], content: &str) -> usize {
    let name = play.snapshot("s", content);
    let refers = |file: &&File| {
        let live = play.model.get(&file.key).unwrap();
        references(&live["spec"]["template"]).iter().any(|reference| reference.name == name)
    };
    files.iter().filter(refers).count()
}

fn limited_apply(play: &Play<'_>) {
    let files = ["u", "v", "w"].map(|name| File::deployment(name, &["s"]));
    play.apply(&limited("one"));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.rest();
    play.apply(&bad("two"));
    for file in &files {
        play.apply(file);
    }
    play.seconds(120);
    let moved = at(play, &files, "two");
    if moved != 1 {
        play.model.broken("rolls", format!("{moved} workloads have rolled to content that fails"));
    }
    play.apply(&limited("three"));
    play.rest();
}

fn limited_image(play: &Play<'_>) {
    let files = ["u", "v", "w"].map(|name| File::deployment(name, &["s"]));
    play.apply(&limited("one"));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.rest();
    play.apply(&bad("two"));
    play.seconds(120);
    for file in &files {
        play.edit(&file.key, |object| {
            object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:1");
        });
    }
    play.seconds(120);
    let moved = at(play, &files, "two");
    if moved != 1 {
        play.model.broken("rolls", format!("{moved} workloads have rolled to content that fails"));
    }
    play.apply(&limited("three"));
    play.rest();
}

fn unhealthy_before(play: &Play<'_>) {
    let sick = File::deployment("a", &["s", "t"]);
    let files = ["v", "w"].map(|name| File::deployment(name, &["s"]));
    play.apply(&limited("one"));
    play.apply(&File::entries("t", &[("v", "one"), ("bad", "yes")]));
    for file in files.iter().chain([&sick]) {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.rest();
    play.apply(&limited("two"));
    // Longer than two silences of a minute each: until a watch reports the health of a workload, the next one is held.
    play.seconds(240);
    let moved = at(play, &files, "two");
    if moved != 2 {
        play.model.broken("rolls", format!("{moved} of 2 healthy workloads have rolled"));
    }
    play.apply(&File::source("s", "two"));
    play.rest();
}

fn limited_workload_ref(play: &Play<'_>) {
    let mut files = ["v", "w"].map(|name| File::deployment(name, &["s"]));
    play.apply(&limited("one"));
    for file in &mut files {
        file.json["spec"]["replicas"] = json!(0);
        play.apply(file);
        play.apply(&File::rollout_of(&file.key.name, &file.key.name));
    }
    play.rest();
    play.model.take_time();
    play.rest();
    play.apply(&bad("two"));
    play.seconds(120);
    let moved = at(play, &files, "two");
    if moved != 1 {
        play.model.broken("rolls", format!("{moved} workloads have rolled to content that fails"));
    }
    play.apply(&limited("three"));
    play.rest();
}

fn uses_another_key(play: &Play<'_>) {
    let file = File::deployment("w", &["s:v"]);
    play.apply(&File::entries("s", &[("v", "one")]));
    play.apply(&file);
    play.rest();
    play.apply(&File::entries("s", &[("v", "one"), ("more", "1")]));
    play.rest();
    play.edit(&file.key, |object| {
        let env = json!({"name": "M", "valueFrom": {"configMapKeyRef": {"name": "", "key": "more"}}});
        let container = &mut object["spec"]["template"]["spec"]["containers"][0];
        let name = container["env"][0]["valueFrom"]["configMapKeyRef"]["name"].clone();
        let all = container["env"].as_array_mut().unwrap();
        all.push(env);
        all[1]["valueFrom"]["configMapKeyRef"]["name"] = name;
    });
    play.rest();
    let live = play.model.get(&file.key).unwrap();
    for reference in references(&live["spec"]["template"]) {
        let object = play.model.get(&Key::configmap(NAMESPACE, &reference.name));
        if object.is_none_or(|object| object["data"]["more"].is_null()) {
            play.model.broken("kept", format!("{} lacks a key that the template reads", reference.name));
        }
    }
}

fn undo_while_pending(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&file.clone().image(1));
    play.rest();
    play.apply(&File::source("s", "two"));
    play.settle(SignedDuration::from_millis(300));
    play.undo(&file.key, 1);
    play.rest();
    play.reads(&file.key, "s", "one");
}

fn mark_removed(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]).unlabelled();
    play.namespace(NAMESPACE, &[(annotations::ENABLED, "true")]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.annotate(&file.key, annotations::ENABLED_BY, None);
    play.rest();
    play.namespace(NAMESPACE, &[]);
    play.rest();
    let live = play.model.get(&file.key).unwrap();
    if label(&live, annotations::ENABLED).is_some() {
        play.model.broken("contained", format!("{} is opted in by a namespace without the opt-in", file.key));
    }
}

fn undo_keeps_settings(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    let set = || {
        play.annotate(&file.key, annotations::TRACK, Some("false"));
        play.annotate(&file.key, annotations::MIN_INTERVAL, Some("1h"));
    };
    set();
    play.rest();
    play.undo(&file.key, 1);
    // An undo that confrev did not answer restores the settings of then: docs/outages.md. A user sets them again.
    if label(&play.model.get(&file.key).unwrap(), annotations::CARRIED).is_some() {
        set();
    }
    play.rest();
    let live = play.model.get(&file.key).unwrap();
    if annotation(&live, annotations::TRACK) != Some("false")
        || annotation(&live, annotations::MIN_INTERVAL) != Some("1h")
    {
        play.model.broken("sticks", "an undo has ended a setting");
    }
}

/// Another source changes while the workload is paused.
fn undo_of_paused(play: &Play<'_>) {
    let file = File::deployment("w", &["s", "t"]);
    play.apply(&File::source("s", "one"));
    play.apply(&File::source("t", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.annotate(&file.key, annotations::TRACK, Some("false"));
    play.apply(&File::source("t", "two"));
    play.rest();
    play.undo(&file.key, 1);
    play.rest();
    play.reads(&file.key, "s", "one");
    play.reads(&file.key, "t", "one");
    play.revisions(&file.key, 3);
    play.annotate(&file.key, annotations::TRACK, None);
    play.rest();
    play.reads(&file.key, "s", "one");
    play.reads(&file.key, "t", "two");
    play.revisions(&file.key, 4);
}

fn opt_in_limited(play: &Play<'_>) {
    let files = ["u", "v", "w"].map(|name| File::deployment(name, &["s"]).unlabelled());
    play.apply(&limited("one"));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.rest();
    play.namespace(NAMESPACE, &[(annotations::ENABLED, "true")]);
    play.rest();
    for file in &files {
        play.reads(&file.key, "s", "one");
        play.revisions(&file.key, 2);
    }
}

/// The template of one of the workloads lacks a key that it requires.
fn opt_in_refused(play: &Play<'_>) {
    let refused = File::deployment("v", &["t:other"]).note(annotations::MISSING, "deny").unlabelled();
    let file = File::deployment("w", &["s"]).unlabelled();
    play.apply(&File::source("s", "one"));
    play.apply(&File::source("t", "one"));
    play.apply(&refused);
    play.apply(&file);
    play.rest();
    play.namespace(NAMESPACE, &[(annotations::ENABLED, "true")]);
    play.seconds(120);
    play.revisions(&refused.key, 1);
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 2);
    play.apply(&File::entries("t", &[("v", "two"), ("other", "two")]));
    play.rest();
    play.reads(&refused.key, "t", "two");
    play.revisions(&refused.key, 2);
    play.revisions(&file.key, 2);
}

/// `kubectl apply -f DIR/`, with the Deployment before the ConfigMap.
fn workload_first(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&file.clone().image(1));
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 3);
}

fn refused_roll(play: &Play<'_>) {
    let file = File::deployment("w", &["s:v"]).note(annotations::MISSING, "deny");
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::entries("s", &[("other", "two")]));
    play.seconds(120);
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 1);
    play.apply(&File::source("s", "three"));
    play.rest();
    play.reads(&file.key, "s", "three");
    play.revisions(&file.key, 2);
}

fn rotated(play: &Play<'_>) {
    let file = File::deployment("w", &["s", "kube-root-ca.crt"]);
    play.apply(&File::source("s", "one"));
    play.apply(&File::source("kube-root-ca.crt", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("kube-root-ca.crt", "two"));
    play.rest();
    play.reads(&file.key, "kube-root-ca.crt", "two");
    play.revisions(&file.key, 1);
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 2);
}

fn foreground(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.delete_in_foreground(&file.key);
    play.rest();
}
