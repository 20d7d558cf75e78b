//! What the command line says about all pages.

use super::{guard::Guard, links::Links, rights::Rights};

/// The settings.
#[derive(Debug)]
pub(super) struct Settings {
    /// Whether values of Secrets are shown.
    pub(super) show_values: bool,
    /// Whether no action is served.
    pub(super) read_only: bool,
    /// The secrets of the server; `None` for a report.
    pub(super) guard: Option<Guard>,
    /// The user's rights, as far as they were asked.
    pub(super) rights: Rights,
    /// The cluster in words.
    pub(super) about: String,
}

impl Settings {
    /// The addresses of the server's pages.
    pub(super) fn links(&self) -> Links {
        self.guard.as_ref().map_or(Links::Files(0), Guard::links)
    }
}
