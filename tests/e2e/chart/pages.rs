//! The commands of the pages about installation, operations and troubleshooting. An administrator with a copy of the
//! repository types them on a control plane on which nothing is installed. Pods are fakes, so the test runs confrev in
//! place of its pods.

use std::fs;
use std::path::Path;

use confrev_controlplane::{Program, wait_for};
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT, OBJECTS_IN_THE_WAY, SNAPSHOTS, apply, as_its_pod, reads, web};
use crate::helm::root;
use crate::page_reader::Reader;

/// The name of the namespace in the pages.
pub(crate) const SHOP: &str = "shop";

/// The administrator. The namespace is deleted when this is dropped.
pub(crate) struct Administrator {
    pub(crate) bare: Bare,
    pub(crate) reader: Reader,
}

impl Administrator {
    pub(crate) fn new() -> Self {
        let bare = Bare::new();
        // The deletion of the previous test's namespace may not be finished.
        wait_for("the namespace to be created", LIMIT, || {
            let created = bare.cluster.kubectl(&["create", "namespace", SHOP]).run();
            if created.status.success() { Ok(()) } else { Err(created.stderr) }
        });
        let reader = Reader::new(bare.cluster, SHOP, Path::new(env!("CARGO_BIN_EXE_confrev")));
        Self { bare, reader }
    }

    #[track_caller]
    fn types_each(&mut self, beginnings: &[&str]) {
        for beginning in beginnings {
            self.reader.types(beginning);
        }
    }

    /// In a cluster, the webhooks would always have the Service. Here they have the URL of the confrev that runs in place
    /// of the pod, and the API server accepts no Service beside a URL.
    pub(crate) fn webhooks_lead_to_the_service_again(&self) {
        let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
        self.bare.cluster.kubectl(&["delete", kinds, "confrev", "--ignore-not-found"]).run().ok();
    }

    /// Types the next commands: an apply of the manifest, and the checks of its result.
    fn applies_anew(&mut self, program: &mut Program) {
        program.stop();
        self.webhooks_lead_to_the_service_again();
        self.types_each(&["kubectl apply", "kubectl --namespace confrev rollout status"]);
        program.start();
        wait_for("confrev to lead", LIMIT, || program.leads().then_some(()));
        self.reader.types("kubectl confrev check");
    }

    /// Waits until the pods of an app read these texts.
    #[track_caller]
    pub(crate) fn wait_reads(&self, app: &str, texts: &[&str]) {
        let read = |pod: &Value| match self.bare.cluster.pod_config(pod) {
            Ok(config) => config.files.into_values().chain(config.env.into_values()).collect::<String>(),
            Err(problem) => problem,
        };
        wait_for(&format!("pods of {app} that read {texts:?}"), LIMIT, || {
            let pods = self.bare.cluster.ready_pods(SHOP, &format!("app={app}"));
            let mut found: Vec<_> = pods.iter().map(read).collect();
            found.sort();
            if found == texts { Ok(()) } else { Err(format!("{found:?}")) }
        });
    }

    /// Waits until a workload names a snapshot of this ConfigMap, or the ConfigMap itself.
    #[track_caller]
    pub(crate) fn wait_names(&self, is_snapshot: bool) {
        wait_for(&format!("web to name a snapshot: {is_snapshot}"), LIMIT, || {
            let name = reads(&self.bare, SHOP);
            if name.starts_with("demo-") == is_snapshot { Ok(()) } else { Err(name) }
        });
    }

    /// Applies the manifest of the page. Returns the confrev that runs in place of the pod.
    pub(crate) fn installs_from_the_read_me(&mut self) -> Program {
        self.reader.open("README.md", "Install");
        self.reader.types("kubectl apply -f manifests/self-signed.yaml");
        assert_eq!(self.bare.in_the_way().len(), OBJECTS_IN_THE_WAY, "all of them");
        as_its_pod(&self.bare).0
    }
}

impl Drop for Administrator {
    fn drop(&mut self) {
        let delete = ["delete", "namespace", SHOP, "--ignore-not-found", "--wait=false"];
        let _ = self.bare.cluster.kubectl(&delete).run();
    }
}

