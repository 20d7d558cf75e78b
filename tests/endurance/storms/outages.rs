//! Outages replayed: a bad value reaches the pods of ten workloads, with plain Kubernetes, with a controller that restarts workloads,
//! and with each strategy of the chart. Prints the table of docs/evidence/replayed-outages.md. `make outages`.
//!
//! Pods of the control plane run no program. The test decides, by the content that a pod reads, when it breaks and when it is ready.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use confrev_controlplane::{ControlPlane, is_ready, wait_for};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::manifests::snapshot_of_demo;
use crate::shared::running;
use crate::world::{World, expect, name_of, text};

const WORKLOADS: usize = 10;
const REPLICAS: usize = 4;
const PODS: usize = WORKLOADS * REPLICAS;
/// When a person restores the value, if nothing else has ended the outage.
const PERSON: Duration = Duration::from_mins(2);
/// How long the kubelet takes to renew a mounted file. On a node it takes a minute and a half at most.
const FILE: Duration = Duration::from_secs(10);
/// The pause before a container that has ended starts again. The kubelet's pauses become longer, up to five minutes.
const RESTART: Duration = Duration::from_secs(10);
/// When a third of the pods are lost with their nodes, if the outage needs that.
const LOSS: Duration = Duration::from_secs(30);
/// A run that takes longer has not recovered.
const LIMIT: Duration = Duration::from_mins(8);
/// The label of the pods.
const LABEL: &str = "test/outage";

/// How a program takes a bad value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outage {
    /// It reads the file again when that changes, and ends three seconds later.
    Crash,
    /// It reads the file again when that changes, and is too slow to be ready fifteen seconds later.
    Slow,
    /// It reads the file when it starts, and ends.
    Start,
}

/// What moves workloads to another content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mover {
    /// The kubelet renews the mounted file.
    Plain,
    /// A controller restarts all workloads of a changed ConfigMap at once.
    Restarts,
    /// confrev, under this strategy.
    Strategy(&'static str),
}

const OUTAGES: [Outage; 3] = [Outage::Crash, Outage::Slow, Outage::Start];
const MOVERS: [Mover; 5] = [
    Mover::Plain,
    Mover::Restarts,
    Mover::Strategy("immediate"),
    Mover::Strategy("steady"),
    Mover::Strategy("careful"),
];

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crash => "ends within seconds",
            Self::Slow => "becomes slow",
            Self::Start => "fails when it starts",
        })
    }
}

impl fmt::Display for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain Kubernetes"),
            Self::Restarts => f.write_str("a restarting controller"),
            Self::Strategy(name) => write!(f, "confrev, `{name}`"),
        }
    }
}

/// What is known about a pod.
struct Pod {
    started: Instant,
    /// What it read when it started.
    first: bool,
    /// Since when it reads the bad value.
    bad: Option<Instant>,
    /// When its container ended or became slow.
    broke: Option<Instant>,
}

/// The worst that was seen in a run, in pods, and its end.
#[derive(Default)]
struct Seen {
    reached: usize,
    lost: usize,
    /// When all pods were ready with the good value again.
    recovered: Option<Duration>,
    by_person: bool,
}

/// One outage with one mover, in a namespace of its own.
struct Run {
    outage: Outage,
    mover: Mover,
    world: World,
    /// The name of the snapshot of the bad value.
    bad: String,
    loads: Vec<Load>,
    pods: HashMap<String, Pod>,
    /// Each content of the ConfigMap with its time; `true` is the bad one.
    contents: Vec<(Instant, bool)>,
    has_lost_nodes: bool,
    seen: Seen,
}

impl Run {
    fn new(number: usize, outage: Outage, mover: Mover) -> Self {
        let world = World::new("outage");
        world.set_config("demo", "good");
        let is_opted_in = matches!(mover, Mover::Strategy(_));
        if let Mover::Strategy(name) = mover {
            world.kubectl(&["annotate", "configmap/demo", &format!("confrev.dev/strategy={name}")]).ok();
        }
        let load = |at: usize| {
            let spec = json!({"replicas": REPLICAS, "progressDeadlineSeconds": 60});
            let mut load = Load::new("deployments", &format!("web-{at}"), &["demo"]).spec(spec);
            load.manifest["metadata"]["labels"] = json!({"confrev.dev/enabled": is_opted_in.to_string()});
            let template = &mut load.manifest["spec"]["template"];
            template["metadata"]["labels"][LABEL] = json!(number.to_string());
            template["spec"]["schedulingGates"] = json!([{"name": "test/starts"}]);
            load
        };
        let loads: Vec<_> = (0..WORKLOADS).map(load).collect();
        for load in &loads {
            load.apply(&world).ok();
        }
        let contents = vec![(Instant::now(), false)];
        let (pods, seen) = (HashMap::new(), Seen::default());
        let bad = snapshot_of_demo(&json!({"text": "bad"}));
        Self { outage, mover, world, bad, loads, pods, contents, has_lost_nodes: false, seen }
    }

