//! The facts about live objects on which a decision is based.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Defaults, Health, LabelNames, NamespaceOptIn, Past, RefusedContents, SchemaReference, SpreadPolicy,
    Strategies, Strategy, Verdict,
};
use crate::{
    annotations,
    snapshot::{
        self, ContentError, Digest, Digests, Identity, Keying, Object, ObjectName, Rotated, SourceKind,
    },
};

/// The facts that were read so far.
#[derive(Debug, Default)]
pub struct Facts {
    objects: BTreeMap<ObjectName, Option<Observed>>,
    /// The memory of the objects, in bytes.
    bytes: usize,
    namespace: Option<NamespaceFacts>,
    target: Option<bool>,
    referrers: Health,
    rotated: Rotated,
    revisions: Option<Vec<Past>>,
    /// Why the content of a source fails its schema; `None` if it does not.
    verdicts: BTreeMap<ObjectName, Option<String>>,
    spares: BTreeMap<ObjectName, Spares>,
    /// Whether the client may not learn whether a content matches its schema.
    withholds_verdicts: bool,
}

/// Further names for the snapshot of a source's content, for when objects of others have all its usual names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spares {
    /// Names of this form that snapshots of the source are known to have. Each is read before it is used.
    pub known: Vec<String>,
    /// Random hex digits for another one, as many as [`snapshot::SPARE_DIGITS`].
    pub digits: String,
}

/// A namespace's settings for its workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// What its label says about workloads without a label of their own.
    pub opt_in: NamespaceOptIn,
    /// Its annotation asks for snapshots of Secrets. It counts only together with the label.
    pub secrets: bool,
    /// Its annotation sets the mode `live` for Secrets that set no mode themselves.
    pub live_secrets: bool,
    /// Its deletion has begun, or it does not exist.
    pub terminating: bool,
}

impl Facts {
    /// Records what was read of an object; `None`: it does not exist.
    pub fn set_object(&mut self, name: ObjectName, observed: Option<Observed>) {
        let size = |observed: &Option<Observed>| observed.as_ref().map_or(0, Observed::size);
        self.bytes += size(&observed);
        self.verdicts.remove(&name);
        let before = self.objects.insert(name, observed);
        self.bytes -= before.as_ref().map_or(0, size);
    }

    /// Removes the object that was read under a guessed name, and returns it as `Some` if the guess was right: the object is the
    /// snapshot of the source's content, or that snapshot does not exist.
    pub fn take_guess(&mut self, source: &ObjectName, guess: &ObjectName) -> Option<Option<Observed>> {
        let present = self.objects.get(source).and_then(Option::as_ref).map(Observed::digest);
        let guessed = self.objects.remove(guess)?;
        self.bytes -= guessed.as_ref().map_or(0, Observed::size);
        let present = present?;
        let is_right = match &guessed {
            Some(guessed) => guessed.is_snapshot_of(&source.name, &present),
            None => *guess.name == *snapshot::snapshot_name(&source.name, &present, snapshot::DIGITS[0]),
        };
        is_right.then_some(guessed)
    }

    /// Records the namespace's settings.
    pub fn set_namespace(&mut self, namespace: NamespaceFacts) {
        self.namespace = Some(namespace);
    }

    /// Records whether the target of a `workloadRef` exists and is opted in by its own label.
    pub fn set_target_enabled(&mut self, enabled: bool) {
        self.target = Some(enabled);
    }

    /// Whether the target of a `workloadRef` exists and is opted in by its own label; `None` if it was not read.
    pub fn target_enabled(&self) -> Option<bool> {
        self.target
    }

    /// Sets the ConfigMaps that are never snapshotted in this installation.
    pub fn set_rotated(&mut self, rotated: Rotated) {
        self.rotated = rotated;
    }

    /// Whether references to this object stay as written, whatever its content.
    pub(super) fn is_rotated(&self, object: &ObjectName) -> bool {
        self.rotated.contains(object)
    }

    /// Records the worst health of the Rollouts that use the workload's template.
    pub fn set_referrers_health(&mut self, health: Health) {
        self.referrers = health;
    }

    /// The worst health of the Rollouts that use the workload's template.
    pub(super) fn referrers_health(&self) -> Health {
        self.referrers
    }

    /// Records why the content of a source fails its schema; `None` if it does not.
    pub fn set_verdict(&mut self, source: ObjectName, failure: Option<String>) {
        self.verdicts.insert(source, failure);
    }

    /// Withholds what is known about stored content: the client of the review may be anyone. The decision then is the same for
    /// every content and every schema.
    pub fn withhold_verdicts(&mut self) {
        self.withholds_verdicts = true;
    }

    /// Whether the client may not learn whether a content matches its schema.
    pub(super) fn withholds_verdicts(&self) -> bool {
        self.withholds_verdicts
    }

