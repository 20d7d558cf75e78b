//! The AnalysisRun that judges a wave, found as the controller finds it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{failure::Failure, objects::ReadObject, target::Target};
use crate::{
    resolve::{Analysis, AnalysisRun, EndedWave, Observed, RunState, Spread, run_arguments, run_of_template},
    snapshot::{DIGITS, Digest, ObjectName, snapshot_name},
    world::{ChangedSources, Name, SourceRecord, WorkloadKey, World},
};

const API: &str = "/apis/argoproj.io/v1alpha1";

/// How far a change has spread, with the AnalysisRun that judges the wave that ended.
pub(super) type Judged = (Spread<WorkloadKey>, Option<JudgingRun>);

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

/// Applies the analysis of the wave that ended, if there is one. Returns its run, too. `reads`: what was read already.
pub(super) async fn apply(
    (target, reads): (&Target, &mut BTreeMap<String, ReadObject>),
    world: &World,
    change: &ChangedSources<'_>,
    spread: Spread<WorkloadKey>,
) -> Result<Judged, Failure> {
    let Some(ended) = spread.ended() else { return Ok((spread, None)) };
    let Some((source, known)) = change.analysed() else { return Ok((spread, None)) };
    let Some(analysis) = &known.spread.analysis else { return Ok((spread, None)) };
    let Some(snapshot) = snapshot_of(world, source, known) else { return Ok((spread, None)) };
    let namespace = &*source.namespace;
    let name = ended.run_name(source.object.kind, &snapshot, world.retried(source, known));
    if ended.is_start() {
        let state = start((target, reads), source, known, analysis).await?;
        return Ok((spread.analysed(|_| AnalysisRun { name: name.into(), state }), None));
    }
    let found = read(target, reads, format!("namespaces/{namespace}/analysisruns/{name}")).await?;
    let phase = found.as_ref().ok().and_then(Option::as_ref).and_then(|run| run["status"]["phase"].as_str());
    let phase = phase.filter(|phase| !phase.is_empty()).map(str::to_owned);
    let state = match &found {
        Ok(Some(run)) => RunState::read(run, &known.uid.to_string()),
        Ok(None) => RunState::Unknown,
        Err(why) => RunState::Unavailable(why.as_str().into()),
    };
    let run = JudgingRun { namespace: namespace.to_owned(), name, phase, state };
    let judging = AnalysisRun { name: run.name.as_str().into(), state: run.state.clone() };
    Ok((spread.analysed(|_| judging), Some(run)))
}

/// The name of the snapshot of a content: the one that exists, or the one that it gets. `None` for a Secret without a snapshot, whose
/// name depends on a key of the installation.
fn snapshot_of(world: &World, source: &Name, known: &SourceRecord) -> Option<String> {
    let existing = world.snapshots().with(source, &known.present.digests).next();
    let expected =
        || public_digest(source, known).map(|digest| snapshot_name(&source.object.name, &digest, DIGITS[0]));
    existing.map(|(name, _)| name.object.name.to_string()).or_else(expected)
}

/// The digest of a content, if it does not depend on a key of the installation.
fn public_digest(source: &Name, known: &SourceRecord) -> Option<Digest> {
    Some(known.present.digests.current()).filter(|digest| digest.may_be_shown(source.object.kind))
}

/// The name that the snapshot of a content gets, as far as it does not depend on a key of the installation.
pub(super) fn expected_name(source: &ObjectName, present: &Observed) -> Option<String> {
    present.public_digest().map(|digest| snapshot_name(&source.name, &digest, DIGITS[0]))
}

/// The analysis of a change that moves in the future: it can begin.
pub(super) fn assumed(ended: EndedWave) -> AnalysisRun {
    let state = if ended.is_start() { RunState::Successful } else { RunState::Unknown };
    AnalysisRun { state, ..AnalysisRun::default() }
}

/// Whether the waves of a change can be analysed. If the user may not read the template, this is not known: confrev may.
async fn start(
    (target, reads): (&Target, &mut BTreeMap<String, ReadObject>),
    source: &Name,
    known: &SourceRecord,
    analysis: &Analysis,
) -> Result<RunState, Failure> {
    let namespace = &*source.namespace;
    let path = if analysis.cluster {
        format!("clusteranalysistemplates/{}", analysis.name)
    } else {
        format!("namespaces/{namespace}/analysistemplates/{}", analysis.name)
    };
    let why = match read(target, reads, path).await? {
        Err(_) => None,
        Ok(None) => Some(format!("{analysis} does not exist")),
        Ok(Some(template)) => {
            // Whether the template can be used does not depend on the digest.
            let digest = public_digest(source, known).map(|digest| digest.to_string()).unwrap_or_default();
            let given = run_arguments(&source.object.name, namespace, &digest, 1);
            run_of_template(&template, &given).err().map(|why| format!("{analysis}: {why}"))
        }
    };
    Ok(why.map_or(RunState::Successful, |why| RunState::Unavailable(why.into())))
}

/// Reads an object of Argo Rollouts once.
async fn read(
    target: &Target,
    reads: &mut BTreeMap<String, ReadObject>,
    path: String,
) -> Result<ReadObject, Failure> {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{kinds::Kinds, snapshot::SourceKind, world::WorldConfig};

    /// Without the key of the installation, it would be a plain hash of the content.
    #[test]
    fn name_of_new_snapshot_of_secret_is_unknown() {
        let world = World::new(WorldConfig::new(Arc::new(Kinds::default())));
        let named = |kind: SourceKind| {
            let json = json!({"metadata": {"name": "demo"}, "data": {"color": "Ymx1ZQ=="}}).to_string();
            let observed = Observed::read(kind, json.into_bytes()).unwrap();
            let source = Name::new("shop", ObjectName::new(kind, "demo"));
            snapshot_of(&world, &source, &SourceRecord::of(&observed))
        };
        assert_eq!(named(SourceKind::Secret), None);
        assert!(named(SourceKind::ConfigMap).is_some_and(|name| name.starts_with("demo-")));
    }
}
