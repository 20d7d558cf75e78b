//! confrev's rights, which are exactly those that it uses: the tests compare the API server's audit log of all its work
//! with the rules of the chart and the table of docs/rights.md.

use std::collections::BTreeSet;
use std::fs;

use confrev_controlplane::{Api, Request, wait_for};
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT, SNAPSHOTS};
use crate::helm::{find, render, root};

/// One verb on one resource, for one object if the rule names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    /// `resource.group`, as in kubectl.
    pub(crate) resource: String,
    /// The object of the rule; empty for all objects.
    pub(crate) name: String,
    pub(crate) verb: String,
}

/// The two objects with rules, and their paths. The Role applies in confrev's own namespace only.
const ROLES: [(&str, &str); 2] = [
    ("ClusterRole/confrev", "/apis/rbac.authorization.k8s.io/v1/clusterroles/confrev"),
    ("Role/confrev", "/apis/rbac.authorization.k8s.io/v1/namespaces/confrev/roles/confrev"),
];

fn word(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}

fn full_name(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// Every single right of a role's rules.
pub(crate) fn rights(role: &Value) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    let nothing = vec![Value::from("")];
    for rule in role["rules"].as_array().unwrap() {
        for group in rule["apiGroups"].as_array().unwrap() {
            for resource in rule["resources"].as_array().unwrap() {
                for name in rule["resourceNames"].as_array().unwrap_or(&nothing) {
                    rights.extend(rule["verbs"].as_array().unwrap().iter().map(|verb| Right {
                        resource: full_name(&word(group), &word(resource)),
                        name: word(name),
                        verb: word(verb),
                    }));
                }
            }
        }
    }
    rights
}

/// The role without that right. Each other right becomes a rule of its own, so that no other right is lost.
fn without(role: &Value, right: &Right) -> Value {
    let rest: Vec<_> = rights(role)
        .into_iter()
        .filter(|other| other != right)
        .map(|Right { resource, name, verb }| {
            let (resource, group) = resource.split_once('.').unwrap_or((&resource, ""));
            let mut rule = json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
            if !name.is_empty() {
                rule["resourceNames"] = json!([name]);
            }
            rule
        })
        .collect();
    json!({"rules": rest})
}

