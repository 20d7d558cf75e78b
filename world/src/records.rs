//! The records: the few fields that are kept of each object. Names are interned, see `interner.rs`.

use std::sync::{Arc, LazyLock};

use confrev_core::{
    annotations,
    compact::CompactSet,
    gate_settings::Texts,
    resolve::{
        Observed, Present, RecordedFailure, SpreadPolicy, Use, Verdict, order_of_namespace, parse_keep,
    },
    snapshot::{Digest, is_named_after},
    uid::Uid,
};
use jiff::{SignedDuration, Timestamp};

use crate::{
    inherited::NamespaceChoice,
    objects::{Owner, Version, WorkloadKey},
};

/// A revision object by kind (index into [`confrev_core::kinds::REVISION_KINDS`]), namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevisionKey {
    /// Index into [`confrev_core::kinds::REVISION_KINDS`].
    pub kind: usize,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

/// The record of a revision object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// The object's uid.
    pub uid: Uid,
    /// The snapshots that its template refers to.
    pub uses: Vec<Use>,
}

/// A workload or revision that refers to a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum User {
    /// A workload's present template.
    Workload(WorkloadKey),
    /// A revision's template.
    Revision(RevisionKey),
}

impl User {
    /// The namespace.
    pub fn namespace(&self) -> &Arc<str> {
        let (Self::Workload(WorkloadKey { namespace, .. }) | Self::Revision(RevisionKey { namespace, .. })) =
            self;
        namespace
    }

    /// The object's name.
    pub fn name(&self) -> &Arc<str> {
        let (Self::Workload(WorkloadKey { name, .. }) | Self::Revision(RevisionKey { name, .. })) = self;
        name
    }
}

/// What is known of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownSource {
    /// Not read yet, or changed since.
    Unknown,
    /// It does not exist.
    Missing,
    /// It exists.
    Exists(Box<SourceRecord>),
}

impl KnownSource {
    /// The record of the source, if it exists.
    pub fn existing(&self) -> Option<&SourceRecord> {
        match self {
            Self::Exists(record) => Some(record),
            Self::Unknown | Self::Missing => None,
        }
    }
}

/// The record of a source that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRecord {
    /// The object's uid.
    pub uid: Uid,
    /// The resourceVersion that was read.
    pub resource_version: Box<str>,
    /// What decisions need to know of it.
    pub present: Present,
    /// How many of its newest snapshots are kept.
    pub keep: usize,
    /// The snapshots that are not kept, whatever `keep` says: the annotation `revoked`.
    pub revoked: Option<Box<str>>,
    /// What it says of its change; `None` for most sources.
    pub report: Option<Box<Report>>,
    /// How far a change may spread. Sources without such settings share one value.
    pub spread: Arc<SpreadPolicy>,
    /// When a change may move a workload at all; `None` for most sources.
    pub gates: Option<Box<Gates>>,
}

/// The annotations of a source about the state of its change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether the annotation `report` asks for the state; `None`: the installation decides.
    pub asked: Option<bool>,
    /// The annotation `change`.
    pub change: Option<Box<str>>,
}

impl Report {
    fn of(observed: &Observed) -> Option<Box<Self>> {
        let asked = observed.annotation(annotations::REPORT).map(|text| text == "true");
        let change = observed.annotation(annotations::CHANGE).map(|text| annotations::bounded(&text).into());
        Self::new(asked, change)
    }

    /// `None` if there is neither.
    pub(super) fn new(asked: Option<bool>, change: Option<Box<str>>) -> Option<Box<Self>> {
        (asked.is_some() || change.is_some()).then(|| Box::new(Self { asked, change }))
    }
}

/// The most bytes of the reason why a content fails its schema.
const MAX_FAILURE: usize = 256;

/// The annotations of a source that decide when a change may move a workload, valid or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates {
    /// The settings that are gates.
    pub settings: Texts,
    /// The annotation `set`.
    pub set: Option<Box<str>>,
    /// Whether it has the annotation `schema`, or `schema-keys`.
    pub has_schema: bool,
    /// The result of the check of its content against the schema; `None`: there was none.
    pub check: Option<Result<(), Box<str>>>,
}

impl Gates {
    fn of(observed: &Observed) -> Option<Box<Self>> {
        let settings = Texts::read(|key| observed.annotation(key));
        let set = observed.annotation(annotations::SET).map(|value| annotations::bounded(&value).into());
        let has_schema = observed.schema().is_some();
        let gates =
            Self { settings, set, has_schema, check: observed.check().filter(|_| has_schema).map(bounded) };
        let is_any = !gates.settings.is_empty() || gates.set.is_some() || gates.has_schema;
        is_any.then(|| Box::new(gates))
    }
}

/// The result of a check, with a reason that is not too long.
fn bounded(check: &Result<(), Box<str>>) -> Result<(), Box<str>> {
    check.as_ref().copied().map_err(|failure| failure[..failure.floor_char_boundary(MAX_FAILURE)].into())
}

