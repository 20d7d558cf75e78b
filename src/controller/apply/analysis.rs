//! Creates, reads and terminates the AnalysisRuns of waves. Each call is conditional or idempotent.

use serde_json::{Value, json};

use crate::{
    annotations,
    cluster::{Api, ApiError, Created, Owner},
    controller::{
        action::{Analysed, Outcome},
        name::Name,
    },
    resolve::{Analysis, AnalysisRun, RunState, run_arguments, run_of_template},
    snapshot::{Digest, source_label},
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

/// Reads the run of a wave, and creates it if it does not exist.
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
    if let Some(run) = api.analysis_run(namespace, wanted.run).await? {
        return Ok((RunState::read(&run, wanted.uid), false));
    }
    let Some(template) = api.analysis_template(namespace, wanted.analysis).await? else {
        return Ok((RunState::Unavailable(format!("{} does not exist", wanted.analysis).into()), false));
    };
    let object = &wanted.source.object;
    let given = run_arguments(&object.name, namespace, &wanted.digest.to_string(), wanted.wave);
    let (spec, labels) = match run_of_template(&template, &given) {
        Ok(run) => run,
        Err(why) => return Ok((RunState::Unavailable(format!("{}: {why}", wanted.analysis).into()), false)),
    };
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

/// Deletes the oldest runs of a source, and terminates those that judge nothing any more.
async fn prune<A: Api>(api: &A, wanted: &WantedRun<'_>) -> Result<(), ApiError> {
    let (namespace, object) = (&*wanted.source.namespace, &wanted.source.object);
    let text = |run: &Value, field: &str| run["metadata"][field].as_str().unwrap_or_default().to_owned();
    let is_its = |run: &Value| {
        let owners = run["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.into_iter().any(|owner| owner["uid"] == wanted.uid) && text(run, "name") != wanted.run
    };
    let mut runs = api.analysis_runs(namespace, &source_label(&object.name)).await?;
    runs.retain(is_its);
    runs.sort_by_key(|run| std::cmp::Reverse(text(run, "creationTimestamp")));
    for (number, run) in runs.iter().enumerate() {
        let (name, uid) = (text(run, "name"), text(run, "uid"));
        let done = if number >= KEPT {
            api.delete_analysis_run(namespace, &name, &uid).await
        } else if RunState::read(run, wanted.uid) == RunState::Running && run["spec"]["terminate"] != true {
            api.terminate_analysis_run(namespace, &name, &uid).await
        } else {
            Ok(())
        };
        match done {
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            other => other?,
        }
    }
    Ok(())
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
        let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
        match api.terminate_analysis_run(namespace, run, uid).await {
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            other => other?,
        }
    }
    Ok(Outcome::AnalysisEnded(run.into()))
}
