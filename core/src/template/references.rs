//! The fields of a pod template that confrev reads, borrowed from its JSON, and the references found in them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{json::Str, snapshot::SourceKind};

/// A list as the API represents it: absent, null, or values any of which may be null.
type NullableList<T> = Option<Vec<Option<T>>>;
type NullableMap<'a> = Option<BTreeMap<Str<'a>, Str<'a>>>;

/// A pod template. Unknown fields are skipped but not lost: changes are patches on the JSON that it was read from.
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct Template<'a> {
    #[serde(default)]
    metadata: Option<TemplateMetadata<'a>>,
    #[serde(default)]
    spec: Option<PodSpec<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct TemplateMetadata<'a> {
    #[serde(default)]
    labels: NullableMap<'a>,
    #[serde(default)]
    annotations: NullableMap<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct PodSpec<'a> {
    #[serde(default)]
    volumes: NullableList<Volume<'a>>,
    #[serde(default)]
    containers: NullableList<Container<'a>>,
    #[serde(default)]
    init_containers: NullableList<Container<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct Volume<'a> {
    #[serde(default)]
    name: Str<'a>,
    #[serde(default)]
    config_map: Option<SourceReference<'a>>,
    #[serde(default)]
    secret: Option<SecretVolume<'a>>,
    #[serde(default)]
    projected: Option<Projected<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Projected<'a> {
    #[serde(default)]
    sources: NullableList<Projection<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct Projection<'a> {
    #[serde(default)]
    config_map: Option<SourceReference<'a>>,
    #[serde(default)]
    secret: Option<SourceReference<'a>>,
}

/// Every form with the field `name` for the object's name: volumes and projections of ConfigMaps, `envFrom`, `valueFrom`.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct SourceReference<'a> {
    #[serde(default)]
    name: Str<'a>,
    #[serde(default)]
    items: NullableList<KeyToPath<'a>>,
    #[serde(default)]
    key: Option<Str<'a>>,
    #[serde(default)]
    optional: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct SecretVolume<'a> {
    #[serde(default)]
    secret_name: Str<'a>,
    #[serde(default)]
    items: NullableList<KeyToPath<'a>>,
    #[serde(default)]
    optional: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct KeyToPath<'a> {
    #[serde(default)]
    key: Str<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct Container<'a> {
    #[serde(default)]
    env: NullableList<EnvVar<'a>>,
    #[serde(default)]
    env_from: NullableList<EnvFrom<'a>>,
    #[serde(default)]
    volume_mounts: NullableList<VolumeMount<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct VolumeMount<'a> {
    #[serde(default)]
    name: Str<'a>,
    #[serde(default)]
    mount_path: Str<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct EnvVar<'a> {
    #[serde(default)]
    value_from: Option<ValueFrom<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct ValueFrom<'a> {
    #[serde(default)]
    config_map_key_ref: Option<SourceReference<'a>>,
    #[serde(default)]
    secret_key_ref: Option<SourceReference<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct EnvFrom<'a> {
    #[serde(default)]
    config_map_ref: Option<SourceReference<'a>>,
    #[serde(default)]
    secret_ref: Option<SourceReference<'a>>,
}

/// One place of a template that names a ConfigMap or Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference<'t> {
    /// JSON pointer of the name, relative to the template.
    pub pointer: String,
    /// The kind of the object.
    pub kind: SourceKind,
    /// The name as written; never empty.
    pub name: &'t str,
    /// The keys that it reads; `None` if it reads all of them.
    pub keys: Option<Vec<&'t str>>,
    /// Whether pods start without it.
    pub optional: bool,
}

/// The mounts of one volume in one container.
#[derive(Debug)]
pub struct ContainerMounts<'t> {
    /// JSON pointer of the container's list of mounts, relative to the template.
    pub pointer: String,
    /// Whether the container has that list.
    pub has_list: bool,
    /// Index in the list, and path, of each mount of the volume.
    pub mounts: Vec<(usize, &'t str)>,
}

impl<'a> Template<'a> {
    /// The template's labels; `None` if there is no such field.
    pub fn labels(&self) -> Option<&BTreeMap<Str<'a>, Str<'a>>> {
        self.metadata.as_ref()?.labels.as_ref()
    }

    /// The template's annotations; `None` if there is no such field.
    pub fn annotations(&self) -> Option<&BTreeMap<Str<'a>, Str<'a>>> {
        self.metadata.as_ref()?.annotations.as_ref()
    }

    /// Removes these labels and annotations. A map that becomes empty stays: patches add single keys to it.
    pub fn forget(&mut self, labels: &[&str], annotations: &[&str]) {
        let Some(metadata) = &mut self.metadata else { return };
        for (map, keys) in [(&mut metadata.labels, labels), (&mut metadata.annotations, annotations)] {
            if let Some(map) = map {
                map.retain(|key, _| !keys.contains(&&**key));
            }
        }
    }

    /// Whether the template has a `metadata` object.
    pub fn has_metadata(&self) -> bool {
        self.metadata.is_some()
    }

