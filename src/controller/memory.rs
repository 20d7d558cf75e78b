//! Contents that may have to be restored: of deleted objects, and of snapshots that the garbage collector may delete just as
//! they are bound again.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use crate::{resolve::Observed, snapshot::ObjectName, world::Name};

/// How long the content of a snapshot is remembered: the garbage collector acts within seconds of an owner's deletion.
const OF_SNAPSHOT: SignedDuration = SignedDuration::from_secs(60);
/// How long the content of a deleted bound object is remembered. Finalizers and lagging watches delay the deletion.
const OF_DELETED: SignedDuration = SignedDuration::from_mins(10);
/// How much longer a content is remembered while a task waits to restore it.
const LONGER: SignedDuration = SignedDuration::from_mins(1);
/// The bytes that each content counts in addition to its size, for its record. This bounds the number of contents.
const RECORD: usize = 4 << 10;
/// How many contents of sources wait for their snapshots at once.
const MAX_FRESH: usize = 16;
/// The limit in bytes on those contents.
const MAX_FRESH_BYTES: usize = 8 << 20;
/// The limit in bytes on contents that reviews of workloads lead to.
const MAX_ADMITTED: usize = 8 << 20;
/// The limit in bytes on contents of deleted objects.
const MAX_DELETED: usize = 8 << 20;

/// All contents that the controller keeps.
#[derive(Debug)]
pub(super) struct Memory {
    /// Snapshots to which reviews of workloads newly refer, until they are bound.
    admitted: Contents,
    /// Objects that may just be deleted while in use. Reviews of workloads cannot displace them.
    deleted: Contents,
    /// Contents of sources that were just read and have no snapshot yet: the snapshot is created without another read.
    pub fresh: Fresh,
}

impl Default for Memory {
    fn default() -> Self {
        let (admitted, deleted) = (Contents::new(MAX_ADMITTED), Contents::new(MAX_DELETED));
        Self { admitted, deleted, fresh: Fresh::default() }
    }
}

impl Memory {
    /// Remembers a snapshot to which a review newly refers, until the controller has bound it.
    pub(super) fn remember_admitted(&mut self, name: Name, content: Arc<Observed>, now: Timestamp) {
        self.admitted.remember(name, content, now + OF_SNAPSHOT);
    }

    /// Remembers a snapshot that the garbage collector may be deleting.
    pub(super) fn remember_endangered(&mut self, name: Name, content: Arc<Observed>, now: Timestamp) {
        self.deleted.remember(name, content, now + OF_SNAPSHOT);
    }

    /// Remembers a bound object that is being deleted. Returns the objects that are forgotten for it.
    pub(super) fn remember_deleted(
        &mut self,
        name: Name,
        content: Arc<Observed>,
        now: Timestamp,
    ) -> Vec<Name> {
        self.deleted.remember(name, content, now + OF_DELETED)
    }

    /// The remembered content of an object.
    pub(super) fn recall(&self, name: &Name) -> Option<&Arc<Observed>> {
        self.deleted.recall(name).or_else(|| self.admitted.recall(name))
    }

    /// Forgets the content of a deleted object, if an object with another uid has its name now.
    pub(super) fn forget_replaced(&mut self, name: &Name, uid: &str) {
        if self.deleted.recall(name).is_some_and(|content| content.uid != uid) {
            self.deleted.forget(name);
        }
    }

    /// Forgets contents that were remembered for long enough.
    pub(super) fn forget_old(&mut self, now: Timestamp, is_awaited: impl Fn(&Name) -> bool) {
        self.admitted.forget_old(now, |_| false);
        self.deleted.forget_old(now, is_awaited);
    }
}

/// Contents by object, for a limited time and up to a limit in bytes.
#[derive(Debug)]
struct Contents {
    limit: usize,
    bytes: usize,
    namespaces: HashMap<Arc<str>, NamespaceContents>,
}

/// The contents of one namespace.
#[derive(Debug, Default)]
struct NamespaceContents {
    bytes: usize,
    contents: HashMap<ObjectName, (Timestamp, Arc<Observed>)>,
    /// By the time at which each is forgotten.
    ends: BTreeSet<(Timestamp, ObjectName)>,
}

impl NamespaceContents {
    fn insert(&mut self, object: ObjectName, end: Timestamp, content: Arc<Observed>) {
        self.bytes += size(&content);
        self.ends.insert((end, object.clone()));
        self.contents.insert(object, (end, content));
    }

    fn remove(&mut self, object: &ObjectName) -> Option<Arc<Observed>> {
        let (end, content) = self.contents.remove(object)?;
        self.ends.remove(&(end, object.clone()));
        self.bytes -= size(&content);
        Some(content)
    }
}

