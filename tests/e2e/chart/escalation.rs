//! Escalations with confrev's own token: RBAC lets each of them pass, and the policy `confrev-self` refuses it. confrev
//! does not run: the API server alone decides. The writes that confrev needs pass.

use std::time::Instant;

use confrev_controlplane::{Api, Namespace, wait_for};
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT};
use crate::helm::Setting;

const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json-patch+json";
/// An excluded namespace.
const EXCLUDED: &str = "escalation-excluded";

/// A kind of workload, with the places of its objects and of their pod templates.
struct Workload {
    api: &'static str,
    plural: &'static str,
    version: &'static str,
    kind: &'static str,
    /// The JSON pointer of the pod template.
    template: &'static str,
}

/// All kinds but Jobs, whose templates cannot change. The last kind has its template at another path, by `extraKinds`.
const KINDS: [Workload; 6] = [
    kind("/apis/apps/v1", "deployments", "apps/v1", "Deployment", "/spec/template"),
    kind("/apis/apps/v1", "statefulsets", "apps/v1", "StatefulSet", "/spec/template"),
    kind("/apis/apps/v1", "daemonsets", "apps/v1", "DaemonSet", "/spec/template"),
    kind("/apis/batch/v1", "cronjobs", "batch/v1", "CronJob", "/spec/jobTemplate/spec/template"),
    kind("/apis/argoproj.io/v1alpha1", "rollouts", "argoproj.io/v1alpha1", "Rollout", "/spec/template"),
    kind("/api/v1", "podtemplates", "v1", "PodTemplate", "/template"),
];

const fn kind(
    api: &'static str,
    plural: &'static str,
    version: &'static str,
    kind: &'static str,
    template: &'static str,
) -> Workload {
    Workload { api, plural, version, kind, template }
}

impl Workload {
    fn path(&self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/{}", self.api, self.plural)
    }

    /// A workload with every form of reference, to sources called `demo` and `keys`.
    fn workload(&self, name: &str, labels: &Value) -> Value {
        let app = json!({"app": name});
        let key = |field: &str, name: &str| json!({field: {"name": name, "key": "text"}});
        let mut pods = json!({"metadata": {"labels": app}, "spec": {
            "containers": [
                {
                    "name": "app", "image": "app:1",
                    "env": [
                        {"name": "LITERAL", "value": "1"},
                        {"name": "TEXT", "valueFrom": key("configMapKeyRef", "demo")},
                        {"name": "KEY", "valueFrom": key("secretKeyRef", "keys")},
                        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    ],
                    "envFrom": [{"configMapRef": {"name": "demo"}}, {"prefix": "K_", "secretRef": {"name": "keys"}}],
                    "volumeMounts": [{"name": "config", "mountPath": "/config"}],
                },
                {"name": "sidecar", "image": "sidecar:1"},
            ],
            "initContainers": [{"name": "init", "image": "init:1", "envFrom": [{"configMapRef": {"name": "demo"}}]}],
            "volumes": [
                {"name": "config", "configMap": {"name": "demo", "items": [{"key": "text", "path": "text"}]}},
                {"name": "keys", "secret": {"secretName": "keys"}},
                {"name": "both", "projected": {"sources": [
                    {"configMap": {"name": "demo"}},
                    {"secret": {"name": "keys"}},
                    {"serviceAccountToken": {"path": "token"}},
                ]}},
                {"name": "scratch", "emptyDir": {}},
            ],
        }});
        if self.kind == "CronJob" {
            pods["spec"]["restartPolicy"] = json!("Never");
        }
        let metadata = json!({"name": name, "labels": labels, "annotations": {"team": "shop"}});
        let (version, kind) = (self.version, self.kind);
        if kind == "PodTemplate" {
            return json!({"apiVersion": version, "kind": kind, "metadata": metadata, "template": pods});
        }
        let spec = match kind {
            "CronJob" => json!({"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": {
                "metadata": {"labels": {"app": name}}, "spec": {"template": pods},
            }}),
            "DaemonSet" => json!({"selector": {"matchLabels": app}, "template": pods}),
            _ => json!({"replicas": 0, "selector": {"matchLabels": app}, "template": pods}),
        };
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
    }

    /// Escalations through the pod template, as operations relative to it.
    fn escalations(&self) -> Vec<(&'static str, Value)> {
        let set = |path: &str, value: Value| json!({"op": "add", "path": format!("{}{path}", self.template), "value": value});
        let drop = |path: &str| json!({"op": "remove", "path": format!("{}{path}", self.template)});
        let app = "/spec/containers/0";
        let at = |path: &str| format!("{app}{path}");
        let secret = json!({"secretKeyRef": {"name": "demo", "key": "text"}});
        let host = json!({"name": "config", "hostPath": {"path": "/"}});
        let mount =
            json!({"name": "confrev-mount", "projected": {"sources": [{"configMap": {"name": "other"}}]}});
        vec![
            ("an image", json!([set(&at("/image"), json!("evil:1"))])),
            ("a command", json!([set(&at("/command"), json!(["sh"]))])),
            ("arguments", json!([set(&at("/args"), json!(["-c", "evil"]))])),
            ("a literal variable", json!([set(&at("/env/0/value"), json!("2"))])),
            ("one more variable", json!([set(&at("/env/-"), json!({"name": "MORE", "value": "1"}))])),
            ("the name of a variable", json!([set(&at("/env/1/name"), json!("PATH"))])),
            (
                "another ConfigMap in a variable",
                json!([set(&at("/env/1/valueFrom/configMapKeyRef/name"), json!("other"))]),
            ),
            ("another key", json!([set(&at("/env/1/valueFrom/configMapKeyRef/key"), json!("other"))])),
            (
                "another Secret in a variable",
                json!([set(&at("/env/2/valueFrom/secretKeyRef/name"), json!("other"))]),
            ),
            ("a Secret in place of a ConfigMap", json!([set(&at("/env/1/valueFrom"), secret)])),
            ("an optional reference", json!([set(&at("/envFrom/0/configMapRef/optional"), json!(true))])),
            (
                "another ConfigMap in envFrom",
                json!([set(&at("/envFrom/0/configMapRef/name"), json!("other"))]),
            ),
            ("another prefix", json!([set(&at("/envFrom/1/prefix"), json!("PATH_"))])),
            ("one reference less", json!([drop(&at("/envFrom/0"))])),
            ("a mount", json!([set(&at("/volumeMounts/-"), json!({"name": "keys", "mountPath": "/keys"}))])),
            ("a mount's path", json!([set(&at("/volumeMounts/0/mountPath"), json!("/bin"))])),
            ("confrev's mount without the annotation", json!([set("/spec/volumes/-", mount.clone()),])),
            ("a privileged container", json!([set(&at("/securityContext"), json!({"privileged": true}))])),
            (
                "a lifecycle hook",
                json!([set(&at("/lifecycle"), json!({"postStart": {"exec": {"command": ["evil"]}}}))]),
            ),
            (
                "one more container",
                json!([set("/spec/containers/-", json!({"name": "evil", "image": "evil:1"}))]),
            ),
            ("one container less", json!([drop("/spec/containers/1")])),
            (
                "an init container",
                json!([set("/spec/initContainers/-", json!({"name": "evil", "image": "evil:1"}))]),
            ),
            ("the image of an init container", json!([set("/spec/initContainers/0/image", json!("evil:1"))])),
            ("a ServiceAccount", json!([set("/spec/serviceAccountName", json!("admin"))])),
            ("a security context", json!([set("/spec/securityContext", json!({"runAsUser": 0}))])),
            ("the host's network", json!([set("/spec/hostNetwork", json!(true))])),
            (
                "a host path",
                json!([set("/spec/volumes/-", json!({"name": "evil", "hostPath": {"path": "/"}}))]),
            ),
            ("another type of volume", json!([drop("/spec/volumes/0"), set("/spec/volumes/0", host)])),
            ("another ConfigMap as a volume", json!([set("/spec/volumes/0/configMap/name", json!("other"))])),
            (
                "another file of a volume",
                json!([set("/spec/volumes/0/configMap/items/0/path", json!("other"))]),
            ),
            ("another Secret as a volume", json!([set("/spec/volumes/1/secret/secretName", json!("other"))])),
            (
                "another projected ConfigMap",
                json!([set("/spec/volumes/2/projected/sources/0/configMap/name", json!("other"))]),
            ),
            (
                "another audience of a token",
                json!([set(
                    "/spec/volumes/2/projected/sources/2/serviceAccountToken/audience",
                    json!("evil")
                ),]),
            ),
            ("a foreign label of the template", json!([set("/metadata/labels/team", json!("evil"))])),
            (
                "a foreign annotation of the template",
                json!([set("/metadata/annotations", json!({"inject": "evil"}))]),
            ),
        ]
    }

