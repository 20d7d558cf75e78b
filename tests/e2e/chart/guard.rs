//! The guard of snapshots, as a table: each user tries every verb on every field. confrev does not run: the API server
//! alone enforces the guard.

use confrev_controlplane::{Api, Namespace, wait_for};
use serde_json::{Value, json};

use crate::{
    empty_cluster::{Bare, LIMIT},
    escalation::snapshot,
};

/// The users, in the order of the table's columns.
const USERS: [&str; 5] =
    ["an administrator", "an editor", "confrev", "the collector", "the namespace controller"];

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// `y`: it succeeds.
    Yes,
    /// `g`: the guard refuses.
    Guard,
    /// `r`: RBAC refuses, before admission.
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
        // No user changes content.
        row(json!({"data": {"text": "ZXZpbA=="}}), "iiiir"),
        row(json!({"data": {"more": "ZXZpbA=="}}), "iiiir"),
        row(json!({"data": {"text": null}}), "iiiir"),
        row(json!({"immutable": false}), "iiiir"),
        row(json!({"immutable": null}), "iiiir"),
        // The marks of a snapshot and its source: confrev sets them at creation, and later writes only annotations.
        row(label("app.kubernetes.io/managed-by", json!(null)), "ggsgr"),
        row(label("app.kubernetes.io/managed-by", json!("Helm")), "ggsgr"),
        row(label("confrev.dev/source", json!(null)), "ggsgr"),
        row(label("confrev.dev/source", json!("other")), "ggsgr"),
        row(label("confrev.dev/enabled", json!("bind")), "ggsgr"),
        row(annotation("confrev.dev/source-name", json!("other")), "ggygr"),
        row(annotation("confrev.dev/source-name", json!(null)), "ggygr"),
        row(annotation("confrev.dev/digest", json!("sha256:00")), "ggygr"),
        row(annotation("confrev.dev/digest", json!(null)), "ggygr"),
        row(annotation("confrev.dev/changed-by", json!("somebody")), "ggygr"),
        row(annotation("confrev.dev/keep", json!("9")), "ggygr"),
        row(json!({"metadata": {"labels": null, "annotations": null}}), "ggsgr"),
        // Owners: confrev and the garbage collector write them.
        row(metadata(json!({"ownerReferences": null})), "ggyyr"),
        row(metadata(json!({"ownerReferences": []})), "ggyyr"),
        row(metadata(json!({"ownerReferences": [owner]})), "ggyyr"),
        // Finalizers would prevent the deletion.
        row(metadata(json!({"finalizers": ["example.com/mine", "example.com/more"]})), "ggsyr"),
        row(metadata(json!({"finalizers": null})), "yysyr"),
        // Other labels and annotations are not protected, but the policies compare each of them.
        row(label("team", json!("shop")), "yysyr"),
        row(annotation("example.com/note", json!("kept")), "yysyr"),
        row(metadata(json!({"labels": numbered(MOST_OTHERS)})), "yysyr"),
        row(metadata(json!({"labels": numbered(MOST_OTHERS + 1)})), "ggsgr"),
        row(metadata(json!({"annotations": numbered(MOST_OTHERS)})), "yysyr"),
        row(metadata(json!({"annotations": numbered(MOST_OTHERS + 1)})), "ggsgr"),
    ];
    rows.push(match kind {
        Kind::ConfigMap => row(json!({"binaryData": {"more": "ZXZpbA=="}}), "iiiir"),
        Kind::Secret => row(json!({"stringData": {"text": "evil"}}), "iiiir"),
    });
    rows
}

/// Labels or annotations beside the two of confrev's that [`Kind::snapshot`] has, at most.
const MOST_OTHERS: usize = 98;

/// This number of labels or annotations.
fn numbered(count: usize) -> Value {
    (0..count).map(|number| (format!("{number:04x}"), json!(""))).collect()
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
}

