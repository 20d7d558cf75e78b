//! The first commands of docs/install.md, taken from the page and run as by a new user. The test runs confrev in place of
//! its pods, since the pods of the control plane are fakes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use confrev_controlplane::{Program, holds_for, wait_for};
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT, OBJECTS_IN_THE_WAY, SNAPSHOTS, apply, as_its_pod, reads, web};
use crate::helm::{root, run};
use crate::page_reader::Reader;

/// The default namespace of kubectl.
const NAMESPACE: &str = "default";

#[test]
fn first_three_commands_protect_a_workload() {
    let page = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let user = User::new();
    user.has_a_workload_without_labels();
    let mut reader = Reader::new(user.bare.cluster, NAMESPACE, Path::new(env!("CARGO_BIN_EXE_confrev")));
    reader.open("docs/install.md", "Install");
    reader.types("kubectl apply");
    let (program, image) = as_its_pod(&user.bare);
    in_the_text(&page, &format!("The image `{image}` must be"));
    let said = reader.types("kubectl --namespace confrev rollout status");
    assert!(said.contains("successfully rolled out"), "{said}");
    reader.types("kubectl label deployment web ");

    let bare = &user.bare;
    wait_for("the workload to be rolled to a snapshot", LIMIT, || {
        let pods = user.pods();
        let rolled = pods.len() == 2 && reads(bare, NAMESPACE).starts_with("demo-");
        let all = pods.iter().all(|pod| pod["metadata"]["labels"]["confrev.dev/revision"].is_string());
        if rolled && all { Ok(()) } else { Err(format!("{pods:?}")) }
    });
    user.has_replica_sets(2);
    user.sees_the_revision_of_each_pod(&page);
    user.is_protected();
    user.takes_it_away_again(&page, program);
}

/// A command that is in the text of the page, between backquotes.
#[track_caller]
fn in_the_text<'a>(page: &'a str, command: &'a str) -> &'a str {
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(command), "docs/install.md does not have {command:?}");
    command
}

/// A user with an administrator's kubeconfig, a copy of the repository and kubectl.
struct User {
    bare: Bare,
}

impl User {
    fn new() -> Self {
        let bare = Bare::new();
        assert_eq!(bare.in_the_way(), [""; 0], "an empty control plane");
        assert!(bare.cluster.get("namespace", "", "confrev").is_none(), "an empty control plane");
        Self { bare }
    }

    /// Runs a line in a shell, in the root of the repository. Returns its output.
    #[track_caller]
    fn types(&self, line: &str) -> String {
        let kubectl = self.bare.cluster.bin("kubectl");
        let tools = kubectl.parent().expect("a folder").display().to_string();
        let path = format!("{tools}:{}", std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(root()).env("PATH", path);
        run(shell.env("KUBECONFIG", self.bare.cluster.kubeconfig())).ok()
    }

    fn has_a_workload_without_labels(&self) {
        let mut objects = web("app:1", "A");
        let deployment = &mut objects["items"][1];
        deployment["metadata"].as_object_mut().unwrap().remove("labels");
        deployment["spec"]["replicas"] = json!(2);
        apply(&self.bare, NAMESPACE, &objects).ok();
        wait_for("two ready pods of web", LIMIT, || {
            let (pods, desired) = (self.pods().len(), 2);
            if pods == desired { Ok(()) } else { Err(format!("{pods}")) }
        });
        assert_eq!(reads(&self.bare, NAMESPACE), "demo", "as it was written");
        self.has_replica_sets(1);
    }

    fn sees_the_revision_of_each_pod(&self, page: &str) {
        let table = self.types(in_the_text(page, "kubectl get pods -L confrev.dev/revision"));
        let web: Vec<_> = table.lines().filter(|line| line.starts_with("web-")).collect();
        let revision = |line: &&str| line.split_whitespace().last().unwrap().to_owned();
        let first = web.first().map(revision).unwrap_or_default();
        assert!(first.len() == 10 && first.chars().all(|c| c.is_ascii_hexdigit()), "{table}");
        assert!(web.len() == 2 && web.iter().map(revision).all(|other| other == first), "{table}");
    }

    /// Pauses a roll halfway: the replacement of a lost pod has the config of its revision.
    fn is_protected(&self) {
        let snapshot = reads(&self.bare, NAMESPACE);
        wait_for("the snapshot to be bound", LIMIT, || {
            let live = self.bare.cluster.get("configmap", NAMESPACE, &snapshot)?;
            let owners = live["metadata"]["ownerReferences"].as_array()?;
            owners.iter().any(|owner| owner["kind"] == "ReplicaSet").then_some(())
        });
        let refused = self.kubectl(&["delete", "configmap", &snapshot]).refused();
        assert!(refused.contains("in use by"), "{refused}");

        self.kubectl(&["rollout", "pause", "deployment/web"]).ok();
        let change = json!({"data": {"text": "B"}}).to_string();
        self.kubectl(&["patch", "configmap", "demo", "--type=merge", "--patch", &change]).ok();
        wait_for("the workload to roll to the change", LIMIT, || {
            let now = reads(&self.bare, NAMESPACE);
            if now == snapshot { Err(now) } else { Ok(()) }
        });
        let lost = self.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
        self.kubectl(&["delete", "pod", &lost]).ok();
        self.reads(&["A", "A"]);
        self.kubectl(&["rollout", "resume", "deployment/web"]).ok();
        self.reads(&["B", "B"]);
        self.has_replica_sets(3);
    }

    fn takes_it_away_again(&self, page: &str, mut program: Program) {
        let command = in_the_text(page, "kubectl delete -f manifests/self-signed.yaml");
        assert_eq!(self.bare.in_the_way().len(), OBJECTS_IN_THE_WAY, "all of them");
        program.stop();
        self.types(command);
        assert_eq!(self.bare.in_the_way(), [""; 0], "left behind");
        self.reads(&["B", "B"]);
        self.has_replica_sets(3);
    }

    fn kubectl(&self, arguments: &[&str]) -> confrev_controlplane::Output {
        self.bare.cluster.kubectl(arguments).arg("--namespace").arg(NAMESPACE).run()
    }

    fn pods(&self) -> Vec<Value> {
        self.bare.cluster.ready_pods(NAMESPACE, "app=web")
    }

    #[track_caller]
    fn reads(&self, texts: &[&str]) {
        wait_for(&format!("ready pods that read {texts:?}"), LIMIT, || {
            let read = |pod: &Value| match self.bare.cluster.pod_config(pod) {
                Ok(config) => config.env.get("app/text").cloned().unwrap_or_default(),
                Err(problem) => problem,
            };
            let mut found: Vec<_> = self.pods().iter().map(read).collect();
            found.sort();
            if found == texts { Ok(()) } else { Err(format!("{found:?}")) }
        });
    }

    #[track_caller]
    fn has_replica_sets(&self, count: usize) {
        holds_for(&format!("that there are {count} ReplicaSets"), Duration::from_secs(2), || {
            let found = self.bare.cluster.list("replicaset", NAMESPACE, "app=web").len();
            if found == count { Ok(()) } else { Err(format!("{found}")) }
        });
    }
}

impl Drop for User {
    /// Other tests use the namespace too, so the objects of this test are deleted.
    fn drop(&mut self) {
        let _ = self.kubectl(&["delete", "deployment/web", "configmap/demo", "--ignore-not-found"]);
        let _ = self.kubectl(&["delete", "configmap", "--selector", SNAPSHOTS]);
    }
}
