//! The objects of one namespace, or of all: opted-in workloads, their revisions and pods, snapshots and sources.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use super::{
    failure::Failure,
    objects::{
        LiveSource, OptedIn, Scope, Snapshot, SourceKey, belongs_to_workload, is_called, is_owned, label,
        source, text,
    },
    output,
    target::Target,
    world::ReadWorld,
};
use crate::{
    annotations,
    cluster::ApiError,
    kinds::{REVISION_KINDS, WorkloadKind},
    resolve::{Health, Referrer, Use},
    snapshot::{Digest, ObjectName, SourceKind},
    world::NamespaceSettings,
};

/// The most reads at the same time.
const MAX_CONCURRENT_LISTS: usize = 16;
/// The label selector of snapshots.
pub(super) const SNAPSHOTS: &str = "app.kubernetes.io/managed-by=confrev,confrev.dev/source";

/// All objects that the commands read.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// Opted-in workloads, by namespace, kind and name.
    pub(super) workloads: Vec<OptedIn>,
    /// Rollouts, opted in or not: one may take its template from an opted-in workload.
    pub(super) rollouts: Vec<Arc<Value>>,
    /// ReplicaSets, ControllerRevisions and Jobs with the `revision` label, or of an opted-in workload.
    pub(super) revisions: Vec<Arc<Value>>,
    /// Pods with the `revision` label, or of such a revision or workload.
    pub(super) pods: Vec<Arc<Value>>,
    /// Snapshots.
    pub(super) snapshots: BTreeMap<SourceKey, Snapshot>,
    /// The current sources.
    pub(super) sources: BTreeMap<SourceKey, LiveSource>,
    /// The settings of the namespaces of a group, as far as the user may read them, if they were asked for.
    pub(super) namespaces: BTreeMap<String, NamespaceSettings>,
    /// The same facts as the gates ask for them, made at their first use.
    pub(super) world: OnceLock<Mutex<ReadWorld>>,
    /// What the user may not list, and what is therefore left out.
    pub(super) unread: Unread,
    /// The revisions and pods by controller, made at their first use.
    pub(super) owned: OnceLock<Owned>,
    /// The time that decides; `None`: the present time.
    pub(super) at: Option<Timestamp>,
}

/// The positions of revisions and of pods, by the uid of their controller, and of the Rollouts that take their template from a
/// workload.
#[derive(Debug, Default)]
pub(super) struct Owned {
    referrers: Vec<usize>,
    revisions: HashMap<String, Vec<usize>>,
    pods: HashMap<String, Vec<usize>>,
}

impl Owned {
    fn of(inventory: &Inventory) -> Self {
        let by_owner = |objects: &[Arc<Value>]| {
            let mut found: HashMap<String, Vec<usize>> = HashMap::new();
            for (i, object) in objects.iter().enumerate() {
                let owners = object["metadata"]["ownerReferences"].as_array();
                for owner in owners.into_iter().flatten().filter(|owner| owner["controller"] == true) {
                    found.entry(text(owner, "/uid").to_owned()).or_default().push(i);
                }
            }
            found
        };
        Self {
            referrers: referrers(&inventory.rollouts).collect(),
            revisions: by_owner(&inventory.revisions),
            pods: by_owner(&inventory.pods),
        }
    }
}

/// Collections that the user may not list.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// `resource.group`, as in kubectl.
    pub(super) resources: BTreeSet<String>,
    /// The API server's message about the first of them.
    message: String,
    /// How many lists were refused.
    refused: usize,
}

impl Unread {
    /// One warning that names what is left out; nothing if all was read.
    pub(super) fn warn(&self) {
        if let Some(text) = self.text() {
            output::warn(&format!("{text}: left out of the answer"));
        }
    }

    /// An error if one of these resources was not read; all of them if none is given.
    pub(super) fn require(&self, needed: &[&str]) -> Result<(), Failure> {
        let is_needed = |resource: &String| {
            needed.is_empty() || needed.contains(&resource.split('.').next().unwrap_or_default())
        };
        if self.resources.iter().any(is_needed) {
            let text = self.text().unwrap_or_default();
            return Err(Failure::Refused(format!("{text}: the answer would be incomplete")));
        }
        Ok(())
    }

    /// `you may not list pods, rollouts.argoproj.io`.
    pub(super) fn text(&self) -> Option<String> {
        let resources: Vec<_> = self.resources.iter().map(String::as_str).collect();
        (!resources.is_empty()).then(|| format!("you may not list {}", resources.join(", ")))
    }
}

