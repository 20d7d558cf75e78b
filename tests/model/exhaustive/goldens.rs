//! What confrev answers in each scenario without faults: its writes, Events and warnings, and the answers of the commands at each
//! rest. One file for each scenario in `goldens/`; `CONFREV_GOLDENS=write` rewrites them. Review their changes like any others.
//!
//! `goldens/differences.txt` lists where a command gives another reason than the gate on which the controller acts. A difference that
//! is new or that has ended fails the test.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde_json::Value;

use super::{Scenario, commands, play::Play, scenarios::asked, side_by_side};
use crate::{model::Model, store::Kind, trial::Trial};

/// What a run answers.
#[derive(Default)]
pub(crate) struct Record {
    text: String,
    /// The number of points at which the commands were asked.
    points: usize,
    /// The answers at the last point.
    last: String,
    /// Each difference, with its points.
    differences: BTreeMap<String, Vec<usize>>,
}

impl Play<'_> {
    /// Records what has been written since the last point, and what the commands answer now.
    pub(super) fn ask(&self, when: &str) {
        let Some(record) = &self.record else { return };
        let written = self.model.trial().record.as_mut().map(std::mem::take).unwrap_or_default();
        let namespaces: Vec<_> = {
            let store = self.model.store();
            store.of_kind(Kind::Namespace).map(|(key, _)| key.name.clone()).collect()
        };
        let mut record = record.borrow_mut();
        record.points += 1;
        let point = record.points;
        let mut lines = Vec::new();
        for namespace in namespaces {
            let gates = self.gates(&namespace);
            let answers = commands::answers(&self.model, &namespace);
            for tie in answers["workloads"].as_array().unwrap() {
                let tie = Tie::of(tie, &namespace, &gates, &answers["waves"]);
                lines.push(tie.line());
                if let Some(difference) = tie.difference() {
                    record.differences.entry(difference).or_default().push(point);
                }
            }
            for (source, waves) in answers["waves"].as_object().unwrap() {
                lines.push(format!("{namespace} {source}: {}", line_of_waves(waves)));
            }
        }
        writeln!(record.text, "\n{point}: {when}").unwrap();
        for line in counted(&written) {
            writeln!(record.text, "  {line}").unwrap();
        }
        let now = lines.concat();
        if now == record.last {
            record.text += "  the answers of the commands are the same\n";
        } else {
            for line in &lines {
                writeln!(record.text, "  {line}").unwrap();
            }
        }
        record.last = now;
    }

    /// The gates on which the controller acts, by workload and source.
    fn gates(&self, namespace: &str) -> BTreeMap<(String, String), &'static str> {
        let Some(leader) = self.model.conditions().leader else { return BTreeMap::new() };
        let now = self.model.now(leader);
        let shared = self.model.replicas()[leader].shared.clone();
        let gates = shared.lock().gates(now);
        let its = gates.into_iter().filter(|(key, ..)| *key.namespace == *namespace);
        its.map(|(key, source, gate)| {
            let kind = &self.model.kinds.iter().nth(key.kind).unwrap().kind;
            ((format!("{kind}/{}", key.name), format!("{}/{}", source.kind.as_str(), source.name)), gate)
        })
        .collect()
    }
}

