//! The story: each chapter changes an object, waits for the expected result, and names the promise that it shows.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use confrev_controlplane::{ControlPlane, Program};

use crate::promises::Promises;
use crate::screen::Screen;
use crate::stage::{Group, Stage};
use crate::steps::{counts, group_of, unchanged};

/// How many lines of confrev's log are printed if a promise was broken.
const TAIL: usize = 15;
/// How long something must stay as it is.
const STAYS: Duration = Duration::from_secs(5);
/// Longer than `--settle`: confrev would have rolled a change by then.
const SETTLED: Duration = Duration::from_millis(1500);

/// The state of the demo.
pub(crate) struct Story {
    pub(crate) screen: Screen,
    pub(crate) stage: Stage,
    pub(crate) promises: Promises,
    /// The promise that the present step is about.
    pub(crate) at_stake: &'static str,
    confrev: Program,
}

impl Story {
    pub(crate) fn new(cluster: &'static ControlPlane, confrev: Program, screen: Screen) -> Self {
        let stage = Stage::new(cluster);
        Self { screen, stage, confrev, promises: Promises::default(), at_stake: "fresh" }
    }

    /// All chapters.
    ///
    /// # Panics
    /// If a step fails.
    pub(crate) fn tell(&mut self) {
        let blue = self.first_apply();
        self.apply_again();
        let green = self.change();
        self.lose_pods();
        self.alter(&blue);
        self.promote();
        self.undo();
        let red = self.change_again();
        self.collect(&[&blue, &red], &green);
        self.restart();
    }

    /// A step failed: the remaining chapters are skipped.
    pub(crate) fn interrupted(&mut self, problem: &str) {
        self.screen.problem(problem);
        self.promises.broken(self.at_stake, problem.lines().next().unwrap_or_default());
    }

    /// Prints the table, and the log of confrev if a promise was broken.
    pub(crate) fn conclude(&mut self) -> ExitCode {
        if let Some(strayed) = self.stage.strayed.pop_first() {
            self.promises
                .broken("frozen", format!("a pod read another content than its ReplicaSet: {strayed}"));
        } else if !self.stage.pods.is_empty() {
            let pods = self.stage.pods.len();
            self.promises.held("frozen", format!("all {pods} pods read the content of their ReplicaSet"));
        }
        self.screen.chapter("The promises, and the observations");
        let kept = self.promises.table(&self.screen);
        if kept {
            return ExitCode::SUCCESS;
        }
        self.screen.title("\nThe end of confrev's log:");
        let log = self.confrev.log_tail();
        let lines: Vec<_> = log.lines().collect();
        self.screen.log(&lines[lines.len().saturating_sub(TAIL)..].join("\n"));
        ExitCode::FAILURE
    }

    fn first_apply(&mut self) -> String {
        self.screen.chapter("One apply: a ConfigMap with blue, and workloads that read it");
        self.screen
            .seen(&format!("All commands run in namespace {}, which is opted in.", self.stage.namespace()));
        self.run("fresh", "apply -f examples/demo/blue.yaml -f examples/demo/workloads.yaml");
        let blue = group_of(&self.reads("fresh", "web", &[("blue", 4)]), "blue").object;
        self.reads("fresh", "api", &[("blue", 2)]);
        let legacy = group_of(&self.reads("contained", "legacy", &[("blue", 1)]), "blue").object;
        let born = ["web", "api"].map(|workload| self.stage.replica_sets(workload));
        self.judge("fresh", born == [1, 1], "applied together with its ConfigMap: one ReplicaSet each");
        self.judge("contained", legacy == "demo", "the opted-out Deployment's reference stays as written");
        blue
    }

    fn apply_again(&mut self) {
        self.screen.chapter("The same apply again");
        self.at_rest("quiet");
        let before = self.stage.contents();
        self.run("quiet", "apply -f examples/demo/blue.yaml -f examples/demo/workloads.yaml");
        self.stays("quiet", "that nothing changes", SETTLED, |stage| unchanged(&before, &stage.contents()));
        self.screen.seen("Nothing changes except managedFields, which the API server updates.");
        self.promises.held("quiet", "the same applied again: no change, no rollout");
    }

