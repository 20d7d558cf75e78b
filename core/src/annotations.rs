//! The labels and annotations that confrev reads and writes: the contract with users, as one table.
//!
//! A new key is one row of [`KEYS`]. The constants below, the lists and conditions of the chart (`_keys.tpl`), and the tables in
//! `docs/reference.md` come from it; `tests/repository/keys.rs` writes the last two.

/// The prefix as a literal, so that the keys below stay constants.
macro_rules! prefix {
    () => {
        "confrev.dev/"
    };
}

/// The prefix of every label and annotation of confrev.
pub const PREFIX: &str = prefix!();

/// The most bytes in the value of a setting that is followed: twenty windows fit, and confrev remembers some values as they are
/// written.
pub const LONGEST: usize = 1024;

/// What is remembered of a value. The rest of a longer one is cut, behind the first byte too many, so it remains too long.
pub fn bounded(value: &str) -> &str {
    &value[..value.ceil_char_boundary(LONGEST + 1)]
}

/// A key of confrev without its prefix.
pub fn short(key: &str) -> &str {
    key.strip_prefix(PREFIX).unwrap_or(key)
}

/// The most bytes in an annotation, such as a plan. Source: Kubernetes' limit of all annotations of an object,
/// `TotalAnnotationSizeLimitB`. Nothing of a plan is remembered but its time.
pub const MAX_ANNOTATION: usize = 256 << 10;

/// The most bytes in the annotation `revoked`: hundreds of names.
pub const MAX_REVOKED: usize = 16 << 10;

/// How an object has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As a label, so that webhooks and watches can select by it.
    Label,
    /// As an annotation.
    Annotation,
}

/// Who writes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// People and their tools.
    User,
    /// The admission or the controller.
    Confrev,
    /// A command of `kubectl confrev`.
    Command,
}

/// The objects that have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Namespaces.
    Namespace,
    /// Objects with a pod template.
    Workload,
    /// ConfigMaps and Secrets that users write.
    Source,
    /// The pod template of a workload.
    Template,
    /// Snapshots of sources.
    Snapshot,
    /// confrev's own Lease.
    Lease,
}

/// A row of the table: a key on some kinds of objects. A key whose meaning differs between objects has several rows.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The whole key, with its prefix.
    pub name: &'static str,
    /// How an object has it.
    pub form: Form,
    /// Who writes it.
    pub by: By,
    /// Which objects have it.
    pub on: &'static [On],
    /// The form of its value, for the reference.
    pub value: &'static str,
    /// What it means, for the reference.
    pub meaning: &'static str,
    /// A regular expression in CEL's notation (RE2). Values that match are valid on a workload, whatever else the workload has.
    pub plain: Option<&'static str>,
}

impl Key {
    /// Whether objects of this kind have the key as an annotation, written by this writer.
    fn is(&self, by: By, on: On) -> bool {
        self.form == Form::Annotation && self.by == by && self.on.contains(&on)
    }
}

/// Defines a constant for each row, and the table. A row that begins with `also` adds other objects to a key.
macro_rules! keys {
    (@constant also $name:ident $key:literal $meaning:literal) => {};
    (@constant $name:ident $key:literal $meaning:literal) => {
        #[doc = concat!("`confrev.dev/", $key, "`: ", $meaning, ".")]
        pub const $name: &str = concat!(prefix!(), $key);
    };
    ($($name:ident $($more:ident)? = $key:literal, $form:ident, by $by:ident, on $($on:ident)+,
       $value:literal, $meaning:literal $(, plain $plain:literal)?;)+) => {
        $(keys!(@constant $name $($more)? $key $meaning);)+
        /// Every label and annotation of confrev, in the order of the reference.
        pub const KEYS: &[Key] = &[$(Key {
            name: concat!(prefix!(), $key),
            form: Form::$form,
            by: By::$by,
            on: &[$(On::$on),+],
            value: $value,
            meaning: $meaning,
            plain: [$(Some($plain),)? None][0],
        }),+];
    };
}

