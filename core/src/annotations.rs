//! The labels and annotations that confrev reads and writes: the contract with users, in one place.

/// The prefix as a literal, so that the keys below stay constants.
macro_rules! prefix {
    () => {
        "confrev.dev/"
    };
}

/// The prefix of every label and annotation of confrev.
pub const PREFIX: &str = prefix!();

/// Label on namespaces, workloads and sources: opt in, opt out.
pub const ENABLED: &str = concat!(prefix!(), "enabled");
/// Annotation on workloads, written by confrev beside a label that came from the namespace. Without it, that label could not be
/// distinguished from the label of another webhook, once the namespace no longer gives it.
pub const ENABLED_BY: &str = concat!(prefix!(), "enabled-by");
/// Annotation on workloads: `"true"` snapshots referenced Secrets too.
pub const SECRETS: &str = concat!(prefix!(), "secrets");
/// Annotation on namespaces: the mode of Secrets that set no mode themselves.
pub const SECRETS_MODE: &str = concat!(prefix!(), "secrets-mode");
/// Annotation on workloads: references that stay as written.
pub const EXCLUDE: &str = concat!(prefix!(), "exclude");
/// Annotation on workloads: `"false"` resolves at apply only.
pub const TRACK: &str = concat!(prefix!(), "track");
/// Annotation on workloads: how admission reacts to a missing object or key.
pub const MISSING: &str = concat!(prefix!(), "missing");
/// Annotation on workloads: the minimum time between two automatic rolls.
pub const MIN_INTERVAL: &str = concat!(prefix!(), "min-interval");
/// Annotation on workloads: a new value means "roll to the newest content now".
pub const ROLL: &str = concat!(prefix!(), "roll");
/// Label on namespaces: sources of the same name and content in all namespaces of a group are one change.
pub const GROUP: &str = concat!(prefix!(), "group");
/// Annotation on workloads and namespaces: lower values move first.
pub const ORDER: &str = concat!(prefix!(), "order");
/// Annotation on workloads: how long a rollout may take, for kinds whose controller has no deadline.
pub const PROGRESS_DEADLINE: &str = concat!(prefix!(), "progress-deadline");
/// Annotation on workloads: ConfigMaps to mount in every container.
pub const MOUNT: &str = concat!(prefix!(), "mount");
/// Annotation on workloads: the snapshots to which the references to their sources resolve, whatever names a request has.
pub const HOLD: &str = concat!(prefix!(), "hold");
/// Annotation on workloads: `"hold"` turns every undo into a hold.
pub const ON_UNDO: &str = concat!(prefix!(), "on-undo");
/// Annotation on workloads, written by confrev: for each source, the digest last taken into account.
pub const SEEN: &str = concat!(prefix!(), "seen");
/// Annotation on workloads, written by confrev: for each source, the digest that the workload took while it was unhealthy.
/// A failure with that content does not show that the content is bad.
pub const UNHEALTHY: &str = concat!(prefix!(), "unhealthy");
/// Annotation on workloads, written by confrev: for each source of which an undo or a pin keeps another snapshot, and of which
/// the workload reads some keys only, the digest of those keys in the content that it has seen.
pub const PINNED: &str = concat!(prefix!(), "pinned");
/// Annotation on workloads, written by confrev: for each source with waves or reverts, when the controller moved the workload to the
/// content that it has seen.
pub const MOVED: &str = concat!(prefix!(), "moved");
/// Annotation on workloads, written by confrev: for each source that limits how far a change spreads, the snapshot before the
/// workload moved to the present one. On a refused snapshot: the snapshot for workloads that have no previous one.
pub const PREVIOUS: &str = concat!(prefix!(), "previous");
/// Annotation on pod templates, written by confrev: the snapshot of each source.
pub const SOURCES: &str = concat!(prefix!(), "sources");
/// Annotation on pod templates, written by confrev: for each source in mode `live`, the digest of the keys that the template reads.
pub const LIVE: &str = concat!(prefix!(), "live");
/// Label on pod templates, written by confrev: ten hex digits over [`SOURCES`].
pub const REVISION: &str = concat!(prefix!(), "revision");
/// Label on snapshots: the source's name, or its start and a hash if it is too long for a label.
pub const SOURCE: &str = concat!(prefix!(), "source");
/// Annotation on snapshots: the source's full name.
pub const SOURCE_NAME: &str = concat!(prefix!(), "source-name");
/// Annotation on snapshots: the digest of the content, with its scheme.
pub const DIGEST: &str = concat!(prefix!(), "digest");
/// Annotation on snapshots: when the source got this content.
pub const CHANGED_AT: &str = concat!(prefix!(), "changed-at");
/// Annotation on snapshots: the field manager that wrote this content, its operation, and the user, if known.
pub const CHANGED_BY: &str = concat!(prefix!(), "changed-by");
/// Annotation on snapshots, written by confrev: why no workload resolves to this content.
pub const REFUSED: &str = concat!(prefix!(), "refused");
/// Annotation on snapshots, written by confrev: when the content was refused.
pub const REFUSED_AT: &str = concat!(prefix!(), "refused-at");
/// Annotation on sources: how many of the newest snapshots are kept, used or not.
pub const KEEP: &str = concat!(prefix!(), "keep");
/// Annotation on sources: how many workloads a change may roll at once.
pub const MAX_IN_FLIGHT: &str = concat!(prefix!(), "max-in-flight");
/// Annotation on sources: how many workloads have moved at the end of each wave of a change.
pub const WAVES: &str = concat!(prefix!(), "waves");
/// Annotation on sources: how long the moved workloads must stay healthy before the next wave.
pub const BAKE: &str = concat!(prefix!(), "bake");
/// Annotation on sources: the Argo AnalysisTemplate from which a run is created at the end of each wave.
pub const ANALYSIS: &str = concat!(prefix!(), "analysis");
/// Annotation on workloads, sources and namespaces: the times in which automatic rolls happen.
pub const WINDOW: &str = concat!(prefix!(), "window");
/// Annotation on sources: the set to which the source belongs, and the version that the source has.
pub const SET: &str = concat!(prefix!(), "set");

