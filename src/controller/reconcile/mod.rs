//! Decides what to do for an object.

pub(crate) mod bound;
pub(crate) mod events;
pub(crate) mod hold;
pub(crate) mod join;
pub(crate) mod owners;
pub(crate) mod plan;
pub(crate) mod standing;
