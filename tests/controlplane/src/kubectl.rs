//! Runs kubectl and its plugins.

use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

/// What says that a command failed because something was too slow: refusals of a review that confrev could not answer in time (its
/// own, that of the policy `confrev-unresolved`, and that of the API server if a webhook does not answer in time), and kubectl itself,
/// which reads the API server's schema for 32 s at most. On a busy machine, that happens to any write.
const TOO_SLOW: [&str; 5] = [
    "before the timeout of the webhook: try again",
    "too many reviews at once",
    "confrev does not answer",
    "context deadline exceeded",
    "unexpected error when reading response body. Please retry.",
];
/// How often a command runs that fails because of that.
const MAX_TRIES: usize = 4;

/// Whether a write failed because something was too slow: the message asks to try again.
pub fn is_too_slow(message: &str) -> bool {
    TOO_SLOW.iter().any(|text| message.contains(text))
}

/// A command that is about to run.
#[derive(Debug)]
#[must_use = "it runs with `run`"]
pub struct Kubectl {
    command: Command,
    stdin: Option<String>,
}

/// The result of a command.
#[derive(Debug, Clone)]
#[must_use = "a failure shows with `ok` only"]
pub struct Output {
    /// The command, for messages.
    pub command: String,
    /// The exit status.
    pub status: ExitStatus,
    /// The text on stdout.
    pub stdout: String,
    /// The text on stderr.
    pub stderr: String,
}

impl Kubectl {
    pub(crate) fn new(binary: &Path, kubeconfig: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary);
        command.args(arguments).env("KUBECONFIG", kubeconfig);
        Self { command, stdin: None }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: &str) -> Self {
        self.command.arg(argument);
        self
    }

    /// Sets its standard input, as for `apply -f -`; JSON is YAML too.
    pub fn stdin(mut self, text: impl fmt::Display) -> Self {
        self.stdin = Some(text.to_string());
        self
    }

    /// Runs it with another kubeconfig, as for another user.
    pub fn kubeconfig(mut self, path: &Path) -> Self {
        self.command.env("KUBECONFIG", path);
        self
    }

    /// Runs it to its end, whether it succeeds or fails. If something was too slow, the command runs again, as its message
    /// asks for.
    ///
    /// # Panics
    /// If the command cannot be started.
    pub fn run(mut self) -> Output {
        let mut output = self.run_once();
        for _ in 1..MAX_TRIES {
            if output.status.success() || !is_too_slow(&output.stderr) {
                break;
            }
            eprintln!("runs again, since something was too slow: {}", output.stderr.trim());
            output = self.run_once();
        }
        output
    }

    fn run_once(&mut self) -> Output {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        let command = words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
        let stdin = if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
        self.command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap_or_else(|e| panic!("cannot run {command}: {e}"));
        if let (Some(mut pipe), Some(text)) = (child.stdin.take(), self.stdin.clone()) {
            // On a thread, so that neither side waits for the other. It is no error if the command does not read its
            // input.
            thread::spawn(move || pipe.write_all(text.as_bytes()));
        }
        let output = child.wait_with_output().unwrap_or_else(|e| panic!("cannot wait for {command}: {e}"));
        Output {
            command,
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Output {
    /// The text on stdout.
    ///
    /// # Panics
    /// If the command failed, with its whole output.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "often only the success matters")]
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self}");
        self.stdout
    }

    /// The error message on stderr.
    ///
    /// # Panics
    /// If the command succeeded.
    #[track_caller]
    pub fn refused(self) -> String {
        assert!(!self.status.success(), "should have failed: {self}");
        self.stderr
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, status, stdout, stderr } = self;
        write!(f, "`{command}` ended with {status}\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }
}
