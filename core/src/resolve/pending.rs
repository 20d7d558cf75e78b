//! The controller's question to the decision: does this workload use a source whose content it has not seen?

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use super::{
    ExcludedLabels, Health, KeyNames, LabelNames, MissingPolicy, Observed, Policy, Workload,
    carried::is_marked,
    plan::{auto_roll_time, plan_time},
};
use crate::{
    annotations,
    compact::CompactMap,
    gate_settings::Texts,
    snapshot::{Digest, Digests, ObjectName, Rotated, SourceKind},
    template::Reference,
    tie::{ReadKey, Reads, Tie},
    uid::Uid,
};

/// The controller's record of an opted-in workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The object's uid.
    pub uid: Uid,
    /// The object's resourceVersion.
    pub resource_version: Box<str>,
    /// Every source and snapshot that its template names.
    pub uses: Vec<Use>,
    /// What ties it to each source.
    pub ties: CompactMap<ObjectName, Tie>,
    /// Its settings for changes that spread step by step.
    pub pace: Pace,
    /// The object's generation.
    pub generation: Option<i64>,
    /// Whether it rolls automatically.
    pub track: bool,
    /// The minimum time between two automatic rolls.
    pub min_interval: Duration,
    /// When confrev last rolled it.
    pub last_roll: Option<Timestamp>,
    /// The time of the last plan, confrev's or a person's. The next one has a later time, or admission takes it for one that an undo restores.
    pub last_plan: Option<Timestamp>,
    /// The state of the rollout of its present template, from its status.
    pub health: Health,
    /// Its settings that are gates, valid or not.
    pub gates: Texts,
    /// Whether its `enabled` label comes from the namespace.
    pub by_namespace: bool,
    /// Whether confrev has not decided on its last write.
    pub is_marked: bool,
    /// The names in its annotation `hold` that hold nothing: no reference of the template resolves to them.
    pub idle_holds: Option<Box<[ObjectName]>>,
}

/// What decides when a change reaches a workload, beside the source's own settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Lower values move first. Without it, that of the namespace counts.
    pub order: Option<i32>,
    /// How long a rollout may take, in seconds, if the workload's controller does not decide that.
    pub deadline_seconds: u32,
    /// When its spec was last written, as far as this is known.
    pub written: Option<Timestamp>,
}

/// A source that a template uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Use {
    /// The source.
    pub source: ObjectName,
    /// The snapshot that the template names; `None` if it names the source itself.
    pub snapshot: Option<Arc<str>>,
    /// Whether the template names the source itself, and records the digest of its content.
    pub live: bool,
    /// Whether the template uses the whole content, not only some keys.
    pub whole: bool,
    /// Whether references to it stay as written by a setting of the workload, of its namespace or of the installation.
    pub excluded: bool,
    /// The same, if the source has one of these labels.
    pub unless_labelled: ExcludedLabels,
    /// Whether it may be missing without a warning: the reference is optional, or the workload allows it.
    pub optional: bool,
    /// Whether the workload's `hold` annotation names the snapshot. Such a reference never moves by itself.
    pub on_hold: bool,
}

impl Use {
    /// A reference to the whole source, or to a snapshot of it, without any setting.
    pub fn new(source: ObjectName, snapshot: Option<Arc<str>>) -> Self {
        Self {
            source,
            snapshot,
            live: false,
            whole: true,
            excluded: false,
            unless_labelled: ExcludedLabels::default(),
            optional: false,
            on_hold: false,
        }
    }

    /// Whether references to the source stay as written by a setting, if it has these labels.
    pub fn excludes(&self, labels: &LabelNames) -> bool {
        self.excluded || self.unless_labelled.have(labels)
    }

    /// How many different names these uses refer to.
    pub fn names(uses: &[Self]) -> usize {
        let name = |used: &'_ Self| {
            (used.source.kind, Arc::clone(used.snapshot.as_ref().unwrap_or(&used.source.name)))
        };
        uses.iter().map(name).collect::<std::collections::BTreeSet<_>>().len()
    }
}

/// The facts about a source that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// The digests of its content.
    pub digests: Digests,
    /// References to it stay as written.
    pub stays_as_written: bool,
    /// References to it stay as written, and a change of it rolls. `None`: its namespace decides, as an admission has already
    /// taken into account.
    pub live: Option<bool>,
    /// It is bound itself to the revisions that use it, so their templates must list it in `sources`.
    pub bound_itself: bool,
    /// It is itself a snapshot: a second one of its source, which makes nothing pending.
    pub is_snapshot: bool,
    /// The names of its keys.
    pub keys: KeyNames,
    /// Its labels.
    pub labels: LabelNames,
}

