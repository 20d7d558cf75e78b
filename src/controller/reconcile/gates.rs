//! When a pending workload may roll, whatever the others do: inside its windows, and when all sources of a set that it uses have
//! the same version.
//!
//! Nothing is stored for it: the annotations and the time decide, so a restart changes nothing.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    event_texts::{invalid_on_source, invalid_on_workload},
    held::TURN,
};
use crate::{
    cluster::{Event, WorkloadKey},
    controller::{
        index::{Index, records::SourceRecord},
        name::Name,
    },
    resolve::{Closed, Observed, Record, SetWait, Use, WindowOf},
};

/// The longest time until a postponed workload is checked again. A change of an annotation checks it at once; this is for a
/// system clock that is set.
const RECHECK: SignedDuration = SignedDuration::from_mins(10);

/// Why a pending workload may not roll now.
#[derive(Debug)]
pub(super) struct Shut {
    /// When to check it again.
    pub until: Timestamp,
    /// Only the time decides: no person needs to act.
    pub is_expected: bool,
    /// The Events about settings that cannot be followed.
    pub events: Vec<Event>,
}

/// Why a pending workload may not roll now; `None` if it may.
pub(super) fn shut(index: &Index, key: &WorkloadKey, record: &Record, now: Timestamp) -> Option<Shut> {
    let later = now + RECHECK;
    let known = || sources(index, key, record);
    let is_joining = index.joining(key).is_some();
    let moving = || known().filter(|(used, known)| is_joining || record.is_pending_for(used, &known.present));
    let of_sources = moving().filter_map(|(used, known)| {
        let window = known.gates.as_ref()?.window.as_deref()?;
        Some((WindowOf::Source(used.source.clone()), window))
    });
    match Closed::of(of_workload(index, key, record).chain(of_sources), now) {
        None => {}
        Some(Closed::Until { opens, .. }) => {
            let until = opens.map_or(later, |opens| opens.min(later));
            return Some(Shut { until, is_expected: true, events: Vec::new() });
        }
        Some(Closed::Invalid { of, why }) => {
            let events = invalid(index, key, &of, &why, now).into_iter().collect();
            return Some(Shut { until: later, is_expected: false, events });
        }
    }
    let set = |known: &'_ SourceRecord| known.gates.as_ref().is_some_and(|gates| gates.set.is_some());
    if !moving().any(|(_, known)| set(known)) {
        return None;
    }
    if index.awaits_source(key) {
        return Some(Shut { until: now + TURN, is_expected: true, events: Vec::new() });
    }
    let sets: Vec<_> = known()
        .filter(|(used, known)| {
            let is_live = used.live || known.present.live == Some(true);
            !used.excluded && (is_live || !known.present.stays_as_written)
        })
        .filter_map(|(used, known)| Some((&used.source, known.gates.as_ref()?.set.as_deref()?)))
        .collect();
    let wait = moving().find_map(|(used, _)| SetWait::of(&used.source, sets.iter().copied()))?;
    let events = match wait {
        SetWait::Differs(_) => Vec::new(),
        SetWait::Invalid { source, why } => {
            invalid(index, key, &WindowOf::Source(source), &why, now).into_iter().collect()
        }
    };
    Some(Shut { until: later, is_expected: false, events })
}

/// When a workload would roll to content that a source is about to get, as far as windows decide that; `None` if it is now.
pub(crate) fn postponed(
    index: &Index,
    key: &WorkloadKey,
    record: &Record,
    source: &Name,
    content: &Observed,
    now: Timestamp,
) -> Option<String> {
    let window = content.annotation(crate::annotations::WINDOW);
    let of_source = window.as_deref().map(|window| (WindowOf::Source(source.object.clone()), window));
    Closed::of(of_workload(index, key, record).chain(of_source), now).map(|closed| closed.to_string())
}

/// The windows of a workload and its namespace.
fn of_workload<'i>(
    index: &'i Index,
    key: &WorkloadKey,
    record: &'i Record,
) -> impl Iterator<Item = (WindowOf, &'i str)> {
    let own = record.window.as_deref().map(|window| (WindowOf::Workload, window));
    let of_namespace = index.window_of(&key.namespace).map(|window| (WindowOf::Namespace, window));
    own.into_iter().chain(of_namespace)
}

/// The sources that a workload uses and that are known.
fn sources<'i>(
    index: &'i Index,
    key: &WorkloadKey,
    record: &'i Record,
) -> impl Iterator<Item = (&'i Use, &'i SourceRecord)> {
    let namespace = Arc::clone(&key.namespace);
    record.uses.iter().filter_map(move |used| {
        let name = Name::new(Arc::clone(&namespace), used.source.clone());
        Some((used, index.existing_source(&name)?))
    })
}

/// The Event about a setting that cannot be followed: on the object that has it, or on the workload.
fn invalid(index: &Index, key: &WorkloadKey, of: &WindowOf, why: &str, now: Timestamp) -> Option<Event> {
    match of {
        WindowOf::Source(source) => {
            let source = Name::new(Arc::clone(&key.namespace), source.clone());
            invalid_on_source(index, &source, why, now)
        }
        WindowOf::Workload => invalid_on_workload(index, key, false, why, now),
        WindowOf::Namespace => invalid_on_workload(index, key, true, why, now),
    }
}
