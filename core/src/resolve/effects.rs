//! Turns resolved references into patch operations on the raw object.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Decision, Request,
    mount::{self, Mount},
    optin::Giver,
    plan::auto_roll_time,
    policy::{Policy, hold_text},
    undo::kept_settings,
};
use crate::{
    annotations,
    snapshot::{Digest, ObjectName},
    template::{Patch, Reference, SourceMap, Template, revision_of},
    tie::Remembered,
};

/// The results of all references of a template.
#[derive(Debug, Default)]
pub(super) struct Resolution {
    /// Every snapshot that the template names, by its source.
    pub(super) sources: SourceMap<String>,
    /// Every source in mode `live`, with the digest of its content that the template reads.
    pub(super) live: SourceMap<Digest>,
    /// Pointers within the template, with their new names.
    pub(super) renames: Vec<(String, String)>,
    /// ConfigMaps to mount in every container.
    pub(super) mount: Option<Mount>,
}

/// The annotations and the label that confrev writes on a template; `None` for each that the template must not have.
#[derive(Debug, Default)]
struct Stated {
    /// The text of the `sources` annotation.
    sources: Option<String>,
    /// The text of the `live` annotation.
    live: Option<String>,
    /// The value of the `revision` label.
    revision: Option<String>,
}

impl Resolution {
    /// The annotations and the label to write on the template.
    fn stated(&self) -> Stated {
        let sources = (!self.sources.is_empty()).then(|| self.sources.to_annotation());
        let revision = sources.as_deref().map(revision_of);
        let live = (!self.live.is_empty()).then(|| self.live.to_annotation());
        Stated { sources, live, revision }
    }

    /// The resolved names of the mount's ConfigMaps, in its order.
    fn mounted(&self, mount: &Mount) -> Vec<String> {
        let resolved = |i: usize| {
            let pointer = mount::reference_pointer(i);
            self.renames.iter().find(|(at, _)| *at == pointer).map(|(_, name)| name.clone())
        };
        mount.names.iter().enumerate().map(|(i, name)| resolved(i).unwrap_or_else(|| name.clone())).collect()
    }

    /// Changes the reference's name to `name`, unless it has that name already.
    pub(super) fn rename(&mut self, reference: &Reference<'_>, name: String) {
        if reference.name != name || !reference.pointer.starts_with('/') {
            self.renames.push((reference.pointer.clone(), name));
        }
    }
}

/// What confrev writes on a workload.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// What it remembers of each source.
    pub(super) state: SourceMap<Remembered>,
    /// The snapshots of the `hold` annotation, if the request changes it; without any, it is removed.
    pub(super) hold: Option<BTreeSet<ObjectName>>,
    /// `roll` keeps its stored value: the plan in it moves nothing.
    pub(super) keeps_roll: bool,
}

impl Marks {
    /// The annotation `state` with these records.
    fn state(&self) -> (&'static str, Option<String>) {
        (annotations::STATE, (!self.state.is_empty()).then(|| self.state.to_annotation()))
    }
}

