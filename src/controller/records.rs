//! The records: the few fields that are kept of each object. Names are shared texts, see [`super::texts`].

use std::sync::Arc;

use jiff::Timestamp;

use crate::{
    cluster::{Owner, WorkloadKey},
    compact::CompactSet,
    resolve::{Present, Use},
    snapshot::Digest,
    uid::Uid,
};

/// A revision object by kind (index into [`crate::kinds::REVISION_KINDS`]), namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevisionKey {
    /// Index into [`crate::kinds::REVISION_KINDS`].
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
pub(super) enum User {
    /// A workload's present template.
    Workload(WorkloadKey),
    /// A revision's template.
    Revision(RevisionKey),
}

/// What is known of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Not read yet.
    Unknown,
    /// It does not exist.
    Missing,
    /// It exists.
    Found(Found),
}

/// A source that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The object's uid.
    pub uid: Uid,
    /// The resourceVersion that was read.
    pub resource_version: String,
    /// What decisions need to know of it.
    pub present: Present,
    /// Whether it is labelled to be snapshotted at every change, used or not.
    pub always: bool,
    /// How many of its newest snapshots are kept.
    pub keep: usize,
    /// How many workloads a change may roll at once.
    pub max_in_flight: Option<usize>,
}

/// The record of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// The object's uid.
    pub uid: Uid,
    /// The object's resourceVersion.
    pub resource_version: String,
    /// The name of its source.
    pub source: Arc<str>,
    /// The digest that it states.
    pub digest: Digest,
    /// When it was created.
    pub created: Timestamp,
    /// Its ownerReferences.
    pub owners: CompactSet<Owner>,
}
