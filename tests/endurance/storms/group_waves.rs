//! A change in waves over all namespaces of a group: it fails, comes back by itself, and its correction reaches all workloads.
//!
//! Pods that read the bad content never become ready, by a stage of kwok. confrev is killed at each step. A watch checks each change
//! of a workload: at no moment have more workloads moved than the wave allows.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use confrev::resolve::auto_roll_time;
use confrev_controlplane::{Program, holds_for, is_too_slow, wait_for};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::manifests::snapshot_of_demo;
use crate::restart::restarted;
use crate::rolls::{check_waves, roll_time};
use crate::shared::{BAKE, STEPS, has_default_strategy, held_workloads, running};
use crate::world::{World, expect, snapshot_of, text, verdict};

/// The label with which the stage finds the pods that fail.
const FAILS_WITH: &str = "test/fails-with";
const THREADS: usize = 8;

/// The number of an environment variable, or else this one.
fn size(variable: &str, or: usize) -> usize {
    env::var(variable).ok().map_or(or, |text| text.parse().expect("a number"))
}

/// The name of the snapshot of a text.
fn snapshot(content: &str) -> String {
    snapshot_of_demo(&json!({"text": content}))
}

/// The namespaces of a group, with the same workloads in each.
struct Fleet {
    worlds: Vec<World>,
    /// The label of its workloads.
    selector: String,
    count: usize,
    limit: Duration,
}

/// Runs the body for all of these numbers, on a few threads.
fn in_parallel(count: usize, body: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        for first in 0..THREADS {
            let body = &body;
            scope.spawn(move || (first..count).step_by(THREADS).for_each(body));
        }
    });
}

impl Fleet {
    /// All workloads are at rest with the content `good`. Every other one has a pod.
    fn new() -> Self {
        let (namespaces, count) = (size("CONFREV_WAVES_NAMESPACES", 6), size("CONFREV_WAVES_WORKLOADS", 60));
        let worlds = World::group("group", namespaces);
        let group = worlds[0].name().to_owned();
        // A minute for what normally takes seconds, and time for the control plane's own controllers.
        let limit = Duration::from_secs(120 + u64::try_from(count / 2).expect("it is small"));
        let fleet = Self { worlds, selector: format!("test/group={group}"), count, limit };
        in_parallel(namespaces, |number| {
            let world = &fleet.worlds[number];
            let label = ["label", "namespace", world.name(), "confrev.dev/group-revert=true"];
            world.cluster.kubectl(&label).run().ok();
            // No source has a setting: its strategy is that of its namespace, or of the installation.
            if !has_default_strategy() {
                world.annotate_namespace(&format!("confrev.dev/strategy={STEPS}"));
            }
            world.set_config("demo", "good");
        });
        in_parallel(count, |number| {
            let spec = json!({"replicas": (number / namespaces) % 2, "progressDeadlineSeconds": 45});
            let mut load = Load::new("deployments", &format!("web-{number}"), &["demo"]).spec(spec);
            load.manifest["metadata"]["labels"]["test/group"] = json!(group);
            let labels = &mut load.manifest["spec"]["template"]["metadata"]["labels"];
            labels["test/group"] = json!(group);
            labels[FAILS_WITH] = json!(snapshot("bad"));
            let world = &fleet.worlds[number % namespaces];
            let path = format!("/apis/apps/v1/namespaces/{}/deployments", world.name());
            // A busy machine may not decide before the timeout of the webhook: a user tries again.
            wait_for("a Deployment to be created", fleet.limit, || {
                match world.cluster.api().post(&path, &load.manifest) {
                    (201 | 409, _) => Ok(()),
                    (503, answer) => Err(answer.to_string()),
                    (_, answer) if is_too_slow(&answer.to_string()) => Err(answer.to_string()),
                    (code, answer) => panic!("{code} {answer}"),
                }
            });
        });
        wait_for("all workloads to be available", fleet.limit, || fleet.is_at_rest_on("good"));
        fleet
    }

    fn deployments(&self) -> Vec<Value> {
        self.worlds[0].cluster.list("deployments", "", &self.selector)
    }

    fn replica_sets(&self) -> Vec<Value> {
        self.worlds[0].cluster.list("replicasets", "", &self.selector)
    }

