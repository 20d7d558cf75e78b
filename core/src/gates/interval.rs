//! The workload rolled less than its `min-interval` ago.

use super::{
    asked::{Answer, Asked},
    why::Why,
};

pub(super) fn ask<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    asked.interval_left().map_or(Answer::Open, |left| Answer::Wait(Why::Interval(left)))
}
