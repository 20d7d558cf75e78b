//! What the commands answer about the workloads and sources of a namespace, at a given time. For tests, which compare the answers
//! with the acts of the controller.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    failure::Failure,
    impact,
    inventory::Inventory,
    objects::{LiveSource, OptedIn, Scope},
    source_state, status,
    strategies::InstalledStrategies,
    target::Target,
    wait::{self, WaitState},
    waves,
};
use crate::{
    cluster::KubeApi,
    kinds::Kinds,
    snapshot::{ObjectName, Rotated},
    telemetry::Metrics,
};

/// How long `wait` would wait.
const PATIENCE: Duration = Duration::from_mins(5);

/// What `status`, `wait`, `impact` and `waves` answer about a namespace of the cluster behind `client`: `workloads` has one entry for
/// each workload and source, and `waves` one for each source with waves.
///
/// # Errors
/// The message of the command that failed.
pub async fn answers(
    client: kube::Client,
    kinds: Arc<Kinds>,
    namespace: &str,
    now: Timestamp,
) -> Result<Value, String> {
    let target = Target {
        api: KubeApi::new(client, Arc::clone(&kinds), Metrics::new()),
        kinds,
        rotated: Rotated::default(),
        namespace: namespace.to_owned(),
        home: "confrev".to_owned(),
        strategies: InstalledStrategies::of("confrev"),
        url: String::new(),
        now: Some(now),
    };
    of_namespace(&target).await.map_err(|failure| failure.to_string())
}

async fn of_namespace(target: &Target) -> Result<Value, Failure> {
    let inventory = Inventory::read_partly(target, &Scope::Namespace(target.namespace.clone())).await?;
    let mut workloads = Vec::new();
    for workload in &inventory.workloads {
        let sources = source_state::of_workload(target, &inventory, workload).await?;
        let objects: Vec<_> = sources.iter().map(|used| used.object.clone()).collect();
        let status = json_of(&status::status(&inventory, workload, sources, false));
        for (object, used) in objects.iter().zip(status["sources"].as_array().into_iter().flatten()) {
            workloads.push(json!({
                "workload": workload.reference(),
                "rollout": status["rollout"],
                "status": used,
                "wait": wait(target, &inventory, workload, object).await?,
                "impact": impact(target, &inventory, workload, object).await?,
            }));
        }
    }
    let mut of_waves = Map::new();
    for (_, source) in inventory.sources.keys() {
        // An error: the source has no waves, or settings that cannot be followed.
        if let Ok(status) = waves::status(target, source).await {
            of_waves.insert(format!("{}/{}", source.kind.as_str(), source.name), json_of(&status));
        }
    }
    Ok(json!({"workloads": workloads, "waves": of_waves}))
}

fn json_of(answer: &impl Serialize) -> Value {
    serde_json::to_value(answer).unwrap_or_default()
}

/// The answer of `wait` about one workload and source.
async fn wait(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
) -> Result<String, Failure> {
    let how = (Instant::now() + PATIENCE, false);
    Ok(match wait::of_workload(target, inventory, workload, Some(source), how).await? {
        WaitState::Done(..) => "done".to_owned(),
        WaitState::Waits(reason) => format!("waits: {reason}"),
        WaitState::Unanswered(reason) => format!("unanswered: {reason}"),
        WaitState::Stuck(reason) => format!("stuck: {reason}"),
    })
}

/// The answer of `impact` about one workload, if the source were applied as it is; nothing if the source does not exist.
async fn impact(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
) -> Result<Value, Failure> {
    let Some(LiveSource::Present(present)) = inventory.sources.get(&workload.key(source)) else {
        return Ok(Value::Null);
    };
    let change = (source.clone(), target.namespace.clone(), Some((**present).clone()));
    let effects = impact::effects(target, &[change]).await?;
    let its = effects.iter().find(|effect| effect.workload == workload.reference());
    Ok(its.map_or(
        Value::Null,
        |effect| json!({"rolls": effect.word(), "why": effect.why, "delay": effect.delay, "gate": effect.gate}),
    ))
}