/// The rights in the whole cluster, and those in confrev's own namespace.
fn granted(settings: &[(&'static str, Value)]) -> [BTreeSet<Right>; 2] {
    let rendered = render("confrev", settings);
    ROLES.map(|(which, _)| rights(find(&rendered, which).expect("the role exists")))
}

impl Right {
    /// Whether this right permits the request.
    pub(crate) fn covers(&self, request: &Request) -> bool {
        full_name(&request.group, &request.resource) == self.resource
            && request.verb == self.verb
            && (self.name.is_empty() || self.name == request.name)
    }
}

const SECRETS: [(&str, Value); 1] = [("secrets.enabled", Value::Bool(true))];
const ANALYSES: (&str, Value) = ("analysis.enabled", Value::Bool(true));

/// Unless Secrets are on, confrev can read none outside its own namespace.
#[test]
fn roles_have_no_wildcards_and_no_foreign_secrets() {
    for mode in ["self-signed", "cert-manager", "secret"] {
        let settings = [("certificates.mode", json!(mode)), ("certificates.secret.name", json!("pair"))];
        let [cluster, own] = granted(&settings);
        assert!(!format!("{cluster:?}{own:?}").contains('*'), "{mode}: a wildcard");
        let of_secrets = |rights: &BTreeSet<Right>| {
            let is_read = |right: &&Right| right.resource == "secrets" && right.verb != "create";
            rights.iter().filter(is_read).map(|right| right.name.clone()).collect::<BTreeSet<_>>()
        };
        assert_eq!(of_secrets(&cluster), BTreeSet::new(), "{mode}");
        let authority = (mode == "self-signed").then(|| "confrev-ca".to_owned());
        assert_eq!(of_secrets(&own), authority.into_iter().collect(), "{mode}");
        // No resource that gives further rights, or runs code.
        for resource in ["pods", "serviceaccounts", "roles", "nodes", "customresourcedefinitions"] {
            assert!(
                cluster.iter().chain(&own).all(|right| !right.resource.starts_with(resource)),
                "{resource}"
            );
        }
    }
}

/// The table's rows are `| verbs | resource | where | why |`.
#[test]
fn table_of_the_docs_explains_each_right() {
    let docs = fs::read_to_string(root().join("docs/rights.md")).unwrap();
    let mut told = BTreeSet::new();
    for line in docs.lines() {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [verbs, resource, place, why] = cells[..] else { continue };
        let Some(resource) = resource.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) else {
            continue;
        };
        assert!(why.len() > 20, "no reason: {line}");
        let name = place.split('`').nth(1).unwrap_or_default();
        for verb in verbs.split(", ") {
            let right = Right { resource: resource.to_owned(), name: name.to_owned(), verb: verb.to_owned() };
            assert!(told.insert((place.contains("own namespace"), right)), "twice: {line}");
        }
    }
    let all = [SECRETS[0].clone(), ANALYSES];
    let [cluster, own] = granted(&all).map(BTreeSet::into_iter);
    let wanted = cluster.map(|right| (false, right)).chain(own.map(|right| (true, right))).collect();
    let differ: Vec<_> = told.symmetric_difference(&wanted).collect();
    assert!(differ.is_empty(), "docs/rights.md and the chart differ: {differ:#?}");
}

/// Everything that can be turned on: Secrets, analyses of waves, and the configured kinds that a `workloadRef` may name.
fn everything() -> Vec<(&'static str, Value)> {
    let kind = |group, resource, kind, path| json!({"group": group, "version": "v1", "resource": resource, "kind": kind, "path": path});
    let kinds = [
        kind("apps", "replicasets", "ReplicaSet", "spec.template"),
        kind("", "podtemplates", "PodTemplate", "template"),
    ];
    [&SECRETS[..], &[ANALYSES, ("extraKinds", json!(kinds))]].concat()
}

/// The options that these settings give a pod.
const OPTIONS: [&str; 4] = [
    "--secrets",
    "--kind=apps/v1/replicasets/ReplicaSet=spec.template",
    "--kind=/v1/podtemplates/PodTemplate=template",
    "--orphan-grace=1s",
];

/// A workload of that kind, opted in by its namespace, that reads the ConfigMap `demo` and the Secret `keys`.
fn workload(version: &str, kind: &str, name: &str) -> Value {
    let labels = json!({"app": name});
    let mut pods = json!({"metadata": {"labels": labels}, "spec": {"containers": [{
        "name": "app", "image": "app:1",
        "envFrom": [{"configMapRef": {"name": "demo"}}, {"secretRef": {"name": "keys"}}],
    }]}});
    if kind.ends_with("Job") {
        pods["spec"]["restartPolicy"] = json!("Never");
    }
    let annotations = json!({"confrev.dev/secrets": "true", "confrev.dev/min-interval": "0"});
    let metadata = json!({"name": name, "annotations": annotations});
    if kind == "PodTemplate" {
        return json!({"apiVersion": version, "kind": kind, "metadata": metadata, "template": pods});
    }
    let spec = match kind {
        "Job" => json!({"template": pods}),
        "CronJob" => {
            json!({"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": {"spec": {"template": pods}}})
        }
        // It only holds a template, and has no pods.
        "ReplicaSet" => json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": pods}),
        _ => json!({"selector": {"matchLabels": labels}, "template": pods}),
    };
    json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
}

const KINDS: [(&str, &str, &str); 8] = [
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("apps/v1", "DaemonSet", "daemonsets"),
    ("argoproj.io/v1alpha1", "Rollout", "rollouts"),
    ("batch/v1", "CronJob", "cronjobs"),
    ("batch/v1", "Job", "jobs"),
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("v1", "PodTemplate", "podtemplates"),
];

/// Both sources, with this content. They keep no unused snapshot.
fn sources(text: &str) -> Value {
    let metadata = |name| json!({"name": name, "annotations": {"confrev.dev/keep": "0"}});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("demo"), "data": {"text": text}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata("keys"), "stringData": {"key": text}},
    ]})
}

