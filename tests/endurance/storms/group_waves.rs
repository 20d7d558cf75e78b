//! A change in waves over all namespaces of a group: it fails, comes back by itself, and its correction reaches all workloads.
//!
//! Pods that read the bad content never become ready, by a stage of kwok. confrev is killed at each step.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::thread;
use std::time::Duration;

use confrev::resolve::Observed;
use confrev::snapshot::{DIGITS, SourceKind, snapshot_name};
use confrev_controlplane::{Program, holds_for, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::restart::restarted;
use crate::shared::{held_workloads, running};
use crate::world::{World, expect, snapshot_of, text};

/// The label with which the stage finds the pods that fail.
const FAILS_WITH: &str = "test/fails-with";
/// How long the moved workloads must stay healthy.
const BAKE: SignedDuration = SignedDuration::from_secs(3);
const THREADS: usize = 8;

/// The number of an environment variable, or else this one.
fn size(variable: &str, or: usize) -> usize {
    env::var(variable).ok().map_or(or, |text| text.parse().expect("a number"))
}

/// The name of the snapshot of a text.
fn snapshot(content: &str) -> String {
    let object =
        json!({"metadata": {"name": "demo", "uid": "u", "resourceVersion": "1"}, "data": {"text": content}});
    let observed =
        Observed::read(SourceKind::ConfigMap, object.to_string().into_bytes()).expect("a ConfigMap");
    snapshot_name("demo", &observed.digest(), DIGITS[0])
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
        let first = World::new("group");
        let group = first.name().to_owned();
        first
            .cluster
            .kubectl(&["label", "namespace", &group, &format!("confrev.dev/group={group}")])
            .run()
            .ok();
        let labels = [("confrev.dev/group", group.as_str())];
        let others = (1..namespaces).map(|_| World::labelled("group", &labels));
        let worlds: Vec<_> = std::iter::once(first).chain(others).collect();
        // A minute for what normally takes seconds, and time for the control plane's own controllers.
        let limit = Duration::from_secs(120 + u64::try_from(count / 2).expect("it is small"));
        let fleet = Self { worlds, selector: format!("test/group={group}"), count, limit };
        in_parallel(namespaces, |number| {
            let world = &fleet.worlds[number];
            world.set_config("demo", "good");
            let settings = json!({"metadata": {"annotations": {
                "confrev.dev/waves": "1, 5%, 25%",
                "confrev.dev/bake": format!("{}s", BAKE.as_secs()),
                "confrev.dev/on-failure": "revert",
            }}});
            let path = format!("/api/v1/namespaces/{}/configmaps/demo", world.name());
            let (code, answer) = world.cluster.api().patch(&path, "application/merge-patch+json", &settings);
            assert_eq!(code, 200, "{answer}");
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
        let time = |deployment: &Value| {
            let roll = text(&deployment["metadata"]["annotations"]["confrev.dev/roll"]);
            roll.strip_prefix("auto-").and_then(|time| time.parse::<Timestamp>().ok()).expect("a time")
        };
        let mut times: Vec<_> = self.deployments().iter().map(time).collect();
        times.sort();
        for end in self.ends() {
            let between = times[end].duration_since(times[end - 1]);
            assert!(between >= BAKE, "{between:?} after {end} workloads: {times:?}");
        }
    }

    /// The uids of the ReplicaSets with the good content.
    fn good_sets(&self) -> BTreeSet<String> {
        self.sets_with("good").values().flatten().map(|set| text(&set["metadata"]["uid"])).collect()
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

    fleet.write("bad");
    wait_for("the first workload to move", fleet.limit, || {
        if fleet.sets_with("bad").is_empty() { Err("none") } else { Ok(()) }
    });
    let confrev = restarted(confrev, Program::kill, || {});
    // Until a workload fails, whole waves may pass: those of workloads without pods.
    let refused = || {
        let snapshots = fleet.worlds.iter().flat_map(confrev_test_support::world::World::snapshots);
        snapshots.filter(|one| one["metadata"]["annotations"]["confrev.dev/refused"].is_string()).count()
    };
    wait_for("the first mark", 4 * fleet.limit, || {
        if refused() > 0 { Ok(()) } else { Err(fleet.on("bad").len()) }
    });
    let confrev = restarted(confrev, Program::kill, || {});
    wait_for("all workloads to come back", fleet.limit, || fleet.is_at_rest_on("good"));
    fleet.check_bad();
    wait_for("a mark in each namespace", fleet.limit, || expect(&refused(), &fleet.worlds.len()));
    assert_eq!(fleet.good_sets(), before, "each workload is back on the ReplicaSet that it had");
    holds_for("the refusal", Duration::from_secs(5), || expect(&fleet.on("good").len(), &fleet.count));

    fleet.write("better");
    wait_for("the first workload to move", fleet.limit, || {
        if fleet.on("better").is_empty() { Err("none") } else { Ok(()) }
    });
    let confrev = restarted(confrev, Program::kill, || {});
    wait_for(
        "the second wave",
        fleet.limit,
        || {
            if fleet.on("better").len() > 1 { Ok(()) } else { Err("one") }
        },
    );
    let _confrev = restarted(confrev, Program::kill, || {});
    wait_for("the correction to reach all workloads", 4 * fleet.limit, || fleet.is_at_rest_on("better"));
    fleet.check_waves();
    let twice: Vec<_> = fleet.sets_with("better").into_iter().filter(|(_, sets)| sets.len() != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}