impl Present {
    /// A source with this content and without settings. Its keys are not known.
    pub fn new(digests: Digests) -> Self {
        Self {
            digests,
            stays_as_written: false,
            live: None,
            bound_itself: false,
            is_snapshot: false,
            keys: KeyNames::default(),
            labels: LabelNames::default(),
        }
    }
}

impl From<&Observed> for Present {
    fn from(observed: &Observed) -> Self {
        Self {
            digests: observed.digests().clone(),
            stays_as_written: observed.stays_as_written(),
            live: observed.is_live(),
            bound_itself: observed.is_bound_itself(),
            is_snapshot: observed.identity().is_some(),
            keys: KeyNames::of(observed.keys()),
            labels: observed.labels().clone(),
        }
    }
}

impl Record {
    /// Whether the workload has taken this content of the source into account.
    pub fn has_seen(&self, source: &ObjectName, content: &Digests) -> bool {
        self.ties.get(source).is_some_and(|tie| tie.has_seen(content))
    }

    /// The content of a source that the workload last took into account.
    pub fn seen(&self, source: &ObjectName) -> Option<&Digest> {
        self.ties.get(source)?.seen.as_ref()
    }

    /// When the controller moved the workload to the content of a source that it has seen.
    pub fn moved(&self, source: &ObjectName) -> Option<Timestamp> {
        self.ties.get(source)?.moved
    }

    /// The snapshot of a source before the workload moved to the one that it uses.
    pub fn previous(&self, source: &ObjectName) -> Option<&Arc<str>> {
        self.ties.get(source)?.previous.as_ref()
    }

    /// The digest of the keys of a source that the workload rejects by an undo or a pin.
    pub fn pinned(&self, source: &ObjectName) -> Option<&Digest> {
        self.ties.get(source)?.pinned.as_deref()
    }

    /// The keys of a source that the template names; `None` if it names no key, and the whole source.
    pub fn reads(&self, source: &ObjectName) -> Option<&Reads> {
        self.ties.get(source)?.reads.as_deref()
    }

    /// The record with another tie to a source.
    #[must_use]
    pub fn tied(mut self, source: &ObjectName, change: impl FnOnce(&mut Tie)) -> Self {
        let mut ties: BTreeMap<_, _> = self.ties.into_iter().collect();
        change(ties.entry(source.clone()).or_default());
        self.ties = ties.into_iter().collect();
        self
    }

    /// Whether the workload's `hold` annotation keeps its references to the source.
    pub fn is_on_hold(&self, source: &ObjectName) -> bool {
        self.uses.iter().any(|used| used.on_hold && used.source == *source)
    }

    /// The keys that the workload reads of a source; `None` if it reads the whole source.
    pub fn keys_of(&self, source: &ObjectName) -> Option<BTreeSet<&str>> {
        let reads = self.reads(source).filter(|reads| !reads.whole)?;
        Some(reads.keys.iter().map(|read| &*read.key).collect())
    }