/// Annotation on sources: the JSON Schema that the content must match, as `[NAMESPACE/]CONFIGMAP/KEY`.
pub const SCHEMA: &str = concat!(prefix!(), "schema");
/// Annotation on sources: the keys that the schema applies to.
pub const SCHEMA_KEYS: &str = concat!(prefix!(), "schema-keys");
/// Annotation on sources: the other namespaces whose sources may name a schema in this ConfigMap.
pub const SCHEMA_FOR: &str = concat!(prefix!(), "schema-for");

/// Annotation on sources: what happens after a workload has failed with a change.
pub const ON_FAILURE: &str = concat!(prefix!(), "on-failure");
/// Annotation on sources, written by `kubectl confrev waves retry`: a refused snapshot, and when it was refused. Or the present
/// snapshot, and when another analysis of it was asked for.
pub const RETRIED: &str = concat!(prefix!(), "retried");
/// Annotation on sources, written by `kubectl confrev waves promote`: a snapshot, the wave of its content that may begin, and the time.
pub const PROMOTED: &str = concat!(prefix!(), "promoted");
/// Annotation on sources, written by `kubectl confrev waves abort`: the snapshot to whose content no further workload moves.
pub const ABORTED: &str = concat!(prefix!(), "aborted");
/// Annotation on sources, written by `kubectl confrev revoke`: the snapshots that are not kept, separated by commas.
pub const REVOKED: &str = concat!(prefix!(), "revoked");

/// Annotation in which `kubectl apply` records what it last applied. Source: Kubernetes, "Declarative Management of Kubernetes
/// Objects Using Configuration Files".
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The label that names the tool that manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`] on snapshots.
pub const MANAGER: &str = "confrev";

/// The annotations that users write on workloads.
pub const WORKLOAD_SETTINGS: [&str; 12] = [
    SECRETS,
    EXCLUDE,
    TRACK,
    MISSING,
    MIN_INTERVAL,
    ORDER,
    PROGRESS_DEADLINE,
    WINDOW,
    ROLL,
    MOUNT,
    HOLD,
    ON_UNDO,
];
/// The annotations that confrev writes on workloads, beside those of their templates.
pub const WORKLOAD_RECORDS: [&str; 6] = [SEEN, UNHEALTHY, PINNED, MOVED, PREVIOUS, ENABLED_BY];
/// The annotations that users write on sources.
pub const SOURCE_SETTINGS: [&str; 11] =
    [KEEP, MAX_IN_FLIGHT, WAVES, BAKE, ANALYSIS, ON_FAILURE, WINDOW, SET, SCHEMA, SCHEMA_KEYS, SCHEMA_FOR];
/// The annotations that commands write on sources.
pub const SOURCE_RECORDS: [&str; 4] = [PROMOTED, ABORTED, RETRIED, REVOKED];

/// Escapes a key for use as one token of a JSON pointer (RFC 6901, section 3).
pub fn pointer_token(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_becomes_one_pointer_token() {
        assert_eq!(pointer_token(SEEN), "confrev.dev~1seen");
        assert_eq!(pointer_token("a~/b"), "a~0~1b");
    }
}
