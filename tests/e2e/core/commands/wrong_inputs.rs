//! Wrong inputs in a cluster, each with its exact answer: names, rights, missing objects.

use serde_json::json;

use super::{Commands as _, confrev};
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::World;

/// A line, its exit code, and its answer. `NS` is the namespace, `A` and `B` are the snapshots of `demo`.
const LINES: &[(&str, i32, &str)] = &[
    (
        "status nothing",
        1,
        "no opted-in workload \"nothing\" in namespace \"NS\": is it labelled confrev.dev/enabled=true?",
    ),
    ("status -l =", 2, "invalid --selector \"=\": found '=', expected: !, identifier, or 'end of string'"),
    ("tree pod/web", 2, "unknown kind of workload \"pod\""),
    (
        "tree sts/web",
        1,
        "no opted-in workload \"sts/web\" in namespace \"NS\": is it labelled confrev.dev/enabled=true?",
    ),
    (
        "tree plain",
        1,
        "no opted-in workload \"plain\" in namespace \"NS\": is it labelled confrev.dev/enabled=true?",
    ),
    ("tree twice", 2, "\"twice\" is ambiguous: give one of Rollout/twice, Deployment/twice"),
    (
        "history nothing",
        1,
        "ConfigMap \"nothing\" does not exist in namespace \"NS\", nor does a snapshot of it",
    ),
    (
        "history secret/nothing",
        1,
        "Secret \"nothing\" does not exist in namespace \"NS\", nor does a snapshot of it",
    ),
    (
        "diff web",
        2,
        "ConfigMap \"web\" does not exist in namespace \"NS\", nor does a snapshot of it; for the workload, give \
         Deployment/web",
    ),
    (
        "wait web",
        1,
        "no opted-in workload in namespace \"NS\" uses ConfigMap \"web\"; for the workload, give Deployment/web",
    ),
    ("diff once", 2, "ConfigMap \"once\" has no snapshot with different content"),
    ("diff demo ffff", 2, "ConfigMap \"demo\" has no snapshot \"ffff\": see its history"),
    ("diff demo ~9", 2, "ConfigMap \"demo\" has 2 snapshots, and no \"~9\""),
    ("diff demo ~x", 2, "ConfigMap \"demo\" has 2 snapshots, and no \"~x\""),
    ("diff deployment/web ~1", 2, "snapshots can be given only for a source, not for a workload"),
    ("wait nothing", 1, "no opted-in workload in namespace \"NS\" uses ConfigMap \"nothing\""),
    ("wait -l app=none", 1, "no opted-in workload in namespace \"NS\" has the labels app=none"),
    (
        "wait deployment/none",
        1,
        "no opted-in workload \"deployment/none\" in namespace \"NS\": is it labelled confrev.dev/enabled=true?",
    ),
    (
        "impact nothing",
        1,
        "ConfigMap \"nothing\" does not exist in namespace \"NS\", and no workload uses it",
    ),
    ("undo once", 1, "Deployment/once has no revision with other config to roll back to"),
    ("undo web --source once", 1, "Deployment/web does not use ConfigMap \"once\"; it uses demo"),
    (
        "undo web --to-revision 9",
        1,
        "Deployment/web has no revision 9 with config: see kubectl confrev tree --all Deployment/web",
    ),
    ("pin web once ~0", 1, "Deployment/web does not use ConfigMap \"once\"; it uses demo"),
    ("pin web demo 0000", 1, "ConfigMap \"demo\" has no snapshot \"0000\": see its history"),
    (
        "pin web demo ~0",
        1,
        "B is the present content of ConfigMap \"demo\", which no pin keeps: to keep it, add --hold, or run `kubectl confrev \
         pause Deployment/web`",
    ),
    ("unpin web --source once", 1, "Deployment/web does not use ConfigMap \"once\"; it uses demo"),
    (
        "restore demo",
        1,
        "ConfigMap \"demo\" exists: give the snapshot to restore its content from, see kubectl confrev history \
         configmap/demo",
    ),
    ("restore demo ~1", 2, "standard input is not a terminal: give --yes or --dry-run"),
    (
        "restore nothing",
        1,
        "ConfigMap \"nothing\" does not exist in namespace \"NS\", nor does a snapshot of it",
    ),
    (
        "history demo --as nobody",
        1,
        "configmaps \"demo\" is forbidden: User \"nobody\" cannot get resource \"configmaps\" in API group \"\" in the \
         namespace \"NS\"",
    ),
    (
        "status --as nobody",
        1,
        "rollouts.argoproj.io is forbidden: User \"nobody\" cannot list resource \"rollouts\" in API group \
         \"argoproj.io\" in the namespace \"NS\"",
    ),
    (
        "undo web --as reader",
        1,
        "deployments.apps \"web\" is forbidden: User \"reader\" cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"NS\"",
    ),
    (
        "pause web --as reader",
        1,
        "deployments.apps \"web\" is forbidden: User \"reader\" cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"NS\"",
    ),
    (
        "restore demo ~1 --yes --as reader",
        1,
        "configmaps \"demo\" is forbidden: User \"reader\" cannot patch resource \"configmaps\" in API group \"\" in the namespace \"NS\"",
    ),
    ("waves demo", 1, "ConfigMap \"demo\" has no waves: see the annotation confrev.dev/waves"),
    ("waves promote demo", 1, "ConfigMap \"demo\" has no waves: see the annotation confrev.dev/waves"),
    ("waves abort cm demo", 1, "ConfigMap \"demo\" has no waves: see the annotation confrev.dev/waves"),
    (
        "waves retry nothing",
        1,
        "ConfigMap \"nothing\" does not exist in namespace \"NS\", nor does a snapshot of it",
    ),
    (
        "waves promote staged",
        1,
        "ConfigMap/staged: the last wave of STAGED has begun, so none is left to promote",
    ),
    (
        "waves abort staged --as reader",
        1,
        "configmaps \"staged\" is forbidden: User \"reader\" cannot patch resource \"configmaps\" in API group \"\" in the namespace \"NS\"",
    ),
    (
        "revoke nothing",
        1,
        "ConfigMap \"nothing\" does not exist in namespace \"NS\", nor does a snapshot of it",
    ),
    ("revoke demo ~9", 1, "ConfigMap \"demo\" has 2 snapshots, and no \"~9\""),
    (
        "revoke demo ~0",
        1,
        "B is the present content of ConfigMap \"demo\": change ConfigMap \"demo\" first, then revoke the snapshot",
    ),
    (
        "revoke demo --dry-run",
        1,
        "ConfigMap \"once\" in namespace \"NS\" has the content that is revoked: change it first; nothing was written",
    ),
    ("show pod/nothing", 1, "Pod/nothing does not exist in namespace \"NS\""),
    (
        "show nothing",
        1,
        "no opted-in workload \"nothing\" in namespace \"NS\": is it labelled confrev.dev/enabled=true?",
    ),
    ("show web@9", 1, "Deployment/web has no revision 9: it has 1, 2"),
    (
        "show cm/demo",
        2,
        "unknown kind of object \"cm\": for a source, run kubectl confrev history configmap/demo",
    ),
    (
        "undo web --hold --as reader",
        1,
        "deployments.apps \"web\" is forbidden: User \"reader\" cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"NS\"",
    ),
    ("undo once --hold", 1, "Deployment/once has no revision with other config to roll back to"),
    ("pin web demo 0000 --hold", 1, "ConfigMap \"demo\" has no snapshot \"0000\": see its history"),
    // A shell has replaced an unquoted ~0.
    (
        "pin web demo /root",
        1,
        "ConfigMap \"demo\" has no snapshot \"/root\": see its history; quote ~N, as in '~1'",
    ),
    ("status --token wrong", 1, "the API server at URL rejected the credentials: log in again"),
    ("check --confrev-namespace nowhere", 3, "2 of 9 checks failed"),
    ("version --client -o name", 2, "a version has no name: use --output table, json or yaml"),
];

