//! The words of a reason: what holds a workload, and what a person may do about it.

use std::fmt::Display;

use super::why::Why;
use crate::{
    annotations,
    gate_settings::Closed,
    resolve::{AnalysisRun, EndedWave, Proof, RunState, Spread, Wait, correct_schema},
    snapshot::ObjectName,
};

/// How many workloads a reason names.
const NAMED: usize = 3;

/// What a reason is about, and how it names workloads.
#[derive(Clone, Copy)]
pub struct About<'a, K> {
    /// The source to whose content the workload would move.
    pub source: &'a ObjectName,
    /// How far the change has spread, if others hold the workload.
    pub spread: Option<&'a Spread<K>>,
    /// Whether the workload has failed.
    pub has_failed: bool,
    /// The name of a workload.
    pub name: &'a dyn Fn(&K) -> String,
}

impl<K> About<'_, K> {
    /// For a reason that is not about other workloads.
    pub fn alone(source: &ObjectName) -> About<'_, K> {
        About { source, spread: None, has_failed: false, name: &|_| String::new() }
    }
}

impl<K: Clone> Why<K> {
    /// What holds the workload, on one line.
    pub fn text(&self, about: &About<'_, K>) -> String {
        match self {
            Self::Paused => format!("paused ({}=false)", annotations::TRACK),
            Self::Held { snapshot } => format!("held at {snapshot} (annotation {})", annotations::HOLD),
            Self::Refused { snapshot, reason } => format!("{snapshot} was refused: {reason}"),
            Self::Listed { reason } => {
                format!("{}: correct {}", refused_content(about.source, reason), about.source)
            }
            Self::Schema { failure } => {
                format!("{}: {}", refused_content(about.source, failure), correct_schema(about.source))
            }
            Self::RequiredKey { key } => lacks_key(about.source, key.as_deref()),
            Self::Closed(closed @ Closed::Invalid { .. }) => format!("held by {closed}"),
            Self::Closed(Closed::Until { reason, .. }) => reason.clone(),
            Self::Set(wait) => wait.to_string(),
            Self::SetUnread => "waits for its sources".to_owned(),
            Self::Interval(left) => format!("min-interval, {} s left", left.as_secs().max(1)),
            Self::Others(wait) => others(wait, about),
        }
    }
}

impl<K> Why<K> {
    /// The command that ends the wait, if a person may do so without a change of the content or of a setting.
    /// `workload`: as KIND/NAME.
    pub fn remedy(&self, source: &ObjectName, workload: &str) -> Option<String> {
        match self {
            Self::Paused => Some(format!("kubectl confrev resume {workload}")),
            Self::Held { .. } => Some(format!("kubectl confrev unpin {workload}")),
            Self::Refused { .. }
            | Self::Others(Wait::Refused | Wait::Aborted | Wait::Bad(Proof::Verdict(_))) => {
                Some(retry(source))
            }
            Self::Listed { .. }
            | Self::Schema { .. }
            | Self::RequiredKey { .. }
            | Self::Closed(_)
            | Self::Set(_)
            | Self::SetUnread
            | Self::Interval(_)
            | Self::Others(_) => None,
        }
    }
}

/// A content to which no workload rolls, for this reason.
pub(crate) fn refused_content(source: &ObjectName, reason: &str) -> String {
    format!("the content of {source} is refused: {reason}")
}

/// A content without a key that the template requires. `key`: none for a Secret, of which no message has the name of a key.
pub fn lacks_key(source: &ObjectName, key: Option<&str>) -> String {
    let lacks = key.map_or_else(
        || "lacks a key that the template requires".to_owned(),
        |key| format!("has no key {key:?}"),
    );
    format!(
        "{source} {lacks}: new pods would not start: add the key, or set annotation {} to \"allow\"",
        annotations::MISSING
    )
}

/// The command that ends an abort, a failure and a refusal.
pub fn retry(source: &ObjectName) -> String {
    waves("retry", source)
}

/// A command for the waves of a source. The name alone would be that of a ConfigMap.
pub fn waves(subcommand: &str, source: &ObjectName) -> String {
    format!("kubectl confrev waves {subcommand} {}/{}", source.kind.as_str().to_lowercase(), source.name)
}

/// A workload that a reader of one namespace of a group may not know.
pub const ELSEWHERE: &str = "a workload of another namespace of the group";

/// How a workload proved a content bad.
pub const fn proved_bad(rolled_back: bool) -> &'static str {
    if rolled_back { "was rolled back from" } else { "failed with" }
}

