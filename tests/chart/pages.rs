//! The pages about installing, operating and trouble, typed as they stand there, by an administrator with a copy of the
//! repository, on a control plane on which nothing is installed. Pods are fakes: where a pod of confrev would run it, the
//! test does.

use std::fs;

use confrev_controlplane::{Program, wait_for};
use serde_json::{Value, json};

use crate::bare::{Bare, LIMIT, OBJECTS_IN_THE_WAY, SNAPSHOTS, apply, as_its_pod, reads, web};
use crate::helm::root;
use crate::reader::Reader;

/// What the pages call the namespace.
const SHOP: &str = "shop";

/// The administrator. Their namespace goes with them.
struct Administrator {
    bare: Bare,
    reader: Reader,
}

impl Administrator {
    fn new() -> Self {
        let bare = Bare::new();
        // The one of the test before may still be going.
        wait_for("a namespace of one's own", LIMIT, || {
            let created = bare.cluster.kubectl(&["create", "namespace", SHOP]).run();
            if created.status.success() { Ok(()) } else { Err(created.stderr) }
        });
        let reader = Reader::new(bare.cluster, SHOP);
        Self { bare, reader }
    }

    #[track_caller]
    fn types_each(&mut self, beginnings: &[&str]) {
        for beginning in beginnings {
            self.reader.types(beginning);
        }
    }

    /// In a cluster, the webhooks would lead to the Service all the time. Here they have the URL of the confrev that plays
    /// the pod, beside which the API server takes no Service.
    fn webhooks_lead_to_the_service_again(&self) {
        let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
        self.bare.cluster.kubectl(&["delete", kinds, "confrev", "--ignore-not-found"]).run().ok();
    }

    /// Types what is open: an apply of the manifest, and the look at what came of it.
    fn applies_anew(&mut self, program: &mut Program) {
        program.stop();
        self.webhooks_lead_to_the_service_again();
        self.types_each(&["kubectl apply", "kubectl --namespace confrev rollout status"]);
        program.start();
        wait_for("confrev to lead", LIMIT, || program.leads().then_some(()));
        self.reader.types("kubectl confrev check");
    }

