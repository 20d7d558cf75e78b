//! The decision with its reads and writes: facts are read live and concurrently, and snapshots are created before the
//! object is stored.

use std::collections::{BTreeMap, BTreeSet};

use futures::{
    StreamExt as _, TryStreamExt as _,
    future::{join, try_join_all},
    stream,
};

use tokio::sync::Semaphore;

use super::{bodies::KIB, limits::ReviewLimits, reads::ReadShare};
use crate::{
    cluster::{
        Api, ApiError, Created, Usage, ensure_snapshot,
        facts::{Fact, FactReader, decide_with_reads, spare_digits},
    },
    controller::Shared,
    resolve::{Decision, Facts, NamespaceFacts, Need, Observed, Request, Spares},
    schema::Schemas,
    snapshot::ObjectName,
    telemetry::{Metrics, metrics::Limit},
    world::{MAX_OWNERS, Name, Owner},
};

/// How often facts may have to be read again. Each round answers the needs of the previous one. A round is lost only if
/// another client writes the same names at the same moment.
const MAX_ROUNDS: usize = 12;

/// The most snapshots with random digits in their names that are read for one content. There is usually none.
const MAX_SPARES: usize = 2;

/// Reads in progress at once for one decision.
const MAX_CONCURRENT_READS: usize = 32;

/// The bytes of contents that are written as snapshots at once for one decision, in KiB: each is a copy of what was read.
const MAX_CONCURRENT_COPIES: usize = 8 << 10;

/// Why a decision ends before its last pass.
enum Interrupted {
    /// It would read more than one decision may.
    Denied(String),
    /// A call failed.
    Failed(ApiError),
}

impl From<ApiError> for Interrupted {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

/// Decides with live facts.
pub struct Decider<'a, A> {
    /// Calls to the API server.
    pub api: &'a A,
    /// How much may be read for one decision.
    pub limits: ReviewLimits,
    /// Whether to write nothing.
    pub dry_run: bool,
    /// Counts what the decision reads, and its calls.
    pub share: ReadShare,
    /// Counts limits that are reached.
    pub metrics: &'a Metrics,
    /// The state, used only to guess which snapshots are needed.
    pub shared: &'a Shared,
    /// Checks stored sources against their schemas. `None`: the client may not learn about stored content.
    pub schemas: Option<&'a Schemas>,
}

/// The rounds of reads of one decision.
struct Rounds<'a, A> {
    decider: &'a Decider<'a, A>,
    request: &'a Request<'a>,
    /// Correct guesses that are not asked for yet: a decision, including its limits, is the same as without guesses.
    guessed: BTreeMap<ObjectName, Option<Observed>>,
    done: usize,
}

impl<A> Rounds<'_, A> {
    /// Counts a round. The last one ends the decision.
    fn count(&mut self) -> Result<(), ApiError> {
        self.done += 1;
        if self.done < MAX_ROUNDS {
            return Ok(());
        }
        Err(ApiError::Conflict { what: format!("snapshots for {}", self.request.new.display()) })
    }
}

impl<A: Api> FactReader for Rounds<'_, A> {
    type Error = Interrupted;

    async fn read(&mut self, needs: BTreeSet<Need>, facts: &mut Facts) -> Result<(), Interrupted> {
        self.decider.read_round(self.request, needs, &mut self.guessed, facts).await?;
        Ok(self.count()?)
    }
}

