//! Waves that AnalysisRuns of the real Argo Rollouts controller judge. Each metric asks a server of the test.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use confrev_controlplane::{Program, holds_for, wait_for};
use serde_json::{Value, json};

use super::Commands as _;
use super::group_waves::group;
use crate::manifests::{Kind, Workload};
use crate::shared::{exclusive, running};
use crate::world::{LIMIT, World, expect, text, verdict};

/// A source of metrics: what it answers, and the paths that were asked for.
#[derive(Clone)]
struct Metric {
    port: u16,
    state: Arc<Mutex<(&'static str, BTreeSet<String>)>>,
}

impl Metric {
    fn new(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let metric = Self { port, state: Arc::new(Mutex::new((answer, BTreeSet::new()))) };
        let serving = metric.clone();
        thread::spawn(move || listener.incoming().flatten().for_each(|stream| serving.answer(stream)));
        metric
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut request = [0; 4096];
        let length = stream.read(&mut request).unwrap_or(0);
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let answer = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.1.insert(path);
            state.0
        };
        let body = json!({"data": answer}).to_string();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
        let _ = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    }

    fn set(&self, answer: &'static str) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = answer;
    }

    fn asked(&self) -> BTreeSet<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// An AnalysisTemplate that asks until the answer is `good` or `bad`. Any other answer is inconclusive, if the template
    /// does not accept it.
    fn template(&self, name: &str, waits: bool) -> Value {
        let url = format!(
            "http://127.0.0.1:{}/{{{{args.source}}}}/{{{{args.namespace}}}}/{{{{args.wave}}}}/{{{{args.digest}}}}",
            self.port
        );
        let metric = json!({
            "name": "sound",
            "interval": "1s",
            "count": if waits { 500 } else { 1 },
            // Enough good answers end it.
            "consecutiveSuccessLimit": 1,
            "inconclusiveLimit": if waits { 500 } else { 0 },
            "failureLimit": 0,
            "successCondition": "result == 'good'",
            "failureCondition": "result == 'bad'",
            "provider": {"web": {"url": url, "jsonPath": "{$.data}"}},
        });
        let args = ["source", "namespace", "digest", "wave"].map(|name| json!({"name": name}));
        json!({
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "AnalysisTemplate",
            "metadata": {"name": name},
            "spec": {"args": args, "metrics": [metric]},
        })
    }
}

/// Allows confrev to analyse in this namespace, as the chart does with `analysis.enabled`.
fn allow(world: &World) {
    let verbs = "--verb=get,list,create,patch,delete";
    let resources = "--resource=analysisruns.argoproj.io,analysistemplates.argoproj.io";
    world.kubectl(&["create", "role", "analyses", verbs, resources]).ok();
    let account = "--serviceaccount=confrev:confrev";
    world.kubectl(&["create", "rolebinding", "analyses", "--role=analyses", account]).ok();
}

/// Four workloads with `A`, and a source with waves of one, two and the rest.
fn scene(prefix: &str, metric: &Metric, waits: bool) -> (World, Vec<Workload>) {
    let world = World::new(prefix);
    world.apply(&metric.template("sound", waits)).ok();
    world.set_config("demo", "A");
    let names = ["one", "two", "three", "four"];
    let loads: Vec<_> = names.map(|name| Workload::new(Kind::Deployment, name, &["demo"]).replicas(1)).into();
    for load in &loads {
        world.apply(&load.manifest()).ok();
    }
    for load in &loads {
        world.wait_reads(load, "demo", &["A"]);
    }
    (world, loads)
}

fn set_waves(world: &World, more: &[&str]) {
    let settings = ["confrev.dev/waves=1, 50%", "confrev.dev/analysis=sound"];
    world.kubectl(&[&["annotate", "configmap/demo"], &settings[..], more].concat()).ok();
}

/// Allows it to read the ClusterAnalysisTemplate of this name until the end of the test.
struct ClusterWide<'w> {
    world: &'w World,
    name: &'w str,
}

