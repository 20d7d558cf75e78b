//! Workloads that break after their rollout, and sources with a strategy.

use confrev::annotations;
use serde_json::json;

use super::{
    super::{
        objects::{File, source_key},
        play::Play,
        spread::verdict,
    },
    Scenario,
    groups::{all_read, deployed, revert},
};
use crate::store::{Key, strategies};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("workload-breaks-in-the-first-wave", breaks_in_first_wave).loose(),
    Scenario::new("workload-breaks-in-the-last-bake", breaks_in_last_bake).loose(),
    Scenario::new("workload-breaks-after-the-change", breaks_after_change).loose(),
    Scenario::new("strategy-moves-in-waves", strategy_moves).loose(),
    Scenario::new("strategy-reverts-bad-content", strategy_reverts).loose(),
];

/// The most steps of ten seconds until a wave has moved. Two silent watches may delay it by two minutes.
const STEPS: usize = 60;

fn stepwise(file: File) -> File {
    file.note(annotations::STRATEGY, "steps")
}

/// The most starts of a container until its workload has failed. Two watches may be silent for a minute each.
const STARTS: usize = 15;
/// Seconds that are shorter than the time after which a workload has failed. Two interruptions are longer.
const SHORT: i64 = 20;
const LONG: i64 = 60;

/// Time for any fault: a bake that ends after it cannot be over.
fn long_bake(file: File) -> File {
    stepwise(file).note(annotations::WAVES, "1").note(annotations::BAKE, "15m")
}

fn breaking() -> File {
    File::entries("s", &[("v", "two"), ("breaks", "yes")])
}

/// The strategies of the installation, which the commands read.
fn with_strategies<'p, 'm>(play: &'p Play<'m>) -> &'p Play<'m> {
    let installed = json!({"metadata": {}, "data": {"strategies": strategies(), "strategy": ""}});
    play.model.commit(&Key::configmap("confrev", "confrev-strategies"), installed);
    play
}

/// The correction reaches all workloads.
fn correct(play: &Play<'_>, files: &[File]) {
    play.apply(&stepwise(File::source("s", "three")));
    play.seconds(150);
    play.rest();
    all_read(play, files, "three");
}

/// Waits until that many workloads have the second content.
fn wait_moved(play: &Play<'_>, files: &[File], count: usize) {
    let is_on = |file: &&File| {
        let live = play.model.get(&file.key).unwrap();
        let name = live["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"].as_str().unwrap();
        play.model.get(&source_key(name)).is_some_and(|of| of["data"]["v"] == "two")
    };
    for _ in 0..STEPS {
        if files.iter().filter(is_on).count() >= count {
            return;
        }
        play.seconds(10);
    }
    play.model.broken("rolls", format!("{count} workloads have not moved"));
}

fn is_refused(play: &Play<'_>) -> bool {
    let snapshot = play.model.get(&source_key(&play.snapshot("s", "two"))).unwrap();
    verdict(&snapshot).failed.is_some()
}

/// Their own controllers report complete rollouts. All workloads go back, and the correction reaches them.
fn reverts_once_broken(play: &Play<'_>, set: impl Fn(File) -> File, moved: usize, broken: i64) {
    let files = deployed(with_strategies(play), &set(File::source("s", "one")));
    play.apply(&set(breaking()));
    play.seconds(10);
    wait_moved(play, &files, moved);
    // A container that ends is available for a moment at each start. A new leader must see that once.
    for _ in 0..STARTS {
        play.model.conditions().breaks = false;
        play.seconds(10);
        play.model.conditions().breaks = true;
        play.seconds(broken);
        if is_refused(play) {
            break;
        }
    }
    play.seconds(60);
    all_read(play, &files, "one");
    if !is_refused(play) {
        play.model.broken("rolls", "the content is not refused".to_owned());
    }
    correct(play, &files);
}

fn breaks_in_first_wave(play: &Play<'_>) {
    reverts_once_broken(play, long_bake, 1, SHORT);
}

/// The change is complete only when the last wave has baked, too.
fn breaks_in_last_bake(play: &Play<'_>) {
    let set = |file| long_bake(file).note(annotations::WAVES, "100%");
    reverts_once_broken(play, set, 3, LONG);
}

/// What happens to a workload long after a change says nothing about its content.
fn breaks_after_change(play: &Play<'_>) {
    let files = deployed(with_strategies(play), &stepwise(File::source("s", "one")));
    play.apply(&stepwise(breaking()));
    play.seconds(10);
    wait_moved(play, &files, 3);
    play.seconds(150);
    play.model.conditions().breaks = true;
    play.seconds(150);
    all_read(play, &files, "two");
    if is_refused(play) {
        play.model.broken("rolls", "the content is refused after the change was complete".to_owned());
    }
    correct(play, &files);
}

fn strategy_moves(play: &Play<'_>) {
    let files = deployed(with_strategies(play), &stepwise(File::source("s", "one")));
    play.apply(&stepwise(File::source("s", "two")));
    play.seconds(150);
    play.rest();
    all_read(play, &files, "two");
    for file in &files {
        play.revisions(&file.key, 2);
    }
}

fn strategy_reverts(play: &Play<'_>) {
    revert(with_strategies(play), stepwise);
}
