//! What the controller knows between two decisions, and which tasks a change of it queues.

pub(crate) mod checked_schemas;
pub(crate) mod counted_changes;
pub(crate) mod enqueue;
pub(crate) mod event_texts;
pub(crate) mod events;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod gate_names;
pub(crate) mod gates;
pub(crate) mod gauges;
pub(crate) mod held;
pub(crate) mod missing_snapshots;
pub(crate) mod partly_known;
pub(crate) mod relists;
pub(crate) mod report;
pub(crate) mod rested;
pub(crate) mod rolls;
pub(crate) mod state;
pub(crate) mod state_checks;
