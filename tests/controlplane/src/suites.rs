//! Runs all test suites of a workspace, several at a time: they wait more than they compute.
//!
//! A suite needs a cluster of its own. It installs confrev under names that are unique in a cluster (webhook
//! configurations, roles, the guard's policy, CRDs), stops and restarts it, and counts its requests in the audit log.
//! So no two suites may run on one control plane at the same time. There are several lanes, each with a control plane,
//! on which suites run one after another. All that has to be known of a suite is how long it takes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Result;
use crate::cluster::ControlPlane;
use crate::process::die_with_parent;
use crate::state::Facts;
use crate::supervisor::{inside, without_this_package};

/// The number of lanes, unless the variable sets another one. Two keep two processors busy; with three, control planes
/// are sometimes so slow that their own timeouts expire.
const LANES: usize = 2;
const LANES_VARIABLE: &str = "CONFREV_LANES";
/// The long suites, which start first, longest first, so that no lane runs one alone at the end.
const LONG: [&str; 9] =
    ["core", "chart", "storms", "appliers", "kinds", "tls", "chaos", "model", "instructions"];

/// The tests that one command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suite {
    name: String,
    /// The flags of `cargo test` that select it.
    flags: Vec<String>,
}

/// The state that the lanes share.
#[derive(Debug, Default)]
struct Board {
    waiting: Mutex<VecDeque<Suite>>,
    /// The name and the log of each running suite, by process group.
    running: Mutex<BTreeMap<i32, (String, PathBuf)>>,
    /// The result of each finished suite, in words, and whether it passed.
    ended: Mutex<Vec<(String, bool)>>,
}

/// Builds the tests of `program arguments...`, a `cargo test` command, and runs them: one command for each suite, as
/// under `controlplane run`. The output of a suite is printed as a whole when it has ended. Returns the exit code.
pub fn run(program: &OsString, arguments: &[OsString]) -> Result<u8> {
    let mut cargo = Command::new(program);
    cargo.args(arguments);
    let lanes = env::var(LANES_VARIABLE).map_or(Ok(LANES), |text| text.parse());
    let lanes = lanes.map_err(|e| format!("{LANES_VARIABLE}: {e}"))?.max(1);
    let suites = suites(&build(&mut cargo)?);
    let board = Arc::new(Board { waiting: Mutex::new(suites.into()), ..Board::default() });
    stop_on_signals(board.clone())?;
    let problems: Vec<String> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(|| lane(program, arguments, &board))).collect();
        lanes
            .into_iter()
            .filter_map(|lane| lane.join().unwrap_or_else(|_| Err("a lane panicked".into())).err())
            .collect()
    });
    let ended = locked(&board.ended);
    for (line, _) in &*ended {
        eprintln!("controlplane: {line}");
    }
    if let Some(problem) = problems.into_iter().next() {
        return Err(problem);
    }
    Ok(u8::from(ended.iter().any(|(_, well)| !well)))
}

/// Builds all tests. Returns cargo's messages about them.
fn build(cargo: &mut Command) -> Result<Vec<Value>> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]).stdin(Stdio::null());
    without_this_package(cargo);
    let output = cargo.stderr(Stdio::inherit()).output().map_err(|e| format!("cannot run {cargo:?}: {e}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    output.status.success().then_some(messages).ok_or_else(|| "the tests do not build".to_owned())
}

/// A suite for each integration test, one for all tests in `src`, and one for the tests in the docs.
fn suites(messages: &[Value]) -> Vec<Suite> {
    let is_test = |message: &&Value| message["profile"]["test"] == true && !message["executable"].is_null();
    let mut units = BTreeSet::new();
    let mut named = BTreeSet::new();
    for target in messages.iter().filter(is_test).map(|message| &message["target"]) {
        let name = target["name"].as_str().unwrap_or_default().to_owned();
        match target["kind"][0].as_str().unwrap_or_default() {
            kind @ ("test" | "bench" | "example") => drop(named.insert((name, format!("--{kind}")))),
            "bin" => drop(units.insert("--bins".to_owned())),
            _ => drop(units.insert("--lib".to_owned())),
        }
    }
    let mut suites: Vec<_> =
        named.into_iter().map(|(name, flag)| Suite { flags: vec![flag, name.clone()], name }).collect();
    if !units.is_empty() {
        suites.push(Suite { name: "tests in src".to_owned(), flags: units.into_iter().collect() });
    }
    suites.push(Suite { name: "tests of the docs".to_owned(), flags: vec!["--doc".to_owned()] });
    suites.sort_by_key(|suite| LONG.iter().position(|long| *long == suite.name).unwrap_or(LONG.len()));
    suites
}

/// Runs suites on a control plane of its own until none is left. The control plane stops with the lane.
fn lane(program: &OsString, arguments: &[OsString], board: &Board) -> Result<()> {
    let mut control_plane = None;
    while let Some(suite) = next(board) {
        let control_plane = match &control_plane {
            Some(running) => running,
            None => control_plane.insert(ControlPlane::start()?),
        };
        let mut cargo = Command::new(program);
        cargo.args(arguments).args(&suite.flags);
        inside(&mut cargo, &Facts::load(control_plane.state_dir())?)?;
        let log = control_plane.state_dir().join(format!("suite-{}.log", suite.name.replace(' ', "-")));
        let start = Instant::now();
        let status = run_suite(&mut cargo, &suite.name, &log, board)?;
        let word = if status.success() { "passed" } else { "FAILED" };
        let line = format!("{word} in {:>4} s: {}", start.elapsed().as_secs(), suite.name);
        let mut ended = locked(&board.ended);
        show(&line, &log);
        ended.push((line, status.success()));
    }
    Ok(())
}

fn next(board: &Board) -> Option<Suite> {
    locked(&board.waiting).pop_front()
}

/// Runs a suite to its end.
fn run_suite(cargo: &mut Command, name: &str, log: &Path, board: &Board) -> Result<ExitStatus> {
    let problem = |e: io::Error| format!("cannot run {name}: {e}");
    let output = File::create(log).map_err(problem)?;
    cargo.stdin(Stdio::null()).stdout(output.try_clone().map_err(problem)?).stderr(output);
    // A signal goes to this process, which prints the suites' output before it ends them.
    cargo.process_group(0);
    let mut child = {
        let mut running = locked(&board.running);
        let child = die_with_parent(cargo).spawn().map_err(problem)?;
        running.insert(Pid::from_child(&child).as_raw_nonzero().get(), (name.to_owned(), log.to_owned()));
        child
    };
    eprintln!("controlplane: begun: {name}");
    let group = Pid::from_child(&child).as_raw_nonzero().get();
    let status = child.wait().map_err(problem);
    locked(&board.running).remove(&group);
    status
}

/// Ends everything on a signal, and prints the output of running suites: it shows where a suite hangs.
fn stop_on_signals(board: Arc<Board>) -> Result<()> {
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(|e| format!("cannot handle signals: {e}"))?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Held to the end, so that no suite starts.
            let _waiting = locked(&board.waiting);
            let running = locked(&board.running);
            for (group, (name, log)) in &*running {
                let _ = Pid::from_raw(*group).map(|group| kill_process_group(group, Signal::KILL));
                show(&format!("interrupted: {name}"), log);
            }
            // This closes the pipes of the supervisors.
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn show(line: &str, log: &Path) {
    let mut stdout = io::stdout().lock();
    let text = fs::read(log).unwrap_or_default();
    // The reader of this output may have closed the pipe.
    let _ = writeln!(stdout, "controlplane: {line}");
    let _ = stdout.write_all(&text).and_then(|()| stdout.flush());
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
