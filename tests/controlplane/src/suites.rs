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
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Result;
use crate::binaries::Binaries;
use crate::cluster::ControlPlane;
use crate::process::die_with_parent;
use crate::state::{Facts, StateFolder};
use crate::supervisor::{inside, without_this_package};

/// The number of lanes, unless the variable sets another one. Two keep two processors busy; with three, control planes
/// are sometimes so slow that their own timeouts expire.
const LANES: usize = 2;
const LANES_VARIABLE: &str = "CONFREV_LANES";
/// The long suites, which start first, longest first, so that no lane runs one alone at the end.
const LONG: [&str; 9] =
    ["core", "chart", "storms", "appliers", "kinds", "tls", "chaos", "model", "instructions"];

/// The suites that need no control plane. They run while its binaries are built.
const WITHOUT: [&str; 8] =
    ["model", "instructions", "unit", "repository", "memory", "rules", "tests in src", "tests of the docs"];
/// The suites that need tools which a control plane does not need: helm, cert-manager, Argo CD. Those are built last.
const WITH_TOOLS: [&str; 2] = ["chart", "appliers"];

/// What a suite needs. Each level includes the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    Nothing,
    ControlPlane,
    Tools,
}

/// The tests that one command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suite {
    name: String,
    /// The flags of `cargo test` that select it.
    flags: Vec<String>,
}

impl Suite {
    fn needs(&self) -> Needs {
        let is_in = |list: &[&str]| list.contains(&&*self.name);
        match () {
            () if is_in(&WITHOUT) => Needs::Nothing,
            () if is_in(&WITH_TOOLS) => Needs::Tools,
            () => Needs::ControlPlane,
        }
    }
}

/// The end of a suite.
#[derive(Debug, Clone)]
struct Ended {
    name: String,
    has_passed: bool,
    seconds: u64,
    /// The command that runs the suite again.
    again: String,
    /// What its failed tests printed.
    failures: String,
    /// What the machine had left at its end, in words.
    machine: String,
}

impl Ended {
    fn line(&self) -> String {
        let word = if self.has_passed { "passed" } else { "FAILED" };
        format!("{word} in {:>4} s: {}", self.seconds, self.name)
    }
}

/// The state that the lanes share.
#[derive(Debug, Default)]
struct Board {
    waiting: Mutex<Waiting>,
    /// Notified when `waiting` changes.
    changed: Condvar,
    /// The name and the log of each running suite, by process group.
    running: Mutex<BTreeMap<i32, (String, PathBuf)>>,
    ended: Mutex<Vec<Ended>>,
}

/// The suites that have not started, and what has been built for them.
#[derive(Debug)]
struct Waiting {
    suites: VecDeque<Suite>,
    built: Result<Needs>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { suites: VecDeque::new(), built: Ok(Needs::Nothing) }
    }
}

impl Waiting {
    /// Takes the first suite that can start. `None` if none can start now.
    fn take(&mut self) -> Result<Option<Suite>> {
        let able = self.suites.iter().position(|suite| {
            suite.needs() == Needs::Nothing || self.built.as_ref().is_ok_and(|built| suite.needs() <= *built)
        });
        match able {
            Some(place) => Ok(self.suites.remove(place)),
            // Nothing else will be built.
            None if !self.suites.is_empty() => self.built.clone().map(|_| None),
            None => Ok(None),
        }
    }
}

