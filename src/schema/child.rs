//! The child process of a check. It has no environment, reads the schema and the content from its standard input, and is ended
//! by its limits.

use std::{
    io::{BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use confrev_schema::{Failure, Job};

use super::limits::{LONGEST, MEMORY, SECONDS, STACK};
use super::unfinished::Unfinished;

/// The hidden command that runs a check.
pub const COMMAND: &str = "__check-schema";
/// The longest answer, in bytes.
const ANSWER: u64 = 64 << 10;
/// The score by which the kernel chooses the process to kill if memory is short: the highest.
#[cfg(target_os = "linux")]
const FIRST_TO_BE_KILLED: &str = "1000";

/// The program itself, even if its file was replaced since it started.
pub(super) fn own_program() -> PathBuf {
    if cfg!(target_os = "linux") {
        return "/proc/self/exe".into();
    }
    std::env::current_exe().unwrap_or_else(|_| "confrev".into())
}

/// Runs a check for `longest` at most; otherwise why it has no result.
pub(super) fn run(program: &Path, job: Job, longest: Duration) -> Result<Result<(), Failure>, Unfinished> {
    let longest = longest.min(LONGEST);
    let mut child = Command::new(program)
        .arg(COMMAND)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Unfinished::NotStarted)?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (send, receive) = mpsc::channel();
    // Both end with the child. The job is written as it is serialized: no further copy of it is made.
    thread::spawn(move || stdin.map(|stdin| serde_json::to_writer(BufWriter::new(stdin), &job)));
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.map(|stdout| stdout.take(ANSWER).read_to_end(&mut text));
        let _ = send.send(text);
    });
    let text = receive.recv_timeout(longest);
    if text.is_err() {
        let _ = child.kill();
    }
    // A child that has closed its output is about to end: to kill it would hide how.
    let ended = child.wait().map_err(Unfinished::NotStarted)?;
    let text = text.map_err(|_| Unfinished::Late(longest))?;
    serde_json::from_slice(&text).map_err(|_| cause(ended))
}

/// Why a child ended without an answer.
#[cfg(unix)]
fn cause(ended: ExitStatus) -> Unfinished {
    use std::os::unix::process::ExitStatusExt as _;

    use rustix::process::Signal;

    let signal = ended.signal().and_then(Signal::from_named_raw);
    match signal {
        Some(Signal::XCPU) => Unfinished::Processor,
        // An allocation that fails, and a stack that is full.
        Some(Signal::ABORT | Signal::SEGV) => Unfinished::Memory,
        Some(Signal::KILL) => Unfinished::Killed,
        _ => Unfinished::Defect(ended),
    }
}

/// Why a child ended without an answer.
#[cfg(not(unix))]
fn cause(ended: ExitStatus) -> Unfinished {
    Unfinished::Defect(ended)
}

/// Limits the child, before it reads any content. It writes no core, which could hold content, and no other process of the same
/// user can trace it.
#[cfg(unix)]
fn limit() -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};

    // First, since a process that cannot be traced may not write this file. The budget keeps the kernel from killing anything: if
    // it has to, the content of others must survive.
    #[cfg(target_os = "linux")]
    let _ = std::fs::write("/proc/self/oom_score_adj", FIRST_TO_BE_KILLED);
    let limit = |current, maximum| Rlimit { current: Some(current), maximum: Some(maximum) };
    setrlimit(Resource::Core, limit(0, 0))?;
    // The first limit ends the process with a signal of its own.
    setrlimit(Resource::Cpu, limit(SECONDS, SECONDS + 1))?;
    // Memory that is allocated. The address space would also count the code, which all processes share.
    setrlimit(Resource::Data, limit(MEMORY, MEMORY))?;
    setrlimit(Resource::Stack, limit(STACK, STACK))?;
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// The child's part: checks what its standard input says, and prints the result.
pub fn answer() -> std::io::Result<()> {
    #[cfg(unix)]
    limit()?;
    let job: Job = {
        let mut input = Vec::new();
        std::io::stdin().lock().read_to_end(&mut input)?;
        serde_json::from_slice(&input)?
    };
    let result = serde_json::to_vec(&job.run())?;
    std::io::stdout().lock().write_all(&result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn signal_says_which_limit_ended_child() {
        use std::os::unix::process::ExitStatusExt as _;

        use rustix::process::Signal;

        let cause = |status| cause(ExitStatus::from_raw(status)).to_string();
        for (signal, expected) in [
            (Signal::XCPU, "was ended after 1 s of processor time"),
            (Signal::ABORT, "MiB of memory"),
            (Signal::SEGV, "MiB of memory"),
            (Signal::KILL, "was killed"),
            (Signal::TERM, "a defect of confrev"),
        ] {
            let text = cause(signal.as_raw());
            assert!(text.contains(expected), "{signal:?}: {text}");
        }
        assert!(cause(1 << 8).contains("a defect of confrev"));
    }
}
