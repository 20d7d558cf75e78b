//! The sources of a set have different versions.

use super::{
    asked::{Answer, Asked},
    why::Why,
};
use crate::resolve::SetWait;

pub(super) fn ask<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    let Some(sets) = asked.sets() else { return Answer::Wait(Why::SetUnread) };
    match SetWait::of(&asked.used().source, sets) {
        Some(wait) => Answer::Wait(Why::Set(wait)),
        None => Answer::Open,
    }
}
