//! The rules by which each reference of a template resolves.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    Decision, Ensure, Facts, Health, Need, Observed, Pass, Request, Seen,
    effects::{self, Marks, Resolution},
    exclusions::Exclusions,
    holds::{self, HoldRule, Holds},
    misplaced, mount,
    optin::{Giver, OptIn, opt_in, was_decided_on},
    other_tools,
    plan::{Plan, Planned, To},
    policy::Policy,
    set::set_of,
    undo,
    used::{RequiredKeys, UsedKeys, has_new_roll, has_other_roll, required_keys},
    values::MissingPolicy,
};
use crate::{
    annotations,
    snapshot::{Digest, ObjectName, SourceKind, is_named_after, may_be_generated, source_of_name},
    template::{Reference, SourceMap, Template},
    tie::Remembered,
};

/// Resolves every reference of a workload's template.
///
/// Equal requests and facts give equal bytes. The result is a fixed point: resolving it again changes nothing.
pub fn resolve(request: &Request<'_>, facts: &Facts) -> Pass {
    if let Some(old) = request.old.as_ref().filter(|_| !request.new.kind.rolls) {
        return Pass::Decided(effects::keep_stored(request, old));
    }
    match opt_in(request, facts) {
        OptIn::Unknown => {
            // Most likely, the namespace opts the workload in: the API server sends few others. Asking for everything at
            // once saves a round of reads.
            let mut needs = match resolve_opted_in(request, facts, Giver::Namespace) {
                Pass::Needs(needs) => needs,
                Pass::Decided(_) => BTreeSet::new(),
            };
            needs.insert(Need::Namespace);
            Pass::Needs(needs)
        }
        OptIn::Malformed(error) => Pass::Decided(denied(request, &[error])),
        OptIn::Out(giver) => Pass::Decided(effects::opt_out(request, giver)),
        OptIn::In(giver) => resolve_opted_in(request, facts, giver),
    }
}

/// Resolves every reference of a workload that is opted in.
fn resolve_opted_in(request: &Request<'_>, facts: &Facts, giver: Giver) -> Pass {
    // An undo restores the template and the config; the settings keep their stored values.
    let keeps_settings = match undo::replaces_settings(request, facts) {
        Ok(keeps) => keeps,
        Err(need) => return Pass::Needs(BTreeSet::from([need])),
    };
    let (policy, errors) = Policy::read(settings(request, keeps_settings));
    if !errors.is_empty() {
        return Pass::Decided(denied(request, &errors));
    }
    Resolver::new(request, facts, &policy, keeps_settings).run(giver)
}

/// The object whose settings count: the requested one, or in an undo the stored one.
fn settings<'q>(request: &'q Request<'q>, keeps_settings: bool) -> &'q super::Workload<'q> {
    request.old.as_ref().filter(|_| keeps_settings).unwrap_or(&request.new)
}

pub(super) fn denied(request: &Request<'_>, errors: &[String]) -> Decision {
    let denial = format!("{}: {}", request.new.display(), errors.join("; "));
    Decision { denial: Some(denial), ..Decision::default() }
}

/// Why a decision cannot be completed in this pass.
pub(super) enum Stop {
    /// A fact is missing; `needs` lists it.
    Unknown,
    /// The request must be refused.
    Deny(String),
}

/// The result of resolving a reference.
#[derive(Clone)]
enum ResolvedReference {
    /// This snapshot of the source.
    Snapshot { source: ObjectName, name: String },
    /// The source itself.
    Source(ObjectName),
    /// Nothing: this object does not exist (yet).
    Unresolved(ObjectName),
}