    /// What admission writes when every source resolves to a snapshot with this suffix; an empty one restores the names.
    fn resolved(&self, suffix: &str) -> Value {
        let to = |path: &str, name: &str| json!({"op": "replace", "path": format!("{}{path}", self.template), "value": format!("{name}{suffix}")});
        let add = |path: String, value: Value| json!({"op": "add", "path": path, "value": value});
        let app = "/spec/containers/0";
        let annotations = if suffix.is_empty() {
            json!({})
        } else {
            json!({"confrev.dev/sources": sources(&[("demo", &format!("demo{suffix}"))], &[("keys", &format!("keys{suffix}"))])})
        };
        json!([
            add("/metadata/labels/confrev.dev~1enabled".to_owned(), json!("true")),
            add("/metadata/annotations/confrev.dev~1roll".to_owned(), json!("auto-1")),
            add("/metadata/annotations/confrev.dev~1state".to_owned(), json!("{}")),
            add("/metadata/annotations/confrev.dev~1enabled-by".to_owned(), json!("namespace")),
            add(format!("{}/metadata/annotations", self.template), annotations),
            add(format!("{}/metadata/labels/confrev.dev~1revision", self.template), json!("0123456789")),
            to(&format!("{app}/env/1/valueFrom/configMapKeyRef/name"), "demo"),
            to(&format!("{app}/env/2/valueFrom/secretKeyRef/name"), "keys"),
            to(&format!("{app}/envFrom/0/configMapRef/name"), "demo"),
            to(&format!("{app}/envFrom/1/secretRef/name"), "keys"),
            to("/spec/initContainers/0/envFrom/0/configMapRef/name", "demo"),
            to("/spec/volumes/0/configMap/name", "demo"),
            to("/spec/volumes/1/secret/secretName", "keys"),
            to("/spec/volumes/2/projected/sources/0/configMap/name", "demo"),
            to("/spec/volumes/2/projected/sources/1/secret/name", "keys"),
        ])
    }
}

/// The installation with everything on, a namespace that is not opted in, and confrev's token.
struct Trial {
    bare: Bare,
    namespace: Namespace<'static>,
    confrev: Api,
}

impl Trial {
    fn new() -> Self {
        Self::with(&[])
    }

    /// With more settings of the chart.
    fn with(settings: &[Setting<'static>]) -> Self {
        let bare = Bare::new();
        let templates = json!([{"group": "", "version": "v1", "resource": "podtemplates", "kind": "PodTemplate", "path": "template"}]);
        let everything = [
            ("secrets.enabled", json!(true)),
            ("replicas", json!(0)),
            // confrev does not answer, and users write here.
            ("outage", json!("admit")),
            ("excludedNamespaces", json!([EXCLUDED])),
            ("extraKinds", templates),
        ];
        bare.install(&[&everything[..], settings].concat());
        let cluster = bare.cluster;
        let namespace = cluster.namespace("escalation");
        let confrev = cluster.api_as(&cluster.kubeconfig_for_service_account("confrev", "confrev"));
        let trial = Self { bare, namespace, confrev };
        wait_for("the policy to take effect", LIMIT, || {
            let (code, answer) = trial.confrev.post(&trial.dry("configmaps", ""), &source("plain"));
            if is_refused(code, &answer) { Ok(()) } else { Err(answer) }
        });
        trial
    }

    /// Creates an object as an administrator.
    fn create(&self, path: &str, object: &Value) -> Value {
        created(self.bare.cluster.api(), path, object)
    }

    fn path(&self, plural: &str) -> String {
        format!("/api/v1/namespaces/{}/{plural}", self.namespace.name())
    }

    fn dry(&self, plural: &str, name: &str) -> String {
        let path = self.path(plural);
        if name.is_empty() { format!("{path}?dryRun=All") } else { format!("{path}/{name}?dryRun=All") }
    }

    fn done(self) {
        self.bare.uninstall().ok();
    }
}

fn created(api: &Api, path: &str, object: &Value) -> Value {
    let (code, answer) = api.post(path, object);
    assert_eq!(code, 201, "{path}: {answer}");
    answer
}

fn refused(what: &str, subject: &str, (code, answer): (u16, Value)) {
    let message = answer["message"].as_str().unwrap_or_default();
    assert!(is_refused(code, &answer), "{what} on {subject}: {code} {answer}");
    let named = format!("{subject}: ");
    assert!(message.contains(&named), "{what}: the message does not name {named:?}: {message}");
}

/// Sends a request, and repeats it if a busy API server times out.
fn answered(ask: impl Fn() -> (u16, Value)) -> (u16, Value) {
    wait_for("the API server to answer in time", LIMIT, || {
        let answer = ask();
        if answer.0 == 504 { Err(answer.1.to_string()) } else { Ok(answer) }
    })
}

fn allowed(what: &str, (code, answer): (u16, Value)) {
    assert!((200..300).contains(&code), "{what}: {code} {answer}");
}

fn is_refused(code: u16, answer: &Value) -> bool {
    let message = answer["message"].as_str().unwrap_or_default();
    let policies = ["confrev-self", "confrev-runs"];
    code == 403
        && policies.iter().any(|name| message.contains(&format!("ValidatingAdmissionPolicy '{name}'")))
}

fn source(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"text": "dHJ1ZQ=="}})
}

/// A snapshot with confrev's labels, and with content that is valid for both kinds.
pub(crate) fn snapshot(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "confrev", "confrev.dev/source": "demo"},
            "annotations": {"confrev.dev/source-name": "demo", "confrev.dev/digest": "sha256:4a"},
        },
        "immutable": true,
        "data": {"text": "dHJ1ZQ=="},
    })
}

/// A reference to a stored owner. Otherwise the garbage collector would delete the owned object.
fn owner(object: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "name": object["metadata"]["name"], "uid": object["metadata"]["uid"]})
}

