//! The control plane, as tests use it.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;

use crate::api::Api;
use crate::binaries::Binaries;
use crate::kubeconfig::Connection;
use crate::kubectl::Kubectl;
use crate::process::Order;
use crate::state::{Facts, STATE_VARIABLE, StateFolder};
use crate::{Result, locate, resources};

/// A cluster to test against, and an administrator's access to it.
#[derive(Debug)]
pub struct ControlPlane {
    connection: Connection,
    api: Api,
    kubeconfig: PathBuf,
    binaries: PathBuf,
    state: PathBuf,
    authority_key: Option<PathBuf>,
    // Stopped or removed on drop.
    supervisor: Option<Mutex<Supervisor>>,
    _folder: Option<StateFolder>,
}

/// A running supervisor. It stops everything when its stdin closes, which the kernel does when this process ends.
#[derive(Debug)]
struct Supervisor(Child, BufReader<ChildStdout>);

impl Supervisor {
    fn order(&mut self, line: &str) -> Result<String> {
        let input = self.0.stdin.as_mut().ok_or("the supervisor has no stdin")?;
        writeln!(input, "{line}").map_err(|e| format!("cannot write to the supervisor: {e}"))?;
        self.line()
    }

    /// The next line of its output; empty if it has ended.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.1.read_line(&mut line).map_err(|e| format!("cannot read from the supervisor: {e}"))?;
        Ok(line)
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Also closes the pipe.
        let _ = self.0.wait();
    }
}

impl ControlPlane {
    /// The control plane that all tests of this process share:
    /// - the running one that `CONFREV_CONTROL_PLANE` names, as under `controlplane run`;
    /// - else, with `CONFREV_TEST_CLUSTER=1`, the cluster of `KUBECONFIG`;
    /// - else a new one, which stops when this process ends, however it ends.
    ///
    /// # Panics
    /// If no control plane is available, with the reason.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<ControlPlane>> = OnceLock::new();
        SHARED.get_or_init(Self::find_or_start).as_ref().unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Starts a control plane for this value alone. It stops on drop.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// The same, with additional flags for its API server, such as `--admission-control-config-file=/some/file`.
    pub fn start_with(api_server: &[&str]) -> Result<Self> {
        let mut supervisor = Command::new(locate::supervisor()?);
        supervisor.arg("serve").args(api_server).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = supervisor.spawn().map_err(|e| format!("cannot run the supervisor: {e}"))?;
        let output = child.stdout.take().ok_or("the supervisor has no stdout")?;
        let mut supervisor = Supervisor(child, BufReader::new(output));
        let line = supervisor.line()?;
        if line.is_empty() {
            return Err(
                "the control plane did not start; the reason is in the supervisor's stderr".to_owned()
            );
        }
        Self::attach(&Facts::parse(&line)?, Some(supervisor))
    }

    /// Why a control plane that this process has started no longer runs. `None` if it runs.
    pub(crate) fn ended(&self) -> Option<String> {
        let supervisor = self.supervisor.as_ref()?;
        let mut supervisor = supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        let status = supervisor.0.try_wait();
        match status {
            Ok(Some(status)) => Some(format!("its supervisor: {status}")),
            Ok(None) if self.state.is_dir() => None,
            Ok(None) => Some(format!("{} was removed", self.state.display())),
            Err(error) => Some(format!("its supervisor: {error}")),
        }
    }

    /// Kills a component (`etcd`, `kube-apiserver` and so on) of a control plane that this process has started itself.
    ///
    /// # Panics
    /// If the component cannot be killed, as on a control plane of another process.
    #[track_caller]
    pub fn kill(&self, component: &str) {
        self.order(Order::Kill, component);
    }

    /// Restarts a killed component with the same ports and data; does not wait until it is ready.
    ///
    /// # Panics
    /// As [`kill`](Self::kill).
    #[track_caller]
    pub fn restart(&self, component: &str) {
        self.order(Order::Start, component);
    }

    /// Suspends a component (SIGSTOP).
    ///
    /// # Panics
    /// As [`kill`](Self::kill).
    #[track_caller]
    pub fn pause(&self, component: &str) {
        self.order(Order::Pause, component);
    }

    /// Resumes a paused component (SIGCONT).
    ///
    /// # Panics
    /// As [`kill`](Self::kill).
    #[track_caller]
    pub fn resume(&self, component: &str) {
        self.order(Order::Resume, component);
    }

    /// Stops a control plane that this process has started itself, for one that would otherwise live as long as the
    /// process.
    ///
    /// # Panics
    /// If another process has started the control plane.
    #[track_caller]
    pub fn stop(&self) {
        let supervisor = self.supervisor.as_ref().expect("this process has started the control plane");
        let mut supervisor = supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        // Closes the pipe.
        drop(supervisor.0.stdin.take());
        let _ = supervisor.0.wait();
    }

    #[track_caller]
    fn order(&self, order: Order, component: &str) {
        let supervisor = self.supervisor.as_ref().expect("this process has started the control plane");
        let mut supervisor = supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = supervisor.order(&format!("{} {component}", order.word()));
        assert_eq!(answer.as_deref().map(str::trim_end), Ok(""), "{} {component}", order.word());
    }

    fn find_or_start() -> Result<Self> {
        if let Some(state) = env::var_os(STATE_VARIABLE) {
            return Self::attach(&Facts::load(Path::new(&state))?, None);
        }
        if env::var_os("CONFREV_TEST_CLUSTER").is_some_and(|value| value == "1") {
            return Self::attach_to_own_cluster();
        }
        Self::start()
    }

