//! The world: the facts about objects, which objects refer to which, and what the gates ask about them.
//!
//! The controller fills it from watches and live reads, the commands from lists. Nothing here does I/O or reads a clock. Each `apply_*` takes a record, and reports as [`WorldChange`]s which
//! objects the controller may have to reconcile.

pub mod analyses;
pub mod answers;
mod bound;
pub mod change;
mod change_state;
pub mod changed_sources;
pub mod config;
mod digest_keys;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod groups;
mod inherited;
mod interner;
mod listed_contents;
pub mod live_findings;
mod name;
mod namespaces;
pub mod objections;
mod objects;
pub mod owners;
mod question;
pub mod records;
pub mod referrers;
mod refusals;
mod refused_list;
mod room;
pub mod served;
pub mod shares;
pub mod skipped;
mod snapshot_bytes;
mod snapshot_watch;
pub mod snapshots;
mod sources;
mod spread;
#[cfg(test)]
mod tests;
mod unreadable;
pub mod users;
mod watched;
mod workloads;
mod world;

pub use crate::{
    answers::{Answers, Shut},
    change::WorldChange,
    changed_sources::ChangedSources,
    config::{Reader, WorldConfig},
    digest_keys::DigestKeys,
    inherited::{Inherited, NamespaceChoice},
    live_findings::{FOUND_USERS, Verified},
    name::Name,
    objects::{MAX_NAMES, Owner, Precondition, Version, WorkloadKey, workload_owner},
    owners::MAX_OWNERS,
    records::{
        BoundRecord, KnownSource, NamespaceSettings, Revision, RevisionKey, SnapshotRecord, SourceMeta,
        SourceRecord, User,
    },
    refused_list::RefusedList,
    served::Served,
    shares::{INDEX_TOTAL, NAMESPACE_SHARE, REVISIONS_SHARE, ShareLimits},
    world::World,
};