impl<A: Api> Decider<'_, A> {
    /// Decides, and leaves what was read in `facts`. Unless this is a dry run, the snapshots that the decision needs exist
    /// when this returns. Adopted snapshots are then bound to `owner`, the workload, if it is already stored.
    pub async fn admit(
        &self,
        request: &Request<'_>,
        owner: Option<&Owner>,
        facts: &mut Facts,
    ) -> Result<Decision, ApiError> {
        if self.schemas.is_none() {
            facts.withhold_verdicts();
        }
        let mut rounds = Rounds { decider: self, request, guessed: BTreeMap::new(), done: 0 };
        loop {
            let decision = match decide_with_reads(request, facts, &mut rounds).await {
                Ok(decision) => decision,
                Err(Interrupted::Denied(denial)) => {
                    return Ok(Decision { denial: Some(denial), ..Decision::default() });
                }
                Err(Interrupted::Failed(error)) => return Err(error),
            };
            if self.dry_run || decision.denial.is_some() {
                return Ok(decision);
            }
            let stale = self.write(request.namespace, &decision, owner, facts).await?;
            if stale.is_empty() {
                return Ok(decision);
            }
            let needs = stale.into_iter().map(Need::Object).collect();
            self.read(request.namespace, needs, &BTreeMap::new(), facts).await?;
            rounds.count()?;
        }
    }

    /// Reads what one pass needs, and the snapshots that the next pass is likely to need.
    async fn read_round(
        &self,
        request: &Request<'_>,
        mut needs: BTreeSet<Need>,
        guessed: &mut BTreeMap<ObjectName, Option<Observed>>,
        facts: &mut Facts,
    ) -> Result<(), Interrupted> {
        let count =
            |needs: &BTreeSet<Need>| needs.iter().filter(|need| !matches!(need, Need::Newest { .. })).count();
        // If the namespace does not opt the workload in, the decision needs nothing else. Until the namespace is read, neither the
        // limits nor an error of the other reads may refuse the request.
        self.add_spares(request.namespace, &mut needs, facts);
        let needs_namespace = needs.contains(&Need::Namespace);
        if needs_namespace && !self.may_read(facts, count(&needs)) {
            needs.retain(|need| *need == Need::Namespace);
        }
        if let Some(denial) = self.too_much(request, facts, count(&needs)) {
            return Err(Interrupted::Denied(denial));
        }
        let needs = without_guessed(needs, guessed, facts);
        let guesses = self.guesses(request.namespace, &needs, facts);
        if needs_namespace {
            let others = self.read(request.namespace, needs, &guesses, facts);
            let (found, _) = join(self.read_namespace(request.namespace), others).await;
            facts.set_namespace(found?);
        } else {
            self.read(request.namespace, needs, &guesses, facts).await?;
        }
        for (guess, source) in guesses {
            if let Some(right) = facts.take_guess(&source, &guess) {
                guessed.insert(guess, right);
            }
        }
        Ok(())
    }

    /// Whether this decision may read that number of further objects.
    fn may_read(&self, facts: &Facts, more: usize) -> bool {
        facts.size().0 + more <= self.limits.reads
    }

    /// Why this decision may not read more; `None` if it may.
    fn too_much(&self, request: &Request<'_>, facts: &Facts, more: usize) -> Option<String> {
        let (reads, read_bytes) = (self.limits.reads, self.limits.bytes_of_one());
        let (_, bytes) = facts.size();
        let name = request.new.display();
        if !self.may_read(facts, more) {
            self.metrics.limit_reached(Limit::Reads, 1);
            return Some(format!(
                "{name}: resolving its ConfigMaps and Secrets takes more than {reads} reads (--max-reads): split the \
                 workload, or opt it out"
            ));
        }
        (bytes > read_bytes).then(|| {
            self.metrics.limit_reached(Limit::ReadBytes, 1);
            format!(
                "{name}: its ConfigMaps and Secrets hold more than {read_bytes} bytes in total (--max-read-bytes): \
                 split the workload, or opt it out"
            )
        })
    }

    /// The snapshots that are likely to be needed once the sources are known, with their sources: reading both at once
    /// saves a round. Snapshots that were read already, or are needed anyway, are left out. There are no guesses if they
    /// might exceed the limit of reads.
    fn guesses(
        &self,
        namespace: &str,
        needs: &BTreeSet<Need>,
        facts: &Facts,
    ) -> BTreeMap<ObjectName, ObjectName> {
        let state = self.shared.lock();
        let guess = |need: &Need| {
            let Need::Newest { source, kept } = need else { return None };
            let newest = state.newest_snapshot(&Name::new(namespace, source.clone()))?;
            let snapshot = ObjectName::new(source.kind, newest);
            let is_news = kept.as_deref() != Some(&*snapshot.name)
                && facts.object(&snapshot).is_none()
                && !needs.contains(&Need::Object(snapshot.clone()));
            is_news.then(|| (snapshot, source.clone()))
        };
        let guesses: BTreeMap<_, _> = needs.iter().filter_map(guess).collect();
        let all = facts.size().0 + needs.len() + guesses.len();
        if all > self.limits.reads { BTreeMap::new() } else { guesses }
    }

    /// Adds the further names that are needed for snapshots, and the reads of those that are known to exist. Which of them hold
    /// the content is decided by what is read.
    fn add_spares(&self, namespace: &str, needs: &mut BTreeSet<Need>, facts: &mut Facts) {
        let is_of_spares = |need: &Need| matches!(need, Need::Spares(_));
        let wanted: Vec<_> = needs.iter().filter(|need| is_of_spares(need)).cloned().collect();
        needs.retain(|need| !is_of_spares(need));
        for need in wanted {
            let Need::Spares(source) = need else { continue };
            let Some(Some(present)) = facts.object(&source) else { continue };
            let name = Name::new(namespace, source.clone());
            let mut known = self.shared.lock().spare_snapshots(&name, present.digests());
            known.truncate(MAX_SPARES);
            let unread = known.iter().map(|name| ObjectName::new(source.kind, name.as_str()));
            needs.extend(unread.filter(|name| facts.object(name).is_none()).map(Need::Object));
            facts.set_spares(source, Spares { known, digits: spare_digits() });
        }
    }

    /// Reads the namespace's settings. Its answer does not count: the limits must not refuse a workload that is not opted in.
    async fn read_namespace(&self, namespace: &str) -> Result<NamespaceFacts, ApiError> {
        self.api.metered(self.share.meter_of_calls()).namespace(namespace).await
    }

    /// Reads facts concurrently, but not all at once, so that an exceeded limit is noticed early.
    async fn read(
        &self,
        namespace: &str,
        needs: BTreeSet<Need>,
        guesses: &BTreeMap<ObjectName, ObjectName>,
        facts: &mut Facts,
    ) -> Result<(), ApiError> {
        let api = &self.api.metered(self.share.meter());
        let guessed = guesses.keys().cloned().map(Need::Object);
        // The namespace is read beside these.
        let others = needs.into_iter().filter(|need| *need != Need::Namespace);
        let with_content = |need| {
            let content = match &need {
                Need::Schema(source) => facts.object(source).flatten().cloned(),
                _ => None,
            };
            (need, content)
        };
        let reads: Vec<_> = others.chain(guessed).map(with_content).collect();
        let reads = reads.into_iter().map(|(need, content)| async move {
            if let Need::Schema(source) = need {
                let Some(content) = content else { return Ok(None) };
                let Some(schemas) = self.schemas else { return Ok(Some(Fact::Verdict(source, None))) };
                let failure = schemas.failure(api, self.share.whose(), namespace, &content).await?;
                return Ok(Some(Fact::Verdict(source, failure)));
            }
            let is_guess = matches!(&need, Need::Object(name) if guesses.contains_key(name));
            match Fact::read(api, namespace, need).await {
                // The guess is not needed yet.
                Err(_) if is_guess => Ok(None),
                read => read,
            }
        });
        let mut reads = stream::iter(reads).buffer_unordered(MAX_CONCURRENT_READS);
        while let Some(read) = reads.try_next().await? {
            if let Some(fact) = read {
                fact.add_to(facts);
            }
            let (_, bytes) = facts.size();
            if bytes > self.limits.bytes_of_one() {
                // The decision is denied if it asks for the rest.
                return Ok(());
            }
            if !self.share.set(bytes) {
                self.metrics.limit_reached(Limit::ReadBytes, 1);
                return Err(ApiError::too_many_bytes(format!("namespace {namespace:?}")));
            }
        }
        Ok(())
    }

    /// Creates and binds snapshots. Returns the objects that differ from what the decision read.
    ///
    /// Writes use live reads only: for the content of a snapshot, and for an owner. If the uid of a review were written,
    /// anyone could bind a snapshot to an owner that does not exist, and the garbage collector would delete the snapshot.
    async fn write(
        &self,
        namespace: &str,
        decision: &Decision,
        owner: Option<&Owner>,
        facts: &Facts,
    ) -> Result<Vec<ObjectName>, ApiError> {
        let api = &self.api.metered(self.share.meter());
        let room = &Semaphore::new(MAX_CONCURRENT_COPIES);
        let ensures = decision.ensure.iter().map(|ensure| async move {
            let Some(Some(content)) = facts.object(&ensure.source) else { return Ok(None) };
            let size = content.json().len().div_ceil(KIB).min(MAX_CONCURRENT_COPIES);
            let _room = room.acquire_many(u32::try_from(size).unwrap_or(u32::MAX)).await;
            let created = ensure_snapshot(api, namespace, ensure, content.json()).await?;
            Ok::<_, ApiError>((created == Created::Exists).then(|| ensure.snapshot()))
        });
        let mut stale: Vec<_> = try_join_all(ensures).await?.into_iter().flatten().collect();
        let Some(workload) = owner else { return Ok(stale) };
        let adopts = decision.adopt.iter().map(|snapshot| async move {
            let source = if is_nearly_full(facts, snapshot) {
                let Some(source) = source_as_owner(facts, snapshot) else { return Ok(None) };
                Some(source)
            } else {
                None
            };
            if source.is_none()
                && api.usages(namespace, std::slice::from_ref(workload), snapshot).await? == [Usage::Gone]
            {
                return Ok(None);
            }
            let owner = source.as_ref().unwrap_or(workload);
            match api.add_owner(namespace, snapshot, owner).await {
                Ok(()) => Ok(None),
                Err(error) if error.is_not_found() => recreate(api, namespace, snapshot, owner, facts).await,
                Err(error) => Err(error),
            }
        });
        stale.extend(try_join_all(adopts).await?.into_iter().flatten());
        Ok(stale)
    }
}

