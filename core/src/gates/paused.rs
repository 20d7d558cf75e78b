//! The workload does not follow changes by itself: `track: "false"`.

use super::{
    asked::{Answer, Asked},
    why::Why,
};

pub(super) fn ask<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    if asked.is_paused() { Answer::Refuse(Why::Paused) } else { Answer::Open }
}
