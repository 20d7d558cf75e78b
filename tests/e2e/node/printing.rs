//! Workloads whose containers print the content that they find.

use std::time::Duration;

use confrev_controlplane::{Nodes, holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::shared::LIMIT;
use crate::world::{World, expect, name_of};

/// Prints a file and a variable, at the start and after each change. So the whole log is what the container ever found. A
/// container that is ended has not succeeded: a Job replaces its pod.
const SCRIPT: &str = r#"trap 'exit 143' TERM
last=
while true; do
  now="$(cat /demo/text 2>&1) $text"
  [ "$now" = "$last" ] || echo "$now"
  last=$now
  sleep 1 & wait $!
done"#;

/// How long a test checks that nothing changes: the kubelet syncs each pod several times in it.
pub(crate) const SECONDS: u64 = 6;

/// A workload that reads the source `demo` as a file and as a variable, and prints both.
pub(crate) fn printing(resource: &'static str, name: &str) -> Load {
    let mut load = Load::new(resource, name, &["demo"]);
    let template = load.manifest.pointer_mut(load.template).expect("the manifest has a template");
    let container = &mut template["spec"]["containers"][0];
    container["image"] = json!(Nodes::SHELL);
    container["command"] = json!(["/bin/sh", "-c", SCRIPT]);
    let reference = json!({"name": "demo", "key": "text"});
    container["env"] = json!([{"name": "text", "valueFrom": {"configMapKeyRef": reference}}]);
    template["spec"]["terminationGracePeriodSeconds"] = json!(1);
    // On both nodes, as long as there are two.
    template["spec"]["topologySpreadConstraints"] = json!([{
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": name}},
    }]);
    load
}

/// A canary that stops when one pod of four is replaced.
pub(crate) fn canary(name: &str) -> Load {
    let steps = json!([{"setWeight": 25}, {"pause": {}}]);
    printing("rollouts", name).spec(json!({"replicas": 4, "strategy": {"canary": {"steps": steps}}}))
}

/// A canary of two pods that stops when one of them is replaced.
pub(crate) fn canary_of_two(name: &str) -> Load {
    let steps = json!([{"setWeight": 50}, {"pause": {}}]);
    canary(name).spec(json!({"replicas": 2, "strategy": {"canary": {"steps": steps}}}))
}

/// Everything that a container of a pod has printed since it started.
pub(crate) fn log(world: &World, pod: &Value, container: &str) -> String {
    let path = format!("/api/v1/namespaces/{}/pods/{}/log?container={container}", world.name(), name_of(pod));
    match world.cluster.api().get(&path) {
        (200, Value::String(text)) => text,
        (200, other) => other.to_string(),
        (code, answer) => format!("no log: {code} {answer}"),
    }
}

/// What a pod has printed: the text, if the file and the variable had only this one. Otherwise the whole log.
pub(crate) fn printed(world: &World, pod: &Value) -> String {
    let log = log(world, pod, "app");
    let text = log.trim_end();
    match text.split_once(' ') {
        Some((file, variable)) if file == variable => file.to_owned(),
        _ => format!("{text:?}"),
    }
}

/// What the ready pods of a workload have printed, sorted.
pub(crate) fn all_printed(world: &World, load: &Load) -> Vec<String> {
    let mut texts: Vec<_> = load.pods(world).iter().map(|pod| printed(world, pod)).collect();
    texts.sort();
    texts
}

/// Waits until the ready pods have printed exactly these texts, one each.
#[track_caller]
pub(crate) fn wait_printed(world: &World, load: &Load, texts: &[&str]) {
    let what = format!("the pods of {} to print {texts:?}", load.reference());
    wait_for(&what, LIMIT, || expect(&all_printed(world, load), texts));
}

/// Checks for some seconds that the pods print nothing else.
#[track_caller]
pub(crate) fn keep_printed(world: &World, load: &Load, texts: &[&str]) {
    let what = format!("that the pods of {} print {texts:?}", load.reference());
    holds_for(&what, Duration::from_secs(SECONDS), || expect(&all_printed(world, load), texts));
}

/// A ready pod that has printed this text.
#[track_caller]
pub(crate) fn pod_that_printed(world: &World, load: &Load, text: &str) -> Value {
    let pods = load.pods(world);
    pods.into_iter()
        .find(|pod| printed(world, pod) == text)
        .unwrap_or_else(|| panic!("no pod printed {text}"))
}

/// Deletes a pod, and waits until it has ended.
#[track_caller]
pub(crate) fn delete_pod(world: &World, pod: &Value) {
    world.kubectl(&["delete", "pod", &name_of(pod)]).ok();
}

/// Deletes the source. Now only the revisions that use its snapshots keep them.
#[track_caller]
pub(crate) fn delete_source(world: &World, kind: &str) {
    world.kubectl(&["delete", kind, "demo"]).ok();
}

/// Kills a container of a pod. Waits until the kubelet has started it again, and it has printed something.
#[track_caller]
pub(crate) fn kill_container(world: &World, pod: &Value) {
    Nodes::shared().kill_container(pod, "app");
    wait_for("the killed container to start again", LIMIT, || {
        let pod = world.cluster.get("pod", world.name(), &name_of(pod)).ok_or("the pod is deleted")?;
        let status = &pod["status"]["containerStatuses"][0];
        let again = status["restartCount"].as_u64() > Some(0) && status["ready"] == true;
        if again && !log(world, &pod, "app").is_empty() { Ok(()) } else { Err(status.to_string()) }
    });
}
