//! What real nodes need of the machine, checked before anything is built or started.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Result;

/// Where Debian's package `busybox-static` puts its program.
pub(crate) const BUSYBOX: &str = "/bin/busybox";

/// The programs that are run, and their Debian packages.
const PROGRAMS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("ipset", "ipset"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("pkg-config", "pkg-config"),
    ("cc", "gcc"),
];

/// Probes in namespaces that are deleted at once: the kernel's part of what containers and Services need.
const PROBES: [(&str, &str); 3] = [
    ("create namespaces of processes, mounts and the network", "true"),
    ("mount an overlay file system", OVERLAY),
    ("change the tables of nf_tables", "nft add table ip probe"),
];

/// What an agent needs of the kernel to enforce NetworkPolicies: rules of iptables that match sets of addresses.
const POLICIES: &str = "ipset create probe hash:ip timeout 0 && \
    iptables -A FORWARD -m comment --comment probe -m set --match-set probe src -m addrtype --dst-type LOCAL -j ACCEPT && \
    iptables -A FORWARD -m limit --limit 10/minute -j NFLOG && iptables -A FORWARD -m mark --mark 1/1 -j REJECT";

const OVERLAY: &str = "mount -t tmpfs tmpfs /mnt && mkdir /mnt/lower /mnt/upper /mnt/work /mnt/all && \
    mount -t overlay overlay -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work /mnt/all";

/// The options of `unshare` for namespaces that end with the process that runs it.
pub(crate) const UNSHARE: [&str; 7] =
    ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--propagation=private"];

/// Returns an error with the first thing that is missing.
pub(crate) fn check() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err("real nodes need root: containers, network namespaces and control groups do".to_owned());
    }
    for (program, package) in PROGRAMS {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
        if !shell.status().is_ok_and(|status| status.success()) {
            return Err(missing(program, package));
        }
    }
    let seccomp = Command::new("pkg-config").args(["--exists", "libseccomp"]).status();
    if !seccomp.is_ok_and(|status| status.success()) {
        return Err(missing("library libseccomp", "libseccomp-dev"));
    }
    let busybox = fs::read(BUSYBOX).map_err(|_| missing(BUSYBOX, "busybox-static"))?;
    // A dynamically linked program would need its libraries in the image.
    if busybox.windows(8).take(4096).any(|bytes| bytes == b"ld-linux") {
        return Err(missing("static busybox", "busybox-static"));
    }
    let groups = Path::new("/sys/fs/cgroup");
    if !groups.join("cgroup.controllers").exists() && !groups.join("pids/cgroup.procs").exists() {
        return Err("real nodes need control groups: mount version 1 or 2 at /sys/fs/cgroup".to_owned());
    }
    for (what, script) in PROBES {
        let output = Command::new("unshare").args(UNSHARE).args(["sh", "-c", script]).output();
        let output = output.map_err(|e| format!("cannot run unshare: {e}"))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(format!(
                "real nodes cannot run here: this machine does not let root {what}: {}",
                reason.trim()
            ));
        }
    }
    Ok(())
}

/// Whether this kernel can enforce NetworkPolicies; otherwise the reason. Nodes run without it.
pub(crate) fn check_policies() -> Result<()> {
    let output = Command::new("unshare").args(UNSHARE).args(["sh", "-c", POLICIES]).output();
    let output = output.map_err(|e| format!("cannot run unshare: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(format!("NetworkPolicies need a kernel with IP sets and the matches of iptables: {}", reason.trim()))
}

fn missing(what: &str, package: &str) -> String {
    format!("real nodes need {what}: run `make node-packages`, or install Debian's package {package}")
}