impl SourceRecord {
    /// The record of a source that was read.
    pub fn of(observed: &Observed) -> Self {
        let keep = observed.annotation(annotations::KEEP);
        let spread = observed.spread_policy();
        let keep = parse_keep(keep.as_deref()).or_else(|| parse_keep(None)).unwrap_or_default();
        Self {
            uid: observed.uid.as_str().into(),
            resource_version: observed.resource_version.as_str().into(),
            present: observed.into(),
            revoked: observed
                .annotation(annotations::REVOKED)
                .filter(|names| names.len() <= annotations::MAX_REVOKED)
                .map(Box::from),
            report: Report::of(observed),
            gates: Gates::of(observed),
            // The verdict on a content is on its snapshot.
            keep: keep.max(usize::from(spread.is_limited())),
            spread: shared(spread),
        }
    }

    /// The annotation `change`.
    pub fn reported(&self) -> Option<&str> {
        self.report.as_ref()?.change.as_deref()
    }

    /// Whether it asks for the state of its change itself, or declines it.
    pub fn asks_for_state(&self) -> Option<bool> {
        self.report.as_ref()?.asked
    }

    /// The uid and resourceVersion that writes require.
    pub fn version(&self) -> Version {
        Version { uid: self.uid.to_string(), resource_version: self.resource_version.to_string() }
    }

    /// Whether the content must match a schema.
    pub fn has_schema(&self) -> bool {
        self.gates.as_ref().is_some_and(|gates| gates.has_schema)
    }

    /// The same source after a check of its content against its schema.
    #[must_use]
    pub fn checked(mut self, check: &Result<(), Box<str>>) -> Self {
        if let Some(gates) = self.gates.as_mut().filter(|gates| gates.has_schema) {
            gates.check = Some(bounded(check));
        }
        self
    }

    /// The result of the check of its content against its schema; `None`: there was none.
    pub fn check(&self) -> Option<&Result<(), Box<str>>> {
        self.gates.as_ref()?.check.as_ref()
    }

    /// Why its content fails its schema, as far as that was checked.
    pub fn schema_failure(&self) -> Option<&str> {
        self.check()?.as_ref().err().map(|failure| &**failure)
    }

    /// Whether the source does not keep this snapshot, whatever its rank. A snapshot of the present content is always kept.
    pub fn revokes(&self, name: &str, snapshot: &SnapshotRecord) -> bool {
        let mut revoked = self.revoked.iter().flat_map(|text| text.split(','));
        revoked.any(|revoked| revoked.trim() == name) && !self.present.digests.contains(&snapshot.digest)
    }
}

/// The policy, or the shared default.
fn shared(policy: SpreadPolicy) -> Arc<SpreadPolicy> {
    static UNLIMITED: LazyLock<Arc<SpreadPolicy>> = LazyLock::new(Arc::default);
    if policy == **UNLIMITED { Arc::clone(&UNLIMITED) } else { Arc::new(policy) }
}

/// The settings of a namespace, beside its opt-in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceSettings {
    /// Its settings that are gates, valid or not.
    pub gates: Texts,
    /// The label `group`.
    pub group: Option<Arc<str>>,
    /// The label `group-revert`: a failure in another namespace of the group refuses content in this one.
    pub group_revert: bool,
    /// The annotation `order`. An error says why it cannot be followed.
    pub order: Option<Result<i32, Box<str>>>,
    /// What its objects inherit.
    pub choice: NamespaceChoice,
    /// The annotation `secrets-mode`: Secrets that set no mode themselves are in mode `live`.
    pub live_secrets: bool,
}

impl NamespaceSettings {
    /// Reads the labels and annotations of a Namespace of this name.
    pub fn read<'n>(
        name: &str,
        label: impl Fn(&str) -> Option<&'n str>,
        annotation: impl Fn(&str) -> Option<&'n str>,
    ) -> Self {
        let order = annotation(annotations::ORDER).map(annotations::bounded);
        Self {
            gates: Texts::of_namespace(&annotation),
            group: label(annotations::GROUP).filter(|group| !group.is_empty()).map(Arc::from),
            group_revert: label(annotations::GROUP_REVERT) == Some("true"),
            order: order.map(|order| order_of_namespace(name, order).map_err(Box::from)),
            choice: NamespaceChoice::read(&annotation),
            live_secrets: annotation(annotations::SECRETS_MODE) == Some("live"),
        }
    }
}

/// What a metadata-only watch reports about a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceMeta {
    /// The object's resourceVersion.
    pub resource_version: String,
    /// Whether its label asks for a snapshot at every change.
    pub always: bool,
}

