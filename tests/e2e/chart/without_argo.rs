//! Waves with an analysis in a cluster without Argo Rollouts: nothing moves, and an Event says what is missing.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT, apply, reads, web};

const KINDS: [&str; 3] = ["analysisruns", "analysistemplates", "clusteranalysistemplates"];

/// The CRDs of Argo's analyses, which are deleted until this ends.
struct Deleted<'b> {
    bare: &'b Bare,
    crds: Vec<Value>,
}

impl<'b> Deleted<'b> {
    fn new(bare: &'b Bare) -> Self {
        let crds = KINDS.map(|kind| {
            let name = format!("{kind}.argoproj.io");
            let mut crd = bare.cluster.get("customresourcedefinition", "", &name).expect("the CRD exists");
            crd["metadata"] = json!({"name": name, "annotations": crd["metadata"]["annotations"]});
            crd.as_object_mut().expect("an object").remove("status");
            bare.cluster.kubectl(&["delete", "customresourcedefinition", &name]).run().ok();
            crd
        });
        Self { bare, crds: crds.into() }
    }

    /// Creates them again.
    fn restore(&mut self) {
        for crd in self.crds.drain(..) {
            // A panic in a drop would hide the failure of the test.
            let _ = self.bare.cluster.kubectl(&["create", "--filename", "-"]).stdin(crd).run();
        }
    }
}

impl Drop for Deleted<'_> {
    fn drop(&mut self) {
        self.restore();
    }
}

#[test]
fn waves_without_argo_report_missing_analyses() {
    let bare = Bare::new();
    let mut argo = Deleted::new(&bare);
    let namespace = bare.cluster.namespace("without-argo");
    let (mut confrev, _) = bare.running_with(&[("analysis.enabled", json!(true))], &[]);
    apply(&bare, namespace.name(), &web("app:1", "A")).ok();
    let first = reads(&bare, namespace.name());
    let annotate = || {
        let settings = ["confrev.dev/waves=1", "confrev.dev/analysis=sound"];
        let object = ["annotate", "configmap/demo", "--namespace", namespace.name()];
        bare.cluster.kubectl(&[&object[..], &settings[..]].concat()).run()
    };
    let refused = annotate().refused();
    assert!(refused.contains("AnalysisTemplate \"sound\" does not exist"), "{refused}");
    // No webhook sees the setting.
    confrev.kill();
    annotate().ok();
    let path = format!("/api/v1/namespaces/{}/configmaps/demo", namespace.name());
    let change = json!({"data": {"text": "B"}});
    let (code, answer) = bare.cluster.api().patch(&path, "application/merge-patch+json", &change);
    assert_eq!(code, 200, "{answer}");
    confrev.start();
    let says = "the API server has no AnalysisRuns: is Argo Rollouts installed?";
    wait_for("the Event", LIMIT, || {
        let events = bare.cluster.list("events", namespace.name(), "");
        let is_it = |event: &&Value| {
            event["reason"] == "AnalysisHeld"
                && event["message"]
                    .as_str()
                    .is_some_and(|note| note.starts_with("no wave begins") && note.contains(says))
        };
        events.iter().find(is_it).map(drop).ok_or_else(|| format!("{events:?}"))
    });
    let is_on_first = || {
        let now = reads(&bare, namespace.name());
        if now == first { Ok(()) } else { Err(now) }
    };
    holds_for("the previous content", Duration::from_secs(3), is_on_first);

    // Argo Rollouts is installed. The run of the only wave needs no result: nothing follows it.
    argo.restore();
    let metric =
        json!({"name": "sound", "provider": {"web": {"url": "http://127.0.0.1:1", "jsonPath": "{$}"}}});
    let template = json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "AnalysisTemplate",
        "metadata": {"name": "sound"}, "spec": {"metrics": [metric]},
    });
    wait_for("the template to be created", LIMIT, || {
        let applied = apply(&bare, namespace.name(), &template);
        if applied.status.success() { Ok(()) } else { Err(applied.stderr) }
    });
    wait_for("the new content", LIMIT, || is_on_first().err().ok_or("the previous content"));
    confrev.stop();
    bare.uninstall().ok();
}
