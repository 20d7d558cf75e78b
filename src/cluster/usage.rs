//! Live reads of the users of a snapshot, before an owner is removed from it and before it is deleted.
//!
//! The label of a revision decides nothing here. A template that cannot be read counts as using every name that it
//! mentions. A workload counts while it is opted in: what else it uses is held by its revisions.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use serde::{Deserialize, de::DeserializeSeed as _};

use super::{
    error::ApiError,
    kube_api::{KubeApi, parse},
    objects::{Candidate, LiveWorkload, Usage},
    pages::Listed,
    path,
};
use crate::{
    annotations,
    json::At,
    kinds::{REVISION_KINDS, WorkloadKind},
    resolve::{Health, NamespaceOptIn, Past, Record, RevisionsOf, Use, Workload},
    snapshot::{ObjectName, Rotated},
    template::Template,
    uid::Uid,
    world::{FOUND_USERS, Inherited, Owner, Precondition, WorkloadKey},
};

/// The most owners of one kind that are read one by one; more are read as a list.
const MAX_GETS: usize = 16;

/// The most revisions of a workload that are compared with a requested template. `revisionHistoryLimit` is 10 by
/// default.
const MAX_REVISIONS: usize = 1000;
/// The most bytes of one page of revisions. Admission reads these pages, and many reviews may do so at once.
const MAX_REVISION_BYTES: usize = 1 << 20;

/// The fields that are read of a listed object.
#[derive(Deserialize)]
struct ListedObject {
    metadata: ListedMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedMetadata {
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    owner_references: Vec<ListedOwner>,
}

#[derive(Deserialize)]
struct ListedOwner {
    #[serde(default)]
    controller: bool,
}

/// The collection of a kind, and the path of the template in its objects.
struct TemplateKind {
    api_version: String,
    kind: String,
    plural: String,
    template: Vec<String>,
    /// Whether an object counts only while its label opts it in.
    opted_in: bool,
}

impl TemplateKind {
    fn of(kind: &WorkloadKind) -> Self {
        Self {
            opted_in: true,
            api_version: kind.api_version(),
            kind: kind.kind.clone(),
            plural: kind.plural.clone(),
            template: kind.template.clone(),
        }
    }

    /// Whether an ownerReference points to an object of this kind, in any version.
    fn is_of(&self, owner: &Owner) -> bool {
        let group = |api_version: &str| api_version.rsplit_once('/').map(|(group, _)| group.to_owned());
        self.kind == *owner.kind && group(&self.api_version) == group(&owner.api_version)
    }

    /// The collection and selector of all objects of a namespace that may count.
    fn listed(&self, namespace: &str) -> Result<Listed, ApiError> {
        let collection = path::collection(&self.api_version, namespace, &self.plural)?;
        let selector = if self.opted_in { format!("{}=true", annotations::ENABLED) } else { String::new() };
        Ok(Listed { collection, selector, only: None, metadata_only: false })
    }

    /// Whether an object with these labels counts.
    fn counts(&self, metadata: &ListedMetadata) -> bool {
        let label = metadata.labels.as_ref().and_then(|labels| labels.get(annotations::ENABLED));
        !self.opted_in || label.is_some_and(|value| value == "true")
    }
}

impl KubeApi {
    /// Every kind with a pod template; kinds of revisions come first.
    fn template_kinds(&self) -> impl Iterator<Item = TemplateKind> {
        let revisions = REVISION_KINDS.iter().map(|kind| TemplateKind {
            api_version: kind.api_version(),
            kind: kind.kind.to_owned(),
            plural: kind.plural.to_owned(),
            template: kind.template.iter().map(|&field| field.to_owned()).collect(),
            opted_in: false,
        });
        let is_revision = |kind: &&WorkloadKind| {
            REVISION_KINDS.iter().any(|known| (known.group, known.plural) == (&*kind.group, &*kind.plural))
        };
        revisions.chain(self.kinds().iter().filter(move |kind| !is_revision(kind)).map(TemplateKind::of))
    }

    /// See [`super::api::Api::usages`].
    pub(super) async fn usages_by(
        &self,
        namespace: &str,
        owners: &[Owner],
        object: &ObjectName,
    ) -> Result<Vec<Usage>, ApiError> {
        let mut found: HashMap<Uid, Usage> = HashMap::new();
        for place in self.template_kinds() {
            let owners: Vec<_> = owners.iter().filter(|owner| place.is_of(owner)).collect();
            if owners.len() > MAX_GETS {
                let uids = owners.iter().map(|owner| owner.uid.clone()).collect();
                let mut listed = self.usages_in(namespace, &place, &uids, object).await?;
                for owner in owners {
                    let usage = listed.remove(&owner.uid).unwrap_or(Usage::Gone);
                    found.insert(owner.uid.clone(), usage);
                }
            } else {
                for owner in owners {
                    let usage = self.usage_by(namespace, &place, owner, object).await?;
                    found.insert(owner.uid.clone(), usage);
                }
            }
        }
        // confrev never adds an owner of a kind without a template, so this owner stays.
        Ok(owners.iter().map(|owner| found.get(&owner.uid).copied().unwrap_or(Usage::Used)).collect())
    }