#[test]
fn workload_templates_change_only_as_admission_would() {
    let trial = Trial::new();
    let labels = json!({"confrev.dev/enabled": "true", "team": "shop"});
    for kind in &KINDS {
        let path = kind.path(trial.namespace.name());
        trial.create(&path, &kind.workload("web", &labels));
        let subject = format!("{} {}/web", kind.kind, trial.namespace.name());
        let one = format!("{path}/web?dryRun=All");
        for (what, operations) in kind.escalations() {
            refused(what, &subject, trial.confrev.patch(&one, JSON, &operations));
        }
        // To snapshots, to other snapshots, and back to the sources.
        let stored = format!("{path}/web");
        for suffix in ["-0123456789", "-0011223344556677", ""] {
            let what = format!("{}: resolved to {suffix:?}", kind.kind);
            allowed(&what, trial.confrev.patch(&stored, JSON, &kind.resolved(suffix)));
        }
    }
    trial.done();
}

#[test]
fn workload_metadata_and_other_fields_stay() {
    let trial = Trial::new();
    let labels = json!({"confrev.dev/enabled": "true", "team": "shop"});
    let account = trial.create(&trial.path("serviceaccounts"), &json!({"metadata": {"name": "owner"}}));
    for kind in &KINDS {
        let path = kind.path(trial.namespace.name());
        trial.create(&path, &kind.workload("web", &labels));
        let subject = format!("{} {}/web", kind.kind, trial.namespace.name());
        let one = format!("{path}/web?dryRun=All");
        let metadata = |change: Value| json!({"metadata": change});
        let mut changes = vec![
            ("a foreign label", metadata(json!({"labels": {"team": "evil"}}))),
            ("one label less", metadata(json!({"labels": {"team": null}}))),
            ("a foreign annotation", metadata(json!({"annotations": {"team": null}}))),
            ("the value of opting out", metadata(json!({"labels": {"confrev.dev/enabled": "false"}}))),
            ("a setting of the user", metadata(json!({"annotations": {"confrev.dev/secrets": "true"}}))),
            ("the mark of an outage", metadata(json!({"labels": {"confrev.dev/carried": "true"}}))),
            ("the list of the mark", metadata(json!({"annotations": {"confrev.dev/carried": ""}}))),
            ("the setting of a mount", metadata(json!({"annotations": {"confrev.dev/mount": "other"}}))),
            ("a finalizer", metadata(json!({"finalizers": ["example.com/mine"]}))),
            ("an owner", metadata(json!({"ownerReferences": [owner(&account)]}))),
        ];
        changes.extend(match kind.kind {
            "CronJob" => vec![
                ("a schedule", json!({"spec": {"schedule": "* * * * *"}})),
                ("a suspended CronJob", json!({"spec": {"suspend": false}})),
                ("a backoff", json!({"spec": {"jobTemplate": {"spec": {"backoffLimit": 1}}}})),
                (
                    "a label of Jobs",
                    json!({"spec": {"jobTemplate": {"metadata": {"labels": {"app": "evil"}}}}}),
                ),
            ],
            "PodTemplate" => Vec::new(),
            "DaemonSet" => vec![("a strategy", json!({"spec": {"updateStrategy": {"type": "OnDelete"}}}))],
            _ => vec![("replicas", json!({"spec": {"replicas": 9}}))],
        });
        for (what, change) in changes {
            refused(what, &subject, trial.confrev.patch(&one, MERGE, &change));
        }
        // The same change by server-side apply.
        let applied =
            json!({"apiVersion": kind.version, "kind": kind.kind, "metadata": {"labels": {"team": "evil"}}});
        let forced = format!("{one}&fieldManager=confrev&force=true");
        let answer = trial.confrev.patch(&forced, "application/apply-patch+yaml", &applied);
        refused("an apply", &subject, answer);
        if kind.kind == "CronJob" {
            let revision = json!({"spec": {"jobTemplate": {"metadata": {"labels": {"confrev.dev/revision": "0123456789"}}}}});
            allowed("the revision of Jobs", trial.confrev.patch(&one, MERGE, &revision));
        }
        let released = json!({"metadata": {"labels": {"confrev.dev/enabled": null}}});
        allowed("the label that came from a namespace", trial.confrev.patch(&one, MERGE, &released));
    }
    trial.done();
}

#[test]
fn workloads_not_opted_in_cannot_change() {
    let trial = Trial::new();
    let cluster = trial.bare.cluster;
    let roll = json!({"metadata": {"annotations": {"confrev.dev/roll": "auto-1"}}});
    let opt_in = json!({"metadata": {"labels": {"confrev.dev/enabled": "true"}}});
    let opted = cluster.namespace_labelled("escalation", &[("confrev.dev/enabled", "true")]);
    cluster.kubectl(&["create", "namespace", EXCLUDED]).run().ok();
    cluster.kubectl(&["label", "namespace", EXCLUDED, "confrev.dev/enabled=true"]).run().ok();
    for kind in &KINDS {
        let tried = |namespace: &str, name: &str| {
            let subject = format!("{} {namespace}/{name}", kind.kind);
            let one = format!("{}/{name}?dryRun=All", kind.path(namespace));
            (subject, one)
        };
        // No label, and a label that opts out, each in both namespaces; and an opted-in workload in an excluded namespace.
        for (namespace, name, labels, passes) in [
            (trial.namespace.name(), "none", json!({}), false),
            (trial.namespace.name(), "out", json!({"confrev.dev/enabled": "false"}), false),
            (opted.name(), "none", json!({}), true),
            (opted.name(), "out", json!({"confrev.dev/enabled": "false"}), false),
            (EXCLUDED, "in", json!({"confrev.dev/enabled": "true"}), false),
        ] {
            trial.create(&kind.path(namespace), &kind.workload(name, &labels));
            let (subject, one) = tried(namespace, name);
            for (what, change) in [("a roll", &roll), ("an opt-in", &opt_in)] {
                let answer = trial.confrev.patch(&one, MERGE, change);
                if passes {
                    // The API server learns of a namespace's label a moment after it is stored.
                    wait_for("the namespace's label to take effect", LIMIT, || {
                        let (code, answer) = trial.confrev.patch(&one, MERGE, change);
                        if code == 200 { Ok(()) } else { Err(answer) }
                    });
                } else {
                    refused(what, &subject, answer);
                }
            }
        }
    }
    // Its own Deployment, too.
    let own = "/apis/apps/v1/namespaces/confrev/deployments/confrev?dryRun=All";
    refused("a roll", "Deployment confrev/confrev", trial.confrev.patch(own, MERGE, &roll));
    cluster.kubectl(&["delete", "namespace", EXCLUDED, "--wait=false"]).run().ok();
    trial.done();
}

