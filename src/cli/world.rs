//! What a command read, as the controller knows it: the same world, filled from lists, for the same questions.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    analysis::{self, Judged},
    failure::Failure,
    objects::{self, LiveSource, OptedIn, ReadObject, Snapshot, SourceKey, annotation, label, text},
    target::Target,
};
use crate::{
    annotations,
    gates::{Answer, Why},
    kinds::Kinds,
    resolve::{Health, MemberState, Observed, RefusedContents, Spread, Wait},
    schema::{LONGEST_WAIT, Schemas},
    server::Client,
    snapshot::{ObjectName, SourceKind},
    world::{
        Name, NamespaceSettings, ShareLimits, SourceRecord, WorkloadKey, World, WorldConfig,
        answers::is_one_set,
    },
};

/// The facts that a command read.
pub(super) struct ReadWorld {
    world: World,
    /// The sources that were read.
    sources: BTreeMap<SourceKey, LiveSource>,
    /// The snapshots of Secrets: the digest of a content uses a key of the installation.
    secrets: Vec<(SourceKey, Snapshot)>,
    /// The namespaces whose settings and sources are known.
    entered: BTreeSet<String>,
    /// Whether the namespaces of a group were read, as far as the user may. Otherwise the world has no groups.
    knows_groups: bool,
    /// The group of each namespace that has one.
    groups: BTreeMap<String, Arc<str>>,
    /// AnalysisRuns and their templates that were read, by path: many workloads may wait for one run.
    analyses: BTreeMap<String, ReadObject>,
    /// How far each change has spread, as long as its source stays as it is.
    spreads: BTreeMap<Name, Option<Judged>>,
    /// Why sources fail their schemas, by resourceVersion: many workloads may use one source.
    checks: BTreeMap<(Name, String), Option<String>>,
    schemas: Schemas,
    now: Timestamp,
}

impl ReadWorld {
    /// These facts. The settings of a namespace, and its sources, follow with [`Self::enter`]. `namespaces`: the settings of the
    /// namespaces of a group, if they were asked for.
    pub(super) fn of(
        kinds: &Arc<Kinds>,
        workloads: &[OptedIn],
        snapshots: &BTreeMap<SourceKey, Snapshot>,
        sources: BTreeMap<SourceKey, LiveSource>,
        namespaces: &BTreeMap<String, NamespaceSettings>,
        now: Timestamp,
    ) -> Self {
        let mut config = WorldConfig::new(Arc::clone(kinds));
        // A command ends; its memory needs no bound.
        config.shares = ShareLimits::NONE;
        config.health_is_whole = true;
        let mut world = Self {
            world: World::new(config),
            sources,
            secrets: snapshots
                .iter()
                .filter(|((_, name), _)| name.kind == SourceKind::Secret)
                .map(|(key, snapshot)| (key.clone(), snapshot.clone()))
                .collect(),
            groups: BTreeMap::new(),
            entered: BTreeSet::new(),
            knows_groups: !namespaces.is_empty(),
            analyses: BTreeMap::new(),
            spreads: BTreeMap::new(),
            checks: BTreeMap::new(),
            schemas: Schemas::default(),
            now,
        };
        for workload in workloads {
            let record = Some(workload.record.clone());
            world.world.apply_workload(&world.key(workload), record, &mut Vec::new());
        }
        for ((namespace, object), snapshot) in snapshots {
            let name = Name::new(namespace.as_str(), object.clone());
            world.world.apply_snapshot(&name, snapshot.record(&object.name), &mut Vec::new());
        }
        for (namespace, settings) in namespaces {
            world.add_namespace(namespace, settings.clone());
        }
        world
    }

    /// Adds what decides about the workloads of a namespace, if it is not known yet. A namespace that the user may not read has no
    /// settings.
    pub(super) async fn enter(&mut self, target: &Target, namespace: &str) -> Result<(), Failure> {
        if self.entered.contains(namespace) {
            return Ok(());
        }
        let settings = match target.get(&format!("/api/v1/namespaces/{namespace}")).await {
            // Its Secrets may be live: what they say themselves decides.
            Err(Failure::Refused(_)) | Ok(None) => {
                NamespaceSettings { live_secrets: true, ..NamespaceSettings::default() }
            }
            Ok(Some(found)) => settings_of(&found),
            Err(error) => return Err(error),
        };
        self.add_namespace(namespace, settings);
        Ok(())
    }