#[test]
fn commands_of_readme_quick_start_and_operations_work() {
    let mut admin = Administrator::new();
    let mut program = admin.installs_from_the_read_me();
    starts_quickly(&mut admin, &mut program);
    finds_out_what_is_wrong(&mut admin);
    if admin.reader.has("jq") {
        backs_up_and_restores(&mut admin);
    }
    upgrades_and_is_in_an_emergency(&mut admin, &mut program);
    admin.reader.open("docs/troubleshooting.md", "Taking confrev away");
    admin.reader.types("kubectl label deployment web");
    admin.wait_names(false);
}

/// A second file lets the API server keep snapshots while confrev is away. `check` notices what is missing of it.
#[test]
fn manifest_of_outages_keeps_snapshots() {
    let mut admin = Administrator::new();
    let mut program = admin.installs_from_the_read_me();
    apply(&admin.bare, SHOP, &web("app:1", "A")).ok();
    admin.wait_names(true);
    let snapshot = reads(&admin.bare, SHOP);
    program.stop();
    admin.webhooks_lead_to_the_service_again();
    admin.reader.open("docs/outages.md", "When confrev does not answer");
    admin.reader.types("kubectl apply --server-side");
    program.start();
    let check = |succeeds: bool| {
        let checked = admin.reader.command("kubectl-confrev").arg("check").output().unwrap();
        let text = String::from_utf8(checked.stdout).unwrap();
        assert_eq!(checked.status.success(), succeeds, "{text}");
        text
    };
    let is_leading = || program.leads().then_some(());
    wait_for("confrev to lead", LIMIT, is_leading);
    let text = check(true);
    assert!(text.contains("while confrev is down, workloads keep their snapshots"), "{text}");
    program.stop();
    apply(&admin.bare, SHOP, &web("app:2", "B")).ok();
    assert_eq!(reads(&admin.bare, SHOP), snapshot);
    let text = check(false);
    assert!(text.contains("confrev does not answer"), "{text}");
    let binding = ["delete", "mutatingadmissionpolicybinding", "confrev-carry-own"];
    admin.bare.cluster.kubectl(&binding).run().ok();
    let text = check(false);
    assert!(text.contains("confrev-carry-own does not exist"), "{text}");
    program.start();
    wait_for("web to move to the new content", LIMIT, || {
        (reads(&admin.bare, SHOP) != snapshot).then_some(())
    });
}

fn starts_quickly(admin: &mut Administrator, program: &mut Program) {
    // Again, like a user who begins with the quick start.
    admin.reader.open("docs/quick-start.md", "Install");
    admin.applies_anew(program);
    admin.reader.open("docs/commands.md", "check");
    admin.reader.says("kubectl confrev check");
    admin.reader.open("docs/commands.md", "version");
    admin.reader.says("kubectl confrev version");

    admin.reader.open("docs/quick-start.md", "A canary with its own config");
    admin.types_each(&["kubectl apply", "kubectl confrev wait"]);
    admin.wait_reads("web", &["blue"; 4]);
    admin.types_each(&["kubectl confrev impact", "kubectl apply", "kubectl confrev wait"]);
    admin.wait_reads("web", &["blue", "blue", "blue", "green"]);
    let tree = admin.reader.types("kubectl confrev tree");
    assert!(tree.contains("stable"), "{tree}");
    admin.types_each(&["kubectl argo rollouts promote", "kubectl confrev wait"]);
    admin.wait_reads("web", &["green"; 4]);
    admin.reader.types("kubectl confrev undo");
    admin.wait_reads("web", &["blue"; 4]);

    admin.reader.open("README.md", "Use");
    admin.types_each(&["kubectl label rollout web", "kubectl label namespace shop"]);
    // The namespace opts in a workload without a label.
    let mut objects = web("app:1", "A");
    objects["items"][1]["metadata"]["labels"] = json!({"app": "other"});
    apply(&admin.bare, SHOP, &objects).ok();
    admin.wait_names(true);
    admin.bare.cluster.kubectl(&["delete", "rollout/web", "--namespace", SHOP]).run().ok();
    admin.bare.cluster.kubectl(&["label", "namespace", SHOP, "confrev.dev/enabled-"]).run().ok();
    admin.wait_names(false);
    admin.reader.open("docs/quick-start.md", "Your own workloads");
    admin.reader.types("kubectl label deployment web");
    admin.wait_names(true);
}