/// Builds the tests of `program arguments...`, a `cargo test` command, and meanwhile the binaries of the control plane. Runs
/// the tests: one command for each suite, as under `controlplane run`. The output of a suite is printed as a whole when it
/// has ended. At the end, what failed tests printed again, and a line for each suite. Returns the exit code.
pub fn run(program: &OsString, arguments: &[OsString]) -> Result<u8> {
    let mut cargo = Command::new(program);
    cargo.args(arguments);
    let lanes = env::var(LANES_VARIABLE).map_or(Ok(LANES), |text| text.parse());
    let lanes = lanes.map_err(|e| format!("{LANES_VARIABLE}: {e}"))?.max(1);
    let board = Arc::new(Board::default());
    let binaries = board.clone();
    let building = thread::spawn(move || {
        let steps =
            [(Needs::ControlPlane, Binaries::control_plane as fn() -> _), (Needs::Tools, Binaries::all)];
        for (needs, step) in steps {
            let built = step();
            let is_last = built.is_err();
            locked(&binaries.waiting).built = built.map(|_| needs);
            binaries.changed.notify_all();
            if is_last {
                return;
            }
        }
    });
    let start = Instant::now();
    let suites = suites(&build(&mut cargo)?);
    let took = start.elapsed().as_secs();
    locked(&board.waiting).suites = suites.into();
    stop_on_signals(board.clone())?;
    let problems: Vec<String> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(|| lane(program, arguments, &board))).collect();
        lanes
            .into_iter()
            .filter_map(|lane| lane.join().unwrap_or_else(|_| Err("a lane panicked".into())).err())
            .collect()
    });
    let _ = building.join();
    eprintln!("controlplane: built the tests in {took} s");
    let ended = locked(&board.ended).clone();
    for suite in ended.iter().filter(|suite| !suite.failures.is_empty()) {
        eprintln!("controlplane: failures of {}:\n{}", suite.name, suite.failures);
    }
    for line in summary(&ended) {
        eprintln!("controlplane: {line}");
    }
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    Ok(u8::from(ended.iter().any(|suite| !suite.has_passed)))
}

/// A line for each suite, failed ones last, with the resources that the machine had left, and with the command that repeats it.
fn summary(ended: &[Ended]) -> Vec<String> {
    let (passed, failed): (Vec<_>, Vec<_>) = ended.iter().partition(|suite| suite.has_passed);
    let passed = passed.into_iter().map(Ended::line);
    let failed = failed
        .into_iter()
        .map(|suite| format!("{} ({}); again: {}", suite.line(), suite.machine, suite.again));
    passed.chain(failed).collect()
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

/// Runs suites until none is left, on a control plane of its own. The control plane stops with the lane.
fn lane(program: &OsString, arguments: &[OsString], board: &Board) -> Result<()> {
    let logs = StateFolder::create("confrev-suites")?;
    let mut control_plane = None;
    while let Some(suite) = next(board)? {
        let mut cargo = Command::new(program);
        cargo.args(arguments).args(&suite.flags);
        let words = [program].into_iter().chain(arguments).map(|word| word.to_string_lossy().into_owned());
        let again: Vec<_> = words.chain(suite.flags.iter().cloned()).collect();
        let log = logs.log(&format!("suite-{}", suite.name.replace(' ', "-")));
        let start = Instant::now();
        let has_passed = if suite.needs() == Needs::Nothing {
            without_this_package(&mut cargo);
            run_suite(&mut cargo, &suite.name, &log, board)?.success()
        } else {
            run_on_control_plane(&mut cargo, &suite.name, &log, board, &mut control_plane)?
        };
        let seconds = start.elapsed().as_secs();
        let failures = failures(&String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()));
        let again = again.join(" ");
        let suite = Ended { name: suite.name, has_passed, seconds, again, failures, machine: machine() };
        let mut ended = locked(&board.ended);
        show(&suite.line(), &log);
        ended.push(suite);
    }
    Ok(())
}

/// Runs a suite on the lane's control plane, or on a new one if there is none. If the control plane ends meanwhile, its tests say
/// nothing: that is reported, and the suite runs again, once, on a new one. Returns whether it passed.
fn run_on_control_plane(
    cargo: &mut Command,
    name: &str,
    log: &Path,
    board: &Board,
    running: &mut Option<ControlPlane>,
) -> Result<bool> {
    let mut attempt = || -> Result<(bool, bool)> {
        let control_plane = match &*running {
            Some(running) => running,
            None => running.insert(ControlPlane::start()?),
        };
        inside(cargo, &Facts::load(control_plane.state_dir())?)?;
        let has_passed = run_suite(cargo, name, log, board)?.success();
        let ended = control_plane.ended();
        if let Some(reason) = &ended {
            eprintln!("controlplane: the control plane of {name} ended ({reason}); {}", machine());
            *running = None;
        }
        Ok((has_passed, ended.is_some()))
    };
    match attempt()? {
        (false, true) => Ok(attempt()?.0),
        (has_passed, _) => Ok(has_passed),
    }
}

