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

/// How long a check may wait for its turn and run, for a client that sets no deadline of its own.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(10);
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
        let check = self.check(api, (client, by), namespace, source).await?;
        Ok(check.unwrap_or_else(|NoTurn(reference)| {
            Some(report(source.kind(), &reference, namespace, &Unfinished::NoTurn))
        }))
    }

    /// The same for a client that can try again: a check without a turn is an error that may pass.
    pub(crate) async fn failure_in_turn<A: Api>(
        &self,
        api: &A,
        whose: (&Client, Instant),
        namespace: &str,
        source: &Observed,
    ) -> Result<Option<String>, ApiError> {
        let start = Instant::now();
        let check = self.check(api, whose, namespace, source).await?;
        check.map_err(|NoTurn(reference)| ApiError::Late {
            what: format!("a turn to check against {} of {namespace:?}", reference.object),
            seconds: start.elapsed().as_secs(),
        })
    }

    async fn check<A: Api>(
        &self,
        api: &A,
        (client, by): (&Client, Instant),
        namespace: &str,
        source: &Observed,
    ) -> Result<Result<Option<String>, NoTurn>, ApiError> {
        let reference = match source.schema() {
            None => return Ok(Ok(None)),
            Some(Err(invalid)) => return Ok(Ok(Some(invalid))),
            Some(Ok(reference)) => reference,
        };
        if let Err(too_large) = is_checkable(source) {
            return Ok(Ok(Some(report(source.kind(), &reference, namespace, &too_large))));
        }
        // The turn comes first: a check that waits has neither the schema nor a copy of the content in memory.
        let by = by.checked_sub(MARGIN).unwrap_or(by);
        let Some(permit) = self.running.take(client, by).await else {
            return Ok(Err(NoTurn(reference)));
        };
        let (at, object) = (reference.namespace(namespace), &reference.object);
        let late =
            |_| ApiError::Late { what: format!("{object} of {at:?}"), seconds: LONGEST_READ.as_secs() };
        let found = tokio::time::timeout(LONGEST_READ, api.read(at, object)).await.map_err(late)??;
        let Some(holder) = given(&reference, namespace, found) else {
            return Ok(Ok(Some(reference.not_given(namespace))));
        };
        let job = match job(&reference, &holder, source) {
            Ok(job) => job,
            Err(failure) => return Ok(Ok(Some(said(source.kind(), failure)))),
        };
        drop(holder);
        let (program, left) = (Arc::clone(&self.program), by.saturating_duration_since(Instant::now()));
        let run = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            child::run(&program, job, left)
        });
        Ok(Ok(match run.await {
            Ok(Ok(result)) => text(&reference, result).map(|failure| said(source.kind(), failure)),
            Ok(Err(unfinished)) => Some(report(source.kind(), &reference, namespace, &unfinished)),
            Err(error) => {
                let unfinished = Unfinished::NotStarted(std::io::Error::other(error));
                Some(report(source.kind(), &reference, namespace, &unfinished))
            }
        }))
    }

    /// The same for objects that are given, such as those of manifests: `Ok` if the content matches its schema. `None`: the
    /// schema is not among them.
    pub(crate) fn failure_of_given(
        &self,
        namespace: &str,
        find: impl Fn(&str, &ObjectName) -> Option<Observed>,
        source: &Observed,
    ) -> Option<Result<(), String>> {
        let reference = match source.schema() {
            None => return Some(Ok(())),
            Some(Err(invalid)) => return Some(Err(invalid)),
            Some(Ok(reference)) => reference,
        };
        let found = find(reference.namespace(namespace), &reference.object)?;
        let Some(holder) = given(&reference, namespace, Some(found)) else {
            return Some(Err(reference.not_given(namespace)));
        };
        if let Err(too_large) = is_checkable(source) {
            return Some(Err(too_large.message(&reference)));
        }
        let failure = match job(&reference, &holder, source) {
            Ok(job) => match child::run(&self.program, job, Duration::MAX) {
                Ok(result) => text(&reference, result),
                Err(unfinished) => return Some(Err(unfinished.message(&reference))),
            },
            Err(failure) => Some(failure),
        };
        Some(failure.map_or(Ok(()), |failure| Err(said(source.kind(), failure))))
    }
}

/// A check found no turn until its end.
struct NoTurn(SchemaReference);

/// Whether the content is small enough to be checked.
fn is_checkable(source: &Observed) -> Result<(), Unfinished> {
    match content_size(source.kind(), source.json()) {
        Ok(size) if size > MAX_CONTENT => Err(Unfinished::TooLarge),
        _ => Ok(()),
    }
}

/// What is said of a check without a result. The log says it too: the client may not be a person.
fn report(kind: SourceKind, reference: &SchemaReference, namespace: &str, unfinished: &Unfinished) -> String {
    // The reference names a key of a Secret.
    let (message, schema) = match kind {
        SourceKind::ConfigMap => (unfinished.message(reference), reference.to_string()),
        SourceKind::Secret => (unfinished.of_secret(), reference.object.to_string()),
    };
    tracing::warn!(namespace, schema, reason = %unfinished, "a check against a schema has no result");
    message
}

/// The object that holds a schema, if it exists and its author consents to that use. The result is the same in both cases:
/// whether another object exists is not revealed.
fn given(reference: &SchemaReference, namespace: &str, found: Option<Observed>) -> Option<Observed> {
    found.filter(|found| {
        let listed = found.annotation(annotations::SCHEMA_FOR);
        SchemaReference::may_be_used(reference.namespace(namespace), listed.as_deref(), namespace)
    })
}

/// What follows from the contents of a source and of its schema.
struct Found(String);

/// What is said of it. Of a Secret, it is said only that its content does not pass: anything more is a part of the content for a
/// person who may change the schema.
fn said(kind: SourceKind, Found(failure): Found) -> String {
    match kind {
        SourceKind::ConfigMap => failure,
        SourceKind::Secret => format!("it fails its schema (annotation {})", annotations::SCHEMA),
    }
}

/// What to check; otherwise why that cannot be known. `holder`: the object that holds the schema.
fn job(reference: &SchemaReference, holder: &Observed, source: &Observed) -> Result<Job, Found> {
    let schema = holder.entry_texts().remove(&reference.key).flatten().ok_or_else(|| {
        let (SchemaReference { object, key, .. }, annotation) = (reference, annotations::SCHEMA);
        Found(format!("annotation {annotation}: {object} has no key {key:?} with text"))
    })?;
    let entries = reference.entries(source.entry_texts()).map_err(|error| content(reference, &error))?;
    Ok(Job { schema, entries })
}

/// The result in words; `None` if the content matches.
fn text(reference: &SchemaReference, result: Result<(), Failure>) -> Option<Found> {
    match result {
        Ok(()) => None,
        Err(Failure::Schema(error)) => {
            Some(Found(format!("annotation {}: {reference} is no schema: {error}", annotations::SCHEMA)))
        }
        Err(Failure::Content(error)) => Some(content(reference, &error)),
    }
}

fn content(reference: &SchemaReference, error: &str) -> Found {
    Found(format!("it fails the schema {reference} (annotation {}): {error}", annotations::SCHEMA))
}
