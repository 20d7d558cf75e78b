//! Creates, reads and terminates the AnalysisRuns of waves. Each call is conditional or idempotent.

use serde_json::{Value, json};

use crate::{
    annotations,
    cluster::{Api, ApiError, Created},
    controller::action::{Analysed, Outcome},
    resolve::{Analysis, AnalysisRun, RunState, run_arguments, run_of_template},
    snapshot::{Digest, source_label},
    world::{Name, Owner},
};

/// How many runs of a source are kept, beside the present one.
const KEPT: usize = 10;

/// A run to read, or to create.
pub(super) struct WantedRun<'w> {
    pub source: &'w Name,
    /// The uid of the source, which owns the run.
    pub uid: &'w str,
    pub digest: &'w Digest,
    pub analysis: &'w Analysis,
    pub wave: usize,
    pub run: &'w str,
}

/// Reads the run of a wave, and creates it if it does not exist. At the start of a change, only checks that the first wave can be
/// analysed.
pub(super) async fn analyse<A: Api>(api: &A, wanted: &WantedRun<'_>) -> Result<Outcome, ApiError> {
    let (state, is_new) = match state(api, wanted).await {
        Ok(found) => found,
        Err(error) => (RunState::Unavailable(unavailable(error)?.into()), false),
    };
    let run = AnalysisRun { name: wanted.run.into(), state };
    Ok(Outcome::Analysed(Analysed { run, wave: wanted.wave, is_new }))
}

/// Why there can be no run; an error that may pass stays an error.
fn unavailable(error: ApiError) -> Result<String, ApiError> {
    match error {
        _ if error.may_pass() => Err(error),
        _ if error.is_missing_right() => Ok(format!("{error}: does the chart set analysis.enabled?")),
        ApiError::NotFound { .. } => {
            Ok("the API server has no AnalysisRuns: is Argo Rollouts installed?".to_owned())
        }
        ApiError::Refused { message, .. } => Ok(message),
        error => Err(error),
    }
}

async fn state<A: Api>(api: &A, wanted: &WantedRun<'_>) -> Result<(RunState, bool), ApiError> {
    let namespace = &*wanted.source.namespace;
    let is_start = wanted.wave == 0;
    if !is_start && let Some(run) = api.analysis_run(namespace, wanted.run).await? {
        return Ok((RunState::read(&run, wanted.uid), false));
    }
    let Some(template) = api.analysis_template(namespace, wanted.analysis).await? else {
        // An error if the API server has no AnalysisRuns either.
        api.analysis_runs(namespace, &source_label(&wanted.source.object.name)).await?;
        return Ok((RunState::Unavailable(format!("{} does not exist", wanted.analysis).into()), false));
    };
    let object = &wanted.source.object;
    let given = run_arguments(&object.name, namespace, &wanted.digest.to_string(), wanted.wave);
    let (spec, labels) = match run_of_template(&template, &given) {
        Ok(run) => run,
        Err(why) => return Ok((RunState::Unavailable(format!("{}: {why}", wanted.analysis).into()), false)),
    };
    if is_start {
        return Ok((RunState::Successful, false));
    }
    let run = object_of(wanted, &spec, labels);
    let is_new = api.create_analysis_run(namespace, &run).await? == Created::Now;
    if is_new {
        prune(api, wanted).await?;
    }
    Ok((RunState::Running, is_new))
}

fn object_of(wanted: &WantedRun<'_>, spec: &Value, mut labels: Value) -> Value {
    let object = &wanted.source.object;
    labels[annotations::MANAGED_BY] = json!(annotations::MANAGER);
    labels[annotations::SOURCE] = json!(source_label(&object.name));
    json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AnalysisRun",
        "metadata": {
            "name": wanted.run,
            "namespace": *wanted.source.namespace,
            "labels": labels,
            "annotations": {
                annotations::SOURCE_NAME: *object.name,
                annotations::DIGEST: wanted.digest.to_string(),
            },
            // With the source, its runs are deleted.
            "ownerReferences": [Owner::new("v1", object.kind.as_str(), object.name.clone(), wanted.uid)],
        },
        "spec": spec,
    })
}

/// Terminates the runs of a source that judge nothing any more, and deletes the oldest ones.
async fn prune<A: Api>(api: &A, wanted: &WantedRun<'_>) -> Result<(), ApiError> {
    let namespace = &*wanted.source.namespace;
    let runs = api.analysis_runs(namespace, &source_label(&wanted.source.object.name)).await?;
    for (pruning, run) in prunings(&runs, wanted.uid, wanted.run) {
        let (name, uid) = (text(run, "name"), text(run, "uid"));
        unless_gone(match pruning {
            Pruning::Terminate => api.terminate_analysis_run(namespace, name, uid).await,
            Pruning::Delete => api.delete_analysis_run(namespace, name, uid).await,
        })?;
    }
    Ok(())
}

