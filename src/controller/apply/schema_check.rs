//! Checks the contents to which a workload would roll against their schemas.
//!
//! Anyone who reaches the webhook's port may send a review, so admission gives a verdict about stored content only to a client
//! with a certificate. The controller trusts itself: it checks the content before it writes the workload.

use tokio::time::{Duration, Instant};

use crate::{
    cluster::{Api, ApiError},
    controller::action::{Action, SchemaCheck},
    resolve::{Observed, correct_schema, refused_by_schema},
    schema::Schemas,
    server::Client,
};

/// How long a check may wait for its turn.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// An error if the action would roll a workload to content that fails its schema. Contents and schemas are read live.
pub(crate) async fn allows<A: Api>(api: &A, schemas: &Schemas, action: &Action) -> Result<(), ApiError> {
    let Action::Poke { workload, checks, .. } = action else { return Ok(()) };
    for check in checks {
        let SchemaCheck { source, .. } = check;
        let Some(present) = api.read(&source.namespace, &source.object).await? else { continue };
        let client = Client::default().of_namespace(&source.namespace);
        let by = Instant::now() + LONGEST_WAIT;
        let failure = schemas.failure(api, (&client, by), &source.namespace, &present).await?;
        if let Some(failure) = failure
            && !stays(api, check, &present).await?
        {
            let message = refused_by_schema(&source.object, &failure);
            return Err(ApiError::Refused {
                what: format!("roll of {}/{}", workload.namespace, workload.name),
                code: 403,
                message: format!("{message}: {}", correct_schema(&source.object)),
            });
        }
    }
    Ok(())
}

/// Whether the workload would keep its snapshot, in which everything that it reads is the same.
async fn stays<A: Api>(api: &A, check: &SchemaCheck, present: &Observed) -> Result<bool, ApiError> {
    let Some(kept) = &check.kept else { return Ok(false) };
    let Some(found) = api.read(&kept.namespace, &kept.object).await? else { return Ok(false) };
    let is_same = match &check.keys {
        Some(keys) => found.same_values(present, keys.iter().map(|key| &**key)),
        None => found.same_content(present),
    };
    Ok(found.is_snapshot_of_source(&check.source.object.name) && is_same)
}
