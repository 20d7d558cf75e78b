//! The memory budget: every hostile client at once, in a container of the chart's size.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use confrev::budget;
use futures::future::join_all;
use serde_json::{Value, json};

use super::attacks::{half_bodies, open_heads, open_requests};
use super::container::Container;
use super::wire::Stranger;
use super::{MIB, Site, dense_review, escaped_configs, review_of};
use crate::manifests::config_map;
use crate::shared::exclusive;
use crate::world::LIMIT;

/// How many answers each review has to get: two for each of its clients.
const ENOUGH: usize = 8;
/// How many of the attacks run beside each other at the end.
const TOGETHER: usize = 8;
/// Strangers whose parsed reviews wait for their sources. Without a limit for what is parsed, they take more than the container has.
const WAITING: usize = 4;
/// References of which each leads to operations that one answer may hold, and more than that.
const FEW_REFERENCES: usize = 4_000;
const MANY_REFERENCES: usize = 50_000;
/// The longest time for a review. With less, no body of 6 MB arrives in time on a machine that does much else.
const PATIENCE: &str = "20s";

/// What the kernel shows of the processes of checks.
#[derive(Debug, Default)]
struct Seen {
    /// The most of them at once.
    most: usize,
    /// Those that have taken their limits, and those of them that violate one.
    limited: BTreeSet<u32>,
    wrong: BTreeSet<String>,
    /// The most memory of the container, in MiB.
    memory: u64,
}

/// An AdmissionReview of a new ConfigMap with these values, whose schema is `schemas/large`.
fn forged(namespace: &str, data: &Value) -> Vec<u8> {
    let annotations = json!({"confrev.dev/schema": "schemas/large"});
    let metadata = json!({"name": "forged", "namespace": namespace, "annotations": annotations});
    let request = json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "name": "forged", "namespace": namespace, "operation": "CREATE", "dryRun": true,
        "object": {"metadata": metadata, "data": data},
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
        .to_string()
        .into_bytes()
}

/// An AdmissionReview of an update that confrev did not answer, in which each reference changes twice: to the name of its source, and
/// to a snapshot.
fn marked(namespace: &str, source: &str, references: usize) -> Vec<u8> {
    let snapshot = format!("{source}-0123456789");
    let mut body = review_of(namespace, &[]);
    let request = &mut body["request"];
    request["operation"] = "UPDATE".into();
    let object = &mut request["object"];
    object["metadata"]["labels"]["confrev.dev/carried"] = "true".into();
    object["metadata"]["annotations"]["confrev.dev/carried"] = format!("configmaps/{source},+").into();
    let sources = json!({"configmaps": {source: snapshot}}).to_string();
    object["spec"]["template"]["metadata"]["annotations"] = json!({"confrev.dev/sources": sources});
    request["oldObject"] = request["object"].clone();
    request["object"]["spec"]["template"]["spec"]["containers"] = referring(&snapshot, references);
    body.to_string().into_bytes()
}

/// An AdmissionReview of a new Deployment that takes 60 times its size once it is parsed, as long as its sources are read.
fn waiting(namespace: &str, sources: &[&str]) -> Vec<u8> {
    const VOLUMES: usize = 100_000;
    let mut body = review_of(namespace, &[]);
    let refers: Vec<_> = sources.iter().map(|name| json!({"configMapRef": {"name": name}})).collect();
    let pods = &mut body["request"]["object"]["spec"]["template"]["spec"];
    pods["containers"] = json!([{"envFrom": refers}]);
    pods["volumes"] = "dense".into();
    let volumes = format!("[{}null]", "{},".repeat(VOLUMES));
    body.to_string().replacen("\"dense\"", &volumes, 1).into_bytes()
}

/// Containers that refer to a ConfigMap so often.
fn referring(name: &str, references: usize) -> Value {
    json!([{"envFrom": vec![json!({"configMapRef": {"name": name}}); references]}])
}

/// An AdmissionReview of a new Deployment, in which each reference changes.
fn resolved(namespace: &str, source: &str, references: usize) -> Vec<u8> {
    let mut body = review_of(namespace, &[]);
    body["request"]["object"]["spec"]["template"]["spec"]["containers"] = referring(source, references);
    body.to_string().into_bytes()
}

/// JSON that takes a hundred times its size once it is parsed.
fn bomb(bytes: usize) -> String {
    let element = "{\"\":0},";
    format!("[{}0]", element.repeat(bytes / element.len()))
}

/// A schema that keeps the whole content for its failures.
fn schema() -> String {
    let required = |number| json!({"not": {"required": [format!("k{number}")]}});
    json!({"items": {"allOf": (0..400).map(required).collect::<Vec<_>>()}}).to_string()
}

