//! The health of a workload: whether its present template has rolled out, as its own controller reports.

use serde::Deserialize;
use serde_json::Value;

use super::TargetRef;
use crate::{json, kinds::WorkloadKind};

/// The state of a workload's rollout, from the best to the worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// The same as [`Settled`](Self::Settled), of a workload that starts no pods: it proves nothing.
    Idle,
    /// No rollout is under way, and no problem is reported.
    #[default]
    Settled,
    /// No rollout is under way, and some of its pods are not available.
    Unavailable,
    /// A rollout is under way.
    Progressing,
    /// Its controller has not observed its present template.
    Unobserved,
    /// Its controller has given up: past its progress deadline, degraded or aborted.
    Failed,
}

/// Whether the controller of this kind gives up a rollout that takes too long. A rollout of another kind may stay
/// unfinished forever.
pub fn has_deadline(kind: &str) -> bool {
    matches!(kind, "Deployment" | "Rollout")
}

/// Whether a Rollout may use the template of a workload of this kind. Source: the kinds that Argo Rollouts' `workloadRef`
/// accepts.
pub fn may_lend_template(kind: &str) -> bool {
    matches!(kind, "Deployment" | "ReplicaSet" | "PodTemplate")
}

/// A Rollout that uses the template of another workload (`workloadRef`): the pods of the template are the Rollout's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referrer {
    target: TargetRef,
    /// The generation of the workload that the Rollout has observed.
    observed: Option<i64>,
    health: Health,
}

impl Referrer {
    /// Reads a Rollout from its JSON text; `None` if it has a template of its own, or cannot be read.
    pub fn read(text: &str) -> Option<Self> {
        Self::of(&parsed(text)?)
    }

    /// Reads a Rollout; `None` if it has a template of its own.
    pub fn of(rollout: &Value) -> Option<Self> {
        let target = TargetRef::deserialize(rollout.pointer("/spec/workloadRef")?).ok()?;
        let observed = rollout["status"]["workloadObservedGeneration"].as_str();
        let observed = observed.and_then(|text| text.parse().ok());
        Some(Self { target, observed, health: Health::of("Rollout", rollout) })
    }

    /// The name of the workload with the template.
    pub fn target_name(&self) -> &str {
        &self.target.name
    }

    /// Whether this is the workload with the template.
    pub fn refers_to(&self, kind: &WorkloadKind, name: &str) -> bool {
        self.target.kind == kind.kind && self.target.name == name
    }

    /// The health of the Rollout with the template of that generation.
    pub fn health(&self, generation: Option<i64>) -> Health {
        match (self.observed, generation) {
            (Some(observed), Some(generation)) if observed != generation => Health::Unobserved,
            _ => self.health,
        }
    }
}

impl Health {
    /// Whether no rollout is under way, and no problem is reported.
    pub fn is_at_rest(self) -> bool {
        matches!(self, Self::Idle | Self::Settled)
    }

    /// Whether the workload is unhealthy and no rollout of it is under way. If it stays unhealthy with the next content, that
    /// content need not be the cause.
    pub fn is_unhealthy(self) -> bool {
        matches!(self, Self::Unavailable | Self::Failed)
    }

    /// Reads the health of a workload from its JSON text. Only the necessary fields are read. If they cannot be read, the
    /// workload counts as progressing.
    pub fn read(kind: &str, text: &str) -> Self {
        parsed(text).map_or(Self::Progressing, |workload| Self::of(kind, &workload))
    }

    /// Reads the health that the workload's controller last reported, even if it has not observed the present template.
    pub fn read_last(kind: &str, text: &str) -> Self {
        parsed(text).map_or(Self::Progressing, |workload| Self::last_of(kind, &workload))
    }

    /// Reads a workload's status. A kind that reports no health is settled.
    /// The kind is a parameter because the API server omits it from the objects of a list.
    pub fn of(kind: &str, workload: &Value) -> Self {
        let last = Self::last_of(kind, workload);
        // A workload that starts no pods is idle whatever its controller has observed.
        if last != Self::Idle && is_unobserved(kind, workload) { Self::Unobserved } else { last }
    }

    fn last_of(kind: &str, workload: &Value) -> Self {
        let status = &workload["status"];
        let reported = match kind {
            "Rollout" => Self::of_rollout(status),
            "Deployment" => Self::of_deployment(workload, status),
            "StatefulSet" => Self::of_stateful_set(workload, status),
            "DaemonSet" => Self::of_daemon_set(workload, status),
            _ => Self::of_other(workload, status),
        };
        if reported == Self::Settled && starts_no_pods(kind, workload) { Self::Idle } else { reported }
    }