    /// Whether the content of a source matches its schema, or why it does not; `None` if that is not known.
    pub(super) fn verdict(&self, source: &ObjectName) -> Option<Result<(), &str>> {
        self.verdicts.get(source).map(|failure| failure.as_deref().map_or(Ok(()), Err))
    }

    /// Records further names for the snapshot of a source's content.
    pub fn set_spares(&mut self, source: ObjectName, spares: Spares) {
        self.spares.insert(source, spares);
    }

    /// Further names for the snapshot of a source's content; `None` if they were not asked for.
    pub(super) fn spares(&self, source: &ObjectName) -> Option<&Spares> {
        self.spares.get(source)
    }

    /// Records the revisions that an undo may bring back.
    pub fn set_revisions(&mut self, revisions: Vec<Past>) {
        self.revisions = Some(revisions);
    }

    /// The revisions that an undo may bring back; `None` if they were not read.
    pub(super) fn revisions(&self) -> Option<&[Past]> {
        self.revisions.as_deref()
    }

    /// What was read of an object: `None` not read yet, `Some(None)` it does not exist.
    pub fn object(&self, name: &ObjectName) -> Option<Option<&Observed>> {
        self.objects.get(name).map(Option::as_ref)
    }

    /// The number of objects that were read, and their memory in bytes.
    pub fn size(&self) -> (usize, usize) {
        (self.objects.len(), self.bytes)
    }

    /// The sound snapshots among the objects that were read.
    pub fn snapshots(&self) -> impl Iterator<Item = (&ObjectName, &Observed)> {
        let found = self.objects.iter().filter_map(|(name, observed)| Some((name, observed.as_ref()?)));
        found.filter(|(_, observed)| observed.sound)
    }

    /// The namespace's settings; `None` if they were not read.
    pub fn namespace(&self) -> Option<NamespaceFacts> {
        self.namespace
    }
}

/// The memory of a key in addition to its bytes.
const KEY: usize = 64;

/// A live ConfigMap or Secret, with its text.
#[derive(Clone)]
pub struct Observed {
    json: std::sync::Arc<[u8]>,
    kind: SourceKind,
    digests: Digests,
    keying: Keying,
    /// The object's uid.
    pub uid: String,
    /// The object's resourceVersion.
    pub resource_version: String,
    /// The keys of its content.
    keys: BTreeSet<String>,
    /// The uids of its owners.
    owners: Vec<String>,
    identity: Option<Identity>,
    sound: bool,
    enabled: Option<String>,
    labels: LabelNames,
    /// The annotations of confrev. A decision reads several of them, and the text may have a megabyte.
    annotations: Vec<(Box<str>, Box<str>)>,
    strategy: Option<Strategy>,
    defaults: Defaults,
    /// The result of its check against its schema, if there was one.
    checked: Option<Result<(), Box<str>>>,
    /// Why the installation refuses its content, if it does.
    refused: Option<Box<str>>,
    untouched: bool,
}

/// Names and digests only: content is never printed.
impl std::fmt::Debug for Observed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observed")
            .field("kind", &self.kind)
            .field("digest", &self.public_digest())
            .finish_non_exhaustive()
    }
}

