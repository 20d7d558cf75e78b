//! Argo Rollouts' own end-to-end tests. Each test runs in a process and a namespace of its own, several at a time: they wait
//! more than they compute.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::thread;

use confrev_controlplane::ControlPlane;

use crate::in_force::{Stand, chosen};
use crate::results::{Results, Verdict, compare};

/// How many tests run at a time.
const LANES: usize = 6;
/// The suites that need no service mesh, no ingress controller and no cloud.
const SUITES: [&str; 6] =
    ["AnalysisSuite", "BlueGreenSuite", "CanarySuite", "ExperimentSuite", "FunctionalSuite", "RollbackSuite"];

/// Tests that fail with and without confrev, and why.
const CANNOT_PASS: [(&str, &str); 0] = [];

#[test]
#[ignore = "it needs real nodes: make compatibility"]
fn argo_rollouts_tests_pass_with_confrev() {
    let stand = Stand::take();
    let mut tests = tests(&stand.suites.join("argo-e2e"));
    assert!(tests.len() > 60, "{tests:?}");
    let focus = chosen();
    tests.retain(|(suite, test)| format!("{suite}/{test}").contains(&focus));
    let [without, with] = stand.twice(|stand, _| run(&stand.suites, &tests));
    compare("Argo Rollouts v1.10.1", &without, &with, &CANNOT_PASS, if focus.is_empty() { 60 } else { 1 });
}

/// The methods of the suites, from their sources.
fn tests(sources: &Path) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(sources).expect("the sources can be listed") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).unwrap_or_default();
        for line in text.lines().filter_map(|line| line.strip_prefix("func (s *")) {
            let Some((suite, method)) = line.split_once(") ") else { continue };
            let method = method.split('(').next().unwrap_or_default();
            let suite = SUITES.into_iter().find(|known| *known == suite);
            if let Some(suite) = suite.filter(|_| method.starts_with("Test")) {
                found.push((suite, method.to_owned()));
            }
        }
    }
    found.sort();
    found
}

fn run(suites: &Path, tests: &[(&'static str, String)]) -> Results {
    let waiting = Mutex::new(tests.iter().collect::<VecDeque<_>>());
    let results = Mutex::new(Results::default());
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap().pop_front();
                    let Some((suite, test)) = next else { return };
                    // As in Argo's own jobs, a test that fails runs again.
                    let mut verdict = run_one(suites, suite, test);
                    if matches!(verdict, Verdict::Failed(_)) {
                        verdict = run_one(suites, suite, test);
                    }
                    eprintln!("{suite}/{test}: {}", verdict.word());
                    results.lock().unwrap().0.insert(((*suite).to_owned(), test.clone()), verdict);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

fn run_one(suites: &Path, suite: &str, test: &str) -> Verdict {
    let cluster = ControlPlane::shared();
    let namespace = cluster.namespace("argo");
    let kubeconfig = cluster.state_dir().join(format!("{}.kubeconfig", namespace.name()));
    fs::copy(cluster.kubeconfig(), &kubeconfig).expect("the kubeconfig can be copied");
    let context = ["config", "set-context", "--current", "--namespace", namespace.name()];
    cluster.kubectl(&context).kubeconfig(&kubeconfig).run().ok();
    let mut command = Command::new(suites.join("argo-e2e.test"));
    command.args(["-test.v", "-test.timeout=15m", "-test.run", &format!("^Test{suite}$")]);
    command.args(["-testify.m", &format!("^{test}$")]);
    // The controller here has no instance id.
    command.env("KUBECONFIG", &kubeconfig).env("E2E_INSTANCE_ID", "").env("E2E_WAIT_TIMEOUT", "120");
    command.current_dir(suites.join("argo-e2e"));
    let output = command.output().expect("Argo's tests can be run");
    verdict(&output, test)
}

fn verdict(output: &Output, test: &str) -> Verdict {
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        |word: &str| text.lines().any(|line| line.contains(&format!("--- {word}: ")) && line.contains(test));
    if output.status.success() && line("PASS") {
        return Verdict::Passed;
    }
    if output.status.success() && (line("SKIP") || text.contains("--- SKIP: ")) {
        return Verdict::Skipped;
    }
    let lines: Vec<_> = text.lines().collect();
    Verdict::Failed(lines[lines.len().saturating_sub(60)..].join("\n"))
}
