//! The roles for the people who use the commands: each right is used by a command, and no command needs another one.

use std::path::Path;
use std::process::{Command, Output};

use confrev_controlplane::{Request, wait_for};
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT, apply};
use crate::helm::{find, render};
use crate::rights::{Right, rights};

const PLACE: &str = "people";
/// The annotation by which Wave finds a workload.
const WAVE: &str = "wave.pusher.com/update-on-config-change=true";
/// The kinds whose workloads roll, as the commands name them.
const KINDS: [(&str, &str); 5] = [
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("argoproj.io/v1alpha1", "Rollout"),
    ("batch/v1", "CronJob"),
];

fn source(text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo"}, "data": {"text": text}})
}

/// A Deployment that reads a key of another ConfigMap, without which its roll is refused, and that ConfigMap.
fn refused(key: &str) -> Value {
    let mut deployment = workload("apps/v1", "Deployment");
    deployment["metadata"] = json!({"name": "refused", "annotations": {"confrev.dev/missing": "deny"}});
    let variable = json!({"name": "K", "valueFrom": {"configMapKeyRef": {"name": "other", "key": "text"}}});
    let spec = &mut deployment["spec"];
    for labels in ["/selector/matchLabels", "/template/metadata/labels"] {
        *spec.pointer_mut(labels).expect("it has labels") = json!({"app": "refused"});
    }
    spec["template"]["spec"]["containers"] = json!([{"name": "app", "image": "app:1", "env": [variable]}]);
    let other =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}, "data": {key: "A"}});
    let items = if key == "text" { json!([other, deployment]) } else { json!([other]) };
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// A workload of that kind that reads the ConfigMap, opted in by its namespace.
fn workload(version: &str, kind: &str) -> Value {
    let name = kind.to_lowercase();
    let labels = json!({"app": name});
    let mut pods = json!({"metadata": {"labels": labels}, "spec": {"containers": [
        {"name": "app", "image": "app:1", "envFrom": [{"configMapRef": {"name": "demo"}}]}]}});
    if kind == "CronJob" {
        pods["spec"]["restartPolicy"] = json!("Never");
    }
    let mut spec = if kind == "CronJob" {
        json!({"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": {"spec": {"template": pods}}})
    } else {
        json!({"selector": {"matchLabels": labels}, "template": pods})
    };
    if kind == "Rollout" {
        spec["strategy"] = json!({"canary": {}});
    }
    let metadata = json!({"name": name, "annotations": {"confrev.dev/min-interval": "0"}});
    json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
}

/// A person with one of the roles in the whole cluster.
struct Person {
    kubeconfig: std::path::PathBuf,
}

impl Person {
    fn new(bare: &Bare, role: &str) -> Self {
        bare.cluster.kubectl(&["create", "serviceaccount", role, "--namespace=confrev"]).run().ok();
        let account = format!("--serviceaccount=confrev:{role}");
        let of = format!("--clusterrole={role}");
        bare.cluster.kubectl(&["delete", "clusterrolebinding", role, "--ignore-not-found"]).run().ok();
        bare.cluster.kubectl(&["create", "clusterrolebinding", role, &of, &account]).run().ok();
        let person = Self { kubeconfig: bare.cluster.kubeconfig_for_service_account("confrev", role) };
        wait_for("the role to take effect", LIMIT, || {
            let output = person.run(&["status"]);
            if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
        });
        person
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let place: &[&str] =
            if arguments.contains(&"--all-namespaces") { &[] } else { &["--namespace", PLACE] };
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_confrev")));
        command.args(arguments).args(place).env("KUBECONFIG", &self.kubeconfig);
        command.output().expect("the program runs")
    }

    /// A command that succeeds, and leaves nothing out.
    #[track_caller]
    fn does(&self, line: &str) {
        self.answers(line, 0);
    }

