//! The analysis of a wave: an Argo AnalysisRun, made from the template that the annotation `analysis` of the source names.
//!
//! Nothing is stored about a run but the run itself. Its name follows from the content and from the moves that it judges. So any
//! leader finds the run that another one created, and no run judges later moves.

use std::fmt;

use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    annotations,
    snapshot::{SourceKind, is_object_name},
};

/// The most characters of the snapshot's name in the name of a run.
const STEM: usize = 200;
/// The prefix of the name of a ClusterAnalysisTemplate.
const CLUSTER: &str = "cluster/";
/// The label by which several Argo Rollouts controllers share a cluster. Source: `LabelKeyControllerInstanceID` of Argo Rollouts.
const INSTANCE: &str = "argo-rollouts.argoproj.io/controller-instance-id";

/// The values that the annotation may have, for messages.
pub(super) const ALLOWED: &str =
    "the name of an AnalysisTemplate, or \"cluster/NAME\" for a ClusterAnalysisTemplate";

/// The template of the analysis of each wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// It is a ClusterAnalysisTemplate.
    pub cluster: bool,
    /// Its name.
    pub name: Box<str>,
}

impl Analysis {
    /// Reads the annotation `analysis`; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (cluster, name) = text.strip_prefix(CLUSTER).map_or((false, text), |name| (true, name));
        is_object_name(name).then(|| Self { cluster, name: name.into() })
    }
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.cluster { "ClusterAnalysisTemplate" } else { "AnalysisTemplate" };
        write!(f, "{kind} {:?}", self.name)
    }
}

/// A wave that ended: all its workloads have moved, are healthy, and have baked. Or the start of a change: the controller has
/// moved no workload, and must be able to analyse the first wave before it moves one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedWave {
    /// The wave, counted from 1; 0 is the start of the change.
    pub wave: usize,
    /// The last move. A run judges the moves up to then.
    pub moved: Option<Timestamp>,
}

impl EndedWave {
    /// Whether this is the start of a change. No AnalysisRun judges it: its template must be usable.
    pub fn is_start(self) -> bool {
        self.wave == 0
    }

    /// The name of the AnalysisRun that judges this wave. `snapshot` is the snapshot of the content, and `retried` is in its verdict:
    /// a person may ask for another run.
    pub fn run_name(&self, kind: SourceKind, snapshot: &str, retried: Option<&str>) -> String {
        let mut hash = Sha256::new();
        let moved = self.moved.map(|moved| moved.to_string()).unwrap_or_default();
        for part in [kind.as_str(), snapshot, &moved, retried.unwrap_or_default()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let hash: [u8; 32] = hash.finalize().into();
        let digits = u64::from_be_bytes(*hash.first_chunk().unwrap_or(&[0; 8])) >> 24;
        format!("{}{}-{digits:010x}", run_stem(snapshot), self.wave)
    }
}

/// Whether a run of this name judges a wave of the change to a snapshot.
pub fn is_run_of(run: &str, snapshot: &str) -> bool {
    run.starts_with(&run_stem(snapshot))
}

/// The start of the names of all runs of the change to a snapshot.
fn run_stem(snapshot: &str) -> String {
    let stem = &snapshot[..snapshot.floor_char_boundary(STEM)];
    format!("{}-wave-", stem.trim_end_matches(['.', '-']))
}

/// The AnalysisRun of a wave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnalysisRun {
    /// Its name.
    pub name: Box<str>,
    /// Its state.
    pub state: RunState,
}

/// The state of an AnalysisRun, as far as the next wave depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RunState {
    /// It does not exist yet, or nothing is known of it.
    #[default]
    Unknown,
    /// It has no result yet.
    Running,
    /// The next wave may begin.
    Successful,
    /// The content is bad.
    Failed(Box<str>),
    /// A person has to decide: it was inconclusive or terminated.
    Undecided(Box<str>),
    /// It cannot be created or read.
    Unavailable(Box<str>),
}

