//! Several workloads of one source, `max-in-flight` and waves.

use confrev::{names, resolve::auto_roll_time};
use jiff::SignedDuration;

use super::{
    super::{
        objects::{File, source_key},
        play::Play,
    },
    Scenario,
};
use crate::store::annotation;

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("many-workloads", many),
    Scenario::new("max-in-flight", max_in_flight),
    Scenario::new("max-in-flight-with-bad-content", bad_content).loose(),
    Scenario::new("waves", waves).loose(),
    Scenario::new("waves-with-bad-content", waves_with_bad_content).loose(),
    Scenario::new("bad-content-reverts", bad_content_reverts).loose(),
    Scenario::new("bad-wave-reverts", bad_wave_reverts).loose(),
];

/// The bake time of the waves.
const BAKE: SignedDuration = SignedDuration::from_secs(20);

fn in_waves(file: File) -> File {
    file.note(names::WAVES, "1").note(names::BAKE, &format!("{}s", BAKE.as_secs()))
}

fn limited(content: &str) -> File {
    File::source("s", content).note(names::MAX_IN_FLIGHT, "1")
}

fn deployments() -> [File; 3] {
    ["u", "v", "w"].map(|name| File::deployment(name, &["s"]))
}

fn many(play: &Play<'_>) {
    let files = deployments();
    play.apply(&File::source("s", "one"));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    for file in &files {
        play.reads(&file.key, "s", "two");
        play.revisions(&file.key, 2);
    }
    play.delete(&files[0].key);
    play.undo(&files[1].key, 1);
    play.rest();
    play.reads(&files[1].key, "s", "one");
    play.reads(&files[2].key, "s", "two");
}

fn max_in_flight(play: &Play<'_>) {
    let files = deployments();
    play.apply(&limited("one"));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.rest();
    play.apply(&limited("two"));
    play.rest();
    for file in &files {
        play.reads(&file.key, "s", "two");
        play.revisions(&file.key, 2);
    }
}

/// The second wave begins no earlier than the bake time allows, whatever fails meanwhile.
fn waves(play: &Play<'_>) {
    let files = deployments();
    play.apply(&in_waves(File::source("s", "one")));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.rest();
    play.apply(&in_waves(File::source("s", "two")));
    play.seconds(120);
    play.rest();
    for file in &files {
        play.reads(&file.key, "s", "two");
        play.revisions(&file.key, 2);
    }
    let time = |file: &File| {
        let roll = annotation(&play.model.get(&file.key).unwrap(), names::ROLL).map(auto_roll_time);
        roll.flatten().expect("the controller moved the workload")
    };
    let mut times = files.each_ref().map(time);
    times.sort();
    if times[0] + BAKE > times[1] {
        play.model.broken("rolls", format!("the second wave began within {BAKE}: {times:?}"));
    }
}

/// No workload follows the first one, which fails.
fn waves_with_bad_content(play: &Play<'_>) {
    let files = deployments();
    play.apply(&in_waves(File::source("s", "one")));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.apply(&in_waves(File::entries("s", &[("v", "two"), ("bad", "yes")])));
    play.seconds(120);
    let bad = play.snapshot("s", "two");
    let has_moved = |file: &&File| {
        let live = play.model.get(&file.key).unwrap();
        live["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] == *bad
    };
    let moved = files.iter().filter(has_moved).count();
    if moved != 1 {
        play.model.broken("rolls", format!("{moved} workloads have moved to content that fails"));
    }
    play.apply(&in_waves(File::source("s", "three")));
    play.seconds(120);
    play.rest();
    for file in &files {
        play.reads(&file.key, "s", "three");
    }
}

fn reverting(file: File) -> File {
    file.note(names::ON_FAILURE, "revert")
}

/// All workloads move at once and fail. All go back, and nothing moves them to this content again.
fn bad_content_reverts(play: &Play<'_>) {
    revert(play, reverting);
}

/// The first workload moves and fails. No other one follows.
fn bad_wave_reverts(play: &Play<'_>) {
    revert(play, |file| reverting(in_waves(file)));
}

fn revert(play: &Play<'_>, set: impl Fn(File) -> File) {
    let files = deployments();
    play.apply(&set(File::source("s", "one")));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.apply(&set(File::entries("s", &[("v", "two"), ("bad", "yes")])));
    play.seconds(120);
    for file in &files {
        play.reads(&file.key, "s", "one");
        // A sync does not move it either.
        play.apply(file);
    }
    play.seconds(30);
    for file in &files {
        play.reads(&file.key, "s", "one");
    }
    let bad = play.model.get(&source_key(&play.snapshot("s", "two"))).unwrap();
    if annotation(&bad, names::REFUSED).is_none() {
        play.model.broken("rolls", "the content is not refused".to_owned());
    }
    play.apply(&set(File::source("s", "three")));
    play.seconds(120);
    play.rest();
    for file in &files {
        play.reads(&file.key, "s", "three");
    }
}

fn bad_content(play: &Play<'_>) {
    let files = deployments();
    play.apply(&limited("one"));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    let bad = File::entries("s", &[("v", "two"), ("bad", "yes")]).note(names::MAX_IN_FLIGHT, "1");
    play.apply(&bad);
    // The controller checks a held change each second, so the run never comes to rest.
    play.seconds(120);
    let bad = play.snapshot("s", "two");
    let has_moved = |file: &File| {
        let live = play.model.get(&file.key).unwrap();
        live["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] == *bad
    };
    let failed = files.each_ref().map(has_moved);
    let moved = failed.iter().filter(|failed| **failed).count();
    if moved != 1 {
        play.model.broken("rolls", format!("{moved} workloads have rolled to content that fails"));
    }
    play.apply(&limited("three"));
    play.rest();
    for (file, failed) in files.iter().zip(failed) {
        play.reads(&file.key, "s", "three");
        let live = play.model.get(&file.key).unwrap();
        if annotation(&live, names::UNHEALTHY).is_some() != failed {
            play.model
                .broken("rolls", format!("{} was unhealthy: {failed}, recorded: {}", file.key, !failed));
        }
    }
    play.delete(&source_key("s"));
}
