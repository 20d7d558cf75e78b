//! The guard over snapshots, tried by everybody with every verb on every field, as a table. confrev does not run: the API
//! server alone keeps it.

use confrev_controlplane::{Api, Namespace, wait_for};
use serde_json::{Value, json};

use crate::bare::{Bare, LIMIT};

/// Who tries, in the order of the table's columns.
const USERS: [&str; 5] =
    ["an administrator", "an editor", "confrev", "the collector", "the namespace controller"];

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// `y`: it is done.
    Yes,
    /// `g`: the guard refuses.
    Guard,
    /// `r`: RBAC does not even let it come so far.
    Rbac,
    /// `s`: the policy for confrev itself refuses.
    Own,
    /// `i`: the API server's own rule for immutable objects refuses.
    Immutable,
}

/// One change of a field, and how it ends for each of [`USERS`].
struct Row {
    change: Value,
    ends: &'static str,
}

fn row(change: Value, ends: &'static str) -> Row {
    Row { change, ends }
}

/// Changes of a bound snapshot, by patch.
fn changes(kind: Kind) -> Vec<Row> {
    let metadata = |change: Value| json!({"metadata": change});
    let label = |key: &str, value: Value| metadata(json!({"labels": {key: value}}));
    let annotation = |key: &str, value: Value| metadata(json!({"annotations": {key: value}}));
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "5d1a"});
    let mut rows = vec![
        // Content: nobody.
        row(json!({"data": {"text": "ZXZpbA=="}}), "iiiir"),
        row(json!({"data": {"more": "ZXZpbA=="}}), "iiiir"),
        row(json!({"data": {"text": null}}), "iiiir"),
        row(json!({"immutable": false}), "iiiir"),
        row(json!({"immutable": null}), "iiiir"),
        // What makes it a snapshot, and says of what: confrev makes it once, and writes annotations only.
        row(label("app.kubernetes.io/managed-by", json!(null)), "ggsgr"),
        row(label("app.kubernetes.io/managed-by", json!("Helm")), "ggsgr"),
        row(label("confrev.dev/source", json!(null)), "ggsgr"),
        row(label("confrev.dev/source", json!("other")), "ggsgr"),
        row(label("confrev.dev/enabled", json!("bind")), "ggsgr"),
        row(annotation("confrev.dev/source-name", json!("other")), "ggygr"),
        row(annotation("confrev.dev/source-name", json!(null)), "ggygr"),
        row(annotation("confrev.dev/digest", json!("sha256:00")), "ggygr"),
        row(annotation("confrev.dev/digest", json!(null)), "ggygr"),
        row(annotation("confrev.dev/keep", json!("9")), "ggygr"),
        row(json!({"metadata": {"labels": null, "annotations": null}}), "ggsgr"),
        // Who uses it: confrev and the collector.
        row(metadata(json!({"ownerReferences": null})), "ggyyr"),
        row(metadata(json!({"ownerReferences": []})), "ggyyr"),
        row(metadata(json!({"ownerReferences": [owner]})), "ggyyr"),
        // What would keep it for ever.
        row(metadata(json!({"finalizers": ["example.com/mine", "example.com/more"]})), "ggsyr"),
        row(metadata(json!({"finalizers": null})), "yysyr"),
        // What is nobody's.
        row(label("team", json!("shop")), "yysyr"),
        row(annotation("example.com/note", json!("kept")), "yysyr"),
    ];
    rows.push(match kind {
        Kind::ConfigMap => row(json!({"binaryData": {"more": "ZXZpbA=="}}), "iiiir"),
        Kind::Secret => row(json!({"stringData": {"text": "evil"}}), "iiiir"),
    });
    rows
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    fn path(self, namespace: &str) -> String {
        let plural = match self {
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
        };
        format!("/api/v1/namespaces/{namespace}/{plural}")
    }

    /// With confrev's labels, and content that is good for either kind.
    fn snapshot(name: &str) -> Value {
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
}

/// The installation with Secrets on, a namespace, and clients of everybody.
struct Trial {
    bare: Bare,
    namespace: Namespace<'static>,
    users: Vec<Api>,
}

