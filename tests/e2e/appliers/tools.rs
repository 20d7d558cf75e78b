//! Tools that deploy a ConfigMap and a workload, each in its own way.

use std::fs;
use std::path::PathBuf;

use confrev_controlplane::Output;
use serde_json::{Value, json};

use crate::helm::helm;
use crate::manifests::{Workload, list};
use crate::world::{World, name_of};

/// A tool, with the way in which it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    ClientSide,
    ServerSide,
    Replace,
    Kustomize,
    Helm,
}

impl Tool {
    /// Deploys these objects.
    pub(crate) fn deploy(self, world: &World, objects: &[Value]) -> Output {
        match self {
            Self::ClientSide => world.with_file(&["apply"], &list(objects)),
            Self::ServerSide => world.with_file(&["apply", "--server-side"], &list(objects)),
            Self::Replace => {
                let first = world.cluster.get("configmap", world.name(), &name_of(&objects[0])).is_none();
                world.with_file(&[if first { "create" } else { "replace" }], &list(objects))
            }
            Self::Kustomize => {
                let names: Vec<_> = (0..objects.len()).map(|i| format!("{i}.yaml")).collect();
                let mut files = vec![("kustomization.yaml", json!({"resources": names}).to_string())];
                files.extend(
                    names.iter().zip(objects).map(|(name, object)| (name.as_str(), object.to_string())),
                );
                kustomize(world, &files)
            }
            Self::Helm => {
                let texts: Vec<_> = objects.iter().map(Value::to_string).collect();
                upgrade(world, &texts.join("\n---\n"))
            }
        }
    }
}

/// The workload's manifest, with the fields that Argo Rollouts itself writes into a Rollout's template. Any other
/// difference comes from confrev.
pub(crate) fn complete(workload: &Workload) -> Value {
    let mut manifest = workload.manifest();
    let spec = &mut manifest["spec"]["template"]["spec"];
    spec["containers"][0]["resources"] = json!({});
    spec["volumes"][0]["configMap"]["defaultMode"] = json!(420);
    manifest
}

/// `kubectl apply -k` of a folder with these files.
pub(crate) fn kustomize(world: &World, files: &[(&str, String)]) -> Output {
    let folder = folder(world, "kustomize");
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("a file can be written");
    }
    world.kubectl(&["apply", "-k", &folder.display().to_string()])
}

/// `helm install` of a chart whose only template is this, and `helm upgrade` from then on.
pub(crate) fn upgrade(world: &World, template: &str) -> Output {
    let folder = folder(world, "chart");
    let chart = json!({"apiVersion": "v2", "name": "web", "version": "1.0.0"});
    fs::create_dir_all(folder.join("templates")).expect("a folder can be made");
    fs::write(folder.join("Chart.yaml"), chart.to_string()).expect("a file can be written");
    fs::write(folder.join("templates/all.yaml"), template).expect("a file can be written");
    let is_new = release(world, &["status", "web"]).refused_because("not found");
    release(world, &[if is_new { "install" } else { "upgrade" }, "web", &folder.display().to_string()])
}

/// Runs any helm command in this namespace.
pub(crate) fn release(world: &World, arguments: &[&str]) -> Output {
    helm(&[arguments, &["--namespace", world.name()]].concat(), Some(world.cluster.kubeconfig()))
}

/// A folder of the namespace, which is deleted with the control plane.
fn folder(world: &World, what: &str) -> PathBuf {
    let folder = world.cluster.state_dir().join(format!("{what}-{}", world.name()));
    fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

trait RefusedBecause {
    /// Whether the command failed with this reason. Any other failure is an error.
    fn refused_because(self, reason: &str) -> bool;
}

impl RefusedBecause for Output {
    fn refused_because(self, reason: &str) -> bool {
        let refused = !self.status.success();
        assert!(!refused || self.stderr.contains(reason), "{self}");
        refused
    }
}