/// The bytes that a content counts.
fn size(content: &Observed) -> usize {
    RECORD + content.size()
}

impl Contents {
    /// A memory of at most that many bytes.
    fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, namespaces: HashMap::new() }
    }

    /// Remembers a content until `end`. Above the limit, the namespace with the most bytes loses the content that would be
    /// forgotten first: no namespace can displace the contents of a smaller one. Returns the displaced objects.
    fn remember(&mut self, name: Name, content: Arc<Observed>, end: Timestamp) -> Vec<Name> {
        self.forget(&name);
        self.bytes += size(&content);
        self.namespaces.entry(name.namespace).or_default().insert(name.object, end, content);
        let mut displaced = Vec::new();
        while self.bytes > self.limit {
            let largest = self.namespaces.iter().max_by_key(|(_, share)| share.bytes);
            let Some((namespace, share)) = largest else { break };
            let Some((_, object)) = share.ends.first() else { break };
            let name = Name { namespace: Arc::clone(namespace), object: object.clone() };
            self.forget(&name);
            displaced.push(name);
        }
        displaced
    }

    /// The content of an object, if it is remembered.
    fn recall(&self, name: &Name) -> Option<&Arc<Observed>> {
        self.namespaces.get(&name.namespace)?.contents.get(&name.object).map(|(_, content)| content)
    }

    /// Forgets the content of an object.
    fn forget(&mut self, name: &Name) {
        let Some(share) = self.namespaces.get_mut(&name.namespace) else { return };
        if let Some(content) = share.remove(&name.object) {
            self.bytes -= size(&content);
        }
        if share.contents.is_empty() {
            self.namespaces.remove(&name.namespace);
        }
    }

    /// Forgets what was remembered for long enough, unless a task waits to restore it.
    fn forget_old(&mut self, now: Timestamp, is_awaited: impl Fn(&Name) -> bool) {
        let ended = |(namespace, share): (&Arc<str>, &NamespaceContents)| {
            let ended = share.ends.iter().take_while(|(end, _)| *end <= now);
            let name = |(_, object): &(Timestamp, ObjectName)| Name {
                namespace: Arc::clone(namespace),
                object: object.clone(),
            };
            ended.map(name).collect::<Vec<_>>()
        };
        let ended: Vec<_> = self.namespaces.iter().flat_map(ended).collect();
        for name in ended {
            let awaited = self.recall(&name).filter(|_| is_awaited(&name)).map(Arc::clone);
            match awaited {
                Some(content) => drop(self.remember(name, content, now + LONGER)),
                None => self.forget(&name),
            }
        }
    }
}

/// Contents of sources between the read and the creation of the snapshot.
#[derive(Debug, Default)]
pub(super) struct Fresh(HashMap<Name, Arc<Observed>>);

