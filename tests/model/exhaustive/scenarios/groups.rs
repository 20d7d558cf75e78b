//! Several workloads of one source, `max-in-flight` and waves.

use confrev::{
    annotations,
    resolve::{ALL_WAVES, UserAction, UserDecision, auto_roll_time},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{
    super::{
        objects::{File, NAMESPACE, source_key},
        play::Play,
        spread::verdict,
    },
    Scenario,
};
use crate::store::{Key, Kind, annotation, set_meta};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("many-workloads", many),
    Scenario::new("max-in-flight", max_in_flight),
    Scenario::new("max-in-flight-with-bad-content", bad_content).loose(),
    Scenario::new("waves", waves).loose(),
    Scenario::new("waves-with-bad-content", waves_with_bad_content).loose(),
    Scenario::new("bad-content-reverts", bad_content_reverts).loose(),
    Scenario::new("bad-wave-reverts", bad_wave_reverts).loose(),
    Scenario::new("group-of-namespaces", group_moves).loose(),
    Scenario::new("group-with-waves-in-one-namespace", group_with_waves_in_one).loose(),
    Scenario::new("group-of-namespaces-reverts", group_reverts).loose(),
    Scenario::new("group-of-namespaces-holds", group_holds).loose(),
    Scenario::new("analysis-approves-each-wave", analysis_approves).loose(),
    Scenario::new("failed-analysis-reverts", analysis_reverts).loose(),
    Scenario::new("analysis-of-one-wave", one_wave_is_analysed).loose(),
    Scenario::new("deployment-while-a-wave-is-analysed", deployed_during_analysis).loose(),
    Scenario::new("two-sources-with-waves", two_sources_with_waves).loose(),
    Scenario::new("set-with-waves", set_with_waves).loose(),
    Scenario::new("aborted-change-beside-another", aborted_beside_another).loose(),
    Scenario::new("waves-with-a-hold", waves_with_hold).loose(),
    Scenario::new("promoted-content-comes-back", promoted_content_comes_back).loose(),
    Scenario::new("aborted-change-stays-aborted", aborted_stays_aborted).loose(),
    Scenario::new("failure-outlives-its-workload", failure_outlives_its_workload).loose(),
    Scenario::new("failure-outlives-scaling-to-zero", failure_outlives_scaling).loose(),
    Scenario::new("failure-outlives-an-opt-out", failure_outlives_opt_out).loose(),
];

/// The bake time of the waves.
const BAKE: SignedDuration = SignedDuration::from_secs(20);

fn in_waves(file: File) -> File {
    file.note(annotations::WAVES, "1").note(annotations::BAKE, &format!("{}s", BAKE.as_secs()))
}

fn limited(content: &str) -> File {
    File::source("s", content).note(annotations::MAX_IN_FLIGHT, "1")
}

fn deployments() -> [File; 3] {
    ["u", "v", "w"].map(|name| File::deployment(name, &["s"]))
}

