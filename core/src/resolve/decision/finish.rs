//! The last step of a decision: the names and annotations to write, and what is said to the user.

use std::collections::BTreeSet;

use super::{hold, outcome::Outcome, question::Question, resolved::ResolvedReference, stop::Stop};
use crate::{
    annotations,
    resolve::{
        Decision, Exclusions, Facts, MissingPolicy, Need, Pass, Request,
        effects::{self, Marks, Resolution},
        misplaced,
        optin::{Giver, was_decided_on},
        other_tools,
    },
    snapshot::{ObjectName, SourceKind},
    template::Reference,
};

/// Decides on a Rollout with `workloadRef`. The object with the template is the one that must be opted in.
pub(super) fn without_template(
    request: &Request<'_>,
    facts: &Facts,
    giver: Giver,
    keeps_settings: bool,
) -> Pass {
    let (resolution, marks) = (Resolution::default(), Marks::default());
    let mut decision = effects::opted_in(request, giver, &resolution, &marks, keeps_settings);
    decision.warnings = misplaced::warnings(request);
    decision.warnings.extend(hold::without_template(&request.new));
    let Some(target) = &request.new.target else { return Pass::Decided(decision) };
    match facts.target_enabled() {
        None => return Pass::Needs(BTreeSet::from([Need::Target(target.clone())])),
        Some(true) => {}
        Some(false) => {
            // The other kinds that Argo takes templates from are workloads only if they are configured.
            let known = if target.kind == "Deployment" { "" } else { ", and configure its kind with --kind" };
            decision.warnings.push(format!(
                "{} has its template in {} {:?}, which is not opted in: label that object {}=true{known}",
                request.new.display(),
                target.kind,
                target.name,
                annotations::ENABLED
            ));
        }
    }
    Pass::Decided(decision)
}

/// The changes of the object, and the writes that precede them.
pub(super) fn decision(
    question: &Question<'_>,
    outcome: Outcome,
    mut resolution: Resolution,
    giver: Giver,
    holds_undo: bool,
) -> Decision {
    let Outcome { ensure, adopt, warnings, state, live, .. } = outcome;
    resolution.live = live;
    let stored = &question.stored;
    let decided_on = question.request.old.as_ref().is_some_and(was_decided_on);
    let is_stored = (&resolution.sources, &resolution.live) == (&stored.sources, &stored.live);
    // A source has changed since the controller decided, or a person has stopped the change. The next try must not wait for
    // `min-interval`, which counts from the last plan.
    let moves_nothing =
        question.roll.automatic().is_some() && decided_on && is_stored && state == stored.state;
    if question.roll.is_late() {
        keep_unused(question, &mut resolution);
    }
    let hold = holds_undo.then(|| question.policy.hold.clone());
    let marks = Marks { state, hold, keeps_roll: question.roll.is_late() || moves_nothing };
    let mut decision =
        effects::opted_in(question.request, giver, &resolution, &marks, question.keeps_settings);
    let named = resolution.sources.iter().map(|(source, name)| ObjectName::new(source.kind, name.as_str()));
    let is_new = |name: &ObjectName| !stored.names.contains(name) && !ensure.contains_key(name);
    decision.refers = named.filter(is_new).collect();
    decision.ensure = ensure.into_values().collect();
    decision.adopt = adopt.into_iter().collect();
    decision.warnings = warnings;
    decision
}

/// Keeps entries of sources that the template no longer uses, if nothing else differs: to remove them would start pods.
fn keep_unused(question: &Question<'_>, resolution: &mut Resolution) {
    let stored = &question.stored;
    let is_part = resolution.sources.iter().all(|(source, name)| stored.sources.get(source) == Some(name))
        && resolution.live.iter().all(|(source, digest)| stored.live.get(source) == Some(digest));
    if is_part {
        resolution.sources = stored.sources.clone();
        resolution.live = stored.live.clone();
    }
}

impl Outcome {
    /// Adds a reference's target to the resolution.
    pub(super) fn take(
        &mut self,
        question: &Question<'_>,
        resolution: &mut Resolution,
        reference: &Reference<'_>,
        target: ResolvedReference,
    ) {
        match target {
            ResolvedReference::Unresolved(object) => {
                resolution.rename(reference, object.name.to_string());
                if !reference.optional {
                    self.missing.push(format!(
                        "{object} does not exist in namespace {:?}: pods that refer to it do not start until it does",
                        question.request.namespace
                    ));
                }
            }
            ResolvedReference::Source(source) => resolution.rename(reference, source.name.to_string()),
            ResolvedReference::Snapshot { source, name } => {
                self.check_keys(question, reference, &source, &name);
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

    /// Adds the warnings about the request as a whole. `Err`: what is missing denies it.
    pub(super) fn report(&mut self, question: &Question<'_>, holds_undo: bool) -> Result<(), Stop> {
        let mut missing = std::mem::take(&mut self.missing);
        match question.policy.missing {
            MissingPolicy::Deny if !missing.is_empty() => {
                let key = annotations::MISSING;
                missing.push(format!("annotation {key}{} is \"deny\"", question.whose(key)));
                return Err(Stop::Deny(missing.join("; ")));
            }
            MissingPolicy::Warn => self.warnings.append(&mut missing),
            MissingPolicy::Deny | MissingPolicy::Allow => {}
        }
        if question.policy.secrets == Some(true) && !question.request.secrets {
            self.warn(format!(
                "annotation {}: snapshots of Secrets are disabled in this installation of confrev: references to Secrets stay as written",
                annotations::SECRETS
            ));
        }
        self.report_unused_names(question);
        self.report_holds(question, holds_undo);
        self.warnings.extend(misplaced::warnings(question.request));
        self.warnings.extend(other_tools::warning(question.request));
        self.warnings.dedup();
        Ok(())
    }

    /// Adds a warning for each source that a new annotation names, and to which the template does not refer.
    fn report_unused_names(&mut self, question: &Question<'_>) {
        let (request, used) = (question.request, &question.used);
        let source_of = |kind: SourceKind, name: &str| question.entered(kind, name).cloned();
        let own = request.new.annotation(annotations::EXCLUDE).map(|own| Exclusions::read([own]));
        let own = own.and_then(Result::ok).unwrap_or_default();
        let excluded = (annotations::EXCLUDE, own.exact().iter(), "its exclusion");
        self.warnings.extend(misplaced::unused_names(request, excluded, used.names(), source_of));
        if let Some(plan) = question.roll.plan.as_ref().filter(|plan| !plan.is_automatic) {
            let moved = (annotations::ROLL, plan.moves.keys(), "its move");
            self.warnings.extend(misplaced::unused_names(request, moved, used.names(), source_of));
            if plan.moves.is_empty() && plan.every.is_none() {
                self.warn(format!(
                    "annotation {}: the plan names no source, so nothing moves",
                    annotations::ROLL
                ));
            }
        }
    }
}