/// Everything that confrev does, once.
struct Story<'a> {
    bare: &'a Bare,
    namespace: &'a str,
}

impl Story<'_> {
    fn apply(&self, object: &Value) {
        crate::empty_cluster::apply(self.bare, self.namespace, object).ok();
    }

    fn snapshots(&self) -> BTreeSet<String> {
        let of = |kind| self.bare.cluster.list(kind, self.namespace, SNAPSHOTS);
        let names = [of("configmaps"), of("secrets")].concat();
        names.iter().map(|object| word(&object["metadata"]["name"])).collect()
    }

    fn revisions_that_name(&self, snapshot: &str) -> BTreeSet<&'static str> {
        let names = |resource: &&(&str, &str, &'static str)| {
            let found = self.bare.cluster.list(resource.2, self.namespace, "");
            found.iter().any(|object| {
                [&object["spec"], &object["template"]]
                    .iter()
                    .any(|part| part.to_string().contains(&format!("\"{snapshot}\"")))
            })
        };
        KINDS.iter().filter(names).map(|(.., resource)| *resource).collect()
    }

    fn wait_snapshot_in(&self, new_since: &BTreeSet<String>, kinds: usize) -> BTreeSet<String> {
        wait_for("the workloads to roll to the content", LIMIT, || {
            let new: Vec<_> = self.snapshots().difference(new_since).cloned().collect();
            let taken: Vec<_> = new.iter().map(|snapshot| self.revisions_that_name(snapshot)).collect();
            if taken.len() == 2 && taken.iter().all(|by| by.len() == kinds) {
                Ok(())
            } else {
                Err(format!("{new:?}: {taken:?}"))
            }
        });
        self.snapshots()
    }

    /// Workloads of every kind roll through two contents; a Job has the first only.
    fn workloads(&self) {
        self.apply(&sources("A"));
        for (version, kind, resource) in KINDS {
            self.apply(&workload(version, kind, resource));
        }
        let first = self.wait_snapshot_in(&BTreeSet::new(), 8);
        self.apply(&sources("B"));
        self.wait_snapshot_in(&first, 7);
    }

    /// Revisions lose their label, so confrev reads live whether they still use their snapshots. A Job of a CronJob is a
    /// revision.
    fn unlabelled(&self) {
        let create = ["create", "job", "once", "--from=cronjob/cronjobs", "--namespace", self.namespace];
        self.bare.cluster.kubectl(&create).run().ok();
        wait_for("the Job of a CronJob to own a snapshot", LIMIT, || {
            let snapshots = self.bare.cluster.list("configmaps", self.namespace, SNAPSHOTS);
            let owners = |object: &Value| object["metadata"]["ownerReferences"].to_string();
            snapshots.iter().any(|object| owners(object).contains("\"once\"")).then_some(())
        });
        for kind in ["jobs", "controllerrevisions"] {
            let label = ["label", kind, "--all", "confrev.dev/revision-", "--namespace", self.namespace];
            self.bare.cluster.kubectl(&label).run().ok();
        }
    }

    /// Rollouts with a `workloadRef` to each kind that Argo Rollouts supports.
    fn by_reference(&self) {
        let target =
            |(_, kind, _): &&(&str, &str, &str)| ["Deployment", "ReplicaSet", "PodTemplate"].contains(kind);
        for (version, kind, name) in KINDS.iter().filter(target) {
            let mut rollout = workload("argoproj.io/v1alpha1", "Rollout", &format!("by-{name}"));
            let spec = rollout["spec"].as_object_mut().unwrap();
            spec.remove("template");
            spec.insert("workloadRef".to_owned(), json!({"apiVersion": version, "kind": kind, "name": name}));
            self.apply(&rollout);
        }
    }

    /// A workload that is refused after admission leaves snapshots that nothing uses.
    fn orphans(&self) {
        let lost = |object: &Value| -> Value {
            let text = object.to_string().replace("\"demo\"", "\"lost\"").replace("\"keys\"", "\"lost\"");
            serde_json::from_str(&text).unwrap()
        };
        self.apply(&lost(&sources("A")));
        let mut invalid = lost(&workload("apps/v1", "Deployment", "invalid"));
        invalid["spec"]["selector"]["matchLabels"]["app"] = json!("other");
        let refused = crate::empty_cluster::apply(self.bare, self.namespace, &invalid).refused();
        assert!(refused.contains("invalid"), "{refused}");
    }

    /// A change fails, so the next workload is held, and confrev reports that with an Event.
    fn held(&self) {
        let source = |text| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": text},
            "metadata": {"name": "limited", "annotations": {"confrev.dev/max-in-flight": "1"}}})
        };
        self.apply(&source("A"));
        for name in ["first", "second"] {
            let mut gated = workload("apps/v1", "Deployment", name);
            gated["spec"]["progressDeadlineSeconds"] = json!(1);
            gated["spec"]["template"]["spec"] = json!({
                "schedulingGates": [{"name": "test/never"}],
                "containers": [{"name": "app", "image": "app:1", "envFrom": [{"configMapRef": {"name": "limited"}}]}],
            });
            self.apply(&gated);
        }
        self.apply(&source("B"));
    }

    /// Two changes in waves. The AnalysisRun of the first one is created beside an old one that still runs, and more that have
    /// ended than confrev keeps.
    fn analysed(&self) {
        // It is not measured before the story ends.
        let metrics = json!([{"name": "sound", "initialDelay": "1h", "successCondition": "true",
            "provider": {"web": {"url": "http://127.0.0.1:1", "jsonPath": "{$}"}}}]);
        let version = "argoproj.io/v1alpha1";
        let template = |kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "sound"}, "spec": {"metrics": metrics}});
        let source = |name: &str, analysis: &str, text: &str| {
            let annotations = json!({"confrev.dev/waves": "1", "confrev.dev/analysis": analysis});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": text},
                "metadata": {"name": name, "annotations": annotations}})
        };
        let both = |text: &str| {
            self.apply(&source("analysed", "sound", text));
            self.apply(&source("analysed-too", "cluster/sound", text));
        };
        self.apply(&template("AnalysisTemplate"));
        self.apply(&template("ClusterAnalysisTemplate"));
        both("A");
        let known = self.bare.cluster.get("configmap", self.namespace, "analysed").expect("the ConfigMap");
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "analysed", "uid": known["metadata"]["uid"]});
        for number in 0..12 {
            let labels = json!({"app.kubernetes.io/managed-by": "confrev", "confrev.dev/source": "analysed"});
            let mut run = json!({
                "apiVersion": version, "kind": "AnalysisRun", "spec": {"metrics": metrics},
                "metadata": {"name": format!("old-{number}"), "labels": labels, "ownerReferences": [owner]},
            });
            if number > 0 {
                run["status"] = json!({"phase": "Successful"});
            }
            self.apply(&run);
        }
        for name in ["analysed", "analysed-too"] {
            for number in 0..2 {
                let mut reader = workload("apps/v1", "Deployment", &format!("{name}-{number}"));
                reader["spec"]["replicas"] = json!(0);
                let pods = &mut reader["spec"]["template"]["spec"];
                pods["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": name}}]);
                self.apply(&reader);
            }
        }
        both("B");
    }

    /// The CA's Secret lacks the certificate that clients trust.
    fn broken_authority(&self) {
        let patch = ["patch", "secret", "confrev-ca", "--namespace=confrev", "--type=merge"];
        let change = json!({"data": {"ca.crt": null}}).to_string();
        self.bare.cluster.kubectl(&patch).arg("--patch").arg(&change).run().ok();
    }
}

