//! The content fails its schema: no workload moves to it.

use super::{
    asked::{Answer, Asked},
    why::Why,
};

pub(super) fn ask<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    match asked.schema_failure().filter(|_| !asked.has_content()) {
        Some(failure) => Answer::Refuse(Why::Schema { failure: failure.to_owned() }),
        None => Answer::Open,
    }
}
