//! The dependencies of the webhook's handlers, and the client that a review comes from.

use std::{ops::Deref, sync::Arc};

use tokio::time::Instant;

use super::{
    authors::Authors,
    bodies::{BodyBudget, review_memory},
    limits::ReviewLimits,
    reads::ReadBudget,
    turns::Turns,
};
use crate::{controller::Shared, kinds::Kinds, schema::Schemas, server::Client, telemetry::Metrics};

/// The dependencies of the handlers.
pub struct Context<A> {
    /// Calls to the API server.
    pub api: A,
    /// The known kinds of workloads.
    pub kinds: Arc<Kinds>,
    /// Whether Secrets get snapshots.
    pub secrets: bool,
    /// The limits of reviews.
    pub limits: ReviewLimits,
    /// The state that the controller maintains.
    pub shared: Shared,
    /// Counters.
    pub metrics: Metrics,
    /// Checks sources against their schemas.
    pub schemas: Schemas,
    /// Records who wrote a source; `None` without `--record-users`.
    pub users: Option<Authors>,
}

/// The context that all handlers share.
pub(super) struct HandlerState<A> {
    context: Context<A>,
    /// The bodies of all reviews.
    pub(super) bodies: BodyBudget,
    /// The turns to decide.
    pub(super) turns: Turns,
    /// The reads of all decisions.
    pub(super) reads: ReadBudget,
}

impl<A> HandlerState<A> {
    pub(super) fn new(context: Context<A>) -> Self {
        let of_all = review_memory(&context.limits);
        let bodies = BodyBudget::new(&context.limits, &of_all, context.metrics.clone());
        let turns = Turns::new(&context.limits, &of_all, context.metrics.clone());
        let reads = ReadBudget::within(&context.limits, &of_all);
        Self { context, bodies, turns, reads }
    }
}

impl<A> Deref for HandlerState<A> {
    type Target = Context<A>;

    fn deref(&self) -> &Context<A> {
        &self.context
    }
}

/// The client that a review comes from, and the deadline for the answer.
pub(super) struct Caller {
    pub(super) client: Client,
    /// Whether the client has a certificate of `--client-ca`. Anyone else may have made up the review.
    pub(super) is_verified: bool,
    pub(super) deadline: Instant,
}
