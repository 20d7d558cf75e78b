//! The kinds of workloads and sources: their paths, the paths of their revisions, and how a template names a source.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use confrev::resolve::Observed;
use confrev::snapshot::{DigestKey, KEY_BYTES, Keying, SourceKind, snapshot_name};
use serde_json::{Value, json};

/// The collections of the revisions of all kinds.
pub(crate) const REVISIONS: [&str; 2] = ["replicasets", "controllerrevisions"];
/// The kinds of sources.
pub(crate) const SOURCES: [SourceKind; 2] = [SourceKind::ConfigMap, SourceKind::Secret];

/// The key of the digests of Secrets. It exists before confrev starts.
const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

/// The Secret that holds the key.
pub(crate) fn key_secret() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": "confrev-digest-key", "namespace": "confrev"},
        "data": {"key": STANDARD.encode(KEY)},
    })
}

/// A kind of workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Deployment,
    Rollout,
    StatefulSet,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Deployment, Self::Rollout, Self::StatefulSet];

    /// The name of the kind for kubectl.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::Rollout => "rollout",
            Self::StatefulSet => "statefulset",
        }
    }

    fn version(self) -> &'static str {
        match self {
            Self::Rollout => "argoproj.io/v1alpha1",
            Self::Deployment | Self::StatefulSet => "apps/v1",
        }
    }

    /// The collection's path in the API.
    pub(crate) fn path(self, namespace: &str) -> String {
        format!("/apis/{}/namespaces/{namespace}/{}s", self.version(), self.name())
    }

    /// The collection of its revisions, one of [`REVISIONS`].
    pub(crate) fn revisions(self) -> &'static str {
        match self {
            Self::Deployment | Self::Rollout => REVISIONS[0],
            Self::StatefulSet => REVISIONS[1],
        }
    }
}

/// The template of a workload, of a ReplicaSet or of a ControllerRevision.
pub(crate) fn template(object: &Value) -> &Value {
    object.pointer("/data/spec/template").unwrap_or(&object["spec"]["template"])
}

/// A ConfigMap or a Secret with one key.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) namespace: String,
    pub(crate) kind: SourceKind,
    pub(crate) name: String,
}

impl Source {
    /// The data for a content.
    pub(crate) fn data(&self, text: &str) -> Value {
        match self.kind {
            SourceKind::ConfigMap => json!({"text": text}),
            SourceKind::Secret => json!({"text": STANDARD.encode(text)}),
        }
    }

    pub(crate) fn manifest(&self, text: &str) -> Value {
        let mut manifest = json!({
            "apiVersion": "v1", "kind": self.kind.as_str(), "metadata": {"name": self.name}, "data": self.data(text),
        });
        if self.kind == SourceKind::Secret {
            manifest["type"] = json!("Opaque");
        }
        manifest
    }

    /// The name of the snapshot of a content.
    pub(crate) fn snapshot(&self, text: &str) -> String {
        let keying = match self.kind {
            SourceKind::ConfigMap => Keying::default(),
            SourceKind::Secret => Keying::new(self.namespace.as_str(), [DigestKey::new(&KEY)].into()),
        };
        let object = Observed::read_keyed(self.kind, self.manifest(text).to_string().into_bytes(), keying);
        snapshot_name(&self.name, &object.unwrap().digest(), 10)
    }

    /// The snapshot in a template: the name must be equal in `sources`, in the volume and in the environment.
    pub(crate) fn named(&self, template: &Value) -> Result<String, String> {
        let entered = template["metadata"]["annotations"]["confrev.dev/sources"].as_str();
        let entered: Value =
            serde_json::from_str(entered.ok_or("the template is not resolved")?).unwrap_or_default();
        let entered = &entered[self.kind.plural()][&self.name];
        let volume = in_volume(template);
        let env = &template["spec"]["containers"][0]["envFrom"][0];
        let env = match self.kind {
            SourceKind::ConfigMap => &env["configMapRef"]["name"],
            SourceKind::Secret => &env["secretRef"]["name"],
        };
        match entered.as_str() {
            Some(name) if volume == Some(name) && env == name => Ok(name.to_owned()),
            _ => Err(format!("`sources` has {entered}, the volume {volume:?}, the environment {env}")),
        }
    }
}

/// The ConfigMap or Secret in a template's volume.
pub(crate) fn in_volume(template: &Value) -> Option<&str> {
    let volume = &template["spec"]["volumes"][0];
    volume["configMap"]["name"].as_str().or(volume["secret"]["secretName"].as_str())
}

/// A workload that mounts its one source and also uses it in its environment.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    source: Source,
    enabled: bool,
}

impl Workload {
    /// A workload that is opted in, with no minimum interval between rolls.
    pub(crate) fn new(kind: Kind, name: String, source: &Source) -> Self {
        Self { kind, name, source: source.clone(), enabled: true }
    }

    /// A workload that is not opted in.
    pub(crate) fn plain(kind: Kind, name: String, source: &Source) -> Self {
        Self { enabled: false, ..Self::new(kind, name, source) }
    }

    /// The manifest that users apply. It has no `replicas`: another field manager owns that field.
    pub(crate) fn manifest(&self, image: &str, history: usize) -> Value {
        let (name, source) = (&self.name, &self.source.name);
        let (volume, env) = match self.source.kind {
            SourceKind::ConfigMap => (json!({"name": source}), "configMap"),
            SourceKind::Secret => (json!({"secretName": source}), "secret"),
        };
        let mut manifest = json!({
            "apiVersion": self.kind.version(),
            "metadata": {"name": name},
            "spec": {
                "revisionHistoryLimit": history,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {
                        "containers": [{
                            "name": "app",
                            "image": image,
                            "envFrom": [{format!("{env}Ref"): {"name": source}}],
                            "volumeMounts": [{"name": "source", "mountPath": "/source"}],
                        }],
                        "volumes": [{"name": "source", env: volume}],
                    },
                },
            },
        });
        let (kind, more) = match self.kind {
            Kind::Deployment => ("Deployment", json!({})),
            Kind::Rollout => ("Rollout", json!({"strategy": {"canary": {}}})),
            // All pods start and stop at the same time.
            Kind::StatefulSet => {
                ("StatefulSet", json!({"serviceName": name, "podManagementPolicy": "Parallel"}))
            }
        };
        manifest["kind"] = json!(kind);
        manifest["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if self.enabled {
            manifest["metadata"]["labels"] = json!({"confrev.dev/enabled": "true"});
            let annotations = json!({"confrev.dev/min-interval": "0", "confrev.dev/secrets": "true"});
            manifest["metadata"]["annotations"] = annotations;
        }
        manifest
    }

    /// The name of the object for kubectl.
    pub(crate) fn reference(&self) -> String {
        format!("{}/{}", self.kind.name(), self.name)
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn name_of(object: &Value) -> String {
    text(&object["metadata"]["name"])
}