    /// Source: the conditions by which kstatus computes the status of any resource. Kinds that count their updated replicas, such as
    /// OpenKruise's, do so in the fields of a StatefulSet. A kind with neither is settled.
    fn of_other(workload: &Value, status: &Value) -> Self {
        let condition = |name: &str| {
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            conditions.find(|condition| condition["type"] == name)?["status"].as_str()
        };
        if condition("Stalled") == Some("True") {
            return Self::Failed;
        }
        if status["updatedReplicas"].is_i64() {
            return Self::of_stateful_set(workload, status);
        }
        match condition("Ready").or_else(|| condition("Available")) {
            _ if condition("Reconciling") == Some("True") => Self::Progressing,
            Some("False") => Self::Unavailable,
            Some("Unknown") => Self::Progressing,
            Some(_) | None => Self::Settled,
        }
    }

    /// Source: the phases of Argo Rollouts' `RolloutStatus`.
    fn of_rollout(status: &Value) -> Self {
        let is_finished =
            status["stableRS"].as_str().is_some_and(|stable| status["currentPodHash"] == stable);
        if status["abort"] == true || (status["phase"] == "Degraded" && !is_finished) {
            Self::Failed
        } else if status["phase"] == "Healthy" {
            Self::Settled
        } else if matches!(status["phase"].as_str(), Some("Progressing" | "Degraded")) && is_finished {
            Self::Unavailable
        } else {
            Self::Progressing
        }
    }

    /// Source: the rule of `kubectl rollout status`.
    fn of_deployment(workload: &Value, status: &Value) -> Self {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let progress = conditions.find(|condition| condition["type"] == "Progressing");
        let reason = progress.and_then(|condition| condition["reason"].as_str()).unwrap_or_default();
        let wanted = workload["spec"]["replicas"].as_i64().unwrap_or(1);
        let [all, updated, available] = ["replicas", "updatedReplicas", "availableReplicas"]
            .map(|field| status[field].as_i64().unwrap_or(0));
        match reason {
            _ if updated >= wanted && all <= updated && available >= updated => Self::Settled,
            "ProgressDeadlineExceeded" => Self::Failed,
            // The reason stays when the pods of a finished rollout fail later.
            "NewReplicaSetAvailable" => Self::Unavailable,
            _ => Self::Progressing,
        }
    }

    fn of_stateful_set(workload: &Value, status: &Value) -> Self {
        let strategy = &workload["spec"]["updateStrategy"];
        if strategy["type"] == "OnDelete" {
            return Self::Settled;
        }
        let wanted = workload["spec"]["replicas"].as_i64().unwrap_or(1);
        let kept = |partition: &Value| match partition {
            // OpenKruise's partition may be a share. It is rounded up, but one pod is updated below 100 %. Source: its
            // `CalculatePartitionReplicas`.
            Value::String(share) => {
                let percent: i64 = share.strip_suffix('%')?.parse().ok()?;
                let most = if percent < 100 { wanted - 1 } else { wanted };
                Some((wanted.saturating_mul(percent).saturating_add(99) / 100).min(most).max(0))
            }
            number => number.as_i64(),
        };
        let kept = kept(&strategy["rollingUpdate"]["partition"])
            .or_else(|| kept(&strategy["partition"]))
            .unwrap_or(0);
        let [updated, ready] =
            ["updatedReplicas", "readyReplicas"].map(|field| status[field].as_i64().unwrap_or(0));
        // Both name the same revision once a rollout has finished.
        let revision = |field: &str| status[field].as_str().unwrap_or_default();
        let is_finished = !revision("updateRevision").is_empty()
            && revision("currentRevision") == revision("updateRevision");
        match updated >= (wanted - kept).max(0) {
            true if ready >= wanted => Self::Settled,
            true if is_finished => Self::Unavailable,
            _ => Self::Progressing,
        }
    }

    fn of_daemon_set(workload: &Value, status: &Value) -> Self {
        if workload["spec"]["updateStrategy"]["type"] == "OnDelete" {
            return Self::Settled;
        }
        let [wanted, updated, available] =
            ["desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"]
                .map(|field| status[field].as_i64().unwrap_or(0));
        match updated >= wanted {
            true if available >= wanted => Self::Settled,
            // Only the last pods of a rollout look the same.
            true => Self::Unavailable,
            false => Self::Progressing,
        }
    }
}

