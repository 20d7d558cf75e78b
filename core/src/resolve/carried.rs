//! Writes that confrev did not answer. While it is away, the policy `confrev-carry` in the API server keeps the snapshots of the stored
//! template, and marks the workload: the label `carried`, and the annotation `carried` with an entry for each source.
//!
//! The policy marks every write before admission sees it, so admission takes its changes back and decides as if it did not exist. Only
//! what an earlier, unanswered write left in the mark makes a difference.

use std::collections::BTreeSet;

use super::{Request, Workload, plan::Plan};
use crate::{
    annotations::{self, On},
    snapshot::{ObjectName, SourceKind, is_object_name},
    template::Patch,
};

/// Before an entry of a source whose snapshot a write chose.
const CHOSEN: char = '=';
/// The entry of a template that had lost confrev's annotations, by a replace, and got those of the stored one.
const RESTORED: &str = "+";
/// The value of the label.
const MARKED: &str = "true";
/// The most references whose names return to those of their sources. Each takes memory that its text does not. With more of them, the
/// workload keeps its snapshots.
const MOST_RENAMES: usize = 10_000;
/// The labels of a stored template that the policy restores, beside all annotations that confrev writes there.
const TEMPLATE_LABELS: [&str; 1] = [annotations::REVISION];

/// What the mark of a request says, as far as it makes a difference to the decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Sources that unanswered writes named, and of which the workload kept the snapshot. Empty if the requested template names them
    /// again.
    pub(super) kept: BTreeSet<ObjectName>,
    /// Sources of which an unanswered write chose the snapshot: an undo or a pin.
    pub(super) chosen: BTreeSet<ObjectName>,
}

/// A request without its mark.
#[derive(Debug, Default)]
pub struct Unmarked {
    /// The object with the names that it had before the policy changed them; `None` if the policy changed none.
    pub text: Option<String>,
    /// The template has annotations and a label that the policy has restored.
    loses_restored: bool,
    /// What an unanswered write left in the mark.
    pub carried: Carried,
    /// The operations that lead from the object as received to the requested one.
    patch: Patch,
}

impl Unmarked {
    /// Takes the mark off a request. If it is believed, the names that the policy changed return to the names of their sources, unless
    /// the request has a plan: that says what moves. `None`: the request has no mark.
    ///
    /// Only the policy's own mark may be believed. Where the policy is in force, it replaces a mark that the writer of the request made
    /// up; elsewhere anyone can write one.
    pub fn of(request: &Request<'_>, is_believed: bool) -> Option<Self> {
        let new = &request.new;
        let mut unmarked = Self::default();
        let has_label = new.label(annotations::CARRIED).is_some();
        let has_list = new.annotation(annotations::CARRIED).is_some();
        if !has_label && !has_list {
            return None;
        }
        let gone = [(annotations::CARRIED, None)];
        unmarked.patch.set_keys("/metadata/labels", new.labels(), &gone);
        unmarked.patch.set_keys("/metadata/annotations", new.annotations(), &gone);
        let (Some(old), true) = (&request.old, is_believed) else { return Some(unmarked) };
        // What this request itself chooses shows in its template.
        let ((kept, chosen), (_, earlier)) = (entries(new), entries(old));
        unmarked.carried.chosen = earlier.intersection(&chosen).cloned().collect();
        if matches!(Plan::of(request), Ok(Some(_))) {
            unmarked.carried.kept = kept;
        } else {
            unmarked.name_sources(request, old, &kept);
            unmarked.lose_restored(request);
        }
        Some(unmarked)
    }

    /// Takes off what the policy has restored: an undo may lead to a template without it.
    fn lose_restored(&mut self, request: &Request<'_>) {
        let list = request.new.annotation(annotations::CARRIED).unwrap_or_default();
        let (true, Some(template)) = (list.split(',').any(|entry| entry == RESTORED), &request.new.template)
        else {
            return;
        };
        self.loses_restored = true;
        let at = request.new.kind.template_pointer();
        for (map, present, keys) in [
            ("annotations", template.annotations(), &template_annotations()[..]),
            ("labels", template.labels(), &TEMPLATE_LABELS),
        ] {
            let gone: Vec<_> = keys.iter().map(|key| (*key, None)).collect();
            self.patch.set_keys(&format!("{at}/metadata/{map}"), present, &gone);
        }
    }

