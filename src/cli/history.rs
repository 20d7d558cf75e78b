//! `kubectl confrev history`: the snapshots of a source, and the lookup of one by user input.

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{
    failure::Failure,
    inventory::Inventory,
    objects::{
        self, Scope, Snapshot, SourceKey, annotation, label, revision_template, source_name, sources_of, text,
    },
    output::{self, OutputFlag, Row},
    target::{Flags, Target},
};
use crate::{
    annotations,
    resolve::Observed,
    snapshot::{Authorship, ObjectName, SourceKind, source_label},
};

/// Options of `history`.
#[derive(Debug, Args)]
pub(super) struct HistoryOptions {
    /// The source: NAME or configmap/NAME, secret/NAME.
    source: String,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    flags: Flags,
}

/// One snapshot.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    kind: &'static str,
    pub(super) snapshot: String,
    /// Whether it holds the source's current content.
    pub(super) present: bool,
    pub(super) created: Timestamp,
    pub(super) digest: String,
    /// A short form for people: the scheme and the first digits.
    #[serde(skip)]
    pub(super) short: String,
    /// Bytes of keys and values; `None` for a Secret, whose size is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<usize>,
    /// When the source got this content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) changed_at: Option<String>,
    /// Who wrote it: the field manager, its operation, and the user, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) changed_by: Option<String>,
    /// The workload that failed with it, and how. If the source has `on-failure: revert`, no workload resolves to the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    /// Whether no workload resolves to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) refused: bool,
    /// The workloads and revisions that refer to it.
    pub(super) used_by: Vec<String>,
}

impl Row for Line {
    const COLUMNS: (&'static [&'static str], usize) =
        (&["SNAPSHOT", "AGE", "DIGEST", "SIZE", "", "CHANGED AT", "CHANGED BY", "USED BY"], 8);

    fn cells(&self) -> Vec<String> {
        vec![
            self.snapshot.clone(),
            output::age(self.created, Timestamp::now()),
            self.short.clone(),
            self.size.map(|size| format!("{size} B")).unwrap_or_default(),
            self.states().join(", "),
            self.changed_at.clone().unwrap_or_default(),
            self.changed_by.clone().unwrap_or_default(),
            output::few(&self.used_by),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.kind.to_lowercase(), self.snapshot)
    }
}

impl Line {
    /// Whether it is the present content, and whether a workload failed with it.
    fn states(&self) -> Vec<&'static str> {
        let failed = self.failed.is_some().then_some(if self.refused { "refused" } else { "failed" });
        self.present.then_some("present").into_iter().chain(failed).collect()
    }
}

/// A source with its snapshots.
pub(super) struct History {
    /// The source's namespace.
    pub(super) namespace: String,
    /// The source's name.
    pub(super) source: ObjectName,
    /// The current source; `None` if it does not exist.
    pub(super) present: Option<Observed>,
    /// Its snapshots with their contents: the current one first, then the newest.
    pub(super) snapshots: Vec<(String, Snapshot)>,
}