    /// Whether all workloads have this content, and all pods are ready.
    fn is_at_rest_on(&self, content: &str) -> Result<(), String> {
        let name = snapshot(content);
        let is_done = |deployment: &&Value| {
            let status = &deployment["status"];
            let is = |field: &str| {
                status[field].as_i64().unwrap_or(0) == deployment["spec"]["replicas"].as_i64().unwrap_or(0)
            };
            snapshot_of(&deployment["spec"]["template"], "demo").as_ref() == Some(&name)
                && status["observedGeneration"] == deployment["metadata"]["generation"]
                && ["replicas", "updatedReplicas", "availableReplicas"].into_iter().all(is)
        };
        let all = self.deployments();
        expect(&all.iter().filter(is_done).count(), &self.count)
    }

    /// The names of the workloads that have this content.
    fn on(&self, content: &str) -> BTreeSet<String> {
        let name = snapshot(content);
        let all = self.deployments();
        let on =
            all.iter().filter(|one| snapshot_of(&one["spec"]["template"], "demo").as_ref() == Some(&name));
        on.map(|one| text(&one["metadata"]["name"])).collect()
    }

    /// Writes the source in all namespaces, as fast as possible.
    fn write(&self, content: &str) {
        in_parallel(self.worlds.len(), |number| self.worlds[number].set_config("demo", content));
    }

    /// How many workloads may have moved at the end of each wave.
    fn ends(&self) -> [usize; 3] {
        [1, (self.count * 5 / 100).max(1), (self.count / 4).max(1)]
    }

    /// The ReplicaSets that each workload has with a content. A workload that ever moved to the content has one.
    fn sets_with(&self, content: &str) -> BTreeMap<String, Vec<Value>> {
        let name = snapshot(content);
        let mut sets: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for set in self.replica_sets() {
            if snapshot_of(&set["spec"]["template"], "demo").as_ref() == Some(&name) {
                sets.entry(text(&set["metadata"]["ownerReferences"][0]["name"])).or_default().push(set);
            }
        }
        sets
    }

    /// No more workloads have ever moved to the bad content than the wave allowed in which the first one failed.
    fn check_bad(&self) {
        let mut moved: Vec<_> = self.sets_with("bad").into_iter().collect();
        moved.sort_by_key(|(_, sets)| text(&sets[0]["metadata"]["creationTimestamp"]));
        assert!(moved.len() <= self.ends()[2], "{} workloads moved", moved.len());
        // A workload without pods does not fail. Before the last wave that began, none failed.
        let proven = self.ends().into_iter().filter(|end| *end < moved.len()).max().unwrap_or(0);
        let with_pods: BTreeSet<_> = self
            .deployments()
            .iter()
            .filter(|one| one["spec"]["replicas"] == 1)
            .map(|one| text(&one["metadata"]["name"]))
            .collect();
        let failed: Vec<_> =
            moved[..proven].iter().map(|(name, _)| name).filter(|name| with_pods.contains(*name)).collect();
        assert!(failed.is_empty(), "a wave began after {failed:?} failed");
    }

    /// Each wave began only after the bake time of the previous one, by the times of the rolls.
    fn check_waves(&self) {
        let time = |deployment: &Value| roll_time(deployment).expect("the controller moved it");
        check_waves(self.deployments().iter().map(time).collect(), &self.ends(), BAKE).unwrap();
    }

    /// The uids of the ReplicaSets with the good content.
    fn good_sets(&self) -> BTreeSet<String> {
        self.sets_with("good").values().flatten().map(|set| text(&set["metadata"]["uid"])).collect()
    }
}

/// What an event of a workload shows, in the order of the columns. kubectl would expand tabs.
const COLUMNS: &str = "{.metadata.namespace}/{.metadata.name}|\
    {.spec.template.metadata.annotations.confrev\\.dev/sources}|{.metadata.annotations.confrev\\.dev/roll}|\
    {.metadata.generation}|{.status.observedGeneration}|{.spec.replicas}|\
    {.status.updatedReplicas}|{.status.availableReplicas}{\"\\n\"}";

/// The last event of a workload.
struct Last {
    snapshot: String,
    rolled: Option<Timestamp>,
    /// Its controller has completed the rollout.
    is_settled: bool,
}

/// What the watch has shown.
#[derive(Default)]
struct Seen {
    workloads: BTreeMap<String, Last>,
    /// The moves to each content.
    moves: BTreeMap<String, usize>,
    /// The violations.
    broken: Vec<String>,
}

