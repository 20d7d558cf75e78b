//! The installation refuses the content, or a workload failed with it and its source has `on-failure: revert`: no workload moves to the
//! content.

use super::{
    asked::{Answer, Asked},
    why::Why,
};

/// A workload without a snapshot is not kept from the content here: it has nothing to keep, and admission may find an earlier snapshot.
pub(super) fn ask<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    if asked.used().snapshot.is_none() || asked.has_content() {
        return Answer::Open;
    }
    if let Some(reason) = asked.listed_as_refused() {
        return Answer::Refuse(Why::Listed { reason });
    }
    match asked.refusal() {
        Some((snapshot, failure)) => {
            Answer::Refuse(Why::Refused { snapshot, reason: failure.reason.to_string() })
        }
        None => Answer::Open,
    }
}