keys! {
    ENABLED = "enabled", Label, by User, on Workload,
        "`\"true\"`, `\"false\"`",
        "opts in or out, whatever its namespace says";
    also ENABLED = "enabled", Label, by User, on Namespace,
        "`\"true\"`, `\"next\"`, `\"false\"`",
        "opts workloads without a label in or out; `next`: [each with its next deployment](migrating.md#a-namespace-without-a-restart)";
    also ENABLED = "enabled", Label, by User, on Source,
        "`\"true\"`, `\"false\"`, `\"bind\"`, `\"live\"`",
        "[the mode of the source](concepts.md#modes-of-a-source): snapshot every change; never snapshot; bind the object itself; leave references as written and roll on a change";
    SECRETS = "secrets", Annotation, by User, on Workload Namespace,
        "`\"true\"`",
        "snapshot referenced Secrets too, if the installation allows it. On a Namespace: if it opts in", plain "^(true|false)$";
    SECRETS_MODE = "secrets-mode", Annotation, by User, on Namespace,
        "`snapshot`, `live`; `snapshot`",
        "the mode of Secrets without the label `confrev.dev/enabled`, for workloads to which `confrev.dev/secrets` applies";
    GROUP = "group", Label, by User, on Namespace,
        "a name",
        "sources of the same name and content in all namespaces of a [group](concepts.md#groups-of-namespaces) are one change";
    GROUP_REVERT = "group-revert", Label, by User, on Namespace,
        "`\"true\"`, `\"false\"`; `\"false\"`",
        "`\"true\"`: a failure in another namespace of the [group](concepts.md#groups-of-namespaces) refuses the content in this one too, if its source has `on-failure: revert`";
    EXCLUDE = "exclude", Annotation, by User, on Workload Namespace,
        "`name, secret/name`, with `*` and `?`; `label=value`, `label=*`",
        "leave references to these sources as written, or to sources with these labels. What the [namespace](concepts.md#defaults) excludes is excluded, too";
    TRACK = "track", Annotation, by User, on Workload,
        "`\"true\"`, `\"false\"`",
        "`\"false\"`: resolve to new content at apply only", plain "^(true|false)$";
    MISSING = "missing", Annotation, by User, on Workload Namespace,
        "`warn`, `deny`, `allow`; `warn`",
        "what to do if a referenced object or key does not exist. Only with `allow`, a change rolls that removes a required key", plain "^(warn|allow)$";
    MIN_INTERVAL = "min-interval", Annotation, by User, on Workload Namespace,
        "duration; `10s`",
        "at most one automatic roll in this time. It also delays the roll of a workload whose namespace opts out", plain "^(0|[0-9]{1,3}(ms|s|m|h))$";
    ROLL = "roll", Annotation, by User, on Workload,
        "any text, or a [plan](#plans)",
        "a new text rolls to the newest content now; a new plan moves what it names";
    MOUNT = "mount", Annotation, by User, on Workload,
        "`name[,name]=PATH`",
        "mounts these ConfigMaps in every container. Without `=PATH`, the folder is `/etc/kubernetes/configmaps`";
    HOLD = "hold", Annotation, by User, on Workload,
        "`snapshot, secret/snapshot`",
        "[holds](concepts.md#holds) the workload at these snapshots until the annotation is removed. A name that is not a snapshot in the namespace is refused";
    ON_UNDO = "on-undo", Annotation, by User, on Workload Namespace,
        "`hold`, `none`; `none`",
        "`hold`: every undo or pin becomes a hold: admission writes `confrev.dev/hold`", plain "^(hold|none)$";
    MAX_IN_FLIGHT = "max-in-flight", Annotation, by User, on Source Namespace,
        "count",
        "the most workloads that a change rolls at once, [applies included](concepts.md#few-workloads-at-a-time)";
    WAVES = "waves", Annotation, by User, on Source,
        "counts and percentages, as in `1, 10%, 50%`",
        "how many of the workloads that use the source have moved at the end of each [wave](concepts.md#waves) of a change; the rest follow";
    BAKE = "bake", Annotation, by User, on Source,
        "duration; `0`",
        "how long all moved workloads must stay healthy before the next wave";
    UNHEALTHY_AFTER = "unhealthy-after", Annotation, by User, on Source,
        "duration; `30s`",
        "a workload whose pods become unavailable in its bake time has [failed](waves.md#decide-when-a-workload-has-failed) after this time";
    ANALYSIS = "analysis", Annotation, by User, on Source,
        "the name of an AnalysisTemplate, or `cluster/NAME`",
        "an Argo [AnalysisRun](waves.md#let-metrics-decide) judges the end of each wave; needs `waves`, and the chart value `analysis.enabled`";
    ON_FAILURE = "on-failure", Annotation, by User, on Source,
        "`hold`, `revert`; `hold`",
        "`revert`: if a workload fails with a change, all moved workloads [go back](concepts.md#going-back-after-a-failure)";
    STRATEGY = "strategy", Annotation, by User, on Source Namespace,
        "the name of a strategy of the installation",
        "the [strategy](waves.md#strategies): waves, bake, on-failure and others, for all settings that the source does not have itself. A source's own strategy takes precedence";
    ORDER = "order", Annotation, by User, on Workload Namespace,
        "whole number; `0`",
        "workloads with lower values move first; the workload's own value takes precedence. An invalid value of a Namespace holds the changes";
    PROGRESS_DEADLINE = "progress-deadline", Annotation, by User, on Workload,
        "duration; `10m`",
        "after this time, an unfinished rollout of a StatefulSet, a DaemonSet or a configured kind counts as failed. Deployments and Rollouts have `progressDeadlineSeconds`";
    WINDOW = "window", Annotation, by User, on Workload Source Namespace,
        "windows, as in `Mon-Fri 09:00-17:00 Europe/Berlin`, separated by `;`",
        "automatic rolls happen only while [all these windows](windows.md) are open; writes of users are not affected";
    SET = "set", Annotation, by User, on Source,
        "`NAME/VERSION`",
        "a workload that uses several sources of a [set](windows.md#move-several-sources-together) moves when all of them have the same version";
    SCHEMA = "schema", Annotation, by User, on Source,
        "`[NAMESPACE/]CONFIGMAP/KEY`; of a Secret `SECRET/KEY`",
        "content that does not match this [JSON Schema](schemas.md) is refused";
    SCHEMA_KEYS = "schema-keys", Annotation, by User, on Source,
        "keys, with `*` and `?` as wildcards, separated by commas; those that end in `.json`, `.yaml`, `.yml`, `.toml` or `.properties`",
        "the keys to which the schema applies";
    SCHEMA_FOR = "schema-for", Annotation, by User, on Source,
        "`own` (its namespace), or namespaces with `*` and `?` as wildcards, separated by commas; none",
        "sources of these namespaces may name [a schema in this object](schemas.md#share-a-schema). Without it, no source may";
    REPORT = "report", Annotation, by User, on Source,
        "`\"true\"`, `\"false\"`; `\"false\"`",
        "`\"true\"`: the controller keeps the [state of the change](fleets.md) in `confrev.dev/change`. The default of the installation is `--report-changes`";
    KEEP = "keep", Annotation, by User, on Source,
        "count; `1`",
        "how many of the newest snapshots to keep, used or not";
    SOURCES = "sources", Annotation, by Confrev, on Template,
        "JSON: kind, source, snapshot",
        "the snapshot of each source, as JSON";
    REVISION = "revision", Label, by Confrev, on Template,
        "ten hex digits",
        "ten digits over `sources`; live sources are not part of it. The revisions and pods made from the template have it too";
    LIVE = "live", Annotation, by Confrev, on Template,
        "JSON: kind, source, digest",
        "the digest of each live source, as JSON: of the keys that the template reads, or of all keys if it reads the whole source";
    STATE = "state", Annotation, by Confrev, on Workload,
        "JSON: kind, source, [record](#what-confrev-remembers)",
        "what confrev remembers of each source";
    DECISION = "decision", Annotation, by Command, on Source,
        "`ACTION SNAPSHOT TIME`, of a promotion with the wave, then `by USER`",
        "what a person decided about the content of the snapshot; `kubectl confrev waves` writes it, and removes it when it is part of the `verdict`";
    CHANGE = "change", Annotation, by Confrev, on Source,
        "JSON: `digest`, `phase`, `moved`, `of`, `gate`, `since`",
        "the [state of the change](fleets.md) to the present content in this namespace, with `report`";
    REVOKED = "revoked", Annotation, by Command, on Source,
        "snapshots, separated by commas",
        "the snapshots that the source does not keep; `kubectl confrev revoke` writes it";
    VERDICT = "verdict", Annotation, by Confrev, on Snapshot,
        "JSON: `aborted`, `decided`, `failed`, `promoted`, `retried`",
        "a failure with the content, an abort, the promoted wave, the time of the last decision, and that of the last retry";
    ENABLED_BY = "enabled-by", Annotation, by Confrev, on Workload,
        "`namespace`, `namespace-despite-HEX`",
        "`namespace`: the label `enabled` comes from the namespace";
    CARRIED = "carried", Label, by Confrev, on Workload,
        "`\"true\"`",
        "confrev has not decided on the last write of the template: it did not answer. The policy `confrev-carry` writes it";
    also CARRIED = "carried", Annotation, by Confrev, on Workload,
        "`configmaps/NAME`, `=configmaps/NAME`, separated by commas; `?`",
        "[what happened meanwhile](outages.md#the-mark), by source: the name of its snapshot was kept; or the write chose a snapshot; or the policy failed";
    PARTLY_KNOWN = "partly-known", Annotation, by Confrev, on Lease,
        "names, separated by commas",
        "the namespaces of which the leader [knows only a part](evidence/security.md#shares-of-the-index)";
    SOURCE = "source", Label, by Confrev, on Snapshot,
        "a label value",
        "the source's name; if longer than 63 characters, its start and a hash";
    SOURCE_NAME = "source-name", Annotation, by Confrev, on Snapshot,
        "a name",
        "the source's whole name";
    SOURCE_NAMESPACE = "source-namespace", Annotation, by Confrev, on Snapshot,
        "a name",
        "of a Secret: the source's namespace, which is part of the digest";
    DIGEST = "digest", Annotation, by Confrev, on Snapshot,
        "a digest",
        "the [digest](#digests) of the content";
    BYTES = "bytes", Annotation, by Confrev, on Snapshot,
        "count",
        "the size of the content as JSON, in bytes, rounded up to whole KiB, for `--max-snapshot-bytes`. Without it, 1 MiB";
    CHANGED_AT = "changed-at", Annotation, by Confrev, on Snapshot,
        "time",
        "when the source got this content, according to its `managedFields`. A time more than a minute in the future does not count";
    CHANGED_BY = "changed-by", Annotation, by Confrev, on Snapshot,
        "`MANAGER (OPERATION) by USER`",
        "the field manager and its operation, and with `--record-users` the user: `kubectl-edit (Update) by alice`. A manager is a [claim](client-certificates.md#record-the-users-who-change-sources). Characters other than letters, digits and `-._/:@+` become `_`";
}

