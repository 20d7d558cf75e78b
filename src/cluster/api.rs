//! The calls that admission and the controller make, as a trait.

use std::{future::Future, sync::Arc, time::Duration};

use serde_json::Value;

use super::{
    error::ApiError,
    event::Event,
    meter::Meter,
    objects::{Candidate, Created, LiveWorkload, Usage},
};
use crate::{
    resolve::{
        Analysis, Ensure, NamespaceFacts, NamespaceOptIn, Observed, Past, Record, RevisionsOf, TargetRef,
    },
    snapshot::{Identity, ObjectName},
    world::{Owner, Precondition, Version, WorkloadKey},
};

/// The time limit of one call, answer included. During an admission the limit of the whole decision ends a call sooner.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);

/// The calls that admission and the controller make. The tests' model has an implementation in memory.
pub trait Api: Clone + Send + Sync + 'static {
    /// The same calls, which begin when `meter` admits them, and whose answers count against it until they are parsed. A call
    /// or an answer beyond the meter's limit is an error. A read or an addition of an owner that another one answers is not a call.
    /// Calls in memory are not counted.
    #[must_use]
    fn metered(&self, _meter: Arc<dyn Meter>) -> Self {
        self.clone()
    }

    /// Reads a ConfigMap or Secret live, never from a cache. `None`: it does not exist.
    fn read(
        &self,
        namespace: &str,
        object: &ObjectName,
    ) -> impl Future<Output = Result<Option<Observed>, ApiError>> + Send;

    /// The settings of the namespace for its workloads; read live.
    fn namespace(&self, namespace: &str) -> impl Future<Output = Result<NamespaceFacts, ApiError>> + Send;

    /// Whether the object that holds a Rollout's template is opted in by its own label. `None`: the object does not
    /// exist, or its kind is not configured or cannot hold such a template.
    fn is_enabled(
        &self,
        namespace: &str,
        target: &TargetRef,
    ) -> impl Future<Output = Result<Option<bool>, ApiError>> + Send;

    /// The live revisions of a workload with these labels, to compare their templates with a requested one.
    fn revisions(
        &self,
        namespace: &str,
        of: &RevisionsOf,
    ) -> impl Future<Output = Result<Vec<Past>, ApiError>> + Send;

    /// Creates a snapshot with the content of `of`.
    fn create_snapshot(
        &self,
        namespace: &str,
        name: &ObjectName,
        identity: &Identity,
        of: &[u8],
        owners: &[Owner],
    ) -> impl Future<Output = Result<Created, ApiError>> + Send;

    /// Sets a snapshot's owners if the snapshot has this version. Returns the updated object.
    fn set_owners(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
        owners: &[Owner],
    ) -> impl Future<Output = Result<Observed, ApiError>> + Send;

    /// Sets who changed the content of a snapshot, if the snapshot has this version.
    fn set_changed_by(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
        by: &str,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Writes an annotation of a snapshot or source, or removes it, if the object has this version. Returns its new resourceVersion.
    fn set_annotation(
        &self,
        namespace: &str,
        object: &ObjectName,
        version: &Version,
        annotation: (&'static str, Option<String>),
    ) -> impl Future<Output = Result<String, ApiError>> + Send;

    /// Adds one owner to a snapshot, whatever its version: merged by uid, so repeating it changes nothing.
    fn add_owner(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        owner: &Owner,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Deletes a snapshot if it has this version.
    fn delete_snapshot(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Writes this value of the workload's `roll` annotation, on a condition. Returns the record of the workload as admission changed
    /// it.
    fn poke(
        &self,
        workload: &WorkloadKey,
        condition: &Precondition,
        roll: &str,
    ) -> impl Future<Output = Result<Record, ApiError>> + Send;

    /// How each owner uses a ConfigMap or Secret, in the order of `owners`; read live. The ownerReferences are not
    /// trusted: each uid is compared with the object's.
    fn usages(
        &self,
        namespace: &str,
        owners: &[Owner],
        object: &ObjectName,
    ) -> impl Future<Output = Result<Vec<Usage>, ApiError>> + Send;

    /// The revisions (whatever their labels) and opted-in workloads of the namespace whose templates refer to this
    /// object, or may refer to it because they cannot be read. Read live, whatever the watches report.
    fn users_of(
        &self,
        namespace: &str,
        object: &ObjectName,
    ) -> impl Future<Output = Result<Vec<Owner>, ApiError>> + Send;

    /// Writes an Event. It is not an error if the same Event already exists.
    fn create_event(&self, event: &Event) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// The workloads of a namespace without an `enabled` label that it opts in now: of a namespace that opts in with the next deployment,
    /// those that confrev has not decided on. A kind that is not installed has none. A workload that
    /// cannot be read is left out.
    fn unlabelled(
        &self,
        namespace: &str,
        opt_in: NamespaceOptIn,
    ) -> impl Future<Output = Result<Vec<(WorkloadKey, Candidate)>, ApiError>> + Send;

    /// Reads a workload live.
    fn read_workload(
        &self,
        workload: &WorkloadKey,
    ) -> impl Future<Output = Result<LiveWorkload, ApiError>> + Send;

    /// Reads the template of an analysis live. `None`: it does not exist, or Argo Rollouts is not installed.
    fn analysis_template(
        &self,
        namespace: &str,
        analysis: &Analysis,
    ) -> impl Future<Output = Result<Option<Value>, ApiError>> + Send;

    /// Reads an AnalysisRun live. `None`: it does not exist, or Argo Rollouts is not installed.
    fn analysis_run(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<Value>, ApiError>> + Send;

    /// The AnalysisRuns with this value of the label `source`, read live. It fails if Argo Rollouts is not installed.
    fn analysis_runs(
        &self,
        namespace: &str,
        source: &str,
    ) -> impl Future<Output = Result<Vec<Value>, ApiError>> + Send;

    /// Creates an AnalysisRun.
    fn create_analysis_run(
        &self,
        namespace: &str,
        run: &Value,
    ) -> impl Future<Output = Result<Created, ApiError>> + Send;

    /// Terminates an AnalysisRun if it has this uid.
    fn terminate_analysis_run(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Deletes an AnalysisRun if it has this uid.
    fn delete_analysis_run(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;
}

/// Creates the snapshot that a decision asks for, without owners: the controller binds it. If the snapshot already
/// exists, the caller has to compare its content.
pub async fn ensure_snapshot<A: Api>(
    api: &A,
    namespace: &str,
    ensure: &Ensure,
    of: &[u8],
) -> Result<Created, ApiError> {
    let (name, identity) = (ensure.snapshot(), ensure.identity());
    api.create_snapshot(namespace, &name, &identity, of, &[]).await
}