/// The installation with Secrets on, a namespace, and a client for each user.
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
        for namespace in [namespace.name(), "confrev"] {
            kubectl(&["create", "rolebinding", "editor", "--clusterrole=edit", "--user=ed", "-n", namespace]);
        }
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
        // The API server enforces a policy a moment after it is stored.
        let collection = format!("{}?dryRun=All", Kind::ConfigMap.path(namespace.name()));
        wait_for("the guard to take effect", LIMIT, || {
            let (code, answer) = users[1].post(&collection, &snapshot("trial"));
            if is_guard(code, &answer) { Ok(()) } else { Err(answer) }
        });
        Self { bare, namespace, users }
    }

    /// Lets each user make one attempt.
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
            // If both policies refuse, the API server reports one of them.
            if (found, wanted) != (End::Own, End::Guard) {
                assert_eq!(found, wanted, "{who}: {what}: {message}");
            }
        }
    }

    /// Gives the editor a verb on snapshots.confrev.dev.
    fn gives_editor(&self, verb: &str) {
        let kubectl = |arguments: &[&str]| self.bare.cluster.kubectl(arguments);
        let namespace = self.namespace.name();
        let leave = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "leave"},
            "rules": [{"apiGroups": ["confrev.dev"], "resources": ["snapshots"], "verbs": [verb]}],
        });
        kubectl(&["apply", "-f", "-", "-n", namespace]).stdin(leave).run().ok();
        let binding = ["create", "rolebinding", "leave", "--role=leave", "--user=ed", "-n", namespace];
        kubectl(&binding).run().ok();
    }

    fn done(self) {
        self.bare.uninstall().ok();
    }
}

fn is_guard(code: u16, answer: &Value) -> bool {
    let message = answer["message"].as_str().unwrap_or_default();
    let names = |policy: &str| message.contains(&format!("ValidatingAdmissionPolicy '{policy}'"));
    matches!(code, 403 | 422) && ["confrev-snapshots", "confrev-digest-key"].into_iter().any(names)
}

/// Applies a merge patch to an object locally.
fn merge(object: &mut Value, change: &Value) {
    let Value::Object(changes) = change else { return change.clone_into(object) };
    if !object.is_object() {
        *object = json!({});
    }
    let object = object.as_object_mut().expect("the value is an object now");
    for (key, change) in changes {
        match change {
            Value::Null => drop(object.remove(key)),
            change => merge(object.entry(key).or_insert(Value::Null), change),
        }
    }
}

/// The expected results with PUT: RBAC refuses confrev, which lacks the verb, and the others are the same.
fn by_put(ends: &str) -> String {
    ends.char_indices().map(|(index, end)| if index == 2 { 'r' } else { end }).collect()
}

/// All attempts are dry-runs, which the guard checks as well, so each attempt finds the snapshot unchanged.
#[test]
fn guard_protects_snapshots_in_use_from_all_users() {
    let trial = Trial::new();
    for kind in [Kind::ConfigMap, Kind::Secret] {
        let path = kind.path(trial.namespace.name());
        let admin = &trial.users[0];
        let create = |object: &Value| -> Value {
            let (code, answer) = admin.post(&path, object);
            assert_eq!(code, 201, "{answer}");
            answer
        };
        // The owner exists; otherwise the garbage collector would delete the snapshot.
        let owner = create(&json!({"metadata": {"name": "user"}}));
        let mut bound = snapshot("demo-bound");
        let kind_name = format!("{kind:?}");
        bound["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": kind_name, "name": "user", "uid": owner["metadata"]["uid"],
        }]);
        bound["metadata"]["finalizers"] = json!(["example.com/mine"]);
        let bound = create(&bound);
        create(&snapshot("demo-free"));

        let [one, other] = ["demo-bound", "demo-free"].map(|name| format!("{path}/{name}?dryRun=All"));
        for Row { change, ends } in changes(kind) {
            trial.tried(&format!("patch of {kind:?}: {change}"), ends, |api| {
                api.patch(&one, "application/merge-patch+json", &change)
            });
            let mut whole = bound.clone();
            merge(&mut whole, &change);
            trial.tried(&format!("put of {kind:?}: {change}"), &by_put(ends), |api| api.put(&one, &whole));
            // Server-side apply cannot remove fields that it has not set.
            if !change.to_string().contains("null") && !change.to_string().contains("[]") {
                let mut applied = change.clone();
                merge(&mut applied, &json!({"apiVersion": "v1", "kind": kind_name}));
                let forced = format!("{one}&fieldManager=trial&force=true");
                trial.tried(&format!("apply of {kind:?}: {change}"), ends, |api| {
                    api.patch(&forced, "application/apply-patch+yaml", &applied)
                });
            }
        }
        trial.tried("delete of a bound snapshot", "ggyyy", |api| api.delete(&one));
        trial.tried("delete of a snapshot without owners", "ygyyy", |api| api.delete(&other));
        let all = format!("{path}?dryRun=All&labelSelector=confrev.dev/source");
        trial.tried("delete of all", "ggrry", |api| api.delete(&all));
        let freed = json!({"metadata": {"finalizers": null}});
        let patched = admin.patch(&format!("{path}/demo-bound"), "application/merge-patch+json", &freed);
        assert_eq!(patched.0, 200, "{}", patched.1);
    }
    trial.done();
}