    async fn usage_by(
        &self,
        namespace: &str,
        place: &TemplateKind,
        owner: &Owner,
        object: &ObjectName,
    ) -> Result<Usage, ApiError> {
        let path = path::object(&place.api_version, namespace, &place.plural, &owner.name)?;
        let bytes = match self.get(path.clone()).await {
            Err(error) if error.is_not_found() => return Ok(Usage::Gone),
            other => other?,
        };
        let item: ListedObject = parse(&bytes, &path)?;
        if *item.metadata.uid != owner.uid.to_string() {
            return Ok(Usage::Gone);
        }
        if !place.counts(&item.metadata) {
            return Ok(Usage::Unused);
        }
        Ok(usage_in(&item.metadata, &String::from_utf8_lossy(&bytes), &place.template, object))
    }

    /// How the objects of a kind with these uids use a ConfigMap or Secret.
    async fn usages_in(
        &self,
        namespace: &str,
        place: &TemplateKind,
        uids: &HashSet<Uid>,
        object: &ObjectName,
    ) -> Result<HashMap<Uid, Usage>, ApiError> {
        let of = place.listed(namespace)?;
        let (mut pages, mut found) = (self.pages(&of), HashMap::new());
        loop {
            let page = match pages.next().await {
                Err(error) if error.is_not_found() => return Ok(found),
                other => other?,
            };
            let Some(page) = page else { return Ok(found) };
            for item in page.items() {
                let ListedObject { metadata } = parse(item.as_bytes(), &of.collection)?;
                let uid = Uid::from(&*metadata.uid);
                if uids.contains(&uid) {
                    found.insert(uid, usage_in(&metadata, item, &place.template, object));
                }
            }
        }
    }

    /// See [`super::api::Api::users_of`].
    pub(super) async fn users_in(
        &self,
        namespace: &str,
        object: &ObjectName,
    ) -> Result<Vec<Owner>, ApiError> {
        let mut users = Vec::new();
        for place in self.template_kinds() {
            let of = place.listed(namespace)?;
            let mut pages = self.pages(&of);
            loop {
                let page = match pages.next().await {
                    // The kind is not installed.
                    Err(error) if error.is_not_found() => break,
                    other => other?,
                };
                let Some(page) = page else { break };
                for item in page.items().filter(|item| may_refer(item, &place.template, object)) {
                    let ListedObject { metadata } = parse(item.as_bytes(), &of.collection)?;
                    let (name, uid) = (metadata.name, metadata.uid);
                    users.push(Owner::new(&*place.api_version, &*place.kind, name, uid));
                    if users.len() >= FOUND_USERS {
                        return Ok(users);
                    }
                }
            }
        }
        Ok(users)
    }

    /// See [`super::api::Api::revisions`]. A revision that cannot be read is left out: an undo cannot be matched to it.
    pub(super) async fn revisions_of(
        &self,
        namespace: &str,
        of: &RevisionsOf,
    ) -> Result<Vec<Past>, ApiError> {
        let Some(kind) = REVISION_KINDS.get(of.kind) else { return Ok(Vec::new()) };
        let labels: Vec<_> = of.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let listed = Listed {
            collection: path::collection(&kind.api_version(), namespace, kind.plural)?,
            selector: labels.join(","),
            only: None,
            metadata_only: false,
        };
        let (mut pages, mut found) = (self.pages(&listed).with_max_bytes(MAX_REVISION_BYTES), Vec::new());
        while found.len() < MAX_REVISIONS {
            let Some(page) = pages.next().await? else { break };
            found.extend(page.items().filter_map(|item| Past::read(kind, item)));
        }
        Ok(found)
    }

