//! The steps of the chapters: run a command, wait, observe for a while, judge.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};

use crate::node;
use crate::stage::{Group, Rest, Stage, Versions, difference, text};
use crate::story::Story;

/// The time limit of a step that usually takes a second or two; on real nodes, which start containers, some seconds.
fn limit() -> Duration {
    Duration::from_secs(if node::is_real() { 180 } else { 20 })
}

impl Story {
    /// Runs a command that must succeed. Returns its warnings.
    pub(crate) fn run(&mut self, promise: &'static str, line: &str) -> String {
        self.at_stake = promise;
        let output = self.stage.kubectl(&self.screen, line);
        let warnings = output.stderr.clone();
        output.ok();
        warnings
    }

    /// Waits until `look` succeeds. Otherwise, the promise is broken.
    pub(crate) fn wait<T>(
        &mut self,
        promise: &'static str,
        what: &str,
        mut look: impl FnMut(&mut Stage) -> Result<T, String>,
    ) -> T {
        self.at_stake = promise;
        wait_for(what, limit(), || look(&mut self.stage))
    }

    /// Repeats `look` for a while. If it fails once, the promise is broken.
    pub(crate) fn stays(
        &mut self,
        promise: &'static str,
        what: &str,
        duration: Duration,
        mut look: impl FnMut(&mut Stage) -> Result<(), String>,
    ) {
        self.at_stake = promise;
        holds_for(what, duration, || look(&mut self.stage));
    }

    /// Waits until there are no writes.
    pub(crate) fn at_rest(&mut self, promise: &'static str) -> Versions {
        let mut rest = Rest::new();
        self.wait(promise, "everything to be at rest", |stage| rest.look(stage))
    }

    /// Records whether a promise held. The story continues in any case.
    pub(crate) fn judge(&mut self, promise: &'static str, held: bool, what: &str) {
        if held {
            self.promises.held(promise, what);
        } else {
            self.screen.problem(&format!("Not true: {what}"));
            self.promises.broken(promise, format!("not true: {what}"));
        }
    }

    /// Waits until the pods of a workload read these contents, and prints them.
    pub(crate) fn reads(
        &mut self,
        promise: &'static str,
        workload: &str,
        expected: &[(&str, usize)],
    ) -> Vec<Group> {
        let what = format!("the pods of {workload} to read {expected:?}");
        let groups = self.wait(promise, &what, |stage| {
            let groups = stage.look(workload)?;
            if counts(&groups) == sorted(expected) {
                Ok(groups)
            } else {
                Err(format!("{:?}", counts(&groups)))
            }
        });
        for Group { replica_set, color, object, pods } in &groups {
            let pods = format!("{} pod{}", pods.len(), if pods.len() == 1 { " " } else { "s" });
            let gap = " ".repeat(8_usize.saturating_sub(color.len()));
            self.screen.row(&format!("{replica_set:<20} {pods}  read color={color}{gap}from {object}"));
        }
        groups
    }

    /// Deletes a pod that reads `color`, and waits for its replacement. Returns the names of both.
    pub(crate) fn lose(
        &mut self,
        promise: &'static str,
        workload: &str,
        color: &str,
        expected: &[(&str, usize)],
    ) -> (String, String) {
        let pods = |groups: Vec<Group>| groups.into_iter().flat_map(|group| group.pods).collect::<Vec<_>>();
        let before = self.wait(promise, "the pods to be listed", |stage| stage.look(workload));
        let victim = before.iter().find(|group| group.color == color).and_then(|group| group.pods.first());
        let victim = victim.expect("a pod that reads this color").clone();
        let before = pods(before);
        self.run(promise, &format!("delete pod {victim}"));
        self.wait(promise, "another pod in its place", |stage| {
            let after = pods(stage.look(workload)?);
            let complete = after.len() == before.len() && !after.contains(&victim);
            if complete { Ok(()) } else { Err(format!("{after:?}")) }
        });
        let after = pods(self.reads(promise, workload, expected));
        let new = after.into_iter().find(|pod| !before.contains(pod)).unwrap_or_default();
        (victim, new)
    }

    /// Waits until the Rollout has stopped at its canary.
    pub(crate) fn paused(&mut self) {
        self.wait("rolls", "the canary to pause", |stage| {
            let live = stage.live("web");
            // Argo writes the number as a string.
            let generation = live["metadata"]["generation"].to_string();
            let current = live["status"]["observedGeneration"] == generation.as_str();
            let phase = text(&live["status"]["phase"]);
            let paused = current && live["status"]["controllerPause"] == true && phase == "Paused";
            if paused { Ok(()) } else { Err(format!("phase {phase}")) }
        });
        self.screen.row("rollout web          Paused after its 25 % step");
    }
}

/// The number of pods for each content.
pub(crate) fn counts(groups: &[Group]) -> Vec<(&str, usize)> {
    sorted(&groups.iter().map(|group| (group.color.as_str(), group.pods.len())).collect::<Vec<_>>())
}

fn sorted<'a>(counts: &[(&'a str, usize)]) -> Vec<(&'a str, usize)> {
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    counts
}

/// The pods that read `color`.
pub(crate) fn group_of(groups: &[Group], color: &str) -> Group {
    groups.iter().find(|group| group.color == color).cloned().unwrap_or_default()
}

/// An error if an object was written since.
pub(crate) fn unchanged(before: &Versions, now: &Versions) -> Result<(), String> {
    difference(before, now).map_or(Ok(()), Err)
}