/// The changes to an opted-in workload. Without a template (a Rollout with `workloadRef`), only its metadata changes.
pub(super) fn opted_in(
    request: &Request<'_>,
    giver: Giver,
    resolution: &Resolution,
    marks: &Marks,
    keeps_settings: bool,
) -> Decision {
    let mut patch = Patch::default();
    let mark = (giver == Giver::Namespace).then(|| request.new.mark_of_namespace());
    let stated = resolution.stated();
    set_labels(request, &mut patch, &[(annotations::ENABLED, Some("true".to_owned()))], &stated);
    let mut annotations = vec![(annotations::ENABLED_BY, mark)];
    annotations.push(marks.state());
    let (stored, restored) = match request.old.as_ref().filter(|_| keeps_settings) {
        Some(old) => (kept_settings(old), kept_settings(&request.new)),
        None => Default::default(),
    };
    let gone = restored.keys().filter(|key| !stored.contains_key(*key));
    annotations.extend(gone.map(|key| (*key, None)));
    annotations.extend(stored.iter().map(|(key, value)| (*key, Some((*value).to_owned()))));
    if let Some(hold) = &marks.hold {
        annotations.retain(|(key, _)| *key != annotations::HOLD);
        annotations.push((annotations::HOLD, (!hold.is_empty()).then(|| hold_text(hold))));
    }
    if marks.keeps_roll {
        let stored = request.old.as_ref().and_then(|old| old.annotation(annotations::ROLL));
        annotations.push((annotations::ROLL, stored.map(str::to_owned)));
    }
    if !keeps_settings {
        annotations.extend(last_roll(request).map(|roll| (annotations::ROLL, Some(roll))));
    }
    set_annotations(request, &mut patch, &annotations);
    if let Some(template) = &request.new.template {
        set_template(request, template, resolution, stated, &mut patch);
    }
    decision_of(patch)
}

/// The last `roll` value that confrev wrote, if the request restores older annotations: `kubectl rollout undo` of a
/// Deployment restores all annotations of the old ReplicaSet, including a stale `state`. `min-interval` counts from this value.
fn last_roll(request: &Request<'_>) -> Option<String> {
    let old = request.old.as_ref()?;
    let last = old.annotation(annotations::ROLL)?;
    let at = auto_roll_time(last)?;
    let is_older = match request.new.annotation(annotations::ROLL) {
        None => true,
        Some(roll) => auto_roll_time(roll).is_some_and(|restored| restored < at),
    };
    (is_older && request.new.restores_state(old)).then(|| last.to_owned())
}

/// The changes to an update of a stored Job. The API server refuses any change of a Job's template, so the stored names of
/// snapshots replace the names of sources that an applier sends again.
pub(super) fn keep_stored(request: &Request<'_>, old: &super::Workload<'_>) -> Decision {
    let mut resolution = Resolution { sources: old.sources(), live: old.live(), ..Resolution::default() };
    keep_mount(&mut resolution, old);
    let is_ours = !resolution.sources.is_empty() || !resolution.live.is_empty() || resolution.mount.is_some();
    let Some(template) = request.new.template.as_ref().filter(|_| is_ours) else {
        return Decision::default();
    };
    for reference in template.references() {
        let stored = resolution.sources.get(&ObjectName::new(reference.kind, reference.name)).cloned();
        if let Some(name) = stored {
            resolution.rename(&reference, name);
        }
    }
    let mut patch = Patch::default();
    let stated = resolution.stated();
    set_labels(request, &mut patch, &[], &stated);
    set_template(request, template, &resolution, stated, &mut patch);
    decision_of(patch)
}

/// Keeps the volume of the `mount` annotation as it is stored.
fn keep_mount(resolution: &mut Resolution, old: &super::Workload<'_>) {
    let wanted = Policy::read(old).0.mount;
    let (Some(template), Some(wanted)) = (&old.template, wanted) else { return };
    let Some(names) = mount::present(template, &wanted) else { return };
    let names = names.into_iter().map(str::to_owned).enumerate();
    resolution.renames.extend(names.map(|(i, name)| (mount::reference_pointer(i), name)));
    resolution.mount = Some(wanted);
}

