//! The labels and annotations that confrev reads and writes: the contract with users, in one place.

/// The prefix as a literal, so that the keys below stay constants.
macro_rules! prefix {
    () => {
        "confrev.dev/"
    };
}

/// What every label and annotation of confrev begins with.
pub const PREFIX: &str = prefix!();

/// Label on namespaces, workloads and sources: opt in, opt out.
pub const ENABLED: &str = concat!(prefix!(), "enabled");
/// Annotation on workloads, written by confrev beside a label that the namespace gave. Without it a label
/// that another webhook wrote could not be told from one of confrev's, once the namespace no longer gives it.
pub const ENABLED_BY: &str = concat!(prefix!(), "enabled-by");
/// Annotation on workloads: `"true"` snapshots referenced Secrets too.
pub const SECRETS: &str = concat!(prefix!(), "secrets");
/// Annotation on namespaces: whether Secrets are snapshotted or live, where they do not say so themselves.
pub const SECRETS_MODE: &str = concat!(prefix!(), "secrets-mode");
/// Annotation on workloads: references that stay as written.
pub const EXCLUDE: &str = concat!(prefix!(), "exclude");
/// Annotation on workloads: `"false"` resolves at apply only.
pub const TRACK: &str = concat!(prefix!(), "track");
/// Annotation on workloads: what a missing object or key leads to.
pub const MISSING: &str = concat!(prefix!(), "missing");
/// Annotation on workloads: the least time between two automatic rolls.
pub const MIN_INTERVAL: &str = concat!(prefix!(), "min-interval");
/// Annotation on workloads: a new value means "take the newest content now".
pub const ROLL: &str = concat!(prefix!(), "roll");
/// Annotation on workloads: ConfigMaps to mount in every container.
pub const MOUNT: &str = concat!(prefix!(), "mount");
/// Annotation on workloads, written by confrev: source to the digest last taken into account.
pub const SEEN: &str = concat!(prefix!(), "seen");
/// Annotation on workloads, written by confrev: source to the digest that the workload took into account while it was
/// unhealthy. A failure with that content says nothing of the content.
pub const UNHEALTHY: &str = concat!(prefix!(), "unhealthy");
/// Annotation on pod templates, written by confrev: source to snapshot.
pub const SOURCES: &str = concat!(prefix!(), "sources");
/// Annotation on pod templates, written by confrev: each live source to the digest of what the template reads of it.
pub const LIVE: &str = concat!(prefix!(), "live");
/// Label on pod templates, written by confrev: ten hex digits over [`SOURCES`].
pub const REVISION: &str = concat!(prefix!(), "revision");
/// Label on snapshots: the source's name, cut and hashed where it is longer than a label may be.
pub const SOURCE: &str = concat!(prefix!(), "source");
/// Annotation on snapshots: the source's whole name.
pub const SOURCE_NAME: &str = concat!(prefix!(), "source-name");
/// Annotation on snapshots: the digest of the content, with its scheme.
pub const DIGEST: &str = concat!(prefix!(), "digest");
/// Annotation on the copy of an object that is bound itself: the labels and annotations that it is made again with.
pub const METADATA: &str = concat!(prefix!(), "metadata");
/// Annotation on sources: how many of the newest snapshots live on, used or not.
pub const KEEP: &str = concat!(prefix!(), "keep");
/// Annotation on sources: how many workloads a change may roll at once.
pub const MAX_IN_FLIGHT: &str = concat!(prefix!(), "max-in-flight");

/// Annotation in which `kubectl apply` keeps what it last applied. Source: Kubernetes, "Declarative Management of Kubernetes
/// Objects Using Configuration Files".
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The label that tools use to say who manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`] on snapshots.
pub const MANAGER: &str = "confrev";

/// Every key that confrev owns on a workload's own metadata (not its template's).
pub const WORKLOAD_ANNOTATIONS: [&str; 8] =
    [SECRETS, EXCLUDE, TRACK, MISSING, MIN_INTERVAL, ROLL, MOUNT, SEEN];

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
