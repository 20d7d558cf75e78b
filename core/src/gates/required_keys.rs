//! The content lacks a key that the template requires: new pods would not start.

use super::{
    asked::{Answer, Asked},
    why::Why,
};
use crate::snapshot::SourceKind;

/// A workload without a snapshot has nothing to keep: its references stay as written until the key is there.
pub(super) fn ask<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    let (used, present) = (asked.used(), asked.present());
    if used.snapshot.is_none() || !present.mode_for(used).has_snapshot() || asked.has_content() {
        return Answer::Open;
    }
    let reads = asked.record().reads(&used.source).map_or(&[][..], |reads| &reads.keys);
    match reads.iter().find(|read| read.required && present.keys.lack(&read.key)) {
        // No message has the name of a key of a Secret.
        Some(read) => {
            let key = (used.source.kind == SourceKind::ConfigMap).then(|| read.key.to_string());
            Answer::Refuse(Why::RequiredKey { key })
        }
        None => Answer::Open,
    }
}
