//! Shares of the index, which is the memory of the world: how many bytes the records of one namespace may take, and those of all namespaces together.
//!
//! Anyone who may create a ReplicaSet can fill the index with names, and no webhook sees it. A record that exceeds a share is
//! left out, and its namespace is *partly known*: nothing there is deleted without a live read, and the Namespace itself owns
//! each snapshot in use, since a user of the snapshot may be left out. Others keep their part: when the total is reached, the
//! namespace that holds most gives way. A namespace is known again once a complete list of all watches leaves nothing out.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use confrev_core::{
    resolve::{Record, Use},
    snapshot::ObjectName,
    tie::Tie,
};

use crate::{
    objects::WorkloadKey,
    records::{BoundRecord, Revision, RevisionKey, User},
};

/// The most bytes of the index that the records of one namespace take. 2,000 workloads with a ConfigMap and two ReplicaSets each
/// take 8 MiB of it.
pub const NAMESPACE_SHARE: usize = 10 << 20;
/// The most bytes of a namespace's share that its revisions take. The rest is for workloads: a workload rolls only while it is
/// known.
pub const REVISIONS_SHARE: usize = 6 << 20;
/// The most bytes of the index that the records of all namespaces take. 10,000 workloads with a ConfigMap and two ReplicaSets each
/// take 39 MiB of it.
pub const INDEX_TOTAL: usize = 40 << 20;

/// The most bytes that the owners of a namespace's snapshots take before snapshots get few further ones. 2,000 workloads with two
/// ReplicaSets each take 0.5 MiB of it. Owners stay while they use a snapshot, so they cannot give way to other namespaces.
pub const OWNERS_SHARE: usize = 2 << 20;

// How much memory a record takes at most, with its places in maps and the task that it may lead to. `tests/endurance/memory` compares
// these numbers with the memory that an allocator counts.

/// A revision, without its references.
const REVISION: usize = 150;
/// A workload, without its references.
const WORKLOAD: usize = 560;
/// An object that cannot be read.
const UNREADABLE: usize = 256;
/// A source in bind mode, without its owners.
const BOUND: usize = 512;
/// An owner of a snapshot or of a source in bind mode.
const OWNER: usize = 88;
/// A reference of a revision.
const REFERENCE: usize = 620;
/// A reference of a workload: to a source, and to a snapshot.
const USE: usize = 970;
/// How much less the first reference of a workload takes: tables have room for it.
const FIRST_USE: usize = 180;
/// A key that a workload reads.
const KEY: usize = 40;
/// What ties a workload to a source.
const TIE: usize = 160;
/// What few ties hold.
const ENTRY: usize = 96;
/// The bytes of a setting that is a gate, beside its value.
const SETTING: usize = 32;
/// A label that excludes sources.
const LABEL: usize = 8;
/// A text, beside its length.
const TEXT: usize = 64;

/// The kind of the owner that keeps snapshots of partly known namespaces.
pub const NAMESPACE: &str = "Namespace";

/// The sizes of the shares, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// The most that the records of one namespace take.
    pub namespace: usize,
    /// The most that the revisions of one namespace take.
    pub revisions: usize,
    /// The most that all records take.
    pub total: usize,
}

impl Default for ShareLimits {
    fn default() -> Self {
        Self { namespace: NAMESPACE_SHARE, revisions: REVISIONS_SHARE, total: INDEX_TOTAL }
    }
}

impl ShareLimits {
    /// No limits.
    pub const NONE: Self = {
        // Half of it: sums stay below the maximum.
        let most = usize::MAX / 2;
        Self { namespace: most, revisions: most, total: most }
    };

    /// How much a namespace gives way at once, and how much more than others it must hold to give way.
    pub(super) fn step(&self) -> usize {
        self.total / 40
    }
}

/// What a record counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A revision: a part of the share is the most for all of them.
    Revision,
    /// The owners of a snapshot.
    Owners,
    /// A workload, or a source in bind mode.
    Other,
}

impl Class {
    /// The class of a workload or revision.
    pub(super) fn of(user: &User) -> Self {
        match user {
            User::Workload(_) => Self::Other,
            User::Revision(_) => Self::Revision,
        }
    }
}