/// The changes to a workload that is not, or no longer, opted in: everything that confrev wrote is removed.
pub(super) fn opt_out(request: &Request<'_>, giver: Giver) -> Decision {
    // An object on which confrev wrote nothing is left alone.
    let written = |workload: &super::Workload<'_>| {
        [annotations::STATE, annotations::ENABLED_BY].iter().any(|key| workload.annotation(key).is_some())
            || !workload.sources().is_empty()
            || !workload.live().is_empty()
            || (workload.label(annotations::ENABLED) == Some("true")
                && workload.template.as_ref().is_some_and(mount::has_volume)
                && Policy::read(workload).0.mount.is_some())
    };
    if !written(&request.new) && !request.old.as_ref().is_some_and(written) {
        return Decision::default();
    }
    let mut patch = Patch::default();
    let given = (giver == Giver::Namespace).then_some((annotations::ENABLED, None));
    set_labels(request, &mut patch, given.as_slice(), &Stated::default());
    let mut annotations = vec![(annotations::ENABLED_BY, None), (annotations::STATE, None)];
    // A `roll` value that confrev wrote is removed too; one that a person wrote stays.
    if request.new.annotation(annotations::ROLL).is_some_and(|roll| auto_roll_time(roll).is_some()) {
        annotations.push((annotations::ROLL, None));
    }
    set_annotations(request, &mut patch, &annotations);
    if let Some(template) = &request.new.template {
        let entered = [request.old.as_ref().map(super::Workload::sources), Some(request.new.sources())];
        let mut resolution = Resolution::default();
        for reference in template.references() {
            let mut maps = entered.iter().flatten();
            let source = maps.find_map(|map| map.source_of(reference.kind, reference.name));
            if let Some(source) = source.filter(|source| *source.name != *reference.name) {
                resolution.rename(&reference, source.name.to_string());
            }
        }
        let stated = resolution.stated();
        set_template(request, template, &resolution, stated, &mut patch);
    }
    decision_of(patch)
}

fn decision_of(patch: Patch) -> Decision {
    Decision { patch: patch.finish(), ..Decision::default() }
}

/// Sets the workload's labels, and the `revision` label in every place from which its revisions get it.
///
/// Kubernetes copies a template's labels to ReplicaSets and ControllerRevisions. Those of a Job's template are copied to the
/// Job before admission, and a CronJob's Jobs get the labels of `jobTemplate` if it has any. There, the label is written too.
fn set_labels(request: &Request<'_>, patch: &mut Patch, own: &[(&str, Option<String>)], stated: &Stated) {
    let revision = &stated.revision;
    let mut labels = own.to_vec();
    if !request.new.kind.rolls {
        labels.push((annotations::REVISION, revision.clone()));
    }
    patch.set_keys("/metadata/labels", request.new.labels(), &labels);
    if let Some(present) = &request.new.job_labels {
        let at = request.new.kind.template_pointer();
        let at = at.trim_end_matches("/spec/template");
        patch.set_keys(
            &format!("{at}/metadata/labels"),
            Some(present),
            &[(annotations::REVISION, revision.clone())],
        );
    }
}

fn set_annotations(request: &Request<'_>, patch: &mut Patch, wanted: &[(&str, Option<String>)]) {
    patch.set_keys("/metadata/annotations", request.new.annotations(), wanted);
}

/// Writes the template's references, its `sources` and `live` annotations, its `revision` label and its mounted volume.
fn set_template(
    request: &Request<'_>,
    template: &Template<'_>,
    resolution: &Resolution,
    stated: Stated,
    patch: &mut Patch,
) {
    let at = request.new.kind.template_pointer();
    let Stated { sources, live, revision } = stated;
    if !template.has_metadata() && (sources.is_some() || live.is_some()) {
        patch.add(&format!("{at}/metadata"), Value::Object(serde_json::Map::new()));
    }
    patch.set_keys(
        &format!("{at}/metadata/annotations"),
        template.annotations(),
        &[(annotations::SOURCES, sources), (annotations::LIVE, live)],
    );
    patch.set_keys(&format!("{at}/metadata/labels"), template.labels(), &[(annotations::REVISION, revision)]);
    for (pointer, name) in resolution.renames.iter().filter(|(pointer, _)| pointer.starts_with('/')) {
        patch.replace(&format!("{at}{pointer}"), name.as_str());
    }
    let mounted = resolution.mount.as_ref().map(|mount| (mount, resolution.mounted(mount)));
    mount::apply(patch, &at, template, mounted.as_ref().map(|(mount, names)| (*mount, names.as_slice())));
}
