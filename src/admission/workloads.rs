//! `/mutate/workloads` and `/validate/workloads`: the decision for one object.

use super::{
    context::{Caller, Context, HandlerState},
    decider::Decider,
    review::{Answer, MAX_MESSAGE_LENGTH, Review},
};
use crate::{
    cluster::{Api, ApiError},
    resolve::{Carried, Decision, Facts, MissingPolicy, Policy, Request, Unmarked, Workload, malformed},
    text,
    world::workload_owner,
};

/// Resolves the references of a workload. `is_marked`: the policy `confrev-carry` marks each write that is sent here.
pub(super) async fn mutate<A: Api>(
    context: &HandlerState<A>,
    call: &Caller,
    review: &Review<'_>,
    is_marked: bool,
) -> Answer {
    learn_namespace(context, call, review).await;
    let request = match read(context, review, review.object()) {
        Ok(Some(request)) => request,
        Ok(None) => return Answer::allowed(),
        Err(refusal) => return *refusal,
    };
    let unmarked = Unmarked::of(&request, is_marked);
    if is_marked && unmarked.is_none() && (request.new.kind.rolls || request.old.is_none()) {
        context.metrics.uncarried_review();
    }
    let unmarked = unmarked.unwrap_or_default();
    let request = match &unmarked.text {
        None => request,
        Some(text) => {
            // The memory of a review is that of one parsed body.
            drop(request);
            match read(context, review, Some(text)) {
                Ok(Some(request)) => request,
                Ok(None) => return Answer::allowed(),
                Err(refusal) => return *refusal,
            }
        }
    };
    let request = unmarked.requested(request);
    let mut facts = Facts::default();
    let decision = match decided(context, call, review, &request, review.dry_run(), &mut facts).await {
        Ok(decision) => decision,
        Err(unavailable) => return unavailable,
    };
    if let Some(denial) = decision.denial {
        return Answer::denied(denial);
    }
    if !review.dry_run() {
        // The last owner of a snapshot may be deleted before the controller has bound the snapshot.
        context.shared.remember_snapshots(review.namespace(), &decision, &facts);
    }
    Answer::patched(unmarked.patch_with(decision.patch)).with_warnings(decision.warnings)
}

/// Refuses what the mutating webhook refuses, in case another webhook wrote it afterwards: malformed labels and
/// annotations, and with `missing: deny` references to missing objects. It writes nothing.
pub(super) async fn validate<A: Api>(
    context: &HandlerState<A>,
    call: &Caller,
    review: &Review<'_>,
) -> Answer {
    learn_namespace(context, call, review).await;
    let request = match read(context, review, review.object()) {
        Ok(Some(request)) => request,
        Ok(None) => return Answer::allowed(),
        Err(refusal) => return *refusal,
    };
    // Only `missing: deny` depends on which objects exist.
    if let Some(denial) = malformed(&request) {
        return Answer::denied(denial);
    }
    if Policy::read(&request.new).0.missing != MissingPolicy::Deny {
        return Answer::allowed();
    }
    match decided(context, call, review, &request, true, &mut Facts::default()).await {
        Ok(decision) => decision.denial.map_or_else(Answer::allowed, Answer::denied),
        Err(unavailable) => unavailable,
    }
}

/// Reads what a namespace gives to its workloads, if the watch has not reported the namespace yet: a tool may have created it just now,
/// together with the workload.
async fn learn_namespace<A: Api>(context: &HandlerState<A>, call: &Caller, review: &Review<'_>) {
    let namespace = review.namespace();
    if namespace.is_empty() || !review.is_write() || context.shared.knows_namespace(namespace) {
        return;
    }
    let share = context.reads.share(call.client.clone(), call.deadline);
    let api = context.api.metered(share.meter());
    // The call records it. Without it, the settings of the installation apply.
    let _ = tokio::time::timeout_at(call.deadline, api.namespace(namespace)).await;
}

