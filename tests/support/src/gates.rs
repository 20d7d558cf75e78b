//! Pods with a scheduling gate. They start only when the test has checked the content that they read.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::world::{World, name_of};

/// Sets a flag, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives the pods of a workload a gate.
pub fn close_gates(manifest: &mut Value) {
    manifest["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "test/sound"}]);
}

/// What a pod reads of `demo`, for [`with_open_gates`]: no pod starts with the content B once the flag is set.
pub fn reads_until_broken(is_broken: &AtomicBool) -> impl Fn(&World, &Value) -> String + Sync {
    |world, pod| match world.pod_reads(pod, "demo") {
        text if text == "B" && is_broken.load(Ordering::Relaxed) => "bad".to_owned(),
        text => text,
    }
}

/// Runs a test. Meanwhile, the pods of these namespaces start, except those that read `bad`. `reads`: what a pod reads.
pub fn with_open_gates(
    worlds: &[World],
    reads: impl Fn(&World, &Value) -> String + Sync,
    test: impl FnOnce(),
) {
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stopped);
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                for world in worlds {
                    open_gates(world, &reads);
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        test();
    });
}

fn open_gates(world: &World, reads: impl Fn(&World, &Value) -> String) {
    for pod in world.cluster.list("pods", world.name(), "") {
        if pod["spec"]["schedulingGates"].is_null() || reads(world, &pod) == "bad" {
            continue;
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", world.name(), name_of(&pod));
        let change = json!({"spec": {"schedulingGates": null}});
        // The pod may be deleted meanwhile.
        let _ = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
    }
}
