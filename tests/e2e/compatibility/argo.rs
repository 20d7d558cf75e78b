//! Argo Rollouts' own end-to-end tests. Each test runs in a process and a namespace of its own, several at a time: they wait
//! more than they compute.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::thread;

use confrev_controlplane::{ControlPlane, Namespace};

use crate::argo_controller::{self, Controller};
use crate::in_force::{Stand, chosen};
use crate::results::{Results, Verdict, compare};

/// How many tests run at a time.
const LANES: usize = 6;

/// Tests that fail with and without confrev, and why.
const CANNOT_PASS: [(&str, &str); 6] = [
    ("TestAPISIXCanarySetHeaderStep", "its Rollout stays at its first step, which has three actions at once"),
    ("TestALBCanaryUpdateMultiIngress", "its Rollout names a Service that its manifest does not have"),
    ("TestAnalysisWithArgs", INTERNET),
    ("TestAnalysisWithSecret", INTERNET),
    ("TestCanaryInconclusiveBackgroundAnalysis", INTERNET),
    ("TestMultipleAnalysis", INTERNET),
];
const INTERNET: &str = "it measures a site of the internet";

/// Tests that expect containers to start within five seconds, or look at pods in the seconds of their end. They run alone.
const HURRIED: [&str; 3] = [
    "TestBlueGreenPromoteFull",
    "TestRolloutPauseDurationGreaterThanProgressDeadlineSeconds",
    "TestRolloutRestart",
];
/// How often a test may run. Argo's own jobs run failed tests again, too.
const TRIES: usize = 3;

/// The test whose manifest names its namespace, and that namespace.
const NAMED_NAMESPACE: (&str, &str) = ("TestAPISIXCanarySetHeaderStep", "default");

/// A test of one of the suites.
#[derive(Debug)]
struct Test {
    suite: String,
    /// The Go function that runs the suite.
    function: String,
    method: String,
}

#[test]
#[ignore = "it needs real nodes: make compatibility"]
fn argo_rollouts_tests_pass_with_confrev() {
    let stand = Stand::take();
    let mut tests = tests(&stand.suites.join("argo-e2e"));
    assert!(tests.len() > 110, "{tests:?}");
    let focus = chosen();
    let is_chosen = |name: &str| focus.is_empty() || focus.split_whitespace().any(|part| name.contains(part));
    tests.retain(|test| is_chosen(&format!("{}/{}", test.suite, test.method)));
    let _controller = Controller::start(&stand.suites);
    let [without, with] = stand.twice(|stand, with| {
        opt_in_named_namespace(with);
        run(&stand.suites, &tests)
    });
    opt_in_named_namespace(false);
    compare("Argo Rollouts v1.10.1", &without, &with, &CANNOT_PASS, if focus.is_empty() { 110 } else { 1 });
    for results in [without, with] {
        // A suite skips its tests if it finds no service mesh, no plugin and so on: they are all set up here.
        let skipped = results.0.iter().filter(|(_, verdict)| **verdict == Verdict::Skipped);
        assert_eq!(skipped.map(|(name, _)| name).collect::<Vec<_>>(), Vec::<&(String, String)>::new());
    }
}

fn opt_in_named_namespace(with: bool) {
    let label = if with { "confrev.dev/enabled=true" } else { "confrev.dev/enabled-" };
    ControlPlane::shared().kubectl(&["label", "namespace", NAMED_NAMESPACE.1, label]).run().ok();
}