/// Three Deployments of a source with this content, some time ago.
pub(super) fn deployed(play: &Play<'_>, content: &File) -> [File; 3] {
    let files = deployments();
    play.apply(content);
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    files
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
    let files = deployed(play, &limited("one"));
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
    let files = deployed(play, &in_waves(File::source("s", "one")));
    play.rest();
    play.apply(&in_waves(File::source("s", "two")));
    play.seconds(120);
    play.rest();
    for file in &files {
        play.reads(&file.key, "s", "two");
        play.revisions(&file.key, 2);
    }
    let time = |file: &File| {
        let roll = annotation(&play.model.get(&file.key).unwrap(), annotations::ROLL).map(auto_roll_time);
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
    let files = deployed(play, &in_waves(File::source("s", "one")));
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
    file.note(annotations::ON_FAILURE, "revert")
}

/// All workloads move at once and fail. All go back, and nothing moves them to this content again.
fn bad_content_reverts(play: &Play<'_>) {
    revert(play, reverting);
}

/// The first workload moves and fails. No other one follows.
fn bad_wave_reverts(play: &Play<'_>) {
    revert(play, |file| reverting(in_waves(file)));
}

pub(super) fn revert(play: &Play<'_>, set: impl Fn(File) -> File) {
    let files = deployed(play, &set(File::source("s", "one")));
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
    if verdict(&bad).failed.is_none() {
        play.model.broken("rolls", "the content is not refused".to_owned());
    }
    play.apply(&set(File::source("s", "three")));
    play.seconds(120);
    play.rest();
    for file in &files {
        play.reads(&file.key, "s", "three");
    }
}

/// The namespaces of a group, with two Deployments in each.
pub(super) fn group(play: &Play<'_>, content: &File) -> [File; 4] {
    group_labelled(play, content, &[(annotations::GROUP, "g")])
}

fn group_labelled(play: &Play<'_>, content: &File, labels: &[(&str, &str)]) -> [File; 4] {
    let namespaces = [NAMESPACE, "b"];
    for namespace in namespaces {
        play.namespace(namespace, labels);
        play.apply(&content.clone().in_namespace(namespace));
    }
    let files = [("v", 0), ("w", 0), ("v", 1), ("w", 1)];
    let files = files.map(|(name, number)| File::deployment(name, &["s"]).in_namespace(namespaces[number]));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.rest();
    files
}

/// Waves of one, two and four workloads of four.
fn in_three_waves(file: File) -> File {
    in_waves(file).note(annotations::WAVES, "1, 50%")
}

pub(super) fn all_read(play: &Play<'_>, files: &[File], content: &str) {
    for file in files {
        play.reads(&file.key, "s", content);
    }
}

/// Both namespaces share one sequence of waves.
fn group_moves(play: &Play<'_>) {
    let files = group(play, &in_three_waves(File::source("s", "one")));
    for namespace in [NAMESPACE, "b"] {
        play.apply(&in_three_waves(File::source("s", "two")).in_namespace(namespace));
    }
    play.seconds(180);
    play.rest();
    all_read(play, &files, "two");
    for file in &files {
        play.revisions(&file.key, 2);
    }
}

/// The source of the first namespace has no settings: the waves of the other one count and hold its workloads.
fn group_with_waves_in_one(play: &Play<'_>) {
    let files = group(play, &File::source("s", "one"));
    for content in ["one", "two"] {
        play.apply(&in_three_waves(File::source("s", content)).in_namespace("b"));
    }
    play.apply(&File::source("s", "two"));
    play.seconds(180);
    play.rest();
    all_read(play, &files, "two");
    for file in &files {
        play.revisions(&file.key, 2);
    }
}

/// The first workload of the group fails. It comes back, and no workload of either namespace moves to the content.
fn group_reverts(play: &Play<'_>) {
    let refusals = failed_change(play, &[(annotations::GROUP, "g"), (annotations::GROUP_REVERT, "true")]);
    if refusals != 2 {
        play.model.broken("rolls", format!("{refusals} of both namespaces refuse the content"));
    }
}

/// The same, and the failure refuses the content in its own namespace only. The other one is held.
fn group_holds(play: &Play<'_>) {
    let refusals = failed_change(play, &[(annotations::GROUP, "g")]);
    if refusals != 1 {
        play.model.broken("contained", format!("{refusals} namespaces refuse the content, and one failed"));
    }
}

/// A change that fails, and its correction. Returns how many namespaces refused the content.
fn failed_change(play: &Play<'_>, labels: &[(&str, &str)]) -> usize {
    let set = |file| reverting(in_three_waves(file));
    let files = group_labelled(play, &set(File::source("s", "one")), labels);
    for namespace in [NAMESPACE, "b"] {
        let bad = File::entries("s", &[("v", "two"), ("bad", "yes")]);
        play.apply(&set(bad).in_namespace(namespace));
    }
    play.seconds(120);
    all_read(play, &files, "one");
    for file in &files {
        play.apply(file);
    }
    play.seconds(30);
    all_read(play, &files, "one");
    let two = play.snapshot("s", "two");
    let is_refused = |namespace: &&str| {
        let snapshot = play.model.get(&Key::configmap(namespace, &two));
        snapshot.is_some_and(|snapshot| verdict(&snapshot).failed.is_some())
    };
    let refusals = [NAMESPACE, "b"].into_iter().filter(is_refused).count();
    for namespace in [NAMESPACE, "b"] {
        play.apply(&set(File::source("s", "three")).in_namespace(namespace));
    }
    play.seconds(180);
    play.rest();
    all_read(play, &files, "three");
    refusals
}

fn analysed(file: File) -> File {
    in_waves(file).note(annotations::ANALYSIS, "sound")
}

/// Three Deployments on the first content, and the template of an analysis.
fn analysed_deployments(play: &Play<'_>, content: &File) -> [File; 3] {
    play.model.commit(
        &Key::new(Kind::AnalysisTemplate, NAMESPACE, "sound"),
        json!({"metadata": {}, "spec": {"metrics": [{"name": "sound"}]}}),
    );
    deployed(play, content)
}

/// Argo's controller ends each run with this phase a few seconds after its creation. It takes longer than two silent watches, each of
/// which may delay a wave by a minute.
fn judged(play: &Play<'_>, phase: &str) {
    for _ in 0..24 {
        play.seconds(10);
        play.judge(phase);
    }
}

/// Nothing follows the first workload while its analysis runs.
fn analysis_approves(play: &Play<'_>) {
    let files = analysed_deployments(play, &analysed(File::source("s", "one")));
    play.apply(&analysed(File::source("s", "two")));
    play.seconds(120);
    let bad = play.snapshot("s", "two");
    let moved = files.iter().filter(|file| is_on(play, file, &bad)).count();
    if moved != 1 {
        play.model.broken("rolls", format!("{moved} workloads have moved while the analysis runs"));
    }
    judged(play, "Successful");
    play.rest();
    all_read(play, &files, "two");
    for file in &files {
        play.revisions(&file.key, 2);
    }
}

/// A user deploys a workload that has not moved. The wave waits for its analysis all the same.
fn deployed_during_analysis(play: &Play<'_>) {
    let content = |text: &str| analysed(File::source("s", text)).note(annotations::WAVES, "1, 2");
    let files = analysed_deployments(play, &content("one"));
    play.apply(&content("two"));
    play.seconds(60);
    let two = play.snapshot("s", "two");
    let on = || files.iter().filter(|file| is_on(play, file, &two)).count();
    let waiting = files.iter().find(|file| !is_on(play, file, &two)).expect("the change moves in waves");
    play.apply(&waiting.clone().image(1));
    play.seconds(120);
    if on() != 2 {
        play.model.broken("rolls", format!("{} workloads have moved while the analysis runs", on()));
    }
    judged(play, "Successful");
    play.rest();
    all_read(play, &files, "two");
}

/// Three Deployments that use two sources with waves, after a change of both.
fn two_changes(play: &Play<'_>, set: impl Fn(File, &str) -> File) -> [File; 3] {
    let files = ["u", "v", "w"].map(|name| File::deployment(name, &["s", "t"]));
    for version in ["one", "two"] {
        for source in ["s", "t"] {
            play.apply(&set(in_waves(File::source(source, &format!("{version}-{source}"))), version));
        }
        if version == "one" {
            for file in &files {
                play.apply(file);
            }
        }
        play.rest();
        play.model.take_time();
    }
    play.seconds(240);
    play.rest();
    for file in &files {
        for source in ["s", "t"] {
            play.reads(&file.key, source, &format!("two-{source}"));
        }
    }
    files
}

/// Each source has an order of its own, and none waits for the other.
fn two_sources_with_waves(play: &Play<'_>) {
    two_changes(play, |file, _| file);
}

/// The sources of a set move together.
fn set_with_waves(play: &Play<'_>) {
    let files = two_changes(play, |file, version| file.note(annotations::SET, &format!("shop/{version}")));
    for file in &files {
        play.revisions(&file.key, 2);
    }
}

/// Writes what a person decided about a snapshot of s. Returns the text.
fn decide(play: &Play<'_>, action: UserAction, snapshot: &str) -> String {
    let live = play.model.get(&source_key(snapshot)).unwrap();
    // Faults do not change the time: the objects at rest are compared.
    let last =
        verdict(&live).last_decision().unwrap_or(Timestamp::UNIX_EPOCH + SignedDuration::from_hours(10_000));
    let decision = UserDecision::new(action, snapshot, Some(last), Timestamp::UNIX_EPOCH).to_string();
    play.edit(&source_key("s"), |object| {
        set_meta(object, "annotations", annotations::DECISION, Some(&decision));
    });
    decision
}

/// A person has aborted a change. The manifest of the source is written again, without what the command wrote: `kubectl replace`. By
/// then, the controller has taken the decision over, whatever fault delays it; the bake ends after that.
fn aborted_stays_aborted(play: &Play<'_>) {
    let in_waves = |content: &str| in_waves(File::source("s", content)).note(annotations::BAKE, "400s");
    let two = in_waves("two");
    let files = deployed(play, &in_waves("one"));
    play.apply(&two);
    play.seconds(150);
    decide(play, UserAction::Abort, &play.snapshot("s", "two"));
    play.seconds(150);
    play.apply(&two);
    play.seconds(180);
    let name = play.snapshot("s", "two");
    if files.iter().filter(|file| is_on(play, file, &name)).count() != 1 {
        play.model.broken("rolls", "an aborted change went on".to_owned());
    }
    decide(play, UserAction::Resume, &name);
    play.seconds(1000);
    play.rest();
    all_read(play, &files, "two");
}

fn failure_outlives_its_workload(play: &Play<'_>) {
    failure_outlives(play, |failed| play.delete(failed));
}

fn failure_outlives_scaling(play: &Play<'_>) {
    failure_outlives(play, |failed| play.edit(failed, |object| object["spec"]["replicas"] = json!(0)));
}

fn failure_outlives_opt_out(play: &Play<'_>) {
    failure_outlives(play, |failed| play.label(failed, annotations::ENABLED, Some("false")));
}

/// The first workload fails, and this is done to it, so that nothing of it shows the failure. The others stay until the content is
/// corrected.
fn failure_outlives(play: &Play<'_>, hide: impl Fn(&Key)) {
    let files = deployed(play, &in_waves(File::source("s", "one")));
    play.apply(&in_waves(File::entries("s", &[("v", "two"), ("bad", "yes")])));
    play.seconds(120);
    let name = play.snapshot("s", "two");
    let (failed, others): (Vec<_>, Vec<_>) = files.iter().partition(|file| is_on(play, file, &name));
    let [failed] = failed[..] else { return play.model.broken("rolls", "no first wave".to_owned()) };
    hide(&failed.key);
    play.seconds(180);
    for file in &others {
        play.reads(&file.key, "s", "one");
    }
    play.apply(&in_waves(File::source("s", "three")));
    play.seconds(180);
    play.rest();
    for file in others {
        play.reads(&file.key, "s", "three");
    }
}

/// A person has aborted the change of one source. That of another one reaches all workloads.
fn aborted_beside_another(play: &Play<'_>) {
    let in_waves = |content: &str| in_waves(File::source("s", content)).note(annotations::BAKE, "200s");
    let files = ["u", "v", "w"].map(|name| File::deployment(name, &["s", "t"]));
    play.apply(&in_waves("one"));
    play.apply(&File::source("t", "one"));
    for file in &files {
        play.apply(file);
    }
    play.rest();
    play.model.take_time();
    play.apply(&in_waves("two"));
    play.seconds(100);
    let two = play.snapshot("s", "two");
    decide(play, UserAction::Abort, &two);
    play.apply(&File::source("t", "two"));
    play.seconds(120);
    for file in &files {
        play.reads(&file.key, "t", "two");
    }
    if files.iter().all(|file| is_on(play, file, &two)) {
        play.model.broken("rolls", "an aborted change went on".to_owned());
    }
    // A held change is checked each second, so the run comes to rest after it.
    decide(play, UserAction::Resume, &two);
    play.seconds(400);
    play.rest();
    all_read(play, &files, "two");
}

/// A workload that keeps its snapshot takes no place that the others wait for.
fn waves_with_hold(play: &Play<'_>) {
    let files = deployments();
    play.apply(&in_waves(File::source("s", "one")));
    let [held, others @ ..] = &files;
    play.apply(&others[0]);
    play.apply(&others[1]);
    play.rest();
    let one = play.snapshot("s", "one");
    let held = held.clone().note(annotations::HOLD, &one);
    play.apply(&held);
    play.rest();
    play.model.take_time();
    play.apply(&in_waves(File::source("s", "two")));
    play.seconds(120);
    play.rest();
    all_read(play, others, "two");
    play.reads(&held.key, "s", "one");
}

/// All waves of a content were promoted. It is replaced, and comes back in waves.
fn promoted_content_comes_back(play: &Play<'_>) {
    let files = deployed(play, &in_waves(File::source("s", "one")));
    play.apply(&in_waves(File::source("s", "two")));
    play.seconds(60);
    // The decision is in the file, too.
    let promoted = decide(play, UserAction::Promote(ALL_WAVES.into()), &play.snapshot("s", "two"));
    for content in ["two", "three", "two"] {
        play.apply(&in_waves(File::source("s", content)).note(annotations::DECISION, &promoted));
        play.seconds(180);
        play.rest();
        all_read(play, &files, content);
    }
}

/// Whether the first volume of a workload is this snapshot.
fn is_on(play: &Play<'_>, file: &File, snapshot: &str) -> bool {
    let live = play.model.get(&file.key).unwrap();
    live["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] == *snapshot
}

/// The first workload is healthy, and its analysis fails.
fn analysis_reverts(play: &Play<'_>) {
    reverted_after_analysis(play, |file| reverting(analysed(file)));
}

/// A content comes back since its analysis fails, and the next one reaches all workloads. `set`: the settings of the source.
fn reverted_after_analysis(play: &Play<'_>, set: impl Fn(File) -> File) {
    let files = analysed_deployments(play, &set(File::source("s", "one")));
    play.apply(&set(File::source("s", "two")));
    judged(play, "Failed");
    all_read(play, &files, "one");
    play.apply(&set(File::source("s", "three")));
    judged(play, "Successful");
    play.rest();
    all_read(play, &files, "three");
}

/// All workloads fit in the first wave. It is analysed like any other, and the content is refused if the analysis fails.
fn one_wave_is_analysed(play: &Play<'_>) {
    reverted_after_analysis(play, |file| reverting(analysed(file)).note(annotations::WAVES, "100%"));
}

fn bad_content(play: &Play<'_>) {
    let files = deployed(play, &limited("one"));
    let bad = File::entries("s", &[("v", "two"), ("bad", "yes")]).note(annotations::MAX_IN_FLIGHT, "1");
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
        if annotation(&live, annotations::STATE).is_some_and(|state| state.contains("unhealthy")) != failed {
            play.model
                .broken("rolls", format!("{} was unhealthy: {failed}, recorded: {}", file.key, !failed));
        }
    }
    play.delete(&source_key("s"));
}