/// The paths and bodies of hostile reviews.
fn attacks(namespace: &str, sources: &[&str]) -> Vec<(String, Vec<u8>)> {
    let several = (0..6).map(|key| (format!("{key}.json"), json!(bomb(MIB - 100_000))));
    let several: Value = several.collect::<serde_json::Map<_, _>>().into();
    let largest = forged(namespace, &json!({"a.json": bomb(MIB - 100)}));
    let dense = waiting(namespace, sources);
    let attacks = [
        ("configmaps", forged(namespace, &several)),
        ("configmaps", largest.clone()),
        ("configmaps", largest),
        ("workloads", review_of(namespace, sources).to_string().into_bytes()),
        ("workloads", dense_review(namespace, "volumes", "{},", MIB / 3)),
        ("workloads", dense_review(namespace, "containers", "{\"envFrom\":[{}]},", MIB / 3)),
        ("workloads", [b"{\"x\":\"".to_vec(), vec![b'x'; 7 * MIB - 8], b"\"}".to_vec()].concat()),
        ("marked-workloads", marked(namespace, "demo", FEW_REFERENCES)),
        ("workloads", resolved(namespace, "demo", MANY_REFERENCES)),
    ];
    let all = attacks.into_iter().chain(vec![("workloads", dense); WAITING]);
    all.map(|(name, body)| (path(name), body)).collect()
}

/// The path of a webhook, for reviews that may take long.
fn path(name: &str) -> String {
    format!("/mutate/{name}?timeout={PATIENCE}")
}

/// What the answers to one review said, and how many there were.
#[derive(Debug, Default)]
struct Answers {
    count: usize,
    said: BTreeMap<String, usize>,
}

/// Sends a review repeatedly, four at a time, and counts what the answers say.
async fn repeat(client: Stranger, path: &str, body: &[u8], answers: &Mutex<Answers>) {
    let again = async || {
        loop {
            let (status, answer) = client.ask_at(path, body).await;
            let texts = [
                "was ended after it used",
                "the API server stores",
                "was not run",
                "--max-read-bytes",
                "operations, and may hold",
                "JSONPatch",
            ];
            let said = texts.iter().find(|text| answer.contains(**text));
            let text = said.map_or_else(|| status.to_string(), ToString::to_string);
            let mut answers = answers.lock().unwrap();
            answers.count += 1;
            *answers.said.entry(text).or_default() += 1;
        }
    };
    join_all((0..4).map(|_| again())).await;
}

/// Runs clients on a thread of their own until the others are done: those would wait for the encryption of large bodies.
fn beside<T>(hostile: impl AsyncFnOnce() + Send, others: impl Future<Output = T>) -> T {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (others_run, others_ended) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        // Also dropped if the others panic.
        let _others_run = others_run;
        scope.spawn(move || {
            runtime().block_on(async {
                tokio::select! {
                    _ = others_ended => {}
                    () = hostile() => unreachable!("an attack never ends"),
                }
            });
        });
        runtime().block_on(others)
    })
}

