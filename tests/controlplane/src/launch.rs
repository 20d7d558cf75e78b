//! Starts the components in the order of their dependencies, and waits until each is ready.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::http::Method;

use crate::Result;
use crate::api::Api;
use crate::audit;
use crate::binaries::Binaries;
use crate::kubeconfig::Connection;
use crate::ports;
use crate::process::{self, Component, Order};
use crate::recipe::{ARGO_MANIFESTS, STAGES};
use crate::site::Site;
use crate::state::{self, Facts, StateFolder, write_identities};

/// The longest that a component may take to become ready. It takes 2 s on an idle machine, but many tests may build
/// meanwhile.
const LIMIT: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(50);
/// The stage of kwok that lets pods fail.
const FAILING_PODS: &str = include_str!("../kwok/failing-pods.yaml");
/// What selects the pods that kwok deletes, in its own stages.
const TERMINATING: &str = "key: .metadata.deletionTimestamp\n      operator: Exists";
/// The same without the pods that the API server itself is about to remove. kwok deletes by name, and its own deletion is a further event
/// of the pod: on a busy machine, it would delete the next pod of that name, and so on without an end.
const TERMINATING_GRACEFULLY: &str =
    "key: .metadata | select(.deletionGracePeriodSeconds != 0) | .deletionTimestamp\n      operator: Exists";
/// How long after its last report a node counts as lost: long enough for a busy machine, which may delay reports.
const NODE_GRACE: &str = "16s";

/// A running control plane. On drop, everything stops and the state folder is removed.
#[derive(Debug)]
pub(crate) struct Launch {
    site: Site,
    facts: Facts,
    /// Additional flags of the API server.
    api_server: Vec<OsString>,
    // Before the folder: fields are dropped in this order.
    components: Vec<Component>,
    folder: StateFolder,
    ports: Ports,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    etcd: u16,
    peer: u16,
    api: u16,
    manager: u16,
    scheduler: u16,
    kwok: u16,
    argo: u16,
    argo_metrics: u16,
}

impl Launch {
    /// Starts a control plane with the additional flags `api_server` for its API server. If another process has taken
    /// one of the ports, it tries again with other ports. `cancelled` is checked while waiting.
    pub(crate) fn start(
        site: Site,
        binaries: &Binaries,
        api_server: &[OsString],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let mut attempts = 1;
        loop {
            match Self::attempt(site, binaries, api_server, cancelled) {
                Err(problem) if problem.contains("address already in use") && attempts < 3 => attempts += 1,
                outcome => return outcome,
            }
        }
    }

    /// The facts that others need.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// If a component has ended: its name and the end of its log.
    pub(crate) fn failure(&mut self) -> Option<String> {
        self.components.iter_mut().find_map(Component::failure)
    }

    /// Carries out the order in a line: an [`Order`]'s word and the name of a component.
    pub(crate) fn obey(&mut self, line: &str) -> Result<()> {
        let unknown = || format!("no such order: {line}");
        let (word, name) = line.split_once(' ').ok_or_else(unknown)?;
        let order = Order::ALL.into_iter().find(|order| order.word() == word).ok_or_else(unknown)?;
        let component = self.components.iter_mut().find(|component| component.name() == name);
        component.ok_or_else(unknown)?.obey(order)
    }

    /// Stops everything.
    pub(crate) fn stop(mut self) {
        process::stop(std::mem::take(&mut self.components));
    }

    fn attempt(
        site: Site,
        binaries: &Binaries,
        api_server: &[OsString],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let mut folder = StateFolder::create(state::PREFIX)?;
        let [etcd, peer, mut api, manager, scheduler, kwok, argo, argo_metrics] = ports::free()?;
        if site == Site::Network {
            // Folders of containers are mounted below it until the last process has ended.
            folder.leave();
            // The usual one, which the chart's NetworkPolicy allows.
            api = 6443;
        }
        let facts = Facts {
            state: folder.path().to_owned(),
            binaries: binaries.folder().to_owned(),
            url: format!("https://{}:{api}", site.address()),
        };
        write_identities(&facts, site)?;
        let ports = Ports { etcd, peer, api, manager, scheduler, kwok, argo, argo_metrics };
        let api_server = api_server.to_vec();
        let mut launch = Self { site, facts, api_server, components: Vec::new(), folder, ports };
        launch.bring_up(cancelled)?;
        launch.facts.save()?;
        Ok(launch)
    }

