//! The child process of a check. It has no environment, reads the schema and the content from its standard input, and is ended
//! by its limits.

use std::{
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use confrev_schema::{Failure, Job};

use crate::{annotations, resolve::SchemaReference};

/// The hidden command that runs a check.
pub const COMMAND: &str = "__check-schema";
/// The processor time of a check, in seconds.
const SECONDS: u64 = 1;
/// The longest time of a check, however busy the machine is. The webhook of sources has a timeout of 3 s.
const LONGEST: Duration = Duration::from_secs(2);
/// The memory of a check, in bytes.
pub(super) const MEMORY: u64 = 128 << 20;
/// The longest answer, in bytes.
const ANSWER: u64 = 64 << 10;

/// The program itself, even if its file was replaced since it started.
pub(super) fn own_program() -> PathBuf {
    if cfg!(target_os = "linux") {
        return "/proc/self/exe".into();
    }
    std::env::current_exe().unwrap_or_else(|_| "confrev".into())
}

/// Runs a check; `None` if it did not end within its limits.
pub(super) fn run(program: &Path, job: &Job) -> Option<Result<(), Failure>> {
    let input = serde_json::to_vec(job).ok()?;
    let mut child = Command::new(program)
        .arg(COMMAND)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .inspect_err(|error| tracing::error!(%error, "a check of a schema could not be started"))
        .ok()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (send, receive) = mpsc::channel();
    // Both end with the child.
    thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(&input)));
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.map(|stdout| stdout.take(ANSWER).read_to_end(&mut text));
        let _ = send.send(text);
    });
    let text = receive.recv_timeout(LONGEST);
    let _ = child.kill();
    let _ = child.wait();
    serde_json::from_slice(&text.ok()?).ok()
}

/// What is said of a check that did not end.
pub(super) fn cut_off(reference: &SchemaReference) -> String {
    format!(
        "the check against the schema {reference} (annotation {}) was ended after {SECONDS} s or {} MiB: simplify the schema",
        annotations::SCHEMA,
        MEMORY >> 20
    )
}

/// The child's part: checks what its standard input says, and prints the result.
pub fn answer() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let limit = |amount| Rlimit { current: Some(amount), maximum: Some(amount) };
        setrlimit(Resource::Cpu, limit(SECONDS))?;
        setrlimit(Resource::As, limit(MEMORY))?;
    }
    let mut input = Vec::new();
    std::io::stdin().lock().read_to_end(&mut input)?;
    let job: Job = serde_json::from_slice(&input)?;
    let result = serde_json::to_vec(&job.run())?;
    std::io::stdout().lock().write_all(&result)
}
