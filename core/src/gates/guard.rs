//! What may keep a workload from a content, as far as one review and the live source tell. Admission asks it about a sync, since it knows
//! no other workload and no time: if anything does, the workload keeps its snapshot, and the controller asks the gates.

use crate::{
    annotations,
    resolve::{SetWait, SpreadPolicy},
    snapshot::ObjectName,
};

/// What may keep a workload from a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The sources of its set.
    Set(SetWait),
    /// Another source of its set stays behind.
    Parted(ObjectName),
    /// The source moves workloads in waves.
    Waves,
    /// It limits how many workloads roll at once.
    MaxInFlight,
    /// It moves workloads back if one fails.
    Reverts,
    /// The request changes a setting that is a gate, with this key: it may be there to postpone a pending change.
    Changed(&'static str),
    /// The content has a schema, and its client may not learn whether the content matches it.
    Schema,
}

impl Guard {
    /// The first of those that follow from the settings of the source, its set, and the request.
    pub(crate) fn of(
        policy: &SpreadPolicy,
        set: Option<SetWait>,
        changed: Option<&'static str>,
    ) -> Option<Self> {
        let limit = if policy.has_waves() {
            Some(Self::Waves)
        } else if policy.max_in_flight.is_some() {
            Some(Self::MaxInFlight)
        } else {
            policy.reverts.then_some(Self::Reverts)
        };
        set.map(Self::Set).or(limit).or_else(|| changed.map(Self::Changed))
    }

    /// What it is, for the person who made the request.
    pub(crate) fn text(&self, source: &ObjectName) -> String {
        match self {
            Self::Set(wait) => format!("{source} belongs to a set (annotation {}): {wait}", annotations::SET),
            Self::Parted(other) => {
                format!("{source} belongs to a set (annotation {}): {other} stays behind", annotations::SET)
            }
            Self::Waves => format!("{source} moves workloads in waves (annotation {})", annotations::WAVES),
            Self::MaxInFlight => format!(
                "{source} limits how many workloads roll at once (annotation {})",
                annotations::MAX_IN_FLIGHT
            ),
            Self::Reverts => {
                format!("{source} moves workloads back if one fails (annotation {})", annotations::ON_FAILURE)
            }
            Self::Changed(key) => format!("annotation {key} has a new value"),
            Self::Schema => {
                format!(
                    "{source} has a schema (annotation {}), which the controller checks",
                    annotations::SCHEMA
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_guard_decides() {
        let policy = |keys: &[(&str, &'static str)]| {
            SpreadPolicy::read(|key| keys.iter().find(|(of, _)| *of == key).map(|(_, value)| *value))
        };
        let (waves, one) = ((annotations::WAVES, "1"), (annotations::MAX_IN_FLIGHT, "1"));
        let reverts = (annotations::ON_FAILURE, "revert");
        let set = SetWait::Differs { set: "shop".into(), versions: "1 and 2".into() };
        for (what, policy, set, changed, expected) in [
            ("nothing", policy(&[]), None, None, None),
            ("a set", policy(&[waves]), Some(set.clone()), None, Some(Guard::Set(set))),
            ("waves", policy(&[one, waves, reverts]), None, Some("key"), Some(Guard::Waves)),
            ("one at a time", policy(&[reverts, one]), None, None, Some(Guard::MaxInFlight)),
            ("it reverts", policy(&[reverts]), None, Some("key"), Some(Guard::Reverts)),
            ("a new window", policy(&[]), None, Some("key"), Some(Guard::Changed("key"))),
        ] {
            assert_eq!(Guard::of(&policy, set, changed), expected, "{what}");
        }
    }
}