#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct Resolver<'r> {
    pub(super) request: &'r Request<'r>,
    pub(super) facts: &'r Facts,
    pub(super) policy: &'r Policy,
    /// The `sources` annotation of the stored template, if an earlier decision wrote it.
    pub(super) prior: SourceMap<String>,
    /// The `live` annotation of the stored template, under the same condition.
    pub(super) prior_live: SourceMap<Digest>,
    /// The `sources` annotation of the requested template, which a user may have written.
    pub(super) stated: SourceMap<String>,
    /// What the stored workload remembers of each source.
    pub(super) before: SourceMap<Remembered>,
    /// Names that the stored template refers to.
    pub(super) stored: BTreeSet<ObjectName>,
    /// The keys that the stored template reads.
    pub(super) stored_used: UsedKeys<'r>,
    /// The keys that the stored template requires.
    pub(super) stored_keys: RequiredKeys<'r>,
    /// The keys that the requested template requires.
    pub(super) required: RequiredKeys<'r>,
    /// The request is an undo that replaces annotations: the settings keep their stored values.
    keeps_settings: bool,
    /// The holds of the request.
    pub(super) holds: Holds,
    /// `policy` holds what the undos of this request hold from now on.
    pub(super) moves_hold: bool,
    /// Whether the stored and the requested template differ in names only; `None` until computed.
    pub(super) same_template: Option<bool>,
    /// `roll` has a new value, from a person or the controller, that was not restored by an undo.
    pub(super) has_new_roll: bool,
    /// `roll` differs from the stored value. In a later pass of one admission, a new value looks as if an undo restored it.
    pub(super) has_other_roll: bool,
    /// What the request moves, if its value of `roll` is a plan.
    pub(super) plan: Option<Plan>,
    /// A person or the controller changed `roll`.
    pub(super) is_poke: bool,
    pub(super) needs: BTreeSet<Need>,
    pub(super) ensure: BTreeMap<ObjectName, Ensure>,
    pub(super) adopt: BTreeSet<ObjectName>,
    pub(super) warnings: Vec<String>,
    pub(super) missing: Vec<String>,
    /// What the workload remembers of each source from now on.
    pub(super) now: SourceMap<Remembered>,
    pub(super) now_live: SourceMap<Digest>,
    /// Sources whose present content is refused, and of which the workload returns to another snapshot.
    pub(super) returned: BTreeSet<ObjectName>,
    /// Sources that would move without another one of their set, which stays behind.
    pub(super) parted: BTreeMap<ObjectName, ObjectName>,
}

impl<'r> Resolver<'r> {
    fn new(request: &'r Request<'r>, facts: &'r Facts, policy: &'r Policy, keeps_settings: bool) -> Self {
        let old = request.old.as_ref();
        let references =
            old.and_then(|old| old.template.as_ref()).map(Template::references).unwrap_or_default();
        let stored =
            references.iter().map(|reference| ObjectName::new(reference.kind, reference.name)).collect();
        Self {
            request,
            facts,
            policy,
            prior: old.filter(|old| was_decided_on(old)).map(super::Workload::sources).unwrap_or_default(),
            prior_live: old.filter(|old| was_decided_on(old)).map(super::Workload::live).unwrap_or_default(),
            stated: request.new.sources(),
            before: old.map(super::Workload::state).unwrap_or_default(),
            stored,
            stored_used: UsedKeys::of(&references),
            stored_keys: required_keys(&references),
            required: RequiredKeys::new(),
            keeps_settings,
            holds: Holds::default(),
            moves_hold: false,
            same_template: None,
            has_new_roll: !keeps_settings && has_new_roll(request),
            has_other_roll: !keeps_settings && has_other_roll(request),
            plan: None,
            is_poke: !keeps_settings
                && old.is_some_and(|old| {
                    request.new.annotation(annotations::ROLL) != old.annotation(annotations::ROLL)
                }),
            needs: BTreeSet::new(),
            ensure: BTreeMap::new(),
            adopt: BTreeSet::new(),
            warnings: Vec::new(),
            missing: Vec::new(),
            now: SourceMap::default(),
            now_live: SourceMap::default(),
            returned: BTreeSet::new(),
            parted: BTreeMap::new(),
        }
    }

    /// Adds a warning for each source that a new annotation names, and to which the template does not refer.
    fn report_unused_names(&mut self, used: &UsedKeys<'_>) {
        let source_of = |kind, name: &str| {
            [&self.prior, &self.stated].into_iter().find_map(|map| map.source_of(kind, name)).cloned()
        };
        let own = self.request.new.annotation(annotations::EXCLUDE).map(|own| Exclusions::read([own]));
        let own = own.and_then(Result::ok).unwrap_or_default();
        let excluded = (annotations::EXCLUDE, own.exact().iter(), "its exclusion");
        self.warnings.extend(misplaced::unused_names(self.request, excluded, used.names(), source_of));
        if let Some(plan) = self.plan.as_ref().filter(|plan| !plan.is_automatic) {
            let moved = (annotations::ROLL, plan.moves.keys(), "its move");
            self.warnings.extend(misplaced::unused_names(self.request, moved, used.names(), source_of));
            if plan.moves.is_empty() && plan.every.is_none() {
                self.warnings.push(format!(
                    "annotation {}: the plan names no source, so nothing moves",
                    annotations::ROLL
                ));
            }
        }
    }