impl<'w> ClusterWide<'w> {
    fn new(world: &'w World, name: &'w str) -> Self {
        let resources = "--resource=clusteranalysistemplates.argoproj.io";
        world.kubectl(&["create", "clusterrole", name, "--verb=get", resources]).ok();
        let (role, account) = (format!("--clusterrole={name}"), "--serviceaccount=confrev:confrev");
        world.kubectl(&["create", "clusterrolebinding", name, &role, account]).ok();
        Self { world, name }
    }
}

impl Drop for ClusterWide<'_> {
    fn drop(&mut self) {
        for kind in ["clusterrolebinding", "clusterrole", "clusteranalysistemplate"] {
            // A failed test may have created none.
            let _ = self.world.kubectl(&["delete", kind, self.name, "--ignore-not-found"]);
        }
    }
}

fn on(world: &World, loads: &[Workload], content: &str) -> usize {
    loads.iter().filter(|load| world.resolves_to(load, "demo", content).is_ok()).count()
}

/// The AnalysisRuns: the wave that each judges, and its phase.
fn runs(world: &World) -> Vec<(String, String)> {
    let runs = world.cluster.list("analysisruns", world.name(), "app.kubernetes.io/managed-by=confrev");
    let arg = |run: &Value, name: &str| {
        let mut args = run["spec"]["args"].as_array().into_iter().flatten();
        args.find(|arg| arg["name"] == name).map(|arg| text(&arg["value"])).unwrap_or_default()
    };
    let mut found: Vec<_> =
        runs.iter().map(|run| (arg(run, "wave"), text(&run["status"]["phase"]))).collect();
    found.sort();
    found
}

fn phases(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(wave, phase)| ((*wave).to_owned(), (*phase).to_owned())).collect()
}

fn reasons(world: &World) -> BTreeSet<String> {
    world.cluster.list("events", world.name(), "").iter().map(|event| text(&event["reason"])).collect()
}

/// confrev is killed and started again. Its Lease expires first.
fn killed() {
    let mut confrev = exclusive();
    Program::kill(&mut confrev);
    confrev.start();
    let confrev = confrev.downgrade();
    wait_for("the new process to lead", LIMIT, || expect(&confrev.metric("confrev_leader"), &1.0));
}

/// Whether this is the first run of a change in a namespace, in progress.
fn is_running(reason: &str, run: &Value, namespace: &str) -> Result<(), String> {
    let name = text(&run["name"]);
    let is_it = name.starts_with("demo-")
        && *run == json!({"namespace": namespace, "name": name, "phase": "Running"})
        && reason == format!("wave 1 of 3: waits for AnalysisRun {name}, which is running");
    if is_it { Ok(()) } else { Err(format!("{reason}: {run}")) }
}

