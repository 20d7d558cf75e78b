//! The commands on a real control plane: their output and their effects.

mod analyses;
mod dashboard_cookie;
mod effects;
mod errors;
mod goldens;
mod group_waves;
mod joining;
mod migrate;
mod moves;
mod partial_rights;
mod plans;
mod printing;
mod reasons;
mod revoke;
mod several_changes;
mod show;
mod waves;
mod windows;
mod wrong_inputs;

use std::process::Command;

use confrev_controlplane::ControlPlane;
use serde_json::Value;

use crate::world::World;

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// Standard output of a command that succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// The error line of a command that failed.
    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        let lines: Vec<_> = self.stderr.lines().collect();
        assert!(matches!(lines[..], [_]) && lines[0].starts_with("error: "), "one clear line: {lines:?}");
        lines[0].to_owned()
    }
}

/// Runs the program as `kubectl confrev` does.
pub(crate) fn confrev(arguments: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
    command.args(arguments).env("KUBECONFIG", ControlPlane::shared().kubeconfig());
    let output = command.output().expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Said {
        code: output.status.code().expect("an exit code"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// The commands in the namespace of a test.
pub(crate) trait Commands {
    /// The name of the namespace.
    fn namespace(&self) -> &str;

    /// Runs the program in the test's namespace.
    fn confrev(&self, arguments: &[&str]) -> Said {
        confrev(&[arguments, &["--namespace", self.namespace()]].concat())
    }

    /// Writes a file with that content and returns its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = ControlPlane::shared().state_dir().join(format!("{}-{name}", self.namespace()));
        std::fs::write(&path, text).expect("the state folder can be written");
        path.display().to_string()
    }

    /// Standard output as JSON.
    #[track_caller]
    fn confrev_json(&self, arguments: &[&str]) -> Value {
        let text = self.confrev(&[arguments, &["--output", "json"]].concat()).ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

impl Commands for World {
    fn namespace(&self) -> &str {
        self.name()
    }
}
