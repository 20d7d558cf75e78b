//! What an observer who misses nothing remembers.

use std::collections::{BTreeMap, BTreeSet};

use confrev::{cluster::Event, names, telemetry::metrics::Reason};
use jiff::SignedDuration;
use serde_json::Value;

use crate::{
    manifest::{Manifest, SOURCES, WORKLOADS, source_key},
    store::{Key, Kind, annotation, label},
};

/// A known limit: what a workload newly refers to is bound to it a moment later, and until then only the replica that
/// admitted it remembers the content. Where that one ends before the last owner goes, the content may be lost.
const FORGETS_AT_A_RESTART: bool = true;

/// A source at some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceState {
    /// `None`: it does not exist.
    pub content: Option<Value>,
    /// It is labelled to be left alone.
    pub exempt: bool,
}

/// A reference that a person holds at a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Pin {
    /// Whether it is certain which content of the source the admission took into account.
    pub sure: bool,
    /// The source was gone then, and which of its contents was seen last is not known here.
    pub missing: bool,
    /// How often the source had changed by then.
    changes: usize,
    /// What it held then, or may have.
    pub contents: Vec<Value>,
}

/// The pins of a workload, by workload and snapshot.
pub(crate) type Pins = BTreeMap<(Key, String), Pin>;
/// How far each source's history had come.
pub(crate) type Mark = BTreeMap<Key, usize>;

pub(crate) struct Ghost {
    /// The first promise that was broken.
    pub broken: Option<String>,
    pub manifests: Vec<Manifest>,
    /// What was applied last server-side.
    pub server_side: Vec<Value>,
    /// Snapshots that someone deleted by hand.
    pub lost: BTreeSet<Key>,
    /// By which replica the content of a snapshot was last taken up; `None`: that one has ended since.
    remembered: BTreeMap<Key, Option<usize>>,
    /// Workloads that took a template with snapshots where no webhook selected them.
    pub unseen: BTreeSet<Key>,
    history: BTreeMap<Key, Vec<SourceState>>,
    pins: Pins,
    /// What each snapshot of a template held when that was admitted.
    frozen: BTreeMap<(String, String), BTreeMap<String, Value>>,
    /// Changes since which a workload may be rolled once each.
    causes: BTreeMap<Key, usize>,
    rolled: BTreeMap<Key, SignedDuration>,
    /// Pokes that took effect.
    pub pokes: usize,
    /// What Events told of rolls of workloads.
    told_rolls: BTreeSet<String>,
}

impl Default for Ghost {
    fn default() -> Self {
        Self {
            broken: None,
            manifests: (0..WORKLOADS.len()).map(Manifest::first).collect(),
            server_side: vec![Value::Null; WORKLOADS.len()],
            lost: BTreeSet::new(),
            remembered: BTreeMap::new(),
            unseen: BTreeSet::new(),
            history: (0..SOURCES.len())
                .map(|index| (source_key(index), vec![SourceState::default()]))
                .collect(),
            pins: BTreeMap::new(),
            frozen: BTreeMap::new(),
            causes: BTreeMap::new(),
            rolled: BTreeMap::new(),
            pokes: 0,
            told_rolls: BTreeSet::new(),
        }
    }
}

impl Ghost {
    /// An object was stored.
    pub(crate) fn stored(&mut self, key: &Key, object: &Value) {
        if key.kind == Kind::Namespace {
            return self.cause(&key.name);
        }
        if key.kind == Kind::ConfigMap {
            self.lost.remove(key);
            let exempt = label(object, names::ENABLED) == Some("false");
            self.push(key, SourceState { content: Some(object["data"].clone()), exempt });
        }
    }

    pub(crate) fn deleted(&mut self, key: &Key) {
        self.push(key, SourceState { content: None, exempt: false });
        self.pins.retain(|(workload, _), _| workload != key);
        self.unseen.remove(key);
    }

    /// An Event is written, or tried to be: there are never more of rolls than rolls.
    pub(crate) fn told(&mut self, event: &Event) {
        if event.reason == Reason::Rolled && !["ConfigMap", "Secret"].contains(&event.regarding.kind.as_str())
        {
            self.told_rolls.insert(format!("{} {} {}", event.regarding.uid, event.at, event.note));
        }
        if self.told_rolls.len() > self.pokes {
            let what = format!("{} Events tell of {} rolls", self.told_rolls.len(), self.pokes);
            self.broken.get_or_insert_with(|| format!("quiet: {what}"));
        }
    }

    /// A replica admitted a reference to a snapshot, where there was none.
    pub(crate) fn taken_up(&mut self, snapshot: Key, replica: usize) {
        self.remembered.insert(snapshot, Some(replica));
    }

    /// The collector took an object.
    pub(crate) fn collected(&mut self, key: &Key) {
        if FORGETS_AT_A_RESTART && self.remembered.get(key).is_some_and(Option::is_none) {
            self.lost.insert(key.clone());
        }
    }

    /// A replica has ended: what is gone by now, and only it remembered, may not be made again.
    pub(crate) fn forgotten(&mut self, ended: usize, gone: impl Fn(&Key) -> bool) {
        for (key, by) in self.remembered.iter_mut().filter(|(_, by)| **by == Some(ended)) {
            *by = None;
            if FORGETS_AT_A_RESTART && gone(key) {
                self.lost.insert(key.clone());
            }
        }
    }

    fn push(&mut self, key: &Key, state: SourceState) {
        let is_source = SOURCES.contains(&(&key.namespace, &key.name));
        if key.kind != Kind::ConfigMap || !is_source || self.state(key).as_ref() == Some(&state) {
            return;
        }
        self.history.entry(key.clone()).or_default().push(state);
        self.cause(&key.namespace.clone());
    }