#[test]
fn only_snapshots_and_bound_objects_are_created() {
    let trial = Trial::new();
    let account = trial.create(&trial.path("serviceaccounts"), &json!({"metadata": {"name": "owner"}}));
    let changed = |pointer: &str, value: Value| {
        let mut object = snapshot("demo-0123456789");
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match value {
            Value::Null => drop(parent.remove(&field.replace("~1", "/"))),
            value => drop(parent.insert(field.replace("~1", "/"), value)),
        }
        object
    };
    let bound = |owners: Value| {
        json!({"metadata": {"name": "demo-1", "labels": {"confrev.dev/enabled": "bind"}, "ownerReferences": owners},
            "data": {"text": "dHJ1ZQ=="}})
    };
    let mut controlled = owner(&account);
    controlled["controller"] = json!(true);
    for (plural, kind) in [("configmaps", "ConfigMap"), ("secrets", "Secret")] {
        let collection = trial.dry(plural, "");
        let mut wrong = vec![
            ("a plain object", source("plain")),
            ("a snapshot without its label", changed("/metadata/labels/confrev.dev~1source", Value::Null)),
            (
                "a snapshot of another manager",
                changed("/metadata/labels/app.kubernetes.io~1managed-by", json!("Helm")),
            ),
            (
                "a snapshot without a digest",
                changed("/metadata/annotations/confrev.dev~1digest", Value::Null),
            ),
            ("a snapshot under the name of a source", changed("/metadata/name", json!("demo"))),
            ("a snapshot under another name", changed("/metadata/name", json!("other-0123456789"))),
            ("a number of digits that no snapshot has", changed("/metadata/name", json!("demo-01234567890"))),
            ("two suffixes", changed("/metadata/name", json!("demo-0123456789-aabbccddee"))),
            ("the label of another source", changed("/metadata/labels/confrev.dev~1source", json!("other"))),
            ("a foreign label", changed("/metadata/labels/team", json!("evil"))),
            ("a foreign annotation", changed("/metadata/annotations/team", json!("evil"))),
            ("a snapshot with a controller", changed("/metadata/ownerReferences", json!([controlled]))),
            ("a snapshot with a finalizer", changed("/metadata/finalizers", json!(["example.com/mine"]))),
            ("a bound object without an owner", bound(json!([]))),
        ];
        if kind == "Secret" {
            let mut token = changed("/type", json!("kubernetes.io/service-account-token"));
            token["metadata"]["annotations"]["kubernetes.io/service-account.name"] = json!("owner");
            wrong.push(("a token of a ServiceAccount", token));
        }
        for (what, object) in wrong {
            let name = object["metadata"]["name"].as_str().unwrap();
            let subject = format!("{kind} {}/{name}", trial.namespace.name());
            refused(what, &subject, trial.confrev.post(&collection, &object));
        }
        allowed("a snapshot", trial.confrev.post(&collection, &snapshot("demo-0123456789")));
        let mut of_snapshot_like = snapshot("demo-0123456789-aabbccddee");
        of_snapshot_like["metadata"]["annotations"]["confrev.dev/source-name"] = json!("demo-0123456789");
        of_snapshot_like["metadata"]["labels"]["confrev.dev/source"] = json!("demo-0123456789");
        allowed("a snapshot of a source with a hash", trial.confrev.post(&collection, &of_snapshot_like));
        long_names(&trial, plural, kind);
        let mut copied = snapshot("demo-aaaaaaaaaa");
        copied["metadata"]["labels"]["velero.io/exclude-from-backup"] = json!("true");
        allowed("a copied label", trial.confrev.post(&collection, &copied));
        allowed("a bound object", trial.confrev.post(&collection, &bound(json!([owner(&account)]))));
        for namespace in ["kube-system", "confrev"] {
            let path = format!("/api/v1/namespaces/{namespace}/{plural}?dryRun=All");
            let subject = format!("{kind} {namespace}/demo-0123456789");
            refused("a snapshot", &subject, trial.confrev.post(&path, &snapshot("demo-0123456789")));
        }
    }
    let own = "/api/v1/namespaces/confrev/secrets?dryRun=All";
    for name in ["confrev-ca", "confrev-digest-key"] {
        allowed(name, trial.confrev.post(own, &source(name)));
        let mut token = source(name);
        token["type"] = json!("kubernetes.io/service-account-token");
        token["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": "confrev"});
        refused("a token of its own", &format!("Secret confrev/{name}"), trial.confrev.post(own, &token));
    }
    refused("another Secret", "Secret confrev/other", trial.confrev.post(own, &source("other")));
    trial.done();
}

/// The name of a source with a long name is cut in the names of its snapshots, with the dots at its end.
fn long_names(trial: &Trial, plural: &str, kind: &str) {
    let snapshot_of = |source: &str, name: &str| {
        let mut object = snapshot(name);
        object["metadata"]["annotations"]["confrev.dev/source-name"] = json!(source);
        object["metadata"]["labels"]["confrev.dev/source"] = json!(format!("{}-0123456789", &source[..52]));
        object
    };
    let collection = trial.dry(plural, "");
    let [long, dotted] = ["a".repeat(250), format!("{}.{}", "a".repeat(241), "b".repeat(8))];
    for (source, name) in [
        (&long, format!("{}-0123456789", "a".repeat(242))),
        (&long, format!("{}-{}", "a".repeat(188), "0".repeat(64))),
        (&dotted, format!("{}-0123456789", "a".repeat(241))),
    ] {
        allowed("a long name", trial.confrev.post(&collection, &snapshot_of(source, &name)));
    }
    let subject = |name: &str| format!("{kind} {}/{name}", trial.namespace.name());
    for name in [
        format!("{}-0123456789", "a".repeat(200)),
        format!("{}{}-0123456789", "a".repeat(180), "b".repeat(62)),
    ] {
        refused(
            "a name that begins alike",
            &subject(&name),
            trial.confrev.post(&collection, &snapshot_of(&long, &name)),
        );
    }
}

/// With an owner that does not exist, the garbage collector would delete the key or the CA.
#[test]
fn own_secrets_get_no_owners_or_finalizers() {
    let trial = Trial::new();
    let own = "/api/v1/namespaces/confrev/secrets";
    let with = |name: &str, field: &str, value: &Value| {
        let mut object = source(name);
        object["metadata"][field] = value.clone();
        object
    };
    let absent = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "5d1a"}]);
    let fields = [("ownerReferences", absent), ("finalizers", json!(["example.com/mine"]))];
    for name in ["confrev-ca", "confrev-digest-key"] {
        for (field, value) in &fields {
            let answer = trial.confrev.post(&format!("{own}?dryRun=All"), &with(name, field, value));
            refused(field, &format!("Secret confrev/{name}"), answer);
        }
    }
    let one = format!("{own}/confrev-ca?dryRun=All");
    let mut next = trial.create(own, &source("confrev-ca"));
    next["data"]["text"] = json!("bmV4dA==");
    allowed("the next CA", trial.confrev.put(&one, &next));
    for (field, value) in &fields {
        let mut changed = next.clone();
        changed["metadata"][field] = value.clone();
        refused(field, "Secret confrev/confrev-ca", trial.confrev.put(&one, &changed));
    }
    trial.done();
}

