//! The confrev that all tests of this suite share, and dashboards of its namespaces.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use confrev_controlplane::{ControlPlane, Program};
use confrev_test_support::shared::{Running, SharedProgram};

use crate::chart_setup;

fn program() -> Program {
    chart_setup::program(Path::new(env!("CARGO_BIN_EXE_confrev")), &[])
}

static CONFREV: SharedProgram = SharedProgram::new(program);

/// confrev, which keeps running while the result exists.
pub(crate) fn running() -> Running {
    CONFREV.running()
}

/// A running `kubectl confrev dashboard`.
pub(crate) struct Dashboard {
    process: Child,
    /// The address that the command printed.
    pub(crate) address: String,
}

impl Dashboard {
    /// Starts the command, and waits for its address.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        // `make dashboard-figures` measures an optimized build.
        let given = std::env::var_os("CONFREV_DASHBOARD_BIN");
        let mut command = Command::new(given.unwrap_or_else(|| env!("CARGO_BIN_EXE_confrev").into()));
        command.arg("dashboard").args(arguments).env("KUBECONFIG", ControlPlane::shared().kubeconfig());
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the program runs");
        let mut line = String::new();
        let out = process.stdout.take().expect("standard output");
        BufReader::new(out).read_line(&mut line).expect("the address is printed");
        assert!(line.starts_with("http://127.0.0.1:"), "{line:?}");
        Self { process, address: line.trim().to_owned() }
    }

    /// `http://127.0.0.1:PORT/PATH`: the address of all pages, which no other program knows.
    pub(crate) fn root(&self) -> &str {
        self.address.split("/?").next().unwrap()
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