    /// Whether the ConfigMap had the bad value this long ago.
    fn was_bad(&self, ago: Duration) -> bool {
        let last = self.contents.iter().rev().find(|(since, _)| since.elapsed() >= ago);
        last.is_some_and(|(_, is_bad)| *is_bad)
    }

    /// Whether a pod reads the bad value.
    fn reads_bad(&self, pod: &Value, known: &Pod) -> bool {
        let name = text(&pod["spec"]["volumes"][0]["configMap"]["name"]);
        match (name == "demo", self.outage, self.mover) {
            (false, ..) => name == self.bad,
            // Those who restart workloads have programs that read a file once.
            (true, Outage::Start, _) | (true, _, Mover::Restarts) => known.first,
            (true, ..) if known.started.elapsed() < FILE => known.first,
            (true, ..) => self.was_bad(FILE),
        }
    }

    /// Writes the ConfigMap.
    fn set(&mut self, is_bad: bool) {
        self.world.set_config("demo", if is_bad { "bad" } else { "good" });
        self.contents.push((Instant::now(), is_bad));
        if self.mover == Mover::Restarts {
            let number = self.contents.len().to_string();
            for load in &self.loads {
                let metadata = json!({"annotations": {"test/restarted": number}});
                load.patch(&self.world, &json!({"spec": {"template": {"metadata": metadata}}}));
            }
        }
    }

    /// Lets each pod do what its program would do. `begun`: when the bad value was written.
    fn step(&mut self, pods: &[Value], begun: Option<Instant>) {
        let (mut good, mut bad) = (0, 0);
        for pod in pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
            let name = name_of(pod);
            let is_bad_now = self.was_bad(Duration::ZERO);
            let mut known = self.pods.remove(&name).unwrap_or_else(|| Pod {
                started: Instant::now(),
                first: is_bad_now,
                bad: None,
                broke: None,
            });
            let is_gated = pod["spec"]["schedulingGates"].is_array();
            if is_gated {
                // Its container starts repeatedly.
                known.first = is_bad_now;
            }
            let is_bad = self.reads_bad(pod, &known);
            known.bad = if is_bad { known.bad.or_else(|| Some(Instant::now())) } else { None };
            let is_ready = is_ready(pod);
            let breaks_after = match self.outage {
                Outage::Crash => Duration::from_secs(3),
                Outage::Slow => Duration::from_secs(15),
                Outage::Start => Duration::ZERO,
            };
            if is_gated {
                if !(is_bad && self.outage == Outage::Start) {
                    self.patch(&name, "", &json!({"spec": {"schedulingGates": null}}));
                }
            } else if is_ready && known.bad.is_some_and(|since| since.elapsed() >= breaks_after) {
                known.broke = Some(Instant::now());
                self.set_ready(&name, false);
            } else if !is_bad && known.broke.is_some_and(|at| at.elapsed() >= RESTART) {
                known.broke = None;
                self.set_ready(&name, true);
            }
            good += usize::from(is_ready && !is_bad);
            bad += usize::from(is_bad);
            self.pods.insert(name, known);
        }
        let Some(begun) = begun else { return };
        self.seen.reached = self.seen.reached.max(bad.min(PODS));
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        self.seen.lost = self.seen.lost.max(PODS.saturating_sub(ready));
        let is_over = bad == 0 && good >= PODS && !self.is_rolling();
        if is_over && (self.seen.reached > 0 || begun.elapsed() > PERSON) {
            self.seen.recovered.get_or_insert(begun.elapsed());
        } else if !is_over {
            self.seen.recovered = None;
        }
        if self.outage == Outage::Start && !self.has_lost_nodes && begun.elapsed() >= LOSS {
            self.has_lost_nodes = true;
            for pod in pods.iter().step_by(3) {
                self.world.delete("pod", &name_of(pod));
            }
        }
        if begun.elapsed() >= PERSON && self.seen.recovered.is_none() && self.was_bad(Duration::ZERO) {
            self.seen.by_person = true;
            self.set(false);
        }
    }

    /// Whether a workload has not the pods that its template asks for.
    fn is_rolling(&self) -> bool {
        let deployments = self.world.cluster.list("deployments", self.world.name(), "");
        deployments.iter().any(|one| {
            let status = &one["status"];
            status["observedGeneration"] != one["metadata"]["generation"]
                || ["replicas", "updatedReplicas", "availableReplicas"]
                    .iter()
                    .any(|field| status[*field] != REPLICAS)
        })
    }

    fn patch(&self, pod: &str, part: &str, change: &Value) {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}{part}", self.world.name());
        // The pod may be deleted meanwhile.
        let _ = self.world.cluster.api().patch(&path, "application/strategic-merge-patch+json", change);
    }

    fn set_ready(&self, pod: &str, is_ready: bool) {
        let status = if is_ready { "True" } else { "False" };
        let conditions = ["Ready", "ContainersReady"].map(|kind| json!({"type": kind, "status": status}));
        self.patch(pod, "/status", &json!({"status": {"conditions": conditions}}));
    }

    /// Whether the outage has been over for some time, or never ends.
    fn has_ended(&self, begun: Instant) -> bool {
        let rests = |at: Duration| begun.elapsed() > at + Duration::from_secs(45);
        self.seen.recovered.is_some_and(rests) || begun.elapsed() > LIMIT
    }
}