    fn attach(facts: &Facts, supervisor: Option<Supervisor>) -> Result<Self> {
        let kubeconfig = facts.kubeconfig();
        let text = std::fs::read_to_string(&kubeconfig)
            .map_err(|e| format!("cannot read {}: {e}", kubeconfig.display()))?;
        let connection = Connection::parse(&text)?;
        Ok(Self {
            api: Api::new(&connection)?,
            connection,
            kubeconfig,
            binaries: facts.binaries.clone(),
            state: facts.state.clone(),
            authority_key: Some(facts.authority_key()),
            supervisor: supervisor.map(Mutex::new),
            _folder: None,
        })
    }

    fn attach_to_own_cluster() -> Result<Self> {
        let kubeconfig = env::var_os("KUBECONFIG").ok_or("CONFREV_TEST_CLUSTER=1 needs KUBECONFIG")?;
        let binaries = Binaries::only(&["kubectl", "kubectl-argo-rollouts"])?;
        let mut kubectl = Command::new(binaries.path("kubectl"));
        kubectl.args(["config", "view", "--raw", "--minify", "--flatten", "--output=json"]);
        let output = kubectl.output().map_err(|e| format!("cannot run kubectl: {e}"))?;
        if !output.status.success() {
            return Err(format!("kubectl config view: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let connection = Connection::parse(&String::from_utf8_lossy(&output.stdout))?;
        let folder = StateFolder::create("confrev-test-cluster")?;
        let state = folder.path().to_owned();
        // One file with all settings, since KUBECONFIG may list several files.
        let kubeconfig_copy = state.join("admin.kubeconfig");
        connection.write(&kubeconfig_copy)?;
        eprintln!("controlplane: using the cluster of {} at {}", kubeconfig.display(), connection.url);
        Ok(Self {
            api: Api::new(&connection)?,
            connection,
            kubeconfig: kubeconfig_copy,
            binaries: binaries.folder().to_owned(),
            state,
            authority_key: None,
            supervisor: None,
            _folder: Some(folder),
        })
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The path of a binary, such as `kubectl` or `kubectl-argo-rollouts`. A tool that the control plane itself does not
    /// need, such as `helm`, is built if necessary.
    ///
    /// # Panics
    /// If the tool cannot be built.
    #[track_caller]
    pub fn bin(&self, name: &str) -> PathBuf {
        let file = self.binaries.join(name);
        if file.exists() || self.authority_key.is_none() {
            return file;
        }
        Binaries::tool(name).unwrap_or_else(|problem| panic!("{problem}")).path(name)
    }

    /// The API server's address, `https://` and without a path.
    pub fn api_url(&self) -> &str {
        &self.connection.url
    }

    /// The certificate of the CA that signed the API server's certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.connection.authority
    }

    /// The folder of logs, certificates and kubeconfigs; tests may add files of their own. It is removed with the
    /// control plane.
    pub fn state_dir(&self) -> &Path {
        &self.state
    }

    /// A fast client with the administrator's identity.
    pub fn api(&self) -> &Api {
        &self.api
    }

    pub(crate) fn authority_key(&self) -> Option<PathBuf> {
        self.authority_key.clone()
    }

    /// A `kubectl` command with these arguments, as the administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Kubectl {
        Kubectl::new(&self.bin("kubectl"), &self.kubeconfig, arguments)
    }

    /// A command of the Argo Rollouts plugin, such as `argo(&["undo", "web", "-n", "shop"])`.
    pub fn argo(&self, arguments: &[&str]) -> Kubectl {
        Kubectl::new(&self.bin("kubectl-argo-rollouts"), &self.kubeconfig, arguments)
    }

    /// An object, if it exists. The kind is written as for kubectl; the namespace of a cluster-scoped kind is ignored.
    ///
    /// # Panics
    /// On an unknown kind, or if the answer is neither the object nor 404.
    #[track_caller]
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let path = format!("{}/{name}", resources::path(kind, namespace));
        match self.api.get(&path) {
            (200, object) => Some(object),
            (404, _) => None,
            (code, answer) => panic!("GET {path}: {code} {answer}"),
        }
    }

    /// The objects of a kind that match a label selector, in one namespace. An empty selector or namespace means all.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[track_caller]
    pub fn list(&self, kind: &str, namespace: &str, selector: &str) -> Vec<Value> {
        let path = resources::path(kind, namespace);
        match self.api.get(&format!("{path}?labelSelector={}", resources::escape(selector))) {
            (200, mut list) => match list["items"].take() {
                Value::Array(items) => items,
                _ => Vec::new(),
            },
            (code, answer) => panic!("GET {path}: {code} {answer}"),
        }
    }

    /// Creates an object of the kind.
    ///
    /// # Panics
    /// If it is refused, with the server's message.
    #[track_caller]
    pub fn create(&self, kind: &str, namespace: &str, object: &Value) -> Value {
        let path = resources::path(kind, namespace);
        match self.api.post(&path, object) {
            (200..=299, created) => created,
            (code, answer) => panic!("POST {path}: {code} {answer}"),
        }
    }

    /// The pods that match a label selector, are ready and are not being deleted.
    #[track_caller]
    pub fn ready_pods(&self, namespace: &str, selector: &str) -> Vec<Value> {
        let mut pods = self.list("pods", namespace, selector);
        pods.retain(is_ready);
        pods
    }
}

/// Whether a pod is ready and is not being deleted.
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    pod["metadata"]["deletionTimestamp"].is_null()
        && conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}