#[test]
fn content_and_labels_of_sources_stay() {
    let trial = Trial::new();
    let [mine, theirs] = ["mine", "theirs"].map(|name| {
        owner(&trial.create(&trial.path("serviceaccounts"), &json!({"metadata": {"name": name}})))
    });
    let metadata = |change: Value| json!({"metadata": change});
    for (plural, kind) in [("configmaps", "ConfigMap"), ("secrets", "Secret")] {
        let path = trial.path(plural);
        // Each object has an owner that another user added.
        let with_owner = |mut object: Value| {
            object["metadata"]["ownerReferences"] = json!([theirs]);
            trial.create(&path, &object);
        };
        with_owner(source("plain"));
        let mut bound = source("bound");
        bound["metadata"]["labels"] = json!({"confrev.dev/enabled": "bind", "team": "shop"});
        with_owner(bound);
        let mut bare = source("unowned");
        bare["metadata"]["labels"] = json!({"confrev.dev/enabled": "bind"});
        trial.create(&path, &bare);
        let snapshots = format!("{path}?fieldManager=confrev");
        created(&trial.confrev, &snapshots, &snapshot("demo-0123456789"));
        states_of_confrev(&trial, plural, kind);

        let text = json!({"data": {"text": "ZXZpbA=="}});
        let foreign = metadata(json!({"labels": {"team": "evil"}}));
        let noted = metadata(json!({"annotations": {"team": "evil"}}));
        let own_note = metadata(json!({"annotations": {"confrev.dev/keep": "9"}}));
        let finalizer = metadata(json!({"finalizers": ["example.com/mine"]}));
        let released = metadata(json!({"ownerReferences": null}));
        let entered = metadata(json!({"ownerReferences": [theirs, mine]}));
        let mut blocking = mine.clone();
        blocking["blockOwnerDeletion"] = json!(true);
        let blocked = metadata(json!({"ownerReferences": [theirs, blocking]}));
        let labels = snapshot("any")["metadata"]["labels"].clone();
        let posing = metadata(json!({"labels": labels}));
        let posing_bound = metadata(json!({"labels": {"confrev.dev/enabled": "bind"}}));
        let unlabelled = metadata(json!({"labels": {"confrev.dev/enabled": null}}));
        let unsourced = metadata(json!({"labels": {"confrev.dev/source": null}}));
        for (name, what, change) in [
            ("plain", "content", &text),
            ("plain", "a foreign label", &foreign),
            ("plain", "a foreign annotation", &noted),
            ("plain", "an annotation of confrev", &own_note),
            ("plain", "a finalizer", &finalizer),
            ("plain", "an owner of another user", &released),
            ("plain", "one more owner", &entered),
            ("plain", "the labels of a snapshot", &posing),
            ("plain", "the label of a bound object", &posing_bound),
            ("bound", "content", &text),
            ("bound", "a foreign label", &foreign),
            ("bound", "a foreign annotation", &noted),
            ("bound", "a finalizer", &finalizer),
            ("bound", "the label", &unlabelled),
            ("bound", "an owner of another user", &released),
            ("bound", "an owner that blocks its deletion", &blocked),
            ("demo-0123456789", "a foreign label", &foreign),
            ("demo-0123456789", "a foreign annotation", &noted),
            ("demo-0123456789", "the label of the source", &unsourced),
            ("demo-0123456789", "a finalizer", &finalizer),
            ("demo-0123456789", "an owner that blocks its deletion", &blocked),
        ] {
            let subject = format!("{kind} {}/{name}", trial.namespace.name());
            let answer = trial.confrev.patch(&trial.dry(plural, name), MERGE, change);
            refused(what, &subject, answer);
        }
        for (name, what) in [
            ("plain", "a deletion"),
            ("bound", "a deletion in spite of an owner of another user"),
            ("unowned", "a deletion without an owner of confrev"),
        ] {
            let subject = format!("{kind} {}/{name}", trial.namespace.name());
            refused(what, &subject, trial.confrev.delete(&trial.dry(plural, name)));
        }
        allowed("binding", trial.confrev.patch(&trial.dry(plural, "demo-0123456789"), MERGE, &entered));
        allowed("a note", trial.confrev.patch(&trial.dry(plural, "demo-0123456789"), MERGE, &own_note));
        allowed("a deletion", trial.confrev.delete(&trial.dry(plural, "demo-0123456789")));
        owners_of_confrev(&trial, plural, kind, &mine, &theirs);
        many_owners(&trial, plural, &mine);
    }
    trial.done();
}

/// confrev writes how far a change has come only where that is reported, and nothing with it.
fn states_of_confrev(trial: &Trial, plural: &str, kind: &str) {
    let metadata = |change: Value| json!({"metadata": change});
    let valid = r#"{"digest":"sha256:4a","phase":"waiting","moved":1,"of":2,"gate":"wave","since":"2026-01-01T00:00:00Z"}"#;
    let state = |value: Value| json!({"annotations": {"confrev.dev/change": value}});
    let with = |name: &str, annotations: Value| {
        let mut object = source(name);
        object["metadata"]["annotations"] = annotations;
        trial.create(&trial.path(plural), &object);
    };
    with("reported", json!({"confrev.dev/report": "true"}));
    with("silent", json!({"confrev.dev/report": "false", "confrev.dev/change": "{}"}));
    let account =
        trial.create(&trial.path("serviceaccounts"), &json!({"metadata": {"generateName": "state-"}}));
    for (name, what, change) in [
        ("plain", "a state that is not asked for", state(json!(valid))),
        ("silent", "a state that is not wanted", state(json!(valid))),
        ("reported", "another text", state(json!("all is well"))),
        ("reported", "a long text", state(json!(valid.replace("4a", &"4a".repeat(300))))),
        ("reported", "the request", json!({"annotations": {"confrev.dev/report": null}})),
        (
            "reported",
            "another annotation with the state",
            json!({"annotations": {"confrev.dev/change": valid, "confrev.dev/keep": "9"}}),
        ),
        (
            "reported",
            "an owner with the state",
            json!({"annotations": {"confrev.dev/change": valid}, "ownerReferences": [owner(&account)]}),
        ),
    ] {
        let subject = format!("{kind} {}/{name}", trial.namespace.name());
        refused(what, &subject, trial.confrev.patch(&trial.dry(plural, name), MERGE, &metadata(change)));
    }
    for (name, what, change) in
        [("reported", "a state", state(json!(valid))), ("silent", "a removal", state(Value::Null))]
    {
        allowed(what, trial.confrev.patch(&trial.dry(plural, name), MERGE, &metadata(change)));
    }
}

/// When many workloads use one snapshot, many more may begin to in one moment. The cost of the rules is limited by the API server.
fn many_owners(trial: &Trial, plural: &str, mine: &Value) {
    let owners = |numbers: std::ops::Range<u32>| -> Value {
        let owner = |number| {
            let uid = format!("3f1a0b52-7c44-4c0e-9d6b-{number:012}");
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("web-{number}"), "uid": uid})
        };
        numbers.map(owner).collect()
    };
    let mut crowded = snapshot("crowd-0123456789");
    crowded["metadata"]["labels"]["confrev.dev/source"] = json!("crowd");
    crowded["metadata"]["annotations"]["confrev.dev/source-name"] = json!("crowd");
    crowded["metadata"]["ownerReferences"] = owners(0..1700);
    // The garbage collector needs seconds to see that the others do not exist.
    crowded["metadata"]["ownerReferences"].as_array_mut().expect("a list").push(mine.clone());
    let path = trial.dry(plural, "crowd-0123456789");
    created(&trial.confrev, &format!("{}?fieldManager=confrev", trial.path(plural)), &crowded);
    let more = json!({"metadata": {"ownerReferences": owners(1700..1800)}});
    let answer = trial.confrev.patch(&path, "application/strategic-merge-patch+json", &more);
    allowed("a hundred more owners of 1,700", answer);
}

/// confrev removes only the owners that it added from an object that is no longer bound.
fn owners_of_confrev(trial: &Trial, plural: &str, kind: &str, mine: &Value, theirs: &Value) {
    let metadata = |change: Value| json!({"metadata": change});
    for name in ["bound", "unowned"] {
        let owners = if name == "bound" { json!([theirs, mine]) } else { json!([mine]) };
        let stored = format!("{}/{name}?fieldManager=confrev", trial.path(plural));
        allowed(
            "binding",
            trial.confrev.patch(&stored, MERGE, &metadata(json!({"ownerReferences": owners}))),
        );
    }
    let one = trial.dry(plural, "bound");
    let without_mine = metadata(json!({"ownerReferences": [theirs]}));
    allowed("unbinding", trial.confrev.patch(&one, MERGE, &without_mine));
    allowed("a release", trial.confrev.delete(&trial.dry(plural, "unowned")));
    let unbound = metadata(json!({"labels": {"confrev.dev/enabled": null}}));
    let by_user = trial.bare.cluster.api().patch(&format!("{}/bound", trial.path(plural)), MERGE, &unbound);
    allowed("unlabelling", by_user);
    let subject = format!("{kind} {}/bound", trial.namespace.name());
    for (what, change) in [
        ("the owner of another user", json!({"ownerReferences": [mine]})),
        ("all owners", json!({"ownerReferences": null})),
        (
            "an annotation with the owner",
            json!({"ownerReferences": [theirs], "annotations": {"confrev.dev/keep": "1"}}),
        ),
        ("a label with the owner", json!({"ownerReferences": [theirs], "labels": {"team": "evil"}})),
    ] {
        refused(what, &subject, trial.confrev.patch(&one, MERGE, &metadata(change)));
    }
    allowed("its own owner", trial.confrev.patch(&one, MERGE, &without_mine));
}

