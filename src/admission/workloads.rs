//! `/mutate/workloads` and `/validate/workloads`: the decision, for one object.

use super::{Answer, Context, DECISION_LIMIT, Review, decide};
use crate::{
    cluster::{Api, workload_owner},
    resolve::{Request, Workload, malformed},
};

/// Resolves the references of a workload.
pub(super) async fn mutate<A: Api>(context: &Context<A>, review: &Review<'_>) -> Answer {
    let request = match read(context, review) {
        Ok(Some(request)) => request,
        Ok(None) => return Answer::allowed(),
        Err(refusal) => return *refusal,
    };
    let owner = request.old.as_ref().map(|old| workload_owner(old.kind, old.name(), old.uid()));
    let decision = decide(&context.api, &request, owner.as_ref(), review.dry_run());
    let name = request.new.display();
    match tokio::time::timeout(DECISION_LIMIT, decision).await {
        Err(_) => Answer::unavailable(format!(
            "{name}: confrev could not read its ConfigMaps within {} s: try again",
            DECISION_LIMIT.as_secs()
        )),
        Ok(Err(error)) => {
            tracing::warn!(namespace = review.namespace(), workload = name, %error, "a decision failed");
            Answer::unavailable(format!(
                "{name}: confrev could not resolve its references: {error}: try again"
            ))
        }
        Ok(Ok(decision)) => match decision.denial {
            Some(denial) => Answer::denied(denial),
            None => Answer::patched(decision.patch).with_warnings(decision.warnings),
        },
    }
}

/// Refuses malformed annotations and labels, as the mutating webhook does, where another webhook wrote them after it.
pub(super) fn validate<A: Api>(context: &Context<A>, review: &Review<'_>) -> Answer {
    match read(context, review) {
        Ok(Some(request)) => malformed(&request).map_or_else(Answer::allowed, Answer::denied),
        Ok(None) => Answer::allowed(),
        Err(refusal) => *refusal,
    }
}

/// The request to decide on; `None` where there is nothing to decide.
fn read<'a, A>(context: &'a Context<A>, review: &'a Review<'a>) -> Result<Option<Request<'a>>, Box<Answer>> {
    if !review.is_write() {
        return Ok(None);
    }
    let (group, resource) = review.resource();
    let Some(kind) = context.kinds.by_resource(group, resource) else {
        let warning =
            format!("confrev knows no workloads of the kind {resource}.{group}: it is left as it is");
        return Err(Box::new(Answer::allowed().with_warnings(vec![warning])));
    };
    let parse = |json: &'a str| {
        Workload::parse(kind, json).map_err(|error| {
            Box::new(Answer::denied(format!(
                "{kind} {:?} is not of the form of its kind: {error}",
                review.name()
            )))
        })
    };
    let Some(object) = review.object() else {
        return Err(Box::new(Answer::denied(format!(
            "{kind} {:?}: the request holds no object",
            review.name()
        ))));
    };
    let new = parse(object)?;
    // What is going away is nobody's to change: its finalizers must come off whatever its references are.
    if new.is_being_deleted() {
        return Ok(None);
    }
    let old = review.old_object().map(parse).transpose()?;
    Ok(Some(Request { namespace: review.namespace(), secrets: context.secrets, new, old }))
}