/// The positions of the Rollouts that take their template from a workload.
fn referrers(rollouts: &[Arc<Value>]) -> impl Iterator<Item = usize> {
    let refers = |rollout: &Value| rollout.pointer("/spec/workloadRef").is_some();
    rollouts.iter().enumerate().filter(move |(_, rollout)| refers(rollout)).map(|(i, _)| i)
}

/// Whether a Rollout takes its template from this workload (`workloadRef`).
fn takes_template_from(rollout: &Value, workload: &OptedIn) -> bool {
    text(rollout, "/metadata/namespace") == workload.namespace()
        && Referrer::of(rollout).is_some_and(|referrer| referrer.refers_to(&workload.kind, workload.name()))
}

impl Inventory {
    /// The digest of the snapshot that replaces a source in a template, if it is known.
    pub(super) fn held_digest(&self, workload: &OptedIn, used: &Use) -> Option<Digest> {
        let held = ObjectName::new(used.source.kind, used.snapshot.as_deref()?);
        self.snapshots.get(&workload.key(&held))?.digest
    }

    /// The facts as the gates ask for them.
    pub(super) async fn world(&self, target: &Target) -> MutexGuard<'_, ReadWorld> {
        let read = || {
            let Self { workloads, snapshots, sources, namespaces, .. } = self;
            ReadWorld::of(&target.kinds, workloads, snapshots, sources.clone(), namespaces, self.now())
        };
        let mut world = self.world.get_or_init(|| Mutex::new(read())).lock().await;
        // What cannot be read refuses nothing here: the answer of confrev to a dry run does.
        if let Ok(refused) = target.strategies.refused(&target.api).await {
            world.refuse(&refused);
        }
        world.set_time(self.now());
        world
    }

    /// Reads everything in the scope. It is an error if the user may not list a part of it.
    pub(super) async fn read(target: &Target, scope: &Scope) -> Result<Self, Failure> {
        let inventory = Self::read_partly(target, scope).await?;
        if inventory.unread.resources.is_empty() {
            Ok(inventory)
        } else {
            Err(Failure::Refused(inventory.unread.message))
        }
    }

    /// Reads what the user may list in the scope, and records what is left out. It is an error if the user may list no kind of
    /// workload.
    pub(super) async fn read_partly(target: &Target, scope: &Scope) -> Result<Self, Failure> {
        let mut inventory = Self::read_workloads(target, scope).await?;
        let rollouts = ("argoproj.io/v1alpha1", "rollouts", "Rollout");
        inventory.rollouts = shared(inventory.unread.list(target, scope, rollouts, "").await?);
        inventory.let_rollouts_say_how_their_templates_fare();
        for kind in &REVISION_KINDS {
            let of = (&*kind.api_version(), kind.plural, kind.kind);
            let mut found = inventory.unread.list(target, scope, of, "").await?;
            let owners = inventory.owners();
            found.retain(|revision| has_config(&owners, revision));
            inventory.revisions.extend(shared(found));
        }
        let mut pods = inventory.unread.list(target, scope, ("v1", "pods", "Pod"), "").await?;
        let owners = inventory.owners();
        pods.retain(|pod| has_config(&owners, pod));
        inventory.pods = shared(pods);
        inventory.read_snapshots(target, scope, SNAPSHOTS).await?;
        inventory.read_sources(target).await?;
        Ok(inventory)
    }

    /// Reads what shows how far a change has spread: workloads, Rollouts and snapshots. It is an error if the user may not list
    /// a part of it.
    pub(super) async fn read_moves(target: &Target, scope: &Scope) -> Result<Self, Failure> {
        let mut inventory = Self::read_workloads(target, scope).await?;
        let rollouts = ("argoproj.io/v1alpha1", "rollouts", "Rollout");
        inventory.rollouts = shared(inventory.unread.list(target, scope, rollouts, "").await?);
        inventory.let_rollouts_say_how_their_templates_fare();
        inventory.read_snapshots(target, scope, SNAPSHOTS).await?;
        if inventory.unread.resources.is_empty() {
            Ok(inventory)
        } else {
            Err(Failure::Refused(inventory.unread.message))
        }
    }

    /// Reads the workloads alone that the user may list.
    pub(super) async fn read_workloads(target: &Target, scope: &Scope) -> Result<Self, Failure> {
        let mut inventory = Self { at: target.now, ..Self::default() };
        enter(target, scope).await?;
        for kind in target.kinds.iter() {
            let of = (&*kind.api_version(), &*kind.plural, &*kind.kind);
            let items = inventory.unread.list(target, scope, of, &opted_in("")).await?;
            inventory.workloads.extend(opted_in_of(target, kind, items));
        }
        if inventory.unread.refused == target.kinds.iter().count() {
            return Err(Failure::Refused(inventory.unread.message));
        }
        if inventory.workloads.is_empty() && matches!(scope, Scope::Namespace(of) if *of == target.namespace)
        {
            target.require_namespace().await?;
        }
        sort(&mut inventory.workloads);
        Ok(inventory)
    }

    /// The time that decides when a change may reach a workload.
    pub(super) fn now(&self) -> Timestamp {
        self.at.unwrap_or_else(Timestamp::now)
    }

    /// The uids of everything that may own a revision or a pod with config.
    pub(super) fn owners(&self) -> HashSet<String> {
        let workloads = self.workloads.iter().map(|workload| text(&workload.value, "/metadata/uid"));
        let others = self.rollouts.iter().chain(&self.revisions);
        workloads.chain(others.map(|other| text(other, "/metadata/uid"))).map(str::to_owned).collect()
    }

    /// The Rollouts that take their template from this workload.
    pub(super) fn referrers(&self, workload: &OptedIn) -> impl Iterator<Item = &Value> {
        let owned = self.owned.get_or_init(|| Owned::of(self));
        let rollouts = owned.referrers.iter().map(|i| &*self.rollouts[*i]);
        rollouts.filter(|rollout| takes_template_from(rollout, workload))
    }

    /// The workload from which a labelled Rollout takes its template, and whether that workload is opted in.
    pub(super) fn template_of(&self, workload: &OptedIn) -> Option<(String, bool)> {
        let reference =
            workload.value.pointer("/spec/workloadRef").filter(|_| workload.kind.kind == "Rollout")?;
        let lends = |other: &OptedIn| {
            other.namespace() == workload.namespace() && takes_template_from(&workload.value, other)
        };
        let name = format!("{}/{}", text(reference, "/kind"), text(reference, "/name"));
        Some((name, self.workloads.iter().any(lends)))
    }

    /// Sets each workload's health to the worst of its own and of the Rollouts that take its template.
    pub(super) fn let_rollouts_say_how_their_templates_fare(&mut self) {
        let referrers: Vec<_> = referrers(&self.rollouts).map(|i| &self.rollouts[i]).collect();
        for workload in &mut self.workloads {
            let rollouts = referrers.iter().filter(|rollout| takes_template_from(rollout, workload));
            let rollouts = rollouts.filter_map(|rollout| Referrer::of(rollout));
            let health = rollouts.map(|rollout| rollout.health(workload.record.generation));
            workload.record.health = health.fold(workload.record.health, Health::max);
        }
    }

    /// Reads the snapshots of ConfigMaps, and those of Secrets if a workload has any.
    pub(super) async fn read_snapshots(
        &mut self,
        target: &Target,
        scope: &Scope,
        selector: &str,
    ) -> Result<(), Failure> {
        for kind in self.source_kinds() {
            let of = ("v1", kind.plural(), kind.as_str());
            for value in self.unread.list(target, scope, of, selector).await? {
                if let Some((key, snapshot)) = Snapshot::read(kind, value) {
                    self.snapshots.insert(key, snapshot);
                }
            }
        }
        Ok(())
    }

    /// The kinds of sources in use. Secrets are read only if a workload uses one.
    pub(super) fn source_kinds(&self) -> Vec<SourceKind> {
        let uses = self.workloads.iter().flat_map(|workload| &workload.record.uses);
        let mut kinds: BTreeSet<_> = uses.map(|used| used.source.kind).collect();
        kinds.insert(SourceKind::ConfigMap);
        kinds.into_iter().collect()
    }

    /// Reads the sources of all workloads, concurrently.
    async fn read_sources(&mut self, target: &Target) -> Result<(), Failure> {
        let wanted: BTreeSet<SourceKey> = self
            .workloads
            .iter()
            .flat_map(|workload| workload.sources().into_iter().map(|source| workload.key(source)))
            .collect();
        let reads = stream::iter(wanted).map(|key| async move {
            let live = match source(target, &key).await {
                Err(Failure::Refused(_)) => LiveSource::Forbidden,
                other => {
                    other?.map_or(LiveSource::Missing, |observed| LiveSource::Present(Arc::new(observed)))
                }
            };
            Ok::<_, Failure>((key, live))
        });
        let read: Vec<_> = reads.buffer_unordered(MAX_CONCURRENT_LISTS).try_collect().await?;
        self.sources.extend(read);
        Ok(())
    }

    /// The workloads that a label selector selects.
    pub(super) async fn selected(
        &self,
        target: &Target,
        scope: &Scope,
        selector: &str,
    ) -> Result<Vec<&OptedIn>, Failure> {
        let mut uids = BTreeSet::new();
        for kind in target.kinds.iter() {
            let collection = scope.collection(&kind.api_version(), &kind.plural);
            match target.try_list(&collection, &kind.kind, &opted_in(selector)).await {
                // What is left out is already known.
                Err(error) if error.is_missing_right() => {}
                Err(error) => return Err(target.failure_of_selector(error, selector)),
                Ok(items) => {
                    uids.extend(items.iter().map(|item| text(item, "/metadata/uid").to_owned()));
                }
            }
        }
        let is_selected = |workload: &&OptedIn| uids.contains(text(&workload.value, "/metadata/uid"));
        Ok(self.workloads.iter().filter(is_selected).collect())
    }

    /// Finds the workload with this name: `name`, `kind/name` or `resource/name`.
    pub(super) fn find(&self, target: &Target, text: &str) -> Result<&OptedIn, Failure> {
        let (kind, name) = text.split_once('/').map_or((None, text), |(kind, name)| (Some(kind), name));
        let is_kind = |known: &WorkloadKind| kind.is_none_or(|kind| is_called(known, kind));
        if let Some(kind) = kind
            && !target.kinds.iter().any(|known| is_called(known, kind))
        {
            return Err(Failure::Usage(format!("unknown kind of workload {kind:?}")));
        }
        let found: Vec<_> = self
            .workloads
            .iter()
            .filter(|workload| workload.name() == name && is_kind(&workload.kind))
            .collect();
        match found[..] {
            [one] => Ok(one),
            [] => Err(Failure::NotFound(self.template_elsewhere(kind, name).unwrap_or_else(|| {
                let unread = self.unread.text().map(|text| format!(" ({text})")).unwrap_or_default();
                format!(
                    "no opted-in workload {text:?} in namespace {:?}{unread}: is it labelled {}=true?",
                    target.namespace,
                    annotations::ENABLED
                )
            }))),
            _ => {
                let all: Vec<_> = found.iter().map(|workload| workload.reference()).collect();
                Err(Failure::Usage(format!("{text:?} is ambiguous: give one of {}", all.join(", "))))
            }
        }
    }

    /// A hint for a user who gives the bare name of a workload where a source is expected; empty if no workload has the name.
    pub(super) fn hint_at_workload(&self, name: &str) -> String {
        let workload = self.workloads.iter().find(|workload| workload.name() == name);
        workload
            .map(|workload| format!("; for the workload, give {}", workload.reference()))
            .unwrap_or_default()
    }

    /// If the Rollout takes its template from another object: an error message that names this object.
    pub(super) fn template_elsewhere(&self, kind: Option<&str>, name: &str) -> Option<String> {
        let called =
            kind.is_none_or(|kind| matches!(&*kind.to_ascii_lowercase(), "rollout" | "rollouts" | "ro"));
        let rollout = self.rollouts.iter().find(|rollout| text(rollout, "/metadata/name") == name)?;
        let reference = rollout.pointer("/spec/workloadRef").filter(|_| called)?;
        let (of, at) = (text(reference, "/kind"), text(reference, "/name"));
        Some(format!("Rollout/{name} takes its template from {of}/{at}: give {of}/{at} instead"))
    }

    /// The revision objects of a workload, newest first. If a Rollout takes its template from the workload, also the
    /// Rollout's.
    pub(super) fn revisions_of(&self, workload: &OptedIn) -> Vec<&Value> {
        let owned = self.owned.get_or_init(|| Owned::of(self));
        let itself = text(&workload.value, "/metadata/uid");
        let uids = self.referrers(workload).map(|rollout| text(rollout, "/metadata/uid"));
        let uids: BTreeSet<_> = uids.chain([itself]).collect();
        let positions = uids.into_iter().filter_map(|uid| owned.revisions.get(uid)).flatten();
        let positions: BTreeSet<_> = positions.copied().collect();
        let mut found: Vec<_> = positions.into_iter().map(|i| &*self.revisions[i]).collect();
        found.sort_by_key(|revision| std::cmp::Reverse(text(revision, "/metadata/creationTimestamp")));
        found
    }

    /// The pods of a revision object.
    pub(super) fn pods_of(&self, workload: &OptedIn, revision: &Value) -> Vec<&Value> {
        let owned = self.owned.get_or_init(|| Owned::of(self));
        let uid = text(revision, "/metadata/uid");
        let name = text(revision, "/metadata/name");
        let hash = label(revision, "controller-revision-hash").unwrap_or(name);
        let of_set = |pod: &Value| {
            let pods = label(pod, "controller-revision-hash");
            is_owned(pod, |owner| workload.record.uid == owner.into())
                && pods.is_some_and(|pods| pods == hash || pods == name)
        };
        let uids = BTreeSet::from([uid, text(&workload.value, "/metadata/uid")]);
        let positions = uids.into_iter().filter_map(|uid| owned.pods.get(uid)).flatten();
        let positions: BTreeSet<_> = positions.copied().collect();
        let pods = positions.into_iter().map(|i| &*self.pods[i]);
        pods.filter(|pod| is_owned(pod, |owner| owner == uid) || of_set(pod)).collect()
    }
}

