//! Whether a workload has finished rolling its present template out, as its own controller reports.

use serde::Deserialize;
use serde_json::{Value, json};

/// Where a workload's rollout stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Nothing is under way.
    #[default]
    Settled,
    /// Its controller has not seen its present template.
    Unobserved,
    /// New pods are on their way.
    Progressing,
    /// Its controller has given up: past its progress deadline, degraded or aborted.
    Failed,
}

impl Health {
    /// Reads the health of a workload from its JSON text. Only the fields that matter are read; where they cannot be read, the
    /// workload counts as not having finished.
    pub fn read(kind: &str, text: &str) -> Self {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Metadata,
            #[serde(default)]
            spec: Spec,
            #[serde(default)]
            status: Value,
        }
        #[derive(Default, Deserialize)]
        struct Metadata {
            #[serde(default)]
            generation: Value,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            #[serde(default)]
            replicas: Value,
            #[serde(default)]
            update_strategy: Value,
        }
        let Ok(Object { metadata, spec, status }) = serde_json::from_str(text) else {
            return Self::Progressing;
        };
        let value = json!({
            "metadata": {"generation": metadata.generation},
            "spec": {"replicas": spec.replicas, "updateStrategy": spec.update_strategy},
            "status": status,
        });
        Self::of(kind, &value)
    }

    /// Reads a workload's status. Kinds that report nothing of the sort are settled.
    /// The kind is not read from the object: the API server leaves it out of those in a list.
    pub fn of(kind: &str, workload: &Value) -> Self {
        let status = &workload["status"];
        if is_unobserved(kind, workload) {
            return Self::Unobserved;
        }
        match kind {
            "Rollout" => Self::of_rollout(status),
            "Deployment" => Self::of_deployment(workload, status),
            "StatefulSet" => Self::of_stateful_set(workload, status),
            "DaemonSet" => Self::of_daemon_set(workload, status),
            _ => Self::Settled,
        }
    }

    /// Source: the phases of Argo Rollouts' `RolloutStatus`.
    fn of_rollout(status: &Value) -> Self {
        if status["abort"] == true || status["phase"] == "Degraded" {
            Self::Failed
        } else if status["phase"] == "Healthy" {
            Self::Settled
        } else {
            Self::Progressing
        }
    }

    /// Source: the rule of `kubectl rollout status`.
    fn of_deployment(workload: &Value, status: &Value) -> Self {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let late = conditions.any(|condition| {
            condition["type"] == "Progressing" && condition["reason"] == "ProgressDeadlineExceeded"
        });
        let wanted = workload["spec"]["replicas"].as_i64().unwrap_or(1);
        let [all, updated, available] = ["replicas", "updatedReplicas", "availableReplicas"]
            .map(|field| status[field].as_i64().unwrap_or(0));
        match (late, updated >= wanted && all <= updated && available >= updated) {
            (_, true) => Self::Settled,
            (true, false) => Self::Failed,
            (false, false) => Self::Progressing,
        }
    }

    fn of_stateful_set(workload: &Value, status: &Value) -> Self {
        let strategy = &workload["spec"]["updateStrategy"];
        if strategy["type"] == "OnDelete" {
            return Self::Settled;
        }
        let wanted = workload["spec"]["replicas"].as_i64().unwrap_or(1);
        let kept = strategy["rollingUpdate"]["partition"].as_i64().unwrap_or(0);
        let [updated, ready] =
            ["updatedReplicas", "readyReplicas"].map(|field| status[field].as_i64().unwrap_or(0));
        if updated >= (wanted - kept).max(0) && ready >= wanted { Self::Settled } else { Self::Progressing }
    }

    fn of_daemon_set(workload: &Value, status: &Value) -> Self {
        if workload["spec"]["updateStrategy"]["type"] == "OnDelete" {
            return Self::Settled;
        }
        let [wanted, updated, available] =
            ["desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"]
                .map(|field| status[field].as_i64().unwrap_or(0));
        if updated >= wanted && available >= wanted { Self::Settled } else { Self::Progressing }
    }
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
    use super::*;

    #[test]
    fn health_is_what_each_kinds_own_controller_reports() {
        let at = |kind: &str, spec: Value, mut status: Value| {
            status["observedGeneration"] = if kind == "Rollout" { json!("2") } else { json!(2) };
            Health::of(kind, &json!({"metadata": {"generation": 2}, "spec": spec, "status": status}))
        };
        let done = json!({"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        let half = json!({"replicas": 3, "updatedReplicas": 1, "availableReplicas": 2});
        let late = json!({"replicas": 3, "updatedReplicas": 1, "availableReplicas": 2, "conditions": [
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]});
        for (kind, spec, status, expected) in [
            ("Deployment", json!({"replicas": 2}), done.clone(), Health::Settled),
            ("Deployment", json!({"replicas": 2}), half, Health::Progressing),
            ("Deployment", json!({"replicas": 2}), late, Health::Failed),
            ("Deployment", json!({"replicas": 0}), json!({}), Health::Settled),
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
            ("CronJob", json!({}), json!({}), Health::Settled),
        ] {
            assert_eq!(at(kind, spec.clone(), status.clone()), expected, "{kind} {spec} {status}");
        }
        let stale =
            json!({"kind": "Deployment", "metadata": {"generation": 3}, "status": {"observedGeneration": 2}});
        assert_eq!(Health::of("Deployment", &stale), Health::Unobserved);
    }
}
