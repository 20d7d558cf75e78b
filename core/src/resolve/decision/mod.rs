//! The rules by which each reference of a template resolves.
//!
//! A pass has four steps. [`Question`] finds what the request asks, `rules` resolves each reference, `record` completes what the
//! workload remembers, and `finish` makes the changes of the object. The rules read the question, and record in an [`Outcome`].

mod by_name;
mod changed;
mod finish;
mod hold;
mod holds;
mod live;
mod mode;
mod newest;
mod outcome;
mod pinned;
mod plan;
mod question;
mod record;
mod refused;
mod resolved;
mod roll;
mod rules;
mod schema;
mod seen;
mod set;
mod stop;
mod stored;
mod unchanged;
mod wait;

use std::collections::{BTreeMap, BTreeSet};

use self::{
    hold::find_holds,
    outcome::Outcome,
    question::{Question, settings},
    resolved::ResolvedReference,
    rules::resolve_reference,
    stop::Stop,
};
use super::{
    Decision, Facts, Need, Pass, Policy, Request,
    effects::{self, Resolution},
    optin::{Giver, OptIn, opt_in},
    undo,
};
use crate::snapshot::{ObjectName, SourceKind};

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
        OptIn::Malformed(error) => denied(request, &error),
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
    let (mut policy, errors) = Policy::read(settings(request, keeps_settings));
    if !errors.is_empty() {
        return denied(request, &errors.join("; "));
    }
    let Some(template) = &request.new.template else {
        return finish::without_template(request, facts, giver, keeps_settings);
    };
    let (mut parted, mut holds_undo) = (BTreeMap::new(), false);
    loop {
        let mut question = match Question::new(request, template, facts, &policy, keeps_settings, &parted) {
            Ok(question) => question,
            Err(wrong) => return denied(request, &wrong),
        };
        match answer(&mut question, giver, holds_undo) {
            Ok(Answer::Decided(decision)) => return Pass::Decided(decision),
            Ok(Answer::Parted(more)) => parted = more,
            // The new hold decides for every reference to its source.
            Ok(Answer::Holds(hold)) => {
                policy = Policy { hold, holds_undos: false, ..policy.clone() };
                holds_undo = true;
                parted = BTreeMap::new();
            }
            Err(Stop::Unknown) => return Pass::Needs(question.into_needs()),
            Err(Stop::Deny(reason)) => return denied(request, &reason),
        }
    }
}

fn denied(request: &Request<'_>, reason: &str) -> Pass {
    let denial = format!("{}: {reason}", request.new.display());
    Pass::Decided(Decision { denial: Some(denial), ..Decision::default() })
}

/// The answer to a question.
enum Answer {
    /// What becomes of the request.
    Decided(Decision),
    /// The decision is made again: these sources would move without another one of their set.
    Parted(BTreeMap<ObjectName, ObjectName>),
    /// The decision is made again: undos of the request become holds, and these snapshots are on hold.
    Holds(BTreeSet<ObjectName>),
}

/// Answers a question. `holds_undo`: undos of the request have become holds.
fn answer(question: &mut Question<'_>, giver: Giver, holds_undo: bool) -> Result<Answer, Stop> {
    let mut outcome = Outcome::default();
    question.holds = find_holds(question, &mut outcome)?;
    let question = &*question;
    question.check_plan()?;
    let resolution = resolve_references(question, &mut outcome)?;
    outcome.record_previous(question, &resolution.sources)?;
    let parted = question.parts(&outcome, &resolution.sources)?;
    if parted.len() > question.parted.len() {
        return Ok(Answer::Parted(parted));
    }
    if let Some(hold) = question.holds.moved(question.policy, &outcome.undone) {
        return Ok(Answer::Holds(hold));
    }
    outcome.report(question, holds_undo)?;
    outcome.complete_state(question, &resolution.sources);
    Ok(Answer::Decided(finish::decision(question, outcome, resolution, giver, holds_undo)))
}

/// Resolves each reference. `Err`: some facts are missing, all of which were asked for.
fn resolve_references(question: &Question<'_>, outcome: &mut Outcome) -> Result<Resolution, Stop> {
    let mut resolution = Resolution { mount: question.policy.mount.clone(), ..Resolution::default() };
    // A name resolves to the same target everywhere, and a template may have thousands of references to one name.
    let mut targets: BTreeMap<(SourceKind, &str), ResolvedReference> = BTreeMap::new();
    for reference in &question.references {
        let key = (reference.kind, reference.name);
        let target = match targets.get(&key) {
            Some(known) => known.clone(),
            None => match resolve_reference(question, outcome, reference) {
                Ok(target) => target,
                Err(Stop::Unknown) => continue,
                Err(denied) => return Err(denied),
            },
        };
        targets.insert(key, target.clone());
        outcome.take(question, &mut resolution, reference, target);
    }
    question.all_known()?;
    Ok(resolution)
}
