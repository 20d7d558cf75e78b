//! What a pass of the decision asks: the request, the facts, and what follows from both. The rules change nothing of it.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use super::{holds::Holds, roll::Roll, stop::Stop, stored::Stored};
use crate::{
    resolve::{
        Facts, Need, Observed, Policy, Request, Spares, Workload,
        bare::bare,
        mount, undo,
        used::{ReadKeys, RequiredKeys, UsedKeys, required_keys},
    },
    snapshot::{Digest, ObjectName, SourceKind, source_of_name},
    template::{Reference, SourceMap, Template},
};

/// A request, and what is known in this pass.
pub(super) struct Question<'r> {
    pub(super) request: &'r Request<'r>,
    pub(super) facts: &'r Facts,
    pub(super) policy: &'r Policy,
    /// The request is an undo that replaces annotations: the settings keep their stored values.
    pub(super) keeps_settings: bool,
    /// What the stored workload says of its sources.
    pub(super) stored: Stored<'r>,
    /// The `sources` annotation of the requested template, which a user may have written.
    pub(super) stated: SourceMap<String>,
    /// The references of the requested template, and those of the `mount` annotation.
    pub(super) references: Vec<Reference<'r>>,
    /// The keys that these references read.
    pub(super) used: UsedKeys<'r>,
    /// The keys that these references require.
    pub(super) required: RequiredKeys<'r>,
    /// What the annotation `roll` asks for.
    pub(super) roll: Roll,
    /// What the annotation `hold` asks for.
    pub(super) holds: Holds,
    /// Sources that would move without another one of their set, which stays behind.
    pub(super) parted: &'r BTreeMap<ObjectName, ObjectName>,
    /// The facts that the rules have asked for, and that are missing.
    needs: RefCell<BTreeSet<Need>>,
    same_template: OnceCell<bool>,
}

/// The object whose settings count: the requested one, or in an undo the stored one.
pub(super) fn settings<'q>(request: &'q Request<'q>, keeps_settings: bool) -> &'q Workload<'q> {
    request.old.as_ref().filter(|_| keeps_settings).unwrap_or(&request.new)
}

impl<'r> Question<'r> {
    /// `Err`: why the request must be refused.
    pub(super) fn new(
        request: &'r Request<'r>,
        template: &'r Template<'r>,
        facts: &'r Facts,
        policy: &'r Policy,
        keeps_settings: bool,
        parted: &'r BTreeMap<ObjectName, ObjectName>,
    ) -> Result<Self, String> {
        let mut question = Self {
            request,
            facts,
            policy,
            keeps_settings,
            stored: Stored::of(request.old.as_ref()),
            stated: request.new.sources(),
            references: Vec::new(),
            used: UsedKeys::of(&[]),
            required: RequiredKeys::new(),
            roll: if keeps_settings { Roll::default() } else { Roll::of(request)? },
            holds: Holds::default(),
            parted,
            needs: RefCell::default(),
            same_template: OnceCell::new(),
        };
        question.references = question.find_references(template);
        question.used = UsedKeys::of(&question.references);
        question.required = required_keys(&question.references);
        Ok(question)
    }

    /// Asks for a fact.
    pub(super) fn need(&self, need: Need) -> Stop {
        self.needs.borrow_mut().insert(need);
        Stop::Unknown
    }

    /// Whether a rule has asked for this fact.
    pub(super) fn needs(&self, need: &Need) -> bool {
        self.needs.borrow().contains(need)
    }

    /// Stops if a rule has asked for a fact.
    pub(super) fn all_known(&self) -> Result<(), Stop> {
        if self.needs.borrow().is_empty() { Ok(()) } else { Err(Stop::Unknown) }
    }

    /// The facts that the rules have asked for, and that are missing.
    pub(super) fn into_needs(self) -> BTreeSet<Need> {
        self.needs.into_inner()
    }