impl RunState {
    /// Reads an AnalysisRun. A run of another owner says nothing about the source with this uid.
    pub fn read(run: &Value, owner: &str) -> Self {
        let owners = run["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        if !owners.into_iter().any(|reference| reference["uid"] == owner) {
            return Self::Unavailable("another AnalysisRun has its name: delete it".into());
        }
        let message = match run["status"]["message"].as_str() {
            None | Some("") => String::new(),
            Some(message) => format!(": {}", annotations::bounded(message)),
        };
        let phase = run["status"]["phase"].as_str().unwrap_or_default();
        match phase {
            // A terminated run is successful if nothing has failed until then.
            "Successful" | "Inconclusive" if run["spec"]["terminate"] == true => {
                Self::Undecided("was terminated".into())
            }
            "Successful" => Self::Successful,
            "Failed" | "Error" => Self::Failed(format!("{}{message}", phase.to_lowercase()).into()),
            "Inconclusive" => Self::Undecided(format!("is inconclusive{message}").into()),
            _ => Self::Running,
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("has not begun"),
            Self::Running => f.write_str("is running"),
            Self::Successful => f.write_str("was successful"),
            Self::Failed(why) | Self::Undecided(why) => f.write_str(why),
            Self::Unavailable(why) => write!(f, "is not available: {why}"),
        }
    }
}

/// The `spec` and labels of the AnalysisRun that a template describes. `given`: the arguments that confrev knows; a run gets
/// those that its template declares. An error says why Argo Rollouts could not execute such a run.
pub fn run_of_template(template: &Value, given: &[(&str, String)]) -> Result<(Value, Value), String> {
    let spec = &template["spec"];
    if spec["templates"].as_array().is_some_and(|templates| !templates.is_empty()) {
        return Err(
            "it refers to other templates, which is not supported: list their metrics in it".to_owned()
        );
    }
    let mut args = spec["args"].as_array().cloned().unwrap_or_default();
    for arg in &mut args {
        let name = arg["name"].as_str().unwrap_or_default();
        if let Some((_, value)) = given.iter().find(|(known, _)| *known == name) {
            *arg = json!({"name": name, "value": value});
        } else if arg.get("value").is_none() && arg.get("valueFrom").is_none() {
            let known: Vec<_> = given.iter().map(|(name, _)| *name).collect();
            return Err(format!("its argument {name:?} has no value: confrev sets {}", known.join(", ")));
        }
    }
    let mut run = json!({"metrics": spec["metrics"]});
    if !args.is_empty() {
        run["args"] = json!(args);
    }
    for key in ["dryRun", "measurementRetention"] {
        if !spec[key].is_null() {
            run[key] = spec[key].clone();
        }
    }
    let instance = &template["metadata"]["labels"][INSTANCE];
    let labels = if instance.is_null() { json!({}) } else { json!({INSTANCE: instance}) };
    Ok((run, labels))
}