/// What the machine has left, in words. A full disk or memory fails tests with misleading errors.
fn machine() -> String {
    let free = |folder: &Path| {
        let mib = rustix::fs::statvfs(folder).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >> 20);
        mib.map_or_else(|e| e.to_string(), |mib| format!("{mib} MiB"))
    };
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory =
        memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap_or("unknown").trim();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = processes.filter(|entry| entry.file_name().to_str().is_some_and(is_process)).count();
    format!(
        "free: {} in {}, {} here, {memory} of memory; {processes} processes",
        free(&env::temp_dir()),
        env::temp_dir().display(),
        free(Path::new(".")),
    )
}

/// What the failed tests of a suite printed, from its output. Without backtraces and objects of namespaces, and no more
/// than a screen: the reason must not be lost between them.
fn failures(output: &str) -> String {
    const LINES: usize = 60;
    const LENGTH: usize = 400;
    let parts = output.split("\nfailures:\n").skip(1).filter(|part| part.contains("\n---- "));
    let mut is_detail = false;
    let lines = parts.flat_map(str::lines).filter(|line| {
        if *line == "stack backtrace:" || line.starts_with("namespace ") && line.ends_with(':') {
            is_detail = true;
        } else if !line.starts_with(' ') {
            is_detail = false;
        }
        !is_detail && !line.is_empty() && !line.starts_with("note: ")
    });
    let cut = lines.take(LINES).map(|line| line.chars().take(LENGTH).collect::<String>());
    cut.collect::<Vec<_>>().join("\n")
}

/// The next suite that can start, once there is one. `None` if all have started.
fn next(board: &Board) -> Result<Option<Suite>> {
    let mut waiting = locked(&board.waiting);
    loop {
        match waiting.take()? {
            None if !waiting.suites.is_empty() => {
                waiting = board.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            suite => return Ok(suite),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(name: &str) -> Suite {
        Suite { name: name.to_owned(), flags: vec!["--test".to_owned(), name.to_owned()] }
    }

    fn names(waiting: &mut Waiting) -> Vec<String> {
        std::iter::from_fn(|| waiting.take().unwrap()).map(|suite| suite.name).collect()
    }

    #[test]
    fn suites_start_when_what_they_need_is_built() {
        let suites = ["core", "chart", "unit", "model"].map(suite).into();
        let mut waiting = Waiting { suites, ..Waiting::default() };
        assert_eq!(names(&mut waiting), ["unit", "model"]);
        waiting.built = Ok(Needs::ControlPlane);
        assert_eq!(names(&mut waiting), ["core"]);
        waiting.built = Ok(Needs::Tools);
        assert_eq!(names(&mut waiting), ["chart"]);
    }

    /// Suites that need no binary still run.
    #[test]
    fn failed_build_ends_lanes_that_need_it() {
        let suites = ["core", "unit"].map(suite).into();
        let mut waiting = Waiting { suites, built: Err("no Go".to_owned()) };
        assert_eq!(waiting.take().unwrap().unwrap().name, "unit");
        assert_eq!(waiting.take().unwrap_err(), "no Go");
        waiting.suites.clear();
        assert_eq!(waiting.take(), Ok(None));
    }

    #[test]
    fn summary_ends_with_failed_suites_and_their_commands() {
        let ended = [("core", false, 70), ("unit", true, 5)].map(|(name, has_passed, seconds)| Ended {
            name: name.to_owned(),
            has_passed,
            seconds,
            again: format!("cargo test --test {name}"),
            failures: String::new(),
            machine: "no memory".to_owned(),
        });
        let expected =
            ["passed in    5 s: unit", "FAILED in   70 s: core (no memory); again: cargo test --test core"];
        assert_eq!(summary(&ended), expected);
    }

    #[test]
    fn failures_are_shown_without_details() {
        let output = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n\nthread 'a' panicked at a.rs:1:\nleft: 1\n  right: 2\n\
             stack backtrace:\n   0: begin\n             at a.rs\nnote: Some details are omitted\nnamespace n:\n  \
             configmaps demo\n\n\nfailures:\n    a\n\n\
             test result: FAILED. 0 passed\n";
        assert_eq!(
            failures(output),
            "---- a stdout ----\nthread 'a' panicked at a.rs:1:\nleft: 1\n  right: 2"
        );
        assert_eq!(failures("test a ... ok\n"), "");
    }
}