impl Trial {
    fn new() -> Self {
        let bare = Bare::new();
        bare.install(&[("secrets.enabled", json!(true)), ("replicas", json!(0))]);
        let cluster = bare.cluster;
        let namespace = cluster.namespace("guard");
        let kubectl = |arguments: &[&str]| cluster.kubectl(arguments).run().ok();
        kubectl(&[
            "create",
            "rolebinding",
            "editor",
            "--clusterrole=edit",
            "--user=ed",
            "-n",
            namespace.name(),
        ]);
        let by_certificate = |name: &str, groups: &[&str]| {
            let kubeconfig = cluster.kubeconfig_for_user(name, groups).expect("the tests' own cluster");
            cluster.api_as(&kubeconfig)
        };
        let controller = |name| by_certificate(&format!("system:serviceaccount:kube-system:{name}"), &[]);
        let users = vec![
            cluster.api().clone(),
            by_certificate("ed", &[]),
            cluster.api_as(&cluster.kubeconfig_for_service_account("confrev", "confrev")),
            controller("generic-garbage-collector"),
            controller("namespace-controller"),
        ];
        // The API server takes up a policy a moment after it is stored.
        let collection = format!("{}?dryRun=All", Kind::ConfigMap.path(namespace.name()));
        wait_for("the guard to be in force", LIMIT, || {
            let (code, answer) = users[1].post(&collection, &Kind::snapshot("trial"));
            if is_guard(code, &answer) { Ok(()) } else { Err(answer) }
        });
        Self { bare, namespace, users }
    }

    /// One attempt of everybody.
    fn tried(&self, what: &str, ends: &str, attempt: impl Fn(&Api) -> (u16, Value)) {
        for ((who, api), end) in USERS.iter().zip(&self.users).zip(ends.chars()) {
            let (code, answer) = attempt(api);
            let message = answer["message"].as_str().unwrap_or_default();
            let found = match code {
                200..=299 => End::Yes,
                _ if is_guard(code, &answer) => End::Guard,
                403 if message.contains("ValidatingAdmissionPolicy 'confrev-self'") => End::Own,
                403 if message.contains(" cannot ") => End::Rbac,
                422 if message.contains("immutable") => End::Immutable,
                _ => panic!("{who}: {what}: {code} {answer}"),
            };
            let wanted = match end {
                'y' => End::Yes,
                'g' => End::Guard,
                'r' => End::Rbac,
                's' => End::Own,
                _ => End::Immutable,
            };
            // Where both policies refuse, the API server reports either.
            if (found, wanted) != (End::Own, End::Guard) {
                assert_eq!(found, wanted, "{who}: {what}: {message}");
            }
        }
    }

    fn done(self) {
        self.bare.uninstall().ok();
    }
}

fn is_guard(code: u16, answer: &Value) -> bool {
    let message = answer["message"].as_str().unwrap_or_default();
    matches!(code, 403 | 422) && message.contains("ValidatingAdmissionPolicy 'confrev-snapshots'")
}

/// A merge patch of an object, here.
fn merge(object: &mut Value, change: &Value) {
    let Value::Object(changes) = change else { return change.clone_into(object) };
    if !object.is_object() {
        *object = json!({});
    }
    let object = object.as_object_mut().expect("it is one by now");
    for (key, change) in changes {
        match change {
            Value::Null => drop(object.remove(key)),
            change => merge(object.entry(key).or_insert(Value::Null), change),
        }
    }
}

/// Where the same is tried by PUT, confrev has not the verb, and all else is the same.
fn by_put(ends: &str) -> String {
    ends.char_indices().map(|(index, end)| if index == 2 { 'r' } else { end }).collect()
}

