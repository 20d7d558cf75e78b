//! The annotation `hold` keeps the workload's snapshot.

use super::{
    asked::{Answer, Asked},
    why::Why,
};
use crate::resolve::Use;

pub(super) fn ask<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    why(asked.used()).map_or(Answer::Open, Answer::Refuse)
}

pub(super) fn why<K>(used: &Use) -> Option<Why<K>> {
    used.on_hold.then(|| Why::Held { snapshot: used.snapshot.as_deref().unwrap_or_default().to_owned() })
}
