//! Reads a source and checks its content against its schema.

use tokio::time::{Duration, Instant};

use crate::{
    cluster::{Api, ApiError},
    controller::action::Outcome,
    schema::Schemas,
    server::Client,
    world::Name,
};

/// How long a check may wait for its turn.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

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
