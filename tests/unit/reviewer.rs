//! Admission's decision over an API server that a test answers for.

use std::sync::Arc;

use confrev::{
    admission::{DECISION_LIMIT, Decider, ReadBudget, ReviewLimits},
    cluster::KubeApi,
    controller::{Shared, State},
    kinds::Kinds,
    schema::Schemas,
    server::Client,
    telemetry::{Metrics, Readiness},
};
use tokio::time::Instant;

/// What admission needs for a decision, beside the request.
pub(crate) struct Reviewer {
    api: KubeApi,
    limits: ReviewLimits,
    schemas: Schemas,
    shared: Shared,
    pub(crate) budget: ReadBudget,
    pub(crate) metrics: Metrics,
    /// When the decision ends at the latest.
    pub(crate) by: Instant,
}

impl Reviewer {
    pub(crate) fn new(client: kube::Client, state: State, limits: ReviewLimits) -> Self {
        let metrics = Metrics::new();
        Self {
            api: KubeApi::new(client, Arc::new(Kinds::default()), metrics.clone()),
            limits,
            schemas: Schemas::default(),
            shared: Shared::new(state, Readiness::new().register("caches")),
            budget: ReadBudget::new(&limits),
            metrics,
            by: Instant::now() + DECISION_LIMIT,
        }
    }

    /// The decider of one review.
    pub(crate) fn decider(&self, dry_run: bool) -> Decider<'_, KubeApi> {
        let Self { api, limits, metrics, shared, schemas, .. } = self;
        let share = self.budget.share(Client::default(), self.by);
        Decider { api, limits: *limits, dry_run, share, metrics, shared, schemas: Some(schemas) }
    }
}
