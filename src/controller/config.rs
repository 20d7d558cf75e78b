//! The controller's settings.

use jiff::SignedDuration;

use crate::snapshot::SourceKind;

/// The controller's settings, from the options of `serve`.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How long a changed source waits for an apply of the workload, which makes a roll unnecessary: a ConfigMap and a
    /// workload that are applied together make one new revision.
    pub settle: SignedDuration,
    /// How long an unused snapshot is kept.
    pub orphan_grace: SignedDuration,
    /// Automatic rolls per second, over all workloads.
    pub rolls_per_second: u32,
    /// The most snapshots of one source. At this limit the controller creates none in advance, before a workload references
    /// them.
    pub max_snapshots: usize,
    /// Whether Secrets get snapshots. If not, no Secret is ever read.
    pub secrets: bool,
}

/// The defaults of the options.
impl Default for Config {
    fn default() -> Self {
        Self {
            settle: SignedDuration::from_secs(1),
            orphan_grace: SignedDuration::from_mins(10),
            rolls_per_second: 200,
            max_snapshots: 2000,
            secrets: false,
        }
    }
}

impl Config {
    /// The kinds of sources that are watched.
    pub(super) fn source_kinds(&self) -> &'static [SourceKind] {
        if self.secrets { &[SourceKind::ConfigMap, SourceKind::Secret] } else { &[SourceKind::ConfigMap] }
    }

    /// The time between two rolls at the global rate.
    pub(super) fn roll_pause(&self) -> SignedDuration {
        SignedDuration::from_nanos(1_000_000_000 / i64::from(self.rolls_per_second.max(1)))
    }
}
