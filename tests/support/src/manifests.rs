//! The objects that the tests apply: the same workload as a Rollout and as a Deployment.

use confrev_core::{
    resolve::Observed,
    snapshot::{DIGITS, SourceKind, snapshot_name},
};
use serde_json::{Value, json};

/// The name of the snapshot of the ConfigMap `demo` with this data.
pub fn snapshot_of_demo(data: &Value) -> String {
    let object = json!({"metadata": {"name": "demo", "uid": "u", "resourceVersion": "1"}, "data": data});
    let observed =
        Observed::read(SourceKind::ConfigMap, object.to_string().into_bytes()).expect("a ConfigMap");
    snapshot_name("demo", &observed.digest(), DIGITS[0])
}

/// The kinds that each test covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An Argo Rollout.
    Rollout,
    /// A Deployment.
    Deployment,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Rollout, Self::Deployment];

    /// The resource, as kubectl names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Deployment => "deployment",
        }
    }

    /// The collection's path in the API.
    pub fn path(self, namespace: &str) -> String {
        match self {
            Self::Rollout => format!("/apis/argoproj.io/v1alpha1/namespaces/{namespace}/rollouts"),
            Self::Deployment => format!("/apis/apps/v1/namespaces/{namespace}/deployments"),
        }
    }
}

/// A workload that mounts each of its sources as a volume of the source's name. By default its own label opts it in. It
/// rolls at every change of its sources.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The kind.
    pub kind: Kind,
    /// The name of the object.
    pub name: String,
    manifest: Value,
}

impl Workload {
    /// An opted-in workload with one replica.
    pub fn new(kind: Kind, name: &str, sources: &[&str]) -> Self {
        let volumes: Vec<_> =
            sources.iter().map(|source| json!({"name": source, "configMap": {"name": source}})).collect();
        let mounts: Vec<_> =
            sources.iter().map(|source| json!({"name": source, "mountPath": format!("/{source}")})).collect();
        // The first source is also read as environment variables.
        let env: Vec<_> =
            sources.iter().take(1).map(|source| json!({"configMapRef": {"name": source}})).collect();
        let (version, kind_name) = match kind {
            Kind::Rollout => ("argoproj.io/v1alpha1", "Rollout"),
            Kind::Deployment => ("apps/v1", "Deployment"),
        };
        let mut manifest = json!({
            "apiVersion": version,
            "kind": kind_name,
            "metadata": {
                "name": name,
                "labels": {"confrev.dev/enabled": "true"},
                "annotations": {"confrev.dev/min-interval": "0"},
            },
            "spec": {
                "replicas": 1,
                "revisionHistoryLimit": 100,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {
                        "containers": [{
                            "name": "app", "image": "app:1", "envFrom": env, "volumeMounts": mounts,
                        }],
                        "volumes": volumes,
                    },
                },
            },
        });
        if kind == Kind::Rollout {
            manifest["spec"]["strategy"] = json!({"canary": {}});
        }
        Self { kind, name: name.to_owned(), manifest }
    }

    /// Sets the number of replicas.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.manifest["spec"]["replicas"] = json!(count);
        self
    }

    /// Sets the image of the container.
    #[must_use]
    pub fn image(mut self, image: &str) -> Self {
        self.manifest["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
        self
    }

    /// Adds an annotation of confrev's.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.manifest["metadata"]["annotations"][format!("confrev.dev/{key}")] = json!(value);
        self
    }

    /// Sets the workload's own label `enabled`, or removes it.
    #[must_use]
    pub fn enabled(mut self, value: Option<&str>) -> Self {
        self.manifest["metadata"]["labels"] =
            value.map_or(json!({}), |value| json!({"confrev.dev/enabled": value}));
        self
    }

    /// A roll replaces a quarter of the pods, then pauses until it is promoted: a Rollout by a step of its canary, a
    /// Deployment by pods that do not count as available yet.
    #[must_use]
    pub fn pausing(mut self) -> Self {
        let spec = &mut self.manifest["spec"];
        match self.kind {
            Kind::Rollout => {
                spec["strategy"] = json!({"canary": {
                    "maxSurge": 0, "maxUnavailable": 1, "steps": [{"setWeight": 25}, {"pause": {}}],
                }});
            }
            Kind::Deployment => {
                spec["strategy"] = json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
                spec["minReadySeconds"] = json!(3600);
                spec["progressDeadlineSeconds"] = json!(7200);
            }
        }
        self
    }

    /// The object as users apply it.
    pub fn manifest(&self) -> Value {
        self.manifest.clone()
    }

    /// The object, as kubectl names it.
    pub fn reference(&self) -> String {
        format!("{}/{}", self.kind.name(), self.name)
    }
}

/// A ConfigMap with one key.
pub fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}})
}

/// A Service for the pods whose label `app` has this value.
pub fn service(name: &str, app: &str) -> Value {
    let spec = json!({"selector": {"app": app}, "ports": [{"port": 80}]});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

/// Several objects as one file.
pub fn list(objects: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": objects})
}