    /// The live object of that name; `Ok(None)` if it does not exist.
    pub(super) fn object(&self, name: &ObjectName) -> Result<Option<&'r Observed>, Stop> {
        self.facts.object(name).ok_or_else(|| self.need(Need::Object(name.clone())))
    }

    /// The live object of that name, if it was read and exists.
    pub(super) fn known(&self, name: &ObjectName) -> Option<&'r Observed> {
        self.facts.object(name).flatten()
    }

    /// Further names for the snapshot of the source's newest content.
    pub(super) fn spares(&self, source: &ObjectName) -> Result<&'r Spares, Stop> {
        self.facts.spares(source).ok_or_else(|| self.need(Need::Spares(source.clone())))
    }

    /// Whether the object may not be read: a Secret, if Secrets are off.
    pub(super) fn is_out_of_reach(&self, object: &ObjectName) -> bool {
        object.kind == SourceKind::Secret && !self.request.secrets
    }

    /// Whether no object has the name of this snapshot, and no earlier decision wrote that name.
    pub(super) fn is_dangling(&self, object: &ObjectName) -> Result<bool, Stop> {
        let is_known = self.stored.sources.source_of(object.kind, &object.name).is_some();
        Ok(!is_known && !self.is_out_of_reach(object) && self.object(object)?.is_none())
    }

    /// Whether the request restores the template of a live revision: such an undo rejects the pending change.
    pub(super) fn is_undo(&self) -> Result<bool, Stop> {
        if self.roll.is_new || self.roll.plan.is_some() {
            return Ok(false);
        }
        undo::is_undo(self.request, self.facts).map_err(|need| self.need(need))
    }

    /// Whether the requested and the stored template differ at most in the names by which they refer to the same sources.
    pub(super) fn is_same_template(&self) -> bool {
        *self.same_template.get_or_init(|| {
            let Some(old) = &self.request.old else { return false };
            let stored = |name: &ObjectName| self.stored.sources.source_of(name.kind, &name.name).cloned();
            let requested = |name: &ObjectName| {
                stored(name).or_else(|| self.stated.source_of(name.kind, &name.name).cloned())
            };
            let digest = |workload: &Workload<'_>, name_of: &dyn Fn(&ObjectName) -> Option<ObjectName>| {
                bare(workload.text()?, &workload.kind.template, name_of)
            };
            let before: Option<Digest> = digest(old, &stored);
            before.is_some()
                && before == digest(&self.request.new, &requested)
                && Policy::read(old).0.mount == self.policy.mount
        })
    }

    /// The keys that a template reads of a source, by whatever names; `None` if it reads the whole source.
    pub(super) fn keys_read<'k>(&self, source: &ObjectName, used: &UsedKeys<'k>) -> ReadKeys<'k> {
        used.of_source(source, |kind, name| self.entered(kind, name))
    }

    /// The source of a snapshot that a `sources` annotation lists.
    pub(super) fn entered(&self, kind: SourceKind, name: &str) -> Option<&ObjectName> {
        [&self.stored.sources, &self.stated].into_iter().find_map(|map| map.source_of(kind, name))
    }

    /// The source of which `object` is a snapshot; `None` if it is a source itself.
    pub(super) fn source_of(&self, object: &ObjectName) -> Result<Option<ObjectName>, Stop> {
        let entered = |map: &SourceMap<String>| {
            map.source_of(object.kind, &object.name).filter(|source| *source != object).cloned()
        };
        // An earlier decision wrote the `sources` of the stored template.
        if let Some(source) = entered(&self.stored.sources) {
            return Ok(Some(source));
        }
        // A live object takes precedence over an annotation that a user may have written.
        if !self.is_out_of_reach(object)
            && let Some(observed) = self.object(object)?
        {
            let identity = observed.identity().filter(|identity| *identity.source != *object.name);
            return Ok(identity.map(|identity| ObjectName::new(object.kind, identity.source.clone())));
        }
        // Nor does a name prove anything, but a snapshot that exists nowhere is of no use: the reference is one to its source.
        let is_ours = !self.is_out_of_reach(object) && !self.policy.exclude.exact().contains(object);
        let named = || source_of_name(&object.name).map(|source| ObjectName::new(object.kind, source));
        Ok(entered(&self.stated).or_else(|| named().filter(|_| is_ours)))
    }

    /// The template's own references, then those of the `mount` annotation. The name of a mounted ConfigMap comes from the
    /// existing volume, or from the annotation if the volume does not have it.
    fn find_references(&self, template: &'r Template<'r>) -> Vec<Reference<'r>> {
        let mut references = template.references();
        if let Some(own) = mount::pointer_prefix(template) {
            references.retain(|reference| !reference.pointer.starts_with(&own));
        }
        let policy = self.policy;
        let Some(wanted) = &policy.mount else { return references };
        let present = mount::present(template, wanted);
        for (i, source) in wanted.names.iter().enumerate() {
            let present = present.as_ref().map(|names| names[i]);
            let name = present.filter(|name| self.is_mounted_snapshot(name, source)).unwrap_or(source);
            let pointer = mount::reference_pointer(i);
            references.push(Reference {
                pointer,
                kind: SourceKind::ConfigMap,
                name,
                keys: None,
                optional: false,
            });
        }
        references
    }

    /// Whether the name in confrev's own volume is a snapshot of this ConfigMap of the annotation. `kubectl rollout undo` restores
    /// the `sources` that list it; a pin writes the name alone, so the object of that name decides.
    fn is_mounted_snapshot(&self, name: &str, source: &str) -> bool {
        let maps = [&self.stored.sources, &self.stated];
        let entered = maps.map(|map| map.source_of(SourceKind::ConfigMap, name));
        let is_entered = entered.iter().flatten().next().is_some();
        let is_its = entered.into_iter().flatten().any(|entered| *entered.name == *source);
        let object = ObjectName::new(SourceKind::ConfigMap, name);
        if is_entered || name == source || self.stored.names.contains(&object) {
            return is_its;
        }
        // An unknown object is among the needs, so this pass decides nothing.
        matches!(self.object(&object), Ok(Some(observed)) if observed.is_snapshot_of_source(source))
    }

    /// Whose annotation a setting is, for messages, if it is not the workload's own.
    pub(super) fn whose(&self, key: &str) -> &'static str {
        if settings(self.request, self.keeps_settings).annotation(key).is_some() {
            ""
        } else {
            " of its namespace or of the installation"
        }
    }
}
