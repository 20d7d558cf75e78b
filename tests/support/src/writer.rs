//! A client that writes without a pause, while something happens to confrev.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use confrev_controlplane::{Api, wait_for};
use serde_json::json;

use crate::any_kind::Load;
use crate::world::{LIMIT, World};

/// What the written workloads refer to.
const SOURCE: &str = "written";

/// Writes to the template of an opted-in workload, one after another. Each names the source, and confrev resolves it.
#[derive(Debug)]
pub struct Writer {
    stopped: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    thread: JoinHandle<Writes>,
}

/// The outcomes of the writes.
#[derive(Debug, Default)]
pub struct Writes {
    /// How many there were.
    pub count: usize,
    /// How long the slowest one took.
    pub slowest: Duration,
    /// When a write was refused, and why.
    pub refused: Vec<(Duration, String)>,
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
    pub fn start(world: &World) -> Self {
        Self::start_at(world, "written")
    }

    /// The same, to a Deployment of this name.
    pub fn start_at(world: &World, name: &str) -> Self {
        world.set_config(SOURCE, "blue");
        let load = Load::new("deployments", name, &[SOURCE]).spec(json!({"replicas": 0}));
        load.apply(world).ok();
        let path = format!("/apis/apps/v1/namespaces/{}/deployments/{name}", world.name());
        let api = world.cluster.api().clone();
        let (stopped, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stop, counted) = (stopped.clone(), count.clone());
        let thread = thread::spawn(move || write_until(&api, &path, &stop, &counted));
        Self { stopped, count, thread }
    }

    /// Waits for this number of further writes.
    #[track_caller]
    pub fn more(&self, count: usize) {
        let enough = self.count.load(Ordering::SeqCst) + count;
        wait_for("more writes", LIMIT, || {
            assert!(!self.thread.is_finished(), "the writer still writes");
            (self.count.load(Ordering::SeqCst) >= enough).then_some(())
        });
    }

    /// Stops, after at least one write from now on.
    pub fn stop(self) -> Writes {
        self.stopped.store(true, Ordering::SeqCst);
        self.thread.join().expect("the writer ends")
    }
}

fn write_until(api: &Api, path: &str, stopped: &AtomicBool, count: &AtomicUsize) -> Writes {
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
        count.store(writes.count, Ordering::SeqCst);
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
