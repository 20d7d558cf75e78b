//! The state of a change on its source: what it says while the change waits, and after it, whatever fails meanwhile.

use confrev::{
    annotations,
    resolve::{ChangeState, Phase},
};

use super::{
    super::{
        objects::{File, NAMESPACE, source_key},
        play::{Play, holds},
    },
    Scenario,
    groups::{all_read, deployed, group},
};
use crate::store::{Key, annotation};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("state-of-a-change", of_config_map).loose(),
    Scenario::new("state-of-a-change-of-a-secret", of_secret).loose(),
    Scenario::new("state-of-a-change-of-a-group", of_group).loose(),
    Scenario::new("state-of-a-refused-change", of_refused).loose(),
];

/// The bake time is longer than any fault: the first wave is over at each check.
fn reported(file: File) -> File {
    file.note(annotations::REPORT, "true").note(annotations::WAVES, "1").note(annotations::BAKE, "400s")
}

/// The phase of the present content of a source, and how many of its workloads have moved.
fn state(play: &Play<'_>, source: &Key, content: &str) -> Option<(Phase, usize, usize)> {
    let live = play.model.get(source).unwrap();
    let state = ChangeState::read(annotation(&live, annotations::CHANGE)?)?;
    let snapshots = play.snapshots_of(source);
    let holds = |name: &String| {
        let snapshot = play.model.get(&Key::new(source.kind, &source.namespace, name)).unwrap();
        holds(&snapshot, content)
            && annotation(&snapshot, annotations::DIGEST) == Some(&*state.digest.to_string())
    };
    snapshots.iter().any(holds).then_some((state.phase, state.moved, state.of))
}

fn expect(play: &Play<'_>, source: &Key, content: &str, expected: (Phase, usize, usize)) {
    let state = state(play, source, content);
    if state != Some(expected) {
        play.model.broken("rolls", format!("the state of {source} is {state:?}, not {expected:?}"));
    }
}

fn of_config_map(play: &Play<'_>) {
    of_one(play, "s");
}

fn of_secret(play: &Play<'_>) {
    of_one(play, "secret/s");
}

fn of_one(play: &Play<'_>, source: &str) {
    let file = |content| reported(File::source(source, content));
    let key = source_key(source);
    let files =
        ["u", "v", "w"].map(|name| File::deployment(name, &[source]).note(annotations::SECRETS, "true"));
    play.apply(&file("one"));
    for file in &files {
        play.apply(file);
    }
    // The first content bakes as well.
    play.seconds(600);
    expect(play, &key, "one", (Phase::Complete, 3, 3));
    play.apply(&file("two"));
    play.seconds(150);
    expect(play, &key, "two", (Phase::Waiting, 1, 3));
    play.seconds(900);
    play.rest();
    expect(play, &key, "two", (Phase::Complete, 3, 3));
    for file in &files {
        play.reads(&file.key, source, "two");
    }
}

/// One namespace has moved. Its change is not complete before that of the group is.
fn of_group(play: &Play<'_>) {
    let file = |content| reported(File::source("s", content)).note(annotations::WAVES, "1, 50%");
    let files = group(play, &file("one"));
    let sources = [NAMESPACE, "b"].map(|namespace| Key::configmap(namespace, "s"));
    let states = |content| sources.each_ref().map(|source| state(play, source, content));
    for source in &sources {
        play.apply(&file("two").in_namespace(&source.namespace));
    }
    for moved in [1, 2] {
        play.seconds(if moved == 1 { 200 } else { 400 });
        let states = states("two");
        let sum: usize = states.iter().flatten().map(|(_, moved, _)| moved).sum();
        if sum != moved
            || !states.iter().all(|state| state.is_some_and(|(phase, ..)| phase == Phase::Waiting))
        {
            play.model
                .broken("rolls", format!("{moved} of 4 workloads have moved, the states are {states:?}"));
        }
    }
    play.seconds(900);
    play.rest();
    all_read(play, &files, "two");
    for source in &sources {
        expect(play, source, "two", (Phase::Complete, 2, 2));
    }
}

fn of_refused(play: &Play<'_>) {
    let set = |file| reported(file).note(annotations::ON_FAILURE, "revert");
    let files = deployed(play, &set(File::source("s", "one")));
    play.apply(&set(File::entries("s", &[("v", "two"), ("bad", "yes")])));
    play.seconds(200);
    let phase = state(play, &source_key("s"), "two").map(|(phase, ..)| phase);
    if phase != Some(Phase::Refused) {
        play.model.broken("rolls", format!("the phase of refused content is {phase:?}"));
    }
    play.apply(&set(File::source("s", "three")));
    play.seconds(1200);
    play.rest();
    all_read(play, &files, "three");
    expect(play, &source_key("s"), "three", (Phase::Complete, 3, 3));
}
