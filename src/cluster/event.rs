//! The content of an Event (events.k8s.io/v1). It names objects, snapshots and digests, and never holds content of a
//! source.

use std::{borrow::Cow, sync::Arc};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{annotations, telemetry::metrics::Reason, text, world::Owner};

/// For how long an equal Event is not repeated.
pub const REPEAT_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);
/// The longest note that the API server accepts, in bytes.
const LONGEST_NOTE: usize = 1024;
/// The most bytes of a text that tells Events apart; of a longer one, the hash counts.
const LONGEST_SAME: usize = 64;

/// A reference to an object in an Event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// `group/version`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
}

impl From<Owner> for ObjectRef {
    fn from(owner: Owner) -> Self {
        Self {
            api_version: owner.api_version.to_string(),
            kind: owner.kind.to_string(),
            name: owner.name.to_string(),
            uid: owner.uid.to_string(),
        }
    }
}

/// An Event to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The namespace of all objects that the Event names.
    pub namespace: Arc<str>,
    /// The object that the Event is about; `kubectl describe` shows the Event there.
    pub regarding: ObjectRef,
    /// The other object involved.
    pub related: Option<ObjectRef>,
    /// What happened.
    pub reason: Reason,
    /// What happened, in a sentence.
    pub note: String,
    /// Events about one object with the same reason and this same text are equal.
    pub same: String,
    /// When it happened.
    pub at: Timestamp,
}

impl Reason {
    /// Whether the Event needs attention.
    pub const fn is_warning(self) -> bool {
        matches!(
            self,
            Self::SourceMissing
                | Self::RollHeld
                | Self::RollRefused
                | Self::AnalysisFailed
                | Self::AnalysisHeld
                | Self::ContentRefused
                | Self::Reverted
                | Self::SettingInvalid
                | Self::SnapshotLost
                | Self::SnapshotsDropped
                | Self::ObjectUnreadable
                | Self::EventsDropped
                | Self::NamespacePartlyKnown
        )
    }

    /// Whether the Event is posted as a notification. The others report that an object is incomplete or cannot be read, that old
    /// snapshots are too large together, count Events, come for each workload after an outage, or name a user.
    pub const fn is_notified(self) -> bool {
        !matches!(
            self,
            Self::SourceMissing
                | Self::ObjectUnreadable
                | Self::SnapshotsDropped
                | Self::EventsDropped
                | Self::NamespacePartlyKnown
                | Self::Carried
                | Self::ChangeDecided
        )
    }

    /// What confrev was doing at that time.
    const fn action(self) -> &'static str {
        match self {
            Self::Rolled
            | Self::Pinned
            | Self::Unpinned
            | Self::Held
            | Self::HoldEnded
            | Self::RollHeld
            | Self::RollReleased
            | Self::RollRefused
            | Self::ChangeDecided
            | Self::WaveBegun
            | Self::AnalysisBegun
            | Self::AnalysisSucceeded
            | Self::AnalysisFailed
            | Self::AnalysisHeld
            | Self::ContentRefused
            | Self::Reverted
            | Self::Carried
            | Self::SettingInvalid => "Roll",
            Self::SourceMissing | Self::ObjectUnreadable | Self::NamespacePartlyKnown => "Resolve",
            Self::SnapshotLost | Self::SnapshotRestored => "Restore",
            Self::SnapshotsDropped => "Delete",
            Self::EventsDropped => "Report",
        }
    }
}

impl Event {
    /// The same Event with a note that the API server accepts. Events wait in memory and are remembered, and their texts may hold
    /// hundreds of names, or a message of any length.
    #[must_use]
    pub(crate) fn within_limits(mut self) -> Self {
        self.note.truncate(self.note.floor_char_boundary(LONGEST_NOTE));
        self.note.shrink_to_fit();
        if self.same.len() > LONGEST_SAME {
            let digest: [u8; 32] = Sha256::digest(&self.same).into();
            self.same = format!("{:032x}", u128::from_be_bytes(*digest.first_chunk().unwrap_or(&[0; 16])));
        }
        self
    }

    /// The Event's name: the object's name, cut to fit, and a hash of the object, reason, text and time window. Two
    /// equal Events in one window have one name, so only one replica can create it.
    pub fn name(&self) -> String {
        let window = self.at.as_second().div_euclid(REPEAT_AFTER.as_secs());
        let mut hash = Sha256::new();
        for part in [self.regarding.uid.as_str(), self.reason.text(), &self.same, &window.to_string()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let hash: [u8; 32] = hash.finalize().into();
        let digits = format!("{:016x}", u64::from_be_bytes(*hash.first_chunk().unwrap_or(&[0; 8])));
        let object = &self.regarding.name;
        let stem = &object[..object.floor_char_boundary(252 - digits.len())];
        format!("{}.{digits}", stem.trim_end_matches('.'))
    }

    /// The note. It repeats messages of the API server and of webhooks, so it is made safe to show.
    pub fn safe_note(&self) -> Cow<'_, str> {
        text::line(&self.note)
    }

