//! A decision from the body of the review to the body of its answer. In-memory objects replace the API server.

use confrev_instructions::{
    kinds::Kinds,
    resolve::{
        self, Carried, Decision, Facts, NamespaceFacts, Need, Observed, Request, SourceError, Spares,
        Workload,
    },
    review::{Answer, Review},
    snapshot::{Made, snapshot_json},
};

use crate::objects::{NAMESPACE, Stored};

/// The result of a review.
pub(crate) struct Answered {
    /// The body of the answer.
    pub(crate) body: Vec<u8>,
    /// The patch in the answer.
    pub(crate) patch: json_patch::Patch,
    /// The snapshots that the decision created, by name.
    pub(crate) made: Stored,
}

/// Decides as the webhook does: reads facts on demand, and creates snapshots before the answer.
pub(crate) fn answer(kinds: &Kinds, body: &[u8], stored: &Stored) -> Option<Answered> {
    let review = Review::parse(body).ok()?;
    let (group, resource) = review.resource();
    let kind = kinds.by_resource(group, resource)?;
    let parse = |text| Workload::parse(kind, text).ok();
    let new = parse(review.object()?)?;
    let old = review.old_object().and_then(parse);
    let request =
        Request { namespace: review.namespace(), secrets: false, new, old, carried: Carried::default() };
    let mut facts = Facts::default();
    let decision = decide(&request, &mut facts, stored)?;
    let made = decision.ensure.iter().filter_map(|ensure| {
        let content = facts.object(&ensure.source)??;
        let (name, identity) = (ensure.snapshot(), ensure.identity());
        let json = snapshot_json(
            name.kind,
            NAMESPACE,
            &name.name,
            &identity,
            content.json(),
            &[],
            Made::at(jiff::Timestamp::MAX),
        )
        .ok()?;
        Some((name, json))
    });
    let made = made.collect();
    let patch = decision.patch.clone();
    let answer = Answer::patched(decision.patch).with_warnings(decision.warnings);
    Some(Answered { body: answer.to_json(review.uid()), patch, made })
}

/// Reads what the decision needs, until the decision is complete.
pub(crate) fn decide(request: &Request<'_>, facts: &mut Facts, stored: &Stored) -> Option<Decision> {
    let decision = resolve::decide(request, facts, |needs, facts| {
        for need in needs {
            match need {
                Need::Namespace => facts.set_namespace(NamespaceFacts::default()),
                Need::Newest { .. } => {}
                Need::Spares(source) => facts.set_spares(source, Spares::default()),
                Need::Schema(source) => facts.set_verdict(source, None),
                Need::Revisions(_) => facts.set_revisions(Vec::new()),
                Need::Target(_) => facts.set_target_enabled(false),
                Need::Object(name) => {
                    // The copy corresponds to a response of an API server.
                    let observed = stored.get(&name).map(|text| Observed::read(name.kind, text.clone()));
                    facts.set_object(name, observed.transpose()?);
                }
            }
        }
        Ok::<_, SourceError>(())
    });
    decision.ok()
}
