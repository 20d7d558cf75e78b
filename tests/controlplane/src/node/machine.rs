//! The nodes as machines: started, lost, and started again.

use std::env;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Result;
use crate::cluster::ControlPlane;
use crate::node::image::Image;
use crate::node::isolate::GROUPS_VARIABLE;
use crate::node::network::{self, ADDRESSES, NAMES};
use crate::node::{cgroups, containerd, image, kubelet, requirements};
use crate::process::{die_with_parent, tail};
use crate::program::spawn;
use crate::wait::wait_for;

/// The longest that a node may take to become ready, or to be noticed as lost.
const LIMIT: Duration = Duration::from_mins(3);

/// The two real nodes. They end with this process.
#[derive(Debug)]
pub struct Nodes {
    cluster: &'static ControlPlane,
    groups: String,
    without_policies: Option<String>,
    machines: [Mutex<Node>; 2],
}

#[derive(Debug)]
struct Node {
    number: usize,
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Nodes {
    /// The names of the nodes. The control plane is on the first one.
    pub const NAMES: [&'static str; 2] = NAMES;
    /// An image of tests with a shell, which is on every node.
    pub const SHELL: &'static str = image::SHELL;

    /// The nodes that all tests of this process share, started by the first one.
    ///
    /// # Panics
    /// Outside `controlplane nodes`, or if a node does not become ready.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<Nodes>> = OnceLock::new();
        SHARED.get_or_init(Self::start_all).as_ref().unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn start_all() -> Result<Self> {
        let groups = env::var(GROUPS_VARIABLE)
            .map_err(|_| "real nodes run only under `controlplane nodes`: run make test-node".to_owned())?;
        let cluster = ControlPlane::shared();
        let state = cluster.state_dir();
        let node = |number| Node { number, folder: state.join(NAMES[number]), daemons: Vec::new() };
        let without_policies = requirements::check_policies().err();
        let machines = [Mutex::new(node(0)), Mutex::new(node(1))];
        let nodes = Self { cluster, groups, without_policies, machines };
        for number in [0, 1] {
            nodes.configure(number)?;
            nodes.power_on(number)?;
        }
        let pause = ["/bin/sleep", "infinity"];
        nodes.import_image(Image { names: &[image::PAUSE], command: &pause, ..Image::default() });
        nodes.import_image(Image { names: &[image::SHELL], command: &["/bin/sh"], ..Image::default() });
        nodes.wait_ready();
        for number in [0, 1] {
            nodes.enforce_policies(number)?;
        }
        Ok(nodes)
    }

    /// Why NetworkPolicies are not in force; `None` if they are.
    pub fn without_policies(&self) -> Option<&str> {
        self.without_policies.as_deref()
    }

    /// Makes a small image available on both nodes, under its names.
    ///
    /// # Panics
    /// As [`import`](Self::import).
    #[track_caller]
    pub fn import_image(&self, image: Image<'_>) {
        let archive = self.cluster.state_dir().join("image.tar");
        image::write(&archive, image).unwrap_or_else(|problem| panic!("{problem}"));
        self.import(&archive);
    }

    /// Makes the image in an archive available on both nodes. No node ever pulls one.
    ///
    /// # Panics
    /// If containerd refuses it.
    #[track_caller]
    pub fn import(&self, archive: &Path) {
        for name in NAMES {
            let mut ctr = self.ctr(name);
            ctr.args(["images", "import"]).arg(archive);
            let output = ctr.output().expect("ctr can be run");
            let problem = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} cannot import {}: {problem}", archive.display());
        }
    }

    /// Gives an image on both nodes another name.
    ///
    /// # Panics
    /// If it does not exist.
    #[track_caller]
    pub fn tag(&self, image: &str, name: &str) {
        for node in NAMES {
            let output = self.ctr(node).args(["images", "tag", "--force", image, name]).output();
            let output = output.expect("ctr can be run");
            let problem = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{node} cannot tag {image}: {problem}");
        }
    }

    /// Ends a node as a power failure does: its daemons and containers are killed, and its network is cut.
    ///
    /// # Panics
    /// On the first node, which has the control plane, or if the node is not running.
    #[track_caller]
    pub fn lose(&self, name: &str) {
        let mut node = self.node(name);
        assert_ne!(node.number, 0, "the control plane would be lost with {name}");
        assert!(!node.daemons.is_empty(), "{name} is not running");
        network::connect(node.number, false).expect("the node's network can be cut");
        self.kill_processes(&mut node);
    }

    /// Ends and starts a node, as a reboot does. Waits until it is ready.
    ///
    /// # Panics
    /// If the node does not become ready.
    #[track_caller]
    pub fn restart(&self, name: &str) {
        {
            let mut node = self.node(name);
            self.kill_processes(&mut node);
        }
        self.recover(name);
    }

    /// Starts a lost node again. Waits until it is ready.
    ///
    /// # Panics
    /// If the node does not become ready.
    #[track_caller]
    pub fn recover(&self, name: &str) {
        let number = self.node(name).number;
        if number != 0 {
            network::connect(number, true).expect("the node's network can be connected");
        }
        let before = self.heartbeat(name);
        self.power_on(number).unwrap_or_else(|problem| panic!("{problem}"));
        wait_for(&format!("{name} to report again"), LIMIT, || {
            (self.heartbeat(name) != before).then_some(())
        });
        self.wait_ready();
        self.enforce_policies(number).unwrap_or_else(|problem| panic!("{problem}"));
    }

    /// Starts each node that a failed test left lost, and lets both run pods.
    ///
    /// # Panics
    /// If a node does not become ready.
    #[track_caller]
    pub fn repair(&self) {
        for name in NAMES {
            if self.node(name).daemons.is_empty() {
                self.recover(name);
            }
            self.cluster.kubectl(&["uncordon", name]).run().ok();
        }
        self.wait_ready();
    }

    /// Waits until both nodes are ready.
    ///
    /// # Panics
    /// If they do not become ready, with the end of the kubelets' logs.
    #[track_caller]
    pub fn wait_ready(&self) {
        for name in NAMES {
            wait_for(&format!("{name} to be ready"), LIMIT, || {
                if self.is_ready(name) { Ok(()) } else { Err(self.logs(name)) }
            });
        }
    }

    /// Waits until the control plane has noticed that a node is lost.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn wait_lost(&self, name: &str) {
        wait_for(&format!("{name} to be noticed as lost"), LIMIT, || (!self.is_ready(name)).then_some(()));
    }