/// Creates a snapshot again that was deleted after the decision read it: the garbage collector may have decided so before the
/// request refers to the snapshot. Returns the snapshot if it differs from what the decision read.
async fn recreate<A: Api>(
    api: &A,
    namespace: &str,
    snapshot: &ObjectName,
    owner: &Owner,
    facts: &Facts,
) -> Result<Option<ObjectName>, ApiError> {
    let known = facts.object(snapshot).flatten();
    let its = known.and_then(|content| Some((content, content.identity()?)));
    let sound = its.filter(|(content, identity)| content.is_snapshot_of_source(&identity.source));
    let Some((content, identity)) = sound else { return Ok(Some(snapshot.clone())) };
    let owners = std::slice::from_ref(owner);
    let created = api.create_snapshot(namespace, snapshot, identity, content.json(), owners).await?;
    Ok((created == Created::Exists).then(|| snapshot.clone()))
}

/// The places for owners of a snapshot that only the controller fills. Admissions add owners without a precondition, so
/// several may add one at the same time.
const LEFT_TO_CONTROLLER: usize = 256;

/// Whether a snapshot has so many owners that admission adds no workload.
fn is_nearly_full(facts: &Facts, snapshot: &ObjectName) -> bool {
    let owners = facts.object(snapshot).flatten().map_or(0, |observed| observed.owner_uids().len());
    owners >= MAX_OWNERS - LEFT_TO_CONTROLLER
}

/// The live source of a snapshot, as an owner that keeps the snapshot for users that are not owners. `None` if the source
/// is missing, or owns the snapshot already.
fn source_as_owner(facts: &Facts, snapshot: &ObjectName) -> Option<Owner> {
    let observed = facts.object(snapshot)??;
    let source = ObjectName::new(snapshot.kind, observed.identity()?.source.as_str());
    let present = facts.object(&source)??;
    let owner = Owner::new("v1", source.kind.as_str(), &*source.name, present.uid.as_str());
    (!observed.owner_uids().contains(&present.uid)).then_some(owner)
}

/// Moves guesses that are needed now into the facts. Returns the needs that remain.
fn without_guessed(
    needs: BTreeSet<Need>,
    guessed: &mut BTreeMap<ObjectName, Option<Observed>>,
    facts: &mut Facts,
) -> BTreeSet<Need> {
    let is_left = |need: &Need| {
        let Need::Object(name) = need else { return true };
        let Some(observed) = guessed.remove(name) else { return true };
        facts.set_object(name.clone(), observed);
        false
    };
    needs.into_iter().filter(is_left).collect()
}