    fn change(&mut self) -> Group {
        self.screen.chapter("The ConfigMap changes to green: first a dry run, then the change");
        let before = self.stage.versions();
        let tried = self.run("dry", "apply --dry-run=server -f examples/demo/green.yaml");
        self.stays("dry", "that nothing is written", SETTLED, |stage| unchanged(&before, &stage.versions()));
        self.screen.seen("Nothing is written.");
        let done = self.run("dry", "apply -f examples/demo/green.yaml");
        let canary = self.reads("rolls", "web", &[("blue", 3), ("green", 1)]);
        self.paused();
        self.reads("rolls", "api", &[("green", 2)]);
        let green = group_of(&canary, "green");
        let answer = self.stage.kubectl(
            &self.screen,
            "annotate rollout web confrev.dev/roll=again --overwrite --dry-run=server \
             -o jsonpath={.spec.template.metadata.annotations.confrev\\.dev/sources}",
        );
        self.judge(
            "dry",
            tried == done && answer.stdout.contains(&green.object),
            &format!("dry runs got the same answers as the writes, with {}, and wrote nothing", green.object),
        );
        green
    }

    fn lose_pods(&mut self) {
        self.screen.chapter("Pods are lost during the canary");
        let (lost, new) = self.lose("frozen", "web", "blue", &[("blue", 3), ("green", 1)]);
        self.screen.seen(&format!("{new} replaces {lost}, and reads color=blue."));
        self.promises
            .held("frozen", "a stable pod was lost during the canary: its replacement read the old content");
        let (lost, new) = self.lose("contained", "legacy", "blue", &[("green", 1)]);
        self.screen.seen(&format!(
            "{new} replaces {lost}, and reads color=green: it is opted out, so it behaves as without confrev."
        ));
    }

    fn alter(&mut self, snapshot: &str) {
        self.screen.chapter("An administrator tries to change a snapshot that pods read");
        let before = self.stage.frozen(snapshot);
        let attempts = [
            format!("patch configmap {snapshot} -p '{{\"data\":{{\"color\":\"pink\"}}}}'"),
            format!("label configmap {snapshot} confrev.dev/source-"),
            format!("delete configmap {snapshot}"),
        ];
        let mut refused = true;
        for attempt in attempts {
            self.at_stake = "kept";
            let output = self.stage.kubectl(&self.screen, &attempt);
            if output.status.success() {
                self.screen.problem("Not refused.");
                refused = false;
            } else {
                let answer = output.stderr.split("denied request: ").last().unwrap_or_default();
                self.screen.seen(&format!("refused: {}", answer.trim()));
            }
        }
        let same = self.stage.frozen(snapshot) == before;
        self.judge("kept", refused && same, "an administrator's edit, relabelling and deletion were refused");
    }

    fn promote(&mut self) {
        self.screen.chapter("The canary is promoted");
        self.run("rolls", "argo rollouts promote web");
        self.reads("rolls", "web", &[("green", 4)]);
        let revisions = self.stage.revisions();
        self.judge(
            "rolls",
            revisions == [2, 2],
            "green: one new revision each, by canary and by rolling update",
        );
    }

    fn undo(&mut self) {
        self.screen.chapter("Undo: the old content returns, and stays, although the ConfigMap has green");
        self.run("sticks", "argo rollouts undo web");
        self.run("sticks", "rollout undo deployment/api");
        self.reads("sticks", "web", &[("blue", 4)]);
        self.reads("sticks", "api", &[("blue", 2)]);
        self.stays("sticks", "that the undo stays in force", STAYS, |stage| {
            let revisions = stage.revisions();
            let blue =
                counts(&stage.look("web")?) == [("blue", 4)] && counts(&stage.look("api")?) == [("blue", 2)];
            if blue && revisions == [3, 3] { Ok(()) } else { Err(format!("revisions {revisions:?}")) }
        });
        self.screen.seen(&format!("For {} s nothing rolls forward.", STAYS.as_secs()));
        self.promises.held(
            "sticks",
            format!("both undo commands restored blue, and it stayed for {} s", STAYS.as_secs()),
        );
    }

