//! The time from the write of a ConfigMap to the new ReplicaSet of each of its workloads. The baseline is a script that
//! patches the workloads itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use confrev_controlplane::Request;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::core::WatchEvent;
use serde_json::{Value, json};

use crate::environment::{
    AT_ONCE, CONFREV, Client, Environment, LIMIT, PLAIN, Requests, config_map, config_maps, deployment,
    deployments,
};
use crate::peers::{self, Peer};
use crate::process;
use crate::requests;
use crate::row::{Reach, Row};
use crate::stats::{number, quantile};

/// How long confrev must send no request before a change counts as finished.
const REST: Duration = Duration::from_secs(2);
const SHORT_REST: Duration = Duration::from_millis(300);

/// How long no ReplicaSet may appear before a peer counts as at rest.
const SETTLED: Duration = Duration::from_secs(4);
/// How long a peer has to roll every workload before the sources change again: its watches may not have started
/// yet.
const ATTEMPT: Duration = Duration::from_mins(2);

/// One way in which workloads use ConfigMaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) workloads: usize,
    pub(crate) sources: usize,
    /// The number of changes.
    pub(crate) rounds: usize,
}

/// The cost of a change, for all workloads together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) workloads: f64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) memory: f64,
    pub(crate) asked: Requests,
}

impl Cost {
    pub(crate) fn rolls_per_second(&self) -> f64 {
        self.workloads / self.seconds
    }

    pub(crate) fn requests(&self) -> f64 {
        requests::sum(&self.asked)
    }

    /// The median costs of several changes with equal numbers of workloads.
    fn middle(all: &[Self]) -> Self {
        let middle = |of: fn(&Self) -> f64| quantile(&all.iter().map(of).collect::<Vec<_>>(), 0.5);
        Self {
            workloads: middle(|cost| cost.workloads),
            seconds: middle(|cost| cost.seconds),
            cpu_seconds: middle(|cost| cost.cpu_seconds),
            memory: middle(|cost| cost.memory),
            asked: requests::middle(all.iter().map(|cost| &cost.asked)),
        }
    }
}

impl Shape {
    /// Whether the shape is part of the plot of growth.
    pub(crate) fn is_of_growth(self) -> bool {
        self.sources == 1 && self.workloads >= 10
    }

    /// The target: a multiple of the script's time. A single workload waits for each request in turn, and the script
    /// sends two. With a ConfigMap each, nothing is shared.
    fn reach(self) -> Reach {
        Reach::Times(match (self.workloads, self.sources) {
            (1, _) => 2.0,
            (_, 1) => 1.3,
            _ => 1.6,
        })
    }

    /// The same for the slowest workload. Of a single workload, only the median has a target.
    fn reach_at_worst(self) -> Reach {
        if self.workloads == 1 { Reach::Read } else { self.reach() }
    }

    fn source(self, workload: usize) -> String {
        format!("{}-{}", self.prefix(), workload % self.sources)
    }

    fn prefix(self) -> String {
        format!("shape-{}-on-{}", self.workloads, self.sources)
    }

    fn name(self, workload: usize) -> String {
        format!("{}-{workload}", self.prefix())
    }

    pub(crate) fn create(self, env: &Environment, namespace: &str, annotation: Option<&str>) {
        let sources = (0..self.sources).map(|i| config_map(&format!("{}-{i}", self.prefix()), 1000));
        let workloads = (0..self.workloads).map(|i| {
            let mut object = deployment(&self.name(i), &[self.source(i)]);
            if let Some(annotation) = annotation {
                object["metadata"]["annotations"][annotation] = json!("true");
            }
            object
        });
        let set_up = async {
            env.client.create_all(&config_maps(namespace), sources).await;
            let watch = ReplicaSets::watch(&env.client, namespace).await;
            let (path, prefix) = (deployments(namespace), self.prefix());
            let created = env.client.create_all(&path, workloads);
            let (seen, ()) = futures::join!(watch.until(self.workloads, &prefix), created);
            assert_eq!(seen.len(), self.workloads);
        };
        env.runtime.block_on(set_up);
    }
}