/// A kill while a run is in progress, and after it, neither skips nor repeats a run.
#[test]
fn each_wave_waits_for_its_analysis() {
    let metric = Metric::new("unknown");
    let confrev = running();
    let (world, loads) = scene("analysis", &metric, true);
    allow(&world);
    set_waves(&world, &[]);
    world.set_config("demo", "B");
    wait_for("the run of the first wave", LIMIT, || expect(&runs(&world), &phases(&[("1", "Running")])));
    wait_for("the reason", LIMIT, || {
        let shown = world.confrev_json(&["waves", "demo"]);
        is_running(&text(&shown["reason"]), &shown["analysis"], world.name())
    });
    let run = text(&world.confrev_json(&["waves", "demo"])["analysis"]["name"]);
    let table = world.confrev(&["waves", "demo"]).ok();
    assert!(table.contains(&format!("\nANALYSIS   {run}: Running\n")), "{table}");
    let waiting =
        loads.iter().find(|load| world.resolves_to(load, "demo", "B").is_err()).expect("three wait");
    let status = world.confrev_json(&["status", &waiting.name]);
    let source = &status[0]["sources"][0];
    is_running(&text(&source["reason"]), &source["analysis"], world.name()).expect("the run in the status");
    let waited = world.confrev(&["wait", &waiting.reference(), "--timeout=1s"]).failed(3);
    assert!(waited.contains(&format!("waits for AnalysisRun {run}, which is running")), "{waited}");
    drop(confrev);
    killed();
    let confrev = running();
    holds_for("the first wave", Duration::from_secs(4), || {
        expect(&on(&world, &loads, "B"), &1)?;
        expect(&runs(&world), &phases(&[("1", "Running")]))
    });
    metric.set("good");
    wait_for("the second wave", LIMIT, || expect(&(on(&world, &loads, "B") > 1), &true));
    drop(confrev);
    killed();
    let _confrev = running();
    wait_for("all workloads to move", 2 * LIMIT, || expect(&on(&world, &loads, "B"), &4));
    let all = phases(&[("1", "Successful"), ("2", "Successful"), ("3", "Successful")]);
    wait_for("a run for each wave", LIMIT, || expect(&runs(&world), &all));
    holds_for("a run for each wave", Duration::from_secs(3), || expect(&runs(&world), &all));
    let start = format!("/demo/{}/", world.name());
    let waves: BTreeSet<_> =
        metric.asked().iter().filter_map(|path| Some(path.strip_prefix(&start)?[..2].to_owned())).collect();
    assert_eq!(waves, ["1/", "2/", "3/"].map(str::to_owned).into());
    assert!(reasons(&world).contains("AnalysisBegun"), "{:?}", reasons(&world));

    // The runs belong to the source.
    world.delete("configmap", "demo");
    wait_for("the runs to be deleted", LIMIT, || expect(&runs(&world), &phases(&[])));
}

#[test]
fn failed_analysis_reverts_until_retried() {
    let metric = Metric::new("bad");
    let _confrev = running();
    let (world, loads) = scene("analysis-fails", &metric, true);
    allow(&world);
    set_waves(&world, &["confrev.dev/on-failure=revert"]);
    world.set_config("demo", "B");
    let b = world.snapshot_name("demo", "B");
    let mark = || {
        let snapshot = world.cluster.get("configmap", world.name(), &b);
        snapshot.map(|one| text(&verdict(&one)["failed"]["reason"])).unwrap_or_default()
    };
    wait_for("the mark", LIMIT, || {
        let mark = mark();
        if mark.contains("of wave 1: failed") { Ok(()) } else { Err(mark) }
    });
    wait_for("all workloads to be back", LIMIT, || expect(&on(&world, &loads, "A"), &4));
    holds_for("the refusal", Duration::from_secs(3), || {
        expect(&on(&world, &loads, "A"), &4)?;
        expect(&runs(&world), &phases(&[("1", "Failed")]))
    });
    assert!(reasons(&world).is_superset(&["AnalysisFailed", "ContentRefused"].map(str::to_owned).into()));

    metric.set("good");
    world.confrev(&["waves", "retry", "demo"]).ok();
    wait_for("all workloads to move", 2 * LIMIT, || expect(&on(&world, &loads, "B"), &4));
    let all = [("1", "Failed"), ("1", "Successful"), ("2", "Successful"), ("3", "Successful")];
    wait_for("a further run for each wave", LIMIT, || expect(&runs(&world), &phases(&all)));
}

