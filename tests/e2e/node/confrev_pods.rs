//! confrev itself as pods: what the kernel lets them do, and what their ends cost the writes of others.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use confrev_controlplane::{Nodes, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::shared::{LIMIT, cluster, confrev_pods, exclusive, running, wait_serving};
use crate::world::{World, expect, name_of};
use crate::writer::Writer;

/// How many clients write while a replica is killed.
const WRITERS: usize = 4;

/// The folders in `/proc` of confrev's processes on both nodes.
pub(crate) fn processes() -> Vec<PathBuf> {
    let folders = fs::read_dir("/proc").expect("processes are listed").filter_map(|entry| {
        let folder = entry.ok()?.path();
        (fs::read_link(folder.join("exe")).ok()? == Path::new("/confrev")).then_some(folder)
    });
    folders.collect()
}

/// The kernel's view of confrev's processes on both nodes.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn confrev_runs_without_privileges() {
    let _confrev = running();
    let namespace = cluster().get("namespace", "", "confrev").expect("the namespace exists");
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    let processes = processes();
    assert!(processes.len() >= 2, "{processes:?}");
    for process in processes {
        let status = fs::read_to_string(process.join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().split_whitespace().next().unwrap_or_default().to_owned()
        };
        assert_eq!(field("Uid"), "65532");
        assert_eq!(field("NoNewPrivs"), "1");
        assert_eq!(field("Seccomp"), "2", "the runtime's filter of system calls is in force");
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        let mounts = fs::read_to_string(process.join("mountinfo")).unwrap();
        let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).expect("a root");
        let options = root.split(' ').nth(5).unwrap_or_default();
        assert!(options.split(',').any(|option| option == "ro"), "{root}");
    }
}

/// Three restarts in a row, one replica after another.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn rolling_restart_refuses_no_write() {
    let _alone = exclusive();
    let world = World::new("restart");
    let writer = Writer::start(&world);
    for _ in 0..2 {
        let restart = ["rollout", "restart", "deployment/confrev", "--namespace=confrev"];
        cluster().kubectl(&restart).run().ok();
        wait_serving(2);
    }
    let writes = writer.stop();
    eprintln!("during rolling restarts: {writes}");
    assert!(writes.count > 50, "{writes}");
    assert!(writes.refused.is_empty(), "{writes}");
}

/// A killed process cannot finish its requests, and counts as ready until the kubelet notices. Writes may fail until then only.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn killed_replica_refuses_writes_only_briefly() {
    let _alone = exclusive();
    let world = World::new("killed");
    let (mut all_refused, mut all_writes) = (0, 0);
    for victim in [0, 1, 0, 1] {
        wait_serving(2);
        let pod = confrev_pods().remove(victim);
        let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        let before = restarts(&pod);
        let writers: Vec<_> =
            (0..WRITERS).map(|i| Writer::start_at(&world, &format!("written-{i}"))).collect();
        Nodes::shared().kill_container(&pod, "confrev");
        wait_for("the killed replica to serve again", LIMIT, || {
            let pods = confrev_pods();
            expect(&pods.len(), &2)?;
            let again =
                pods.iter().find(|found| name_of(found) == name_of(&pod)).ok_or("the pod is deleted")?;
            if restarts(again) > before {
                Ok(())
            } else {
                Err("the container did not start again".to_owned())
            }
        });
        let writes: Vec<_> = writers.into_iter().map(Writer::stop).collect();
        let count: usize = writes.iter().map(|writes| writes.count).sum();
        let slowest = writes.iter().map(|writes| writes.slowest).max().unwrap_or_default();
        let refused: Vec<_> = writes.iter().flat_map(|writes| &writes.refused).collect();
        let times = || refused.iter().map(|(at, _)| *at);
        let outage = times()
            .max()
            .zip(times().min())
            .map_or(Duration::ZERO, |(last, first)| last.saturating_sub(first));
        eprintln!(
            "after a replica was killed: {} of {count} writes were refused, within {outage:.2?}; the slowest took {slowest:.2?}",
            refused.len()
        );
        for (at, why) in &refused {
            eprintln!("  {at:.2?}: {why}");
        }
        assert!(refused.len() < count, "the other replica answers meanwhile: {refused:?}");
        // How long the kubelet and the node's proxy take is not confrev's. Nothing is refused after that.
        wait_serving(2);
        let later = Writer::start(&world).stop();
        assert!(later.refused.is_empty(), "{later}");
        (all_refused, all_writes) = (all_refused + refused.len(), all_writes + count);
    }
    eprintln!("in all: {all_refused} of {all_writes} writes were refused");
}

/// A stopped process answers nothing, and ends no connection. The other replica answers meanwhile, and once the kubelet has noticed,
/// nothing is refused.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn stopped_replica_refuses_few_writes() {
    let _alone = exclusive();
    wait_serving(2);
    let world = World::new("stopped");
    let writers: Vec<_> = (0..WRITERS).map(|i| Writer::start_at(&world, &format!("written-{i}"))).collect();
    let stopped = Stopped::new(&processes()[0]);
    wait_for("the stopped replica to be unready", LIMIT, || {
        let ready = |pod: &&Value| confrev_controlplane::is_ready(pod);
        expect(&confrev_pods().iter().filter(ready).count(), &1)
    });
    let writes: Vec<_> = writers.into_iter().map(Writer::stop).collect();
    let later = Writer::start(&world);
    later.more(WRITERS * 10);
    let later = later.stop();
    drop(stopped);
    for writes in &writes {
        eprintln!("while a replica was stopped: {writes}");
        assert!(writes.refused.len() < writes.count, "the other replica answers meanwhile: {writes}");
    }
    assert!(later.refused.is_empty(), "{later}");
    wait_serving(2);
}

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    /// `folder`: that of the process in `/proc`.
    fn new(folder: &Path) -> Self {
        let number = folder.file_name().and_then(|name| name.to_str()?.parse().ok());
        let pid = number.and_then(Pid::from_raw).expect("a folder of /proc has the number of its process");
        kill_process(pid, Signal::STOP).expect("the process can be stopped");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // The kubelet may have ended it.
        let _ = kill_process(self.0, Signal::CONT);
    }
}