/// The annotation `sources` with these ConfigMaps and Secrets, as confrev writes it.
fn sources(configmaps: &[(&str, &str)], secrets: &[(&str, &str)]) -> String {
    let map = |entries: &[(&str, &str)]| {
        entries.iter().map(|(source, name)| ((*source).to_owned(), json!(name))).collect::<Value>()
    };
    let kinds = [("configmaps", configmaps), ("secrets", secrets)];
    let known = kinds.into_iter().filter(|(_, entries)| !entries.is_empty());
    known.map(|(kind, entries)| (kind.to_owned(), map(entries))).collect::<Value>().to_string()
}

/// A reference changes to a snapshot of its own source only, as far as names and the annotation `sources` show that.
#[test]
fn references_change_only_to_names_of_their_source() {
    let trial = Trial::new();
    let long = "a".repeat(250);
    let cut = |of: &str, digits: &str| format!("{}-{digits}", &of[..252 - digits.len()]);
    let [kept, cut_name] = [cut(&long, "aaaaaaaaaa"), cut(&long, "0123456789")];
    let resolved = ("demo", "demo-0123456789");
    let stored = sources(&[(&long, &kept), resolved], &[("keys", "keys-0123456789")]);
    let own = |name: &str| sources(&[(&long, &kept), ("demo", name)], &[("keys", "keys-0123456789")]);
    for kind in &KINDS[..2] {
        let path = kind.path(trial.namespace.name());
        let mut workload = kind.workload("web", &json!({"confrev.dev/enabled": "true"}));
        let template = workload.pointer_mut(kind.template).expect("a template");
        template["metadata"]["annotations"] = json!({"confrev.dev/sources": stored});
        let volume = |name: &str, of: &str| json!({"name": name, "configMap": {"name": of}});
        // A snapshot, a source that is named like one, and a snapshot of a source with a long name.
        template["spec"]["volumes"] = json!([
            volume("config", "demo-0123456789"),
            volume("written", "release-2024010112"),
            volume("long", &kept),
            {"name": "keys", "secret": {"secretName": "keys-0123456789"}},
            {"name": "scratch", "emptyDir": {}},
        ]);
        trial.create(&path, &workload);
        let subject = format!("{} {}/web", kind.kind, trial.namespace.name());
        let one = format!("{path}/web?dryRun=All");
        let write = |volume: usize, field: &str, name: &str, sources: &str| {
            let set = |path: &str, value: &str| json!({"op": "replace", "path": format!("{}{path}", kind.template), "value": value});
            let name = set(&format!("/spec/volumes/{volume}/{field}"), name);
            let noted = set("/metadata/annotations/confrev.dev~1sources", sources);
            trial.confrev.patch(&one, JSON, &json!([name, noted]))
        };
        let config = |name: &str, sources: &str| write(0, "configMap/name", name, sources);
        let other = sources(&[("other", "other-aaaaaaaaaa")], &[("keys", "keys-0123456789")]);
        let of_secret = sources(&[], &[("demo", "demo-aaaaaaaaaa"), ("keys", "keys-0123456789")]);
        let released =
            sources(&[resolved, ("release", "release-2024020212")], &[("keys", "keys-0123456789")]);
        let false_cut = format!("{}{}-0123456789", &long[..180], "b".repeat(62));
        let long_as = |name: &str| sources(&[(&long, name), resolved], &[("keys", "keys-0123456789")]);
        for (what, answer) in [
            ("a snapshot that sources lacks", config("demo-aaaaaaaaaa", &stored)),
            ("a number of digits that no snapshot has", config("demo-aaaaaaaaaaa", &own("demo-aaaaaaaaaaa"))),
            ("no digits", config("demo-production", &own("demo-production"))),
            (
                "more than one suffix",
                config("demo-0123456789-aaaaaaaaaa", &own("demo-0123456789-aaaaaaaaaa")),
            ),
            ("a snapshot of another source", config("other-aaaaaaaaaa", &other)),
            ("another source", config("other", &stored)),
            ("a snapshot of a Secret", config("demo-aaaaaaaaaa", &of_secret)),
            (
                "text that is no map of sources",
                config("demo-aaaaaaaaaa", r#"{"configmaps":{}} "demo":"demo-aaaaaaaaaa""#),
            ),
            ("an object named like a snapshot", write(1, "configMap/name", "release-2024020212", &released)),
            (
                "a name that begins like a long one",
                write(2, "configMap/name", &false_cut, &long_as(&false_cut)),
            ),
        ] {
            refused(what, &subject, answer);
        }
        allowed("another snapshot", config("demo-aaaaaaaaaa", &own("demo-aaaaaaaaaa")));
        allowed("the source", config("demo", &sources(&[(&long, &kept)], &[("keys", "keys-0123456789")])));
        allowed("a long name", write(2, "configMap/name", &cut_name, &long_as(&cut_name)));
        allowed(
            "a long source",
            write(2, "configMap/name", &long, &sources(&[resolved], &[("keys", "keys-0123456789")])),
        );
    }
    trial.done();
}

/// The volume of `confrev.dev/mount` is added for the ConfigMaps of the annotation alone.
/// The right to patch an AnalysisRun is the right to start any Job: confrev creates runs of sources, and then only ends them.
#[test]
fn only_own_analysis_runs_are_written() {
    let trial = Trial::with(&[("analysis.enabled", json!(true))]);
    let namespace = trial.namespace.name();
    let path = format!("/apis/argoproj.io/v1alpha1/namespaces/{namespace}/analysisruns");
    let demo = trial.create(&trial.path("configmaps"), &source("demo"));
    let of_source =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "demo", "uid": demo["metadata"]["uid"]});
    let mine = json!({"app.kubernetes.io/managed-by": "confrev", "confrev.dev/source": "demo"});
    let run = |name: &str, labels: &Value, owners: Value| {
        let provider = json!({"web": {"url": "http://127.0.0.1:1", "jsonPath": "{$.ok}"}});
        json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "AnalysisRun",
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
            "spec": {"metrics": [{"name": "ok", "count": 1, "interval": "1h", "initialDelay": "1h", "provider": provider}]},
        })
    };
    let dry = format!("{path}?dryRun=All");
    let subject = |name: &str| format!("AnalysisRun {namespace}/{name}");
    wait_for("the policy to take effect", LIMIT, || {
        let (code, answer) = trial.confrev.post(&dry, &run("foreign", &json!({}), json!([of_source])));
        if is_refused(code, &answer) { Ok(()) } else { Err(answer) }
    });
    for (what, labels, owners) in [
        ("no labels", json!({}), json!([of_source])),
        ("no label of a source", json!({"app.kubernetes.io/managed-by": "confrev"}), json!([of_source])),
        ("no owner", mine.clone(), json!([])),
        (
            "two owners",
            mine.clone(),
            json!([
                of_source,
                owner(&trial.create(
                    &format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
                    &json!({"metadata": {"name": "app"}})
                ))
            ]),
        ),
    ] {
        refused(what, &subject("new"), trial.confrev.post(&dry, &run("new", &labels, owners)));
    }
    let mut elsewhere = of_source.clone();
    elsewhere["apiVersion"] = json!("other.dev/v1");
    refused(
        "a kind of another group",
        &subject("new"),
        trial.confrev.post(&dry, &run("new", &mine, json!([elsewhere]))),
    );
    for excluded in ["kube-system", "confrev"] {
        let path = format!("/apis/argoproj.io/v1alpha1/namespaces/{excluded}/analysisruns?dryRun=All");
        let answer = trial.confrev.post(&path, &run("new", &mine, json!([of_source])));
        refused("an excluded namespace", &format!("AnalysisRun {excluded}/new"), answer);
    }
    allowed("a run of a source", trial.confrev.post(&path, &run("own", &mine, json!([of_source]))));
    trial.create(&path, &run("theirs", &json!({"team": "shop"}), json!([])));
    let end = json!({"spec": {"terminate": true}});
    for (what, name, change) in [
        ("the end of a foreign run", "theirs", end.clone()),
        ("another metric", "own", json!({"spec": {"terminate": true, "metrics": []}})),
        ("nothing but a label", "own", json!({"metadata": {"labels": {"team": "evil"}}})),
        (
            "a label and the end",
            "own",
            json!({"metadata": {"labels": {"team": "evil"}}, "spec": {"terminate": true}}),
        ),
        ("the result", "own", json!({"spec": {"terminate": true}, "status": {"phase": "Successful"}})),
    ] {
        refused(
            what,
            &subject(name),
            trial.confrev.patch(&format!("{path}/{name}?dryRun=All"), MERGE, &change),
        );
    }
    refused("a foreign run", &subject("theirs"), trial.confrev.delete(&format!("{path}/theirs?dryRun=All")));
    allowed("the end of its own run", trial.confrev.patch(&format!("{path}/own"), MERGE, &end));
    allowed("its own run", trial.confrev.delete(&format!("{path}/own")));
    trial.done();
}

