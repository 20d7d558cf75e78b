//! The decision with its reads and writes: facts are read live and side by side, snapshots are made before the object is.

use futures::future::try_join_all;

use crate::{
    cluster::{Api, ApiError, Created, Owner, ensure_snapshot},
    resolve::{Decision, Facts, NamespaceFacts, Need, Outcome, Request, resolve},
    snapshot::ObjectName,
};

/// How often facts may have to be read anew: each round answers what the one before it found, and a round is lost only
/// where someone else writes the same names at the same moment.
const MOST_ROUNDS: usize = 12;

/// A decision that has taken effect, as far as anything but the object itself goes.
pub type Decided = Decision;

/// Decides with live facts, which stand in `facts` afterwards. Unless `dry_run`, the snapshots that the decision needs
/// exist when this returns, and those that it adopts are bound to `owner`, the workload, where that is stored already.
pub async fn decide<A: Api>(
    api: &A,
    request: &Request<'_>,
    owner: Option<&Owner>,
    dry_run: bool,
    facts: &mut Facts,
) -> Result<Decided, ApiError> {
    for _ in 0..MOST_ROUNDS {
        let decision = match resolve(request, facts) {
            Outcome::Needs(needs) => {
                read(api, request.namespace, needs, facts).await?;
                continue;
            }
            Outcome::Decided(decision) => decision,
        };
        if dry_run || decision.denial.is_some() {
            return Ok(decision);
        }
        let stale = write(api, request.namespace, &decision, owner, facts).await?;
        if stale.is_empty() {
            return Ok(decision);
        }
        let needs = stale.into_iter().map(Need::Object).collect();
        read(api, request.namespace, needs, facts).await?;
    }
    Err(ApiError::Conflict { what: format!("snapshots for {}", request.new.display()) })
}

/// Reads facts, side by side.
async fn read<A: Api>(
    api: &A,
    namespace: &str,
    needs: std::collections::BTreeSet<Need>,
    facts: &mut Facts,
) -> Result<(), ApiError> {
    let reads = needs.into_iter().map(|need| async move {
        match need {
            Need::Namespace => Ok::<_, ApiError>(Read::Namespace(api.namespace(namespace).await?)),
            Need::Target(target) => Ok(Read::Target(api.is_enabled(namespace, &target).await?)),
            Need::Object(name) => {
                let observed = api.read(namespace, &name).await?;
                Ok(Read::Object(name, observed.map(Box::new)))
            }
        }
    });
    for read in try_join_all(reads).await? {
        match read {
            Read::Namespace(namespace) => facts.set_namespace(namespace),
            Read::Target(enabled) => facts.set_target_enabled(enabled.unwrap_or(false)),
            Read::Object(name, observed) => facts.set_object(name, observed.map(|observed| *observed)),
        }
    }
    Ok(())
}

enum Read {
    Namespace(NamespaceFacts),
    Target(Option<bool>),
    Object(ObjectName, Option<Box<crate::resolve::Observed>>),
}

/// Makes and binds snapshots. Answers with the objects that turned out not to be as the decision thought.
async fn write<A: Api>(
    api: &A,
    namespace: &str,
    decision: &Decision,
    owner: Option<&Owner>,
    facts: &Facts,
) -> Result<Vec<ObjectName>, ApiError> {
    let ensures = decision.ensure.iter().map(|ensure| async move {
        let Some(Some(content)) = facts.object(&ensure.source) else { return Ok(None) };
        let created = ensure_snapshot(api, namespace, ensure, content.json(), owner).await?;
        let name = ObjectName::new(ensure.source.kind, ensure.name.clone());
        Ok::<_, ApiError>((created == Created::Exists).then_some(name))
    });
    let mut stale: Vec<_> = try_join_all(ensures).await?.into_iter().flatten().collect();
    if let Some(owner) = owner {
        let adopts = decision.adopt.iter().map(|snapshot| async move {
            match api.add_owner(namespace, snapshot, owner).await {
                Ok(()) => Ok(None),
                Err(error) if error.is_not_found() => Ok(Some(snapshot.clone())),
                Err(error) => Err(error),
            }
        });
        stale.extend(try_join_all(adopts).await?.into_iter().flatten());
    }
    Ok(stale)
}