impl Fresh {
    /// Keeps a content until it is taken. If too many are waiting, it is dropped and the source is read again.
    pub(super) fn put(&mut self, source: &Name, content: Arc<Observed>) {
        self.0.remove(source);
        let bytes = size(&content) + self.0.values().map(|other| size(other)).sum::<usize>();
        if self.0.len() < MAX_FRESH && bytes <= MAX_FRESH_BYTES {
            self.0.insert(source.clone(), content);
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
    use crate::snapshot::SourceKind;

    fn name(namespace: &str, text: &str) -> Name {
        Name::new(namespace, ObjectName::new(SourceKind::ConfigMap, text))
    }

    fn content(bytes: usize) -> Arc<Observed> {
        let json = format!(
            r#"{{"metadata":{{"name":"a","uid":"1","resourceVersion":"1"}},"data":{{"k":"{}"}}}}"#,
            "v".repeat(bytes)
        );
        Arc::new(Observed::read(SourceKind::ConfigMap, json.into_bytes()).unwrap())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// How an object's content is remembered at second 100.
    type Remember = fn(&mut Memory, Name, Arc<Observed>);

    #[test]
    fn each_content_is_remembered_for_its_time() {
        let now = at(100);
        let cases: [(Remember, SignedDuration, bool); 3] = [
            (|memory, name, content| memory.remember_admitted(name, content, at(100)), OF_SNAPSHOT, false),
            (|memory, name, content| memory.remember_endangered(name, content, at(100)), OF_SNAPSHOT, true),
            (|memory, name, content| drop(memory.remember_deleted(name, content, at(100))), OF_DELETED, true),
        ];
        for (number, (remember, time, may_be_awaited)) in cases.into_iter().enumerate() {
            let object = name("ns", "a");
            let mut memory = Memory::default();
            remember(&mut memory, object.clone(), content(1));
            memory.forget_old(now + time - SignedDuration::from_secs(1), |_| false);
            assert!(memory.recall(&object).is_some(), "{number}");
            memory.forget_old(now + time, |name| *name == object);
            assert_eq!(memory.recall(&object).is_some(), may_be_awaited, "{number}");
            memory.forget_old(now + time + LONGER - SignedDuration::from_secs(1), |_| false);
            assert_eq!(memory.recall(&object).is_some(), may_be_awaited, "{number}");
            memory.forget_old(now + time + LONGER, |_| false);
            assert!(memory.recall(&object).is_none(), "{number}");
        }
    }

    #[test]
    fn content_of_replaced_object_is_forgotten() {
        let object = name("ns", "a");
        let mut memory = Memory::default();
        memory.remember_deleted(object.clone(), content(1), at(0));
        memory.forget_replaced(&object, "1");
        assert!(memory.recall(&object).is_some(), "it is the same object");
        memory.forget_replaced(&object, "2");
        assert!(memory.recall(&object).is_none());
        // A snapshot that a review read may have another uid than the one that a watch reports.
        memory.remember_admitted(object.clone(), content(1), at(0));
        memory.forget_replaced(&object, "2");
        assert!(memory.recall(&object).is_some());
    }

    #[test]
    fn few_contents_wait_for_their_snapshots() {
        let mut fresh = Fresh::default();
        let names: Vec<_> = (0..=MAX_FRESH).map(|number| name("ns", &format!("n{number}"))).collect();
        for name in &names {
            fresh.put(name, content(1));
        }
        assert!(fresh.take(&names[MAX_FRESH]).is_none(), "one is too many");
        fresh.put(&names[0], content(2));
        assert_eq!(
            fresh.take(&names[0]).map(|content| content.size()),
            Some(content(2).size()),
            "the newest counts"
        );
        assert_eq!(names.iter().filter(|name| fresh.take(name).is_some()).count(), MAX_FRESH - 1);
        let large = content(MAX_FRESH_BYTES / 3);
        for name in &names {
            fresh.put(name, Arc::clone(&large));
        }
        assert_eq!(names.iter().filter(|name| fresh.take(name).is_some()).count(), 2, "large ones are fewer");
    }

    #[test]
    fn content_is_remembered_until_its_end() {
        let mut memory = Contents::new(1 << 20);
        memory.remember(name("ns", "a"), content(1), at(160));
        memory.forget_old(at(159), |_| false);
        assert!(memory.recall(&name("ns", "a")).is_some());
        memory.forget_old(at(160), |_| true);
        assert!(memory.recall(&name("ns", "a")).is_some(), "a task waits to restore it");
        memory.forget_old(at(160) + LONGER, |_| false);
        assert!(memory.recall(&name("ns", "a")).is_none());
        assert_eq!((memory.bytes, memory.namespaces.len()), (0, 0));
    }

    #[test]
    fn memory_is_limited_in_bytes() {
        let mut memory = Contents::new(1 << 20);
        for number in 0..100 {
            memory.remember(name("ns", &format!("n{number}")), content(100 << 10), at(number));
            assert!(memory.bytes <= 1 << 20);
        }
        assert!(memory.recall(&name("ns", "n0")).is_none(), "the oldest is dropped");
        assert!((91..100).all(|i| memory.recall(&name("ns", &format!("n{i}"))).is_some()));
        memory.remember(name("ns", "n99"), content(1), at(200));
        memory.remember(name("ns", "n99"), content(1), at(201));
        memory.remember(name("other", "a"), content(1), at(202));
        memory.forget(&name("ns", "n98"));
        let mut counted = 0;
        for share in memory.namespaces.values() {
            let of_share: usize = share.contents.values().map(|(_, content)| size(content)).sum();
            assert_eq!(share.bytes, of_share);
            assert_eq!(share.ends.len(), share.contents.len());
            counted += of_share;
        }
        assert_eq!(memory.bytes, counted, "a content that is replaced counts once");
    }

    #[test]
    fn contents_up_to_the_limit_are_kept() {
        let mut memory = Contents::new(2 * size(&content(100)));
        assert_eq!(memory.remember(name("ns", "a"), content(100), at(0)), []);
        assert_eq!(memory.remember(name("ns", "b"), content(100), at(1)), []);
        assert_eq!(memory.remember(name("ns", "c"), content(1), at(2)), [name("ns", "a")]);
    }

    #[test]
    fn large_namespace_displaces_only_its_own_content() {
        let mut memory = Contents::new(1 << 20);
        memory.remember(name("other", "mine"), content(100 << 10), at(0));
        for number in 1..100 {
            let displaced =
                memory.remember(name("ns", &format!("n{number}")), content(100 << 10), at(number));
            assert!(displaced.iter().all(|name| &*name.namespace == "ns"), "{displaced:?}");
        }
        assert!(memory.recall(&name("other", "mine")).is_some());
    }
}
