//! `kubectl confrev impact --opt-in`: which workloads would roll if a namespace opted its workloads in, and what confrev would store.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::{
    failure::Failure,
    given,
    inventory::undecided,
    objects::{Scope, annotation, belongs_to_workload, text},
    output::{self, OutputFormat, Row},
    target::Target,
};
use crate::{
    annotations,
    kinds::WorkloadKind,
    resolve::{Facts, Plan},
    snapshot::{ObjectName, content_size},
};

/// The effect on one workload.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Joining {
    namespace: String,
    workload: String,
    rolls: bool,
    /// Admission would refuse it.
    refused: bool,
    why: String,
    /// The sources of which it would get snapshots.
    sources: Vec<String>,
}

impl Row for Joining {
    const COLUMNS: (&'static [&'static str], usize) = (&["WORKLOAD", "ROLLS", "WHY", "SOURCES"], 3);

    fn cells(&self) -> Vec<String> {
        let rolls = match (self.rolls, self.refused) {
            (true, _) => "yes",
            (false, true) => "refused",
            (false, false) => "no",
        };
        vec![self.workload.clone(), rolls.to_owned(), self.why.clone(), output::few(&self.sources)]
    }

    fn name(&self) -> String {
        self.workload.to_lowercase()
    }
}

/// Prints the effects, and for people a summary.
pub(super) async fn run(target: &Target, namespace: &str, format: OutputFormat) -> Result<(), Failure> {
    let target = Target { namespace: namespace.to_owned(), ..target.clone() };
    target.require_namespace().await?;
    let scope = Scope::Namespace(namespace.to_owned());
    let (mut all, mut stored) = (Vec::new(), BTreeMap::new());
    for kind in target.kinds.iter() {
        let collection = scope.collection(&kind.api_version(), &kind.plural);
        let found = target.list(&collection, &kind.kind, &undecided("")).await?;
        for value in found.into_iter().filter(|value| !belongs_to_workload(value)) {
            all.push(effect(&target, kind, &value, &mut stored).await?);
        }
    }
    all.sort_by(|one, other| one.workload.cmp(&other.workload));
    output::list(format, &all, "no workload of the namespace would be opted in")?;
    if matches!(format, OutputFormat::Table | OutputFormat::Wide) && !all.is_empty() {
        let rolling = all.iter().filter(|effect| effect.rolls).count();
        let bytes: usize = stored.values().sum();
        output::note(&format!(
            "{rolling} of {} would roll; confrev would store {} snapshots of {bytes} bytes",
            all.len(),
            stored.len()
        ));
        if rolling > 0 {
            output::note(&format!(
                "with {}=next on the namespace, none would roll now, and each is opted in with its next deployment",
                annotations::ENABLED
            ));
        }
    }
    Ok(())
}

/// The effect on a workload, by admission's own decision about it. `stored` gets the snapshots that it would need, with their sizes.
async fn effect(
    target: &Target,
    kind: &WorkloadKind,
    value: &Value,
    stored: &mut BTreeMap<ObjectName, usize>,
) -> Result<Joining, Failure> {
    let name = format!("{}/{}", kind.kind, text(value, "/metadata/name"));
    let joining = |rolls, refused, why: String, sources: BTreeSet<ObjectName>| Joining {
        namespace: target.namespace.clone(),
        workload: name.clone(),
        rolls,
        refused,
        why,
        sources: sources.iter().map(|source| format!("{}/{}", source.kind.as_str(), source.name)).collect(),
    };
    if kind.kind == "Job" {
        return Ok(joining(false, false, "a stored Job never changes".to_owned(), BTreeSet::new()));
    }
    let mut opted_in = value.clone();
    opted_in["metadata"]["labels"][annotations::ENABLED] = "true".into();
    opted_in["metadata"]["annotations"][annotations::ROLL] =
        Plan::every(jiff::Timestamp::now(), true).to_value().into();
    let mut facts = Facts::default();
    let secrets = annotation(value, annotations::SECRETS) == Some("true");
    let update = (kind, value, &opted_in);
    let decided =
        given::decide(target, &target.namespace, update, secrets, &BTreeMap::new(), &mut facts).await?;
    let Some(decision) = decided else {
        let why = "it does not have the form of its kind, or you may not read what it uses".to_owned();
        return Ok(joining(false, false, why, BTreeSet::new()));
    };
    if let Some(denial) = decision.denial {
        return Ok(joining(false, true, denial, BTreeSet::new()));
    }
    let sources: BTreeSet<_> = decision.ensure.iter().map(|ensure| ensure.source.clone()).collect();
    for source in &sources {
        let content = facts.object(source).flatten();
        let size = content.and_then(|content| content_size(source.kind, content.json()).ok());
        stored.insert(source.clone(), size.unwrap_or_default());
    }
    let (rolls, why) = match () {
        () if sources.is_empty() => (false, "it uses no ConfigMap that would get a snapshot".to_owned()),
        () if kind.kind == "CronJob" => (false, "its next run uses the snapshots".to_owned()),
        () => (true, waits(kind, value).unwrap_or("its references get the names of snapshots").to_owned()),
    };
    Ok(joining(rolls, false, why, sources))
}

/// Why the roll would wait for a person, or for its pods to be deleted.
fn waits(kind: &WorkloadKind, value: &Value) -> Option<&'static str> {
    let spec = &value["spec"];
    let strategy = &spec["strategy"];
    let mut steps = strategy["canary"]["steps"].as_array().into_iter().flatten();
    let pauses = |step: &Value| step.get("pause").is_some_and(|pause| pause["duration"].is_null());
    match &*kind.kind {
        "Rollout" if steps.any(pauses) || strategy["blueGreen"]["autoPromotionEnabled"] == false => {
            Some("its rollout pauses until a person promotes it")
        }
        "Deployment" if spec["paused"] == true => {
            Some("it is paused (spec.paused), and rolls when it is resumed")
        }
        "StatefulSet" | "DaemonSet" if spec["updateStrategy"]["type"] == "OnDelete" => {
            Some("each pod follows when it is deleted (OnDelete)")
        }
        _ => None,
    }
}
