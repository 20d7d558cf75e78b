//! Runs all test suites of a workspace, several at a time: they wait more than they compute.
//!
//! A suite takes a cluster for its own. It installs confrev under names that a cluster has once (webhook configurations,
//! roles, the guard's policy, CRDs), stops and restarts it, and counts its requests in the audit log. So no two may run on
//! one control plane at the same time, whichever they are. There are lanes, each with a control plane, on which suites run
//! one after the other; and nothing has to be known of a suite but how long it takes.

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

/// How many run at a time, if not as many as this variable says. Two keep two processors busy; with three, control planes are so
/// slow at times that their own limits of time are reached.
const LANES: usize = 2;
const LANES_VARIABLE: &str = "CONFREV_LANES";
/// What takes long begins first, longest first, so that no lane is left alone with it at the end.
const LONG: [&str; 9] =
    ["cluster", "chart", "storms", "appliers", "kinds", "tls", "chaos", "model", "instructions"];

/// What is run by one command.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suite {
    name: String,
    /// The flags of `cargo test` that choose it.
    flags: Vec<String>,
}

/// What the lanes share.
#[derive(Debug, Default)]
struct Board {
    waiting: Mutex<VecDeque<Suite>>,
    /// By process group: the name and the output so far.
    running: Mutex<BTreeMap<i32, (String, PathBuf)>>,
    /// What has ended: how, in words, and whether well.
    ended: Mutex<Vec<(String, bool)>>,
}

/// Builds the tests that `program arguments...`, a `cargo test` command, would run, and runs them: one command for each
/// suite, as if it were typed alone under `controlplane run`. Each one's output is shown whole when it has ended. Returns
/// the exit code.
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

/// Builds all tests. Returns what cargo tells of them.
fn build(cargo: &mut Command) -> Result<Vec<Value>> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]).stdin(Stdio::null());
    without_this_package(cargo);
    let output = cargo.stderr(Stdio::inherit()).output().map_err(|e| format!("cannot run {cargo:?}: {e}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    output.status.success().then_some(messages).ok_or_else(|| "the tests do not build".to_owned())
}

/// A suite for each integration test, one for all unit tests, and one for those of the docs.
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
        suites.push(Suite { name: "unit tests".to_owned(), flags: units.into_iter().collect() });
    }
    suites.push(Suite { name: "tests of the docs".to_owned(), flags: vec!["--doc".to_owned()] });
    suites.sort_by_key(|suite| LONG.iter().position(|long| *long == suite.name).unwrap_or(LONG.len()));
    suites
}

/// Runs suites on a control plane of its own until none is left. Its control plane goes with it.
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

/// Runs one to its end.
fn run_suite(cargo: &mut Command, name: &str, log: &Path, board: &Board) -> Result<ExitStatus> {
    let problem = |e: io::Error| format!("cannot run {name}: {e}");
    let output = File::create(log).map_err(problem)?;
    cargo.stdin(Stdio::null()).stdout(output.try_clone().map_err(problem)?).stderr(output);
    // A signal is for this process, which shows what there is before it ends them.
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

/// Ends everything on a signal, and shows what ran: of a suite that hangs, one wants to know where.
fn stop_on_signals(board: Arc<Board>) -> Result<()> {
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(|e| format!("cannot handle signals: {e}"))?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Held to the end: nothing begins any more.
            let _waiting = locked(&board.waiting);
            let running = locked(&board.running);
            for (group, (name, log)) in &*running {
                let _ = Pid::from_raw(*group).map(|group| kill_process_group(group, Signal::KILL));
                show(&format!("interrupted: {name}"), log);
            }
            // The supervisors' pipes close.
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn show(line: &str, log: &Path) {
    let mut stdout = io::stdout().lock();
    let text = fs::read(log).unwrap_or_default();
    // Whoever reads this may be gone.
    let _ = writeln!(stdout, "controlplane: {line}");
    let _ = stdout.write_all(&text).and_then(|()| stdout.flush());
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
