//! A short memory of snapshots that the garbage collector may delete just as they are bound again.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::Name;
use crate::resolve::Observed;

/// How long a content is remembered: the garbage collector acts within seconds of an owner's deletion.
const REMEMBERED: SignedDuration = SignedDuration::from_secs(60);
/// The most bytes of contents that are remembered at once. An object of 1 MiB may be 6 MiB of JSON, so a number of contents
/// would not bound the memory.
const MOST_BYTES: usize = 16 << 20;
/// The most contents, if all are small.
const MOST: usize = 16;

/// The part of [`MOST_BYTES`] that a content takes.
fn weight(content: &Observed) -> usize {
    content.size().max(MOST_BYTES / MOST)
}

/// Contents by snapshot.
#[derive(Debug, Default)]
pub(super) struct Memory(HashMap<Name, (Timestamp, Arc<Observed>)>);

impl Memory {
    /// Remembers a snapshot's content for a while. If there are too many, the oldest of the namespace with the most is
    /// forgotten: reviews in one namespace cannot displace the snapshots of others.
    pub(super) fn remember(&mut self, name: Name, content: Arc<Observed>, now: Timestamp) {
        self.forget_old(now);
        self.0.insert(name, (now, content));
        let weigh = |of: &dyn Fn(&Name) -> bool, all: &HashMap<Name, (Timestamp, Arc<Observed>)>| -> usize {
            all.iter().filter(|(name, _)| of(name)).map(|(_, (_, content))| weight(content)).sum()
        };
        while weigh(&|_| true, &self.0) > MOST_BYTES {
            let of_namespace = |name: &Name| weigh(&|known| known.namespace == name.namespace, &self.0);
            let displaced = self.0.iter().max_by_key(|(name, (at, _))| (of_namespace(name), Reverse(*at)));
            let Some(displaced) = displaced.map(|(name, _)| name.clone()) else { return };
            self.0.remove(&displaced);
        }
    }

    /// The content of a snapshot, if it is remembered.
    pub(super) fn recall(&self, name: &Name) -> Option<Arc<Observed>> {
        self.0.get(name).map(|(_, content)| Arc::clone(content))
    }

    /// Forgets content that was remembered for long enough.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        self.0.retain(|_, (at, _)| now.duration_since(*at) < REMEMBERED);
    }
}

/// Contents of sources between the read and the creation of the snapshot.
#[derive(Debug, Default)]
pub(super) struct Fresh(HashMap<Name, Arc<Observed>>);

impl Fresh {
    /// Keeps a content until it is taken. If too many are waiting, it is dropped and the source is read again.
    pub(super) fn put(&mut self, source: &Name, content: Arc<Observed>) {
        let others = self.0.iter().filter(|(name, _)| *name != source);
        let held: usize = others.map(|(_, content)| weight(content)).sum();
        if held + weight(&content) <= MOST_BYTES {
            self.0.insert(source.clone(), content);
        } else {
            self.0.remove(source);
        }
    }

    /// Removes and returns the content of a source.
    pub(super) fn take(&mut self, source: &Name) -> Option<Arc<Observed>> {
        self.0.remove(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{ObjectName, SourceKind};

    fn name(text: &str) -> Name {
        Name::new("ns", ObjectName::new(SourceKind::ConfigMap, text))
    }

    fn content() -> Arc<Observed> {
        content_of(1)
    }

    /// A content of that many bytes.
    fn content_of(bytes: usize) -> Arc<Observed> {
        let metadata = serde_json::json!({"name": "a", "uid": "1", "resourceVersion": "1"});
        let json = serde_json::json!({"metadata": metadata, "data": {"k": "v".repeat(bytes)}}).to_string();
        Arc::new(Observed::read(SourceKind::ConfigMap, json.as_bytes()).unwrap())
    }

    #[test]
    fn content_is_remembered_for_a_minute() {
        let mut memory = Memory::default();
        memory.remember(name("a"), content(), Timestamp::from_second(100).unwrap());
        memory.forget_old(Timestamp::from_second(159).unwrap());
        assert!(memory.recall(&name("a")).is_some());
        memory.forget_old(Timestamp::from_second(160).unwrap());
        assert!(memory.recall(&name("a")).is_none());
    }

    #[test]
    fn namespace_displaces_only_its_own_content() {
        let mut memory = Memory::default();
        let other = Name::new("other", ObjectName::new(SourceKind::ConfigMap, "mine"));
        memory.remember(other.clone(), content(), Timestamp::from_second(0).unwrap());
        for number in 0..3 * MOST {
            memory.remember(name(&format!("n{number}")), content(), Timestamp::from_second(1).unwrap());
        }
        assert!(memory.recall(&other).is_some());
        assert_eq!(memory.0.len(), MOST);
    }

    #[test]
    fn large_contents_displace_only_their_own_namespace() {
        let at = |second: usize| Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
        let (mut memory, mut fresh) = (Memory::default(), Fresh::default());
        let other = Name::new("other", ObjectName::new(SourceKind::ConfigMap, "mine"));
        memory.remember(other.clone(), content(), at(0));
        for number in 0..MOST {
            let (name, content) = (name(&format!("n{number}")), content_of(6 << 20));
            memory.remember(name.clone(), Arc::clone(&content), at(1 + number));
            fresh.put(&name, content);
        }
        assert!(memory.recall(&other).is_some());
        assert!(memory.recall(&name("n15")).is_some() && memory.recall(&name("n14")).is_some());
        assert_eq!((memory.0.len(), fresh.0.len()), (3, 2));
    }

    #[test]
    fn oldest_content_is_dropped_above_the_limit() {
        let mut memory = Memory::default();
        for second in 0..=MOST {
            let now = Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
            memory.remember(name(&format!("n{second}")), content(), now);
        }
        assert!(memory.recall(&name("n0")).is_none());
        assert!((1..=MOST).all(|i| memory.recall(&name(&format!("n{i}"))).is_some()));
    }
}