    fn add_namespace(&mut self, namespace: &str, mut settings: NamespaceSettings) {
        self.entered.insert(namespace.to_owned());
        let group = if self.knows_groups { settings.group.clone() } else { settings.group.take() };
        self.groups.extend(group.map(|group| (namespace.to_owned(), group)));
        // Before the sources: they would count as outdated.
        self.world.apply_namespace_settings(&namespace.into(), settings, &mut Vec::new());
        let first = (namespace.to_owned(), ObjectName::new(SourceKind::ConfigMap, ""));
        let of_it = self.sources.range(first..).take_while(|((of, _), _)| of == namespace);
        let of_it: Vec<_> = of_it.map(|((_, object), live)| (object.clone(), live.clone())).collect();
        for (object, live) in of_it {
            self.add_live(&Name::new(namespace, object), &live);
        }
    }

    /// Adds the sources of a workload that are not known yet: those of a set decide together.
    pub(super) async fn add_sources_of(
        &mut self,
        target: &Target,
        workload: &OptedIn,
    ) -> Result<(), Failure> {
        for object in workload.sources() {
            let (key, name) = (workload.key(object), Name::new(workload.namespace(), object.clone()));
            if self.sources.contains_key(&key) || self.world.source(&name).is_some() {
                continue;
            }
            let live = match objects::source(target, &key).await {
                Err(Failure::Refused(_)) => LiveSource::Forbidden,
                found => found?.map_or(LiveSource::Missing, |found| LiveSource::Present(found.into())),
            };
            match &live {
                LiveSource::Present(present) => self.add_checked(target, &name, present).await,
                other => self.add_live(&name, other),
            }
            self.sources.insert(key, live);
        }
        Ok(())
    }

    fn add_live(&mut self, name: &Name, live: &LiveSource) {
        match live {
            LiveSource::Present(present) => self.add_source(name, present),
            LiveSource::Missing => self.world.set_read(name, None, &mut Vec::new()),
            LiveSource::Forbidden => {}
        }
    }

    /// Adds a source, or replaces it.
    pub(super) fn add_source(&mut self, name: &Name, present: &Observed) {
        let before = self.world.existing_source(name).cloned();
        self.world.set_read(name, Some(SourceRecord::of(&self.learned(name, present))), &mut Vec::new());
        if self.world.existing_source(name) != before.as_ref() {
            self.spreads.clear();
        }
    }

    /// Adds a source after a check against its schema. Without the right to read the schema, the result is not known.
    pub(super) async fn add_checked(&mut self, target: &Target, name: &Name, present: &Observed) {
        if present.schema().is_none() {
            return self.add_source(name, present);
        }
        let key = (name.clone(), present.resource_version.clone());
        if !self.checks.contains_key(&key) {
            let (by, client) = (Instant::now() + LONGEST_WAIT, Client::default());
            let check = self.schemas.failure(&target.api, (&client, by), &name.namespace, present);
            let Ok(failure) = check.await else { return self.add_source(name, present) };
            self.checks.insert(key.clone(), failure);
        }
        let failure = self.checks.get(&key).cloned().flatten();
        self.add_source(name, &present.clone().checked(failure));
    }

