//! The supervisor: owns a control plane while a command runs, or while its standard input is open.

use std::ffi::OsString;
use std::io::BufRead as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, io};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Result;
use crate::binaries::Binaries;
use crate::launch::Launch;
use crate::process::die_with_parent;
use crate::site::Site;
use crate::state::{Facts, STATE_VARIABLE};

/// How often it checks whether a component has ended.
const CHECK: Duration = Duration::from_millis(500);
/// How long a command may take to end after a SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// An event that the supervisor waits for.
#[derive(Debug)]
enum Event {
    /// Standard input was closed: the process that started the supervisor has ended.
    Orphaned,
    Signal(i32),
    /// A line of standard input.
    Order(String),
    Ended(io::Result<ExitStatus>),
}

/// Runs a command against a new control plane and returns its exit code. Call it from the main thread.
pub fn run(program: &OsString, arguments: &[OsString]) -> Result<u8> {
    run_at(Site::Loopback, &Binaries::control_plane()?, program, arguments)
}

/// The same with a control plane of these binaries at a site.
pub(crate) fn run_at(
    site: Site,
    binaries: &Binaries,
    program: &OsString,
    arguments: &[OsString],
) -> Result<u8> {
    let (sender, events) = channel();
    forward_signals(sender.clone())?;
    let mut launch = start(site, binaries, &[], &events)?;
    let child = spawn(program, arguments, &launch)?;
    let code = attend(child, sender, &events, &mut launch);
    launch.stop();
    code
}

/// Starts a control plane with these additional flags for its API server, and prints its facts as one line of JSON on
/// stdout. Stops it when stdin is closed or on a signal. Each line of stdin is an order for one component, and is
/// answered by one line: empty, or why the order failed. Call it from the main thread.
pub fn serve(api_server: &[OsString]) -> Result<u8> {
    let binaries = Binaries::control_plane()?;
    let (sender, events) = channel();
    forward_signals(sender.clone())?;
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            sender.send(Event::Order(line))?;
        }
        sender.send(Event::Orphaned)
    });
    let mut launch = start(Site::Loopback, &binaries, api_server, &events)?;
    println!("{}", launch.facts().to_json());
    let mut reported = false;
    loop {
        match events.recv_timeout(CHECK) {
            // On this thread, since components die with the thread that spawned them.
            Ok(Event::Order(line)) => println!("{}", launch.obey(&line).err().unwrap_or_default()),
            Err(RecvTimeoutError::Timeout) => report(&mut launch, &mut reported),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    launch.stop();
    Ok(0)
}

fn start(
    site: Site,
    binaries: &Binaries,
    api_server: &[OsString],
    events: &Receiver<Event>,
) -> Result<Launch> {
    let start = Instant::now();
    // At this point, the channel holds only reasons to stop.
    let launch = Launch::start(site, binaries, api_server, &|| events.try_recv().is_ok())?;
    eprintln!("controlplane: ready in {:.1} s", start.elapsed().as_secs_f32());
    Ok(launch)
}

fn forward_signals(sender: Sender<Event>) -> Result<()> {
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(|e| format!("cannot handle signals: {e}"))?;
    thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(Event::Signal(signal))));
    Ok(())
}

fn spawn(program: &OsString, arguments: &[OsString], launch: &Launch) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments);
    inside(&mut command, launch.facts())?;
    die_with_parent(&mut command).spawn().map_err(|e| format!("cannot run {}: {e}", program.display()))
}

/// Sets the environment of a command that runs against a control plane.
pub(crate) fn inside(command: &mut Command, facts: &Facts) -> Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([facts.binaries.clone()].into_iter().chain(env::split_paths(&path)))
        .map_err(|e| format!("the folder of binaries cannot be in PATH: {e}"))?;
    without_this_package(command.env("PATH", path));
    command.env("KUBECONFIG", facts.kubeconfig()).env(STATE_VARIABLE, &facts.state);
    Ok(())
}

/// Removes the variables that `cargo run` sets for this package: build scripts that read them would run again each
/// time.
pub(crate) fn without_this_package(command: &mut Command) {
    let of_this_package = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for (name, _) in env::vars_os().filter(|(name, _)| of_this_package(name)) {
        command.env_remove(name);
    }
}

/// Waits for the command to end, and passes SIGTERM on to it.
fn attend(
    mut child: Child,
    sender: Sender<Event>,
    events: &Receiver<Event>,
    launch: &mut Launch,
) -> Result<u8> {
    let process = Pid::from_child(&child);
    thread::spawn(move || sender.send(Event::Ended(child.wait())));
    let mut reported = false;
    let mut deadline: Option<Instant> = None;
    let mut interrupts = 0;
    loop {
        match events.recv_timeout(CHECK) {
            Ok(Event::Ended(status)) => return exit_code(&status),
            // The terminal sends SIGINT to the command too, which may want to clean up. A second SIGINT means stop now.
            Ok(Event::Signal(SIGINT)) if interrupts == 0 => interrupts += 1,
            Ok(Event::Signal(_) | Event::Orphaned) => {
                let _ = kill_process(process, Signal::TERM);
                deadline.get_or_insert_with(|| Instant::now() + GRACE);
            }
            Ok(Event::Order(_)) | Err(_) => report(launch, &mut reported),
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

pub(crate) fn exit_code(status: &io::Result<ExitStatus>) -> Result<u8> {
    let status = status.as_ref().map_err(|e| format!("cannot wait for the command: {e}"))?;
    // The code that a shell gives for a command that was ended by a signal.
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(1))
}

/// Reports once that a component has ended: clients of it will fail with misleading errors.
fn report(launch: &mut Launch, reported: &mut bool) {
    if !*reported && let Some(failure) = launch.failure() {
        eprintln!("controlplane: {failure}");
        *reported = true;
    }
}
