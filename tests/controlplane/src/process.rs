//! Child processes that never outlive the supervisor.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::Result;

/// Raises the limit of open descriptors of this process, and of its later children, to the maximum. A shell's default
/// is low.
///
/// # Panics
/// If the system refuses.
pub fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .expect("the limit may be raised that far");
}

/// One component and its log. Killed and reaped on drop.
#[derive(Debug)]
pub(crate) struct Component {
    name: &'static str,
    command: Command,
    child: Child,
    log: PathBuf,
    /// Whether it was killed by an order, and not restarted yet.
    killed: bool,
    /// How often it was restarted after it ended by itself.
    revived: u32,
}

/// Errors with which components end by themselves, and after which a kubelet would restart them. Their whole state is in the API server.
/// kwok 0.8 sometimes ends at its start, from a race over its own record of its stages. The scheduler ends when its cache and a watch
/// disagree, as after a kill of the API server (Kubernetes, `pkg/scheduler/backend/cache/cache.go`).
const PASSING: [(&str, &str); 2] =
    [("kwok", "fatal error: concurrent map writes"), ("kube-scheduler", "Scheduler cache is corrupted")];
/// The most restarts after such an error.
const MOST_REVIVALS: u32 = 3;

/// An order for one component, while the others continue to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Kills it, as a machine failure does.
    Kill,
    /// Restarts it after that, with the same ports and data.
    Start,
    /// Suspends it (SIGSTOP).
    Pause,
    /// Resumes it after that (SIGCONT).
    Resume,
}

impl Order {
    pub(crate) const ALL: [Self; 4] = [Self::Kill, Self::Start, Self::Pause, Self::Resume];

    /// The name of the order.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }
}

impl Component {
    /// Starts `command` in a process group of its own; its output goes to `log`.
    pub(crate) fn spawn(name: &'static str, mut command: Command, log: PathBuf) -> Result<Self> {
        let problem = |e| format!("cannot start {name}: {e}");
        let output = File::create(&log).map_err(problem)?;
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(problem)?).stderr(output);
        // Ctrl-C goes to the terminal's foreground group, but the supervisor decides when components stop.
        command.process_group(0);
        let child = die_with_parent(&mut command).spawn().map_err(problem)?;
        Ok(Self { name, command, child, log, killed: false, revived: 0 })
    }

    /// Carries out an order. Call it from the thread that spawned the component.
    pub(crate) fn obey(&mut self, order: Order) -> Result<()> {
        let problem = |e: &dyn std::fmt::Display| format!("cannot {} {}: {e}", order.word(), self.name);
        match order {
            Order::Kill => {
                self.killed = true;
                self.child.kill().and_then(|()| self.child.wait()).map_err(|e| problem(&e))?;
            }
            Order::Start if self.killed => {
                self.child = self.command.spawn().map_err(|e| problem(&e))?;
                self.killed = false;
            }
            Order::Start => return Err(problem(&"it is running")),
            Order::Pause | Order::Resume => {
                let signal = if order == Order::Pause { Signal::STOP } else { Signal::CONT };
                kill_process(Pid::from_child(&self.child), signal).map_err(|e| problem(&e))?;
            }
        }
        Ok(())
    }

    /// If it ended by itself: its exit status and the end of its log. Call it from the thread that spawned the
    /// component.
    pub(crate) fn failure(&mut self) -> Option<String> {
        if self.killed {
            return None;
        }
        let status: ExitStatus = self.child.try_wait().ok()??;
        let log = tail(&self.log);
        let passes = PASSING.iter().any(|(name, error)| self.name == *name && log.contains(error));
        if passes && self.revived < MOST_REVIVALS {
            self.revived += 1;
            self.child = self.command.spawn().ok()?;
            return None;
        }
        Some(format!("{} ended ({status}). The end of its log:\n{log}", self.name))
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Its log.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Sends SIGKILL: the data of these processes is not kept.
    fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// Stops all components at the same time.
pub(crate) fn stop(mut components: Vec<Component>) {
    components.iter_mut().rev().for_each(Component::kill);
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// Makes the kernel kill the child when the thread that spawns it ends, so that not even SIGKILL leaves it behind. The
/// child must therefore be spawned from the main thread.
#[cfg(target_os = "linux")]
pub(crate) fn die_with_parent(command: &mut Command) -> &mut Command {
    use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

    let parent = getpid();
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() == Some(parent) { Ok(()) } else { Err(std::io::Error::other("the parent has ended")) }
    };
    #[expect(
        unsafe_code,
        reason = "the closure makes two system calls, which are safe between fork and exec"
    )]
    // SAFETY: as the reason states; it neither allocates (on success) nor takes a lock.
    unsafe {
        command.pre_exec(in_child)
    }
}

/// On other systems, the end of the supervisor's standard input has to suffice.
#[cfg(not(target_os = "linux"))]
pub(crate) fn die_with_parent(command: &mut Command) -> &mut Command {
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_that_ends_early_is_reported_with_log() {
        let log = std::env::temp_dir().join(format!("confrev-component-{}.log", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such flag; exit 3"]);
        let mut component = Component::spawn("sh", command, log.clone()).unwrap();
        component.child.wait().unwrap();

        let failure = component.failure().unwrap();
        fs::remove_file(log).unwrap();
        assert!(failure.contains("sh ended") && failure.contains("no such flag"), "{failure}");
    }

    /// A component restarts only after its own errors.
    #[test]
    fn only_passing_errors_restart_components() {
        let log = std::env::temp_dir().join(format!("confrev-raced-{}.log", std::process::id()));
        for (name, message, revivals) in [
            ("kwok", "fatal error: concurrent map writes", MOST_REVIVALS),
            ("kube-scheduler", "Scheduler cache is corrupted and can badly affect decisions", MOST_REVIVALS),
            ("kwok", "no such flag", 0),
            ("etcd", "fatal error: concurrent map writes", 0),
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", "echo \"$0\"; exit 2", message]);
            let mut component = Component::spawn(name, command, log.clone()).unwrap();
            for _ in 0..revivals {
                component.child.wait().unwrap();
                assert_eq!(component.failure(), None, "{name}: {message}");
            }
            component.child.wait().unwrap();
            assert!(
                component.failure().is_some_and(|failure| failure.contains(message)),
                "{name}: {message}"
            );
        }
        fs::remove_file(log).unwrap();
    }

    /// The kill is not reported as a failure.
    #[test]
    fn component_killed_by_order_can_be_restarted() {
        let log = std::env::temp_dir().join(format!("confrev-ordered-{}.log", std::process::id()));
        let mut command = Command::new("sleep");
        command.arg("60");
        let mut component = Component::spawn("sleep", command, log.clone()).unwrap();
        fs::remove_file(log).unwrap();
        component.obey(Order::Pause).unwrap();
        component.obey(Order::Resume).unwrap();
        assert!(component.obey(Order::Start).is_err(), "the component is running");

        let first = component.child.id();
        component.obey(Order::Kill).unwrap();
        assert_eq!(component.failure(), None);
        component.obey(Order::Start).unwrap();
        assert_ne!(component.child.id(), first);
        assert_eq!(component.failure(), None);
    }
}