    /// The workloads of a kind without an `enabled` label. A kind that is not installed has none. A workload that refers to too
    /// many names is left out: it could not be resolved.
    pub(super) async fn unlabelled_of_kind(
        &self,
        index: usize,
        kind: &WorkloadKind,
        (namespace, opt_in): (&str, NamespaceOptIn),
    ) -> Result<Vec<(WorkloadKey, Candidate)>, ApiError> {
        let marked =
            if opt_in == NamespaceOptIn::Next { format!("{},", annotations::CARRIED) } else { String::new() };
        let of = Listed {
            collection: path::collection(&kind.api_version(), namespace, &kind.plural)?,
            selector: format!("{marked}!{}", annotations::ENABLED),
            only: None,
            metadata_only: false,
        };
        let namespace: Arc<str> = Arc::from(namespace);
        let (mut pages, mut found) = (self.pages(&of), Vec::new());
        loop {
            let page = match pages.next().await {
                Err(error) if error.is_not_found() => return Ok(found),
                other => other?,
            };
            let Some(page) = page else { return Ok(found) };
            for item in page.items() {
                match LiveWorkload::read(kind, item, &self.rotated, &self.inherited) {
                    Ok(LiveWorkload::Unlabelled(candidate)) => {
                        let name = serde_json::from_str::<ListedObject>(item).map(|item| item.metadata.name);
                        let name: Arc<str> = Arc::from(name.unwrap_or_default());
                        if Use::names(&candidate.record.uses) > self.max_names {
                            let kind = &kind.kind;
                            tracing::warn!(%kind, %namespace, %name, "workload refers to too many names, and is not opted in");
                            continue;
                        }
                        let key = WorkloadKey { kind: index, namespace: Arc::clone(&namespace), name };
                        found.push((key, *candidate));
                        if Candidate::are_many(&found) {
                            return Ok(found);
                        }
                    }
                    Ok(LiveWorkload::Apart | LiveWorkload::Enabled(_)) => {}
                    Err(error) => {
                        let name = serde_json::from_str::<ListedObject>(item).map(|item| item.metadata.name);
                        let name = name.unwrap_or_default();
                        tracing::warn!(%error, kind = kind.kind, %namespace, name, "workload cannot be read, and is not opted in");
                    }
                }
            }
        }
    }
}

impl LiveWorkload {
    /// Reads a workload's state from its JSON.
    pub fn read(
        kind: &WorkloadKind,
        text: &str,
        rotated: &Rotated,
        inherited: &Inherited,
    ) -> Result<Self, serde_json::Error> {
        let workload = Workload::parse(kind, text)?;
        let namespace = workload.namespace().to_owned();
        let workload = inherited.workload(&namespace, workload);
        let record = Record::of(&workload, Health::read(&kind.kind, text), rotated);
        match workload.label(annotations::ENABLED) {
            Some("true") => return Ok(Self::Enabled(Box::new(record))),
            None if !workload.is_being_deleted() => {}
            _ => return Ok(Self::Apart),
        }
        let item: ListedObject = serde_json::from_str(text)?;
        if item.is_revision(kind) {
            return Ok(Self::Apart);
        }
        let condition = Precondition::Unlabelled {
            has_labels: workload.labels().is_some(),
            has_annotations: workload.annotations().is_some(),
        };
        Ok(Self::Unlabelled(Box::new(Candidate { record, condition })))
    }
}

impl ListedObject {
    /// Whether it is a revision of another workload and must not change: a ReplicaSet that has a controller. The
    /// webhooks skip these too.
    fn is_revision(&self, kind: &WorkloadKind) -> bool {
        kind.kind == "ReplicaSet" && self.metadata.owner_references.iter().any(|owner| owner.controller)
    }
}

fn usage_in<P: AsRef<str>>(metadata: &ListedMetadata, text: &str, path: &[P], object: &ObjectName) -> Usage {
    match may_refer(text, path, object) {
        false => Usage::Unused,
        true if metadata.deletion_timestamp.is_some() => Usage::Leaving,
        true => Usage::Used,
    }
}

/// Whether an object's template at that path refers to this ConfigMap or Secret, or cannot be read. Hardly any object
/// has the name in its text. An object that has it elsewhere, as in an annotation, does not refer to it.
fn may_refer<P: AsRef<str>>(text: &str, path: &[P], object: &ObjectName) -> bool {
    if !text.contains(&*object.name) {
        return false;
    }
    match At::<_, Template<'_>>::new(path).deserialize(&mut serde_json::Deserializer::from_str(text)) {
        Ok(template) => template.is_some_and(|template| {
            let mut all = template.references().into_iter();
            all.any(|reference| reference.kind == object.kind && *reference.name == *object.name)
        }),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::snapshot::SourceKind;

    #[test]
    fn only_references_of_the_template_count_as_use() {
        let volume = |name: &str| json!({"spec": {"volumes": [{"configMap": {"name": name}}]}});
        let mentioned =
            json!({"metadata": {"annotations": {"confrev.dev/sources": "{\"demo\":\"s-1\"}", "s-1": "s-1"}}});
        let of = |template: Value| json!({"spec": {"template": template}});
        let deep = |template: Value| json!({"data": {"spec": {"template": template}}});
        let nested = (0..200).fold(json!("s-1"), |inner, _| json!([inner]));
        let [short, long] = [&["spec", "template"][..], &["data", "spec", "template"]];
        for (item, path, is_named) in [
            (json!({}), short, false),
            (of(volume("s-1")), short, true),
            (of(volume("s-12")), short, false),
            (of(mentioned), short, false),
            (of(json!(null)), short, false),
            (of(volume("s-2")), short, false),
            (of(json!({"spec": {"volumes": [{"secret": {"secretName": "s-1"}}]}})), short, false),
            (deep(volume("s-1")), long, true),
            (deep(volume("s-1")), short, false),
            (of(json!({"spec": {"volumes": "s-1"}})), short, true),
            (of(json!({"spec": {"volumes": nested}})), short, true),
            (json!({"spec": {"template": {}, "strategy": nested}}), short, false),
        ] {
            let object = ObjectName::new(SourceKind::ConfigMap, "s-1");
            assert_eq!(may_refer(&item.to_string(), path, &object), is_named, "{item}");
        }
    }
}
