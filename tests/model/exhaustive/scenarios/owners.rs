//! Owners and deletions: the objects that are deleted, kept and created again.

use confrev::annotations;
use serde_json::json;

use super::{
    super::{
        objects::{File, NAMESPACE, source_key},
        play::Play,
    },
    Scenario,
};
use crate::store::{Key, Kind, set_meta};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("history-ends", history_ends),
    Scenario::new("deleted-in-the-background", background),
    Scenario::new("deleted-with-its-source", with_its_source),
    Scenario::new("namespace-deleted", namespace_deleted),
    Scenario::new("orphan-is-swept", orphan),
    Scenario::new("copy-of-a-snapshot", copy_of_a_snapshot),
    Scenario::new("snapshot-is-restored", restored),
    Scenario::new("revision-loses-its-label", label_lost),
    Scenario::new("old-revision-becomes-the-last-user", last_user),
    Scenario::new("undo-as-the-last-revision-goes", undo_at_the_end),
    Scenario::new("collector-is-late", late_collector).remembered(),
];

fn changed_twice(play: &Play<'_>, history: u64) -> File {
    let file = File::deployment("w", &["s"]).history(history);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    for content in ["two", "three"] {
        play.apply(&File::source("s", content));
        play.rest();
    }
    file
}

fn history_ends(play: &Play<'_>) {
    let file = changed_twice(play, 1);
    if play.snapshots_of(&source_key("s")).len() != 2 {
        play.model.broken("no-leak", "a snapshot exists after its last revision");
    }
    play.apply(&file.clone().history(0));
    play.rest();
    play.reads(&file.key, "s", "three");
}

fn background(play: &Play<'_>) {
    let file = changed_twice(play, 2);
    play.delete(&file.key);
    play.rest();
    play.delete(&source_key("s"));
}

fn with_its_source(play: &Play<'_>) {
    let file = changed_twice(play, 2);
    play.delete(&source_key("s"));
    play.delete(&file.key);
    play.rest();
    if !play.snapshots_of(&source_key("s")).is_empty() {
        play.model.broken("no-leak", "a snapshot exists after its source and its workload");
    }
}

fn namespace_deleted(play: &Play<'_>) {
    changed_twice(play, 2);
    play.delete_namespace(NAMESPACE);
    play.rest();
    play.namespace(NAMESPACE, &[]);
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.reads(&file.key, "s", "one");
}

fn orphan(play: &Play<'_>) {
    play.apply(&File::source("s", "one").note(annotations::KEEP, "0"));
    play.apply(&File::deployment("other", &["t"]));
    play.apply(&File::source("t", "one"));
    play.rest();
    play.apply_in_vain(&File::deployment("w", &["s"]));
    play.rest();
    if !play.snapshots_of(&source_key("s")).is_empty() {
        play.model.broken("no-leak", "the snapshot of a refused workload still exists");
    }
}

fn restored(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    let name = play.snapshot("s", "one");
    // A user deletes the snapshot despite the guard.
    play.model.delete(&Key::configmap(NAMESPACE, &name));
    play.rest();
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 1);
}

fn label_lost(play: &Play<'_>) {
    let file = changed_twice(play, 2);
    let revision = Key::new(Kind::ReplicaSet, NAMESPACE, "w-1");
    play.edit(&revision, |object| set_meta(object, "labels", annotations::REVISION, None));
    play.rest();
    play.reads(&revision, "s", "one");
    play.undo(&file.key, 1);
    play.rest();
    play.reads(&file.key, "s", "one");
}

fn last_user(play: &Play<'_>) {
    let file = changed_twice(play, 2);
    play.delete(&source_key("s"));
    play.rest();
    play.edit(&file.key, |object| {
        let template = &mut object["spec"]["template"];
        template["spec"] = super::super::objects::pod(&[])["spec"].clone();
    });
    play.rest();
    play.undo(&file.key, 3);
    play.rest();
    play.revisions(&file.key, 5);
}

fn undo_at_the_end(play: &Play<'_>) {
    let file = changed_twice(play, 2);
    play.undo(&file.key, 1);
    // The last revision of the snapshot is deleted at that moment.
    play.model.delete(&Key::new(Kind::ReplicaSet, NAMESPACE, "w-1"));
    play.model.collect();
    play.rest();
    play.reads(&file.key, "s", "one");
}

fn late_collector(play: &Play<'_>) {
    let file = changed_twice(play, 2);
    // The garbage collector deletes seconds after its decision, even if the owners have changed.
    play.model.collect_late();
    let template = play.model.get(&Key::new(Kind::ReplicaSet, NAMESPACE, "w-1")).unwrap();
    play.model.delete(&Key::new(Kind::ReplicaSet, NAMESPACE, "w-1"));
    play.model.collect();
    // Once the collector has deleted the snapshot, which nothing used, its content is lost.
    if play.edit_once(&file.key, |object| object["spec"]["template"] = template["spec"]["template"].clone()) {
        play.rest();
        play.reads(&file.key, "s", "one");
    }
}

/// A user copies a snapshot under another name, with its labels. A workload that is not opted in uses the copy.
fn copy_of_a_snapshot(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]).history(0);
    play.apply(&File::source("s", "one").note(annotations::KEEP, "0"));
    play.apply(&file);
    play.rest();
    let key = Key::configmap(NAMESPACE, &play.snapshot("s", "one"));
    let mut copy = (*play.model.get(&key).unwrap()).clone();
    copy["metadata"] = json!({
        "name": "copy", "labels": copy["metadata"]["labels"], "annotations": copy["metadata"]["annotations"],
    });
    let copied = Key::configmap(NAMESPACE, "copy");
    play.model.commit(&copied, copy);
    play.apply(&File::deployment("own", &["copy"]).label(annotations::ENABLED, Some("false")));
    play.apply(&File::source("s", "two").note(annotations::KEEP, "0"));
    play.rest();
    // Longer than the grace of an orphan.
    play.seconds(1200);
    if play.model.get(&key).is_some() || play.model.get(&copied).is_none() {
        play.model.broken("no-leak", "the snapshot is to be deleted, and its copy is not");
    }
}