/// The rows of one shape, and the cost of a change for confrev.
pub(crate) fn rows(env: &Environment, shape: Shape) -> (Vec<Row>, Cost) {
    for namespace in [PLAIN, CONFREV] {
        shape.create(env, namespace, None);
    }
    env.wait_at_rest(REST);
    // In shapes for growth, the cost includes the binding of snapshots after the change.
    let rest = if shape.is_of_growth() { REST } else { SHORT_REST };
    let (mut script, mut ours, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut servers_script, mut servers_ours) = (0.0, 0.0);
    for round in 0..shape.rounds {
        let at_first = env.api_server_cpu();
        script.extend(env.runtime.block_on(change(&env.client, shape, PLAIN, round)));
        let then = env.api_server_cpu();
        servers_script += then - at_first;
        let (pid, before) = (env.confrev.pid(), env.asked());
        let cpu = process::cpu(pid);
        let times = env.runtime.block_on(change(&env.client, shape, CONFREV, round));
        servers_ours += env.api_server_cpu() - then;
        let last = times.iter().copied().fold(0.0, f64::max);
        ours.extend(times);
        env.wait_at_rest(rest);
        costs.push(Cost {
            workloads: number(shape.workloads),
            seconds: last / 1e3,
            cpu_seconds: process::cpu(pid).saturating_sub(cpu).as_secs_f64(),
            memory: process::memory(pid).1,
            asked: env.asked_since(before, is_of_change),
        });
    }
    let what =
        format!("from a ConfigMap to the ReplicaSet, {} workloads on {}", shape.workloads, shape.sources);
    let row = |part: f64, name: &str, reach| {
        Row::new(format!("{what}, {name}"), "ms", quantile(&ours, part), quantile(&script, part), reach)
    };
    // If all processors are busy, the time depends on the work of the API server.
    let each = |seconds: f64| seconds * 1e3 / number(shape.workloads * shape.rounds);
    let server = Row::new(
        format!("{what}, processor time of the API server for each workload"),
        "ms",
        each(servers_ours),
        each(servers_script),
        Reach::Read,
    );
    let mut rows = vec![row(0.5, "p50", shape.reach()), row(0.99, "p99", shape.reach_at_worst()), server];
    for peer in peers::given() {
        let (times, memory) = beside(env, shape, &peer);
        for (part, name) in [(0.5, "p50"), (0.99, "p99")] {
            let what = format!("{what}, {name}, to {}", peer.name);
            rows.push(Row::new(what, "ms", quantile(&ours, part), quantile(&times, part), Reach::Times(1.0)));
        }
        let what = format!("{what}, resident memory, to {}", peer.name);
        let now = process::memory(env.confrev.pid()).1;
        rows.push(Row::new(what, "MB", now, memory, Reach::Read));
    }
    (rows, Cost::middle(&costs))
}

/// The same changes with a peer: the times, and the peer's memory at the end.
fn beside(env: &Environment, shape: Shape, peer: &Peer) -> (Vec<f64>, f64) {
    let running = peer.start(env);
    shape.create(env, peer.namespace, Some(peer.annotation));
    env.runtime.block_on(warm_up(&env.client, shape, peer.namespace));
    let mut times = Vec::new();
    for round in 0..shape.rounds {
        times.extend(env.runtime.block_on(change(&env.client, shape, peer.namespace, round)));
    }
    (times, process::memory(running.pid()).1)
}

/// Changes the sources until the peer rolls every workload, then waits until the peer is at rest.
async fn warm_up(client: &Client, shape: Shape, namespace: &'static str) {
    let (start, prefix) = (Instant::now(), shape.prefix());
    loop {
        assert!(start.elapsed() < LIMIT, "the workloads of {namespace} do not roll");
        let watch = ReplicaSets::watch(client, namespace).await;
        for source in 0..shape.sources {
            let path = format!("{}/{prefix}-{source}", config_maps(namespace));
            let text = format!("{:?}", start.elapsed());
            client.merge(&path, &json!({"data": {"warm": text}})).await;
        }
        if tokio::time::timeout(ATTEMPT, watch.until(shape.workloads, &prefix)).await.is_ok() {
            break;
        }
    }
    loop {
        let watch = ReplicaSets::watch(client, namespace).await;
        if tokio::time::timeout(SETTLED, watch.until(1, &prefix)).await.is_err() {
            return;
        }
    }
}