/// Reads what the kernel shows of the processes of the container, until it is dropped.
async fn watch(container: &Container, confrev: u32, seen: &Mutex<Seen>) {
    loop {
        {
            let mut seen = seen.lock().unwrap();
            let children: Vec<_> = container.processes().into_iter().filter(|id| *id != confrev).collect();
            seen.most = seen.most.max(children.len());
            seen.memory = seen.memory.max(container.memory());
            for id in children {
                let read = |file: &str| fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
                let (score, limits) = (read("oom_score_adj"), read("limits"));
                let has = |name: &str, value: &str| {
                    let line = limits.lines().find_map(|line| line.strip_prefix(name));
                    line.is_some_and(|line| line.split_whitespace().next() == Some(value))
                };
                // One that has just begun has no limits yet, and no content.
                if has("Max cpu time", "1") {
                    seen.limited.insert(id);
                    if score.trim() != "1000" || !has("Max core file size", "0") {
                        seen.wrong.insert(format!("{score} {limits}"));
                    }
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reviews whose checks, objects, values and bodies are as large as possible, beside bodies, heads and requests that never end: each
/// from an address of its own. With version 2 of control groups, the first kill ends the whole container.
#[test]
fn all_hostile_clients_together_fit_into_the_container() {
    let binary = Path::new(env!("CARGO_BIN_EXE_confrev"));
    let container = match Container::new(budget::LIMIT, binary) {
        Ok(container) => container,
        Err(problem) => return eprintln!("skipped: no control group for memory: {problem}"),
    };
    // No other test is delayed.
    let shared = exclusive();
    let (mut site, world) = Site::start(
        "hostile-container",
        &shared.webhook_url(),
        container.launcher(),
        &[&format!("--request-timeout={PATIENCE}")],
    );
    let confrev = site.program.pid();
    let mut schemas = config_map("schemas", "");
    schemas["metadata"]["annotations"] = json!({"confrev.dev/schema-for": world.name()});
    schemas["data"] = json!({"large": schema()});
    world.apply(&schemas).ok();
    let escaped = escaped_configs(&world);
    let names: Vec<_> = escaped.iter().map(String::as_str).collect();
    let attacks = attacks(world.name(), &names);
    let answers: Vec<_> = attacks.iter().map(|_| Mutex::new(Answers::default())).collect();
    let seen = Mutex::new(Seen::default());
    let from = |number: usize| site.genuine.from(u8::try_from(3 + number).unwrap());
    let review = |n: usize| repeat(from(n), &attacks[n].0, &attacks[n].1, &answers[n]);
    let count = |n: usize, text: &str| answers[n].lock().unwrap().said.get(text).copied().unwrap_or_default();
    let until = async |what: &str, is_done: &dyn Fn() -> bool| {
        let served = async {
            loop {
                let (status, answer) = site.genuine.ask(&site.good).await;
                if status == 200 && answer.contains("JSONPatch") && is_done() {
                    return;
                }
            }
        };
        let done = tokio::time::timeout(8 * LIMIT, served).await;
        assert!(done.is_ok(), "{what}: the attacks had too little effect: {answers:?} {seen:?}");
        println!("{what}: {} MiB at most; {answers:?}", seen.lock().unwrap().memory);
    };
    let reviewed = |numbers: Range<usize>, what: &str, is_done: &dyn Fn() -> bool| {
        beside(async || drop(join_all(numbers.map(review)).await), async {
            tokio::select! {
                () = until(what, is_done) => {}
                () = watch(&container, confrev, &seen) => unreachable!("it never ends"),
            }
        });
    };
    // Beside others, most of its bodies of 6 MB get no turn in time.
    reviewed(0..1, "one stranger", &|| count(0, "the API server stores") > 0);
    // Strangers who let confrev check schemas: each turn is taken, and each check uses all of its memory.
    let ended = || count(1, "was ended after it used") + count(2, "was ended after it used");
    let checked = || ended() >= ENOUGH && seen.lock().unwrap().most == budget::CHECKS;
    reviewed(0..3, "forged reviews of sources", &checked);
    // The patch of the largest is larger than what one review may take.
    let patched = || count(8, "operations, and may hold") > 0 && count(7, "JSONPatch") > 0;
    reviewed(7..9, "many references", &patched);
    let waiting = attacks.len() - WAITING..attacks.len();
    let read = || waiting.clone().map(|number| count(number, "--max-read-bytes")).sum::<usize>() >= ENOUGH;
    reviewed(waiting.clone(), "parsed reviews that wait", &read);
    let before: Vec<_> = answers.iter().map(|answers| answers.lock().unwrap().count).collect();
    let answered = || {
        let mut counts = answers.iter().zip(&before).take(TOGETHER);
        counts.all(|(answers, before)| answers.lock().unwrap().count >= before + ENOUGH)
            && count(3, "--max-read-bytes") > 0
    };
    let pods = [20, 21, 22].map(|last| site.genuine.from(last));
    let all = async || {
        let reviews = join_all((0..TOGETHER).map(review));
        tokio::join!(reviews, half_bodies(&pods[0]), open_heads(&pods[1]), open_requests(&pods[2]));
    };
    beside(all, async {
        tokio::select! {
            () = until("all hostile clients", &answered) => {}
            () = watch(&container, confrev, &seen) => unreachable!("it never ends"),
        }
    });
    let seen = seen.into_inner().unwrap();
    println!(
        "version {} of control groups: {} MiB at most, of {} MiB; {} checks were seen, {} at once",
        container.version(),
        seen.memory,
        budget::LIMIT,
        seen.limited.len(),
        seen.most
    );
    assert_eq!(container.kills(), 0, "the kernel killed processes. The log:\n{}", site.program.log_tail());
    assert!(site.program.is_running() && site.program.pid() == confrev, "confrev ended");
    assert!(!seen.limited.is_empty() && seen.wrong.is_empty(), "{:?}", seen.wrong);
    assert!(seen.most <= budget::CHECKS, "{} checks at once", seen.most);
    site.program.stop();
}
