//! The documented behavior of one workload: undo, pin, opt-in and opt-out, and its settings.

use confrev::annotations;

use super::{
    super::{
        objects::{File, NAMESPACE, pod, source_key},
        play::Play,
    },
    Scenario,
};
use crate::{
    model::Refusal,
    store::{Key, Kind},
};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("canary", canary),
    Scenario::new("pin", pin),
    Scenario::new("one-two-one", one_two_one),
    Scenario::new("one-two-one-at-once", one_two_one_at_once).loose(),
    Scenario::new("opt-out-by-label", opt_out_by_label),
    Scenario::new("opt-in-by-namespace", opt_in_by_namespace),
    Scenario::new("opt-in-by-next-deployment", opt_in_by_next_deployment),
    Scenario::new("namespace-and-own-labels", namespace_and_own_labels),
    Scenario::new("track-false", track_false),
    Scenario::new("roll-by-hand", roll_by_hand),
    Scenario::new("min-interval", min_interval).loose(),
    Scenario::new("mount", mount),
    Scenario::new("missing-warn", missing_warn),
    Scenario::new("missing-deny", missing_deny),
    Scenario::new("optional-source", optional_source),
    Scenario::new("exclude", exclude),
    Scenario::new("dry-run", dry_run),
    Scenario::new("applied-together", applied_together).loose(),
    Scenario::new("image-and-content", image_and_content).loose(),
    Scenario::new("leader-change-in-a-roll", leader_change),
    Scenario::new("restarts-in-a-roll", restarts),
    Scenario::new("made-again-under-its-name", made_again),
    Scenario::new("another-source", another_source),
    Scenario::new("export-before-its-source", export_before_its_source),
];

/// A Deployment with the first content of its source.
fn begin(play: &Play<'_>) -> File {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    file
}

fn canary(play: &Play<'_>) {
    play.model.take_time();
    let file = File::workload(Kind::Rollout, "w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    // A pod of the first revision is replaced throughout the canary.
    for _ in 0..8 {
        play.seconds(1);
        play.reads(&Key::new(Kind::ReplicaSet, NAMESPACE, "w-rollout-1"), "s", "one");
    }
    play.rest();
    play.undo(&file.key, 1);
    play.rest();
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 3);
}

fn pin(play: &Play<'_>) {
    let file = begin(play);
    let first = play.snapshot("s", "one");
    play.apply(&File::source("s", "two"));
    play.rest();
    play.pin(&file.key, "s", &first);
    play.rest();
    play.reads(&file.key, "s", "one");
    play.apply(&File::source("s", "three"));
    play.rest();
    play.reads(&file.key, "s", "three");
    play.revisions(&file.key, 4);
}

fn one_two_one(play: &Play<'_>) {
    let file = begin(play);
    for (content, revisions) in [("two", 2), ("one", 3), ("two", 4)] {
        play.apply(&File::source("s", content));
        play.rest();
        play.reads(&file.key, "s", content);
        play.revisions(&file.key, revisions);
    }
}

fn one_two_one_at_once(play: &Play<'_>) {
    let file = begin(play);
    for content in ["two", "one", "three", "one"] {
        play.apply(&File::source("s", content));
        play.settle(jiff::SignedDuration::from_millis(300));
    }
    play.rest();
    play.reads(&file.key, "s", "one");
}

