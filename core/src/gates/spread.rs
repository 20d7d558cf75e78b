//! The others hold the workload: the change is stopped, failed with one of them, or has to prove itself first.

use super::{
    asked::{Answer, Asked},
    why::Why,
};
use crate::resolve::Wait;

pub(super) fn ask<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    match asked.wait() {
        None => Answer::Open,
        Some(Wait::Bad(_) | Wait::Aborted | Wait::Refused) if asked.has_content() => Answer::Open,
        Some(wait) => Answer::Wait(Why::Others(wait)),
    }
}