/// What is said about a workload and a source.
struct Tie<'a> {
    namespace: &'a str,
    answers: &'a Value,
    /// The gate on which the controller acts; `-` if the workload is not to move.
    gate: &'static str,
    /// The gate that `waves` names for the next workloads, if the source has waves.
    waves: Option<&'a Value>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl<'a> Tie<'a> {
    fn of(
        answers: &'a Value,
        namespace: &'a str,
        gates: &BTreeMap<(String, String), &'static str>,
        waves: &'a Value,
    ) -> Self {
        let (workload, source) = (text(&answers["workload"]), text(&answers["status"]["source"]));
        let gate = gates.get(&(workload.to_owned(), source.to_owned())).copied().unwrap_or("-");
        Self { namespace, answers, gate, waves: waves.get(source) }
    }

    fn name(&self) -> String {
        let Self { namespace, answers, .. } = self;
        format!("{namespace} {} {}", text(&answers["workload"]), text(&answers["status"]["source"]))
    }

    fn line(&self) -> String {
        let (status, impact) = (&self.answers["status"], &self.answers["impact"]);
        let mut line = format!("{} {}", self.name(), status["snapshot"].as_str().unwrap_or("-"));
        write!(line, ": {}", text(&status["state"])).unwrap();
        if let Some(reason) = status["reason"].as_str() {
            write!(line, ": {reason}").unwrap();
        }
        if self.answers["rollout"] != "settled" {
            write!(line, ", {}", text(&self.answers["rollout"])).unwrap();
        }
        if self.gate != "-" {
            write!(line, " | controller: {}", self.gate).unwrap();
        }
        if self.answers["wait"] != "done" {
            write!(line, " | wait {}", text(&self.answers["wait"])).unwrap();
        }
        if impact["why"] != "it has already taken this content into account" && !impact.is_null() {
            let delay = impact["delay"].as_str().map(|delay| format!("; {delay}")).unwrap_or_default();
            write!(line, " | impact {}: {}{delay}", text(&impact["rolls"]), text(&impact["why"])).unwrap();
        }
        line
    }

    /// The gates that the commands name.
    fn said(&self) -> Vec<(&'static str, String)> {
        let status = &self.answers["status"];
        let is_waiting = |state: &str| matches!(state, "pending" | "refused" | "held" | "paused");
        let gate = |answer: &Value| match (answer["gate"].as_str(), answer["reason"].as_str()) {
            (Some(gate), _) => gate.to_owned(),
            (None, Some(reason)) => format!("{reason:?}"),
            (None, None) => OPEN.to_owned(),
        };
        // The API server may refuse a roll, which is no gate.
        let refusal = |answer: &Value| answer["gate"].as_str().unwrap_or("refused").to_owned();
        let of_status = match text(&status["state"]) {
            "refused" => refusal(status),
            "pending" => gate(status),
            // It is kept from the content only if it is behind.
            "held" | "paused" if status["gate"].is_string() => gate(status),
            _ => "-".to_owned(),
        };
        let (wait, source) = (text(&self.answers["wait"]), text(&status["source"]));
        let about = wait.split_once(&format!("{source} ")).map(|(_, about)| about);
        let (state, reason) =
            about.unwrap_or_default().split_once(": ").unwrap_or((about.unwrap_or_default(), ""));
        let of_wait = match (state, reason) {
            (state, _) if !is_waiting(state) => "-".to_owned(),
            ("held" | "paused", _) if !status["gate"].is_string() => "-".to_owned(),
            ("refused", _) => of_status.clone(),
            (_, "") => OPEN.to_owned(),
            (_, reason) if status["reason"] == reason => of_status.clone(),
            // A command that ends it follows.
            ("held" | "paused", reason) if reason.starts_with(text(&status["reason"])) => of_status.clone(),
            (_, reason) => format!("{reason:?}"),
        };
        let impact = &self.answers["impact"];
        let of_impact = match text(&impact["rolls"]) {
            "yes" => OPEN.to_owned(),
            "later" => gate(impact),
            "refused" => refusal(impact),
            _ if impact["gate"].is_string() => gate(impact),
            _ => "-".to_owned(),
        };
        let mut said = vec![("status", of_status), ("wait", of_wait), ("impact", of_impact)];
        if let Some(waves) = self.waves {
            let next = waves["next"].as_array().into_iter().flatten();
            let is_next = next.into_iter().any(|next| *next == self.answers["workload"]);
            if is_next {
                said.push(("waves", gate(waves)));
            }
        }
        said
    }

    /// The commands that name another gate than the controller.
    fn difference(&self) -> Option<String> {
        let differ = self.said().into_iter().filter(|(_, said)| *said != self.gate);
        let differ: Vec<_> = differ.map(|(command, said)| format!("{command} {said}")).collect();
        (!differ.is_empty())
            .then(|| format!("{}: controller {}, but {}", self.name(), self.gate, differ.join(", ")))
    }
}

/// A workload that may move, and does as soon as the queue lets it.
const OPEN: &str = "rolls";