/// A list of a watch that reports workloads, revisions or sources in bind mode: its kind, and the namespace if it has only one.
pub type ListId = (&'static str, usize, Option<Arc<str>>);

/// What one namespace holds.
#[derive(Debug, Default)]
struct NamespaceUsage {
    revisions: usize,
    owners: usize,
    others: usize,
    /// What was left out last; `None`: the namespace is fully known.
    left_out: Option<LeftOut>,
}

impl NamespaceUsage {
    fn bytes(&self) -> usize {
        self.revisions + self.owners + self.others
    }
}

/// A record that was left out of a namespace.
#[derive(Debug)]
struct LeftOut {
    /// The round of lists in which it was.
    round: usize,
    /// Whether only the total was exceeded.
    by_total: bool,
    /// Whether everything may fit since: objects were deleted, or became smaller.
    may_fit: bool,
}

/// What each namespace holds of the index, and what is left out.
#[derive(Debug, Default)]
pub struct Shares {
    namespaces: HashMap<Arc<str>, NamespaceUsage>,
    total: usize,
    /// How many namespaces are partly known.
    partly_known: usize,
    /// The number of the current round of lists.
    round: usize,
    /// The round in which each list last began, and in which it last was complete.
    lists: BTreeMap<ListId, (usize, Option<usize>)>,
}

impl Shares {
    /// The bytes of all records.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The bytes of a namespace's records.
    pub(super) fn of(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, NamespaceUsage::bytes)
    }

    /// Whether the owners of the namespace's snapshots exceed their share.
    pub(super) fn has_many_owners(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|usage| usage.owners > OWNERS_SHARE)
    }

    /// Whether something of the namespace is left out.
    pub fn is_partly_known(&self, namespace: &str) -> bool {
        // There is nearly always none, and every check of owners asks.
        self.partly_known > 0 && self.namespaces.get(namespace).is_some_and(|usage| usage.left_out.is_some())
    }

    /// The namespaces of which something is left out, in order.
    pub fn partly_known(&self) -> Vec<Arc<str>> {
        let left_out = self.namespaces.iter().filter(|(_, usage)| usage.left_out.is_some());
        let mut names: Vec<_> = left_out.map(|(namespace, _)| Arc::clone(namespace)).collect();
        names.sort();
        names
    }

    /// The namespace that holds most, and how much.
    pub(super) fn largest(&self) -> Option<(&Arc<str>, usize)> {
        let sizes = self.namespaces.iter().map(|(namespace, usage)| (namespace, usage.bytes()));
        sizes.max_by_key(|(namespace, bytes)| (*bytes, Arc::clone(namespace)))
    }

    /// Whether a record of `new` bytes in place of one of `old` bytes is within the share of its namespace.
    pub(super) fn fits_namespace(
        &self,
        limits: &ShareLimits,
        namespace: &str,
        class: Class,
        (old, new): (usize, usize),
    ) -> bool {
        let known = self.namespaces.get(namespace);
        let of = |bytes: fn(&NamespaceUsage) -> usize| known.map_or(0, bytes) + new - old;
        of(NamespaceUsage::bytes) <= limits.namespace
            && (class != Class::Revision || of(|usage| usage.revisions) <= limits.revisions)
    }

    /// Counts a record of `new` bytes in place of one of `old` bytes.
    pub(super) fn charge(&mut self, namespace: &Arc<str>, class: Class, (old, new): (usize, usize)) {
        if old == new {
            return;
        }
        self.total = (self.total + new).saturating_sub(old);
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(Arc::clone(namespace), NamespaceUsage::default());
        }
        let Some(usage) = self.namespaces.get_mut(namespace) else { return };
        let bytes = match class {
            Class::Revision => &mut usage.revisions,
            Class::Owners => &mut usage.owners,
            Class::Other => &mut usage.others,
        };
        *bytes = (*bytes + new).saturating_sub(old);
        if new < old
            && let Some(left_out) = &mut usage.left_out
        {
            left_out.may_fit = true;
        }
        if usage.bytes() == 0 && usage.left_out.is_none() {
            self.namespaces.remove(namespace);
        }
    }

    /// Records that something of a namespace is left out. Returns whether it was fully known.
    pub(super) fn leave_out(&mut self, namespace: &Arc<str>, by_total: bool) -> bool {
        let left_out = LeftOut { round: self.round, by_total, may_fit: false };
        let usage = self.namespaces.entry(Arc::clone(namespace)).or_default();
        let is_new = usage.left_out.replace(left_out).is_none();
        self.partly_known += usize::from(is_new);
        is_new
    }

    /// Records that something of a namespace was deleted, or became smaller.
    pub fn note_room(&mut self, namespace: &str) {
        if let Some(left_out) = self.namespaces.get_mut(namespace).and_then(|usage| usage.left_out.as_mut()) {
            left_out.may_fit = true;
        }
    }

    /// Whether everything of some partly known namespace may fit now.
    pub fn may_fit(&self, limits: &ShareLimits) -> bool {
        if self.partly_known == 0 {
            return false;
        }
        let has_room = self.total + 4 * limits.step() <= limits.total;
        let left_out = self.namespaces.values().filter_map(|usage| usage.left_out.as_ref());
        let mut fits = left_out.map(|left_out| left_out.may_fit || (left_out.by_total && has_room));
        fits.any(|fits| fits)
    }

    /// Begins another round of lists.
    pub fn begin_round(&mut self) {
        self.round += 1;
        for left_out in self.namespaces.values_mut().filter_map(|usage| usage.left_out.as_mut()) {
            left_out.may_fit = false;
        }
    }

    /// Records that a list begins.
    pub fn list_began(&mut self, list: ListId) {
        self.lists.entry(list).or_insert((0, None)).0 = self.round;
    }

    /// Records that a list is complete. Returns the namespaces that are fully known from now on: no list of the last round has
    /// left anything out.
    pub(super) fn list_ended(&mut self, list: &ListId) -> Vec<Arc<str>> {
        if let Some((began, ended)) = self.lists.get_mut(list) {
            *ended = Some(*began);
        }
        let rounds: Option<Vec<_>> = self.lists.values().map(|(_, ended)| *ended).collect();
        let Some(complete) = rounds.and_then(|rounds| rounds.into_iter().min()) else { return Vec::new() };
        let mut known = Vec::new();
        self.namespaces.retain(|namespace, usage| {
            if usage.left_out.as_ref().is_some_and(|left_out| left_out.round < complete) {
                usage.left_out = None;
                known.push(Arc::clone(namespace));
            }
            usage.bytes() > 0 || usage.left_out.is_some()
        });
        self.partly_known -= known.len();
        known
    }
}