/// Finds out why a workload that is pinned by an undo does not roll.
fn finds_out_what_is_wrong(admin: &mut Administrator) {
    apply(&admin.bare, SHOP, &web("app:1", "A")).ok();
    admin.wait_reads("web", &["A"]);
    apply(&admin.bare, SHOP, &web("app:1", "B")["items"][0]).ok();
    admin.wait_reads("web", &["B"]);
    let undo = ["confrev", "undo", "deployment/web", "--namespace", SHOP];
    assert!(admin.reader.command("kubectl").args(undo).status().expect("the command runs").success());
    admin.wait_reads("web", &["A"]);

    admin.reader.open("docs/troubleshooting.md", "Troubleshooting");
    admin.reader.types("kubectl confrev check");
    let status = admin.reader.types("kubectl confrev status -A");
    assert!(status.contains("Deployment/web") && status.contains("pinned: demo"), "{status}");
    admin.reader.open("docs/troubleshooting.md", "A ConfigMap changed and nothing rolls");
    let status = admin.reader.types("kubectl confrev status");
    assert!(status.contains("pinned: demo"), "{status}");
    let described = admin.reader.types("kubectl describe");
    assert!(described.contains("Pinned"), "{described}");
    let impact = admin.reader.types("kubectl confrev impact");
    assert!(impact.contains("Deployment/web"), "{impact}");
    let lease = admin.reader.types("kubectl --namespace confrev get lease");
    assert!(lease.lines().count() == 2, "{lease}");
}

fn backs_up_and_restores(admin: &mut Administrator) {
    admin.reader.open("docs/operations.md", "Backup");
    admin.reader.types("kubectl get");
    admin.bare.cluster.kubectl(&["delete", "namespace", SHOP, "--timeout=60s"]).run().ok();
    admin.reader.open("docs/operations.md", "Restore");
    admin.types_each(&["kubectl create namespace", "kubectl apply"]);
    let status = admin.reader.types("kubectl confrev status");
    assert!(status.contains("pinned: demo"), "still pinned: {status}");
    admin.wait_reads("web", &["A"]);
    wait_for("the snapshot to be bound again", LIMIT, || {
        let snapshot = admin.bare.cluster.get("configmap", SHOP, &reads(&admin.bare, SHOP))?;
        snapshot["metadata"]["ownerReferences"].as_array().map(Vec::len)
    });
}

fn upgrades_and_is_in_an_emergency(admin: &mut Administrator, program: &mut Program) {
    let before = admin.bare.cluster.list("replicaset", SHOP, "app=web").len();
    admin.reader.open("docs/operations.md", "Upgrade");
    admin.applies_anew(program);
    assert_eq!(admin.bare.cluster.list("replicaset", SHOP, "app=web").len(), before, "nothing rolls");

    program.stop();
    let refused = apply(&admin.bare, SHOP, &web("app:2", "B")).refused();
    assert!(refused.contains("failed calling webhook"), "{refused}");
    admin.reader.open("docs/operations.md", "Disaster");
    admin.reader.types("kubectl delete mutatingwebhookconfiguration");
    // The API server learns of the deletion with a delay, by its own watch.
    wait_for("a template to change", LIMIT, || {
        let changed = apply(&admin.bare, SHOP, &web("app:2", "B"));
        if changed.status.success() { Ok(()) } else { Err(changed.stderr) }
    });
    assert_eq!(reads(&admin.bare, SHOP), "demo", "unresolved");
    admin.webhooks_lead_to_the_service_again();
    admin.reader.types("kubectl apply");
    program.start();
    admin.wait_names(true);
}