    /// An annotation of the template.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations()?.get(key).map(|value| &**value)
    }

    /// The volume of that name: its index, and the ConfigMaps that it projects; `None` unless it projects whole ConfigMaps
    /// and nothing else.
    pub fn volume(&self, name: &str) -> Option<(usize, Option<Vec<&str>>)> {
        let (index, volume) =
            each(self.spec.as_ref()?.volumes.as_ref()).find(|(_, volume)| &*volume.name == name)?;
        let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_ref());
        let whole = |source: &&SourceReference<'_>| source.items.is_none() && source.optional.is_none();
        let names = sources.and_then(|sources| {
            let sources = sources.iter().map(|source| source.as_ref()?.config_map.as_ref().filter(whole));
            sources.map(|source| Some(&*source?.name)).collect()
        });
        Some((index, names))
    }

    /// Whether the pod has a list of volumes; `None` if there is no pod spec at all.
    pub fn has_volumes(&self) -> Option<bool> {
        Some(self.spec.as_ref()?.volumes.is_some())
    }

    /// Every container with the mounts of one volume in it.
    pub fn mounts(&self, volume: &str) -> Vec<ContainerMounts<'_>> {
        let Some(spec) = &self.spec else { return Vec::new() };
        let lists =
            [("containers", spec.containers.as_ref()), ("initContainers", spec.init_containers.as_ref())];
        let containers =
            lists.into_iter().flat_map(|(field, list)| each(list).map(move |(i, each)| (field, i, each)));
        containers
            .map(|(field, i, container)| ContainerMounts {
                pointer: format!("/spec/{field}/{i}/volumeMounts"),
                has_list: container.volume_mounts.is_some(),
                mounts: each(container.volume_mounts.as_ref())
                    .filter(|(_, mount)| &*mount.name == volume)
                    .map(|(j, mount)| (j, &*mount.mount_path))
                    .collect(),
            })
            .collect()
    }

    /// Every reference, in the order of a manifest: volumes, containers, initContainers. Empty names refer to nothing and are
    /// left out.
    pub fn references(&self) -> Vec<Reference<'_>> {
        let mut found = References(Vec::new());
        let Some(spec) = &self.spec else { return found.0 };
        for (i, volume) in each(spec.volumes.as_ref()) {
            found.volume(&format!("/spec/volumes/{i}"), volume);
        }
        for (field, containers) in
            [("containers", spec.containers.as_ref()), ("initContainers", spec.init_containers.as_ref())]
        {
            for (i, container) in each(containers) {
                found.container(&format!("/spec/{field}/{i}"), container);
            }
        }
        found.0
    }
}

/// The values of a list that are not null, with their indices.
fn each<T>(list: Option<&Vec<Option<T>>>) -> impl Iterator<Item = (usize, &T)> {
    list.into_iter().flatten().enumerate().filter_map(|(i, value)| Some((i, value.as_ref()?)))
}

/// Collects references.
struct References<'t>(Vec<Reference<'t>>);

impl<'t> References<'t> {
    fn volume(&mut self, at: &str, volume: &'t Volume<'_>) {
        if let Some(source) = &volume.config_map {
            self.named(format!("{at}/configMap/name"), SourceKind::ConfigMap, source);
        }
        if let Some(source) = &volume.secret {
            let keys = item_keys(source.items.as_ref());
            let pointer = format!("{at}/secret/secretName");
            self.push(pointer, SourceKind::Secret, &source.secret_name, keys, source.optional);
        }
        for (j, projection) in volume.projected.iter().flat_map(|projected| each(projected.sources.as_ref()))
        {
            let at = format!("{at}/projected/sources/{j}");
            if let Some(source) = &projection.config_map {
                self.named(format!("{at}/configMap/name"), SourceKind::ConfigMap, source);
            }
            if let Some(source) = &projection.secret {
                self.named(format!("{at}/secret/name"), SourceKind::Secret, source);
            }
        }
    }

    fn container(&mut self, at: &str, container: &'t Container<'_>) {
        for (j, variable) in each(container.env.as_ref()) {
            let Some(from) = &variable.value_from else { continue };
            let at = format!("{at}/env/{j}/valueFrom");
            if let Some(source) = &from.config_map_key_ref {
                self.named(format!("{at}/configMapKeyRef/name"), SourceKind::ConfigMap, source);
            }
            if let Some(source) = &from.secret_key_ref {
                self.named(format!("{at}/secretKeyRef/name"), SourceKind::Secret, source);
            }
        }
        for (j, from) in each(container.env_from.as_ref()) {
            let at = format!("{at}/envFrom/{j}");
            if let Some(source) = &from.config_map_ref {
                self.named(format!("{at}/configMapRef/name"), SourceKind::ConfigMap, source);
            }
            if let Some(source) = &from.secret_ref {
                self.named(format!("{at}/secretRef/name"), SourceKind::Secret, source);
            }
        }
    }

    fn named(&mut self, pointer: String, kind: SourceKind, source: &'t SourceReference<'_>) {
        let keys = source.key.as_ref().map(|key| vec![&**key]).or_else(|| item_keys(source.items.as_ref()));
        self.push(pointer, kind, &source.name, keys, source.optional);
    }

    fn push(
        &mut self,
        pointer: String,
        kind: SourceKind,
        name: &'t str,
        keys: Option<Vec<&'t str>>,
        optional: Option<bool>,
    ) {
        if !name.is_empty() {
            self.0.push(Reference { pointer, kind, name, keys, optional: optional.unwrap_or(false) });
        }
    }
}

/// The keys that `items` names; `None` if there are none, since the reference then reads all keys.
fn item_keys<'t>(items: Option<&'t Vec<Option<KeyToPath<'_>>>>) -> Option<Vec<&'t str>> {
    let keys: Vec<_> = each(items).map(|(_, item)| &*item.key).collect();
    (!keys.is_empty()).then_some(keys)
}
