//! Checks sources against their schemas. A check runs in a child process: it may take arbitrarily long, and must end.

mod child;
mod limits;
mod unfinished;

use std::{path::PathBuf, sync::Arc, time::Duration};

use confrev_schema::{Failure, Job};
use tokio::time::Instant;

pub use child::{COMMAND, answer};

use crate::{
    annotations, budget,
    cluster::{Api, ApiError},
    resolve::{Observed, SchemaReference},
    server::Client,
    snapshot::{MAX_CONTENT, ObjectName, SourceKind, content_size},
    turns::Places,
};
use unfinished::Unfinished;

/// The longest read of a schema: it holds the turn of a check.
const LONGEST_READ: Duration = Duration::from_secs(1);
/// How long before the deadline of a request its check ends, so that the answer says why.
const MARGIN: Duration = Duration::from_millis(200);

/// Reads schemas, and runs checks. Clones share the limits.
#[derive(Clone, Debug)]
pub struct Schemas {
    program: Arc<PathBuf>,
    running: Places,
}

impl Default for Schemas {
    fn default() -> Self {
        Self::of(child::own_program())
    }
}

impl Schemas {
    /// Runs checks with this program, which is confrev.
    pub fn of(program: PathBuf) -> Self {
        Self { program: Arc::new(program), running: Places::new(budget::CHECKS) }
    }

    /// Limits the checks at once.
    #[must_use]
    pub fn at_once(self, checks: usize) -> Self {
        Self { running: Places::new(checks), ..self }
    }

    /// Why the content of a source fails its schema; `None` if it has none or matches it. A check that did not run is a failed check
    /// with that reason. The schema is read live. `client` and `by`: whose share the check uses, and when it ends at the latest.
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
        if let Err(too_large) = is_checkable(source) {
            return Ok(Some(report(&reference, namespace, &too_large)));
        }
        // The turn comes first: a check that waits has neither the schema nor a copy of the content in memory.
        let by = by.checked_sub(MARGIN).unwrap_or(by);
        let Some(permit) = self.running.take(client, by).await else {
            return Ok(Some(report(&reference, namespace, &Unfinished::NoTurn)));
        };
        let at = reference.namespace.as_deref().unwrap_or(namespace);
        let name = ObjectName::new(SourceKind::ConfigMap, reference.config_map.as_str());
        let late = |_| ApiError::Late { what: format!("{name} of {at:?}"), seconds: LONGEST_READ.as_secs() };
        let found = tokio::time::timeout(LONGEST_READ, api.read(at, &name)).await.map_err(late)??;
        let job = match job(&reference, namespace, found.as_ref(), source) {
            Ok(job) => job,
            Err(failure) => return Ok(Some(failure)),
        };
        drop(found);
        let (program, left) = (Arc::clone(&self.program), by.saturating_duration_since(Instant::now()));
        let run = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            child::run(&program, job, left)
        });
        match run.await {
            Ok(Ok(result)) => Ok(text(&reference, result)),
            Ok(Err(unfinished)) => Ok(Some(report(&reference, namespace, &unfinished))),
            Err(error) => {
                Ok(Some(report(&reference, namespace, &Unfinished::NotStarted(std::io::Error::other(error)))))
            }
        }
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
        if let Err(too_large) = is_checkable(source) {
            return Some(Err(too_large.message(&reference)));
        }
        let failure = match job(&reference, namespace, Some(&found), source) {
            Ok(job) => match child::run(&self.program, job, Duration::MAX) {
                Ok(result) => text(&reference, result),
                Err(unfinished) => Some(unfinished.message(&reference)),
            },
            Err(failure) => Some(failure),
        };
        Some(failure.map_or(Ok(()), Err))
    }
}

/// Whether the content is small enough to be checked.
fn is_checkable(source: &Observed) -> Result<(), Unfinished> {
    match content_size(source.kind(), source.json()) {
        Ok(size) if size > MAX_CONTENT => Err(Unfinished::TooLarge(size)),
        _ => Ok(()),
    }
}

/// What is said of a check without a result. The log says it too: the client may not be a person.
fn report(reference: &SchemaReference, namespace: &str, unfinished: &Unfinished) -> String {
    tracing::warn!(namespace, schema = %reference, reason = %unfinished, "a check against a schema has no result");
    unfinished.message(reference)
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

/// The result in words.
fn text(reference: &SchemaReference, result: Result<(), Failure>) -> Option<String> {
    match result {
        Ok(()) => None,
        Err(Failure::Schema(error)) => {
            Some(format!("annotation {}: {reference} is no schema: {error}", annotations::SCHEMA))
        }
        Err(Failure::Content(error)) => Some(content(reference, &error)),
    }
}

fn content(reference: &SchemaReference, error: &str) -> String {
    format!("it fails the schema {reference} (annotation {}): {error}", annotations::SCHEMA)
}