impl Unread {
    /// Lists a collection; nothing if the user may not list it, which is recorded.
    pub(super) async fn list(
        &mut self,
        target: &Target,
        scope: &Scope,
        (group_version, plural, kind): (&str, &str, &str),
        selector: &str,
    ) -> Result<Vec<Value>, Failure> {
        match target.try_list(&scope.collection(group_version, plural), kind, selector).await {
            Err(error) if error.is_missing_right() => {
                // The API server also refuses a resource that is not installed.
                if is_served(target, group_version, plural).await {
                    let group = group_version.split_once('/').map(|(group, _)| format!(".{group}"));
                    self.resources.insert(format!("{plural}{}", group.unwrap_or_default()));
                }
                self.refused += 1;
                if let ApiError::Refused { message, .. } = error
                    && self.message.is_empty()
                {
                    self.message = message;
                }
                Ok(Vec::new())
            }
            other => other.map_err(|error| target.failure(error)),
        }
    }
}

/// Objects that several inventories can share.
fn shared(objects: Vec<Value>) -> Vec<Arc<Value>> {
    objects.into_iter().map(Arc::new).collect()
}

/// Whether the revision or pod has the `revision` label, or belongs to an opted-in workload. Those from before the opt-in, and
/// those whose sources are missing, have no label.
pub(super) fn has_config(owners: &HashSet<String>, object: &Value) -> bool {
    label(object, annotations::REVISION).is_some() || is_owned(object, |owner| owners.contains(owner))
}