    /// Derives the record of a workload. It omits references that stay as written by a setting, and, until an admission has
    /// resolved them, Secrets that only the namespace asks for.
    pub fn of(workload: &Workload<'_>, health: Health, rotated: &Rotated) -> Self {
        let (policy, _) = Policy::read(workload);
        let (sources, live) = (workload.sources(), workload.live());
        // The namespace may decide whether Secrets are snapshotted. An admission has then applied its setting.
        let excluded = |source: &ObjectName| {
            let unwanted = source.kind == SourceKind::Secret && policy.secrets == Some(false);
            unwanted || rotated.contains(source) || policy.exclude.names(source)
        };
        let state = workload.state();
        // A reference that stays as written for now has an entry, too: the namespace may ask for snapshots of Secrets.
        let asked = |source: &ObjectName| {
            source.kind == SourceKind::ConfigMap
                || policy.secrets == Some(true)
                || state.get(source).is_some_and(|entry| entry.lacking)
        };
        let references = workload.template.as_ref().map(super::super::template::Template::references);
        let mut uses: Vec<_> = references
            .iter()
            .flatten()
            .map(|reference| {
                let entered = sources.source_of(reference.kind, reference.name).cloned();
                let snapshot = entered.is_some().then(|| Arc::from(reference.name));
                let source = entered.unwrap_or_else(|| ObjectName::new(reference.kind, reference.name));
                let excluded = excluded(&source);
                let optional = reference.optional || policy.missing == MissingPolicy::Allow;
                let live = snapshot.is_none() && live.get(&source).is_some();
                let on_hold = snapshot.is_some()
                    && policy.hold.contains(&ObjectName::new(reference.kind, reference.name));
                let (whole, unless_labelled) = (reference.keys.is_none(), policy.exclude.labels().clone());
                Use { source, snapshot, live, whole, excluded, unless_labelled, optional, on_hold }
            })
            .filter(|used| used.snapshot.is_some() || used.live || (asked(&used.source) && !used.excluded))
            .collect();
        uses.sort();
        uses.dedup();
        let mut idle_holds = policy.hold.clone();
        for used in uses.iter().filter(|used| used.on_hold) {
            let name = used.snapshot.clone().unwrap_or_default();
            idle_holds.remove(&ObjectName { kind: used.source.kind, name });
        }
        let mut reads = ReadKeys::new();
        for reference in references.iter().flatten() {
            let entered = sources.source_of(reference.kind, reference.name).cloned();
            let source = entered.unwrap_or_else(|| ObjectName::new(reference.kind, reference.name));
            add_keys(&mut reads, source, reference, policy.missing != MissingPolicy::Allow);
        }
        reads.retain(|source, _| uses.binary_search_by(|used| used.source.cmp(source)).is_ok());
        let mut ties: BTreeMap<_, _> =
            state.iter().map(|(source, entry)| (source.clone(), Tie::from(entry))).collect();
        for (source, reads) in listed(reads) {
            ties.entry(source).or_default().reads = Some(Box::new(reads));
        }
        Self {
            uid: workload.uid().into(),
            resource_version: workload.resource_version().into(),
            uses,
            ties: ties.into_iter().collect(),
            pace: Pace {
                order: policy.order,
                deadline_seconds: whole_seconds(policy.progress_deadline),
                written: workload.spec_written(),
            },
            generation: workload.generation(),
            track: policy.track && workload.kind.rolls && !workload.is_being_deleted(),
            min_interval: policy.min_interval,
            health,
            gates: Texts::read(|key| workload.annotation(key)),
            by_namespace: workload.kind.rolls
                && !workload.is_being_deleted()
                && workload.annotation(annotations::ENABLED_BY).is_some()
                && !workload.enabled_is_owned(),
            is_marked: workload.kind.rolls && !workload.is_being_deleted() && is_marked(workload),
            last_roll: workload.annotation(annotations::ROLL).and_then(auto_roll_time),
            last_plan: workload.annotation(annotations::ROLL).and_then(plan_time),
            idle_holds: (!idle_holds.is_empty()).then(|| idle_holds.into_iter().collect()),
        }
    }
}

/// The seconds of a duration, rounded up: a deadline shorter than one second would be over at once.
fn whole_seconds(duration: Duration) -> u32 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// For each source, whether a template reads it whole, and the keys that its references name, each with whether pods require it.
type ReadKeys<'t> = BTreeMap<ObjectName, (bool, BTreeMap<&'t str, bool>)>;

fn add_keys<'t>(reads: &mut ReadKeys<'t>, source: ObjectName, reference: &Reference<'t>, requires: bool) {
    let (whole, known) = reads.entry(source).or_default();
    *whole |= reference.keys.is_none();
    for key in reference.keys.iter().flatten() {
        *known.entry(key).or_default() |= requires && !reference.optional;
    }
}

fn listed(reads: ReadKeys<'_>) -> impl Iterator<Item = (ObjectName, Reads)> {
    let listed = |(source, (whole, keys)): (ObjectName, (bool, BTreeMap<&str, bool>))| {
        let keys: Box<[_]> =
            keys.into_iter().map(|(key, required)| ReadKey { key: key.into(), required }).collect();
        (!keys.is_empty() || !whole).then_some((source, Reads { whole, keys }))
    };
    reads.into_iter().filter_map(listed)
}

/// Whether a poke would change a reference of the workload, or the content that it has seen.
///
/// `present` returns the facts about a source; `None` if it does not exist or is not known.
pub fn is_pending(record: &Record, mut present: impl FnMut(&ObjectName) -> Option<Present>) -> bool {
    record.track
        && record
            .uses
            .iter()
            .any(|used| present(&used.source).is_some_and(|source| record.is_pending_for(used, &source)))
}
