//! Runs a command beside a control plane, in namespaces in which real nodes can run.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Result;
use crate::binaries::Binaries;
use crate::node::cgroups::Cgroups;
use crate::node::network::{self, shell};
use crate::node::requirements::{self, UNSHARE};
use crate::process::die_with_parent;
use crate::site::Site;
use crate::{state, supervisor};

/// The environment variable with the name of the nodes' control groups. It is set only inside.
pub(crate) const GROUPS_VARIABLE: &str = "CONFREV_NODE_CGROUPS";
/// If it is `optional`, a machine that cannot run nodes is no failure.
const VARIABLE: &str = "CONFREV_NODE";
/// The exit code of a check after which the tests are skipped.
const SKIPPED: u8 = 3;
/// How often it checks whether the command has ended.
const CHECK: Duration = Duration::from_millis(100);

/// Folders that containerd, the kubelet and others write to whatever their options say, and kernel parameters that the
/// kubelet sets. Inside, all of them are others than the machine's. Controllers outside of pods find the API server's Service.
const SET_UP: &str = r#"
for folder in /run /var/lib /var/log; do mount -t tmpfs tmpfs "$folder"; done
mkdir /run/netns /run/parameters
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  [ -e "/proc/sys/$name" ] || continue
  copy=/run/parameters/$(echo "$name" | tr / .)
  cat "/proc/sys/$name" > "$copy"
  mount --bind "$copy" "/proc/sys/$name"
done
{ cat /etc/hosts; echo "10.0.0.1 kubernetes.default.svc"; } > /run/hosts
mount --bind /run/hosts /etc/hosts
"#;

/// Checks whether nodes can run here. If they cannot and need not, it reports in one line that they are skipped.
pub fn check() -> Result<u8> {
    match requirements::check() {
        Err(problem) if env::var_os(VARIABLE).is_some_and(|value| value == "optional") => {
            eprintln!("controlplane: SKIPPED the tests on real nodes ({VARIABLE}=optional): {problem}");
            Ok(SKIPPED)
        }
        Err(problem) => Err(problem),
        Ok(()) => Ok(0),
    }
}

/// Runs a command in new namespaces, against a new control plane. Returns its exit code. Call it from the main thread.
pub fn run(program: &OsString, arguments: &[OsString]) -> Result<u8> {
    requirements::check()?;
    let binaries = Binaries::with_nodes()?;
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(|e| format!("cannot handle signals: {e}"))?;
    // Dropped last: processes must leave the groups first.
    let groups = Cgroups::create()?;
    let this = env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut command = Command::new("unshare");
    command.args(UNSHARE).arg(this).arg("first-process").arg(binaries.folder()).arg(program).args(arguments);
    command.env(GROUPS_VARIABLE, groups.name());
    // Ctrl-C goes to the terminal's foreground group. The end of `unshare` ends everything inside.
    command.process_group(0);
    let mut child = die_with_parent(&mut command).spawn().map_err(|e| format!("cannot run unshare: {e}"))?;
    let code = attend(&mut child, &mut signals);
    let _ = child.kill();
    let _ = child.wait();
    // Not by the supervisor inside: there, folders of containers are still mounted.
    state::remove_abandoned(&env::temp_dir(), state::PREFIX);
    drop(groups);
    code
}

/// Waits for the command to end, or for a signal.
fn attend(child: &mut Child, signals: &mut Signals) -> Result<u8> {
    loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("cannot wait for unshare: {e}"))? {
            return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
        if let Some(signal) = signals.pending().next() {
            return Ok(u8::try_from(128 + signal).unwrap_or(1));
        }
        thread::sleep(CHECK);
    }
}

/// The first process of the new namespace: sets up folders and the network, starts the supervisor, and waits for it. All
/// processes whose parents end become its children.
pub fn first_process(binaries: &OsString, command: &[OsString]) -> Result<u8> {
    shell(SET_UP, "set up the folders of the nodes")?;
    network::set_up()?;
    let this = env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut supervisor = Command::new(this);
    supervisor.arg("supervise").arg(binaries).args(command);
    let child = supervisor.spawn().map_err(|e| format!("cannot run the supervisor: {e}"))?;
    let supervisor = Pid::from_child(&child);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((process, status))) if process == supervisor => return Ok(code(status)),
            Ok(_) | Err(Errno::INTR) => {}
            Err(problem) => return Err(format!("cannot wait for the supervisor: {problem}")),
        }
    }
}

fn code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Runs the command against a control plane in this network.
pub fn supervise(binaries: &OsString, command: &[OsString]) -> Result<u8> {
    let [program, arguments @ ..] = command else { return Err("no command".to_owned()) };
    let binaries = Binaries::at(PathBuf::from(binaries));
    supervisor::run_at(Site::Network, &binaries, program, arguments)
}