/// Why others hold a workload.
fn others<K: Clone>(wait: &Wait<K>, about: &About<'_, K>) -> String {
    let About { source, spread, has_failed, name } = about;
    let progress = spread.and_then(Spread::progress);
    let wave = progress.map(|progress| format!("wave {} of {}", progress.wave, progress.waves));
    let wave = wave.unwrap_or_default();
    match wait {
        Wait::Full => {
            let rolling = spread.iter().flat_map(|spread| spread.rolling(*has_failed));
            let rolling: Vec<_> = rolling.map(name).collect();
            format!("held by {}", listed(&rolling, NAMED))
        }
        Wait::Bad(Proof::Workload { workload, rolled_back }) => {
            let by = workload.as_ref().map_or_else(|| ELSEWHERE.to_owned(), name);
            format!("held by {by}, which {} the change", proved_bad(*rolled_back))
        }
        Wait::Bad(Proof::Verdict(reason)) => format!("held: {reason}; to continue, run {}", retry(source)),
        Wait::Invalid(why) => format!("held by the settings of {source}: {why}"),
        Wait::Refused => format!("refused, see kubectl confrev history {}", source.name),
        Wait::Aborted => format!("aborted; to continue, run {}", retry(source)),
        Wait::Unproven => {
            let unhealthy = progress.iter().flat_map(|progress| &progress.unhealthy);
            let unhealthy: Vec<_> = unhealthy.map(name).collect();
            format!("{wave}: held by {}, not healthy yet", listed(&unhealthy, NAMED))
        }
        Wait::Bake(until) => format!("{wave}: bakes until {until:.0}"),
        Wait::Wave => format!("{wave}: others come first"),
        Wait::Analysis(run) if spread.and_then(Spread::ended).is_some_and(EndedWave::is_start) => {
            format!("{wave}: held by the analysis, which {}", run.state)
        }
        Wait::Analysis(run) if run.name.is_empty() => {
            format!("{wave}: waits for the analysis of the previous wave")
        }
        Wait::Analysis(AnalysisRun { name, state: state @ (RunState::Unknown | RunState::Running) }) => {
            format!("{wave}: waits for AnalysisRun {name}, which {state}")
        }
        Wait::Analysis(AnalysisRun { name, state }) => {
            format!("{wave}: held by AnalysisRun {name}, which {state}")
        }
    }
}

/// The first of these names, and the number of the others.
pub fn listed<K: Display>(all: &[K], most: usize) -> String {
    let (named, more) = all.split_at(all.len().min(most));
    let named: Vec<_> = named.iter().map(ToString::to_string).collect();
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("{}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::snapshot::SourceKind;

    #[test]
    fn reasons_name_what_to_do() {
        let source = ObjectName::new(SourceKind::Secret, "keys");
        let name = |workload: &&str| (*workload).to_owned();
        let about = About { source: &source, spread: None, has_failed: false, name: &name };
        let retry = Some("kubectl confrev waves retry secret/keys".to_owned());
        let by = |workload| Wait::Bad(Proof::Workload { workload, rolled_back: false });
        for (why, text, remedy) in [
            (
                Why::Paused,
                "paused (confrev.dev/track=false)",
                &Some("kubectl confrev resume deployment/web".to_owned()),
            ),
            (
                Why::Held { snapshot: "keys-1".into() },
                "held at keys-1 (annotation confrev.dev/hold)",
                &Some("kubectl confrev unpin deployment/web".to_owned()),
            ),
            (
                Why::Schema { failure: "it fails".into() },
                "the content of Secret \"keys\" is refused: it fails: correct Secret \"keys\", or its annotation \
                 confrev.dev/schema",
                &None,
            ),
            (
                Why::Listed { reason: "a list has it".into() },
                "the content of Secret \"keys\" is refused: a list has it: correct Secret \"keys\"",
                &None,
            ),
            (
                Why::RequiredKey { key: None },
                "Secret \"keys\" lacks a key that the template requires: new pods would not start: add the key, or set \
                 annotation confrev.dev/missing to \"allow\"",
                &None,
            ),
            (
                Why::RequiredKey { key: Some("k".into()) },
                "Secret \"keys\" has no key \"k\": new pods would not start: add the key, or set annotation \
                 confrev.dev/missing to \"allow\"",
                &None,
            ),
            (Why::Interval(SignedDuration::from_millis(40_200)), "min-interval, 40 s left", &None),
            (Why::Interval(SignedDuration::from_millis(200)), "min-interval, 1 s left", &None),
            (
                Why::Refused { snapshot: "keys-1".into(), reason: "it failed".into() },
                "keys-1 was refused: it failed",
                &retry,
            ),
            (
                Why::Others(Wait::Aborted),
                "aborted; to continue, run kubectl confrev waves retry secret/keys",
                &retry,
            ),
            (Why::Others(by(Some("web"))), "held by web, which failed with the change", &None),
            (
                Why::Others(by(None)),
                "held by a workload of another namespace of the group, which failed with the change",
                &None,
            ),
        ] {
            assert_eq!(
                (why.text(&about).as_str(), &why.remedy(&source, "deployment/web")),
                (text, remedy),
                "{why:?}"
            );
        }
    }

    #[test]
    fn long_lists_name_the_first_ones() {
        assert_eq!(listed(&["a", "b"], 2), "a, b");
        assert_eq!(listed(&["a", "b", "c", "d"], 2), "a, b and 2 more");
    }
}
