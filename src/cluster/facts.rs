//! Reads the facts of a decision from the API server.

use std::collections::BTreeSet;

use ring::rand::{SecureRandom as _, SystemRandom};

use super::{Api, ApiError};
use crate::{
    resolve::{Decision, Facts, NamespaceFacts, Need, Observed, Pass, Past, Request, Spares, resolve},
    snapshot::{Digest, ObjectName, SPARE_DIGITS},
};

/// Random digits for the name of a snapshot. Without random bytes there are none, so the name is one that is taken.
pub(crate) fn spare_digits() -> String {
    let mut bytes = [0_u8; 32];
    let is_filled = SystemRandom::new().fill(&mut bytes).is_ok();
    if is_filled { Digest::of_bytes(bytes).hex(SPARE_DIGITS) } else { String::new() }
}

/// A fact that was read.
pub(crate) enum Fact {
    Namespace(NamespaceFacts),
    /// Whether the target of a `workloadRef` is opted in.
    Target(bool),
    Revisions(Vec<Past>),
    Object(ObjectName, Option<Box<Observed>>),
    /// Further names for the snapshot of a source's content.
    Spares(ObjectName, Spares),
    /// Why the content of a source fails its schema.
    Verdict(ObjectName, Option<String>),
}

impl Fact {
    /// Reads what a decision needs; `None` if there is nothing to read.
    pub(crate) async fn read<A: Api>(api: &A, namespace: &str, need: Need) -> Result<Option<Self>, ApiError> {
        Ok(Some(match need {
            Need::Namespace => Self::Namespace(api.namespace(namespace).await?),
            Need::Target(target) => Self::Target(api.is_enabled(namespace, &target).await? == Some(true)),
            Need::Revisions(of) => Self::Revisions(api.revisions(namespace, &of).await?),
            Need::Object(name) => {
                let observed = api.read(namespace, &name).await?;
                Self::Object(name, observed.map(Box::new))
            }
            Need::Spares(source) => {
                Self::Spares(source, Spares { known: Vec::new(), digits: spare_digits() })
            }
            // The decision also asks for the snapshot by its name.
            // Its reader has the content of the source.
            Need::Newest { .. } | Need::Schema(_) => return Ok(None),
        }))
    }

    /// Adds the fact to those of the decision.
    pub(crate) fn add_to(self, facts: &mut Facts) {
        match self {
            Self::Namespace(namespace) => facts.set_namespace(namespace),
            Self::Target(enabled) => facts.set_target_enabled(enabled),
            Self::Revisions(revisions) => facts.set_revisions(revisions),
            Self::Spares(source, spares) => facts.set_spares(source, spares),
            Self::Verdict(source, failure) => facts.set_verdict(source, failure),
            Self::Object(name, observed) => facts.set_object(name, observed.map(|observed| *observed)),
        }
    }
}

/// Reads what the passes of a decision need.
pub(crate) trait FactReader {
    type Error;

    /// Adds the facts that a pass needs.
    fn read(
        &mut self,
        needs: BTreeSet<Need>,
        facts: &mut Facts,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// The asynchronous form of [`crate::resolve::decide`]: between two passes, the reader adds the facts that the first one
/// needs.
pub(crate) async fn decide_with_reads<R: FactReader>(
    request: &Request<'_>,
    facts: &mut Facts,
    reader: &mut R,
) -> Result<Decision, R::Error> {
    loop {
        match resolve(request, facts) {
            Pass::Decided(decision) => return Ok(decision),
            Pass::Needs(needs) => reader.read(needs, facts).await?,
        }
    }
}