/// confrev uses each of its rights, and no request of confrev's is refused. Then the test removes each right in turn and
/// repeats a request of confrev's that needed it. The request is refused, so no other rule grants the same.
#[test]
fn confrev_needs_every_right_that_it_has() {
    let bare = Bare::new();
    let namespace = bare.cluster.namespace_labelled("rights", &[("confrev.dev/enabled", "true")]);
    let before = bare.cluster.requests_of_confrev().len();
    let (mut program, _) = bare.running_with(&everything(), &OPTIONS);
    let story = Story { bare: &bare, namespace: namespace.name() };
    story.workloads();
    story.unlabelled();
    story.by_reference();
    story.held();
    story.analysed();
    story.broken_authority();
    story.orphans();

    let [cluster, own] = granted(&everything());
    let requests = || bare.cluster.requests_of_confrev().split_off(before);
    // Match each right in its own scope: a request in confrev's namespace may be permitted by either role.
    let of = |right: &Right, inside: bool, requests: &[Request]| {
        let is_it = |request: &&Request| right.covers(request) && inside == (request.namespace == "confrev");
        requests.iter().find(is_it).cloned()
    };
    let all = || cluster.iter().map(|right| (right, false)).chain(own.iter().map(|right| (right, true)));
    wait_for("every right to be used", LIMIT, || {
        let requests = requests();
        let unused: Vec<_> =
            all().filter(|(right, inside)| of(right, *inside, &requests).is_none()).collect();
        if unused.is_empty() { Ok(()) } else { Err(format!("{unused:?}")) }
    });
    let requests = requests();
    let refused: Vec<_> = requests.iter().filter(|request| !request.allowed).collect();
    assert!(refused.is_empty(), "requests of confrev were refused: {refused:?}");
    program.stop();

    let mine = bare.cluster.api_as(&bare.cluster.kubeconfig_for_service_account("confrev", "confrev"));
    // If Secrets are on, the cluster-wide rights include those in confrev's own namespace.
    for (reach, settings) in [(0, everything()), (1, Vec::new())] {
        let rendered = render("confrev", &settings);
        let roles = ROLES.map(|(which, path)| (find(&rendered, which).expect("the role exists"), path));
        for (role, path) in &roles {
            set_rules(&bare, path, role);
        }
        let (role, path) = roles[reach];
        for right in rights(role) {
            let request = of(&right, reach == 1, &requests).expect("the right was used");
            set_rules(&bare, path, &without(role, &right));
            wait_for(&format!("the request without {right:?} to be refused"), LIMIT, || {
                let (code, answer) = send(&mine, &request);
                let message = answer["message"].as_str().unwrap_or_default();
                let forbidden = code == 403 && message.contains("cannot");
                if forbidden { Ok(()) } else { Err(format!("{code} {message}")) }
            });
            set_rules(&bare, path, role);
        }
    }
    bare.uninstall().ok();
}

fn set_rules(bare: &Bare, path: &str, role: &Value) {
    let change = json!({"rules": role["rules"]});
    let (code, answer) = bare.cluster.api().patch(path, "application/merge-patch+json", &change);
    assert_eq!(code, 200, "{answer}");
}

/// Repeats the request as a dry-run with an empty body. Authorization comes first, so the body does not matter.
fn send(api: &Api, request: &Request) -> (u16, Value) {
    let joint = if request.uri.contains('?') { '&' } else { '?' };
    let dry = format!("{}{joint}dryRun=All", request.uri);
    match request.verb.as_str() {
        "create" => api.post(&dry, &json!({})),
        "update" => api.put(&dry, &json!({})),
        "patch" => api.patch(&dry, "application/merge-patch+json", &json!({})),
        "delete" => api.delete(&dry),
        _ => api.get(&format!("{}{joint}timeoutSeconds=1", request.uri.replace("timeoutSeconds", "was"))),
    }
}