    fn bring_up(&mut self, cancelled: &dyn Fn() -> bool) -> Result<()> {
        let config =
            fs::read_to_string(self.facts.kubeconfig()).map_err(|e| format!("admin's kubeconfig: {e}"))?;
        let connection = Connection::parse(&config)?;
        let api = Api::new(&connection)?;
        let ok = |api: &Api, path: &str| matches!(api.send(&Method::GET, path, None), Ok((200, _)));

        self.spawn_etcd()?;
        self.spawn_api_server()?;
        let etcd = api.at(&loopback("http", self.ports.etcd));
        self.wait("etcd (/health)", &|| ok(&etcd, "/health"), cancelled)?;
        self.wait("the API server (/readyz)", &|| ok(&api, "/readyz"), cancelled)?;

        if self.site == Site::Loopback {
            create(&api, "/api/v1/nodes", &node())?;
        }
        self.apply_argo_manifests(&api)?;
        let rollouts = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rollouts.argoproj.io";
        let established = || condition(&api, rollouts, "Established");
        self.wait("the Rollout resource definition (Established)", &established, cancelled)?;
        // Not earlier: the garbage collector looks for new kinds every 30 s, and would not delete objects owned by
        // Rollouts until then.
        self.spawn_controllers()?;
        self.spawn_argo()?;

        for (what, scheme, port) in [
            ("kube-controller-manager", "https", self.ports.manager),
            ("kube-scheduler", "https", self.ports.scheduler),
            ("the Argo Rollouts controller", "http", self.ports.argo),
            ("kwok", "http", self.ports.kwok),
        ] {
            if what == "kwok" && self.site == Site::Network {
                continue;
            }
            let server = api.at(&loopback(scheme, port));
            self.wait(&format!("{what} (/healthz)"), &|| ok(&server, "/healthz"), cancelled)?;
        }
        if self.site == Site::Loopback {
            let ready = || condition(&api, "/api/v1/nodes/node-0", "Ready");
            self.wait("the node (Ready)", &ready, cancelled)?;
        }
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        self.wait("the service account default", &|| ok(&api, account), cancelled)
    }