/// No existing object can be turned into a snapshot.
#[test]
fn only_confrev_and_backup_restorers_create_snapshots() {
    let trial = Trial::new();
    for kind in [Kind::ConfigMap, Kind::Secret] {
        let path = kind.path(trial.namespace.name());
        let collection = format!("{path}?dryRun=All");
        let snapshot = snapshot("demo-4a4a4a4a4a");
        trial.tried("create", "ygyrr", |api| api.post(&collection, &snapshot));
        let mut mutable = snapshot.clone();
        mutable["immutable"] = json!(false);
        trial.tried("create of a mutable snapshot", "gggrr", |api| api.post(&collection, &mutable));
        // An object with only one of the labels is not a snapshot.
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
    // The right to restore is a separate one, which no built-in role but cluster-admin has.
    trial.gives_editor("create");
    let collection = format!("{}?dryRun=All", Kind::ConfigMap.path(trial.namespace.name()));
    wait_for("the right to take effect", LIMIT, || {
        let (code, answer) = trial.users[1].post(&collection, &snapshot("demo-4a4a4a4a4a"));
        if code == 201 { Ok(()) } else { Err(answer) }
    });
    trial.done();
}

/// The garbage collector deletes an object whose owners do not exist, and it may delete every object.
#[test]
fn only_labels_and_annotations_of_the_key_change() {
    let trial = Trial::new();
    let path = "/api/v1/namespaces/confrev/secrets";
    let key = json!({"metadata": {"name": "confrev-digest-key"}, "data": {"key": "dHJ1ZQ=="}});
    wait_for("the guard of the key to take effect", LIMIT, || {
        let (code, answer) = trial.users[1].post(&format!("{path}?dryRun=All"), &key);
        if is_guard(code, &answer) { Ok(()) } else { Err(answer) }
    });
    let (code, answer) = trial.users[0].post(path, &key);
    assert_eq!(code, 201, "{answer}");
    let metadata = |change: Value| json!({"metadata": change});
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "5d1a"});
    let one = format!("{path}/confrev-digest-key?dryRun=All");
    // Administrators have leave, and so has the garbage collector, which may do everything.
    for (change, ends) in [
        (json!({"data": {"key": "ZXZpbA=="}}), "yggyr"),
        (json!({"data": null}), "yggyr"),
        (json!({"immutable": true}), "yggyr"),
        (metadata(json!({"ownerReferences": [absent]})), "yggyr"),
        (metadata(json!({"finalizers": ["example.com/mine"]})), "yggyr"),
        (metadata(json!({"labels": {"team": "shop"}})), "yyyyr"),
        (metadata(json!({"annotations": {"example.com/note": "kept"}})), "yyyyr"),
    ] {
        trial.tried(&format!("patch of the key: {change}"), ends, |api| {
            api.patch(&one, "application/merge-patch+json", &change)
        });
    }
    trial.tried("delete of the key", "yggyy", |api| api.delete(&one));
    trial.done();
}