impl History {
    /// Reads a source and its snapshots.
    pub(super) async fn read(target: &Target, source: ObjectName) -> Result<Self, Failure> {
        let mut present = objects::source(target, &(target.namespace.clone(), source.clone())).await?;
        let collection = format!("/api/v1/namespaces/{}/{}", target.namespace, source.kind.plural());
        let selector = format!(
            "{}={},{}={}",
            annotations::MANAGED_BY,
            annotations::MANAGER,
            annotations::SOURCE,
            source_label(&source.name)
        );
        let found = target.list(&collection, source.kind.as_str(), &selector).await?;
        let mut snapshots: Vec<_> = found
            .into_iter()
            .filter_map(|value| Snapshot::read(source.kind, value))
            // The label of a long name is truncated and hashed, so the annotation decides.
            .filter(|(_, snapshot)| snapshot.source == source)
            .map(|((_, name), snapshot)| (name.name.to_string(), snapshot))
            .collect();
        // Digests of Secrets use a key of the installation, so contents are compared instead.
        for (_, snapshot) in snapshots.iter().filter(|_| source.kind == SourceKind::Secret) {
            if let (Some(present), Some(snapshot)) = (&mut present, snapshot.content()) {
                present.learn(&snapshot);
            }
        }
        // Creation times have whole seconds, and an old content may be current again.
        let holds = |present: &Observed, snapshot: &Snapshot| {
            snapshot.digest.is_some_and(|digest| present.digests().contains(&digest))
        };
        let is_present =
            |snapshot: &Snapshot| present.as_ref().is_some_and(|present| holds(present, snapshot));
        snapshots.sort_by(|(a, x), (b, y)| (is_present(y), y.created, b).cmp(&(is_present(x), x.created, a)));
        if present.is_none() && snapshots.is_empty() {
            target.require_namespace().await?;
            return Err(Failure::NotFound(format!(
                "{source} does not exist in namespace {:?}, nor does a snapshot of it",
                target.namespace
            )));
        }
        Ok(Self { namespace: target.namespace.clone(), source, present, snapshots })
    }

    /// Whether a snapshot holds the source's current content.
    pub(super) fn is_present(&self, snapshot: &Snapshot) -> bool {
        let present = self.present.as_ref().map(Observed::digests);
        present.is_some_and(|present| snapshot.digest.is_some_and(|digest| present.contains(&digest)))
    }

    /// Finds a snapshot by its name, the digits at its end, a digest, or `~N`: the Nth in its history, from 0.
    pub(super) fn find(&self, text: &str) -> Result<&(String, Snapshot), Failure> {
        if let Some(back) = text.strip_prefix('~') {
            let count = back.parse::<usize>().ok();
            return count.and_then(|count| self.snapshots.get(count)).ok_or_else(|| {
                Failure::NotFound(format!(
                    "{} has {} snapshots, and no {text:?}",
                    self.source,
                    self.snapshots.len()
                ))
            });
        }
        let digits = text.rsplit(':').next().unwrap_or_default();
        let fits = |(name, snapshot): &&(String, Snapshot)| {
            let digest = snapshot.digest.map(|digest| digest.hex(64)).unwrap_or_default();
            name == text || (digits.len() >= 4 && digest.starts_with(digits))
        };
        let found: Vec<_> = self.snapshots.iter().filter(fits).collect();
        match found[..] {
            [one] => Ok(one),
            [] => {
                // A shell may replace an unquoted ~0 by a folder.
                let quote = if text.starts_with('/') { "; quote ~N, as in '~1'" } else { "" };
                let source = &self.source;
                Err(Failure::NotFound(format!("{source} has no snapshot {text:?}: see its history{quote}")))
            }
            _ => Err(Failure::Usage(format!("{text:?} matches {} snapshots: give more digits", found.len()))),
        }
    }
}

/// Runs the command.
pub(super) async fn run(options: &HistoryOptions) -> Result<(), Failure> {
    let source = source_name(&options.source)?;
    let target = Target::find(&options.flags).await?;
    let history = History::read(&target, source).await?;
    let inventory = Inventory::read_partly(&target, &Scope::Namespace(target.namespace.clone())).await?;
    inventory.unread.warn();
    let lines = lines(&history, &inventory);
    output::list(options.output.output, &lines, &format!("{} has no snapshots", history.source))
}

/// The snapshots of a source, with the users of each.
pub(super) fn lines(history: &History, inventory: &Inventory) -> Vec<Line> {
    let snapshots = history.snapshots.iter();
    snapshots.map(|(name, snapshot)| line(history, inventory, name, snapshot)).collect()
}

