//! Reads a source and checks its content against its schema.

use tokio::time::Instant;

use crate::{
    cluster::{Api, ApiError},
    controller::action::Outcome,
    schema::{LONGEST_WAIT, Schemas},
    server::Client,
    world::Name,
};

/// Reads a source and its schema live. What is read has the result.
pub(crate) async fn check<A: Api>(api: &A, schemas: &Schemas, source: &Name) -> Result<Outcome, ApiError> {
    let Some(present) = api.read(&source.namespace, &source.object).await? else {
        return Ok(Outcome::Read(None));
    };
    let client = Client::default().of_namespace(&source.namespace);
    let by = Instant::now() + LONGEST_WAIT;
    let failure = schemas.failure_in_turn(api, (&client, by), &source.namespace, &present).await?;
    Ok(Outcome::Read(Some(Box::new(present.checked(failure)))))
}