/// What is done to a run that judges nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pruning {
    Terminate,
    Delete,
}

/// The result of a write to a run. A run that was deleted, or replaced by another one of its name, needs no write.
fn unless_gone(result: Result<(), ApiError>) -> Result<(), ApiError> {
    result.or_else(|error| if error.is_not_found() || error.is_conflict() { Ok(()) } else { Err(error) })
}

/// A text of a run's metadata.
fn text<'a>(run: &'a Value, field: &str) -> &'a str {
    run["metadata"][field].as_str().unwrap_or_default()
}

/// What is done to the runs of the source with this uid, except for the present one. A run ends before it is deleted, so that
/// its controller ends the Jobs of its measurements.
fn prunings<'a>(runs: &'a [Value], source_uid: &str, present: &str) -> Vec<(Pruning, &'a Value)> {
    let is_its = |run: &&Value| {
        let owners = run["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.into_iter().any(|owner| owner["uid"] == source_uid) && text(run, "name") != present
    };
    let is_running = |run: &&Value| RunState::read(run, source_uid) == RunState::Running;
    let (running, mut ended): (Vec<_>, Vec<_>) = runs.iter().filter(is_its).partition(is_running);
    // Times have whole seconds.
    ended.sort_by_key(|run| std::cmp::Reverse((text(run, "creationTimestamp"), text(run, "name"))));
    let unasked = running.into_iter().filter(|run| run["spec"]["terminate"] != true);
    let oldest = ended.into_iter().skip(KEPT);
    unasked.map(|run| (Pruning::Terminate, run)).chain(oldest.map(|run| (Pruning::Delete, run))).collect()
}

/// Terminates a run of the source that has no result yet.
pub(super) async fn terminate<A: Api>(
    api: &A,
    source: &Name,
    uid: &str,
    run: &str,
) -> Result<Outcome, ApiError> {
    let namespace = &*source.namespace;
    let found = match api.analysis_run(namespace, run).await {
        Ok(found) => found,
        Err(error) => {
            unavailable(error)?;
            None
        }
    };
    if let Some(found) = found.filter(|found| RunState::read(found, uid) == RunState::Running) {
        unless_gone(api.terminate_analysis_run(namespace, run, text(&found, "uid")).await)?;
    }
    Ok(Outcome::AnalysisEnded(run.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of the source `u`, created at this second.
    fn run(second: usize, phase: &str, terminate: bool) -> Value {
        json!({
            "metadata": {
                "name": format!("run-{second:02}"),
                "creationTimestamp": format!("2026-01-02T03:04:{second:02}Z"),
                "ownerReferences": [{"uid": "u"}],
            },
            "spec": {"terminate": terminate},
            "status": {"phase": phase},
        })
    }

    fn pruned(runs: &[Value], present: &str) -> Vec<(Pruning, String)> {
        let named = |(pruning, run)| (pruning, text(run, "name").to_owned());
        prunings(runs, "u", present).into_iter().map(named).collect()
    }

    #[test]
    fn only_ended_runs_are_deleted() {
        let ended = |seconds: std::ops::Range<usize>| seconds.map(|second| run(second, "Successful", false));
        let delete = |name: &str| (Pruning::Delete, name.to_owned());
        let terminate = |name: &str| (Pruning::Terminate, name.to_owned());
        let of_other = json!({"metadata": {"name": "other", "ownerReferences": [{"uid": "v"}]}});
        let with = |mut runs: Vec<Value>, more: Vec<Value>| {
            runs.extend(more);
            runs
        };
        for (what, runs, expected) in [
            ("ten are kept", ended(10..20).collect(), vec![]),
            ("the oldest ones go", ended(10..22).collect(), vec![delete("run-11"), delete("run-10")]),
            (
                "the present one does not count",
                with(ended(10..20).collect(), vec![run(59, "Running", false)]),
                vec![],
            ),
            (
                "an old one still runs",
                with(ended(10..20).collect(), vec![run(5, "Running", false), run(6, "", false)]),
                vec![terminate("run-05"), terminate("run-06")],
            ),
            (
                "it was terminated before",
                with(ended(10..20).collect(), vec![run(5, "Running", true)]),
                vec![],
            ),
            ("another source has one", with(ended(10..20).collect(), vec![of_other]), vec![]),
        ] {
            assert_eq!(pruned(&runs, "run-59"), expected, "{what}");
        }
        let mut same_second: Vec<_> = ended(10..22).collect();
        for run in &mut same_second {
            run["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
        }
        assert_eq!(pruned(&same_second, "run-59"), [delete("run-11"), delete("run-10")], "by name");
    }
}