    /// The JSON for the API server.
    pub fn to_json(&self) -> Value {
        let note = self.safe_note();
        let reference = |object: &ObjectRef| {
            let mut reference = serde_json::to_value(object).unwrap_or_default();
            reference["namespace"] = json!(*self.namespace);
            reference
        };
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": self.name(), "namespace": *self.namespace},
            "eventTime": format!("{:.6}", self.at),
            "reportingController": format!("{}controller", annotations::PREFIX),
            "reportingInstance": annotations::MANAGER,
            "action": self.reason.action(),
            "type": if self.reason.is_warning() { "Warning" } else { "Normal" },
            "reason": self.reason.text(),
            "note": note[..note.floor_char_boundary(LONGEST_NOTE)],
            "regarding": reference(&self.regarding),
        });
        if let Some(related) = &self.related {
            event["related"] = reference(related);
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::is_object_name;

    fn event() -> Event {
        let name = "web".to_owned();
        let regarding =
            ObjectRef { api_version: "apps/v1".into(), kind: "Deployment".into(), name, uid: "u".into() };
        Event {
            namespace: "ns".into(),
            regarding,
            related: None,
            reason: Reason::Rolled,
            note: "note".to_owned(),
            same: "a".to_owned(),
            at: Timestamp::from_second(600).unwrap(),
        }
    }

    /// Events wait and are remembered by the thousand.
    #[test]
    fn event_with_hundreds_of_names_is_small() {
        let long = "a-missing-name, ".repeat(10_000);
        let of = |same: &str| Event { note: long.clone(), same: same.to_owned(), ..event() }.within_limits();
        let (one, other) = (of(&long), of(&long[1..]));
        assert!(one.note.capacity() <= LONGEST_NOTE && one.same.len() <= LONGEST_SAME, "{one:?}");
        assert_ne!(one.same, other.same);
        assert_eq!(one.clone().within_limits(), one);
        assert_eq!(of("short").same, "short");
    }

    /// All other Events have distinct names.
    #[test]
    fn equal_events_within_a_period_share_a_name() {
        let first = event();
        let later = Event { note: "another".into(), at: Timestamp::from_second(1199).unwrap(), ..event() };
        assert_eq!(first.name(), later.name());
        let mut others = vec![first.name()];
        others.push(Event { at: Timestamp::from_second(1200).unwrap(), ..event() }.name());
        others.push(Event { same: "b".into(), ..event() }.name());
        others.push(Event { reason: Reason::Pinned, ..event() }.name());
        let mut elsewhere = event();
        elsewhere.regarding.uid = "v".into();
        others.push(elsewhere.name());
        let distinct: std::collections::BTreeSet<_> = others.iter().collect();
        assert_eq!(distinct.len(), others.len(), "{others:?}");
    }

    #[test]
    fn notes_are_safe_to_show() {
        let hostile = Event { note: "no\n\u{1b}[2J\u{202e}".into(), ..event() };
        assert_eq!(hostile.to_json()["note"], "no\\n\\u001b[2J\\u202e");
    }

    #[test]
    fn event_names_and_notes_respect_length_limits() {
        let mut long = event();
        long.note = "ä".repeat(1000);
        for length in [1, 234, 235, 236, 253] {
            long.regarding.name = "a".repeat(length);
            let name = long.name();
            assert!(name.len() <= 253 && is_object_name(&name), "{length}: {name}");
        }
        long.regarding.name = format!("{}.{}", "a".repeat(235), "b".repeat(10));
        assert!(is_object_name(&long.name()), "{}", long.name());
        assert!(long.to_json()["note"].as_str().unwrap().len() <= 1024);
    }

    #[test]
    fn each_reason_has_its_event_type() {
        for (reason, kind) in [
            (Reason::Rolled, "Normal"),
            (Reason::Pinned, "Normal"),
            (Reason::Unpinned, "Normal"),
            (Reason::Held, "Normal"),
            (Reason::HoldEnded, "Normal"),
            (Reason::ChangeDecided, "Normal"),
            (Reason::SourceMissing, "Warning"),
            (Reason::RollHeld, "Warning"),
            (Reason::RollReleased, "Normal"),
            (Reason::WaveBegun, "Normal"),
            (Reason::AnalysisBegun, "Normal"),
            (Reason::AnalysisSucceeded, "Normal"),
            (Reason::AnalysisFailed, "Warning"),
            (Reason::AnalysisHeld, "Warning"),
            (Reason::ContentRefused, "Warning"),
            (Reason::Reverted, "Warning"),
            (Reason::Carried, "Normal"),
            (Reason::SettingInvalid, "Warning"),
            (Reason::RollRefused, "Warning"),
            (Reason::SnapshotLost, "Warning"),
            (Reason::SnapshotRestored, "Normal"),
            (Reason::ObjectUnreadable, "Warning"),
            (Reason::SnapshotsDropped, "Warning"),
            (Reason::EventsDropped, "Warning"),
            (Reason::NamespacePartlyKnown, "Warning"),
        ] {
            let json = Event { reason, related: Some(event().regarding), ..event() }.to_json();
            assert_eq!(json["type"], kind);
            assert_eq!(json["reason"], reason.text());
            for object in ["regarding", "related"] {
                assert_eq!(
                    json[object],
                    json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ns", "name": "web", "uid": "u"})
                );
            }
        }
    }
}
