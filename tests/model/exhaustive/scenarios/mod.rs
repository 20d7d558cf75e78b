//! The recorded scenarios. Each is a series of actions of users and the cluster, with the checks at each rest.

mod breaks;
mod change_states;
mod findings;
mod groups;
mod kinds;
mod owners;
mod sources;
mod stories;

use super::play::Play;

/// One scenario.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(crate) struct Scenario {
    pub name: &'static str,
    pub act: fn(&Play<'_>),
    /// Whether the number of rolls depends on timing. The final state does not.
    pub loose: bool,
    /// Whether the scenario loses a snapshot permanently.
    pub loses: bool,
    /// Whether a content exists for a moment only in one replica's memory, and is lost with that replica.
    pub remembered: bool,
    /// Whether the policy `confrev-carry` is in force: a write that confrev does not answer is stored with its mark.
    pub carries: bool,
}

/// Scenarios that run with the policy as well, under another name.
const CARRIED: [(&str, &str); 17] = [
    ("deployment", "deployment-carried"),
    ("rollout", "rollout-carried"),
    ("stateful-set", "stateful-set-carried"),
    ("daemon-set", "daemon-set-carried"),
    ("configured-kind", "configured-kind-carried"),
    ("cron-job", "cron-job-carried"),
    ("job", "job-carried"),
    ("rollout-with-workload-ref", "rollout-with-workload-ref-carried"),
    ("canary", "canary-carried"),
    ("used-keys", "used-keys-carried"),
    ("opt-out-by-label", "opt-out-by-label-carried"),
    ("image-and-content", "image-and-content-carried"),
    ("mount", "mount-carried"),
    ("waves", "waves-carried"),
    ("undo-keeps-settings", "undo-keeps-settings-carried"),
    ("limited-image", "limited-image-carried"),
    ("live", "live-carried"),
];

impl Scenario {
    /// The file with its answers without faults. The policy makes no difference to them.
    pub(crate) fn golden(&self) -> String {
        let base = CARRIED.iter().find(|(_, carried)| *carried == self.name).map_or(self.name, |(of, _)| of);
        format!("{base}.txt")
    }

    const fn new(name: &'static str, act: fn(&Play<'_>)) -> Self {
        Self { name, act, loose: false, loses: false, remembered: false, carries: false }
    }

    const fn loose(self) -> Self {
        Self { loose: true, ..self }
    }

    const fn remembered(self) -> Self {
        Self { remembered: true, ..self }
    }
}

/// The scenarios that `CONFREV_MODEL_SCENARIO` names, separated by commas; all if it is not set.
pub(crate) fn asked() -> Vec<Scenario> {
    let mut all = scenarios();
    if let Ok(asked) = std::env::var("CONFREV_MODEL_SCENARIO") {
        all.retain(|scenario| asked.split(',').any(|name| name == scenario.name));
    }
    all
}

/// Every scenario.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = [
        kinds::ALL,
        stories::ALL,
        sources::ALL,
        owners::ALL,
        groups::ALL,
        breaks::ALL,
        change_states::ALL,
        findings::ALL,
    ]
    .concat();
    let carried = CARRIED.map(|(of, name)| {
        let scenario = all.iter().find(|scenario| scenario.name == of).unwrap();
        // An unanswered write and the decision on it may be two revisions in place of one.
        Scenario { name, carries: true, loose: true, ..*scenario }
    });
    all.extend(carried);
    all
}