/// Everything as a dry run, for which the guard is asked as well, so that each attempt finds the snapshot as it was.
#[test]
fn nobody_changes_or_removes_what_revisions_depend_on_by_any_verb_on_any_field() {
    let trial = Trial::new();
    for kind in [Kind::ConfigMap, Kind::Secret] {
        let path = kind.path(trial.namespace.name());
        let admin = &trial.users[0];
        let create = |object: &Value| -> Value {
            let (code, answer) = admin.post(&path, object);
            assert_eq!(code, 201, "{answer}");
            answer
        };
        // An owner that is there, or the collector would come.
        let owner = create(&json!({"metadata": {"name": "user"}}));
        let mut bound = Kind::snapshot("demo-bound");
        let kind_name = format!("{kind:?}");
        bound["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": kind_name, "name": "user", "uid": owner["metadata"]["uid"],
        }]);
        bound["metadata"]["finalizers"] = json!(["example.com/mine"]);
        let bound = create(&bound);
        create(&Kind::snapshot("demo-free"));

        let [one, other] = ["demo-bound", "demo-free"].map(|name| format!("{path}/{name}?dryRun=All"));
        for Row { change, ends } in changes(kind) {
            trial.tried(&format!("patch of {kind:?}: {change}"), ends, |api| {
                api.patch(&one, "application/merge-patch+json", &change)
            });
            let mut whole = bound.clone();
            merge(&mut whole, &change);
            trial.tried(&format!("put of {kind:?}: {change}"), &by_put(ends), |api| api.put(&one, &whole));
            // Server-side apply can take nothing away that it has not given.
            if !change.to_string().contains("null") && !change.to_string().contains("[]") {
                let mut applied = change.clone();
                merge(&mut applied, &json!({"apiVersion": "v1", "kind": kind_name}));
                let forced = format!("{one}&fieldManager=trial&force=true");
                trial.tried(&format!("apply of {kind:?}: {change}"), ends, |api| {
                    api.patch(&forced, "application/apply-patch+yaml", &applied)
                });
            }
        }
        trial.tried("delete of a bound one", "ggyyy", |api| api.delete(&one));
        trial.tried("delete of one that nothing uses", "yyyyy", |api| api.delete(&other));
        let all = format!("{path}?dryRun=All&labelSelector=confrev.dev/source");
        trial.tried("delete of all", "ggrry", |api| api.delete(&all));
        let freed = json!({"metadata": {"finalizers": null}});
        let patched = admin.patch(&format!("{path}/demo-bound"), "application/merge-patch+json", &freed);
        assert_eq!(patched.0, 200, "{}", patched.1);
    }
    trial.done();
}

#[test]
fn a_snapshot_is_made_by_confrev_and_by_who_may_restore_a_backup_and_nothing_becomes_one_afterwards() {
    let trial = Trial::new();
    for kind in [Kind::ConfigMap, Kind::Secret] {
        let path = kind.path(trial.namespace.name());
        let collection = format!("{path}?dryRun=All");
        let snapshot = Kind::snapshot("demo-4a4a4a4a4a");
        trial.tried("create", "ygyrr", |api| api.post(&collection, &snapshot));
        let mut mutable = snapshot.clone();
        mutable["immutable"] = json!(false);
        trial.tried("create of a mutable one", "gggrr", |api| api.post(&collection, &mutable));
        // One label alone is somebody's own business.
        for key in ["app.kubernetes.io/managed-by", "confrev.dev/source"] {
            let mut half = snapshot.clone();
            half["metadata"]["labels"].as_object_mut().unwrap().remove(key);
            trial.tried("create with one label", "yysrr", |api| api.post(&collection, &half));
        }

        let mut plain = snapshot.clone();
        plain["metadata"] = json!({"name": "plain", "labels": {"confrev.dev/source": "demo"}});
        assert_eq!(trial.users[1].post(&path, &plain).0, 201);
        let one = format!("{path}/plain?dryRun=All");
        let labels = json!({"metadata": {"labels": snapshot["metadata"]["labels"]}});
        trial.tried("relabelled", "ggsgr", |api| api.patch(&one, "application/merge-patch+json", &labels));
    }
    // Leave to restore is a verb of its own, which no built-in role but cluster-admin has.
    let kubectl = |arguments: &[&str]| trial.bare.cluster.kubectl(arguments).run().ok();
    let leave = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "restore"},
        "rules": [{"apiGroups": ["confrev.dev"], "resources": ["snapshots"], "verbs": ["create"]}],
    });
    let apply = trial.bare.cluster.kubectl(&["apply", "-f", "-", "-n", trial.namespace.name()]).stdin(leave);
    apply.run().ok();
    kubectl(&[
        "create",
        "rolebinding",
        "restore",
        "--role=restore",
        "--user=ed",
        "-n",
        trial.namespace.name(),
    ]);
    let collection = format!("{}?dryRun=All", Kind::ConfigMap.path(trial.namespace.name()));
    wait_for("the leave to count", LIMIT, || {
        let (code, answer) = trial.users[1].post(&collection, &Kind::snapshot("demo-4a4a4a4a4a"));
        if code == 201 { Ok(()) } else { Err(answer) }
    });
    trial.done();
}
