//! The AnalysisRun that judges a wave, found as the controller finds it.

use serde::Serialize;

use super::{
    failure::Failure,
    group::Others,
    inventory::{Inventory, ReadObject},
    target::Target,
};
use crate::{
    resolve::{Analysis, AnalysisRun, EndedWave, Observed, RunState, Spread, run_arguments, run_of_template},
    snapshot::{DIGITS, ObjectName, snapshot_name},
};

const API: &str = "/apis/argoproj.io/v1alpha1";

/// The AnalysisRun that decides about the next wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct JudgingRun {
    /// Its namespace.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
    /// The phase in its status; absent if it does not exist yet, or cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phase: Option<String>,
    /// What follows from its phase.
    #[serde(skip)]
    pub(super) state: RunState,
}

impl JudgingRun {
    /// Whether it has ended, and does not let the next wave begin.
    pub(super) fn may_be_repeated(&self) -> bool {
        !matches!(self.state, RunState::Unknown | RunState::Running | RunState::Successful)
    }

    /// Its name and its phase.
    pub(super) fn line(&self) -> String {
        format!("{}: {}", self.name, self.phase.as_deref().unwrap_or("no phase yet"))
    }
}

/// Applies the analysis of the wave that ended, if there is one. Returns its run, too.
pub(super) async fn apply(
    target: &Target,
    inventory: &Inventory,
    source: &ObjectName,
    (namespace, present): (&str, &Observed),
    others: &Others,
    spread: Spread<String>,
) -> Result<(Spread<String>, Option<JudgingRun>), Failure> {
    let Some(ended) = spread.ended() else { return Ok((spread, None)) };
    let sources = std::iter::once((namespace, present)).chain(others.present());
    let analysed = sources.filter_map(|(namespace, present)| {
        let policy = present.spread_policy();
        Some((namespace, present, policy.analysis.clone()?, policy))
    });
    let Some((namespace, present, analysis, policy)) = analysed.min_by_key(|(namespace, ..)| *namespace)
    else {
        return Ok((spread, None));
    };
    let snapshot = snapshot_name(&source.name, &present.digest(), DIGITS[0]);
    let name = ended.run_name(source.kind, &snapshot, policy.retried.as_deref());
    if ended.is_start() {
        let state = start(target, inventory, source, (namespace, present), &analysis).await?;
        return Ok((spread.analysed(|_| AnalysisRun { name: name.into(), state }), None));
    }
    let found = read(target, inventory, format!("namespaces/{namespace}/analysisruns/{name}")).await?;
    let phase = found.as_ref().ok().and_then(Option::as_ref).and_then(|run| run["status"]["phase"].as_str());
    let phase = phase.filter(|phase| !phase.is_empty()).map(str::to_owned);
    let state = match &found {
        Ok(Some(run)) => RunState::read(run, &present.uid),
        Ok(None) => RunState::Unknown,
        Err(why) => RunState::Unavailable(why.as_str().into()),
    };
    let run = JudgingRun { namespace: namespace.to_owned(), name, phase, state };
    let judging = AnalysisRun { name: run.name.as_str().into(), state: run.state.clone() };
    Ok((spread.analysed(|_| judging), Some(run)))
}

/// The analysis of a change that moves in the future: it can begin.
pub(super) fn assumed(ended: EndedWave) -> AnalysisRun {
    let state = if ended.is_start() { RunState::Successful } else { RunState::Unknown };
    AnalysisRun { state, ..AnalysisRun::default() }
}

/// Whether the waves of a change can be analysed. If the user may not read the template, this is not known: confrev may.
async fn start(
    target: &Target,
    inventory: &Inventory,
    source: &ObjectName,
    (namespace, present): (&str, &Observed),
    analysis: &Analysis,
) -> Result<RunState, Failure> {
    let path = if analysis.cluster {
        format!("clusteranalysistemplates/{}", analysis.name)
    } else {
        format!("namespaces/{namespace}/analysistemplates/{}", analysis.name)
    };
    let why = match read(target, inventory, path).await? {
        Err(_) => None,
        Ok(None) => Some(format!("{analysis} does not exist")),
        Ok(Some(template)) => {
            let given = run_arguments(&source.name, namespace, &present.digest().to_string(), 1);
            run_of_template(&template, &given).err().map(|why| format!("{analysis}: {why}"))
        }
    };
    Ok(why.map_or(RunState::Successful, |why| RunState::Unavailable(why.into())))
}

/// Reads an object of Argo Rollouts once.
async fn read(target: &Target, inventory: &Inventory, path: String) -> Result<ReadObject, Failure> {
    let mut reads = inventory.analyses.lock().await;
    if let Some(known) = reads.get(&path) {
        return Ok(known.clone());
    }
    let found = match target.get(&format!("{API}/{path}")).await {
        Err(Failure::Refused(why)) => Err(why),
        found => Ok(found?),
    };
    reads.insert(path, found.clone());
    Ok(found)
}