/// The bytes of a text.
fn text(text: &str) -> usize {
    TEXT + text.len()
}

/// The bytes of the names of references.
fn names(uses: &[Use], each: usize) -> impl Iterator<Item = usize> + use<'_> {
    uses.iter().map(move |used| each + text(&used.source.name) + used.snapshot.as_deref().map_or(0, text))
}

/// The bytes of a revision.
pub(super) fn of_revision(key: &RevisionKey, revision: &Revision) -> usize {
    REVISION + text(&key.name) + names(&revision.uses, REFERENCE).sum::<usize>()
}

/// The bytes of a workload.
pub(super) fn of_workload(key: &WorkloadKey, record: &Record) -> usize {
    let Record { uses, ties, gates, .. } = record;
    let of_tie = |(source, tie): &(ObjectName, Tie)| {
        let keys = tie.reads.iter().flat_map(|reads| reads.keys.iter().map(|read| KEY + text(&read.key)));
        let boxes = usize::from(tie.pinned.is_some()) + usize::from(tie.reads.is_some());
        TIE + source.name.len()
            + ENTRY * boxes
            + tie.previous.as_deref().map_or(0, text)
            + keys.sum::<usize>()
    };
    WORKLOAD
        + text(&key.name)
        + names(uses, USE).sum::<usize>().saturating_sub(if uses.is_empty() { 0 } else { FIRST_USE })
        + ties.iter().map(of_tie).sum::<usize>()
        + gates.iter().map(|(_, value)| SETTING + text(value)).sum::<usize>()
        // All references share them.
        + uses.first().map_or(0, |used| LABEL * used.unless_labelled.len())
}

/// The bytes of a source in bind mode.
pub(super) fn of_bound(name: &str, record: &BoundRecord) -> usize {
    let owners = record.owners.iter().map(|owner| OWNER + self::text(&owner.name));
    BOUND + text(name) + owners.sum::<usize>()
}

/// The bytes of the owners of a snapshot.
pub(super) fn of_owners(owners: usize) -> usize {
    OWNER * owners
}

/// The bytes of an object that cannot be read.
pub(super) fn of_unreadable(user: &User) -> usize {
    UNREADABLE + text(user.name())
}
