//! confrev itself, running beside the control plane as it would in a pod.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use ureq::http::Method;

use crate::cluster::ControlPlane;
use crate::process::die_with_parent;
use crate::suffix::suffix;
use crate::wait::wait_for;
use crate::{ports, resources};

/// The namespace of the manifests, and of the ServiceAccount in them.
const NAMESPACE: &str = "confrev";
/// The longest that confrev may take to become ready, and to end. Both take about three seconds on an idle machine.
const LIMIT: Duration = Duration::from_mins(1);
/// The annotation that confrev writes on workloads that use a source, and removes from others.
const STATE: &str = "confrev.dev/state";
/// How many lines of the log a failed test prints.
const TAIL: usize = 80;

/// confrev as a process of its own, on two loopback ports that stay the same over restarts. It is killed on drop, and
/// when this process ends, however it ends.
#[derive(Debug)]
pub struct Program {
    cluster: &'static ControlPlane,
    binary: PathBuf,
    kubeconfig: PathBuf,
    options: Vec<String>,
    service: Option<String>,
    certificates: Option<PathBuf>,
    webhook: u16,
    admin: u16,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    /// Applies `manifests/self-signed.yaml`.
    ///
    /// # Panics
    /// If an object is refused.
    #[track_caller]
    pub fn install(cluster: &ControlPlane) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests");
        Self::install_from(cluster, &folder.join("self-signed.yaml"));
    }

    /// Applies another manifest, such as an older one. A busy machine may need more time for a review than a cluster, so the webhooks have
    /// ten seconds.
    ///
    /// # Panics
    /// If an object is refused.
    #[track_caller]
    pub fn install_from(cluster: &ControlPlane, manifests: &Path) {
        // A confrev that ran outside the cluster left its URL in the configurations; the API server allows no Service
        // beside it.
        let configurations = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
        cluster.kubectl(&["delete", configurations, "confrev", "--ignore-not-found"]).run().ok();
        let text = std::fs::read_to_string(manifests).expect("the manifests can be read");
        let patient = ["1", "3", "5"].iter().fold(text, |text, seconds| {
            text.replace(&format!("\n    timeoutSeconds: {seconds}\n"), "\n    timeoutSeconds: 10\n")
        });
        cluster.kubectl(&["apply", "--filename", "-"]).stdin(patient).run().ok();
    }

    /// confrev from this binary, to run as the ServiceAccount of the manifests, which must have been applied.
    ///
    /// # Panics
    /// If the ServiceAccount does not exist.
    pub fn new(cluster: &'static ControlPlane, binary: &Path) -> Self {
        let kubeconfig = cluster.kubeconfig_for_service_account(NAMESPACE, "confrev");
        let [webhook, admin] = ports::free().expect("there are free ports");
        let log = cluster.state_dir().join(format!("confrev-{}.log", suffix()));
        Self {
            cluster,
            binary: binary.to_owned(),
            kubeconfig,
            options: Vec::new(),
            service: None,
            certificates: None,
            webhook,
            admin,
            log,
            child: None,
        }
    }

    /// Runs confrev with the identity of this kubeconfig instead.
    #[must_use]
    pub fn as_user(mut self, kubeconfig: &Path) -> Self {
        kubeconfig.clone_into(&mut self.kubeconfig);
        self
    }

    /// Adds options of `serve` to the default ones.
    #[must_use]
    pub fn options(mut self, options: &[&str]) -> Self {
        self.options = options.iter().map(|&option| option.to_owned()).collect();
        self
    }

    /// Lets the API server reach confrev at this URL, which may serve several instances: a listener there passes
    /// connections on to [`address`](Self::address).
    #[must_use]
    pub fn behind(mut self, url: &str) -> Self {
        self.service = Some(url.to_owned());
        self
    }

    /// Serves the certificate in this folder, like a mounted Secret, and leaves `caBundle` to the certificate's issuer.
    #[must_use]
    pub fn with_certificates(mut self, folder: &Path) -> Self {
        self.certificates = Some(folder.to_owned());
        self
    }

    /// Starts confrev, and waits until it is ready and the API server calls it.
    ///
    /// # Panics
    /// If confrev is not ready in time, with the end of its log.
    #[track_caller]
    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// The same with additional options, for this run only.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[track_caller]
    pub fn start_with(&mut self, more: &[&str]) {
        self.launch(more);
        wait_for("confrev to be ready", LIMIT, || self.ready());
        wait_for("the API server to call confrev", LIMIT, || self.cluster.calls_confrev());
    }

    /// Starts confrev with additional options, without waiting.
    ///
    /// # Panics
    /// If confrev is running already, or cannot be started.
    #[track_caller]
    pub fn launch(&mut self, more: &[&str]) {
        assert!(!self.is_running(), "confrev is running already");
        let output =
            OpenOptions::new().create(true).append(true).open(&self.log).expect("a log can be written");
        let mut command = Command::new(&self.binary);
        command.args(self.arguments()).args(&self.options).args(more).env("KUBECONFIG", &self.kubeconfig);
        let errors = output.try_clone().expect("a file can be shared");
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // Ctrl-C goes to the terminal's foreground group, but the test program decides when confrev stops.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        die_with_parent(&mut command);
        let child = spawn(command).unwrap_or_else(|e| panic!("cannot run {}: {e}", self.binary.display()));
        self.child = Some(child);
    }

    /// The command line of `docs/install.md`, with these ports.
    pub fn arguments(&self) -> Vec<String> {
        let certificates = match &self.certificates {
            Some(folder) => vec!["--tls-dir".to_owned(), folder.display().to_string()],
            None => vec!["--self-signed".to_owned()],
        };
        let more = [
            "--webhook-url",
            &self.webhook_url(),
            "--listen",
            &self.address().to_string(),
            "--admin-listen",
            &format!("127.0.0.1:{}", self.admin),
            "--namespace",
            NAMESPACE,
        ];
        [vec!["serve".to_owned()], certificates, more.map(str::to_owned).to_vec()].concat()
    }

    /// Kills confrev, as a node failure does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Suspends confrev (SIGSTOP).
    ///
    /// # Panics
    /// If confrev is not running.
    #[track_caller]
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes confrev after [`pause`](Self::pause).
    ///
    /// # Panics
    /// If confrev is not running.
    #[track_caller]
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("confrev runs");
        kill_process(Pid::from_child(child), signal).expect("confrev can be sent a signal");
    }

    /// Stops confrev with SIGTERM, as the kubelet does, and waits until it has ended.
    ///
    /// # Panics
    /// If confrev does not end in time, or fails.
    #[track_caller]
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        kill_process(Pid::from_child(&child), Signal::TERM).expect("confrev can be sent a signal");
        let status = wait_for("confrev to end after SIGTERM", LIMIT, || {
            child.try_wait().expect("confrev can be waited for")
        });
        assert!(status.success(), "confrev ended with {status}. The end of its log:\n{}", self.log_tail());
    }

    /// Whether confrev is running. This notices if it has ended by itself.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Whether confrev was started, and neither stopped nor killed since.
    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// Whether confrev reports that it is ready.
    pub fn is_ready(&self) -> bool {
        let admin = self.cluster.api().at(&self.admin_url()).within(Duration::from_secs(1));
        matches!(admin.send(&Method::GET, "/readyz", None), Ok((200, _)))
    }

    /// Whether confrev answers, and reports that it leads.
    pub fn leads(&self) -> bool {
        let admin = self.cluster.api().at(&self.admin_url()).within(Duration::from_secs(1));
        let answer = admin.send(&Method::GET, "/metrics", None);
        matches!(answer, Ok((200, Value::String(text))) if text.lines().any(|line| line == "confrev_leader 1"))
    }

    /// A value of the kernel about confrev's process: the line `field` of `/proc/…/status`, in KiB or as a count.
    ///
    /// # Panics
    /// If confrev is not running, or the kernel reports no such value.
    #[track_caller]
    pub fn status(&self, field: &str) -> u64 {
        let text =
            fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the process has a status");
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let number = value.and_then(|value| value.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("{field} is not in\n{text}"))
    }

    /// The number of open descriptors of confrev.
    ///
    /// # Panics
    /// If confrev is not running.
    #[track_caller]
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the process has descriptors").count()
    }

    /// confrev's process id.
    ///
    /// # Panics
    /// If confrev is not running.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("confrev runs").id()
    }

    /// The loopback port on which confrev serves the webhooks.
    pub fn port(&self) -> u16 {
        self.webhook
    }

    /// The URL at which the API server reaches the webhooks.
    pub fn webhook_url(&self) -> String {
        self.service.clone().unwrap_or_else(|| format!("https://{}", self.address()))
    }

    /// The address on which confrev itself listens for webhooks.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.webhook).into()
    }

    /// The URL of `/healthz`, `/readyz` and `/metrics`.
    pub fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.admin)
    }

    /// The current value of a metric; `name` includes the labels, as in the text.
    ///
    /// # Panics
    /// If confrev does not answer, or has no such metric.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.metrics();
        let values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let mut values = values.map(|value| value.parse().expect("a number"));
        values.next().unwrap_or_else(|| panic!("{name} is not in\n{text}"))
    }

    /// All metrics, in OpenMetrics text.
    ///
    /// # Panics
    /// If confrev does not answer.
    #[track_caller]
    pub fn metrics(&self) -> String {
        match self.cluster.api().at(&self.admin_url()).send(&Method::GET, "/metrics", None) {
            Ok((200, Value::String(text))) => text,
            other => panic!("/metrics: {other:?}"),
        }
    }

    /// The end of confrev's log, over all its runs.
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// confrev's log, over all its runs.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn ready(&mut self) -> Result<(), String> {
        assert!(self.is_running(), "confrev ended before it was ready. Its log:\n{}", self.log_tail());
        match self.cluster.api().at(&self.admin_url()).send(&Method::GET, "/readyz", None) {
            Ok((200, _)) => Ok(()),
            Ok((code, answer)) => Err(format!("{code} {answer}\n{}", self.log_tail())),
            Err(problem) => Err(problem),
        }
    }
}

impl ControlPlane {
    /// Whether the API server calls confrev, or why not. It learns from its own watch where to send requests, a moment
    /// after confrev wrote that.
    pub fn calls_confrev(&self) -> Result<(), String> {
        let path = format!("{}?dryRun=All", resources::path("deployments", "default"));
        match self.api().post(&path, &probe()) {
            (201, object) if object["metadata"]["annotations"][STATE].is_null() => Ok(()),
            (code, answer) => Err(format!("{code} {answer}")),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An opted-in workload that is never stored. It uses no source, so confrev removes its annotation from it.
fn probe() -> Value {
    let labels = json!({"app": "confrev-probe"});
    json!({
        "metadata": {
            "name": "confrev-probe",
            "labels": {"confrev.dev/enabled": "true"},
            "annotations": {STATE: "{}"},
        },
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "probe", "image": "probe"}]},
            },
        },
    })
}

/// Spawns from a thread that lives as long as this process. The kernel kills a child with a parent-death signal when
/// the *thread* that spawned it ends, and threads of tests end early.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (sender, answer) = channel();
    let order = (command, sender);
    spawner.lock().unwrap_or_else(PoisonError::into_inner).send(order).map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}
