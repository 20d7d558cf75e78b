//! The control plane runs workloads as a cluster does, and never outlives its owner.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use confrev_controlplane::{ControlPlane, holds_for, wait_for};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(1);

fn workload(api_version: &str, kind: &str, replicas: u32) -> Value {
    let strategy = if kind == "Rollout" { json!({"canary": {}}) } else { Value::Null };
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "strategy": strategy,
            "selector": {"matchLabels": {"app": kind}},
            "template": {
                "metadata": {"labels": {"app": kind}},
                "spec": {"containers": [{
                    "name": "web",
                    "image": "web",
                    "envFrom": [{"configMapRef": {"name": "settings"}}],
                }]},
            },
        },
    })
}

#[test]
fn pods_of_deployments_and_rollouts_become_ready() {
    let cluster = ControlPlane::shared();
    let namespace = cluster.namespace("workloads");
    let name = namespace.name();
    cluster.create("ConfigMap", name, &json!({"metadata": {"name": "settings"}, "data": {"LEVEL": "info"}}));
    for (version, kind, replicas) in [("apps/v1", "Deployment", 2), ("argoproj.io/v1alpha1", "Rollout", 3)] {
        let manifest = workload(version, kind, replicas);
        cluster.kubectl(&["apply", "-n", name, "-f", "-"]).stdin(manifest).run().ok();
    }
    for (kind, replicas) in [("Deployment", 2), ("Rollout", 3)] {
        let pods = wait_for(&format!("{replicas} ready pods of the {kind}"), LIMIT, || {
            let pods = cluster.ready_pods(name, &format!("app={kind}"));
            if pods.len() == replicas { Ok(pods) } else { Err(format!("{} ready pods", pods.len())) }
        });
        assert_eq!(cluster.pod_config(&pods[0]).unwrap().env["web/LEVEL"], "info");
    }
    cluster.argo(&["restart", "web", "-n", name]).run().ok();
    let replica_sets = cluster.list("ReplicaSet", name, "app=Rollout");
    assert_eq!(replica_sets.len(), 1);
    assert!(namespace.describe().contains("owner=Rollout/web"), "{}", namespace.describe());
    cluster.kubectl(&["delete", "rollout", "web", "-n", name]).run().ok();
    wait_for("the garbage collector to delete the Rollout's ReplicaSet", LIMIT, || {
        cluster.list("ReplicaSet", name, "app=Rollout").is_empty().then_some(())
    });
}

/// ServiceAccounts as well as users with a client certificate.
#[test]
fn users_have_only_their_granted_rights() {
    let cluster = ControlPlane::shared();
    let namespace = cluster.namespace("users");
    let name = namespace.name();
    cluster.create("ServiceAccount", name, &json!({"metadata": {"name": "robot"}}));
    let robot = cluster.kubeconfig_for_service_account(name, "robot");
    let whoami = cluster.kubectl(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]);
    assert_eq!(whoami.kubeconfig(&robot).run().ok(), format!("system:serviceaccount:{name}:robot"));
    let refusal = cluster.kubectl(&["get", "pods", "-n", name]).kubeconfig(&robot).run().refused();
    assert!(refusal.contains("forbidden"), "{refusal}");

    let groups = ["developers", "night-shift"];
    let jane = cluster.api_as(&cluster.kubeconfig_for_user("jane", &groups).unwrap());
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let (code, answer) = jane.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review);
    assert_eq!(code, 201, "{answer}");
    let user = &answer["status"]["userInfo"];
    assert_eq!(user["username"], "jane");
    assert_eq!(user["groups"], json!(["developers", "night-shift", "system:authenticated"]));
    assert_eq!(jane.get("/api/v1/secrets").0, 403);
    assert!(cluster.kubeconfig_for_user("jane", &["a", "b", "c"]).is_err());
}

/// The state folder is removed.
#[test]
fn everything_stops_when_the_owner_is_killed() {
    // The supervisor stops when its pipe closes: the owner holds the pipe, as a test program would.
    let mut owner = Command::new("sleep").arg("600").stdout(Stdio::piped()).spawn().unwrap();
    let (supervisor, state) = serve(owner.stdout.take().unwrap().into());
    assert_eq!(components(&supervisor).len(), 6);
    owner.kill().unwrap();
    owner.wait().unwrap();
    stops(supervisor, &state);
    assert!(!state.exists(), "the state folder still exists");
}