/// The methods of all suites, from their sources.
fn tests(sources: &Path) -> Vec<Test> {
    let (mut functions, mut methods) = (BTreeMap::new(), Vec::new());
    for entry in fs::read_dir(sources).expect("the sources can be listed") {
        let text = fs::read_to_string(entry.expect("an entry").path()).unwrap_or_default();
        let mut function = "";
        for line in text.lines() {
            if let Some((suite, method)) =
                line.strip_prefix("func (s *").and_then(|line| line.split_once(") "))
            {
                let method = method.split('(').next().unwrap_or_default();
                if method.starts_with("Test") {
                    methods.push((suite.to_owned(), method.to_owned()));
                }
            } else if let Some(name) = line.strip_prefix("func ") {
                function = name.split('(').next().unwrap_or_default();
            } else if let Some(suite) = line.trim().strip_prefix("suite.Run(t, new(") {
                functions.insert(suite.trim_end_matches(')').to_owned(), function.to_owned());
            }
        }
    }
    methods.sort();
    let function =
        |suite: &String| functions.get(suite).unwrap_or_else(|| panic!("nothing runs {suite}")).clone();
    methods.into_iter().map(|(suite, method)| Test { function: function(&suite), suite, method }).collect()
}

fn run(suites: &Path, tests: &[Test]) -> Results {
    let (hurried, others) = tests.iter().partition(|test| HURRIED.contains(&test.method.as_str()));
    let mut results = run_some(suites, others, LANES);
    results.0.extend(run_some(suites, hurried, 1).0);
    results
}

fn run_some(suites: &Path, tests: VecDeque<&Test>, lanes: usize) -> Results {
    let waiting = Mutex::new(tests);
    let results = Mutex::new(Results::default());
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap().pop_front();
                    let Some(test) = next else { return };
                    let mut verdict = run_one(suites, test);
                    for _ in 1..TRIES {
                        if matches!(verdict, Verdict::Failed(_)) && !is_known(&test.method) {
                            verdict = run_one(suites, test);
                        }
                    }
                    eprintln!("{}/{}: {}", test.suite, test.method, verdict.word());
                    results.lock().unwrap().0.insert((test.suite.clone(), test.method.clone()), verdict);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

fn is_known(method: &str) -> bool {
    CANNOT_PASS.iter().any(|(known, _)| *known == method)
}

fn run_one(suites: &Path, test: &Test) -> Verdict {
    let cluster = ControlPlane::shared();
    let new = (test.method != NAMED_NAMESPACE.0).then(|| cluster.namespace("argo"));
    let namespace = new.as_ref().map_or(NAMED_NAMESPACE.1, Namespace::name);
    let kubeconfig = cluster.state_dir().join(format!("{namespace}.kubeconfig"));
    fs::copy(cluster.kubeconfig(), &kubeconfig).expect("the kubeconfig can be copied");
    if test.suite == "StepPluginSuite" {
        // The tests look for the controller's configuration in their own namespace.
        cluster
            .kubectl(&["apply", "--filename", "-"])
            .stdin(argo_controller::config(suites, namespace))
            .run()
            .ok();
    }
    let context = ["config", "set-context", "--current", "--namespace", namespace];
    cluster.kubectl(&context).kubeconfig(&kubeconfig).run().ok();
    let mut command = Command::new(suites.join("argo-e2e.test"));
    command.args(["-test.v", "-test.timeout=15m", "-test.run", &format!("^{}$", test.function)]);
    command.args(["-testify.m", &format!("^{}$", test.method)]);
    command.env("KUBECONFIG", &kubeconfig).env("E2E_WAIT_TIMEOUT", "120");
    // Without it, tests of load balancers are skipped. They need none: the controller only writes annotations of an Ingress.
    command.env("E2E_ALB_INGESS_ANNOTATIONS", "{}");
    command.current_dir(suites.join("argo-e2e"));
    let output = command.output().expect("Argo's tests can be run");
    verdict(&output, &test.method)
}

fn verdict(output: &Output, test: &str) -> Verdict {
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        |word: &str| text.lines().any(|line| line.contains(&format!("--- {word}: ")) && line.contains(test));
    if output.status.success() && line("PASS") {
        return Verdict::Passed;
    }
    if output.status.success() && text.contains("--- SKIP: ") {
        return Verdict::Skipped;
    }
    let lines: Vec<_> = text.lines().collect();
    Verdict::Failed(lines[lines.len().saturating_sub(60)..].join("\n"))
}