/// The record of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// The object's uid.
    pub uid: Uid,
    /// The object's resourceVersion.
    pub resource_version: Box<str>,
    /// The name of its source.
    pub source: Arc<str>,
    /// The digest that it states.
    pub digest: Digest,
    /// When it was created.
    pub created: Timestamp,
    /// How many seconds before that its source got the content. Without a leader, snapshots come late.
    pub late: u16,
    /// Its ownerReferences.
    pub owners: CompactSet<Owner>,
    /// What is known about its content.
    pub verdict: Option<Box<Verdict>>,
    /// Its size, as it records it.
    pub bytes: u32,
}

/// The largest size that counts, and that of a snapshot that records none.
const LARGEST_SNAPSHOT: u32 = 1 << 20;

impl SnapshotRecord {
    /// Reads the annotations of a snapshot; `None` if it lacks one that a snapshot has, or its name. Its uid, its resourceVersion and
    /// its owners are empty.
    pub fn read<'s>(
        name: &str,
        created: Timestamp,
        annotation: impl Fn(&str) -> Option<&'s str>,
    ) -> Option<Self> {
        let (source, digest) = (annotation(annotations::SOURCE_NAME)?, annotation(annotations::DIGEST)?);
        let digest = digest.parse().ok().filter(|digest| is_named_after(name, source, digest))?;
        Some(Self {
            uid: Uid::from(""),
            resource_version: Box::default(),
            source: source.into(),
            digest,
            created,
            late: Self::read_late(annotation(annotations::CHANGED_AT), created),
            owners: CompactSet::default(),
            bytes: Self::read_bytes(annotation(annotations::BYTES)),
            verdict: Verdict::read(annotation).map(Box::new),
        })
    }

    /// The size that an annotation records. It counts up to the most that an object may hold: who may create snapshots could
    /// claim any.
    pub fn read_bytes(annotation: Option<&str>) -> u32 {
        annotation.and_then(|text| text.parse().ok()).unwrap_or(LARGEST_SNAPSHOT).clamp(1, LARGEST_SNAPSHOT)
    }

    /// The seconds between an annotation `changed-at` and the creation: at most 18 hours count, for who writes a source
    /// may claim any time.
    pub fn read_late(changed_at: Option<&str>, created: Timestamp) -> u16 {
        let changed: Option<Timestamp> = changed_at.and_then(|text| text.parse().ok());
        let late = changed.map_or(0, |changed| created.duration_since(changed).as_secs());
        u16::try_from(late.max(0)).unwrap_or(u16::MAX)
    }

    /// Since when decisions about its content count.
    pub fn content_since(&self) -> Timestamp {
        self.created.saturating_sub(SignedDuration::from_secs(self.late.into())).unwrap_or(self.created)
    }

    /// The failure with its content.
    pub fn failed(&self) -> Option<&RecordedFailure> {
        self.verdict.as_ref()?.failed.as_ref()
    }

    /// The uid and resourceVersion that writes require.
    pub fn version(&self) -> Version {
        Version { uid: self.uid.to_string(), resource_version: self.resource_version.to_string() }
    }
}

/// The record of a source in bind mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRecord {
    /// The uid and resourceVersion that writes require.
    pub version: Version,
    /// Its ownerReferences, including those that others added.
    pub owners: CompactSet<Owner>,
}

#[cfg(test)]
mod tests {
    use confrev_core::snapshot::SourceKind;
    use serde_json::json;

    use super::*;

    /// Users decide how long the annotations of a source are. The record does not grow with them.
    #[test]
    fn long_annotations_leave_the_record_small() {
        let keys = [
            annotations::WINDOW,
            annotations::SET,
            annotations::WAVES,
            annotations::BAKE,
            annotations::UNHEALTHY_AFTER,
            annotations::ANALYSIS,
            annotations::ON_FAILURE,
            annotations::DECISION,
            annotations::REVOKED,
            annotations::CHANGE,
        ];
        for key in keys {
            let value = "Mon 09:00-17:00;".repeat(10_000);
            let source = json!({"metadata": {"name": "demo", "annotations": {key: value}}, "data": {}});
            let observed = Observed::read(SourceKind::ConfigMap, source.to_string().as_bytes()).unwrap();
            let kept = format!("{:?}", SourceRecord::of(&observed)).len();
            assert!(kept < 6 * annotations::LONGEST, "{key}: {kept} characters");
        }
    }

    /// A cut value must not become valid: a source would follow a setting that no user wrote.
    #[test]
    fn cut_window_stays_closed() {
        let day = "Mon,".repeat(annotations::LONGEST / 4);
        for days in [1, annotations::LONGEST / 4 - 4, annotations::LONGEST / 4, annotations::LONGEST] {
            let window = format!("{}Mon 09:00-17:00", "Mon,".repeat(days));
            let is_valid = window.len() <= annotations::LONGEST;
            for text in [&*window, annotations::bounded(&window)] {
                let texts = Texts::read(|key| (key == annotations::WINDOW).then_some(text));
                assert_eq!(texts.invalid().is_empty(), is_valid, "{days} days");
            }
        }
        assert!(annotations::bounded(&format!("{day}ä")).len() > annotations::LONGEST);
    }
}