/// Whether the API server has a resource. If that cannot be known, it has.
async fn is_served(target: &Target, group_version: &str, plural: &str) -> bool {
    let root = if group_version.contains('/') { "/apis" } else { "/api" };
    match target.get(&format!("{root}/{group_version}")).await {
        Ok(Some(found)) => {
            let resources = found["resources"].as_array();
            resources.is_none_or(|resources| resources.iter().any(|resource| resource["name"] == plural))
        }
        Ok(None) => false,
        Err(_) => true,
    }
}

/// The label selector of opted-in workloads, with a further one.
pub(super) fn opted_in(selector: &str) -> String {
    both(selector, &format!("{0},{0}!=false", annotations::ENABLED))
}

/// The label selector of workloads without a label of their own, with a further one: their namespace decides.
pub(super) fn undecided(selector: &str) -> String {
    both(selector, &format!("!{}", annotations::ENABLED))
}

fn both(selector: &str, other: &str) -> String {
    let comma = if selector.is_empty() { "" } else { "," };
    format!("{selector}{comma}{other}")
}

/// Reads what the workloads of the scope inherit.
pub(super) async fn enter(target: &Target, scope: &Scope) -> Result<(), Failure> {
    let entered = match scope {
        Scope::All => target.strategies.enter_all(&target.api).await,
        Scope::Namespace(namespace) => target.strategies.enter(&target.api, namespace).await,
    };
    entered.map_err(|error| target.failure(error))
}

fn opted_in_of(target: &Target, kind: &WorkloadKind, items: Vec<Value>) -> impl Iterator<Item = OptedIn> {
    let own = items.into_iter().filter(|item| !belongs_to_workload(item));
    own.filter_map(|item| OptedIn::of(target, kind, item))
}

/// Sorts by namespace and name.
pub(super) fn sort(workloads: &mut [OptedIn]) {
    workloads.sort_by(|a, b| (a.namespace(), a.name()).cmp(&(b.namespace(), b.name())));
}

/// The opted-in workloads in the scope. A kind that is not installed has none.
pub(super) async fn workloads(target: &Target, scope: &Scope) -> Result<Vec<OptedIn>, Failure> {
    let mut found = Vec::new();
    enter(target, scope).await?;
    for kind in target.kinds.iter() {
        let collection = scope.collection(&kind.api_version(), &kind.plural);
        let items = target.list(&collection, &kind.kind, &opted_in("")).await?;
        found.extend(opted_in_of(target, kind, items));
    }
    sort(&mut found);
    Ok(found)
}