/// The decision within the deadline, or the answer that says why there is none.
async fn decided<A: Api>(
    context: &HandlerState<A>,
    call: &Caller,
    review: &Review<'_>,
    request: &Request<'_>,
    dry_run: bool,
    facts: &mut Facts,
) -> Result<Decision, Answer> {
    let owner = request.old.as_ref().map(|old| workload_owner(old.kind, old.name(), old.uid()));
    let (share, metrics) = (context.reads.share(call.client.clone(), call.deadline), &context.metrics);
    let (api, limits, shared) = (&context.api, context.limits, &context.shared);
    facts.set_rotated(shared.rotated().clone());
    if let Some(old) = &request.old {
        // The health that the Rollouts last reported, regardless of the template that they observed.
        let known = shared.lock().referrers_health(old.kind, review.namespace(), old.name(), None);
        facts.set_referrers_health(known.unwrap_or_default());
    }
    // A person who may change a schema would otherwise read the content by forged reviews, one rule at a time.
    let schemas = call.is_verified.then_some(&context.schemas);
    let decider = Decider { api, limits, dry_run, share, metrics, shared, schemas };
    let decision = decider.admit(request, owner.as_ref(), facts);
    let name = request.new.display();
    match tokio::time::timeout_at(call.deadline, decision).await {
        Err(_) => Err(Answer::unavailable(format!(
            "{name}: confrev could not read its ConfigMaps before the timeout of the webhook: try again"
        ))),
        Ok(Err(error)) => {
            tracing::warn!(namespace = review.namespace(), workload = name, %error, "a decision failed");
            // A quota or a policy refuses the snapshot: the same request fails again until a person removes the cause.
            if let ApiError::Refused { code: 400..=428 | 430..=499, message, .. } = &error
                && !error.is_missing_right()
            {
                return Err(Answer::denied(format!(
                    "{name}: the API server refuses a snapshot of its ConfigMaps or Secrets: {message}"
                )));
            }
            Err(Answer::unavailable(format!(
                "{name}: confrev could not resolve its references: {error}: try again"
            )))
        }
        Ok(Ok(decision)) => Ok(decision),
    }
}

/// The request to decide on, with this object; `None` if there is nothing to decide.
fn read<'a, A>(
    context: &'a Context<A>,
    review: &'a Review<'a>,
    object: Option<&'a str>,
) -> Result<Option<Request<'a>>, Box<Answer>> {
    if !review.is_write() {
        return Ok(None);
    }
    let (group, resource) = review.resource();
    let Some(kind) = context.kinds.by_resource(group, resource) else {
        let warning =
            format!("{resource}.{group} is not a configured kind of workload: the object stays unchanged");
        return Err(Box::new(Answer::allowed().with_warnings(vec![warning])));
    };
    let parse = |json: &'a str| {
        let workload = Workload::parse(kind, json);
        workload.map(|workload| context.shared.inherited().workload(review.namespace(), workload)).map_err(
            |error| {
                // It may quote a text of the review.
                let error = text::short_display(&error, MAX_MESSAGE_LENGTH);
                Box::new(Answer::denied(format!("invalid {kind} {:?}: {error}", review.name())))
            },
        )
    };
    let Some(object) = object else {
        return Err(Box::new(Answer::denied(format!(
            "{kind} {:?}: the request has no object",
            review.name()
        ))));
    };
    let new = parse(object)?;
    // An object that is being deleted is not changed: its finalizers must be removable, whatever its references.
    if new.is_being_deleted() {
        return Ok(None);
    }
    // No built-in kind is cluster-scoped, but a configured kind may be.
    if review.namespace().is_empty() {
        return Err(Box::new(Answer::denied(format!(
            "{}: the request has no namespace: confrev supports namespaced workloads only",
            new.display()
        ))));
    }
    let old = review.old_object().map(parse).transpose()?;
    Ok(Some(Request {
        namespace: review.namespace(),
        secrets: context.secrets,
        new,
        old,
        carried: Carried::default(),
    }))
}