    /// The request as it was before the policy changed it. `request` has the object of [`Self::text`], where there is one.
    pub fn requested<'a>(&self, mut request: Request<'a>) -> Request<'a> {
        if let Some(template) = request.new.template.as_mut().filter(|_| self.loses_restored) {
            template.forget(&TEMPLATE_LABELS, &template_annotations());
        }
        Request { carried: self.carried.clone(), ..request }
    }

    /// Names these sources where the template has their stored snapshots.
    fn name_sources(&mut self, request: &Request<'_>, old: &Workload<'_>, kept: &BTreeSet<ObjectName>) {
        let (Some(template), Some(text)) = (&request.new.template, request.new.text()) else { return };
        let (sources, at) = (old.sources(), request.new.kind.template_pointer());
        let mut renames = Vec::new();
        let references = template.references();
        if references.len() > MOST_RENAMES {
            return;
        }
        for reference in references {
            let source = sources.source_of(reference.kind, reference.name);
            // A snapshot's name begins with that of its source, so the text becomes shorter.
            let is_kept =
                |source: &&ObjectName| kept.contains(*source) && reference.name.starts_with(&*source.name);
            let Some(source) = source.filter(is_kept) else { continue };
            // A name has no escapes, so it is a part of the text.
            let Some(start) = (reference.name.as_ptr() as usize).checked_sub(text.as_ptr() as usize) else {
                continue;
            };
            let place = start..start + reference.name.len();
            if text.get(place.clone()) == Some(reference.name) {
                renames.push((place, source.name.to_string()));
                self.patch.replace(&format!("{at}{}", reference.pointer), &*source.name);
            }
        }
        if renames.is_empty() {
            return;
        }
        renames.sort_by_key(|(place, _)| place.start);
        let (mut named, mut done) = (String::with_capacity(text.len()), 0);
        for (place, name) in renames {
            named.push_str(&text[done..place.start]);
            named.push_str(&name);
            done = place.end;
        }
        named.push_str(&text[done..]);
        self.text = Some(named);
    }

    /// The operations of a decision on the unmarked request, on the object as received.
    pub fn patch_with(self, decided: json_patch::Patch) -> json_patch::Patch {
        let mut patch = self.patch.finish();
        patch.0.extend(decided.0);
        patch
    }
}

/// The annotations that confrev writes into templates.
fn template_annotations() -> Vec<&'static str> {
    annotations::records(On::Template).collect()
}

/// Whether confrev has not decided on the last write of a workload.
pub(super) fn is_marked(workload: &Workload<'_>) -> bool {
    workload.label(annotations::CARRIED) == Some(MARKED)
}

/// The sources in the mark of a workload: those that were kept, and those of which a snapshot was chosen. Controllers copy annotations to
/// revisions, and an undo brings them back, so a list counts only with the label.
fn entries(workload: &Workload<'_>) -> (BTreeSet<ObjectName>, BTreeSet<ObjectName>) {
    let list = workload.annotation(annotations::CARRIED).filter(|_| is_marked(workload));
    let list = list.filter(|list| list.len() <= annotations::MAX_ANNOTATION).unwrap_or_default();
    let (mut kept, mut chosen) = (BTreeSet::new(), BTreeSet::new());
    for entry in list.split(',') {
        let (entry, of) = entry.strip_prefix(CHOSEN).map_or((entry, &mut kept), |entry| (entry, &mut chosen));
        let source = entry.split_once('/').and_then(|(kind, name)| {
            let kind = SourceKind::of_plural(kind)?;
            is_object_name(name).then(|| ObjectName::new(kind, name))
        });
        of.extend(source);
    }
    (kept, chosen)
}