#[test]
fn every_command_names_a_missing_namespace() {
    let _confrev = running();
    for line in [
        "status",
        "tree web",
        "history demo",
        "show web",
        "show pod/web",
        "diff demo",
        "wait demo",
        "waves demo",
        "impact demo",
        "undo web",
        "pin web demo ~1",
        "unpin web",
        "roll web",
        "pause web",
        "resume web",
        "restore demo",
        "revoke demo",
        "migrate",
        "prune",
    ] {
        let said = confrev(&[&line.split(' ').collect::<Vec<_>>()[..], &["-n", "no-such"]].concat());
        assert_eq!(said.stderr, "error: namespace \"no-such\" does not exist\n", "{line}");
        assert_eq!(said.code, if line.starts_with("diff") { 2 } else { 1 }, "{line}");
    }
    let said = confrev(&["check", "-n", "no-such"]);
    assert!(
        said.stdout.contains("failed   admission    namespace \"no-such\" does not exist"),
        "{}",
        said.stdout
    );
}

#[test]
fn wrong_inputs_get_one_exact_line() {
    let _confrev = running();
    let world = World::new("wrong");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    for (name, text) in [("demo", "A"), ("once", "A")] {
        world.set_config(name, text);
    }
    world.apply(&web.manifest()).ok();
    world.apply(&Workload::new(Kind::Deployment, "once", &["once"]).replicas(0).manifest()).ok();
    world
        .apply(&Workload::new(Kind::Deployment, "plain", &["once"]).replicas(0).enabled(None).manifest())
        .ok();
    for kind in Kind::ALL {
        world.apply(&Workload::new(kind, "twice", &["once"]).replicas(0).manifest()).ok();
    }
    let staged = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "staged",
        "annotations": {"confrev.dev/waves": "1"}}, "data": {"text": "C"}});
    world.apply(&staged).ok();
    world.apply(&Workload::new(Kind::Deployment, "staged", &["staged"]).replicas(0).manifest()).ok();
    world.set_config("demo", "B");
    world.wait_resolved(&web, "demo", "B");
    world.wait_at_rest();
    let all = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]});
    world.apply(&all).ok();
    world.kubectl(&["create", "rolebinding", "reader", "--role=reader", "--user=reader"]).ok();
    confrev_controlplane::wait_for("the right to read", crate::world::LIMIT, || {
        let said = world.confrev(&["status", "--as", "reader"]);
        if said.code == 0 { Ok(()) } else { Err(said.stderr) }
    });
    let (a, b) = (world.snapshot_name("demo", "A"), world.snapshot_name("demo", "B"));
    let staged = world.snapshot_name("staged", "C");
    let url = world.cluster.api_url();
    let mut wrong = Vec::new();
    for (line, code, wanted) in LINES {
        let said = world.confrev(&line.split(' ').collect::<Vec<_>>());
        let found = said.stderr.replace(&format!("\"{}\"", world.name()), "\"NS\"");
        let found = found
            .replace(&a, "A")
            .replace(&b, "B")
            .replace(&staged, "STAGED")
            .replace(&format!("{url}/"), "URL")
            .replace(url, "URL");
        let is_so = said.code == *code && found == format!("error: {wanted}\n");
        if !is_so {
            wrong.push(format!("$ {line}\n  {} {found}  wanted: {code} {wanted}", said.code));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
