//! The `mount` annotation: ConfigMaps as one projected volume in every container.

use std::collections::BTreeSet;

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::Workload;
use crate::{
    annotations,
    snapshot::is_object_name,
    template::{Patch, Template},
};

/// The path at which ConfigMaps are mounted if `mount` gives none.
const DEFAULT_MOUNT: &str = "/etc/kubernetes/configmaps";
/// The name of the volume.
const VOLUME: &str = "confrev-mount";

/// ConfigMaps to mount, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The ConfigMaps. If several have the same file, the file of the last one is used.
    pub names: Vec<String>,
    /// The folder.
    pub path: String,
}

impl Mount {
    /// Reads `name[,name]=PATH`; without a path, the default path applies.
    pub(super) fn parse(value: &str) -> Result<Self, &'static str> {
        const ALLOWED: &str =
            "names of ConfigMaps separated by commas, then = and an absolute path, as in \"a,b=/etc/app\"";
        let (names, path) = value.split_once('=').unwrap_or((value, DEFAULT_MOUNT));
        let names: Vec<_> = names.split(',').map(|name| name.trim().to_owned()).collect();
        let distinct = names.iter().collect::<BTreeSet<_>>().len() == names.len();
        // The API server refuses a colon in a mount path. The other characters are typical mistakes of users who want two
        // mounts. With a mount over the root directory, no image starts.
        let is_odd = |c: char| c.is_whitespace() || ":;,=".contains(c);
        let is_path = path.starts_with('/') && !path.trim_matches('/').is_empty() && !path.contains(is_odd);
        let is_path = is_path && path.split('/').all(|part| part != "..");
        if !distinct || !is_path || !names.iter().all(|name| is_object_name(name)) {
            return Err(ALLOWED);
        }
        Ok(Self { names, path: path.to_owned() })
    }
}

/// The volume that confrev made: its index, and its ConfigMaps. `None` for a volume of that name that confrev did not make.
fn own<'t>(template: &'t Template<'_>) -> Option<(usize, Vec<&'t str>)> {
    let (index, names) = template.volume(VOLUME)?;
    Some((index, names?))
}

/// Whether the template has the volume that confrev makes, even if its ConfigMaps do not exist.
pub(super) fn has_volume(template: &Template<'_>) -> bool {
    own(template).is_some()
}

/// The error if the template has a volume of that name that confrev did not make.
pub(super) fn in_the_way(workload: &Workload<'_>) -> Option<String> {
    let (_, of_ours) = workload.template.as_ref()?.volume(VOLUME)?;
    of_ours.is_none().then(|| {
        format!(
            "annotation {}: the volume name {VOLUME:?} is reserved for confrev: rename the volume in the template",
            annotations::MOUNT
        )
    })
}

/// The prefix of the pointers of references in confrev's own volume, relative to the template; `None` without the volume.
pub(super) fn pointer_prefix(template: &Template<'_>) -> Option<String> {
    own(template).map(|(index, _)| format!("/spec/volumes/{index}/"))
}

/// The pointer of the annotation's `i`th reference. It points to no field, since the reference is not in the template.
pub(super) fn reference_pointer(i: usize) -> String {
    format!("mount {i}")
}

/// The names that the volume has now, one for each ConfigMap of the annotation; `None` if their numbers differ.
pub(super) fn present<'t>(template: &'t Template<'_>, mount: &Mount) -> Option<Vec<&'t str>> {
    own(template).map(|(_, names)| names).filter(|names| names.len() == mount.names.len())
}

/// Removes the volume that confrev made, and its mounts, from a template.
pub(super) fn strip(template: &mut Value) {
    if !Template::deserialize(&*template).is_ok_and(|parsed| own(&parsed).is_some()) {
        return;
    }
    let without = |list: Option<&mut Value>| {
        if let Some(Value::Array(items)) = list {
            items.retain(|item| item["name"] != VOLUME);
        }
    };
    without(template.pointer_mut("/spec/volumes"));
    for field in ["/spec/containers", "/spec/initContainers"] {
        let containers = template.pointer_mut(field).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            without(container.pointer_mut("/volumeMounts"));
        }
    }
}

/// Adds, updates or removes the volume and its mounts. `wanted` holds the resolved names of the mount's ConfigMaps.
pub(super) fn apply(
    patch: &mut Patch,
    at: &str,
    template: &Template<'_>,
    wanted: Option<(&Mount, &[String])>,
) {
    let Some(has_volumes) = template.has_volumes() else { return };
    let volume = own(template);
    if volume.is_none() && template.volume(VOLUME).is_some() {
        return;
    }
    match (wanted, volume) {
        (None, None) => return,
        (None, Some((index, _))) => patch.remove(&format!("{at}/spec/volumes/{index}")),
        (Some((_, names)), None) if has_volumes => {
            patch.add(&format!("{at}/spec/volumes/-"), volume_json(names));
        }
        (Some((_, names)), None) => patch.add(&format!("{at}/spec/volumes"), json!([volume_json(names)])),
        (Some((_, names)), Some((index, present))) if present.len() == names.len() => {
            let pairs = present.iter().zip(names).enumerate();
            for (i, (_, name)) in pairs.filter(|(_, (old, new))| **old != new.as_str()) {
                patch.replace(
                    &format!("{at}/spec/volumes/{index}/projected/sources/{i}/configMap/name"),
                    name.as_str(),
                );
            }
        }
        (Some((_, names)), Some((index, _))) => {
            patch.remove(&format!("{at}/spec/volumes/{index}"));
            patch.add(&format!("{at}/spec/volumes/{index}"), volume_json(names));
        }
    }
    for container in template.mounts(VOLUME) {
        let list = format!("{at}{}", container.pointer);
        match wanted {
            None => container.mounts.iter().rev().for_each(|(j, _)| patch.remove(&format!("{list}/{j}"))),
            Some((mount, _)) => match container.mounts.first() {
                Some((_, path)) if *path == mount.path => {}
                Some((j, _)) => patch.replace(&format!("{list}/{j}/mountPath"), mount.path.as_str()),
                None if container.has_list => patch.add(&format!("{list}/-"), mount_json(mount)),
                None => patch.add(&list, json!([mount_json(mount)])),
            },
        }
    }
}

fn volume_json(names: &[String]) -> Value {
    let sources: Vec<_> = names.iter().map(|name| json!({"configMap": {"name": name}})).collect();
    json!({"name": VOLUME, "projected": {"sources": sources}})
}

fn mount_json(mount: &Mount) -> Value {
    json!({"name": VOLUME, "mountPath": mount.path, "readOnly": true})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_names_and_path_of_mount() {
        let mount = |names: &[&str], path: &str| Mount {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            path: path.to_owned(),
        };
        for (text, parsed) in [
            ("a", mount(&["a"], DEFAULT_MOUNT)),
            ("a, b.c=/etc/app", mount(&["a", "b.c"], "/etc/app")),
            ("a=/etc/..app/", mount(&["a"], "/etc/..app/")),
        ] {
            assert_eq!(Mount::parse(text), Ok(parsed), "{text}");
        }
        for text in [
            "",
            "A=/x",
            "a,,b=/x",
            "a,a=/x",
            "a=",
            "a=etc",
            "a=/",
            "a=//",
            "a=/x y",
            "a=/x:y",
            "a=/x;b=/y",
            "a=/x,b",
            "a=/x=y",
            "a=/x/../y",
            "a=/..",
        ] {
            assert!(Mount::parse(text).is_err(), "{text}");
        }
    }
}
