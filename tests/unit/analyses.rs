//! The analysis of waves: what a leader does that knows the cluster's own state only.

use confrev::{
    annotations,
    controller::{Action, Analysed, Outcome},
    resolve::{AnalysisRun, Health::Settled, RunState, Verdict},
    snapshot::{DIGITS, snapshot_name},
    telemetry::metrics::Reason,
    world::SnapshotRecord,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    controller::{Desk, digest, key, name, observed, record, snapshot, stored},
    story::poke,
    world::{World, configmap},
};

/// When the first workload moved.
const START: i64 = 2_000_000;

/// The snapshot of the new content.
fn green() -> String {
    snapshot_name("demo", &digest("green"), DIGITS[0])
}

fn settings(more: &Value) -> Value {
    let mut annotations =
        json!({annotations::WAVES: "1, 75%", annotations::BAKE: "60s", annotations::ANALYSIS: "sound"});
    for (key, value) in more.as_object().into_iter().flatten() {
        annotations[key] = value.clone();
    }
    annotations
}

/// Four workloads, of which the first one has moved.
fn workloads() -> Vec<(&'static str, Value)> {
    let mut world = World::default();
    let set = |world: &mut World, color: &str| {
        world.set("demo", json!({"color": color}));
        world.objects.get_mut(&configmap("demo")).unwrap()["metadata"]["annotations"] = settings(&json!({}));
    };
    set(&mut world, "blue");
    let mut all: Vec<_> = ["a", "b", "c", "d"].map(|name| (name, stored(&mut world, name))).into();
    set(&mut world, "green");
    all[0].1 = poke(&mut world, &all[0].1, START);
    all
}

/// What a new leader did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Done {
    runs: Vec<(String, usize)>,
    ended: usize,
    rolled: usize,
    refused: Vec<String>,
    reasons: Vec<Reason>,
}

/// Lets a new leader act for a few seconds. Each read of the run finds the next of these states.
fn led(more: &Value, second: i64, states: &[RunState]) -> Done {
    led_with(more, second, states, None)
}

/// The same, with a verdict on the content.
fn led_with(more: &Value, second: i64, states: &[RunState], verdict: Option<Verdict>) -> Done {
    let mut desk = Desk::new();
    desk.now = Timestamp::from_second(START + second).unwrap();
    let green = SnapshotRecord { verdict: verdict.map(Box::new), ..snapshot("green", "1", &[]) };
    desk.state.apply_snapshot(&name(&self::green()), Some(green), desk.now);
    for (name, object) in workloads() {
        desk.state.apply_workload(&key(name), Some(record(&object, Settled)), desk.now);
    }
    let (mut done, mut states) = (Done::default(), states.iter());
    for _ in 0..12 {
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Read(_) => {
                    let green = observed(json!({"color": "green"}), settings(more), "2");
                    Outcome::Read(Some(Box::new(green)))
                }
                Action::Poke { .. } => {
                    done.rolled += 1;
                    continue;
                }
                Action::Analyse { wave, run, .. } => {
                    let is_new = done.runs.is_empty();
                    done.runs.push((run.to_string(), wave));
                    let Some(state) = states.next() else { continue };
                    Outcome::Analysed(Analysed {
                        run: AnalysisRun { name: run, state: state.clone() },
                        wave,
                        is_new,
                    })
                }
                Action::EndAnalysis { run, .. } => {
                    done.ended += 1;
                    Outcome::AnalysisEnded(run)
                }
                Action::SetVerdict { snapshot, verdict, .. } => {
                    done.refused
                        .extend(verdict.failed.map(|failed| format!("{snapshot}: {}", failed.reason)));
                    continue;
                }
                Action::WriteEvent(event) => {
                    done.reasons.push(event.reason);
                    Outcome::Done
                }
                _ => Outcome::Done,
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        desk.pass(1);
    }
    done
}

#[test]
fn wave_begins_only_after_a_successful_run() {
    let failed = || RunState::Failed("failed: m".into());
    let open = || RunState::Undecided("is inconclusive".into());
    let unavailable = || RunState::Unavailable("no rights".into());
    for (states, reads, rolled, reason) in [
        (vec![], 1, 0, None),
        (vec![RunState::Running; 3], 4, 0, Some(Reason::AnalysisBegun)),
        (vec![RunState::Running, RunState::Successful], 2, 2, Some(Reason::AnalysisSucceeded)),
        (vec![RunState::Successful], 1, 2, None),
        (vec![failed()], 1, 0, Some(Reason::AnalysisFailed)),
        (vec![open()], 1, 0, Some(Reason::AnalysisHeld)),
        (vec![unavailable()], 1, 0, Some(Reason::AnalysisHeld)),
    ] {
        let done = led(&json!({}), 61, &states);
        assert_eq!(
            (done.runs.len(), done.rolled, done.refused.len()),
            (reads, rolled, 0),
            "{states:?} {done:?}"
        );
        assert!(reason.is_none_or(|reason| done.reasons.contains(&reason)), "{states:?} {done:?}");
        assert!(done.runs.iter().all(|run| *run == done.runs[0] && run.1 == 1), "{done:?}");
        // Another leader asks for the same run.
        assert_eq!(led(&json!({}), 65, &states).runs[0], done.runs[0]);
    }
    let early = led(&json!({}), 10, &[]);
    assert_eq!((early.runs.len(), early.rolled), (0, 0), "the wave bakes: {early:?}");
}

#[test]
fn failed_run_refuses_if_the_source_reverts() {
    let reverts = json!({annotations::ON_FAILURE: "revert"});
    let done = led(&reverts, 61, &[RunState::Running, RunState::Failed("failed: m".into())]);
    assert_eq!((done.refused.len(), done.rolled), (1, 0), "{done:?}");
    let reason = format!("AnalysisRun {} of wave 1: failed: m", done.runs[0].0);
    assert!(done.refused[0].ends_with(&reason), "{done:?}");
    let undecided = led(&reverts, 61, &[RunState::Undecided("was terminated".into())]);
    assert_eq!((undecided.refused.len(), undecided.rolled), (0, 0), "{undecided:?}");
}

#[test]
fn decisions_of_a_person_reach_the_run() {
    let first = led(&json!({}), 61, &[]).runs[0].clone();
    let judged = |verdict| led_with(&json!({}), 61, &[], Verdict::read(|_| Some(verdict)));
    let promoted = judged(r#"{"promoted":"2"}"#);
    assert_eq!((promoted.runs.len(), promoted.rolled), (0, 2), "{promoted:?}");
    let aborted = judged(r#"{"aborted":true}"#);
    assert_eq!((aborted.runs.len(), aborted.ended, aborted.rolled), (0, 1, 0), "{aborted:?}");
    let retried = judged(r#"{"retried":"2026-01-01T00:00:00Z"}"#);
    assert_ne!(retried.runs[0].0, first.0);
}