    /// A source with the digests of its snapshots whose contents are equal.
    fn learned<'o>(&self, name: &Name, present: &'o Observed) -> Cow<'o, Observed> {
        let is_its = |((namespace, _), snapshot): &&(SourceKey, Snapshot)| {
            // The dashboard has metadata alone.
            **namespace == *name.namespace
                && snapshot.source == name.object
                && snapshot.value.get("data").is_some()
        };
        let snapshots = self.secrets.iter().filter(is_its).filter_map(|(_, snapshot)| snapshot.content());
        snapshots.fold(Cow::Borrowed(present), |mut present, snapshot| {
            present.to_mut().learn(&snapshot);
            present
        })
    }

    /// Sets the contents that the installation refuses.
    pub(super) fn refuse(&mut self, contents: &RefusedContents) {
        if *self.world.config().refused.contents() != *contents {
            self.world.set_refused_contents(contents.clone(), &mut Vec::new());
        }
    }

    /// Sets the time that decides, if a second has passed.
    pub(super) fn set_time(&mut self, now: Timestamp) {
        if now.duration_since(self.now).abs() >= SignedDuration::from_secs(1) {
            self.now = now;
            self.spreads.clear();
        }
    }

    /// Leaves out what was found or decided about the present content of a source.
    pub(super) fn forget_verdict(&mut self, source: &Name) {
        let Some(known) = self.world.existing_source(source) else { return };
        let with_content = self.world.snapshots().with(source, &known.present.digests);
        let judged: Vec<_> = with_content.map(|(name, record)| (name, record.clone())).collect();
        for (name, mut record) in judged {
            record.verdict = None;
            self.world.apply_snapshot(&name, Some(record), &mut Vec::new());
        }
        self.spreads.clear();
    }

    /// The group of a namespace.
    pub(super) fn group(&self, namespace: &str) -> Option<&str> {
        self.groups.get(namespace).map(|group| &**group)
    }

    /// Whether only this namespace of its group was read.
    fn is_partly_known(&self, namespace: &str) -> bool {
        !self.knows_groups && self.groups.contains_key(namespace)
    }

    /// The key of a workload.
    pub(super) fn key(&self, workload: &OptedIn) -> WorkloadKey {
        let kind =
            self.world.config().kinds.iter().position(|kind| *kind == workload.kind).unwrap_or(usize::MAX);
        WorkloadKey { kind, namespace: workload.namespace().into(), name: workload.name().into() }
    }

    /// The name of a workload for a reader of this namespace.
    pub(super) fn name(&self, namespace: &str, key: &WorkloadKey) -> String {
        let short = self.world.display_short(key);
        if *key.namespace == *namespace { short } else { format!("{}/{short}", key.namespace) }
    }

    /// The state of each workload in the namespaces of a change.
    pub(super) fn member_states(&self, source: &Name) -> Vec<(WorkloadKey, MemberState)> {
        let Some(known) = self.world.existing_source(source) else { return Vec::new() };
        let change = self.world.change(source, known);
        let of_source = |(source, known): &(Name, &SourceRecord)| {
            let member_states = self.world.member_states(source, known);
            member_states.map(|(key, _, member_state)| (key.clone(), member_state)).collect::<Vec<_>>()
        };
        change.sources.iter().flat_map(of_source).collect()
    }

    /// How far the change of a source has spread; `None` if nothing limits that.
    pub(super) async fn spread(&mut self, target: &Target, source: &Name) -> Result<Option<Judged>, Failure> {
        if let Some(known) = self.spreads.get(source) {
            return Ok(known.clone());
        }
        let is_partly_known = self.is_partly_known(&source.namespace);
        let Self { world, analyses, .. } = self;
        let Some(known) = world.existing_source(source) else { return Ok(None) };
        let change = world.change(source, known);
        let spread = match world.spread_unanalysed(&change, |_, _, _| false, self.now) {
            // The analysis is that of the whole group.
            Some(spread) if is_partly_known => Some((spread, None)),
            Some(spread) => Some(analysis::apply((target, analyses), world, &change, spread).await?),
            None => None,
        };
        self.spreads.insert(source.clone(), spread.clone());
        Ok(spread)
    }

    /// How far a change would spread whose waves can be analysed.
    pub(super) fn spread_assumed(&self, source: &Name) -> Option<Spread<WorkloadKey>> {
        let change = self.world.change(source, self.world.existing_source(source)?);
        let spread = self.world.spread_unanalysed(&change, |_, _, _| false, self.now)?;
        Some(spread.analysed(analysis::assumed))
    }

    /// Why others hold a workload from the present content of a source.
    fn wait(
        &self,
        key: &WorkloadKey,
        source: &Name,
        known: &SourceRecord,
        spread: &Spread<WorkloadKey>,
    ) -> Option<Wait<WorkloadKey>> {
        let wait = self.world.wait_in((key, self.world.workload(key)?), (source, known), spread)?;
        // The other namespaces of a group decide about the order, and about the analysis.
        let needs_others = matches!(wait, Wait::Wave | Wait::Analysis(_));
        (!needs_others || !self.is_partly_known(&key.namespace)).then_some(wait)
    }

    /// Whether the workload has failed.
    pub(super) fn has_failed(&self, key: &WorkloadKey) -> bool {
        let record = self.world.workload(key);
        record.is_some_and(|record| self.world.health(key, record) == Health::Failed)
    }

    /// What keeps a pending workload from the present content of a source, by the answers of the gates about all its sources. With the
    /// source that the reason is about.
    pub(super) async fn shut(
        &mut self,
        target: &Target,
        key: &WorkloadKey,
        source: &ObjectName,
    ) -> Result<Option<(Name, Why<WorkloadKey>)>, Failure> {
        let Some(record) = self.world.workload(key) else { return Ok(None) };
        let asked = self.world.existing_source(&key.beside(source.clone()));
        let pending = self.world.sources_of(key, record).filter(|(name, used, known)| {
            let decides = name.object == *source || asked.is_some_and(|asked| is_one_set(asked, known));
            decides && record.is_behind(used, &known.present)
        });
        let names: Vec<_> = pending.map(|(name, ..)| name).collect();
        for name in names {
            self.spread(target, &name).await?;
        }
        let Some(record) = self.world.workload(key) else { return Ok(None) };
        let wait = |source: &Name, known: &SourceRecord| {
            let (spread, _) = self.spreads.get(source)?.as_ref()?;
            self.wait(key, source, known, spread)
        };
        let answers = self.world.answers((key, record), wait, (self.now, self.now));
        let shut = answers.shut.into_iter().find(|shut| shut.source.object == *source);
        Ok(shut.map(|shut| (shut.about, shut.why)))
    }

    /// The answer of the gates about one source of a workload, whatever its others do. `spread`: how far its change has spread, if others
    /// may hold the workload; `counts`: whether such a reason counts. `None` if it does not use the source.
    pub(super) fn answer(
        &self,
        key: &WorkloadKey,
        source: &Name,
        spread: Option<&Spread<WorkloadKey>>,
        counts: impl Fn(&Wait<WorkloadKey>) -> bool,
    ) -> Option<Answer<WorkloadKey>> {
        let (record, known) = (self.world.workload(key)?, self.world.existing_source(source)?);
        let uses = || record.uses.iter().filter(|used| used.source == source.object);
        let pending = uses().find(|used| record.is_pending_for(used, &known.present));
        let used = pending.or_else(|| uses().next())?;
        let wait = || self.wait(key, source, known, spread?).filter(&counts);
        Some(self.world.answer((key, record), (source, used, known), wait, (self.now, self.now)))
    }
}

