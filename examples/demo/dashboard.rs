//! The page beside the story: `make demo DASHBOARD=1`.

use std::env;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use confrev_controlplane::ControlPlane;

use crate::screen::Screen;

/// The variable that asks for the page.
const VARIABLE: &str = "CONFREV_DEMO_DASHBOARD";
/// The programs that open an address, if they exist: on Linux and on macOS.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

/// A running `kubectl confrev dashboard` of the story's namespace.
#[derive(Debug)]
pub(crate) struct Page {
    process: Child,
    address: String,
}

/// Whether the story is to be shown on a page too.
pub(crate) fn is_wanted() -> bool {
    env::var_os(VARIABLE).is_some_and(|value| !value.is_empty() && value != "0")
}

impl Page {
    /// Starts the command, prints its address, and opens it in the browser of a desktop.
    ///
    /// # Panics
    /// If the command does not start or prints no address.
    pub(crate) fn open(cluster: &ControlPlane, binary: &Path, namespace: &str, screen: &Screen) -> Self {
        screen.command(&format!("kubectl confrev dashboard --namespace {namespace}"));
        let mut command = Command::new(binary);
        command.args(["dashboard", "--namespace", namespace]).env("KUBECONFIG", cluster.kubeconfig());
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the dashboard starts");
        let output = process.stdout.take().expect("its standard output");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("its address");
        let page = Self { process, address: line.trim().to_owned() };
        assert!(page.address.starts_with("http://"), "the dashboard printed no address, but {line:?}");
        screen.row(&page.address);
        let is_open = has_desktop() && OPENERS.iter().any(|opener| page.opened_by(opener));
        screen.seen(if is_open { "The page is open in your browser." } else { "Open it in a browser." });
        continued("Press Enter to begin the story: ");
        page
    }

    fn opened_by(&self, opener: &str) -> bool {
        let mut command = Command::new(opener);
        command.arg(&self.address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// Leaves the page open until the reader has seen enough.
    pub(crate) fn leave_open(self, screen: &Screen) {
        screen.title(&format!("\nThe page stays open, with the cluster: {}", self.address));
        continued("Press Enter to end both: ");
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A browser without a desktop would run in this terminal.
fn has_desktop() -> bool {
    cfg!(target_os = "macos")
        || ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| env::var_os(name).is_some_and(|v| !v.is_empty()))
}

/// Waits for Enter on a terminal. Elsewhere, waits for a line or the end of the input.
fn continued(prompt: &str) {
    if io::stdin().is_terminal() {
        eprint!("{prompt}");
    }
    let mut line = String::new();
    let _ = io::stdin().lock().read_line(&mut line);
}