fn opt_out_by_label(play: &Play<'_>) {
    let file = begin(play);
    play.label(&file.key, annotations::ENABLED, Some("false"));
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.revisions(&file.key, 2);
    play.label(&file.key, annotations::ENABLED, Some("true"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 3);
    play.label(&file.key, annotations::ENABLED, None);
}

fn opt_in_by_namespace(play: &Play<'_>) {
    let files = ["v", "w"].map(|name| File::deployment(name, &["s"]).unlabelled());
    play.apply(&File::source("s", "one"));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.namespace(NAMESPACE, &[(annotations::ENABLED, "true")]);
    play.rest();
    for file in &files {
        play.revisions(&file.key, 2);
    }
    play.apply_all_again();
    play.apply(&File::source("s", "two"));
    play.rest();
    for file in &files {
        play.reads(&file.key, "s", "two");
        play.revisions(&file.key, 3);
    }
    play.namespace(NAMESPACE, &[]);
    play.rest();
    for file in &files {
        play.revisions(&file.key, 4);
    }
}

fn opt_in_by_next_deployment(play: &Play<'_>) {
    let [v, w] = ["v", "w"].map(|name| File::deployment(name, &["s"]).unlabelled());
    play.apply(&File::source("s", "one"));
    for file in [&v, &w] {
        play.apply(file);
    }
    play.rest();
    play.namespace(NAMESPACE, &[(annotations::ENABLED, "next")]);
    play.apply(&File::source("s", "two"));
    play.annotate(&v.key, "note", Some("x"));
    play.rest();
    for file in [&v, &w] {
        play.revisions(&file.key, 1);
    }
    play.apply(&v.clone().image(2));
    play.rest();
    play.apply(&File::source("s", "three"));
    play.rest();
    play.reads(&v.key, "s", "three");
    play.revisions(&v.key, 3);
    play.revisions(&w.key, 1);
    play.namespace(NAMESPACE, &[(annotations::ENABLED, "true")]);
    play.rest();
    play.reads(&w.key, "s", "three");
    play.revisions(&v.key, 3);
    play.revisions(&w.key, 2);
    play.namespace(NAMESPACE, &[(annotations::ENABLED, "next")]);
    play.apply(&File::source("s", "four"));
    play.rest();
    play.reads(&w.key, "s", "four");
    play.revisions(&w.key, 3);
}

fn namespace_and_own_labels(play: &Play<'_>) {
    play.namespace(NAMESPACE, &[(annotations::ENABLED, "true")]);
    play.namespace("b", &[]);
    let own = File::deployment("own", &["s"]);
    let out = File::deployment("out", &["s"]).label(annotations::ENABLED, Some("false"));
    let given = File::workload(Kind::StatefulSet, "given", &["s"]).unlabelled();
    let elsewhere = File::deployment("elsewhere", &["s"]).unlabelled().in_namespace("b");
    play.apply(&File::source("s", "one"));
    for file in [&own, &out, &given, &elsewhere] {
        play.apply(file);
    }
    play.rest();
    play.namespace(NAMESPACE, &[]);
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&own.key, "s", "two");
    play.revisions(&out.key, 1);
    play.revisions(&elsewhere.key, 1);
}

fn track_false(play: &Play<'_>) {
    let file = begin(play);
    play.annotate(&file.key, annotations::TRACK, Some("false"));
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 1);
    play.annotate(&file.key, annotations::TRACK, Some("true"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 2);
}

fn roll_by_hand(play: &Play<'_>) {
    let file = begin(play);
    play.annotate(&file.key, annotations::TRACK, Some("false"));
    play.apply(&File::source("s", "two"));
    play.rest();
    play.annotate(&file.key, annotations::ROLL, Some("now"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 2);
}

fn min_interval(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]).note(annotations::MIN_INTERVAL, "60s");
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    for content in ["two", "three", "four"] {
        play.apply(&File::source("s", content));
        play.seconds(4);
    }
    play.rest();
    play.reads(&file.key, "s", "four");
    let live = play.model.get(&file.key).unwrap();
    if crate::cluster::revision(&live) > 3 {
        play.model.broken("rolls", "the workload rolled more often than its interval allows");
    }
}

fn mount(play: &Play<'_>) {
    let file = File::deployment("w", &[]).note(annotations::MOUNT, "s,t=/etc/app");
    play.apply(&File::source("s", "one"));
    play.apply(&File::source("t", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("t", "two"));
    play.rest();
    play.reads(&file.key, "s", "one");
    play.reads(&file.key, "t", "two");
    play.revisions(&file.key, 2);
    play.annotate(&file.key, annotations::MOUNT, None);
    play.rest();
    play.revisions(&file.key, 3);
}

fn missing_warn(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "one"));
    play.rest();
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 2);
}

