//! Turns to decide: a review waits until the memory for its parsed form and one of the concurrent decisions are free.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tokio::time::Instant;

use super::{
    bodies::{KIB, ReviewMemory, body_memory, too_many},
    limits::ReviewLimits,
};
use crate::{
    server::{Client, FairSemaphore, Permit, Pool, PoolPermit},
    telemetry::{Metrics, metrics::Limit},
};

/// The memory that a JSON value takes once it is parsed: a container, a volume, a map's entry. Measured over the structures that
/// reviews are parsed into, whose largest take 184 bytes for the two values of `{},` in a list.
const BYTES_PER_VALUE: usize = 96;
/// The copies of a body that exist while it is decided on: the text of a source, strings that have escapes, and a message that
/// quotes it.
const COPIES: usize = 2;
/// The memory that an operation of a patch takes: the operation, its text, and the text in base64. With the longest names, of 253
/// bytes, it is 1.3 to 1.7 kB.
const BYTES_PER_OPERATION: usize = 1700;
/// The operations whose memory is part of that of any review.
const FEW_OPERATIONS: usize = 16;

/// Grants turns to decide.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// Memory for what bodies are parsed into.
    parsed: Pool,
    /// Concurrent decisions.
    decisions: FairSemaphore,
    metrics: Metrics,
}

impl Turns {
    /// `of_all`: the memory for all reviews.
    pub(super) fn new(limits: &ReviewLimits, of_all: &FairSemaphore, metrics: Metrics) -> Self {
        let parsed = Pool::new(body_memory(limits), of_all);
        Self { parsed, decisions: FairSemaphore::new(limits.decisions), metrics }
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
        let (values, growth) = (memory.values, memory.growth);
        let copies = COPIES * memory.bytes + growth;
        let too_large = |most: usize| {
            let max = most.saturating_sub(copies) / BYTES_PER_VALUE;
            let escapes = if growth == 0 { String::new() } else { format!(" and {growth} bytes of escapes") };
            format!("the review holds {values} JSON values{escapes}, and may hold {max} (--max-bodies)\n")
        };
        let bytes = values * BYTES_PER_VALUE + copies;
        memory.parsed = Some(self.acquire(client, bytes, by, too_large).await?);
        let turn = self.decisions.acquire(client, 1, by).await;
        turn.ok_or_else(|| too_many((Limit::Decisions, &self.metrics)))
    }

    /// Waits for the memory of an answer with that many operations.
    pub(super) async fn answer(
        &self,
        memory: &mut ReviewMemory,
        client: &Client,
        operations: usize,
        by: Instant,
    ) -> Result<(), Response> {
        if operations > FEW_OPERATIONS {
            let too_large = |most: usize| {
                let max = most / BYTES_PER_OPERATION;
                format!("the answer holds {operations} operations, and may hold {max} (--max-bodies)\n")
            };
            let bytes = operations * BYTES_PER_OPERATION;
            memory.answer = Some(self.acquire(client, bytes, by, too_large).await?);
        }
        Ok(())
    }

    /// Waits for so many bytes for one review. `too_large`: what to answer if they are more than the most that one may ever take.
    async fn acquire(
        &self,
        client: &Client,
        bytes: usize,
        by: Instant,
        too_large: impl FnOnce(usize) -> String,
    ) -> Result<PoolPermit, Response> {
        let (amount, most) = (bytes.div_ceil(KIB), self.parsed.most_of_one());
        // It would wait until the deadline, and others behind it.
        if amount > most {
            self.metrics.limit_reached(Limit::Bodies, 1);
            return Err((StatusCode::PAYLOAD_TOO_LARGE, too_large(most * KIB)).into_response());
        }
        let permit = self.parsed.acquire(client, amount, by).await;
        permit.ok_or_else(|| too_many((Limit::Bodies, &self.metrics)))
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::{
        super::{
            bodies::{BodyBudget, ReceivedBody, review_memory},
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
        let of_all = review_memory(&limits);
        let turns = Turns::new(&limits, &of_all, Metrics::new());
        let budget = BodyBudget::new(&limits, &of_all, Metrics::new());
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
        let limits = ReviewLimits { body: 1 << 20, bodies: 48 << 20, ..ReviewLimits::default() };
        let of_all = review_memory(&limits);
        let turns = Turns::new(&limits, &of_all, Metrics::new());
        let budget = BodyBudget::new(&limits, &of_all, Metrics::new());
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
        assert!(held.len() >= 6 && refused > 0, "{} and {refused}", held.len());
        let mut other = receive(&budget, Body::from(vec![b'x'; 1 << 20])).await.unwrap().memory;
        let turn = turns.begin(&mut other, &Client::default().of_namespace("two"), by).await;
        assert!(turn.is_ok(), "another namespace is served");
    }

    /// Bodies, what they are parsed into and answers have one total: none of them has room for two, but all together have not.
    #[tokio::test(start_paused = true)]
    async fn all_memory_of_reviews_has_one_total() {
        let limits = ReviewLimits { body: 4 << 20, memory: 28 << 20, ..ReviewLimits::default() };
        let of_all = review_memory(&limits);
        let turns = Turns::new(&limits, &of_all, Metrics::new());
        let budget = BodyBudget::new(&limits, &of_all, Metrics::new());
        let by = Instant::now() + DECISION_LIMIT;
        let body = || Body::from(vec![b'x'; 4 << 20]);
        let mut first = receive(&budget, body()).await.unwrap().memory;
        let client = Client::default();
        let turn = turns.begin(&mut first, &client, by).await.unwrap();
        // 4 MiB, and twice as much for its copies: the same does not fit again.
        let mut second = receive(&budget, body()).await.unwrap().memory;
        let refused = turns.begin(&mut second, &client, by).await.map(drop).unwrap_err();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        let by = Instant::now() + DECISION_LIMIT;
        let refused = turns.answer(&mut first, &client, 8_200, by).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        let refused = turns.answer(&mut first, &client, 9_000, by).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE, "more than one review may ever take");
        drop((first, turn));
        let by = Instant::now() + DECISION_LIMIT;
        assert!(turns.begin(&mut second, &client, by).await.is_ok(), "the memory is free again");
    }
}
