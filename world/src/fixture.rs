//! A small world for tests of single rules: two sources with three snapshots each.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "only tests call it")]

use std::sync::Arc;

use confrev_core::{
    annotations,
    compact::CompactSet,
    gate_settings::Texts,
    kinds::Kinds,
    resolve::{Health, Pace, Present, Record, RecordedFailure, SpreadPolicy, Use, Verdict},
    snapshot::{DIGITS, Digest, ObjectName, SourceKind, snapshot_name},
    tie::Tie,
};
use jiff::{SignedDuration, Timestamp};

use crate::{
    config::WorldConfig,
    name::Name,
    objects::WorkloadKey,
    records::{SnapshotRecord, SourceRecord},
    world::World,
};

/// A ConfigMap.
pub fn object(name: &str) -> ObjectName {
    ObjectName::new(SourceKind::ConfigMap, name)
}

/// A ConfigMap of the namespace.
pub fn source(name: &str) -> Name {
    Name::new("ns", object(name))
}

/// The digest of a content, from 1 to 9.
pub fn digest(content: u8) -> Digest {
    format!("sha256:{content:0<64}").parse().unwrap()
}

/// The name of the snapshot of a content.
pub fn snapshot(source: &str, content: u8) -> Arc<str> {
    snapshot_name(source, &digest(content), DIGITS[0]).into()
}

/// A reference to the snapshot of a content; to the source itself without one.
pub fn used(source: &str, content: Option<u8>) -> Use {
    Use::new(object(source), content.map(|content| snapshot(source, content)))
}

/// A reference that the annotation `hold` keeps.
pub fn held(source: &str, content: u8) -> Use {
    Use { on_hold: true, ..used(source, Some(content)) }
}

/// The record of a workload that has seen this content of all its sources.
pub fn workload(name: &str, uid: u8, uses: Vec<Use>, seen: Digest, health: Health) -> Record {
    let seen = Some(seen);
    let tie = |used: &Use| (used.source.clone(), Tie { seen, ..Tie::default() });
    Record {
        uid: format!("{name}-{uid}").as_str().into(),
        resource_version: Box::default(),
        ties: uses.iter().map(tie).collect(),
        uses,
        pace: Pace::default(),
        generation: None,
        track: true,
        min_interval: std::time::Duration::ZERO,
        last_roll: None,
        last_plan: None,
        is_marked: false,
        idle_holds: None,
        health,
        gates: Texts::default(),
        by_namespace: uid == 1,
    }
}

/// A workload that has seen the content 2 of all that it uses.
pub fn record(name: &str, uses: &[Use]) -> Record {
    let record = workload(name, 0, uses.to_vec(), digest(2), Health::Settled);
    Record { resource_version: "7".into(), ..record }
}

/// The record of a workload that has seen these contents of its sources, and no others.
pub fn having_seen(record: Record, seen: &[(&str, u8)]) -> Record {
    let sources: Vec<_> = record.ties.iter().map(|(source, _)| source.clone()).collect();
    let record = sources.iter().fold(record, |record, source| record.tied(source, |tie| tie.seen = None));
    let see = |record: Record, (name, content): &(&str, u8)| {
        record.tied(&object(name), |tie| tie.seen = Some(digest(*content)))
    };
    seen.iter().fold(record, see)
}

/// A Deployment of the namespace.
pub fn key(name: &str) -> WorkloadKey {
    let kinds = Kinds::default();
    let kind = kinds.iter().position(|kind| kind.kind == "Deployment").unwrap();
    WorkloadKey { kind, namespace: "ns".into(), name: name.into() }
}

/// The snapshot of a content.
pub fn snapshot_record(source: &str, content: u8) -> SnapshotRecord {
    SnapshotRecord {
        uid: "1".into(),
        resource_version: "1".into(),
        source: source.into(),
        digest: digest(content),
        created: Timestamp::UNIX_EPOCH + SignedDuration::from_hours(i64::from(content)),
        late: 0,
        owners: CompactSet::default(),
        verdict: None,
        bytes: 1024,
    }
}

/// A source with a content.
pub fn source_record(source: &str, content: u8) -> SourceRecord {
    let present = Present::new(digest(content).into());
    SourceRecord {
        uid: format!("uid-{source}").as_str().into(),
        resource_version: content.to_string().into(),
        present,
        keep: 0,
        revoked: None,
        report: None,
        spread: SpreadPolicy::default().into(),
        gates: None,
    }
}

/// A source whose change comes back if it fails.
pub fn reverting(source: &str, content: u8) -> SourceRecord {
    let spread = SpreadPolicy { reverts: true, ..SpreadPolicy::default() };
    SourceRecord { spread: spread.into(), ..source_record(source, content) }
}

/// The verdict on a content with which a workload failed.
pub fn failed(previous: Option<&str>) -> Verdict {
    let failed =
        RecordedFailure { reason: "it fails".into(), at: "now".into(), previous: previous.map(Box::from) };
    Verdict { failed: Some(failed), ..Verdict::default() }
}

/// The sources a and b, whose present content is 2, with the snapshots of the contents 1 to 3, and these workloads.
pub fn world(workloads: &[(&str, &Record)]) -> World {
    let mut world = World::new(WorldConfig::new(Arc::new(Kinds::default())));
    world.set_synced();
    let changes = &mut Vec::new();
    for name in ["a", "b"] {
        for content in 1..=3 {
            let snapshot = source(name).sibling(snapshot(name, content));
            world.apply_snapshot(&snapshot, Some(snapshot_record(name, content)), changes);
        }
    }
    for (name, record) in workloads {
        world.apply_workload(&key(name), Some((*record).clone()), changes);
    }
    for name in ["a", "b"] {
        world.set_read(&source(name), Some(source_record(name, 2)), changes);
    }
    world
}

/// The settings of an object with this window.
pub fn window(text: &str) -> Texts {
    Texts::read(|key| (key == annotations::WINDOW).then_some(text))
}
