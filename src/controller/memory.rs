//! A short memory of snapshots that the garbage collector may take at the very moment at which they are bound anew.

use std::{collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::Name;
use crate::resolve::Observed;

/// How long a content is remembered: the collector acts within seconds of an owner's end.
const REMEMBERED: SignedDuration = SignedDuration::from_secs(60);
/// How many contents are remembered at once. An object holds at most 1 MiB, so this bounds the memory.
const MOST: usize = 16;

/// Contents by snapshot.
#[derive(Debug, Default)]
pub(super) struct Memory(HashMap<Name, (Timestamp, Arc<Observed>)>);

impl Memory {
    /// Remembers a snapshot's content for a while; the oldest goes where there are too many.
    pub(super) fn remember(&mut self, name: Name, content: Arc<Observed>, now: Timestamp) {
        self.0.retain(|_, (at, _)| now.duration_since(*at) < REMEMBERED);
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, (at, _))| *at).map(|(name, _)| name.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(name, (now, content));
    }

    /// The content of a snapshot, where it is remembered.
    pub(super) fn recall(&self, name: &Name) -> Option<Arc<Observed>> {
        self.0.get(name).map(|(_, content)| Arc::clone(content))
    }
}