/// The pods of all runs, by the number of the run.
fn pods() -> BTreeMap<usize, Vec<Value>> {
    let mut found: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
    for pod in ControlPlane::shared().list("pods", "", LABEL) {
        let number = text(&pod["metadata"]["labels"][LABEL]).parse().expect("a number");
        found.entry(number).or_default().push(pod);
    }
    found
}

#[test]
#[ignore = "takes many minutes: `make outages`"]
fn replays_outages() {
    let _confrev = running();
    let each = OUTAGES.into_iter().flat_map(|outage| MOVERS.map(|mover| (outage, mover)));
    let mut runs: Vec<_> =
        each.enumerate().map(|(number, (outage, mover))| Run::new(number, outage, mover)).collect();
    let step = |runs: &mut Vec<Run>, begun: Option<Instant>| {
        let mut all = pods();
        for (number, run) in runs.iter_mut().enumerate() {
            run.step(&all.remove(&number).unwrap_or_default(), begun);
        }
    };
    wait_for("all pods to be ready", LIMIT, || {
        step(&mut runs, None);
        expect(&pods().values().flatten().filter(|pod| is_ready(pod)).count(), &(PODS * runs.len()))
    });
    let begun = Instant::now();
    for run in &mut runs {
        run.set(true);
    }
    while !runs.iter().all(|run| run.has_ended(begun)) {
        step(&mut runs, Some(begun));
        thread::sleep(Duration::from_millis(200));
    }
    println!("| the program | moved by | pods with the bad value | pods lost at worst | recovered after |");
    println!("|---|---|---|---|---|");
    for Run { outage, mover, seen, .. } in &runs {
        let percent = |pods: usize| format!("{} %", pods * 100 / PODS);
        let after = seen.recovered.map_or("never".to_owned(), |after| format!("{} s", after.as_secs()));
        let by = if seen.by_person { ", by a person" } else { "" };
        println!("| {outage} | {mover} | {} | {} | {after}{by} |", percent(seen.reached), percent(seen.lost));
    }
    for run in &runs {
        let (pods, what) = (run.seen.reached, format!("{}: {}", run.outage, run.mover));
        match run.mover {
            Mover::Strategy("careful") => {
                assert!(pods <= PODS / WORKLOADS && !run.seen.by_person, "{what}: {pods}");
            }
            Mover::Strategy("steady") => {
                assert!(pods <= PODS / 3 && !run.seen.by_person, "{what}: {pods}");
            }
            Mover::Plain if run.outage != Outage::Start => {
                assert_eq!(pods, PODS, "{what}");
            }
            _ => {}
        }
        assert!(run.seen.recovered.is_some(), "{what}");
    }
}
