//! Rollouts that wait for a user: a paused canary, a paused Deployment, the partition of a StatefulSet.

use serde_json::Value;

use super::{
    inventory::Inventory,
    objects::{OptedIn, text},
};
use crate::resolve::Health;

/// A rollout that continues only after a command of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// Its position.
    pub(super) at: String,
    /// What to do.
    pub(super) then: String,
}

/// The pause of the workload's own rollout, or of a Rollout that takes its template.
pub(super) fn of(inventory: &Inventory, workload: &OptedIn) -> Option<Pause> {
    match (&*workload.kind.kind, workload.record.health) {
        ("Rollout", Health::Progressing) => of_rollout(&workload.value),
        ("Deployment", Health::Progressing) => {
            let by_rollout = inventory.referrers(workload).find_map(of_rollout);
            by_rollout.or_else(|| of_deployment(&workload.value))
        }
        ("StatefulSet", Health::Settled) => of_stateful_set(&workload.value),
        ("DaemonSet", Health::Settled) => of_daemon_set(&workload.value),
        _ => None,
    }
}

fn of_rollout(rollout: &Value) -> Option<Pause> {
    let (status, strategy) = (&rollout["status"], &rollout["spec"]["strategy"]);
    let name = text(rollout, "/metadata/name");
    if status["phase"] != "Paused" {
        return None;
    }
    let then = format!("promote it to go on: kubectl argo rollouts promote {name}");
    let mut reasons = status["pauseConditions"].as_array().into_iter().flatten();
    let reason = reasons.find_map(|condition| condition["reason"].as_str());
    let at = match reason {
        // Only a user sets this field.
        None if rollout["spec"]["paused"] == true => {
            let then = format!("set spec.paused of Rollout/{name} to false to go on");
            return Some(Pause { at: "paused (spec.paused)".to_owned(), then });
        }
        None => return None,
        Some(reason @ "CanaryPauseStep") => {
            let index = usize::try_from(status["currentStepIndex"].as_u64()?).ok()?;
            // A pause with a duration ends by itself.
            if !strategy["canary"]["steps"][index]["pause"]["duration"].is_null() {
                return None;
            }
            format!("paused at step {} ({reason})", index + 1)
        }
        Some("BlueGreenPause") if !strategy["blueGreen"]["autoPromotionSeconds"].is_null() => return None,
        Some(reason) => format!("paused ({reason})"),
    };
    Some(Pause { at, then })
}

fn of_deployment(deployment: &Value) -> Option<Pause> {
    let name = text(deployment, "/metadata/name");
    (deployment["spec"]["paused"] == true).then(|| Pause {
        at: "paused (spec.paused)".to_owned(),
        then: format!("resume it to go on: kubectl rollout resume deployment/{name}"),
    })
}

fn of_stateful_set(set: &Value) -> Option<Pause> {
    let (spec, status) = (&set["spec"], &set["status"]);
    let updated = status["updatedReplicas"].as_i64().unwrap_or(0);
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    if updated >= wanted || status["currentRevision"] == status["updateRevision"] {
        return None;
    }
    let at = format!("{updated} of {wanted} pods updated");
    if spec["updateStrategy"]["type"] == "OnDelete" {
        return Some(on_delete(&at));
    }
    let partition = spec["updateStrategy"]["rollingUpdate"]["partition"].as_i64().unwrap_or(0);
    (partition > 0).then(|| Pause {
        at: format!("{at} (partition {partition})"),
        then: "lower spec.updateStrategy.rollingUpdate.partition to go on".to_owned(),
    })
}

fn of_daemon_set(set: &Value) -> Option<Pause> {
    let count = |field: &str| set["status"][field].as_i64().unwrap_or(0);
    let (updated, wanted) = (count("updatedNumberScheduled"), count("desiredNumberScheduled"));
    let is_manual = set["spec"]["updateStrategy"]["type"] == "OnDelete";
    (is_manual && updated < wanted).then(|| on_delete(&format!("{updated} of {wanted} pods updated")))
}

fn on_delete(at: &str) -> Pause {
    Pause { at: format!("{at} (OnDelete)"), then: "delete the other pods to go on".to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rollout_pause_ends_by_user_or_time() {
        let rollout = |spec: Value, reason: &str| {
            let conditions = json!([{"reason": reason}]);
            of_rollout(&json!({
                "metadata": {"name": "web"}, "spec": spec,
                "status": {"phase": "Paused", "pauseConditions": conditions, "currentStepIndex": 1},
            }))
        };
        let canary =
            |pause: Value| json!({"strategy": {"canary": {"steps": [{"setWeight": 25}, {"pause": pause}]}}});
        let at = |pause: Option<Pause>| pause.map(|pause| pause.at);
        let found = rollout(canary(json!({})), "CanaryPauseStep");
        assert_eq!(at(found).as_deref(), Some("paused at step 2 (CanaryPauseStep)"));
        assert_eq!(at(rollout(canary(json!({"duration": "1h"})), "CanaryPauseStep")), None);
        let blue_green = |more: Value| json!({"strategy": {"blueGreen": more}});
        let found = rollout(blue_green(json!({})), "BlueGreenPause");
        assert_eq!(at(found).as_deref(), Some("paused (BlueGreenPause)"));
        assert_eq!(at(rollout(blue_green(json!({"autoPromotionSeconds": 5})), "BlueGreenPause")), None);
        assert_eq!(of_rollout(&json!({"status": {"phase": "Progressing"}})), None);
    }

    #[test]
    fn sets_wait_for_partition_or_deletion() {
        let set = |strategy: Value, updated: i64| {
            of_stateful_set(&json!({
                "spec": {"replicas": 3, "updateStrategy": strategy},
                "status": {"updatedReplicas": updated, "currentRevision": "a", "updateRevision": "b"},
            }))
        };
        let at = |pause: Option<Pause>| pause.map(|pause| pause.at);
        let kept = json!({"rollingUpdate": {"partition": 2}});
        assert_eq!(at(set(kept.clone(), 1)).as_deref(), Some("1 of 3 pods updated (partition 2)"));
        assert_eq!(at(set(kept, 3)), None);
        assert_eq!(
            at(set(json!({"type": "OnDelete"}), 0)).as_deref(),
            Some("0 of 3 pods updated (OnDelete)")
        );
        assert_eq!(at(set(json!({}), 1)), None);
    }
}
