//! Checks sources against their schemas. A check runs in a child process: it may take arbitrarily long, and must end.

mod child;

use std::{path::PathBuf, sync::Arc};

use confrev_schema::{Failure, Job};
use tokio::time::Instant;

pub use child::{COMMAND, answer};

use crate::{
    annotations,
    cluster::{Api, ApiError},
    resolve::{Observed, SchemaReference},
    server::{Client, FairSemaphore},
    snapshot::{ObjectName, SourceKind},
};

/// Checks at once. Each may use [`child::MEMORY`].
const CONCURRENT: usize = 4;

/// Reads schemas, and runs checks. Clones share the limits.
#[derive(Clone, Debug)]
pub struct Schemas {
    program: Arc<PathBuf>,
    running: FairSemaphore,
}

impl Default for Schemas {
    fn default() -> Self {
        Self::of(child::own_program())
    }
}

impl Schemas {
    /// Runs checks with this program, which is confrev.
    pub fn of(program: PathBuf) -> Self {
        Self { program: Arc::new(program), running: FairSemaphore::new(CONCURRENT) }
    }

    /// Why the content of a source fails its schema; `None` if it has none or matches it. The schema is read live. `client` and
    /// `by`: whose share the check uses, and when it ends at the latest.
    pub async fn failure<A: Api>(
        &self,
        api: &A,
        (client, by): (&Client, Instant),
        namespace: &str,
        source: &Observed,
    ) -> Result<Option<String>, ApiError> {
        let reference = match source.schema() {
            None => return Ok(None),
            Some(Err(invalid)) => return Ok(Some(invalid)),
            Some(Ok(reference)) => reference,
        };
        let at = reference.namespace.as_deref().unwrap_or(namespace);
        let name = ObjectName::new(SourceKind::ConfigMap, reference.config_map.as_str());
        let found = api.read(at, &name).await?;
        let job = match job(&reference, namespace, found.as_ref(), source) {
            Ok(job) => job,
            Err(failure) => return Ok(Some(failure)),
        };
        let Some(permit) = self.running.acquire(client, 1, by).await else {
            return Ok(Some(child::cut_off(&reference)));
        };
        let program = Arc::clone(&self.program);
        let run = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            child::run(&program, &job)
        });
        Ok(text(&reference, run.await.unwrap_or(None)))
    }

    /// The same for objects that are given, such as those of manifests: `Ok` if the content matches its schema. `None`: the
    /// schema is not among them.
    pub(crate) fn failure_of_given(
        &self,
        namespace: &str,
        given: impl Fn(&str, &ObjectName) -> Option<Observed>,
        source: &Observed,
    ) -> Option<Result<(), String>> {
        let reference = match source.schema() {
            None => return Some(Ok(())),
            Some(Err(invalid)) => return Some(Err(invalid)),
            Some(Ok(reference)) => reference,
        };
        let at = reference.namespace.as_deref().unwrap_or(namespace);
        let found = given(at, &ObjectName::new(SourceKind::ConfigMap, reference.config_map.as_str()))?;
        let failure = job(&reference, namespace, Some(&found), source)
            .map_or_else(Some, |job| text(&reference, child::run(&self.program, &job)));
        Some(failure.map_or(Ok(()), Err))
    }
}

/// What to check; otherwise why that cannot be known. `found`: the ConfigMap of the schema.
fn job(
    reference: &SchemaReference,
    namespace: &str,
    found: Option<&Observed>,
    source: &Observed,
) -> Result<Job, String> {
    let at = reference.namespace.as_deref().unwrap_or(namespace);
    let is_given = |found: &&Observed| {
        let listed = found.annotation(annotations::SCHEMA_FOR);
        SchemaReference::may_be_used(at, listed.as_deref(), namespace)
    };
    // Whether another namespace has a ConfigMap is not revealed.
    let Some(found) = found.filter(is_given) else {
        return Err(if at == namespace {
            format!(
                "annotation {}: ConfigMap {:?} does not exist in namespace {at:?}",
                annotations::SCHEMA,
                reference.config_map
            )
        } else {
            format!(
                "annotation {}: namespace {at:?} has no ConfigMap {:?} whose annotation {} contains {namespace:?}",
                annotations::SCHEMA,
                reference.config_map,
                annotations::SCHEMA_FOR
            )
        });
    };
    let schema = found.entry_texts().remove(&reference.key).flatten().ok_or_else(|| {
        format!(
            "annotation {}: ConfigMap {:?} has no key {:?} with text",
            annotations::SCHEMA,
            reference.config_map,
            reference.key
        )
    })?;
    let entries = reference.entries(source.entry_texts()).map_err(|error| content(reference, &error))?;
    Ok(Job { schema, entries, confidential: source.kind() == SourceKind::Secret })
}

/// The result in words. The inner `None`: the check did not end.
fn text(reference: &SchemaReference, result: Option<Result<(), Failure>>) -> Option<String> {
    match result {
        Some(Ok(())) => None,
        Some(Err(Failure::Schema(error))) => {
            Some(format!("annotation {}: {reference} is no schema: {error}", annotations::SCHEMA))
        }
        Some(Err(Failure::Content(error))) => Some(content(reference, &error)),
        None => Some(child::cut_off(reference)),
    }
}

fn content(reference: &SchemaReference, error: &str) -> String {
    format!("it fails the schema {reference} (annotation {}): {error}", annotations::SCHEMA)
}