/// Annotation in which `kubectl apply` records what it last applied. Source: Kubernetes, "Declarative Management of Kubernetes
/// Objects Using Configuration Files".
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The label that names the tool that manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`] on snapshots.
pub const MANAGER: &str = "confrev";

/// The annotations that users write on such objects.
pub fn settings(on: On) -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter(move |key| key.is(By::User, on)).map(|key| key.name)
}

/// The annotations that confrev and its commands write on such objects.
pub fn records(on: On) -> impl Iterator<Item = &'static str> {
    let is_record = move |key: &&Key| key.is(By::Confrev, on) || key.is(By::Command, on);
    KEYS.iter().filter(is_record).map(|key| key.name)
}

/// Whether users write this annotation on such objects.
pub fn is_setting(key: &str, on: On) -> bool {
    settings(on).any(|setting| setting == key)
}

/// Whether confrev or one of its commands writes this annotation on such objects.
pub fn is_record(key: &str, on: On) -> bool {
    records(on).any(|record| record == key)
}

/// The annotations of workloads whose changes admission decides on: the settings, and the records that an undo or a person may
/// have changed.
pub fn decided() -> impl Iterator<Item = &'static str> {
    settings(On::Workload).chain([STATE, ENABLED_BY, CARRIED])
}

/// Escapes a key for use as one token of a JSON pointer (RFC 6901, section 3).
pub fn pointer_token(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_becomes_one_pointer_token() {
        assert_eq!(pointer_token(STATE), "confrev.dev~1state");
        assert_eq!(pointer_token("a~/b"), "a~0~1b");
    }

    /// Two rows of one key would give one object two meanings of it.
    #[test]
    fn object_has_one_row_of_each_key() {
        for (place, key) in KEYS.iter().enumerate() {
            let same = KEYS[..place].iter().filter(|other| other.name == key.name && other.form == key.form);
            let shared = same.flat_map(|other| other.on).find(|on| key.on.contains(on));
            assert_eq!(shared, None, "{}", key.name);
        }
    }

    #[test]
    fn settings_and_records_follow_writer_and_object() {
        assert!(
            is_setting(WINDOW, On::Workload)
                && is_setting(WINDOW, On::Source)
                && is_setting(WINDOW, On::Namespace)
        );
        assert!(!is_setting(ENABLED, On::Workload), "a label");
        assert!(!is_setting(STATE, On::Workload) && is_record(STATE, On::Workload));
        assert!(is_record(DECISION, On::Source) && !is_record(DECISION, On::Workload));
        assert!(!is_record(REVISION, On::Template), "a label");
    }
}