/// Whether a workload starts no pods now. The pods of a CronJob are its Jobs'.
fn starts_no_pods(kind: &str, workload: &Value) -> bool {
    match kind {
        "CronJob" | "PodTemplate" => true,
        "DaemonSet" => workload["status"]["desiredNumberScheduled"] == 0,
        _ => workload["spec"]["replicas"] == 0,
    }
}

/// The fields that the health of a workload depends on, with those on the way to them.
const FIELDS: [&str; 29] = [
    "abort",
    "apiVersion",
    "availableReplicas",
    "conditions",
    "currentPodHash",
    "currentRevision",
    "desiredNumberScheduled",
    "generation",
    "kind",
    "metadata",
    "name",
    "numberAvailable",
    "observedGeneration",
    "partition",
    "phase",
    "readyReplicas",
    "reason",
    "replicas",
    "rollingUpdate",
    "spec",
    "stableRS",
    "status",
    "type",
    "updateRevision",
    "updateStrategy",
    "updatedNumberScheduled",
    "updatedReplicas",
    "workloadObservedGeneration",
    "workloadRef",
];

/// The fields of a workload that its health depends on; `None` if its text is not JSON.
fn parsed(text: &str) -> Option<Value> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = json::shallow(&FIELDS, &mut reader).ok()?;
    reader.end().is_ok().then_some(value)
}

