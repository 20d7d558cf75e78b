//! The AnalysisRun that judges a wave, found as the controller finds it.

use super::{failure::Failure, group::Others, history::History, target::Target};
use crate::{
    resolve::{AnalysisRun, Observed, RunState, Spread},
    snapshot::{DIGITS, snapshot_name},
};

/// Applies the analysis of the wave that ended, if there is one. Returns its run, too.
pub(super) async fn apply(
    target: &Target,
    history: &History,
    others: &Others,
    spread: Spread<String>,
) -> Result<(Spread<String>, Option<AnalysisRun>), Failure> {
    let Some(ended) = spread.ended() else { return Ok((spread, None)) };
    let sources = std::iter::once((target.namespace.as_str(), history.present.as_ref()));
    let sources = sources.filter_map(|(namespace, present)| Some((namespace, present?)));
    let analysed = sources.chain(others.present()).filter(|(_, present)| has_analysis(present));
    let Some((namespace, present)) = analysed.min_by_key(|(namespace, _)| *namespace) else {
        return Ok((spread, None));
    };
    let (kind, name) = (history.source.kind, &history.source.name);
    let snapshot = snapshot_name(name, &present.digest(), DIGITS[0]);
    let name = ended.run_name(kind, &snapshot, present.spread_policy().retried.as_deref());
    let path = format!("/apis/argoproj.io/v1alpha1/namespaces/{namespace}/analysisruns/{name}");
    let state = match target.get(&path).await {
        Ok(None) => RunState::Unknown,
        Ok(Some(run)) => RunState::read(&run, &present.uid),
        Err(Failure::Refused(why)) => RunState::Unavailable(why.into()),
        Err(error) => return Err(error),
    };
    let run = AnalysisRun { name: name.into(), state };
    Ok((spread.analysed(|_| run.clone()), Some(run)))
}

fn has_analysis(present: &Observed) -> bool {
    present.spread_policy().analysis.is_some()
}