impl Seen {
    /// Applies an event. The API server sends each change, in order: so nothing is missed between two events.
    fn apply(&mut self, line: &str, ends: &[usize]) {
        let columns: Vec<_> = line.split('|').collect();
        let [name, sources, roll, generation, observed, replicas, updated, available] = columns[..] else {
            return self.broken.push(format!("the watch printed {line:?}"));
        };
        let count = |text: &str| text.parse::<u64>().unwrap_or(0);
        let sources: Value = serde_json::from_str(sources).unwrap_or_default();
        let last = Last {
            snapshot: text(&sources["configmaps"]["demo"]),
            rolled: auto_roll_time(roll),
            is_settled: count(generation) == count(observed)
                && [updated, available].into_iter().all(|of| count(of) == count(replicas)),
        };
        if self.workloads.get(name).is_some_and(|before| before.snapshot != last.snapshot) {
            *self.moves.entry(last.snapshot.clone()).or_default() += 1;
            self.broken.extend(self.violation(name, &last, ends));
        }
        self.workloads.insert(name.to_owned(), last);
    }

    /// Why a workload may not move yet.
    fn violation(&self, name: &str, to: &Last, ends: &[usize]) -> Option<String> {
        // All may go back to it at once.
        if to.snapshot == snapshot("good") {
            return None;
        }
        let moved = || self.workloads.iter().filter(|(_, last)| last.snapshot == to.snapshot);
        let count = moved().count();
        if !ends.contains(&count) {
            return None;
        }
        let unproven: Vec<_> =
            moved().filter(|(_, last)| !last.is_settled).map(|(name, _)| name.as_str()).collect();
        let last = moved().filter_map(|(_, last)| last.rolled).max();
        let is_early = last.zip(to.rolled).is_some_and(|(last, now)| now.duration_since(last) < BAKE);
        (is_early || !unproven.is_empty()).then(|| {
            let Last { snapshot, rolled, .. } = to;
            format!(
                "{name} moved to {snapshot} at {rolled:?} after {count}, last {last:?}, unproven {unproven:?}"
            )
        })
    }
}

/// A watch of all workloads of the fleet.
struct Watch {
    kubectl: Child,
    seen: Arc<Mutex<Seen>>,
}

