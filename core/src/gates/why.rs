//! Why a workload does not move to a content now.

use jiff::{SignedDuration, Timestamp};

use super::gate::Gate;
use crate::{
    gate_settings::Closed,
    resolve::{RunState, SetWait, Wait},
};

/// Why a workload does not move to a content now. `K` names workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why<K> {
    /// The workload does not follow changes by itself.
    Paused,
    /// The annotation `hold` keeps its snapshot.
    Held {
        /// The snapshot.
        snapshot: String,
    },
    /// A workload failed with the content, and its source reverts.
    Refused {
        /// The snapshot of the content.
        snapshot: String,
        /// How the workload failed.
        reason: String,
    },
    /// The installation refuses the content.
    Listed {
        /// How it says so.
        reason: String,
    },
    /// The content fails its schema.
    Schema {
        /// How.
        failure: String,
    },
    /// The content lacks a key that the template requires.
    RequiredKey {
        /// The key; `None` for a Secret.
        key: Option<String>,
    },
    /// A setting keeps it for some time, or is malformed.
    Closed(Closed),
    /// A set has different versions, or is malformed.
    Set(SetWait),
    /// A source of the workload is not known yet, and may belong to the set.
    SetUnread,
    /// The workload rolled less than its `min-interval` ago: the time that is left.
    Interval(SignedDuration),
    /// The others hold it.
    Others(Wait<K>),
}

impl<K> Why<K> {
    /// The gate.
    pub const fn gate(&self) -> Gate {
        match self {
            Self::Paused => Gate::PAUSED,
            Self::Held { .. } => Gate::HOLD,
            Self::Closed(Closed::Invalid { .. })
            | Self::Set(SetWait::Invalid { .. })
            | Self::Others(Wait::Invalid(_)) => Gate::INVALID,
            Self::Refused { .. } | Self::Listed { .. } | Self::Others(Wait::Refused) => Gate::REFUSED,
            Self::Schema { .. } => Gate::SCHEMA,
            Self::RequiredKey { .. } => Gate::REQUIRED_KEYS,
            Self::Closed(Closed::Until { name, .. }) => Gate::of_setting(name),
            Self::Set(SetWait::Differs { .. }) | Self::SetUnread => Gate::SET,
            Self::Interval(_) => Gate::MIN_INTERVAL,
            Self::Others(Wait::Aborted) => Gate::ABORTED,
            Self::Others(Wait::Bad(_)) => Gate::FAILED,
            Self::Others(Wait::Unproven | Wait::Bake(_) | Wait::Analysis(_) | Wait::Wave) => Gate::WAVE,
            Self::Others(Wait::Full) => Gate::MAX_IN_FLIGHT,
        }
    }