#[test]
fn mount_annotation_allows_its_volume_alone() {
    let trial = Trial::new();
    let labels = json!({"confrev.dev/enabled": "true"});
    for kind in &KINDS {
        let path = kind.path(trial.namespace.name());
        let mut workload = kind.workload("web", &labels);
        workload["metadata"]["annotations"]["confrev.dev/mount"] = json!("demo, more=/etc/app");
        trial.create(&path, &workload);
        let subject = format!("{} {}/web", kind.kind, trial.namespace.name());
        let one = format!("{path}/web?dryRun=All");
        let add = |path: &str, value: Value| json!({"op": "add", "path": format!("{}{path}", kind.template), "value": value});
        let volume = |names: &[&str]| {
            let sources: Vec<_> = names.iter().map(|name| json!({"configMap": {"name": name}})).collect();
            add("/spec/volumes/-", json!({"name": "confrev-mount", "projected": {"sources": sources}}))
        };
        let mounted = |container: &str, at: &str| {
            let mount = json!({"name": "confrev-mount", "mountPath": at, "readOnly": true});
            let list = if container == "containers/0" { mount } else { json!([mount]) };
            let end = if container == "containers/0" { "/-" } else { "" };
            add(&format!("/spec/{container}/volumeMounts{end}"), list)
        };
        let all = |names: &[&str], at: &str| {
            let containers = ["containers/0", "containers/1", "initContainers/0"];
            let mounts = containers.map(|container| mounted(container, at));
            let noted = sources(&[("demo", "demo-0123456789")], &[]);
            let noted = add("/metadata/annotations", json!({"confrev.dev/sources": noted}));
            Value::Array([vec![noted, volume(names)], mounts.to_vec()].concat())
        };
        let good = ["demo-0123456789", "more"];
        allowed("the mount", trial.confrev.patch(&one, JSON, &all(&good, "/etc/app")));
        for (what, operations) in [
            ("another ConfigMap", all(&["demo-0123456789", "other"], "/etc/app")),
            ("another path", all(&good, "/bin")),
            (
                "a Secret",
                json!([add(
                    "/spec/volumes/-",
                    json!({
                "name": "confrev-mount", "projected": {"sources": [{"secret": {"name": "keys"}}]}})
                )]),
            ),
            (
                "a host path of that name",
                json!([add(
                    "/spec/volumes/-",
                    json!({
                "name": "confrev-mount", "hostPath": {"path": "/"}})
                )]),
            ),
        ] {
            refused(what, &subject, trial.confrev.patch(&one, JSON, &operations));
        }
    }
    trial.done();
}

/// 100 containers with 500 kB of variables, each of which refers to a ConfigMap that changes.
#[test]
fn large_workload_stays_within_cost_limits() {
    let trial = Trial::new();
    for count in [1, 20] {
        large_workload(&trial, count);
        let large = format!("{}/large", KINDS[0].path(trial.namespace.name()));
        assert_eq!(trial.bare.cluster.api().delete(&large).0, 200);
    }
    trial.done();
}

/// The variables refer to this number of ConfigMaps.
fn large_workload(trial: &Trial, count: usize) {
    let deployment = &KINDS[0];
    let path = deployment.path(trial.namespace.name());
    let source =
        |number: usize| if number == 0 { "demo".to_owned() } else { format!("demo-of-part-{number}") };
    let with = |suffix: &str| {
        let mut workload = deployment.workload("large", &json!({"confrev.dev/enabled": "true"}));
        let container = |i: usize| {
            let name = |j: usize| format!("{}{suffix}", source(j % count));
            let variable = |j: usize| json!({"name": format!("VARIABLE_{j}"), "valueFrom": {"configMapKeyRef": {"name": name(j), "key": format!("key-{j}")}}});
            json!({"name": format!("app-{i}"), "image": "app:1", "env": (0..55).map(variable).collect::<Vec<_>>()})
        };
        workload["spec"]["template"]["spec"]["containers"] = (0..100).map(container).collect();
        let names: Vec<_> =
            (0..count).map(|number| (source(number), format!("{}{suffix}", source(number)))).collect();
        let names: Vec<_> = names.iter().map(|(source, name)| (&**source, &**name)).collect();
        workload["spec"]["template"]["metadata"]["annotations"] =
            json!({"confrev.dev/sources": sources(&names, &[])});
        workload
    };
    trial.create(&path, &with("-aaaaaaaaaa"));
    let resolved = with("-0123456789");
    let size = resolved.to_string().len();
    assert!(size > 500_000, "{size}");
    let change = json!({"spec": {"template": resolved["spec"]["template"]}});
    let one = format!("{path}/large?dryRun=All");
    let start = Instant::now();
    allowed("a large workload", answered(|| trial.confrev.patch(&one, MERGE, &change)));
    eprintln!("{size} bytes, {count} sources: {:?}", start.elapsed());
    let mut evil = change.clone();
    evil["spec"]["template"]["spec"]["containers"][99]["image"] = json!("evil:1");
    let subject = format!("Deployment {}/large", trial.namespace.name());
    let answer = trial.confrev.patch(&one, MERGE, &evil);
    refused("an image", &subject, answer);
}

/// This number of annotations.
fn numbered(count: usize) -> Value {
    (0..count).map(|number| (format!("{number:05x}"), json!(""))).collect()
}