#[test]
fn person_decides_after_inconclusive_analysis() {
    let metric = Metric::new("unknown");
    let _confrev = running();
    let (world, loads) = scene("analysis-open", &metric, false);
    allow(&world);
    set_waves(&world, &[]);
    world.set_config("demo", "B");
    wait_for("the run", LIMIT, || expect(&runs(&world), &phases(&[("1", "Inconclusive")])));
    wait_for("the Event", LIMIT, || expect(&reasons(&world).contains("AnalysisHeld"), &true));
    holds_for("the first wave", Duration::from_secs(3), || expect(&on(&world, &loads, "B"), &1));
    // A wait for a change about which only a person can decide ends at once.
    let waiting =
        loads.iter().find(|load| world.resolves_to(load, "demo", "B").is_err()).expect("three wait");
    let waited = world.confrev(&["wait", &waiting.reference(), "--timeout=30m"]).failed(3);
    assert!(waited.contains("which is inconclusive"), "{waited}");
    // Another run of the same wave.
    let said = world.confrev(&["waves", "retry", "demo"]).ok();
    assert!(said.contains("is analysed again"), "{said}");
    let twice = phases(&[("1", "Inconclusive"), ("1", "Inconclusive")]);
    wait_for("the second run", LIMIT, || expect(&runs(&world), &twice));
    // No run is necessary for a wave that a person begins.
    let said = world.confrev(&["waves", "promote", "demo"]).ok();
    assert!(said.contains("wave 2 of 3"), "{said}");
    wait_for("the second wave", LIMIT, || expect(&on(&world, &loads, "B"), &2));
    wait_for("the run of the second wave", LIMIT, || {
        expect(&runs(&world).last().cloned(), &Some(("2".to_owned(), "Inconclusive".to_owned())))
    });
    holds_for("the second wave", Duration::from_secs(2), || expect(&on(&world, &loads, "B"), &2));
}

#[test]
fn aborted_change_terminates_its_analysis() {
    let metric = Metric::new("unknown");
    let _confrev = running();
    let (world, loads) = scene("analysis-aborted", &metric, true);
    allow(&world);
    set_waves(&world, &[]);
    world.set_config("demo", "B");
    wait_for("the run", LIMIT, || expect(&runs(&world), &phases(&[("1", "Running")])));
    world.confrev(&["waves", "abort", "demo"]).ok();
    wait_for("the run to end", LIMIT, || expect(&(runs(&world)[0].1 == "Running"), &false));
    holds_for("the first wave", Duration::from_secs(2), || expect(&on(&world, &loads, "B"), &1));
    metric.set("good");
    world.confrev(&["waves", "retry", "demo"]).ok();
    wait_for("all workloads to move", 2 * LIMIT, || expect(&on(&world, &loads, "B"), &4));
}

/// Without rights, nothing moves. With the rights, the change begins.
#[test]
fn analysis_without_rights_holds_the_change() {
    let metric = Metric::new("good");
    let _confrev = running();
    let (world, loads) = scene("analysis-rights", &metric, true);
    let settings = ["confrev.dev/waves=1, 50%", "confrev.dev/analysis=sound"];
    let written = world.kubectl(&[&["annotate", "configmap/demo"], &settings[..]].concat());
    let warnings = written.stderr.clone();
    written.ok();
    assert!(warnings.contains("could not be read"), "{warnings}");
    world.set_config("demo", "B");
    wait_for("the Event", LIMIT, || expect(&reasons(&world).contains("AnalysisHeld"), &true));
    holds_for("the previous content", Duration::from_secs(3), || expect(&on(&world, &loads, "B"), &0));
    allow(&world);
    wait_for("all workloads to move", 2 * LIMIT, || expect(&on(&world, &loads, "B"), &4));
}