fn line_of_waves(waves: &Value) -> String {
    let number = |field: &str| waves[field].as_u64().unwrap_or_default();
    let names = |field: &str| {
        let names: Vec<_> = waves[field].as_array().into_iter().flatten().map(text).collect();
        names.join(",")
    };
    let mut line = format!("wave {} of {}", number("wave"), number("waves"));
    write!(line, ", moved {} of {}, limit {}", number("moved"), number("workloads"), number("limit"))
        .unwrap();
    for field in ["next", "rolling", "unhealthy"] {
        if !names(field).is_empty() {
            write!(line, ", {field} {}", names(field)).unwrap();
        }
    }
    if waves["aborted"] == true {
        line += ", aborted";
    }
    if let Some(reason) = waves["reason"].as_str() {
        write!(line, ", {reason}").unwrap();
    }
    line
}

/// The lines, equal ones in a row once.
fn counted(lines: &[String]) -> Vec<String> {
    let mut counted: Vec<(&String, usize)> = Vec::new();
    for line in lines {
        match counted.last_mut() {
            Some((last, count)) if *last == line => *count += 1,
            _ => counted.push((line, 1)),
        }
    }
    let shown = |(line, count): (&String, usize)| match count {
        1 => line.clone(),
        count => format!("{line} ({count} times)"),
    };
    counted.into_iter().map(shown).collect()
}

/// `1,3-5`.
fn ranges(points: &[usize]) -> String {
    let of = points.chunk_by(|one, next| one + 1 == *next);
    let range = |of: &[usize]| match of {
        [one] => one.to_string(),
        of => format!("{}-{}", of[0], of[of.len() - 1]),
    };
    of.map(range).collect::<Vec<_>>().join(",")
}

/// The record of a scenario without faults.
fn record(scenario: &Scenario) -> Record {
    let model = Model::enumerated(Trial::new(&[]).carrying(scenario.carries));
    model.trial().record = Some(Vec::new());
    let mut play = Play::new(model, scenario.loose, None);
    play.record = Some(Record::default().into());
    (scenario.act)(&play);
    play.rest();
    play.record.take().unwrap().into_inner()
}

/// The records of the scenarios, by name.
fn records() -> &'static [(Scenario, Record)] {
    static RECORDS: OnceLock<Vec<(Scenario, Record)>> = OnceLock::new();
    RECORDS.get_or_init(|| {
        let mut all = asked();
        all.sort_by_key(|scenario| scenario.name);
        let records = side_by_side(&all, record);
        all.into_iter().zip(records).collect()
    })
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model/exhaustive/goldens")
}

/// Compares a file with its golden form, or rewrites it.
fn compare(name: &str, wanted: &str, different: &mut BTreeSet<String>) {
    let path = folder().join(name);
    let held = std::fs::read_to_string(&path).unwrap_or_default();
    if held == wanted {
        return;
    }
    if std::env::var_os("CONFREV_GOLDENS").is_some_and(|value| value == "write") {
        std::fs::create_dir_all(folder()).unwrap();
        return std::fs::write(&path, wanted).unwrap();
    }
    let (held, wanted): (Vec<_>, Vec<_>) = (held.lines().collect(), wanted.lines().collect());
    let at = held.iter().zip(&wanted).take_while(|(held, wanted)| held == wanted).count();
    let line = |lines: &[&str]| lines.get(at).map_or("nothing".to_owned(), |line| format!("{line:?}"));
    different.insert(format!("{name}:{}: {} is now {}", at + 1, line(&held), line(&wanted)));
}

#[test]
fn scenarios_answer_as_recorded() {
    let mut different = BTreeSet::new();
    for (scenario, record) in records() {
        compare(&scenario.golden(), record.text.trim_start(), &mut different);
    }
    assert!(different.is_empty(), "CONFREV_GOLDENS=write updates them: {different:#?}");
}

/// Every command gives the reason on which the controller acts, but for the known differences.
#[test]
fn commands_name_the_gate_of_the_controller() {
    if std::env::var_os("CONFREV_MODEL_SCENARIO").is_some() {
        return;
    }
    let mut lines = String::new();
    for (Scenario { name, .. }, record) in records().iter().filter(|(scenario, _)| !scenario.carries) {
        for (difference, points) in &record.differences {
            writeln!(lines, "{name} at {}: {difference}", ranges(points)).unwrap();
        }
    }
    let mut different = BTreeSet::new();
    compare("differences.txt", &lines, &mut different);
    assert!(different.is_empty(), "CONFREV_GOLDENS=write updates the known differences: {different:#?}");
}