    fn change_again(&mut self) -> String {
        self.screen.chapter("The ConfigMap changes to red: the workloads roll again");
        self.run("rolls", "apply -f examples/demo/red.yaml");
        let canary = self.reads("rolls", "web", &[("blue", 3), ("red", 1)]);
        self.paused();
        self.run("rolls", "argo rollouts promote web");
        self.reads("rolls", "web", &[("red", 4)]);
        self.reads("rolls", "api", &[("red", 2)]);
        let revisions = self.stage.revisions();
        self.judge("rolls", revisions == [4, 4], "red, after the undo: one new revision each");
        group_of(&canary, "red").object
    }

    fn collect(&mut self, wanted: &[&str], gone: &Group) {
        self.screen.chapter("The ReplicaSets of green are deleted, and the snapshot with the last of them");
        // The source and the workloads are removed as owners a few seconds after they use another snapshot.
        self.wait("no-leak", "old snapshots to be owned by ReplicaSets only", |stage| {
            let holders: BTreeSet<_> =
                [wanted[0], &gone.object].iter().flat_map(|n| stage.holders(n)).collect();
            let alone = holders == BTreeSet::from(["ReplicaSet".to_owned()]);
            if alone { Ok(()) } else { Err(format!("{holders:?}")) }
        });
        let revision = self.stage.revision_label(&gone.replica_set);
        self.run("no-leak", &format!("delete replicasets -l confrev.dev/revision={revision}"));
        let expected: BTreeSet<String> =
            wanted.iter().chain(&["demo"]).map(|&name| name.to_owned()).collect();
        let what = format!("the garbage collector to remove {} and nothing else", gone.object);
        self.wait("no-leak", &what, |stage| {
            let (found, sets) = (stage.config_maps(), ["web", "api"].map(|w| stage.replica_sets(w)));
            let done = found == expected && sets == [2, 2];
            if done { Ok(()) } else { Err(format!("ConfigMaps {found:?}, ReplicaSets {sets:?}")) }
        });
        self.run("no-leak", "get replicasets -L confrev.dev/revision");
        self.run("no-leak", "get configmaps -l confrev.dev/source");
        self.promises.held(
            "no-leak",
            format!("{} was deleted with its last ReplicaSet, and nothing else was", gone.object),
        );
        self.promises.held("kept", "the snapshot of the old ReplicaSets of blue still exists");
    }

    fn restart(&mut self) {
        self.screen.chapter("confrev is stopped, and started again");
        self.at_stake = "contained";
        self.screen.command("kill $CONFREV_PID");
        self.confrev.stop();
        self.run("contained", "set env deployment/legacy NOTE=changed");
        self.run("contained", "scale deployment/api --replicas=3");
        self.reads("contained", "legacy", &[("red", 1)]);
        self.reads("contained", "api", &[("red", 3)]);
        let untouched = self.stage.is_untouched("legacy");
        self.judge(
            "contained",
            untouched,
            "without confrev, the opted-out Deployment could change, and an opted-in one could scale",
        );
        let before = self.at_rest("quiet");
        let old = self.stage.leader();
        self.screen.command("confrev serve --self-signed ...");
        self.confrev.start();
        self.wait("quiet", "the new confrev to lead", |stage| {
            let leader = stage.leader();
            if leader.is_empty() || leader == old { Err("no leader yet".to_owned()) } else { Ok(()) }
        });
        self.stays("quiet", "that nothing is written", STAYS, |stage| unchanged(&before, &stage.versions()));
        let count = before.len();
        self.screen.seen(&format!(
            "It leads again. For {} s, none of {count} resourceVersions changes.",
            STAYS.as_secs()
        ));
        self.promises.held(
            "quiet",
            format!("after a restart, none of {count} objects was written for {} s", STAYS.as_secs()),
        );
    }
}
