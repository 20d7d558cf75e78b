//! What the gates ask, and how they answer.

use jiff::{SignedDuration, Timestamp};

use super::why::Why;
use crate::{
    gate_settings::{Place, Texts},
    resolve::{Membership, Present, Record, RecordedFailure, Use, Wait},
    snapshot::ObjectName,
};

/// What the gates ask about a workload and a source to whose present content it would move.
pub trait Asked {
    /// How a workload is named in a reason.
    type Key: Clone;

    /// The workload.
    fn record(&self) -> &Record;
    /// Its use of the source.
    fn used(&self) -> &Use;
    /// The present content of the source, and its mode.
    fn present(&self) -> &Present;
    /// Whether the workload does not follow changes by itself, and this is a change: a workload that is about to be opted in has had none.
    fn is_paused(&self) -> bool;
    /// The settings that are gates, of the workload, of its namespace and of the source.
    fn settings(&self) -> Vec<(Place, &Texts)>;
    /// The sources of the workload that belong to sets and may move it, and those that did and do not exist now. `None`: one of its
    /// sources is not known yet.
    fn sets(&self) -> Option<Vec<(&ObjectName, Membership<'_>)>>;
    /// The refused snapshot of the present content, and the failure.
    fn refusal(&self) -> Option<(String, &RecordedFailure)>;
    /// Why the installation refuses the present content.
    fn listed_as_refused(&self) -> Option<String>;
    /// Why the present content fails its schema, as far as that was checked.
    fn schema_failure(&self) -> Option<&str>;
    /// Why others hold the workload from the content. It is asked only if no earlier gate is shut.
    fn wait(&mut self) -> Option<Wait<Self::Key>>;
    /// The time.
    fn now(&self) -> Timestamp;

    /// The time that remains of the workload's `min-interval`.
    fn interval_left(&self) -> Option<SignedDuration>;

    /// Whether the workload has the content already, in another mode. No verdict on the content keeps it from moving then.
    fn has_content(&self) -> bool;
}

/// The answer of a gate, and of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<K> {
    /// The workload may move.
    Open,
    /// It may move later.
    Wait(Why<K>),
    /// It does not move to this content: it keeps its snapshot, or goes back to an earlier one.
    Refuse(Why<K>),
}