/// Whether the status is older than the spec. Argo Rollouts writes its observed generation as text.
fn is_unobserved(kind: &str, workload: &Value) -> bool {
    let Some(generation) = workload["metadata"]["generation"].as_i64() else { return false };
    match &workload["status"]["observedGeneration"] {
        Value::Null => {
            matches!(kind, "Rollout" | "Deployment" | "StatefulSet" | "DaemonSet")
        }
        Value::String(text) => text.parse::<i64>().is_ok_and(|observed| observed < generation),
        observed => observed.as_i64().is_some_and(|observed| observed < generation),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The pods of a finished rollout may become unavailable long after it.
    #[test]
    fn degraded_rollout_fails_until_it_is_finished() {
        for (current, expected) in [("a", Health::Unavailable), ("b", Health::Failed)] {
            let status = json!({"phase": "Degraded", "stableRS": "a", "currentPodHash": current});
            assert_eq!(Health::of("Rollout", &json!({"status": status})), expected, "{current}");
        }
    }

    #[test]
    fn reads_health_from_status_of_each_kind() {
        let at = |kind: &str, spec: Value, mut status: Value| {
            status["observedGeneration"] = if kind == "Rollout" { json!("2") } else { json!(2) };
            Health::of(kind, &json!({"metadata": {"generation": 2}, "spec": spec, "status": status}))
        };
        let done = json!({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        let half = json!({"replicas": 3, "updatedReplicas": 1, "availableReplicas": 2});
        let late = json!({"replicas": 3, "updatedReplicas": 1, "availableReplicas": 2, "conditions": [
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]});
        let crashing = json!({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 1, "conditions": [
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]});
        for (kind, spec, status, expected) in [
            ("Deployment", json!({"replicas": 2}), done.clone(), Health::Settled),
            ("Deployment", json!({"replicas": 2}), half, Health::Progressing),
            ("Deployment", json!({"replicas": 2}), late, Health::Failed),
            ("Deployment", json!({"replicas": 0}), json!({}), Health::Idle),
            ("Rollout", json!({}), json!({"phase": "Healthy"}), Health::Settled),
            ("Rollout", json!({}), json!({"phase": "Paused"}), Health::Progressing),
            ("Rollout", json!({}), json!({"phase": "Degraded"}), Health::Failed),
            ("Rollout", json!({}), json!({"phase": "Progressing", "abort": true}), Health::Failed),
            (
                "StatefulSet",
                json!({"replicas": 2}),
                json!({"updatedReplicas": 1, "readyReplicas": 2}),
                Health::Progressing,
            ),
            (
                "StatefulSet",
                json!({"replicas": 2}),
                json!({"updatedReplicas": 2, "readyReplicas": 2}),
                Health::Settled,
            ),
            ("DaemonSet", json!({}), json!({"desiredNumberScheduled": 1}), Health::Progressing),
            (
                "DaemonSet",
                json!({"updateStrategy": {"type": "OnDelete"}}),
                json!({"desiredNumberScheduled": 1}),
                Health::Settled,
            ),
            ("CronJob", json!({}), json!({}), Health::Idle),
            ("DaemonSet", json!({}), json!({"desiredNumberScheduled": 0}), Health::Idle),
            ("Deployment", json!({"replicas": 2}), crashing, Health::Unavailable),
            (
                "Rollout",
                json!({}),
                json!({"phase": "Progressing", "stableRS": "a", "currentPodHash": "a"}),
                Health::Unavailable,
            ),
            (
                "Rollout",
                json!({}),
                json!({"phase": "Progressing", "stableRS": "a", "currentPodHash": "b"}),
                Health::Progressing,
            ),
            (
                "StatefulSet",
                json!({"replicas": 2}),
                json!({"updatedReplicas": 2, "readyReplicas": 1, "currentRevision": "a", "updateRevision": "a"}),
                Health::Unavailable,
            ),
            (
                "StatefulSet",
                json!({"replicas": 2}),
                json!({"updatedReplicas": 2, "readyReplicas": 1, "currentRevision": "a", "updateRevision": "b"}),
                Health::Progressing,
            ),
            (
                "DaemonSet",
                json!({}),
                json!({"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 1}),
                Health::Unavailable,
            ),
            (
                "DaemonSet",
                json!({}),
                json!({"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}),
                Health::Settled,
            ),
            (
                "StatefulSet",
                json!({"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 2}}}),
                json!({"updatedReplicas": 1, "readyReplicas": 3}),
                Health::Settled,
            ),
            (
                "StatefulSet",
                json!({"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 1}}}),
                json!({"updatedReplicas": 1, "readyReplicas": 3}),
                Health::Progressing,
            ),
        ] {
            assert_eq!(at(kind, spec.clone(), status.clone()), expected, "{kind} {spec} {status}");
        }
        for (kind, observed) in [("Deployment", json!(2)), ("Rollout", json!("2"))] {
            let stale = json!({"metadata": {"generation": 3}, "status": {"observedGeneration": observed}});
            assert_eq!(Health::of(kind, &stale), Health::Unobserved, "{kind}");
        }
    }

    #[test]
    fn reads_health_of_configured_kinds() {
        for (replicas, partition, [updated, ready], expected) in [
            (2, json!(null), [1, 2], Health::Progressing),
            (2, json!(null), [2, 1], Health::Progressing),
            (2, json!(null), [2, 2], Health::Settled),
            (5, json!("50%"), [2, 5], Health::Settled),
            (5, json!(2), [2, 5], Health::Progressing),
            (5, json!("50%"), [1, 5], Health::Progressing),
            (1, json!("50%"), [0, 1], Health::Progressing),
            (2, json!("100%"), [0, 2], Health::Settled),
            (0, json!("50%"), [0, 0], Health::Idle),
        ] {
            let spec = json!({"replicas": replicas, "updateStrategy": {"partition": partition}});
            let status = json!({"updatedReplicas": updated, "readyReplicas": ready});
            let found = Health::of("CloneSet", &json!({"spec": spec, "status": status}));
            assert_eq!(found, expected, "{spec} {status}");
        }
        let finished =
            json!({"updatedReplicas": 2, "readyReplicas": 1, "currentRevision": "a", "updateRevision": "a"});
        let found = Health::of("CloneSet", &json!({"spec": {"replicas": 2}, "status": finished}));
        assert_eq!(found, Health::Unavailable);
        for (condition, state, expected) in [
            ("Ready", "True", Health::Settled),
            ("Ready", "False", Health::Unavailable),
            ("Available", "Unknown", Health::Progressing),
            ("Reconciling", "True", Health::Progressing),
            ("Stalled", "True", Health::Failed),
            ("Stalled", "False", Health::Settled),
        ] {
            let status = json!({"conditions": [{"type": condition, "status": state}]});
            let found = Health::of("Own", &json!({"spec": {}, "status": status}));
            assert_eq!(found, expected, "{condition} {state}");
        }
    }

    #[test]
    fn rollouts_take_templates_of_three_kinds() {
        for kind in ["Deployment", "ReplicaSet", "PodTemplate"] {
            assert!(may_lend_template(kind), "{kind}");
        }
        for kind in ["StatefulSet", "DaemonSet", "Job", "CronJob", "Rollout"] {
            assert!(!may_lend_template(kind), "{kind}");
        }
    }

    /// Whatever its controller has observed: no pod shows whether the content is sound.
    #[test]
    fn workload_without_pods_is_idle_unobserved() {
        for (replicas, expected) in [(0, Health::Idle), (1, Health::Unobserved)] {
            let workload = json!({
                "metadata": {"generation": 2},
                "spec": {"replicas": replicas},
                "status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas, "availableReplicas": replicas},
            });
            assert_eq!(Health::of("Deployment", &workload), expected);
        }
    }
}