impl Watch {
    fn start(fleet: &Fleet) -> Self {
        let cluster = fleet.worlds[0].cluster;
        let mut kubectl = Command::new(cluster.bin("kubectl"))
            .args(["get", "deployments", "--all-namespaces", "--watch", "--selector", &fleet.selector])
            // kubectl prints no object of a list that comes in chunks, and a chunk has 500 objects.
            .arg("--chunk-size=0")
            .arg(format!("--output=jsonpath={COLUMNS}"))
            .env("KUBECONFIG", cluster.kubeconfig())
            .stdout(Stdio::piped())
            .spawn()
            .expect("kubectl runs");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (lines, writes) = (BufReader::new(kubectl.stdout.take().expect("a pipe")), Arc::clone(&seen));
        let ends = fleet.ends();
        thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                writes.lock().unwrap_or_else(PoisonError::into_inner).apply(&line, &ends);
            }
        });
        let watch = Self { kubectl, seen };
        wait_for("the watch to show all workloads", fleet.limit, || {
            watch.read(|seen| match seen.broken.first() {
                Some(broken) => Err(broken.clone()),
                None if seen.workloads.len() == fleet.count => Ok(()),
                None => Err(format!("{} workloads", seen.workloads.len())),
            })
        });
        watch
    }

    fn read<T>(&self, of: impl FnOnce(&Seen) -> T) -> T {
        of(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// No event was a violation, and the watch has shown the moves to this content.
    fn check(&mut self, content: &str, most: usize) {
        let ended = self.kubectl.try_wait().expect("a child");
        assert!(ended.is_none(), "the watch has ended: {ended:?}");
        self.read(|seen| assert!(seen.broken.is_empty(), "{}", seen.broken.join("\n")));
        let moves = self.read(|seen| seen.moves.get(&snapshot(content)).copied().unwrap_or_default());
        assert!((1..=most).contains(&moves), "{moves} moves to {content}, not up to {most}");
    }

    /// How many workloads have a content now, and whether all of them have completed their rollouts.
    fn state(&self, content: &str) -> (usize, bool) {
        let name = snapshot(content);
        self.read(|seen| {
            let on = || seen.workloads.values().filter(|last| last.snapshot == name);
            (on().count(), on().all(|last| last.is_settled))
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

/// `make test-waves` runs this with 2,000 workloads in 200 namespaces.
#[test]
fn failed_change_comes_back_in_all_namespaces() {
    let _alone = held_workloads();
    let confrev = running();
    let fleet = Fleet::new();
    let before = fleet.good_sets();
    assert_eq!(before.len(), fleet.count);

    let mut watch = Watch::start(&fleet);
    fleet.write("bad");
    let killed_at =
        |confrev, what: &str, watch: &Watch, content: &str, is_it: &dyn Fn(usize, bool) -> bool| {
            // Until a workload fails, whole waves may pass: those of workloads without pods.
            wait_for(what, 4 * fleet.limit, || {
                let (moved, settled) = watch.state(content);
                if is_it(moved, settled) { Ok(()) } else { Err(format!("{moved} moved, settled: {settled}")) }
            });
            restarted(confrev, Program::kill, || {})
        };
    let confrev = killed_at(confrev, "the first workload to move", &watch, "bad", &|moved, _| moved > 0);
    let refused = || {
        let snapshots = fleet.worlds.iter().flat_map(confrev_test_support::world::World::snapshots);
        snapshots.filter(|one| verdict(one)["failed"].is_object()).count()
    };
    wait_for("the first mark", 4 * fleet.limit, || {
        if refused() > 0 { Ok(()) } else { Err(fleet.on("bad").len()) }
    });
    let most = watch.read(|seen| seen.moves.get(&snapshot("bad")).copied().unwrap_or_default());
    let confrev = restarted(confrev, Program::kill, || {});
    let confrev = killed_at(confrev, "the first one to come back", &watch, "bad", &|moved, _| moved < most);
    wait_for("all workloads to come back", fleet.limit, || fleet.is_at_rest_on("good"));
    fleet.check_bad();
    wait_for("a mark in each namespace", fleet.limit, || expect(&refused(), &fleet.worlds.len()));
    assert_eq!(fleet.good_sets(), before, "each workload is back on the ReplicaSet that it had");
    holds_for("the refusal", Duration::from_secs(5), || expect(&fleet.on("good").len(), &fleet.count));
    watch.check("bad", fleet.ends()[2]);

    fleet.write("better");
    let mut confrev =
        killed_at(confrev, "the first workload to move", &watch, "better", &|moved, _| moved > 0);
    for end in fleet.ends() {
        let bakes = format!("the bake time after {end} workloads");
        confrev = killed_at(confrev, &bakes, &watch, "better", &|moved, settled| {
            moved > end || (moved == end && settled)
        });
        let begins = format!("the wave after {end} workloads");
        confrev = killed_at(confrev, &begins, &watch, "better", &|moved, _| moved > end);
    }
    let _confrev = confrev;
    wait_for("the correction to reach all workloads", 4 * fleet.limit, || fleet.is_at_rest_on("better"));
    fleet.check_waves();
    watch.check("better", fleet.count);
    let twice: Vec<_> = fleet.sets_with("better").into_iter().filter(|(_, sets)| sets.len() != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

/// The watch reports a move in the bake time of a wave, one while a workload is not healthy, and a line that it cannot read.
#[test]
fn watch_reports_each_early_move() {
    let line = |name: &str, content: &str, second: i64, available: u8| {
        let time = Timestamp::from_second(second).expect("a time");
        let sources = json!({"configmaps": {"demo": snapshot(content)}});
        format!("ns/{name}|{sources}|auto-{time}|1|1|1|1|{available}")
    };
    let after = |moves: &[(&str, i64, u8)]| {
        let mut seen = Seen::default();
        for name in ["a", "b", "c"] {
            seen.apply(&line(name, "good", 0, 1), &[1]);
        }
        for (name, second, available) in moves {
            seen.apply(&line(name, "better", *second, *available), &[1]);
        }
        (seen.broken.len(), seen.moves.get(&snapshot("better")).copied())
    };
    assert_eq!(after(&[("a", 10, 1), ("b", 20, 0), ("c", 20, 1)]), (0, Some(3)));
    assert_eq!(after(&[("a", 10, 1), ("b", 11, 1), ("c", 11, 1)]), (1, Some(3)), "it bakes");
    assert_eq!(after(&[("a", 10, 0), ("b", 20, 1)]), (1, Some(2)), "it is not healthy");
    assert_eq!(after(&[("a", 10, 0), ("a", 10, 1), ("b", 20, 1)]), (0, Some(2)));
    let mut seen = Seen::default();
    seen.apply("error: lost", &[1]);
    assert_eq!(seen.broken.len(), 1);
}