    /// Something happened for which the workloads of a namespace may roll.
    fn cause(&mut self, namespace: &str) {
        for (own, kind, name) in WORKLOADS {
            if own == namespace {
                *self.causes.entry(Key::new(kind, own, name)).or_default() += 1;
            }
        }
    }

    /// Another clock may now say when a workload rolled last.
    pub(crate) fn clock_was_set(&mut self) {
        self.rolled.clear();
    }

    /// A source as it is now.
    pub(crate) fn state(&self, source: &Key) -> Option<SourceState> {
        self.history.get(source)?.last().cloned()
    }

    pub(crate) fn mark(&self) -> Mark {
        self.history.iter().map(|(key, states)| (key.clone(), states.len())).collect()
    }

    /// What a source was since the mark, at its time included.
    pub(crate) fn since(&self, mark: &Mark, source: &Key) -> Vec<SourceState> {
        let from = mark.get(source).map_or(0, |length| length - 1);
        self.history.get(source).map_or_else(Vec::new, |states| states[from..].to_vec())
    }

    /// How often a source changed, its label included.
    fn changes(&self, source: &Key) -> usize {
        let states = self.history.get(source).map_or(&[][..], Vec::as_slice);
        states.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// A pin from now on.
    pub(crate) fn pin(&self, source: &Key) -> Pin {
        // Of a source that is gone, what it held last stays accounted for.
        let states = self.history.get(source).map_or(&[][..], Vec::as_slice);
        let contents = states.iter().rev().find_map(|state| state.content.clone()).into_iter().collect();
        let sure = states.last().is_some_and(|state| state.content.is_some());
        Pin { sure, missing: !sure, changes: self.changes(source), contents }
    }

    /// Whether the reference is held: `Some(true)` for certain, `Some(false)` where the source has been another
    /// meanwhile and is again what it was.
    pub(crate) fn held(&self, workload: &Key, snapshot: &str, source: &Key) -> Option<bool> {
        let pin = self.pins.get(&(workload.clone(), snapshot.to_owned()))?;
        if pin.changes == self.changes(source) {
            return Some(pin.sure);
        }
        // What it is held against came back: whether as it was seen or not, is not known here.
        if pin.missing && self.changes(source) == pin.changes + 1 {
            return Some(false);
        }
        let present = self.state(source).and_then(|state| state.content);
        present.is_none_or(|present| pin.contents.contains(&present)).then_some(false)
    }

    /// What holds the reference.
    pub(crate) fn pin_of(&self, workload: &Key, snapshot: &str) -> Option<Pin> {
        self.pins.get(&(workload.clone(), snapshot.to_owned())).cloned()
    }

    /// Whether a person turned the workload to this snapshot.
    pub(crate) fn is_pinned(&self, workload: &Key, snapshot: &str) -> bool {
        self.pins.contains_key(&(workload.clone(), snapshot.to_owned()))
    }

    /// What a snapshot that a template names held when that was admitted.
    pub(crate) fn frozen(&self, namespace: &str, template: &Value, snapshot: &str) -> Option<&Value> {
        self.frozen.get(&frozen_key(namespace, template))?.get(snapshot)
    }

    /// A template was admitted, and its snapshots hold this.
    pub(crate) fn freeze(&mut self, namespace: &str, template: &Value, contents: BTreeMap<String, Value>) {
        let entry = self.frozen.entry(frozen_key(namespace, template)).or_default();
        for (snapshot, content) in contents {
            entry.entry(snapshot).or_insert(content);
        }
    }

    /// A workload was admitted, and is held by these pins from now on.
    pub(crate) fn admitted(&mut self, key: &Key, pins: Pins) {
        self.unseen.remove(key);
        self.pins.retain(|(workload, _), _| workload != key);
        self.pins.extend(pins);
    }

    /// A workload was admitted, and it is not known what was asked for: whatever it names may be held.
    pub(crate) fn admitted_in_doubt(&mut self, key: &Key, names: impl Iterator<Item = String>) {
        let mut pins = Pins::new();
        for name in names {
            let source = SOURCES.iter().find(|(namespace, source)| {
                *namespace == key.namespace && name.starts_with(&format!("{source}-"))
            });
            if let Some((namespace, source)) = source {
                let source = Key::configmap(namespace, source);
                let states = self.history.get(&source).into_iter().flatten();
                let contents = states.filter_map(|state| state.content.clone()).collect();
                let pin = Pin { sure: false, missing: true, changes: self.changes(&source), contents };
                pins.insert((key.clone(), name), pin);
            }
        }
        self.admitted(key, pins);
    }

    /// Someone else than confrev wrote the workload: confrev's next roll of it may follow at once.
    pub(crate) fn written(&mut self, key: &Key) {
        self.rolled.remove(key);
    }

    /// A poke changed a template: there was a reason, and not twice for the same one.
    pub(crate) fn rolled(&mut self, key: &Key, elapsed: SignedDuration) -> Result<(), String> {
        let causes = self.causes.entry(key.clone()).or_default();
        if *causes == 0 {
            return Err(format!("{key} was rolled though nothing had changed"));
        }
        *causes -= 1;
        let last = self.rolled.insert(key.clone(), elapsed);
        match last {
            Some(last) if elapsed - last < SignedDuration::from_secs(10) => {
                Err(format!("{key} was rolled twice within {:?}", elapsed - last))
            }
            _ => Ok(()),
        }
    }
}

/// Templates of one namespace with equal `sources` have equal snapshots.
fn frozen_key(namespace: &str, template: &Value) -> (String, String) {
    (namespace.to_owned(), annotation(template, names::SOURCES).unwrap_or_default().to_owned())
}
