//! What the controller knows of the objects that it watches.

pub(crate) mod by_age;
pub(crate) mod findings;
pub(crate) mod interner;
pub(crate) mod namespaces;
pub(crate) mod objects;
pub(crate) mod records;
pub(crate) mod referrers;
pub(crate) mod unreadable;