    #[track_caller]
    fn answers(&self, line: &str, code: i32) -> String {
        let output = self.run(&line.split(' ').collect::<Vec<_>>());
        let said = format!("{line}: {output:?}");
        assert!(output.status.code() == Some(code) && !said.contains("you may not"), "{said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// The rights of a role that no request used, and the requests that no right covers.
fn differences(role: &str, requests: &[Request]) -> (Vec<Right>, Vec<String>) {
    let user = format!("system:serviceaccount:confrev:{role}");
    let mine: Vec<_> = requests.iter().filter(|request| request.user == user).collect();
    let rights = rights(find(&render("confrev", &[]), &format!("ClusterRole/{role}")).expect("a role"));
    let unused = rights.iter().filter(|right| !mine.iter().any(|request| right.covers(request)));
    // Every user may ask for their own rights and the API's resources.
    let refused = mine.iter().filter(|request| !request.allowed);
    let refused = refused.map(|request| format!("{} {}.{}", request.verb, request.resource, request.group));
    (unused.cloned().collect(), refused.collect())
}

#[test]
fn roles_of_users_hold_exactly_what_commands_need() {
    let bare = Bare::new();
    let (_program, _) = bare.running();
    bare.cluster.kubectl(&["delete", "namespace", PLACE, "--ignore-not-found"]).run().ok();
    bare.cluster.kubectl(&["create", "namespace", PLACE]).run().ok();
    bare.cluster.kubectl(&["label", "namespace", PLACE, "confrev.dev/enabled=true"]).run().ok();
    apply(&bare, PLACE, &source("A")).ok();
    for (version, kind) in KINDS {
        apply(&bare, PLACE, &workload(version, kind)).ok();
    }
    let mut job = workload("batch/v1", "CronJob")["spec"]["jobTemplate"].clone();
    (job["apiVersion"], job["kind"], job["metadata"]) =
        (json!("batch/v1"), json!("Job"), json!({"name": "once"}));
    apply(&bare, PLACE, &job).ok();
    // A workload with a refused roll needs no further right.
    apply(&bare, PLACE, &refused("text")).ok();
    apply(&bare, PLACE, &refused("else")).ok();
    let before = bare.cluster.requests_of_confrev().len();
    let viewer = Person::new(&bare, "confrev-viewer");
    viewer.does("wait demo --timeout=60s");
    apply(&bare, PLACE, &source("B")).ok();
    let viewer_reads = |person: &Person| {
        person.does("wait demo --timeout=60s");
        for line in [
            "status",
            "status --all-namespaces",
            "tree deployment/deployment",
            "history demo",
            "impact demo",
            "migrate",
            "prune",
            "version",
        ] {
            person.does(line);
        }
        for object in ["deployment/deployment", "deployment/deployment@1", "statefulset/statefulset@1"] {
            person.does(&format!("show {object}"));
        }
        assert!(person.answers("diff demo", 1).contains("+B"));
        let file = bare.cluster.state_dir().join("people.json");
        std::fs::write(&file, source("C").to_string()).expect("the state folder can be written");
        person.does(&format!("impact -f {}", file.display()));
        let found = person.answers("check", 0);
        // There are no pods, and two checks need a right to ask about other users, or to create workloads.
        let passed = found.lines().filter(|line| line.starts_with("ok "));
        assert_eq!(passed.count(), 6, "{found}");
    };
    viewer_reads(&viewer);
    let refused = viewer.run(&["undo", "deployment/deployment"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot patch"), "{refused:?}");

    let operator = Person::new(&bare, "confrev-operator");
    viewer_reads(&operator);
    for (_, kind) in KINDS {
        let name = format!("{0}/{0}", kind.to_lowercase());
        if kind == "CronJob" {
            // It has no revision objects.
            operator.does(&format!("pin {name} demo ~1"));
        } else {
            operator.does(&format!("undo {name}"));
        }
        operator.does(&format!("unpin {name}"));
        operator.does(&format!("pause {name}"));
        operator.does(&format!("resume {name}"));
    }
    let annotate = |note: &str| {
        bare.cluster.kubectl(&["annotate", "configmap", "demo", "--namespace", PLACE, note]).run().ok();
    };
    bare.cluster.kubectl(&["annotate", "deployment/deployment", WAVE, "--namespace", PLACE]).run().ok();
    operator.does("migrate --yes");
    annotate("confrev.dev/waves=1");
    for line in ["waves demo", "waves abort demo", "waves demo", "waves retry demo"] {
        operator.does(line);
    }
    viewer.does("waves demo");
    annotate("confrev.dev/waves-");
    operator.does("restore demo ~1 --yes");
    bare.cluster.kubectl(&["delete", "configmap", "demo", "--namespace", PLACE]).run().ok();
    operator.does("restore demo --yes");

    for role in ["confrev-viewer", "confrev-operator"] {
        let (unused, refused) = differences(role, &bare.cluster.requests_of_confrev().split_off(before));
        assert_eq!(unused, [], "{role}: rights that no command uses");
        let known = |line: &String| {
            let of_check = ["create subjectaccessreviews.authorization.k8s.io", "create deployments.apps"];
            // A viewer cannot try the roll of a pending workload, and is refused an undo above.
            of_check.contains(&line.as_str()) || (role == "confrev-viewer" && line.starts_with("patch "))
        };
        let unknown: Vec<_> = refused.iter().filter(|line| !known(line)).collect();
        assert!(unknown.is_empty(), "{role}: {unknown:?}");
        bare.cluster.kubectl(&["delete", "clusterrolebinding", role]).run().ok();
    }
    bare.cluster.kubectl(&["delete", "namespace", PLACE, "--wait=false"]).run().ok();
    bare.uninstall().ok();
}