fn line(history: &History, inventory: &Inventory, name: &str, snapshot: &Snapshot) -> Line {
    let present = history.is_present(snapshot);
    // A snapshot of an older confrev records no change.
    let source = history.present.as_ref().filter(|_| present);
    let change = stated_change(&snapshot.value)
        .or_else(|| Authorship::of(source?.json(), Timestamp::now()))
        .map(|Authorship { at, by }| (at, by));
    let (changed_at, changed_by) = change.unzip();
    let key = (history.namespace.clone(), ObjectName::new(history.source.kind, name));
    let digest = snapshot.digest.filter(|digest| digest.may_be_shown(history.source.kind));
    let failed = snapshot.verdict().and_then(|verdict| verdict.failed);
    Line {
        kind: history.source.kind.as_str(),
        snapshot: name.to_owned(),
        present,
        created: snapshot.created,
        digest: digest.map(|digest| digest.to_string()).unwrap_or_default(),
        short: digest.map(|digest| digest.short(12)).unwrap_or_default(),
        size: (history.source.kind == SourceKind::ConfigMap).then(|| size(&snapshot.value)),
        changed_at,
        changed_by,
        refused: failed.is_some() && history.present.as_ref().is_none_or(|of| of.spread_policy().reverts),
        failed: failed.map(|failed| failed.reason.into()),
        used_by: used_by(inventory, &key),
    }
}

/// The users of this object in its namespace: workloads by their current template, revisions by theirs.
pub(super) fn used_by(inventory: &Inventory, (namespace, object): &SourceKey) -> Vec<String> {
    let names_it = |user: &Value, template: Option<&Value>| {
        text(user, "/metadata/namespace") == namespace
            && sources_of(template).source_of(object.kind, &object.name).is_some()
    };
    let workloads = inventory.workloads.iter().filter(|workload| {
        names_it(&workload.value, workload.value.pointer(&workload.kind.template_pointer()))
    });
    let revisions = inventory.revisions.iter().filter(|revision| {
        label(revision, annotations::REVISION).is_some() && names_it(revision, revision_template(revision))
    });
    let revisions =
        revisions.map(|revision| format!("{}/{}", text(revision, "/kind"), text(revision, "/metadata/name")));
    workloads.map(super::objects::OptedIn::reference).chain(revisions).collect()
}

/// The number of bytes of keys and values, as encoded in the object.
fn size(object: &Value) -> usize {
    let entries = ["data", "binaryData"].into_iter().filter_map(|field| object[field].as_object());
    entries.flatten().map(|(key, value)| key.len() + value.as_str().unwrap_or_default().len()).sum()
}

/// The change that a snapshot records.
pub(super) fn stated_change(snapshot: &Value) -> Option<Authorship> {
    let stated = |key| annotation(snapshot, key).map(str::to_owned);
    Some(Authorship { at: stated(annotations::CHANGED_AT)?, by: stated(annotations::CHANGED_BY)? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The digest of a Secret without a key, which an administrator may write, would let any reader test guesses.
    #[test]
    fn history_of_secret_has_no_size() {
        let plain = format!("sha256:{}", "0a".repeat(32));
        let keyed = format!("hmac-sha256:12345678:{}", "0b".repeat(32));
        for (kind, digest, is_shown) in [
            (SourceKind::ConfigMap, &plain, [true, true]),
            (SourceKind::Secret, &plain, [false, false]),
            (SourceKind::Secret, &keyed, [false, true]),
        ] {
            let source = ObjectName::new(kind, "keys");
            let snapshot = Snapshot {
                source: source.clone(),
                digest: digest.parse().ok(),
                created: Timestamp::UNIX_EPOCH,
                value: json!({"data": {"password": "aHVudGVyMg=="}}).into(),
            };
            let snapshots = vec![("keys-1".to_owned(), snapshot)];
            let history = History { namespace: "shop".to_owned(), source, present: None, snapshots };
            let lines = lines(&history, &Inventory::default());
            let json = serde_json::to_value(&lines).unwrap().to_string() + &lines[0].cells().join(" ");
            let found = [json.contains("size") || json.contains(" B"), json.contains(&digest[..24])];
            assert_eq!(found, is_shown, "{json}");
            assert!(!json.contains("password"), "{json}");
        }
    }
}
