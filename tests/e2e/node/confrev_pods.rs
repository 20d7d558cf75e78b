//! confrev itself as pods: what the kernel lets them do, and what their ends cost the writes of others.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use confrev_controlplane::{Api, Nodes, wait_for};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::shared::{LIMIT, cluster, confrev_pods, exclusive, running, wait_serving};
use crate::world::{World, expect, name_of};

/// How many clients write while a replica is killed.
const WRITERS: usize = 4;

/// What the written workloads refer to.
const SOURCE: &str = "written";

/// Writes to the template of an opted-in workload, one after another. Each names the source, and confrev resolves it.
pub(crate) struct Writer {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<Writes>,
}

/// The outcomes of the writes.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    count: usize,
    slowest: Duration,
    /// When, and why.
    pub(crate) refused: Vec<(Duration, String)>,
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, slowest, refused } = self;
        write!(f, "{} of {count} writes were refused, the slowest took {slowest:.2?}", refused.len())?;
        refused.iter().try_for_each(|(at, why)| write!(f, "\n{at:.2?}: {why}"))
    }
}

impl Writer {
    /// Starts to write, to a Deployment without pods in this namespace.
    pub(crate) fn start(world: &World) -> Self {
        Self::start_at(world, "written")
    }

    /// The same, to a Deployment of this name.
    pub(crate) fn start_at(world: &World, name: &str) -> Self {
        world.set_config(SOURCE, "blue");
        let load = Load::new("deployments", name, &[SOURCE]).spec(json!({"replicas": 0}));
        load.apply(world).ok();
        let path = format!("/apis/apps/v1/namespaces/{}/deployments/{name}", world.name());
        let api = world.cluster.api().clone();
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = stopped.clone();
        Self { stopped, thread: thread::spawn(move || write_until(&api, &path, &stop)) }
    }

    /// Stops, after at least one write from now on.
    pub(crate) fn stop(self) -> Writes {
        self.stopped.store(true, Ordering::SeqCst);
        self.thread.join().expect("the writer ends")
    }
}

fn write_until(api: &Api, path: &str, stopped: &AtomicBool) -> Writes {
    let (start, mut writes) = (Instant::now(), Writes::default());
    loop {
        let last = stopped.load(Ordering::SeqCst);
        let annotation = json!({"written": writes.count.to_string()});
        let volumes = json!([{"name": SOURCE, "configMap": {"name": SOURCE}}]);
        let template = json!({"metadata": {"annotations": annotation}, "spec": {"volumes": volumes}});
        let change = json!({"spec": {"template": template}});
        let begun = Instant::now();
        let (code, answer) = api.patch(path, "application/merge-patch+json", &change);
        writes.count += 1;
        writes.slowest = writes.slowest.max(begun.elapsed());
        if code >= 300 {
            writes.refused.push((start.elapsed(), answer["message"].to_string()));
        }
        // A write that the API server accepts without confrev would be worse than one that it refuses.
        let name = &answer["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"];
        assert!(code >= 300 || name != SOURCE, "confrev did not resolve a write");
        if last {
            return writes;
        }
    }
}

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
