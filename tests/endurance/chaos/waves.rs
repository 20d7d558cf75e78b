//! A ConfigMap with waves, and the Deployments that use it. Its content changes once in each round: it reaches all of them, one wave
//! after the other, or its pods fail and it comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use confrev::snapshot::SourceKind;
use confrev_test_support::rolls::{check_waves, roll_time};
use http::Method;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::group::ALL;
use crate::kind::{Kind, Source, Workload, name_of, template, text};
use crate::site::{APPLY, JSON, MERGE, Site};

/// The number of workloads, and how many have moved at the end of each wave but the last.
const COUNT: usize = 6;
const ENDS: [usize; 2] = [1, 3];
const WAVES: &str = "1, 50%";
/// How long the moved workloads must stay healthy.
const BAKE: SignedDuration = SignedDuration::from_secs(2);
/// When a rollout counts as failed: later than any fault ends.
const DEADLINE: u32 = 60;
/// Every third content fails.
const FAILS: u32 = 3;
/// The pods fail with these contents. A long run has no more rounds.
const MOST: u32 = 300;

pub(crate) struct Waves {
    site: Arc<Site>,
    source: Source,
    workloads: Vec<Workload>,
    dice: Dice,
    /// The number of contents so far.
    number: u32,
    /// The last content that does not fail.
    sound: String,
}

fn content(number: u32) -> String {
    format!("waves: {number}")
}

fn fails(number: u32) -> bool {
    number % FAILS == FAILS - 1
}

impl Waves {
    pub(crate) fn create(site: &Arc<Site>, dice: Dice) -> Self {
        let source = Source {
            namespace: site.namespace.clone(),
            kind: SourceKind::ConfigMap,
            name: "waves".to_owned(),
        };
        let workloads = (0..COUNT)
            .map(|index| Workload::new(Kind::Deployment, format!("waves-{index}"), &source))
            .collect();
        let waves = Self { site: Arc::clone(site), source, workloads, dice, number: 0, sound: content(0) };
        let mut manifest = waves.source.manifest(&waves.sound);
        manifest["metadata"]["annotations"] = json!({
            "confrev.dev/waves": WAVES,
            "confrev.dev/bake": format!("{}s", BAKE.as_secs()),
            "confrev.dev/on-failure": "revert",
        });
        site.write(&Method::POST, &site.sources(waves.source.kind), (JSON, &manifest), true);
        waves.apply_all();
        waves
    }

    /// The snapshots of all contents that the source has had, and their data.
    pub(crate) fn snapshots(&self) -> impl Iterator<Item = (String, Value)> {
        (0..=self.number).map(content).map(|text| (self.source.snapshot(&text), self.source.data(&text)))
    }

    /// The snapshot of the present content.
    pub(crate) fn present(&self) -> String {
        self.source.snapshot(&content(self.number))
    }

    /// The change of one round. A GitOps tool applies the workloads with it: that moves none of them.
    pub(crate) fn step(&mut self) {
        // The random delay varies the moment of the fault; the test waits for nothing here.
        thread::sleep(Duration::from_millis(self.dice.below(4000)));
        self.number += 1;
        let next = content(self.number);
        let path = format!("{}/{}", self.site.sources(self.source.kind), self.source.name);
        let change = json!({"data": self.source.data(&next)});
        self.site.write(&Method::PATCH, &path, (MERGE, &change), true);
        if !fails(self.number) {
            self.sound = next;
        }
        self.apply_all();
    }

    fn apply_all(&self) {
        let failing: Vec<_> = (0..MOST)
            .filter(|number| fails(*number))
            .map(|number| self.source.snapshot(&content(number)))
            .collect();
        for workload in &self.workloads {
            let mut manifest = workload.manifest("app:0", ALL);
            manifest["spec"]["progressDeadlineSeconds"] = json!(DEADLINE);
            let metadata = &mut manifest["spec"]["template"]["metadata"];
            metadata["annotations"] = json!({"test/fails-with": failing.join(" ")});
            let path = format!("{}?fieldManager=user&force=true", self.site.path(workload));
            self.site.write(&Method::PATCH, &path, (APPLY, &manifest), false);
        }
    }

    /// `rolls`: all workloads have the last content that does not fail, and no wave was early. Adds the users of each snapshot.
    pub(crate) fn check(
        &self,
        live: &BTreeMap<(&'static str, String), Value>,
        revisions: &[Value],
        snapshots: &BTreeMap<String, Value>,
        used: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<(), String> {
        let wanted = self.source.snapshot(&self.sound);
        let mut times = Vec::new();
        for workload in &self.workloads {
            let object = live
                .get(&(workload.kind.name(), workload.name.clone()))
                .ok_or_else(|| format!("contained: {} is gone", workload.reference()))?;
            let at = self.source.named(template(object));
            if at.as_ref() != Ok(&wanted) {
                return Err(format!("rolls: {} is at {at:?}, not {wanted}", workload.reference()));
            }
            used.entry(wanted.clone()).or_default().push(text(&object["metadata"]["uid"]));
            times.push(roll_time(object));
        }
        let moved = self.revisions(revisions, used)?;
        if self.number == 0 {
            return Ok(());
        }
        if fails(self.number) {
            let failed = moved.get(&self.present()).map_or(0, Vec::len);
            if failed != ENDS[0] {
                return Err(format!("rolls: {failed} workloads moved to content that fails"));
            }
            let verdict = &snapshots.get(&self.present()).ok_or("kept: the failed snapshot is gone")?["metadata"]
                ["annotations"]["confrev.dev/verdict"];
            return if verdict.as_str().is_some_and(|verdict| verdict.contains("\"failed\":")) {
                Ok(())
            } else {
                Err("rolls: the failed content is not refused".to_owned())
            };
        }
        let times: Option<Vec<_>> = times.into_iter().collect();
        let times = times.ok_or("rolls: a user moved a workload")?;
        check_waves(times, &ENDS, BAKE).map_err(|early| format!("rolls: {early}"))
    }

    /// The workloads that ever had each snapshot. No workload has two revisions with one.
    fn revisions(
        &self,
        revisions: &[Value],
        used: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<BTreeMap<String, Vec<String>>, String> {
        let known: BTreeSet<_> = self.snapshots().map(|(name, _)| name).collect();
        let mut moved: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for object in revisions {
            let of = text(&object["metadata"]["labels"]["app"]);
            if !self.workloads.iter().any(|workload| workload.name == of) {
                continue;
            }
            let snapshot = self.source.named(template(object))?;
            if !known.contains(&snapshot) {
                return Err(format!(
                    "frozen: {} has {snapshot}, which the source never had",
                    name_of(object)
                ));
            }
            used.entry(snapshot.clone()).or_default().push(text(&object["metadata"]["uid"]));
            let all = moved.entry(snapshot.clone()).or_default();
            if all.contains(&of) {
                return Err(format!("rolls: {of} has two revisions with {snapshot}"));
            }
            all.push(of);
        }
        Ok(moved)
    }
}