#[test]
fn commands_for_client_certificates_and_uninstall_work() {
    let mut admin = Administrator::new();
    admin.reader.open("docs/install.md", "With Helm");
    admin.types_each(&["helm install confrev charts/confrev", "kubectl label namespace confrev"]);
    let deployment = |admin: &Administrator| {
        admin.bare.cluster.get("deployment", "confrev", "confrev").expect("the object exists")
    };
    let container = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"][0].clone();
    let image = container(&deployment(&admin))["image"].as_str().unwrap_or_default().to_owned();
    assert!(image.starts_with("registry.example.com/confrev:"), "{image}");

    if admin.reader.has("openssl") {
        admin.reader.open("docs/client-certificates.md", "Answer the API server alone");
        admin.types_each(&["openssl req -x509", "openssl req"]);
        let verify = ["verify", "-CAfile", "ca.crt", "-purpose", "sslclient", "webhooks.crt"];
        assert!(admin.reader.command("openssl").args(verify).status().expect("the command runs").success());
        admin.types_each(&["kubectl create configmap", "helm upgrade"]);
        let arguments = container(&deployment(&admin))["args"].to_string();
        for argument in ["--client-ca=/client-ca/ca.crt", "--client-name=kube-apiserver"] {
            assert!(arguments.contains(argument), "{arguments}");
        }
        assert!(container(&deployment(&admin))["image"] == image, "earlier settings stay");
        admin.reader.open("docs/client-certificates.md", "Record the users who change sources");
        admin.types_each(&["helm upgrade"]);
        let arguments = container(&deployment(&admin))["args"].to_string();
        assert!(arguments.contains("--record-users"), "{arguments}");
    }

    if admin.reader.has("openssl") {
        admin.reader.open("docs/notifications.md", "Turn them on");
        admin.types_each(&["openssl rand", "kubectl create secret", "helm upgrade"]);
        let env = container(&deployment(&admin))["env"].to_string();
        assert!(env.contains("CONFREV_NOTIFY_KEY") && env.contains("receiver"), "{env}");
    }

    admin.reader.open("docs/install.md", "Uninstall");
    admin.types_each(&["helm uninstall confrev", "kubectl delete namespace confrev"]);
    assert_eq!(admin.bare.in_the_way(), [""; 0], "left behind");
}

/// The pages also run confrev with the user's own certificate.
#[test]
fn commands_for_running_outside_the_cluster_work() {
    let mut admin = Administrator::new();
    admin.reader.open("docs/install.md", "Run it outside the cluster");
    admin.types_each(&["kubectl apply", "kubectl --namespace confrev scale"]);
    let line = admin.reader.next("./target/release/confrev serve").line.replace('\\', " ");
    // Run by the administrator, on free ports.
    let program = || {
        let program = Program::new(admin.bare.cluster, env!("CARGO_BIN_EXE_confrev").as_ref());
        program.as_user(admin.bare.cluster.kubeconfig())
    };
    let mut own = program();
    let admin_port = own.admin_url().rsplit(':').next().unwrap_or_default().to_owned();
    let here =
        own.arguments().join(" ").replace(&own.port().to_string(), "8443").replace(&admin_port, "8080");
    let typed: Vec<_> = line.split_whitespace().skip(1).collect();
    assert_eq!(typed.join(" ").replace(" serve", "serve"), here);
    own.start();
    apply(&admin.bare, SHOP, &web("app:1", "A")).ok();
    admin.wait_names(true);
    let snapshots = || admin.bare.cluster.list("configmap", SHOP, SNAPSHOTS).len();
    assert_eq!(snapshots(), 1, "created as the ServiceAccount, which the guard allows");
    own.stop();

    if ["openssl", "jq"].iter().all(|tool| admin.reader.has(tool)) {
        let certs = admin.reader.folder().join("certs");
        let mut given = program().with_certificates(&certs);
        admin.reader.open("certs/README.md", "certs");
        admin.reader.types("openssl req");
        let page = fs::read_to_string(root().join("certs/README.md")).expect("the page exists");
        assert!(page.contains("`--tls-dir certs`"), "the page starts confrev as this test does");
        admin.reader.types("kubectl get");
        given.start();
        apply(&admin.bare, SHOP, &web("app:2", "B")).ok();
        wait_for("the other snapshot", LIMIT, || (snapshots() == 2).then_some(()));
    }
}