    /// Whether a node is ready, as the control plane sees it.
    pub fn is_ready(&self, name: &str) -> bool {
        let taints = |node: &Value| node["spec"]["taints"].as_array().is_none_or(Vec::is_empty);
        self.condition(name).is_some_and(|(node, ready)| ready["status"] == "True" && taints(&node))
    }

    /// Kills the processes of a container with SIGKILL, which no kubelet has asked for.
    ///
    /// # Panics
    /// If the pod has no such container.
    #[track_caller]
    pub fn kill_container(&self, pod: &Value, container: &str) {
        let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        let status = statuses.into_iter().find(|status| status["name"] == container);
        let id = status.and_then(|status| status["containerID"].as_str()?.strip_prefix("containerd://"));
        let id = id.unwrap_or_else(|| panic!("the pod has no running container {container}"));
        let name = pod["spec"]["nodeName"].as_str().expect("the pod is on a node");
        let output = self.ctr(name).args(["task", "kill", "--signal", "SIGKILL", id]).output();
        let output = output.expect("ctr can be run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The ends of the logs of a node's daemons.
    pub fn logs(&self, name: &str) -> String {
        let log = |daemon| format!("{name} {daemon}:\n{}\n", tail(&self.log(name, daemon)));
        ["containerd", "kubelet"].map(log).concat()
    }

    fn condition(&self, name: &str) -> Option<(Value, Value)> {
        let node = self.cluster.get("node", "", name)?;
        let conditions = node["status"]["conditions"].as_array()?;
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?.clone();
        Some((node, ready))
    }

    /// The last time that the kubelet itself reported the node's state.
    fn heartbeat(&self, name: &str) -> Value {
        let lease = self.cluster.get("lease", "kube-node-lease", name);
        lease.map_or(Value::Null, |lease| lease["spec"]["renewTime"].clone())
    }

    fn node(&self, name: &str) -> std::sync::MutexGuard<'_, Node> {
        let number = NAMES.iter().position(|known| *known == name).expect("the node exists");
        self.machines[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill_processes(&self, node: &mut Node) {
        let name = NAMES[node.number];
        wait_for(&format!("the processes of {name} to end"), LIMIT, || {
            let processes = cgroups::processes(&self.groups, name);
            for process in processes.iter().copied().filter_map(Pid::from_raw) {
                let _ = kill_process(process, Signal::KILL);
            }
            // Those of the daemons stay until they are waited for.
            for daemon in &mut node.daemons {
                let _ = daemon.try_wait();
            }
            if processes.is_empty() { Ok(()) } else { Err(format!("{} processes", processes.len())) }
        });
        node.daemons.clear();
    }

    fn configure(&self, number: usize) -> Result<()> {
        let (state, name) = (self.cluster.state_dir(), NAMES[number]);
        let folder = state.join(name);
        let write = |file: &str, text: String| {
            let path = folder.join(file);
            let above = path.parent().map_or(Ok(()), fs::create_dir_all);
            above
                .and_then(|()| fs::write(&path, text))
                .map_err(|e| format!("cannot write {}: {e}", path.display()))
        };
        write("containerd.toml", containerd::config(&folder, &self.cluster.bin("")))?;
        let network = containerd::network(number, &folder).to_string();
        write(&format!("{}/pods.conflist", containerd::NETWORKS), network)?;
        write("kubelet.json", kubelet::kubelet(number, &folder, state, &self.groups).to_string())?;
        write("Corefile", kubelet::names(self.cluster.kubeconfig()))?;
        write("kube-proxy.json", kubelet::proxy(number, state).to_string())
    }

    /// Starts the daemons of a node.
    fn power_on(&self, number: usize) -> Result<()> {
        let (state, name) = (self.cluster.state_dir(), NAMES[number]);
        let folder = state.join(name);
        let path = |file: &str| folder.join(file).display().to_string();
        let mut daemons = Vec::new();
        daemons.push(self.daemon(number, "containerd", &["--config", &path("containerd.toml")])?);
        wait_for(&format!("containerd of {name}"), LIMIT, || {
            let output = self.ctr(name).arg("version").output().expect("ctr can be run");
            if output.status.success() { Ok(()) } else { Err(self.logs(name)) }
        });
        let kubeconfig = state.join(format!("{name}.kubeconfig")).display().to_string();
        let flags = [
            format!("--config={}", path("kubelet.json")),
            format!("--kubeconfig={kubeconfig}"),
            format!("--root-dir={}", path("kubelet")),
            format!("--cert-dir={}", path("certificates")),
            format!("--hostname-override={name}"),
            format!("--node-ip={}", ADDRESSES[number]),
        ];
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        daemons.push(self.daemon(number, "kubelet", &flags)?);
        daemons.push(self.daemon(number, "kube-proxy", &["--config", &path("kube-proxy.json")])?);
        if number == 0 {
            daemons.push(self.daemon(number, "coredns", &["-conf", &path("Corefile")])?);
        }
        let mut node = self.node(name);
        node.folder = folder;
        node.daemons = daemons;
        Ok(())
    }

    /// Starts the agent that enforces NetworkPolicies on a node, which must be known to the API server. The rules of the lost
    /// node's agent stay in force until then.
    fn enforce_policies(&self, number: usize) -> Result<()> {
        if self.without_policies.is_some() {
            return Ok(());
        }
        let flags = [
            format!("--kubeconfig={}", self.cluster.kubeconfig().display()),
            format!("--hostname-override={}", NAMES[number]),
            format!("--service-cluster-ip-range={}", network::SERVICES),
            "--run-firewall=true".to_owned(),
            "--run-router=false".to_owned(),
            "--run-service-proxy=false".to_owned(),
            "--health-port=0".to_owned(),
        ];
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let agent = self.daemon(number, "kube-router", &flags)?;
        self.node(NAMES[number]).daemons.push(agent);
        Ok(())
    }

    /// Starts a daemon in the network and the control group of a node.
    fn daemon(&self, number: usize, program: &str, arguments: &[&str]) -> Result<Child> {
        let name = NAMES[number];
        let problem = |e: std::io::Error| format!("cannot start {program} of {name}: {e}");
        let group = cgroups::entry(&self.groups, name);
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        let words = [network::entry(number), vec!["sh".into(), "-c".into(), script.into()]].concat();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(group).arg(self.cluster.bin(program)).args(arguments);
        let log = File::options().create(true).append(true).open(self.log(name, program)).map_err(problem)?;
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(problem)?).stderr(log);
        // containerd finds its shim in PATH, and none may use the caller's cluster.
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.cluster.bin("")).chain(env::split_paths(&path));
        command
            .env("PATH", env::join_paths(folders).map_err(|e| format!("PATH: {e}"))?)
            .env_remove("KUBECONFIG");
        command.current_dir(self.cluster.state_dir()).process_group(0);
        die_with_parent(&mut command);
        spawn(command).map_err(problem)
    }

    fn log(&self, name: &str, daemon: &str) -> PathBuf {
        self.cluster.state_dir().join(format!("{name}-{daemon}.log"))
    }

    fn ctr(&self, name: &str) -> Command {
        let mut ctr = Command::new(self.cluster.bin("ctr"));
        let socket = self.cluster.state_dir().join(name).join(containerd::SOCKET);
        ctr.arg("--address").arg(socket).args(["--namespace", "k8s.io"]);
        ctr
    }
}
