//! A setting of the workload, of its namespace or of the source keeps the workload where it is for some time, or is malformed.

use super::{
    asked::{Answer, Asked},
    why::Why,
};
use crate::gate_settings::closed;

pub(super) fn ask<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    let closed = closed(asked.settings(), asked.now());
    closed.map_or(Answer::Open, |closed| Answer::Wait(Why::Closed(closed)))
}