#[test]
fn impossible_analysis_is_refused_at_once() {
    let metric = Metric::new("good");
    let _confrev = running();
    let (world, loads) = scene("analysis-refused", &metric, true);
    allow(&world);
    let mut open = metric.template("open", true);
    open["spec"]["args"] = json!([{"name": "service"}]);
    world.apply(&open).ok();
    let waves = "confrev.dev/waves=1";
    for (settings, part) in [
        (&[waves, "confrev.dev/analysis=none"][..], "AnalysisTemplate \"none\" does not exist"),
        (&[waves, "confrev.dev/analysis=open"], "argument \"service\" has no value"),
        (&[waves, "confrev.dev/analysis=A B"], "\"A B\" is not allowed"),
        (&["confrev.dev/analysis=sound"], "has no effect without confrev.dev/waves"),
    ] {
        let refused = world.kubectl(&[&["annotate", "configmap/demo"], settings].concat());
        let error = refused.refused();
        assert!(error.contains(part), "{error}");
        assert!(error.contains("annotation confrev.dev/analysis"), "{error}");
    }
    set_waves(&world, &[]);
    // A template that is deleted later refuses no other write of the source, and nothing moves.
    world.delete("analysistemplate", "sound");
    world.set_config("demo", "B");
    wait_for("the Event", LIMIT, || expect(&reasons(&world).contains("AnalysisHeld"), &true));
    holds_for("the previous content", Duration::from_secs(3), || expect(&on(&world, &loads, "B"), &0));
    let why = "held by the analysis, which is not available: AnalysisTemplate \"sound\" does not exist";
    let reason = text(&world.confrev_json(&["waves", "demo"])["reason"]);
    assert_eq!(reason, format!("wave 1 of 3: {why}"));
    let status = world.confrev(&["status", "one"]).ok();
    assert!(status.contains(why), "{status}");
    let impact = world.confrev_json(&["impact", "demo"]);
    let delays: Vec<_> =
        impact.as_array().into_iter().flatten().map(|effect| text(&effect["delay"])).collect();
    assert!(delays.iter().all(|delay| !delay.contains("analysis")), "{delays:?}");
    world.apply(&metric.template("sound", true)).ok();
    wait_for("all workloads to move", 2 * LIMIT, || expect(&on(&world, &loads, "B"), &4));
}

/// One run judges each wave, in the first namespace. Each namespace shows it, and a person of each may stop and repeat it.
#[test]
fn group_has_one_analysis_for_each_wave() {
    let metric = Metric::new("unknown");
    let _confrev = running();
    let (worlds, group) = group("analysis-group");
    let [first, second] = &worlds;
    let _rights = ClusterWide::new(first, &group);
    let mut template = metric.template(&group, true);
    template["kind"] = json!("ClusterAnalysisTemplate");
    first.apply(&template).ok();
    let loads: Vec<_> =
        ["one", "two"].map(|name| Workload::new(Kind::Deployment, name, &["demo"]).replicas(1)).into();
    for world in &worlds {
        allow(world);
        world.set_config("demo", "A");
        let analysis = format!("confrev.dev/analysis=cluster/{group}");
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1, 50%", &analysis]).ok();
        for load in &loads {
            world.apply(&load.manifest()).ok();
        }
    }
    for world in &worlds {
        for load in &loads {
            world.wait_reads(load, "demo", &["A"]);
        }
    }
    for world in &worlds {
        world.set_config("demo", "B");
    }
    let moved = || worlds.iter().map(|world| on(world, &loads, "B")).sum::<usize>();
    wait_for("the run of the first wave", LIMIT, || expect(&runs(first), &phases(&[("1", "Running")])));
    for world in &worlds {
        wait_for("the run in its command", LIMIT, || {
            let shown = world.confrev_json(&["waves", "demo"]);
            is_running(&text(&shown["reason"]), &shown["analysis"], first.name())
        });
    }
    let said = second.confrev(&["waves", "abort", "demo"]).ok();
    assert!(said.ends_with(", in 2 namespaces\n"), "{said}");
    wait_for("the run to end", LIMIT, || expect(&(runs(first)[0].1 == "Running"), &false));
    holds_for("the first wave", Duration::from_secs(2), || expect(&moved(), &1));
    let ended = runs(first)[0].1.clone();
    metric.set("good");
    let said = second.confrev(&["waves", "retry", "demo"]).ok();
    assert!(said.contains("wave 1 of") && said.ends_with("is analysed again, in 2 namespaces\n"), "{said}");
    wait_for("all workloads to move", 2 * LIMIT, || expect(&moved(), &4));
    let mut all = phases(&[("1", &ended), ("1", "Successful"), ("2", "Successful"), ("3", "Successful")]);
    all.sort();
    wait_for("a run for each wave", LIMIT, || expect(&runs(first), &all));
    assert_eq!(runs(second), phases(&[]));
    let start = format!("/demo/{}/", first.name());
    assert!(metric.asked().iter().all(|path| path.starts_with(&start)), "{:?}", metric.asked());
}