    /// When the gate opens, as far as the time alone decides that.
    pub fn until(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Closed(Closed::Until { opens, .. }) => *opens,
            Self::Interval(left) => now.checked_add(*left).ok(),
            Self::Others(Wait::Bake(until)) => Some(*until),
            Self::Paused
            | Self::Held { .. }
            | Self::Refused { .. }
            | Self::Listed { .. }
            | Self::Schema { .. }
            | Self::RequiredKey { .. }
            | Self::Closed(_)
            | Self::Set(_)
            | Self::SetUnread
            | Self::Others(_) => None,
        }
    }

    /// Whether the wait ends by itself: no person needs to act.
    pub const fn ends_by_itself(&self) -> bool {
        match self {
            Self::Closed(Closed::Until { opens: Some(_), .. })
            | Self::SetUnread
            | Self::Interval(_)
            | Self::Others(Wait::Bake(_) | Wait::Wave) => true,
            Self::Others(Wait::Analysis(run)) => matches!(run.state, RunState::Unknown | RunState::Running),
            Self::Paused
            | Self::Held { .. }
            | Self::Refused { .. }
            | Self::Listed { .. }
            | Self::Schema { .. }
            | Self::RequiredKey { .. }
            | Self::Closed(_)
            | Self::Set(_)
            | Self::Others(_) => false,
        }
    }

    /// Whether the workload keeps its snapshot because the content was refused.
    pub fn is_refusal(&self) -> bool {
        [Gate::REFUSED, Gate::SCHEMA, Gate::REQUIRED_KEYS].contains(&self.gate())
    }

    /// Whether it is about the workload alone, whatever its source holds.
    pub const fn is_of_workload(&self) -> bool {
        matches!(self, Self::Paused | Self::Held { .. })
    }

    /// Whether it ends only by a decision of a person: other workloads and the time change nothing.
    pub fn needs_a_person(&self) -> bool {
        match self {
            Self::Others(Wait::Analysis(run)) => matches!(run.state, RunState::Undecided(_)),
            _ => self.is_of_workload() || [Gate::INVALID, Gate::ABORTED].contains(&self.gate()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gate_settings::Place,
        resolve::{AnalysisRun, Proof},
        snapshot::{ObjectName, SourceKind},
    };

    #[test]
    fn each_reason_has_its_gate_and_end() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let (later, left) = (now + SignedDuration::from_secs(60), SignedDuration::from_secs(60));
        let source = || ObjectName::new(SourceKind::ConfigMap, "a");
        let analysis = |state| Why::Others(Wait::Analysis(AnalysisRun { name: "run".into(), state }));
        let invalid = |of| Why::Closed(Closed::Invalid { name: "window", of, why: "x".into() });
        let until = |opens| Why::Closed(Closed::Until { name: "window", opens, reason: "x".into() });
        let proof = Proof::Workload { workload: Some("web"), rolled_back: false };
        for (why, gate, until, ends_by_itself) in [
            (Why::Paused, Gate::PAUSED, None, false),
            (Why::Held { snapshot: "a-1".into() }, Gate::HOLD, None, false),
            (Why::Refused { snapshot: "a-1".into(), reason: "x".into() }, Gate::REFUSED, None, false),
            (Why::Listed { reason: "x".into() }, Gate::REFUSED, None, false),
            (Why::Schema { failure: "x".into() }, Gate::SCHEMA, None, false),
            (Why::RequiredKey { key: None }, Gate::REQUIRED_KEYS, None, false),
            (invalid(Place::Workload), Gate::INVALID, None, false),
            (until(Some(later)), Gate::of_setting("window"), Some(later), true),
            (until(None), Gate::of_setting("window"), None, false),
            (Why::Set(SetWait::Invalid { source: source(), why: "x".into() }), Gate::INVALID, None, false),
            (Why::Set(SetWait::Differs { set: "s".into(), versions: "x".into() }), Gate::SET, None, false),
            (Why::SetUnread, Gate::SET, None, true),
            (Why::Interval(left), Gate::MIN_INTERVAL, Some(later), true),
            (Why::Others(Wait::Invalid("x".into())), Gate::INVALID, None, false),
            (Why::Others(Wait::Refused), Gate::REFUSED, None, false),
            (Why::Others(Wait::Aborted), Gate::ABORTED, None, false),
            (Why::Others(Wait::Bad(proof)), Gate::FAILED, None, false),
            (Why::Others(Wait::Unproven), Gate::WAVE, None, false),
            (Why::Others(Wait::Bake(later)), Gate::WAVE, Some(later), true),
            (Why::Others(Wait::Wave), Gate::WAVE, None, true),
            (analysis(RunState::Unknown), Gate::WAVE, None, true),
            (analysis(RunState::Running), Gate::WAVE, None, true),
            (analysis(RunState::Successful), Gate::WAVE, None, false),
            (analysis(RunState::Failed("x".into())), Gate::WAVE, None, false),
            (analysis(RunState::Undecided("x".into())), Gate::WAVE, None, false),
            (analysis(RunState::Unavailable("x".into())), Gate::WAVE, None, false),
            (Why::Others(Wait::Full), Gate::MAX_IN_FLIGHT, None, false),
        ] {
            let found = (why.gate(), why.until(now), why.ends_by_itself());
            assert_eq!(found, (gate, until, ends_by_itself), "{why:?}");
        }
    }
}