/// Whether a request may result from a change. Requests for the Lease and the certificates are made all the time.
fn is_of_change(request: &Request) -> bool {
    let upkeep = ["leases", "secrets", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    request.verb != "watch" && !upkeep.contains(&request.resource.as_str())
}

/// Changes every source; returns the milliseconds from the write of each source to the new ReplicaSet of each of its
/// workloads. In the namespace of the script, this function also patches the workloads.
pub(crate) async fn change(client: &Client, shape: Shape, namespace: &'static str, round: usize) -> Vec<f64> {
    let watch = ReplicaSets::watch(client, namespace).await;
    let prefix = shape.prefix();
    let changes = stream::iter(0..shape.sources).map(|source| async move {
        let start = Instant::now();
        let path = format!("{}/{}-{source}", config_maps(namespace), shape.prefix());
        client.merge(&path, &json!({"data": {"round": round.to_string()}})).await;
        if namespace == PLAIN {
            let users = (source..shape.workloads).step_by(shape.sources);
            let patches = stream::iter(users).map(|workload| async move {
                let path = format!("{}/{}", deployments(namespace), shape.name(workload));
                let annotations = json!({"round": round.to_string()});
                client
                    .merge(&path, &json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}))
                    .await;
            });
            patches.buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
        }
        (format!("{}-{source}", shape.prefix()), start)
    });
    let changes = changes.buffer_unordered(AT_ONCE).collect::<BTreeMap<_, _>>();
    let (seen, starts) = futures::join!(watch.until(shape.workloads, &prefix), changes);
    let since = |(workload, at): (&String, &Instant)| {
        let number = workload.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).expect("a number");
        at.duration_since(starts[&shape.source(number)]).as_secs_f64() * 1e3
    };
    seen.iter().map(since).collect()
}

/// A watch of the ReplicaSets of a namespace, beginning now.
struct ReplicaSets {
    client: Client,
    path: String,
}

impl ReplicaSets {
    async fn watch(client: &Client, namespace: &str) -> Self {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/replicasets");
        let list = client.send(http::Method::GET, &format!("{path}?limit=1"), "", &Value::Null).await;
        let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
        let path = format!("{path}?watch=true&resourceVersion={version}");
        Self { client: client.clone(), path }
    }

    /// The times at which the first new ReplicaSets of `count` workloads appeared. The workloads' names begin with
    /// `prefix`.
    async fn until(self, count: usize, prefix: &str) -> BTreeMap<String, Instant> {
        let prefix = format!("{prefix}-");
        let mut seen = BTreeMap::new();
        let look = async {
            let request = http::Request::get(&self.path).body(Vec::new()).expect("a request");
            let events =
                self.client.0.request_events::<kube::core::DynamicObject>(request).await.expect("a watch");
            let mut events = std::pin::pin!(events);
            while seen.len() < count {
                match events.try_next().await.expect("an event").expect("the watch continues") {
                    WatchEvent::Added(set) => {
                        let owner = set.metadata.owner_references.iter().flatten().next();
                        let owner =
                            owner.map(|owner| owner.name.clone()).filter(|name| name.starts_with(&prefix));
                        if let Some(owner) = owner {
                            seen.entry(owner).or_insert_with(Instant::now);
                        }
                    }
                    WatchEvent::Error(error) => panic!("the watch of ReplicaSets: {error:?}"),
                    _ => {}
                }
            }
        };
        let done = tokio::time::timeout(LIMIT, look).await;
        assert!(done.is_ok(), "{} of {count} new ReplicaSets of {prefix} after {LIMIT:?}", seen.len());
        seen
    }
}
