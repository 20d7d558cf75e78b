//! Admission's decision about an update, with given contents in place of the present ones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokio::time::Instant;

use super::{failure::Failure, target::Target};
use crate::{
    cluster::{
        ApiError,
        facts::{Fact, FactReader, decide_with_reads},
    },
    kinds::WorkloadKind,
    resolve::{Carried, Decision, Facts, Need, Observed, Request, Workload},
    schema::{LONGEST_WAIT, Schemas},
    server::Client,
    snapshot::ObjectName,
};

/// Reads facts from the cluster, with the given contents in place of the current ones.
struct GivenReader<'a> {
    target: &'a Target,
    namespace: &'a str,
    given: &'a BTreeMap<&'a ObjectName, &'a Observed>,
    schemas: Schemas,
}

/// Admission's own decision about an update of a workload, with these contents in place of the present ones. `facts` gets what was read.
/// `None` if it cannot be known: an object does not have the form of its kind, or the user may not read a fact.
pub(super) async fn decide(
    target: &Target,
    namespace: &str,
    (kind, old, new): (&WorkloadKind, &Value, &Value),
    secrets: bool,
    given: &BTreeMap<&ObjectName, &Observed>,
    facts: &mut Facts,
) -> Result<Option<Decision>, Failure> {
    let (old, new) = (old.to_string(), new.to_string());
    let (Ok(old), Ok(new)) = (Workload::parse(kind, &old), Workload::parse(kind, &new)) else {
        return Ok(None);
    };
    target.strategies.enter(&target.api, namespace).await.map_err(|error| target.failure(error))?;
    let inherited = target.strategies.inherited();
    let [old, new] = [old, new].map(|workload| inherited.workload(namespace, workload));
    let request = Request { namespace, secrets, new, old: Some(old), carried: Carried::default() };
    facts.set_rotated(target.rotated.clone());
    let mut reader = GivenReader { target, namespace, given, schemas: Schemas::default() };
    match decide_with_reads(&request, facts, &mut reader).await.map_err(|error| target.failure(error)) {
        Err(Failure::Refused(_)) => Ok(None),
        decision => decision.map(Some),
    }
}

impl FactReader for GivenReader<'_> {
    type Error = ApiError;

    async fn read(&mut self, needs: BTreeSet<Need>, facts: &mut Facts) -> Result<(), ApiError> {
        for need in needs {
            if let Need::Object(name) = &need
                && let Some(content) = self.given.get(name)
            {
                facts.set_object(name.clone(), Some((*content).clone()));
            } else if let Need::Schema(source) = need {
                let Some(content) = facts.object(&source).flatten().cloned() else { continue };
                let by = Instant::now() + LONGEST_WAIT;
                let (api, client) = (&self.target.api, Client::default());
                let failure = self.schemas.failure(api, (&client, by), self.namespace, &content).await?;
                facts.set_verdict(source, failure);
            } else if let Some(fact) = Fact::read(&self.target.api, self.namespace, need).await? {
                fact.add_to(facts);
            }
        }
        Ok(())
    }
}
