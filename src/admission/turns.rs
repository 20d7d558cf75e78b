//! Turns to decide: a review waits until the memory for its parsed form and one of the concurrent decisions are free.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tokio::time::Instant;

use super::{
    bodies::{KIB, ReviewMemory, acquire, body_memory},
    limits::ReviewLimits,
};
use crate::{
    server::{Client, FairSemaphore, Permit},
    telemetry::{Metrics, metrics::Limit},
};

/// The memory that a JSON value takes once it is parsed: a container, a volume, a map's entry. Measured over the structures that
/// reviews are parsed into, whose largest take 184 bytes for the two values of `{},` in a list.
const BYTES_PER_VALUE: usize = 96;

/// Grants turns to decide.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// Memory for what bodies are parsed into.
    parsed: FairSemaphore,
    /// Concurrent decisions.
    decisions: FairSemaphore,
    metrics: Metrics,
}

impl Turns {
    pub(super) fn new(limits: &ReviewLimits, metrics: Metrics) -> Self {
        let [parsed, decisions] = [body_memory(limits), limits.decisions].map(FairSemaphore::new);
        Self { parsed, decisions, metrics }
    }

    /// Counts the memory for the namespace, which is now known, and waits for the memory that the body takes once it is
    /// parsed, and for a turn to decide.
    pub(super) async fn begin(
        &self,
        memory: &mut ReviewMemory,
        client: &Client,
        by: Instant,
    ) -> Result<Permit, Response> {
        if let Some(namespace) = &client.namespace
            && !memory.body.assign(namespace)
        {
            self.metrics.limit_reached(Limit::Bodies, 1);
            let message = "too many bytes of reviews of this namespace at once (--max-bodies): try again\n";
            return Err((StatusCode::SERVICE_UNAVAILABLE, message).into_response());
        }
        let values = memory.values;
        let amount = (values * BYTES_PER_VALUE).div_ceil(KIB);
        if amount > self.parsed.units() / 2 {
            self.metrics.limit_reached(Limit::Bodies, 1);
            let max = self.parsed.units() / 2 * KIB / BYTES_PER_VALUE;
            let message =
                format!("the review holds {values} JSON values, and may hold {max} (--max-bodies)\n");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, message).into_response());
        }
        memory.parsed =
            Some(acquire(&self.parsed, client, amount, by, (Limit::Bodies, &self.metrics)).await?);
        acquire(&self.decisions, client, 1, by, (Limit::Decisions, &self.metrics)).await
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::{
        super::{
            bodies::{BodyBudget, ReceivedBody},
            limits::DECISION_LIMIT,
        },
        *,
    };

    /// Receives a body of a client, within the time for a decision.
    async fn receive(budget: &BodyBudget, body: Body) -> Result<ReceivedBody, Response> {
        budget.receive(body, &Client::default(), Instant::now() + DECISION_LIMIT).await
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_beyond_max_decisions_wait() {
        let limits = ReviewLimits { decisions: 1, ..ReviewLimits::default() };
        let turns = Turns::new(&limits, Metrics::new());
        let budget = BodyBudget::new(&limits, Metrics::new());
        let turn = async |namespace: &str| {
            let mut held = receive(&budget, Body::from("{}")).await.unwrap().memory;
            let client = Client::default().of_namespace(namespace);
            let turn = turns.begin(&mut held, &client, Instant::now() + DECISION_LIMIT).await;
            turn.map_err(|refusal| refusal.status())
        };
        let first = turn("one").await.unwrap();
        assert_eq!(turn("two").await.unwrap_err(), StatusCode::SERVICE_UNAVAILABLE);
        drop(first);
        assert!(turn("three").await.is_ok(), "the turn is free again");
    }

    #[tokio::test]
    async fn bodies_of_one_namespace_leave_room() {
        let limits = ReviewLimits { body: 1 << 20, bodies: 16 << 20, ..ReviewLimits::default() };
        let turns = Turns::new(&limits, Metrics::new());
        let budget = BodyBudget::new(&limits, Metrics::new());
        let (mut held, mut refused) = (Vec::new(), 0);
        let by = Instant::now() + DECISION_LIMIT;
        for _ in 0..20 {
            let mut one = receive(&budget, Body::from(vec![b'x'; 1 << 20])).await.unwrap().memory;
            match turns.begin(&mut one, &Client::default().of_namespace("one"), by).await {
                Ok(turn) => held.push((one, turn)),
                Err(refusal) => {
                    assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
                    refused += 1;
                }
            }
        }
        assert!(held.len() >= 8 && refused > 0, "{} and {refused}", held.len());
        let mut other = receive(&budget, Body::from(vec![b'x'; 1 << 20])).await.unwrap().memory;
        let turn = turns.begin(&mut other, &Client::default().of_namespace("two"), by).await;
        assert!(turn.is_ok(), "another namespace is served");
    }
}