/// The arguments of an analysis, in the order in which messages list them.
pub fn run_arguments(
    source: &str,
    namespace: &str,
    digest: &str,
    wave: usize,
) -> [(&'static str, String); 4] {
    [
        ("source", source.to_owned()),
        ("namespace", namespace.to_owned()),
        ("digest", digest.to_owned()),
        ("wave", wave.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(wave: usize, second: i64) -> EndedWave {
        EndedWave { wave, moved: Timestamp::from_second(second).ok() }
    }

    #[test]
    fn reads_names_of_templates() {
        for (text, expected) in [
            ("errors", Some((false, "errors"))),
            ("cluster/errors", Some((true, "errors"))),
            ("cluster", Some((false, "cluster"))),
            ("", None),
            ("cluster/", None),
            ("shop/errors", None),
            ("Errors", None),
            ("../secrets", None),
            ("errors ", None),
        ] {
            let parsed = Analysis::parse(text);
            assert_eq!(parsed.as_ref().map(|found| (found.cluster, &*found.name)), expected, "{text:?}");
        }
    }

    /// Another leader finds the run, and no later move is judged by it.
    #[test]
    fn run_name_follows_from_the_moves() {
        let name = |of: EndedWave, retried| of.run_name(SourceKind::ConfigMap, "demo-3a18d34e26", retried);
        let first = name(ended(1, 5), None);
        assert!(first.starts_with("demo-3a18d34e26-wave-1-") && is_object_name(&first), "{first}");
        assert!(is_run_of(&first, "demo-3a18d34e26") && !is_run_of(&first, "demo-3a18d34e2"), "{first}");
        for other in [
            name(ended(1, 6), None),
            name(ended(2, 5), None),
            name(ended(1, 5), Some("2026-01-01T00:00:00Z")),
            ended(1, 5).run_name(SourceKind::Secret, "demo-3a18d34e26", None),
            ended(1, 5).run_name(SourceKind::ConfigMap, "demo-3a18d34e27", None),
        ] {
            assert_ne!(first, other);
        }
        let long = name(ended(50, 5), None).len();
        assert!(ended(50, 5).run_name(SourceKind::ConfigMap, &"a.".repeat(126), None).len() < 253 - long);
    }

    #[test]
    fn states_follow_from_phases() {
        let state = |spec: Value, status: Value| {
            let metadata = json!({"ownerReferences": [{"uid": "u"}]});
            RunState::read(&json!({"metadata": metadata, "spec": spec, "status": status}), "u")
        };
        let ended = json!({"terminate": true});
        for (spec, status, expected) in [
            (json!({}), Value::Null, RunState::Running),
            (json!({}), json!({"phase": "Pending"}), RunState::Running),
            (json!({}), json!({"phase": "Running", "message": "m"}), RunState::Running),
            (ended.clone(), json!({"phase": "Running"}), RunState::Running),
            (json!({}), json!({"phase": "Successful"}), RunState::Successful),
            (json!({"terminate": false}), json!({"phase": "Successful"}), RunState::Successful),
            (ended.clone(), json!({"phase": "Successful"}), RunState::Undecided("was terminated".into())),
            (ended.clone(), json!({"phase": "Failed"}), RunState::Failed("failed".into())),
            (json!({}), json!({"phase": "Failed", "message": "m"}), RunState::Failed("failed: m".into())),
            (json!({}), json!({"phase": "Error"}), RunState::Failed("error".into())),
            (json!({}), json!({"phase": "Inconclusive"}), RunState::Undecided("is inconclusive".into())),
        ] {
            assert_eq!(state(spec.clone(), status.clone()), expected, "{spec} {status}");
        }
        let other = RunState::read(&json!({"status": {"phase": "Successful"}}), "u");
        assert!(matches!(other, RunState::Unavailable(_)), "{other:?}");
    }

    #[test]
    fn run_gets_the_arguments_that_its_template_declares() {
        let given = run_arguments("demo", "shop", "sha256:00", 2);
        let template = |spec: Value| json!({"metadata": {"labels": {INSTANCE: "a", "x": "y"}}, "spec": spec});
        let args = json!([{"name": "wave"}, {"name": "source", "value": "other"}, {"name": "token", "valueFrom": {}}]);
        let (spec, labels) = run_of_template(
            &template(json!({"metrics": [{"name": "m"}], "args": args, "dryRun": [{"metricName": "m"}]})),
            &given,
        )
        .unwrap();
        assert_eq!(labels, json!({INSTANCE: "a"}));
        let expected = json!({
            "metrics": [{"name": "m"}],
            "args": [{"name": "wave", "value": "2"}, {"name": "source", "value": "demo"}, {"name": "token", "valueFrom": {}}],
            "dryRun": [{"metricName": "m"}],
        });
        assert_eq!(spec, expected);
        for (spec, part) in [
            (json!({"metrics": [], "args": [{"name": "service"}]}), "argument \"service\" has no value"),
            (json!({"templates": [{"templateName": "a"}]}), "other templates"),
        ] {
            let error = run_of_template(&template(spec), &given).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