/// An object's text that cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Not a ConfigMap's or Secret's JSON.
    #[error("not a valid ConfigMap or Secret: {0}")]
    Form(#[from] serde_json::Error),
    /// Content that no API server would have stored.
    #[error(transparent)]
    Content(#[from] ContentError),
}

impl Observed {
    /// Reads an object without keys: Secrets have plain digests.
    pub fn read(kind: SourceKind, json: impl Into<std::sync::Arc<[u8]>>) -> Result<Self, SourceError> {
        Self::read_keyed(kind, json, Keying::default())
    }

    /// Reads an object from the API server's answer.
    pub fn read_keyed(
        kind: SourceKind,
        json: impl Into<std::sync::Arc<[u8]>>,
        keying: Keying,
    ) -> Result<Self, SourceError> {
        let json = json.into();
        let object = Object::parse(&json)?;
        let mut digests = object.digests(kind, &keying, None)?;
        let identity = object.identity();
        let stated = object.stated_digest(&digests);
        if let Some(stated) = stated {
            digests.insert(stated);
        }
        let sound = stated.is_some();
        let untouched = match kind {
            SourceKind::ConfigMap => false,
            SourceKind::Secret => !snapshot::secret_type_is_snapshotted(object.secret_type()),
        };
        let (uid, resource_version) = (object.uid().to_owned(), object.resource_version().to_owned());
        let enabled = object.label(annotations::ENABLED).map(str::to_owned);
        let (owners, keys) = (object.owner_uids(), object.keys());
        let labels = LabelNames::of(object.labels());
        let annotations = object.own_annotations().map(|(key, value)| (key.into(), value.into())).collect();
        Ok(Self {
            json,
            kind,
            digests,
            keying,
            uid,
            resource_version,
            keys,
            owners,
            identity,
            sound,
            enabled,
            labels,
            annotations,
            strategy: None,
            defaults: Defaults::default(),
            checked: None,
            refused: None,
            untouched,
        })
    }

    /// The same source under the strategy that applies to it: its own, or that of its namespace, or the default. What it inherits
    /// counts where neither it nor the strategy has a setting. A snapshot has none.
    #[must_use]
    pub fn under(self, strategies: &Strategies, of_namespace: Option<&str>, defaults: Defaults) -> Self {
        if self.identity.is_some() {
            return self;
        }
        let own = self.annotation_text(annotations::STRATEGY);
        let strategy = strategies.of(own, of_namespace);
        Self { strategy, defaults, ..self }
    }

    /// The same source with its own settings only.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { strategy: None, defaults: Defaults::default(), ..self }
    }

    /// The same object, of which the installation refuses some contents. Nothing keeps pods from a source that stays as written.
    #[must_use]
    pub fn refused_by(self, contents: &RefusedContents) -> Self {
        let why = contents.why(self.kind, self.digests.iter()).filter(|_| !self.stays_as_written());
        Self { refused: why.map(Into::into), ..self }
    }

    /// Why the installation refuses its content; `None` if it does not.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// The same source after a check against its schema. `failure`: why its content does not match.
    #[must_use]
    pub fn checked(self, failure: Option<String>) -> Self {
        let checked = failure.map_or(Ok(()), |failure| Err(failure.into()));
        Self { checked: Some(checked), ..self }
    }

    /// The result of its check against its schema; `None` if there was none.
    pub fn check(&self) -> Option<&Result<(), Box<str>>> {
        self.checked.as_ref()
    }

    /// Its labels.
    pub const fn labels(&self) -> &LabelNames {
        &self.labels
    }

    /// The names of its keys.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// The memory of the object in bytes: of its text, and of its keys, which are kept apart. A content of 1 MiB may have
    /// 100,000 keys.
    pub fn size(&self) -> usize {
        let keys: usize = self.keys.iter().map(|key| key.len() + KEY).sum();
        self.json.len() + keys
    }

    /// The digest that is written for the content.
    pub fn digest(&self) -> Digest {
        self.digests.current()
    }

    /// The digest that is written for the content, where it may be shown: the digest of a Secret without a key would let anyone test
    /// guesses of the content.
    pub fn public_digest(&self) -> Option<Digest> {
        Some(self.digest()).filter(|digest| digest.may_be_shown(self.kind))
    }

    /// All digests of the content. Those of a snapshot include the digest that it states.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// The digests of the entries with these keys; without `keys`, of all entries.
    pub fn digests_of(&self, keys: Option<&BTreeSet<&str>>) -> Digests {
        let some = self.object().and_then(|object| object.digests(self.kind, &self.keying, Some(keys?)).ok());
        some.unwrap_or_else(|| self.digests.clone())
    }

    /// Whether both hold the same content.
    pub fn same_content(&self, other: &Self) -> bool {
        self.kind == other.kind && self.digests.same_content(&other.digests)
    }

    /// Adds the digest that a snapshot of the same content states: the key of that digest may be lost.
    pub fn learn(&mut self, snapshot: &Self) {
        if snapshot.sound && self.same_content(snapshot) {
            self.digests.extend(snapshot.identity.iter().map(|stated| stated.digest));
        }
    }

    /// The object's text.
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// The identity that the object states, if it has confrev's labels.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Whether it is a sound snapshot of this content of the source.
    pub fn is_snapshot_of(&self, source: &str, digest: &Digest) -> bool {
        self.sound
            && self.digests.contains(digest)
            && self.identity.as_ref().is_some_and(|identity| identity.source == source)
    }

    /// Whether it is a sound snapshot of the source, whatever its content.
    pub fn is_snapshot_of_source(&self, source: &str) -> bool {
        self.sound && self.identity.as_ref().is_some_and(|identity| identity.source == source)
    }

    /// Whether it is a sound snapshot that states this digest.
    pub fn states(&self, digest: &Digest) -> bool {
        self.sound && self.identity.as_ref().is_some_and(|identity| identity.digest == *digest)
    }

    /// Whether a digest that a review states is known to be of this content.
    pub(super) fn is_known_by(&self, stated: &Digest) -> bool {
        self.states(stated) || self.digests.judge(stated) == Some(true)
    }

    /// Whether it is a snapshot, and its content matches the digest that it states.
    pub fn is_sound(&self) -> bool {
        self.sound
    }

    /// Whether the garbage collector may delete it although the object with this uid exists: it has owners, and that object is
    /// not among them.
    pub fn may_go_without(&self, uid: &str) -> bool {
        !self.owners.is_empty() && !self.owners.iter().any(|owner| owner == uid)
    }

    /// Whether its deletion has begun.
    pub fn is_being_deleted(&self) -> bool {
        self.object().is_some_and(|object| object.is_being_deleted())
    }

    /// The uids of its owners.
    pub fn owner_uids(&self) -> &[String] {
        &self.owners
    }

    /// Whether confrev may have added some of its owners: a quick check of the text without parsing.
    pub fn may_have_our_owners(&self) -> bool {
        let mark = format!("\"{}\"", annotations::MANAGER);
        !self.owners.is_empty() && self.json.windows(mark.len()).any(|bytes| bytes == mark.as_bytes())
    }

    /// Whether references to it stay as written: because of its label (`"false"`, `"bind"`, `"live"`), or because its type is
    /// one that is never snapshotted.
    pub fn stays_as_written(&self) -> bool {
        self.untouched || matches!(self.enabled.as_deref(), Some("false" | "bind" | "live"))
    }

    /// Whether a change of it rolls workloads that refer to it as written. `None`: its namespace decides.
    pub fn is_live(&self) -> Option<bool> {
        match self.enabled.as_deref() {
            _ if self.untouched => Some(false),
            None if self.kind == SourceKind::Secret => None,
            enabled => Some(enabled == Some("live")),
        }
    }

    /// Whether it is bound to the revisions that use it, in place of a snapshot (mode `bind`).
    pub fn is_bound_itself(&self) -> bool {
        self.enabled.as_deref() == Some("bind") && !self.untouched
    }

    /// The value of its `enabled` label.
    pub fn enabled(&self) -> Option<&str> {
        self.enabled.as_deref()
    }

    /// Whether a change of it rolls few workloads at a time: the controller then decides when each of them rolls.
    pub(super) fn is_limited(&self) -> bool {
        self.spread_policy().is_limited()
    }

    /// How far a change of it may spread.
    pub fn spread_policy(&self) -> SpreadPolicy {
        SpreadPolicy::under(self.strategy.as_ref(), &self.defaults, |key| {
            self.annotation_text(key).map(annotations::bounded)
        })
    }

    /// The name of the strategy that it follows.
    pub fn strategy(&self) -> Option<&str> {
        self.strategy.as_ref().filter(|strategy| strategy.is_defined()).map(|strategy| &*strategy.name)
    }

    /// Whether its namespace chooses a strategy for it that the installation does not define.
    pub fn has_unknown_strategy_of_namespace(&self) -> bool {
        let is_unknown = self.strategy.as_ref().is_some_and(|strategy| !strategy.is_defined());
        is_unknown && self.annotation_text(annotations::STRATEGY).is_none()
    }

    /// What is known about its content; `None` if it is not a sound snapshot, or has no verdict.
    pub fn verdict(&self) -> Option<Verdict> {
        if self.sound { Verdict::read(|key| self.annotation_text(key)) } else { None }
    }

    /// Whether a workload failed with its content, or the installation refuses it.
    pub fn is_unfit(&self) -> bool {
        self.refused.is_some() || self.verdict().is_some_and(|verdict| verdict.failed.is_some())
    }

    /// An annotation of confrev.
    pub fn annotation(&self, key: &str) -> Option<String> {
        self.annotation_text(key).map(str::to_owned)
    }

    fn annotation_text(&self, key: &str) -> Option<&str> {
        let mut all = self.annotations.iter();
        all.find(|(known, _)| **known == *key).map(|(_, value)| &**value)
    }

    /// The schema that its content must match; `None` without one.
    pub fn schema(&self) -> Option<Result<SchemaReference, String>> {
        SchemaReference::read(self.kind, |key| self.annotation_text(key))
    }

    /// The text of each entry; `None` for an entry that is no text.
    pub fn entry_texts(&self) -> BTreeMap<String, Option<String>> {
        self.object().map(|object| object.entry_texts(self.kind)).unwrap_or_default()
    }

    /// The kind of the object.
    pub fn kind(&self) -> SourceKind {
        self.kind
    }

    /// The parsed object.
    fn object(&self) -> Option<Object<'_>> {
        // The text was parsed when this `Observed` was made, so parsing cannot fail.
        Object::parse(&self.json).ok()
    }

    /// Whether the content has the key.
    pub fn has_key(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Whether all `keys` have the same values in both.
    pub fn same_values<'k>(&self, other: &Observed, mut keys: impl Iterator<Item = &'k str>) -> bool {
        let (Some(mine), Some(theirs)) = (self.object(), other.object()) else { return false };
        keys.all(|key| mine.same_value(&theirs, key))
    }
}