/// confrev could not write a snapshot whose labels and annotations exceed the cost limits of `confrev-self`.
#[test]
fn others_cannot_exceed_cost_limits_of_binding() {
    let trial = Trial::new();
    let [admin, editor, confrev, ..] = &trial.users[..] else { panic!("five users") };
    for kind in [Kind::ConfigMap, Kind::Secret] {
        let path = kind.path(trial.namespace.name());
        let owner = admin.post(&path, &json!({"metadata": {"name": "user"}})).1;
        let (code, answer) = confrev.post(&path, &snapshot("demo-4a4a4a4a4a"));
        assert_eq!(code, 201, "{answer}");
        let one = format!("{path}/demo-4a4a4a4a4a");
        let patch = |api: &Api, metadata: Value| {
            api.patch(&one, "application/merge-patch+json", &json!({"metadata": metadata}))
        };
        // The most annotations that fit into the 256 KiB of an object.
        for marks in ["annotations", "labels"] {
            let (code, answer) = patch(editor, json!({marks: numbered(60_000)}));
            let message = answer["message"].as_str().unwrap_or_default();
            assert!(is_guard(code, &answer) && message.contains("at most 100 labels"), "{code} {message}");
        }
        let (code, answer) =
            patch(editor, json!({"labels": numbered(MOST_OTHERS), "annotations": numbered(MOST_OTHERS)}));
        assert_eq!(code, 200, "{answer}");
        let bound = json!({"ownerReferences": [{
            "apiVersion": "v1", "kind": format!("{kind:?}"), "name": "user", "uid": owner["metadata"]["uid"],
        }]});
        let (code, answer) = patch(confrev, bound);
        assert_eq!(code, 200, "{answer}");
    }
    trial.done();
}

/// Between its creation and its binding, a snapshot in use has no owners.
#[test]
fn no_user_replaces_snapshots_before_they_are_bound() {
    let trial = Trial::new();
    let [admin, editor, confrev, ..] = &trial.users[..] else { panic!("five users") };
    for kind in [Kind::ConfigMap, Kind::Secret] {
        let path = kind.path(trial.namespace.name());
        let (code, answer) = confrev.post(&path, &snapshot("demo-4a4a4a4a4a"));
        assert_eq!(code, 201, "{answer}");
        for one in ["/demo-4a4a4a4a4a", "?labelSelector=confrev.dev/source"] {
            let (code, answer) = editor.delete(&format!("{path}{one}"));
            let message = answer["message"].as_str().unwrap_or_default();
            assert!(is_guard(code, &answer) && message.contains("snapshots.confrev.dev"), "{code} {message}");
        }
        let impostor = json!({"metadata": {"name": "demo-4a4a4a4a4a"}, "data": {"text": "ZXZpbA=="}});
        assert_eq!(editor.post(&path, &impostor).0, 409);
    }
    trial.gives_editor("delete");
    for kind in [Kind::ConfigMap, Kind::Secret] {
        let path = kind.path(trial.namespace.name());
        wait_for("the right to take effect", LIMIT, || {
            let (code, answer) = editor.delete(&format!("{path}/demo-4a4a4a4a4a?dryRun=All"));
            if code == 200 { Ok(()) } else { Err(answer) }
        });
        // The right does not extend to snapshots in use.
        let owner = admin.post(&path, &json!({"metadata": {"name": "user"}})).1;
        let bound = json!({"metadata": {"ownerReferences": [{
            "apiVersion": "v1", "kind": format!("{kind:?}"), "name": "user", "uid": owner["metadata"]["uid"],
        }]}});
        let one = format!("{path}/demo-4a4a4a4a4a");
        let (code, answer) = confrev.patch(&one, "application/merge-patch+json", &bound);
        assert_eq!(code, 200, "{answer}");
        let (code, answer) = editor.delete(&one);
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(is_guard(code, &answer) && message.contains("in use by"), "{code} {message}");
    }
    trial.done();
}