impl std::fmt::Debug for ReadWorld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadWorld").field("entered", &self.entered).finish_non_exhaustive()
    }
}

/// The settings of a Namespace.
pub(super) fn settings_of(namespace: &Value) -> NamespaceSettings {
    let name = text(namespace, "/metadata/name");
    NamespaceSettings::read(name, |key| label(namespace, key), |key| annotation(namespace, key))
}

/// Whether a content belongs to a set.
pub(super) fn is_in_set(content: &Observed) -> bool {
    content.annotation(annotations::SET).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshot::{Digest, Rotated};

    const NOW: &str = "2026-05-01T10:00:00Z";

    fn at(second: i64) -> Timestamp {
        NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
    }

    fn source(kind: SourceKind, color: &str, annotations: &Value) -> Observed {
        let metadata =
            json!({"name": "demo", "uid": "u", "resourceVersion": "1", "annotations": annotations});
        let value = json!({"metadata": metadata, "data": {"color": color}});
        Observed::read(kind, value.to_string().into_bytes()).unwrap()
    }

    /// A settled Deployment that moved to this content when the clock showed [`NOW`].
    fn moved(namespace: &str, kind: SourceKind, seen: &Digest) -> OptedIn {
        let field = if kind == SourceKind::Secret { "secrets" } else { "configmaps" };
        let state = json!({field: {"demo": {"moved": NOW, "seen": seen.to_string()}}}).to_string();
        let reference = if kind == SourceKind::Secret { "secretRef" } else { "configMapRef" };
        let held = crate::snapshot::snapshot_name("demo", seen, 10);
        let container = json!({"name": "app", "envFrom": [{reference: {"name": held}}]});
        let sources = json!({field: {"demo": held}}).to_string();
        let deployment = json!({
            "metadata": {
                "name": "web", "namespace": namespace, "uid": namespace, "generation": 1,
                "annotations": {"confrev.dev/state": state, "confrev.dev/secrets": "true"},
            },
            "spec": {"replicas": 1, "template": {
                "metadata": {"annotations": {"confrev.dev/sources": sources}},
                "spec": {"containers": [container]},
            }},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
        });
        let kinds = Kinds::default();
        let kind = kinds.iter().find(|kind| kind.kind == "Deployment").unwrap();
        OptedIn::read(kind, deployment, (&Rotated::default(), &crate::world::Inherited::default())).unwrap()
    }

    fn world(
        workloads: &[OptedIn],
        snapshots: &BTreeMap<SourceKey, Snapshot>,
        group: Option<&str>,
    ) -> ReadWorld {
        let settings = |name: &str| {
            let group = group.map(Arc::from);
            (name.to_owned(), NamespaceSettings { group, ..NamespaceSettings::default() })
        };
        let namespaces = ["a", "b"].map(settings).into();
        let kinds = Arc::new(Kinds::default());
        ReadWorld::of(&kinds, workloads, snapshots, BTreeMap::new(), &namespaces, at(0))
    }

    fn name(namespace: &str, kind: SourceKind) -> Name {
        Name::new(namespace, ObjectName::new(kind, "demo"))
    }

    /// Nothing limits the change in b, so the controller would not need to know its Rollouts. A command has read them.
    #[test]
    fn settled_workload_of_unlimited_sibling_is_healthy() {
        let kind = SourceKind::ConfigMap;
        let waves = source(kind, "green", &json!({"confrev.dev/waves": "1", "confrev.dev/bake": "10s"}));
        let digest = waves.digest();
        let mut world = world(&[moved("b", kind, &digest)], &BTreeMap::new(), Some("shop"));
        world.add_source(&name("a", kind), &waves);
        world.add_source(&name("b", kind), &source(kind, "green", &json!({})));
        let member_states = world.member_states(&name("a", kind));
        let [(key, MemberState::Moved(moved))] = &member_states[..] else { panic!("{member_states:?}") };
        assert_eq!((world.name("a", key).as_str(), moved.health), ("b/Deployment/web", Health::Settled));
    }

    /// The dashboard keeps what it read until an object changes.
    #[test]
    fn kept_world_follows_the_clock() {
        let kind = SourceKind::ConfigMap;
        let waves = source(kind, "green", &json!({"confrev.dev/waves": "1", "confrev.dev/bake": "10s"}));
        let mut world = world(&[moved("a", kind, &waves.digest())], &BTreeMap::new(), None);
        world.add_source(&name("a", kind), &waves);
        let bakes = |world: &ReadWorld| {
            world.spread_assumed(&name("a", kind)).unwrap().progress().unwrap().bakes_until.is_some()
        };
        world.set_time(at(9));
        assert!(bakes(&world));
        world.set_time(at(11));
        assert!(!bakes(&world));
    }

    /// The digest of a snapshot of a Secret uses a key of the installation. Its content shows that it is the present one.
    #[test]
    fn secret_is_known_by_contents_of_snapshots() {
        let kind = SourceKind::Secret;
        let keyed: Digest = format!("hmac-sha256:01234567:{}", "7".repeat(64)).parse().unwrap();
        let snapshot = |color: &str| {
            let snapshot_name = crate::snapshot::snapshot_name("demo", &keyed, 10);
            let value = json!({
                "metadata": {
                    "name": snapshot_name, "namespace": "a", "uid": "s", "creationTimestamp": NOW,
                    "labels": {"app.kubernetes.io/managed-by": "confrev", "confrev.dev/source": "demo"},
                    "annotations": {"confrev.dev/source-name": "demo", "confrev.dev/digest": keyed.to_string()},
                },
                "immutable": true,
                "data": {"color": color},
            });
            BTreeMap::from([Snapshot::read(kind, value).unwrap()])
        };
        for (held, is_seen) in [("Z3JlZW4=", true), ("Ymx1ZQ==", false)] {
            let mut world = world(&[moved("a", kind, &keyed)], &snapshot(held), None);
            let waves = json!({"confrev.dev/waves": "1"});
            world.add_source(&name("a", kind), &source(kind, "Z3JlZW4=", &waves));
            let member_states = world.member_states(&name("a", kind));
            let has_moved = matches!(member_states[..], [(_, MemberState::Moved(_))]);
            assert_eq!(has_moved, is_seen, "{member_states:?}");
        }
    }
}