    /// What the pods of an app read, sorted.
    #[track_caller]
    fn wait_reads(&self, app: &str, texts: &[&str]) {
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
    fn wait_names(&self, is_snapshot: bool) {
        wait_for(&format!("web to name a snapshot: {is_snapshot}"), LIMIT, || {
            let name = reads(&self.bare, SHOP);
            if name.starts_with("demo-") == is_snapshot { Ok(()) } else { Err(name) }
        });
    }

    /// Applies the manifest of the page; answers with the confrev that plays the pod.
    fn installs_from_the_read_me(&mut self) -> Program {
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
fn the_read_me_and_the_quick_start_lead_from_nothing_to_a_canary_and_operations_from_trouble_to_rest() {
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

fn starts_quickly(admin: &mut Administrator, program: &mut Program) {
    // Once more, as who begins with the quick start.
    admin.reader.open("docs/quick-start.md", "Install");
    admin.applies_anew(program);
    admin.reader.open("docs/commands.md", "check");
    admin.reader.says("kubectl confrev check");

    admin.reader.open("docs/quick-start.md", "A canary with its own config");
    admin.types_each(&["kubectl apply", "kubectl confrev wait"]);
    admin.wait_reads("web", &["blue"; 4]);
    admin.types_each(&["kubectl confrev impact", "kubectl apply"]);
    admin.wait_reads("web", &["blue", "blue", "blue", "green"]);
    let tree = admin.reader.types("kubectl confrev tree");
    assert!(tree.contains("stable"), "{tree}");
    admin.types_each(&["kubectl argo rollouts promote", "kubectl confrev wait"]);
    admin.wait_reads("web", &["green"; 4]);
    admin.reader.types("kubectl confrev undo");
    admin.wait_reads("web", &["blue"; 4]);

    admin.reader.open("README.md", "Use");
    admin.types_each(&["kubectl label rollout web", "kubectl label namespace shop"]);
    // One that says nothing itself is opted in by its namespace.
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

/// A workload that an undo holds.
fn finds_out_what_is_wrong(admin: &mut Administrator) {
    apply(&admin.bare, SHOP, &web("app:1", "A")).ok();
    admin.wait_reads("web", &["A"]);
    apply(&admin.bare, SHOP, &web("app:1", "B")["items"][0]).ok();
    admin.wait_reads("web", &["B"]);
    let undo = ["confrev", "undo", "deployment/web", "--namespace", SHOP];
    assert!(admin.reader.command("kubectl").args(undo).status().expect("it runs").success());
    admin.wait_reads("web", &["A"]);

    admin.reader.open("docs/troubleshooting.md", "Troubleshooting");
    admin.reader.types("kubectl confrev check");
    let status = admin.reader.types("kubectl confrev status -A");
    assert!(status.contains("Deployment/web") && status.contains("pinned: demo"), "{status}");
    admin.reader.open("docs/troubleshooting.md", "A ConfigMap changed and nothing rolls");
    let impact = admin.reader.types("kubectl confrev impact");
    assert!(impact.contains("Deployment/web"), "{impact}");
    let status = admin.reader.types("kubectl confrev status");
    assert!(status.contains("pinned: demo"), "{status}");
    let described = admin.reader.types("kubectl describe");
    assert!(described.contains("Pinned"), "{described}");
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
    assert!(status.contains("pinned: demo"), "as it was: {status}");
    admin.wait_reads("web", &["A"]);
    wait_for("the snapshot to be bound anew", LIMIT, || {
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
    // The API server learns of it by a watch of its own.
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
fn a_release_of_helms_has_its_clients_checked_as_the_page_says_and_is_taken_away_again() {
    let mut admin = Administrator::new();
    admin.reader.open("docs/install.md", "With Helm");
    admin.types_each(&["helm install confrev charts/confrev", "kubectl label namespace confrev"]);
    let deployment = |admin: &Administrator| {
        admin.bare.cluster.get("deployment", "confrev", "confrev").expect("it is there")
    };
    let container = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"][0].clone();
    let image = container(&deployment(&admin))["image"].as_str().unwrap_or_default().to_owned();
    assert!(image.starts_with("registry.example.com/confrev:"), "{image}");

    if admin.reader.has("openssl") {
        admin.reader.open("docs/security.md", "Answer the API server alone");
        admin.types_each(&["openssl req -x509", "openssl req"]);
        let verify = ["verify", "-CAfile", "ca.crt", "-purpose", "sslclient", "webhooks.crt"];
        assert!(admin.reader.command("openssl").args(verify).status().expect("it runs").success());
        admin.types_each(&["kubectl create configmap", "helm upgrade"]);
        let arguments = container(&deployment(&admin))["args"].to_string();
        for argument in ["--client-ca=/client-ca/ca.crt", "--client-name=kube-apiserver"] {
            assert!(arguments.contains(argument), "{arguments}");
        }
        assert!(container(&deployment(&admin))["image"] == image, "what was set stays");
    }

    admin.reader.open("docs/install.md", "Uninstall");
    admin.types_each(&["helm uninstall confrev", "kubectl delete namespace confrev"]);
    assert_eq!(admin.bare.in_the_way(), [""; 0], "left behind");
}

#[test]
fn outside_the_cluster_it_serves_as_the_read_me_says_and_with_a_certificate_of_ones_own() {
    let mut admin = Administrator::new();
    admin.reader.open("README.md", "Run it outside the cluster");
    admin.types_each(&["kubectl apply", "kubectl --namespace confrev scale"]);
    let line = admin.reader.next("./target/release/confrev serve").line.replace('\\', " ");
    // As the administrator, on free ports.
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
    assert_eq!(snapshots(), 1, "made as the ServiceAccount, whom the guard lets");
    own.stop();

    if ["openssl", "jq"].iter().all(|tool| admin.reader.has(tool)) {
        let certs = admin.reader.folder().join("certs");
        let mut given = program().with_certificates(&certs);
        admin.reader.open("certs/README.md", "certs");
        admin.reader.types("openssl req");
        let page = fs::read_to_string(root().join("certs/README.md")).expect("there is the page");
        assert!(page.contains("`--tls-dir certs`"), "as it is started here");
        admin.reader.types("kubectl get");
        given.start();
        apply(&admin.bare, SHOP, &web("app:2", "B")).ok();
        wait_for("the other snapshot", LIMIT, || (snapshots() == 2).then_some(()));
    }
}