fn missing_deny(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]).note(annotations::MISSING, "deny");
    let refused = play.try_apply(&file);
    if !matches!(refused, Err(Refusal::Denied(403, _))) {
        play.model
            .broken("rolls", format!("a workload whose source is missing was not refused: {refused:?}"));
    }
    play.rest();
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 1);
}

fn optional_source(play: &Play<'_>) {
    let file = File::deployment("w", &["?s"]);
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "one"));
    play.rest();
    play.reads(&file.key, "s", "one");
    play.delete(&File::source("s", "one").key);
    play.rest();
    play.revisions(&file.key, 2);
}

fn exclude(play: &Play<'_>) {
    let file = File::deployment("w", &["s", "t"]).note(annotations::EXCLUDE, "t");
    play.apply(&File::source("s", "one"));
    play.apply(&File::source("t", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("t", "two"));
    play.rest();
    play.revisions(&file.key, 1);
    play.annotate(&file.key, annotations::EXCLUDE, None);
    play.rest();
    play.reads(&file.key, "t", "two");
    play.revisions(&file.key, 2);
}

fn dry_run(play: &Play<'_>) {
    let file = File::deployment("w", &["s", "from:t", "projected:s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&File::source("t", "one"));
    play.rehearse(&file);
    play.rest();
    play.rehearse(&file.clone().image(1));
    play.rest();
    play.revisions(&file.key, 2);
    play.rehearse(&file.image(1));
    play.rest();
}

fn applied_together(play: &Play<'_>) {
    let file = begin(play);
    play.apply(&File::source("s", "two"));
    play.apply(&file.clone().image(1));
    play.rest();
    play.reads(&file.key, "s", "two");
}

fn image_and_content(play: &Play<'_>) {
    let file = begin(play);
    for (content, image) in [("two", 1), ("three", 2), ("one", 0)] {
        play.apply(&File::source("s", content));
        play.settle(jiff::SignedDuration::from_millis(1200));
        play.apply(&file.clone().image(image));
        play.settle(jiff::SignedDuration::from_millis(200));
    }
    play.rest();
    play.reads(&file.key, "s", "one");
}

fn leader_change(play: &Play<'_>) {
    let file = begin(play);
    play.apply(&File::source("s", "two"));
    play.settle(jiff::SignedDuration::from_millis(500));
    play.model.lead(1);
    play.rest();
    play.revisions(&file.key, 2);
    play.apply(&File::source("s", "three"));
    play.seconds(1);
    play.model.lead(0);
    play.rest();
    play.reads(&file.key, "s", "three");
    play.revisions(&file.key, 3);
}

fn restarts(play: &Play<'_>) {
    let file = begin(play);
    play.apply(&File::source("s", "two"));
    play.settle(jiff::SignedDuration::from_millis(500));
    play.model.restart(0);
    play.seconds(1);
    play.model.restart(1);
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 2);
}

fn made_again(play: &Play<'_>) {
    let file = begin(play);
    play.delete(&file.key);
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.delete(&file.key);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 1);
}

fn another_source(play: &Play<'_>) {
    let file = begin(play);
    play.apply(&File::source("t", "other"));
    play.edit(&file.key, |object| object["spec"]["template"]["spec"] = pod(&["t"])["spec"].clone());
    play.rest();
    play.reads(&file.key, "t", "other");
    play.apply(&File::source("s", "two"));
    play.rest();
    play.revisions(&file.key, 2);
    play.undo(&file.key, 1);
    play.rest();
    play.reads(&file.key, "s", "one");
}

/// A workload is deleted, and with it its snapshot. Its export, which names the snapshot, comes back before its source does.
fn export_before_its_source(play: &Play<'_>) {
    let mut export = begin(play);
    export.json["spec"] = play.model.get(&export.key).unwrap()["spec"].clone();
    play.delete(&export.key);
    play.delete(&source_key("s"));
    play.rest();
    play.apply(&export);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&export.key, "s", "two");
    play.revisions(&export.key, 2);
}