    /// Whose annotation a setting is, for messages, if it is not the workload's own.
    pub(super) fn whose(&self, key: &str) -> &'static str {
        if settings(self.request, self.keeps_settings).annotation(key).is_some() {
            ""
        } else {
            " of its namespace or of the installation"
        }
    }

    fn run(mut self, giver: Giver) -> Pass {
        let Some(template) = &self.request.new.template else {
            return self.without_template(giver);
        };
        let references = self.references(template);
        let used = UsedKeys::of(&references);
        self.required = required_keys(&references);
        if !self.keeps_settings {
            match Plan::of(self.request) {
                Ok(plan) => self.plan = plan,
                Err(wrong) => return Pass::Decided(denied(self.request, &[wrong])),
            }
        }
        match self.find_holds().and_then(|()| self.check_plan()) {
            Ok(()) => {}
            Err(Stop::Unknown) => return Pass::Needs(self.needs),
            Err(Stop::Deny(reason)) => return Pass::Decided(denied(self.request, &[reason])),
        }
        let mut resolution = Resolution { mount: self.policy.mount.clone(), ..Resolution::default() };
        // A name resolves to the same target everywhere, and a template may have thousands of references to one name.
        let mut targets: BTreeMap<(SourceKind, &str), ResolvedReference> = BTreeMap::new();
        for reference in &references {
            let key = (reference.kind, reference.name);
            let target = match targets.get(&key) {
                Some(known) => Ok(known.clone()),
                None => self.target(reference, &used),
            };
            match target {
                Ok(target) => {
                    targets.insert(key, target.clone());
                    self.take(&mut resolution, reference, target);
                }
                Err(Stop::Unknown) => {}
                Err(Stop::Deny(reason)) => return Pass::Decided(denied(self.request, &[reason])),
            }
        }
        if !self.needs.is_empty() {
            return Pass::Needs(self.needs);
        }
        let recorded = self.record_previous(&resolution.sources);
        match recorded.and_then(|()| self.part(&resolution.sources)) {
            Ok(false) => {}
            Ok(true) => {
                let again = Resolver::new(self.request, self.facts, self.policy, self.keeps_settings);
                let Self { moves_hold, parted, .. } = self;
                return Resolver { moves_hold, parted, ..again }.run(giver);
            }
            Err(Stop::Unknown) => return Pass::Needs(self.needs),
            Err(Stop::Deny(reason)) => return Pass::Decided(denied(self.request, &[reason])),
        }
        // An undo that becomes a hold decides for every reference to its source.
        if let Some(hold) = self.moved_hold() {
            let policy = Policy { hold, holds_undos: false, ..self.policy.clone() };
            let again = Resolver::new(self.request, self.facts, &policy, self.keeps_settings);
            return Resolver { moves_hold: true, ..again }.run(giver);
        }
        if self.policy.missing == MissingPolicy::Deny && !self.missing.is_empty() {
            let whose = self.whose(annotations::MISSING);
            let mut errors = self.missing;
            errors.push(format!("annotation {}{} is \"deny\"", annotations::MISSING, whose));
            return Pass::Decided(denied(self.request, &errors));
        }
        if self.policy.missing == MissingPolicy::Warn {
            self.warnings.append(&mut self.missing);
        }
        if self.policy.secrets == Some(true) && !self.request.secrets {
            self.warnings.push(format!(
                "annotation {}: snapshots of Secrets are disabled in this installation of confrev: references to Secrets stay as written",
                annotations::SECRETS
            ));
        }
        self.report_unused_names(&used);
        self.report_holds();
        self.warnings.extend(misplaced::warnings(self.request));
        self.warnings.extend(other_tools::warning(self.request));
        self.warnings.dedup();
        resolution.live = std::mem::take(&mut self.now_live);
        self.record_health();
        self.record_moves();
        self.now.retain(|source, now| {
            let name = resolution.sources.get(source);
            now.pinned = now.pinned.filter(|_| name.is_some());
            let before = self.before.get(source);
            now.set = set_of(self.facts, source, before);
            let before = before.filter(|before| before.unused && before.seen == now.seen);
            now.unused |= before.is_some() && name == self.prior.get(source);
            *now != Remembered::default()
        });
        let hold = self.moves_hold.then(|| self.policy.hold.clone());
        let keeps_roll = self.is_late() || self.plan_moves_nothing(&resolution);
        if self.is_late() {
            self.keep_unused(&mut resolution);
        }
        let marks = Marks { state: self.now, hold, keeps_roll };
        let mut decision = effects::opted_in(self.request, giver, &resolution, &marks, self.keeps_settings);
        let named =
            resolution.sources.iter().map(|(source, name)| ObjectName::new(source.kind, name.as_str()));
        let is_new = |name: &ObjectName| !self.stored.contains(name) && !self.ensure.contains_key(name);
        decision.refers = named.filter(is_new).collect();
        decision.ensure = self.ensure.into_values().collect();
        decision.adopt = self.adopt.into_iter().collect();
        decision.warnings = self.warnings;
        Pass::Decided(decision)
    }

    /// The template's own references, then those of the `mount` annotation. The name of a mounted ConfigMap comes from the
    /// existing volume, or from the annotation if the volume does not have it.
    pub(super) fn references(&mut self, template: &'r Template<'r>) -> Vec<Reference<'r>> {
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
    fn is_mounted_snapshot(&mut self, name: &str, source: &str) -> bool {
        let entered = [&self.prior, &self.stated].map(|map| map.source_of(SourceKind::ConfigMap, name));
        let is_entered = entered.iter().flatten().next().is_some();
        let is_its = entered.into_iter().flatten().any(|entered| *entered.name == *source);
        let object = ObjectName::new(SourceKind::ConfigMap, name);
        if is_entered || name == source || self.stored.contains(&object) {
            return is_its;
        }
        // An unknown object is among the needs, so this pass decides nothing.
        matches!(self.live(&object), Ok(Some(observed)) if observed.is_snapshot_of_source(source))
    }

    /// Records whether the workload is unhealthy while it begins to use a content. Contents that it used before keep their mark.
    fn record_health(&mut self) {
        let Some(old) = self.request.old.as_ref().filter(|old| old.kind.rolls) else { return };
        let (facts, before, returned) = (self.facts, &self.before, &self.returned);
        let is_unhealthy = OnceCell::new();
        let is_unhealthy = || {
            *is_unhealthy.get_or_init(|| {
                let own = old.text().map(|text| Health::read_last(&old.kind.kind, text)).unwrap_or_default();
                let health = own.max(facts.referrers_health());
                // Marked and not settled: the workload has not been healthy since the last change.
                let is_marked = before.iter().any(|(_, before)| before.unhealthy);
                health.is_unhealthy() || (!health.is_at_rest() && is_marked)
            })
        };
        self.now.retain(|source, now| {
            if now.seen.is_some() && !returned.contains(source) {
                let before = before.get(source).filter(|before| before.seen == now.seen);
                now.unhealthy = before.map_or_else(is_unhealthy, |before| before.unhealthy);
            }
            true
        });
    }

    /// Decides on a Rollout with `workloadRef`. The object with the template is the one that must be opted in.
    fn without_template(&self, giver: Giver) -> Pass {
        let (resolution, marks) = (Resolution::default(), Marks::default());
        let mut decision = effects::opted_in(self.request, giver, &resolution, &marks, self.keeps_settings);
        decision.warnings = misplaced::warnings(self.request);
        decision.warnings.extend(holds::without_template(&self.request.new));
        let Some(target) = &self.request.new.target else { return Pass::Decided(decision) };
        match self.facts.target_enabled() {
            None => return Pass::Needs(BTreeSet::from([Need::Target(target.clone())])),
            Some(true) => {}
            Some(false) => {
                // The other kinds that Argo takes templates from are workloads only if they are configured.
                let known =
                    if target.kind == "Deployment" { "" } else { ", and configure its kind with --kind" };
                decision.warnings.push(format!(
                    "{} has its template in {} {:?}, which is not opted in: label that object {}=true{known}",
                    self.request.new.display(),
                    target.kind,
                    target.name,
                    annotations::ENABLED
                ));
            }
        }
        Pass::Decided(decision)
    }

    /// Adds a reference's target to the resolution.
    fn take(&mut self, resolution: &mut Resolution, reference: &Reference<'_>, target: ResolvedReference) {
        match target {
            ResolvedReference::Unresolved(object) => {
                resolution.rename(reference, object.name.to_string());
                if !reference.optional {
                    self.missing.push(format!(
                        "{object} does not exist in namespace {:?}: pods that refer to it do not start until it does",
                        self.request.namespace
                    ));
                }
            }
            ResolvedReference::Source(source) => resolution.rename(reference, source.name.to_string()),
            ResolvedReference::Snapshot { source, name } => {
                self.check_keys(reference, &source, &name);
                // A template may name two snapshots of one source, if a user pins one of its references. The second one is
                // listed under its own name, so that `sources` always lists every snapshot.
                let entry = match resolution.sources.get(&source) {
                    Some(entered) if *entered != name => ObjectName::new(source.kind, name.clone()),
                    _ => source,
                };
                resolution.sources.insert(entry, name.clone());
                resolution.rename(reference, name);
            }
        }
    }

    /// Resolves a reference by the rules of the design, in their order.
    fn target(&mut self, reference: &Reference<'_>, used: &UsedKeys<'_>) -> Result<ResolvedReference, Stop> {
        let object = ObjectName::new(reference.kind, reference.name);
        let of = match self.source_of(&object) {
            Err(stop) => {
                self.expect_newest(object, None);
                return Err(stop);
            }
            Ok(of) => of,
        };
        let named = of.clone().unwrap_or_else(|| object.clone());
        let planned = self.planned(&named, &object);
        if planned.is_err() {
            self.expect_newest(named.clone(), of.is_some().then(|| object.name.to_string()));
        }
        let chosen = self.is_chosen(&named);
        let planned = if chosen { Planned::Free } else { planned? };
        let (of, object) = match &planned {
            Planned::To(snapshot) => (Some(named), snapshot.clone()),
            Planned::Free | Planned::Stays | Planned::Moves => (of, object),
        };
        match self.hold_rule(of.as_ref().unwrap_or(&object), &object)? {
            HoldRule::Held(name) => {
                return Ok(ResolvedReference::Snapshot { source: of.unwrap_or(object), name });
            }
            HoldRule::Ended => return self.by_source_name(of.unwrap_or(object), reference, used),
            HoldRule::Free => {}
        }
        if matches!(planned, Planned::Stays) {
            return self.stay(of.as_ref(), &object);
        }
        let Some(source) = of else { return self.by_source_name(object, reference, used) };
        // A snapshot that the user names stays, whatever the mode of its source. It must be listed in order to be bound.
        let is_changed = !self.stored.contains(&object) || chosen || matches!(planned, Planned::To(_));
        if is_changed || self.is_dangling(&object)? {
            return self.changed_snapshot(source, &object, reference, used);
        }
        let stays = self.stays_as_written(&source);
        if stays.is_err() && self.is_poke {
            self.expect_newest(source.clone(), Some(object.name.to_string()));
        }
        if stays? {
            // A reference that confrev rewrote returns to the source's name; only the sources of such references are in `seen`. A
            // snapshot that the user named stays.
            if self.asks_for(&source) || self.seen(&source).is_some() {
                self.enter_live(&source, &object.name, used)?;
                return Ok(self.written(source));
            }
            return Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() });
        }
        self.unchanged_snapshot(source, &object, used)
    }

    /// Whether an undo or a pin that confrev did not answer keeps the snapshot of a source. A person may ask for another one since.
    fn is_chosen(&self, source: &ObjectName) -> bool {
        let is_asked = self.plan.as_ref().map_or(self.has_new_roll, |plan| !plan.is_automatic);
        self.request.carried.chosen.contains(source) && !is_asked
    }

    /// A reference that stays as it is stored, resolved or not. If a write that confrev did not answer named its source, it has not taken
    /// the present content into account.
    fn stay(&mut self, of: Option<&ObjectName>, object: &ObjectName) -> Result<ResolvedReference, Stop> {
        let source = of.unwrap_or(object).clone();
        if of.is_some() && self.request.carried.kept.contains(&source) {
            self.mark_kept(&source, &object.name)?;
        } else {
            self.keep_seen(&source);
        }
        if let Some(live) = self.prior_live.get(&source).filter(|_| of.is_none()) {
            self.now_live.insert(source.clone(), *live);
        }
        // A source that is bound itself is its own snapshot.
        let is_bound = self.prior.get(object).is_some_and(|name| **name == *object.name);
        if of.is_none() && !is_bound {
            return Ok(ResolvedReference::Source(source));
        }
        Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() })
    }

    /// Whether a person asks for the newest content of a source, by a new value of `roll`.
    pub(super) fn asks_for(&self, source: &ObjectName) -> bool {
        match &self.plan {
            Some(plan) if plan.is_automatic => false,
            Some(plan) => plan.of_source(source).is_some_and(|wanted| wanted.to == To::Present),
            None => self.has_new_roll && self.is_free_text(),
        }
    }

    /// Whether the value of `roll` is a person's own text, and no plan.
    pub(super) fn is_free_text(&self) -> bool {
        let roll = self.request.new.annotation(annotations::ROLL);
        roll.is_some_and(|roll| Plan::parse(roll) == Ok(None))
    }

    /// A reference to the source itself. A source that is bound itself is listed in `sources` as its own snapshot, so that its
    /// revisions are found like all others.
    fn written(&self, source: ObjectName) -> ResolvedReference {
        let is_bound = self.facts.object(&source).flatten().is_some_and(Observed::is_bound_itself);
        let ours = !self.is_excluded(&source);
        if is_bound && ours {
            let name = source.name.to_string();
            return ResolvedReference::Snapshot { source, name };
        }
        ResolvedReference::Source(source)
    }

    /// The source of which `object` is a snapshot; `None` if it is a source itself.
    pub(super) fn source_of(&mut self, object: &ObjectName) -> Result<Option<ObjectName>, Stop> {
        let entered = |map: &SourceMap<String>| {
            map.source_of(object.kind, &object.name).filter(|source| *source != object).cloned()
        };
        // An earlier decision wrote the `sources` of the stored template.
        if let Some(source) = entered(&self.prior) {
            return Ok(Some(source));
        }
        // A live object takes precedence over an annotation that a user may have written.
        if !self.is_out_of_reach(object)
            && let Some(observed) = self.live(object)?
        {
            let identity = observed.identity().filter(|identity| *identity.source != *object.name);
            return Ok(identity.map(|identity| ObjectName::new(object.kind, identity.source.clone())));
        }
        // Nor does a name prove anything, but a snapshot that exists nowhere is of no use: the reference is one to its source.
        let is_ours = !self.is_out_of_reach(object) && !self.policy.exclude.exact().contains(object);
        let named = || source_of_name(&object.name).map(|source| ObjectName::new(object.kind, source));
        Ok(entered(&self.stated).or_else(|| named().filter(|_| is_ours)))
    }

    /// Whether no object has the name of this snapshot, and no earlier decision wrote that name.
    pub(super) fn is_dangling(&mut self, object: &ObjectName) -> Result<bool, Stop> {
        let is_known = self.prior.source_of(object.kind, &object.name).is_some();
        Ok(!is_known && !self.is_out_of_reach(object) && self.live(object)?.is_none())
    }

    fn by_source_name(
        &mut self,
        source: ObjectName,
        reference: &Reference<'_>,
        used: &UsedKeys<'_>,
    ) -> Result<ResolvedReference, Stop> {
        if self.stays_as_written(&source)? {
            self.enter_live(&source, &source.name, used)?;
            return Ok(self.written(source));
        }
        let prior =
            self.prior.get(&source).filter(|kept| ***kept != *source.name || !self.is_live(&source)).cloned();
        if self.live(&source)?.is_some() {
            if !self.is_forced(&source)
                && let Some(refused) = self.refused(&source)?
            {
                if prior.is_none() && self.stays_beside(&refused, &source) {
                    return Ok(self.written(source));
                }
                let name = self.without_refused(&source, prior.as_deref(), &refused, used)?;
                return Ok(ResolvedReference::Snapshot { source, name });
            }
            if let Some(kept) = prior.as_deref()
                && !self.holds.has_ended(&source)
                && self.awaits_its_turn(&source, kept, used, true)?
            {
                self.keep_until_its_turn(&source, Some(kept))?;
                return Ok(ResolvedReference::Snapshot { source, name: kept.to_owned() });
            }
            if prior.is_none() {
                if self.lacks_required_key(&source, reference)? {
                    return Ok(ResolvedReference::Source(source));
                }
                self.warn_mixed_set(&source)?;
            }
            let name = self.present_content(&source, prior.as_deref(), used)?;
            return Ok(ResolvedReference::Snapshot { source, name });
        }
        let Some(name) = prior else {
            self.keep_live(&source);
            return Ok(ResolvedReference::Unresolved(source));
        };
        if !reference.optional {
            self.warn_source_is_gone(&source, &name);
        }
        self.mark_kept(&source, &name)?;
        Ok(ResolvedReference::Snapshot { source, name })
    }

    /// Resolves a snapshot that this request put there (an undo, a pin or a copy): it stays.
    fn changed_snapshot(
        &mut self,
        source: ObjectName,
        object: &ObjectName,
        reference: &Reference<'_>,
        used: &UsedKeys<'_>,
    ) -> Result<ResolvedReference, Stop> {
        if self.is_out_of_reach(object) {
            return Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() });
        }
        if !self.holds.has_ended(&source)
            && let Some(kept) = self.returns_to(&source, object, used)?
        {
            self.keep_until_its_turn(&source, Some(&kept))?;
            return Ok(ResolvedReference::Snapshot { source, name: kept });
        }
        let known = self.live(object)?.map(Observed::is_sound);
        let source_lives = self.live(&source)?.is_some();
        if let Some(is_sound) = known {
            self.warn_listed(&source, object)?;
            if !self.stays_as_written(&source)? && !self.chooses_beside_refused(&source, object, used)? {
                let is_other = |present: &Observed| {
                    let chosen = self.facts.object(object).flatten();
                    chosen.is_none_or(|chosen| !chosen.same_content(present))
                };
                let is_other = self.facts.object(&source).flatten().is_some_and(is_other);
                let is_behind = is_other && self.is_seen(&source)? == Seen::No;
                self.mark_seen(&source)?;
                self.mark_pinned(&source, object, used)?;
                self.now.entry(&source).unused |= is_behind;
                self.note_undo(&source, object, used)?;
            }
            if is_sound {
                self.adopt.insert(object.clone());
            }
            return Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() });
        }
        // The name of the present content's snapshot comes from this same decision: a dry run creates no snapshot, and is
        // reviewed again.
        let is_its = |present: &Observed| is_named_after(&object.name, &source.name, &present.digest());
        let of_present = self.live(&source)?.is_some_and(is_its);
        // Nor does a name move it to a content that is refused.
        let is_refused = of_present && !self.is_forced(&source) && self.refused(&source)?.is_some();
        if source_lives && of_present && !is_refused {
            let name = self.present_content(&source, None, used)?;
            return Ok(ResolvedReference::Snapshot { source, name });
        }
        // The snapshot of a live revision may be made again. A name that a tool generated is that of a ConfigMap that comes later.
        let is_stated = self.stated.source_of(object.kind, &object.name).is_some();
        let may_come_later = !source_lives && !is_stated && may_be_generated(&object.name);
        if may_come_later || self.is_undo()? {
            return Ok(ResolvedReference::Unresolved(object.clone()));
        }
        // A template from an export, another namespace or another cluster names snapshots that do not exist here.
        self.by_source_name(source, reference, used)
    }

    /// Resolves a snapshot that this request left in place: it moves if a person asks for it, or if a roll is pending.
    fn unchanged_snapshot(
        &mut self,
        source: ObjectName,
        object: &ObjectName,
        used: &UsedKeys<'_>,
    ) -> Result<ResolvedReference, Stop> {
        let lacks_keys = self.lacks_new_keys(&source, object)?;
        if self.live(&source)?.is_none() {
            self.warn_source_is_gone(&source, &object.name);
            self.keep_seen_or_mark(&source, object)?;
            return Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() });
        }
        if !self.is_forced(&source)
            && let Some(refused) = self.refused(&source)?
        {
            let name = self.without_refused(&source, Some(&object.name), &refused, used)?;
            return Ok(ResolvedReference::Snapshot { source, name });
        }
        let seen = if self.policy.track { self.is_seen(&source)? } else { Seen::Yes };
        // The controller knows more than this request shows, and writes `roll` only if it found a difference.
        let pending = match seen {
            Seen::Yes | Seen::Alike => false,
            Seen::No => true,
            Seen::Rejected | Seen::Unknown => self.is_poke,
        };
        let is_applied = self.is_applied(&source, object, used);
        if self.asks_for(&source) || lacks_keys {
            let name = self.present_content(&source, Some(&object.name), used)?;
            return Ok(ResolvedReference::Snapshot { source, name });
        }
        if pending || is_applied {
            // A change of keys that the workload does not read leaves an undo or a pin alone.
            // What cannot be determined ends no undo.
            let keeps_pin = pending
                && !is_applied
                && (seen == Seen::Rejected || self.reads_what_is_pinned(&source, used)?);
            if keeps_pin || (pending && self.is_undo()?) {
                if self.policy.holds_undos && self.is_undo()? {
                    self.note_undo(&source, object, used)?;
                }
                if !keeps_pin && self.live(&source)?.is_some_and(Observed::is_limited) {
                    // The workload never had the content, so the undo is no verdict on it: the workload stays behind.
                    self.keep_until_its_turn(&source, Some(&object.name))?;
                } else {
                    self.mark_seen(&source)?;
                    self.mark_pinned(&source, object, used)?;
                    // Nor is it one on the change of a group, of which other sources have settings.
                    self.now.entry(&source).unused |= !keeps_pin && seen == Seen::No;
                }
                return Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() });
            }
            if self.awaits_its_turn(&source, &object.name, used, is_applied)?
                || (!is_applied && self.is_left_to_controller(&source)?)
            {
                self.keep_until_its_turn(&source, Some(&object.name))?;
                return Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() });
            }
            let name = self.present_content(&source, Some(&object.name), used)?;
            return Ok(ResolvedReference::Snapshot { source, name });
        }
        // A change that a workload misses while it does not track is pending when it tracks again. A pin of another reference
        // to the source marks the change as seen; otherwise the pin would end then.
        if self.now_seen(&source).is_none() {
            if seen == Seen::Alike {
                self.mark_seen(&source)?;
            } else {
                self.keep_seen(&source);
            }
        }
        self.keep_pinned(&source, object, used)?;
        Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() })
    }

    /// Whether the request restores the template of a live revision: such an undo rejects the pending change.
    pub(super) fn is_undo(&mut self) -> Result<bool, Stop> {
        if self.has_new_roll || self.plan.is_some() {
            return Ok(false);
        }
        undo::is_undo(self.request, self.facts).map_err(|need| {
            self.needs.insert(need);
            Stop::Unknown
        })
    }

    /// Whether the request begins to require keys that this snapshot lacks and the present content has. Pods of the
    /// new template would not start with the snapshot.
    fn lacks_new_keys(&mut self, source: &ObjectName, object: &ObjectName) -> Result<bool, Stop> {
        let key = (object.kind, &*object.name);
        let Some(required) = self.required.get(&key) else { return Ok(false) };
        let stored = self.stored_keys.get(&key);
        let is_new = |key: &&&str| stored.is_none_or(|stored| !stored.contains(**key));
        let new: Vec<&str> = required.iter().filter(is_new).copied().collect();
        if new.is_empty() {
            return Ok(false);
        }
        let (kept, present) = (self.live(object)?, self.live(source)?);
        let has_all = |content: Option<&Observed>| {
            content.is_some_and(|content| new.iter().all(|key| content.has_key(key)))
        };
        Ok(!has_all(kept) && has_all(present))
    }

    /// Whether the request names the source beside this snapshot, which was its only one: an apply that sends only the lists
    /// that changed. All references then move together; otherwise a pod would read two contents of one source.
    fn is_applied(&self, source: &ObjectName, snapshot: &ObjectName, used: &UsedKeys<'_>) -> bool {
        self.prior.get(source).is_some_and(|kept| **kept == *snapshot.name) && used.has_name(source)
    }
}