#[test]
fn killed_supervisor_leaves_no_component() {
    let (mut supervisor, state) = serve(Stdio::piped());
    supervisor.kill().unwrap();
    stops(supervisor, &state);
    // The folder is left for the next supervisor to remove, which may have happened already.
    let _ = fs::remove_dir_all(state);
}

#[test]
fn exit_code_of_the_command_is_passed_on() {
    let script = "kubectl get node node-0 && test -d $CONFREV_CONTROL_PLANE && exit 7";
    let mut run = Command::new(env!("CARGO_BIN_EXE_controlplane"));
    let status = run.args(["run", "--", "sh", "-c", script]).status().unwrap();
    assert_eq!(status.code(), Some(7));
}

/// A command whose output is that of `cargo test` with three integration tests and some unit tests.
const CARGO: &str = r#"
target() { echo '{"profile": {"test": true}, "executable": "x", "target": {"kind": ["'$1'"], "name": "'$2'"}}'; }
case "$*" in
*--no-run*) target test good; target test bad; target test chart; target lib own; target bin own ;;
*) echo "ran $*, $(kubectl get node node-0 --output=name)"; case "$*" in *bad) echo a reason; exit 101 ;; esac ;;
esac
"#;

/// The output of each suite stays together.
#[test]
fn every_suite_runs_once_on_a_control_plane() {
    let run = |script: &str| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_controlplane"));
        run.args(["suites", "--", "sh", "-c", script, "cargo", "test"]).env("CONFREV_LANES", "1");
        let output = run.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = run(CARGO);
    assert_eq!(code, Some(1), "{text}");
    let ran = |flags: &str| format!("ran test {flags}, node/node-0\n");
    for flags in ["--test good", "--test chart"] {
        assert_eq!(text.matches(&ran(flags)).count(), 1, "{flags}: {text}");
    }
    // These need no control plane.
    for flags in ["--bins --lib", "--doc"] {
        assert_eq!(text.matches(&format!("ran test {flags}, ")).count(), 1, "{flags}: {text}");
    }
    assert!(text.contains(&format!(": bad\n{}a reason\n", ran("--test bad"))), "{text}");

    let (code, text) = run(&CARGO.replace("exit 101", "exit 0"));
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run(&CARGO.replace("target test good", "exit 101"));
    assert_eq!((code, text.as_str()), (Some(1), ""));
}

/// Its tests could not pass, and say nothing about why.
#[test]
fn suite_runs_again_if_its_control_plane_ended() {
    let mark = std::env::temp_dir().join(format!("confrev-ended-{}", std::process::id()));
    let ends = format!("*bad) if mkdir {}; then rm -r $CONFREV_CONTROL_PLANE; exit 101; fi", mark.display());
    let mut run = Command::new(env!("CARGO_BIN_EXE_controlplane"));
    let script = CARGO.replace("*bad) echo a reason; exit 101", &ends);
    assert_ne!(script, CARGO);
    run.args(["suites", "--", "sh", "-c", &script, "cargo", "test"]).env("CONFREV_LANES", "1");
    let output = run.output().unwrap();
    fs::remove_dir(mark).unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(text.matches("the control plane of bad ended").count(), 1, "{text}");
}

/// Starts a supervisor and returns it with its state folder.
fn serve(stdin: Stdio) -> (Child, std::path::PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_controlplane"));
    let mut supervisor = command.arg("serve").stdin(stdin).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let facts: Value = serde_json::from_str(&line).unwrap();
    (supervisor, facts["stateDir"].as_str().unwrap().into())
}

/// The process ids of the supervisor's children.
fn components(supervisor: &Child) -> Vec<u32> {
    let tasks = format!("/proc/{0}/task/{0}/children", supervisor.id());
    let children = fs::read_to_string(tasks).unwrap();
    children.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

fn stops(mut supervisor: Child, state: &Path) {
    let running = |what: &str| {
        let processes = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
        processes.filter(|line| String::from_utf8_lossy(line).contains(what)).count()
    };
    let folder = state.to_str().unwrap();
    wait_for("the supervisor's end", LIMIT, || supervisor.try_wait().unwrap());
    wait_for("the components' end", LIMIT, || match running(folder) {
        0 => Ok(()),
        left => Err(format!("{left} processes")),
    });
    holds_for("no component", Duration::from_millis(300), || {
        if running(folder) == 0 { Ok(()) } else { Err("some") }
    });
}