/// Comparing 40,000 annotations takes longer than 10 s, in which other rolls would wait.
#[test]
fn too_many_annotations_are_refused_by_number() {
    let trial = Trial::new();
    let deployment = &KINDS[0];
    let path = deployment.path(trial.namespace.name());
    let labels = json!({"confrev.dev/enabled": "true"});
    let mut object = deployment.workload("object", &labels);
    object["metadata"]["annotations"] = numbered(40_000);
    let mut template = deployment.workload("template", &labels);
    template["spec"]["template"]["metadata"]["annotations"] = numbered(40_000);
    let mut few = deployment.workload("few", &labels);
    few["metadata"]["annotations"] = numbered(900);
    let roll = json!({"metadata": {"annotations": {"confrev.dev/roll": "auto-1"}}});
    for workload in [object, template, few] {
        trial.create(&path, &workload);
        let name = workload["metadata"]["name"].as_str().unwrap();
        let answer = trial.confrev.patch(&format!("{path}/{name}?dryRun=All"), MERGE, &roll);
        if name == "few" {
            allowed(name, answer);
        } else {
            let message = answer.1["message"].as_str().unwrap_or_default().to_owned();
            refused("a roll", &format!("Deployment {}/{name}", trial.namespace.name()), answer);
            assert!(message.contains("more than 1,000 labels or annotations"), "{message}");
        }
    }
    trial.done();
}

/// One request with confrev's token.
struct Attempt {
    method: &'static str,
    path: String,
    body: Value,
}

impl Attempt {
    fn send(&self, api: &Api) -> (u16, Value) {
        match self.method {
            "create" => api.post(&self.path, &self.body),
            "delete" => api.delete(&self.path),
            _ => api.patch(&self.path, MERGE, &self.body),
        }
    }
}

/// One attempt for each rule of the policy, in the order of the rules. Only that rule refuses it.
fn one_for_each_rule(trial: &Trial) -> Vec<Attempt> {
    let deployment = &KINDS[0];
    let path = deployment.path(trial.namespace.name());
    let labels = json!({"confrev.dev/enabled": "true"});
    trial.create(&path, &deployment.workload("web", &labels));
    trial.create(&path, &deployment.workload("none", &json!({})));
    let mut many = deployment.workload("many", &labels);
    many["metadata"]["annotations"] = numbered(1001);
    trial.create(&path, &many);
    let account = trial.create(&trial.path("serviceaccounts"), &json!({"metadata": {"name": "owner"}}));
    let mut owned = source("plain");
    owned["metadata"]["ownerReferences"] = json!([owner(&account)]);
    trial.create(&trial.path("configmaps"), &owned);
    created(&trial.confrev, &trial.path("configmaps"), &snapshot("demo-0123456789"));

    let attempt = |method, path: String, body: Value| Attempt { method, path, body };
    let on = |plural: &str, name: &str, body: Value| attempt("patch", trial.dry(plural, name), body);
    let web = |body: Value| attempt("patch", format!("{path}/web?dryRun=All"), body);
    let pod = |body: Value| web(json!({"spec": {"template": {"spec": body}}}));
    let stored = deployment.workload("web", &labels);
    let changed = |list: &str, pointer: &str, value: Value| {
        let mut all = stored["spec"]["template"]["spec"][list].clone();
        *all.pointer_mut(pointer).expect("the field is stored") = value;
        pod(json!({list: all}))
    };
    let mut token = snapshot("demo-aaaaaaaaaa");
    // A ServiceAccount token needs a foreign annotation, which another rule refuses.
    token["type"] = json!("helm.sh/release.v1");
    let mut controller = owner(&account);
    controller["controller"] = json!(true);
    let metadata = |change: Value| json!({"metadata": change});
    vec![
        attempt(
            "create",
            "/api/v1/namespaces/kube-system/configmaps?dryRun=All".to_owned(),
            snapshot("demo-aaaaaaaaaa"),
        ),
        attempt(
            "patch",
            format!("{path}/many?dryRun=All"),
            metadata(json!({"annotations": {"confrev.dev/roll": "auto-1"}})),
        ),
        attempt("create", trial.dry("configmaps", ""), source("other")),
        attempt("create", trial.dry("secrets", ""), token),
        on("configmaps", "demo-0123456789", metadata(json!({"annotations": {"team": "evil"}}))),
        on("configmaps", "plain", metadata(json!({"ownerReferences": null}))),
        on("configmaps", "demo-0123456789", metadata(json!({"ownerReferences": [controller]}))),
        attempt("delete", trial.dry("configmaps", "plain"), json!({})),
        attempt("delete", format!("{path}/web?dryRun=All"), json!({})),
        attempt(
            "patch",
            format!("{path}/none?dryRun=All"),
            metadata(json!({"annotations": {"confrev.dev/roll": "auto-1"}})),
        ),
        web(metadata(json!({"labels": {"team": "evil"}}))),
        web(json!({"spec": {"replicas": 9}})),
        web(json!({"spec": {"template": {"metadata": {"labels": {"team": "evil"}}}}})),
        web(
            json!({"spec": {"template": {"metadata": {"annotations": {"confrev.dev/sources": sources(&[("demo", "other")], &[])}}}}}),
        ),
        pod(json!({"hostNetwork": true})),
        changed("containers", "/0/image", json!("evil:1")),
        changed("containers", "/0/env/0/value", json!("2")),
        changed("volumes", "/0/configMap/name", json!("other")),
    ]
}

/// The test removes each rule in turn. The rule's attempt then succeeds, and the other attempts are still refused.
#[test]
fn each_rule_refuses_something_no_other_does() {
    const POLICY: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/confrev-self";
    let trial = Trial::new();
    let admin = trial.bare.cluster.api();
    // RBAC would refuse a deletion before the policy does.
    let kubectl = |arguments: &[&str]| trial.bare.cluster.kubectl(arguments).run().ok();
    let namespace = ["--namespace", trial.namespace.name()];
    let role = ["create", "role", "more", "--verb=delete", "--resource=deployments.apps"];
    kubectl(&[&role[..], &namespace].concat());
    let binding = ["create", "rolebinding", "more", "--role=more", "--serviceaccount=confrev:confrev"];
    kubectl(&[&binding[..], &namespace].concat());
    let attempts = one_for_each_rule(&trial);
    let policy = admin.get(POLICY).1;
    let rules = policy["spec"]["validations"].as_array().unwrap();
    assert_eq!(rules.len(), attempts.len(), "one attempt for each rule");
    let set = |rules: &[Value]| {
        let (code, answer) = admin.patch(POLICY, MERGE, &json!({"spec": {"validations": rules}}));
        assert_eq!(code, 200, "{answer}");
    };
    let still_refused = |attempt: &Attempt| {
        let (code, answer) = attempt.send(&trial.confrev);
        if is_refused(code, &answer) { Ok(()) } else { Err(format!("{code} {answer}")) }
    };
    for (index, attempt) in attempts.iter().enumerate() {
        wait_for("the rights and all rules to take effect", LIMIT, || still_refused(attempt));
        let rest: Vec<_> = rules.iter().enumerate().filter(|(other, _)| *other != index).collect();
        set(&rest.into_iter().map(|(_, rule)| rule.clone()).collect::<Vec<_>>());
        wait_for(&format!("the attempt without rule {index} to succeed"), LIMIT, || {
            let (code, answer) = attempt.send(&trial.confrev);
            if (200..300).contains(&code) { Ok(()) } else { Err(format!("{code} {answer}")) }
        });
        for (other, attempt) in attempts.iter().enumerate().filter(|(other, _)| *other != index) {
            still_refused(attempt).unwrap_or_else(|answer| panic!("without rule {index}, {other}: {answer}"));
        }
        set(rules);
    }
    trial.done();
}