    /// Waits until `ready` returns true, a component ends, the limit is reached, or the start is cancelled.
    fn wait(&mut self, what: &str, ready: &dyn Fn() -> bool, cancelled: &dyn Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !ready() {
            if let Some(failure) = self.failure() {
                return Err(format!("while waiting for {what}: {failure}"));
            }
            if cancelled() {
                return Err(format!("interrupted while waiting for {what}"));
            }
            if Instant::now() > deadline {
                let logs =
                    self.components.iter().map(|c| format!("\n{}:\n{}", c.name(), process::tail(c.log())));
                let logs: String = logs.collect();
                return Err(format!("{what} was not ready after {} s.{logs}", LIMIT.as_secs()));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn in_state(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn spawn(&mut self, name: &'static str, flags: &[(&str, String)]) -> Result<()> {
        self.spawn_with(name, flags, &[])
    }

    fn spawn_with(&mut self, name: &'static str, flags: &[(&str, String)], more: &[OsString]) -> Result<()> {
        let binary: PathBuf = self.facts.binaries.join(name);
        let mut command = Command::new(binary);
        command.args(flags.iter().map(|(flag, value)| format!("--{flag}={value}"))).args(more);
        // Some components write files into their working directory, and none may use the caller's cluster.
        command.current_dir(self.folder.path()).env_remove("KUBECONFIG");
        self.components.push(Component::spawn(name, command, self.folder.log(name))?);
        Ok(())
    }

    fn spawn_etcd(&mut self) -> Result<()> {
        let (client, peer) = (loopback("http", self.ports.etcd), loopback("http", self.ports.peer));
        self.spawn(
            "etcd",
            &[
                ("data-dir", self.in_state("etcd")),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client),
                ("listen-peer-urls", peer.clone()),
                ("initial-advertise-peer-urls", peer.clone()),
                ("initial-cluster", format!("default={peer}")),
                ("unsafe-no-fsync", "true".into()),
            ],
        )
    }

    fn spawn_api_server(&mut self) -> Result<()> {
        let policy = self.in_state(audit::POLICY);
        fs::write(&policy, audit::policy().to_string()).map_err(|e| format!("cannot write {policy}: {e}"))?;
        let mut flags = self.serving(self.ports.api);
        flags.extend(match self.site {
            Site::Loopback => vec![
                ("advertise-address", "127.0.0.1".into()),
                // A loopback address is not valid for the Service `kubernetes`, and no client here uses that Service.
                ("endpoint-reconciler-type", "none".into()),
                ("authorization-mode", "RBAC".into()),
            ],
            Site::Network => self.with_kubelets(),
        });
        flags.extend([
            ("etcd-servers", loopback("http", self.ports.etcd)),
            ("client-ca-file", self.in_state("ca.crt")),
            ("allow-privileged", "true".into()),
            ("service-cluster-ip-range", "10.0.0.0/16".into()),
            ("service-account-issuer", "https://kubernetes.default.svc".into()),
            ("api-audiences", "https://kubernetes.default.svc".into()),
            ("service-account-key-file", self.in_state("service-accounts.pub")),
            ("service-account-signing-key-file", self.in_state("service-accounts.key")),
            ("audit-policy-file", policy),
            ("audit-log-path", self.in_state(audit::LOG)),
            // In MB: so large that the log stays one file, whatever the number of requests.
            ("audit-log-maxsize", "100000".into()),
            ("max-requests-inflight", "2000".into()),
            ("max-mutating-requests-inflight", "1000".into()),
        ]);
        let more = self.api_server.clone();
        self.spawn_with("kube-apiserver", &flags, &more)
    }

    /// Flags of an API server that clients reach by its Service, and that connects to kubelets. The pods of a lost node
    /// are replaced soon.
    fn with_kubelets(&self) -> Vec<(&'static str, String)> {
        vec![
            ("advertise-address", self.site.address().to_string()),
            ("bind-address", "0.0.0.0".into()),
            ("authorization-mode", "Node,RBAC".into()),
            ("enable-admission-plugins", "NodeRestriction".into()),
            ("kubelet-preferred-address-types", "InternalIP".into()),
            ("kubelet-client-certificate", self.in_state("kubelet-client.crt")),
            ("kubelet-client-key", self.in_state("kubelet-client.key")),
            ("default-not-ready-toleration-seconds", "2".into()),
            ("default-unreachable-toleration-seconds", "2".into()),
        ]
    }

    /// The controller manager, the scheduler and kwok.
    fn spawn_controllers(&mut self) -> Result<()> {
        let mut flags = self.client("kube-controller-manager");
        flags.extend(self.serving(self.ports.manager));
        flags.extend([
            // As in a real cluster, each controller is a user of its own.
            ("use-service-account-credentials", "true".into()),
            ("root-ca-file", self.in_state("ca.crt")),
            ("service-account-private-key-file", self.in_state("service-accounts.key")),
        ]);
        flags.extend(match self.site {
            // It compiles all variables of a policy again for each expression and kind: 25 s of a processor for an installation of
            // confrev, whose policies have no types that it could check.
            Site::Loopback => vec![("controllers", "*,-validatingadmissionpolicy-status-controller".into())],
            Site::Network => {
                vec![("node-monitor-period", "1s".into()), ("node-monitor-grace-period", NODE_GRACE.into())]
            }
        });
        self.spawn("kube-controller-manager", &flags)?;

        let mut flags = self.client("kube-scheduler");
        flags.extend(self.serving(self.ports.scheduler));
        self.spawn("kube-scheduler", &flags)?;
        if self.site == Site::Network {
            return Ok(());
        }

        let read = self.facts.binaries.join(STAGES);
        let own = fs::read_to_string(&read).map_err(|error| format!("{}: {error}", read.display()))?;
        if own.matches(TERMINATING).count() != 1 {
            return Err(format!("{}: the stage that deletes pods has another form", read.display()));
        }
        let stages = self.in_state(STAGES);
        let failing_pods = self.in_state("failing-pods.yaml");
        let own = own.replace(TERMINATING, TERMINATING_GRACEFULLY);
        for (file, text) in [(&stages, &*own), (&failing_pods, FAILING_PODS)] {
            fs::write(file, text).map_err(|error| format!("{file}: {error}"))?;
        }
        self.spawn(
            "kwok",
            &[
                ("kubeconfig", self.in_state("kwok.kubeconfig")),
                ("config", stages),
                ("config", failing_pods),
                ("server-address", format!("127.0.0.1:{}", self.ports.kwok)),
                ("node-ip", "127.0.0.1".into()),
                ("cidr", "10.64.0.0/12".into()),
                ("manage-all-nodes", "true".into()),
                // Without a lease, the node and its pods become unready after a minute.
                ("node-lease-duration-seconds", "40".into()),
            ],
        )
    }

    fn spawn_argo(&mut self) -> Result<()> {
        self.spawn(
            "rollouts-controller",
            &[
                ("kubeconfig", self.in_state("argo-rollouts.kubeconfig")),
                ("leader-elect", "false".into()),
                ("healthzPort", self.ports.argo.to_string()),
                ("metricsPort", self.ports.argo_metrics.to_string()),
                ("qps", "500".into()),
                ("burst", "1000".into()),
            ],
        )
    }

    /// Flags of a server on loopback with the cluster's certificate.
    fn serving(&self, port: u16) -> Vec<(&'static str, String)> {
        vec![
            ("bind-address", "127.0.0.1".into()),
            ("secure-port", port.to_string()),
            ("cert-dir", self.in_state("certs")),
            ("tls-cert-file", self.in_state("server.crt")),
            ("tls-private-key-file", self.in_state("server.key")),
        ]
    }

    /// Flags of a controller that is not throttled by its client, and does not wait for a lease.
    fn client(&self, name: &str) -> Vec<(&'static str, String)> {
        vec![
            ("kubeconfig", self.in_state(&format!("{name}.kubeconfig"))),
            ("kube-api-qps", "500".into()),
            ("kube-api-burst", "1000".into()),
            ("leader-elect", "false".into()),
        ]
    }

    /// Installs Argo Rollouts as its own manifests do, except that the controller is not a pod.
    fn apply_argo_manifests(&self, api: &Api) -> Result<()> {
        create(api, "/api/v1/namespaces", &json!({"metadata": {"name": "argo-rollouts"}}))?;
        let account = json!({"metadata": {"name": "argo-rollouts"}});
        create(api, "/api/v1/namespaces/argo-rollouts/serviceaccounts", &account)?;
        let binding = json!({
            "metadata": {"name": "argo-rollouts"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "argo-rollouts"},
            "subjects": [{"kind": "ServiceAccount", "name": "argo-rollouts", "namespace": "argo-rollouts"}],
        });
        create(api, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding)?;

        let mut kubectl = Command::new(self.facts.binaries.join("kubectl"));
        kubectl.args(["apply", "--server-side", "--validate=false", "-f"]);
        kubectl.arg(self.facts.binaries.join(ARGO_MANIFESTS)).env("KUBECONFIG", self.facts.kubeconfig());
        let output = kubectl.output().map_err(|e| format!("cannot run kubectl: {e}"))?;
        let problem =
            || format!("cannot apply Argo's manifests: {}", String::from_utf8_lossy(&output.stderr));
        output.status.success().then_some(()).ok_or_else(problem)
    }
}

fn loopback(scheme: &str, port: u16) -> String {
    format!("{scheme}://127.0.0.1:{port}")
}

fn node() -> Value {
    json!({
        "metadata": {
            "name": "node-0",
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": "node-0",
                "kubernetes.io/os": "linux",
                "type": "kwok",
            },
        },
    })
}

fn create(api: &Api, path: &str, object: &Value) -> Result<()> {
    match api.send(&Method::POST, path, Some(("application/json", object)))? {
        (200..=299, _) => Ok(()),
        (code, answer) => Err(format!("POST {path}: {code} {answer}")),
    }
}

/// Whether a condition of an object is true.
fn condition(api: &Api, path: &str, kind: &str) -> bool {
    let Ok((200, object)) = api.send(&Method::GET, path, None) else { return false };
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|c| c["type"] == kind && c["status"] == "True")
}
