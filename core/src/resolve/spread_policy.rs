//! The settings of a source for how far a change of it may spread.

use std::time::Duration;

use super::{
    Analysis, ChangeVerdict, Defaults, Strategy, UserDecision, Verdict, Waves, analysis,
    values::{DURATIONS, parse_duration, parse_max_in_flight},
    waves,
};
use crate::{
    annotations,
    snapshot::{Digests, ObjectName, is_named_after},
};

/// The default of `unhealthy-after`.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(30);

/// Why a change cannot be followed if not the own settings are invalid, but those of another source in the group.
const INVALID_ELSEWHERE: &str = "a setting of this source in another namespace of the group is invalid";

/// The settings of a source that limit how far a change of it may spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadPolicy {
    /// How many workloads a change may roll at once.
    pub max_in_flight: Option<usize>,
    /// How many workloads have moved at the end of each wave.
    pub waves: Option<Waves>,
    /// How long the moved workloads must stay healthy before the next wave.
    pub bake: Duration,
    /// A workload that the controller moved has failed if its pods become unavailable in its bake time, and stay so for this time.
    pub unhealthy_after: Duration,
    /// The analysis at the end of each wave.
    pub analysis: Option<Analysis>,
    /// Whether the workloads go back after one of them has failed with a change.
    pub reverts: bool,
    /// Why the settings of waves cannot be followed. Nothing moves then.
    pub invalid: Option<Box<str>>,
    /// The strategy from which come the settings that the source does not have itself.
    pub strategy: Option<Box<str>>,
    /// The annotation `set`: the sources of a set have one order.
    pub set: Option<Box<str>>,
    /// What a person decided about a content, whether its snapshot has it already or not.
    pub decision: Option<Box<UserDecision>>,
}

impl Default for SpreadPolicy {
    fn default() -> Self {
        Self {
            max_in_flight: None,
            waves: None,
            bake: Duration::ZERO,
            unhealthy_after: UNHEALTHY_AFTER,
            analysis: None,
            reverts: false,
            invalid: None,
            strategy: None,
            set: None,
            decision: None,
        }
    }
}

impl SpreadPolicy {
    /// Reads the annotations of a source. Those that it does not have come from the strategy that applies to it, or else from what it
    /// inherits.
    pub fn under<'a>(
        strategy: Option<&'a Strategy>,
        defaults: &'a Defaults,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Self {
        let own = |key: &str| {
            let is_count = |text: &&str| parse_max_in_flight(text).is_some();
            annotation(key).filter(|text| key != annotations::MAX_IN_FLIGHT || is_count(text))
        };
        let own_or_default = |key: &str| own(key).or_else(|| defaults.get(key));
        let Some(strategy) = strategy else { return Self::read(own_or_default) };
        let value = |key: &str| own(key).or_else(|| strategy.value(key)).or_else(|| defaults.get(key));
        // Another choice of the namespace may take the waves away for which the source has these.
        let of_waves = [annotations::BAKE, annotations::ANALYSIS];
        let has_waves = value(annotations::WAVES).is_some();
        let mut policy = Self::read(|key| value(key).filter(|_| has_waves || !of_waves.contains(&key)));
        policy.invalid = strategy.invalid().map(Box::from).or(policy.invalid);
        policy.strategy = strategy.is_defined().then(|| strategy.name.clone());
        policy
    }

    /// Reads the annotations of a source. A malformed `max-in-flight` counts as none: the admission of the source warns about
    /// it.
    pub fn read<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Self {
        let mut policy = Self {
            max_in_flight: annotation(annotations::MAX_IN_FLIGHT).and_then(parse_max_in_flight),
            set: annotation(annotations::SET).map(Into::into),
            decision: annotation(annotations::DECISION).and_then(UserDecision::parse).map(Box::new),
            ..Self::default()
        };
        let (waves, bake) = (annotation(annotations::WAVES), annotation(annotations::BAKE));
        match read_waves(waves, bake) {
            Ok((waves, bake)) => (policy.waves, policy.bake) = (waves, bake),
            Err(error) => policy.invalid = Some(error.into()),
        }
        match read_duration(annotations::UNHEALTHY_AFTER, annotation(annotations::UNHEALTHY_AFTER)) {
            Ok(after) => policy.unhealthy_after = after.unwrap_or(UNHEALTHY_AFTER),
            Err(error) => {
                policy.invalid.get_or_insert(error.into());
            }
        }
        match read_analysis(annotation(annotations::ANALYSIS), policy.has_waves()) {
            Ok(analysis) => policy.analysis = analysis,
            Err(error) => {
                policy.invalid.get_or_insert(error.into());
            }
        }
        match annotation(annotations::ON_FAILURE) {
            None | Some("hold") => {}
            Some("revert") => policy.reverts = true,
            Some(other) => {
                let error = refused(annotations::ON_FAILURE, other, "\"hold\" or \"revert\"");
                policy.invalid.get_or_insert(error.into());
            }
        }
        policy
    }

    /// The strictest of this and another policy, for sources that are one change. So no source lets workloads of another one
    /// move. Each source has its own set, decisions are in the verdict, and the text of an invalid setting stays in its namespace.
    #[must_use]
    pub fn strictest(&self, other: &Self) -> Self {
        let waves = match (&self.waves, &other.waves) {
            (Some(own), Some(other)) => {
                let mut both = own.clone();
                both.restrict(other);
                Some(both)
            }
            (one, another) => one.clone().or_else(|| another.clone()),
        };
        Self {
            max_in_flight: self.max_in_flight.into_iter().chain(other.max_in_flight).min(),
            waves,
            bake: self.bake.max(other.bake),
            unhealthy_after: self.unhealthy_after.min(other.unhealthy_after),
            analysis: self.analysis.clone().or_else(|| other.analysis.clone()),
            reverts: self.reverts || other.reverts,
            invalid: self
                .invalid
                .clone()
                .or_else(|| other.invalid.as_ref().map(|_| INVALID_ELSEWHERE.into())),
            strategy: self.strategy.clone().or_else(|| other.strategy.clone()),
            set: None,
            decision: None,
        }
    }

    /// Whether both have the same settings. Each source has its own set.
    pub fn has_settings_of(&self, other: &Self) -> bool {
        let settings = |of: &'_ Self| (of.max_in_flight, of.bake, of.unhealthy_after, of.reverts);
        settings(self) == settings(other)
            && (&self.waves, &self.analysis, &self.invalid) == (&other.waves, &other.analysis, &other.invalid)
    }

    /// Whether the controller decides when each workload rolls.
    pub fn is_limited(&self) -> bool {
        self.max_in_flight.is_some() || self.reverts || self.has_waves()
    }

    /// The decision of a person, if it is about this content of the source.
    pub fn decision_about(&self, source: &ObjectName, content: &Digests) -> Option<&UserDecision> {
        let is_it = |of: &UserDecision| {
            content.iter().any(|digest| is_named_after(&of.snapshot, &source.name, digest))
        };
        self.decision.as_deref().filter(|decision| is_it(decision))
    }

    /// The verdict about the change to a content. `stored`: that of the snapshot of the content, if this exists. A source in mode `live`
    /// has no snapshots: there, the decision itself counts.
    pub fn verdict(
        &self,
        source: &ObjectName,
        content: &Digests,
        stored: Option<Option<Verdict>>,
    ) -> ChangeVerdict {
        let decided = || Verdict::default().after(self.decision_about(source, content)?, None);
        stored.unwrap_or_else(decided).unwrap_or_default().of_change(self.reverts)
    }

    /// Whether the change moves workloads one after the other, so that their order matters.
    pub fn is_ordered(&self) -> bool {
        self.max_in_flight.is_some() || self.has_waves()
    }

    /// The same settings, which cannot be followed for this reason.
    #[must_use]
    pub fn but_invalid(&self, why: &str) -> Self {
        Self { invalid: Some(why.into()), ..self.clone() }
    }

    /// Whether a change of the source moves in waves, or would with valid settings.
    pub fn has_waves(&self) -> bool {
        self.waves.is_some() || self.invalid.is_some()
    }
}

fn read_waves(waves: Option<&str>, bake: Option<&str>) -> Result<(Option<Waves>, Duration), String> {
    let parsed = match waves {
        None => None,
        Some(text) => {
            Some(Waves::parse(text).ok_or_else(|| refused(annotations::WAVES, text, waves::ALLOWED))?)
        }
    };
    let bake = read_duration(annotations::BAKE, bake)?.unwrap_or_default();
    if bake > Duration::ZERO && parsed.is_none() {
        return Err(format!(
            "annotation {} has no effect without {}: add it",
            annotations::BAKE,
            annotations::WAVES
        ));
    }
    Ok((parsed, bake))
}

fn refused(key: &str, value: &str, allowed: &str) -> String {
    format!("annotation {key}: {value:?} is not allowed, use {allowed}")
}

fn read_duration(key: &str, text: Option<&str>) -> Result<Option<Duration>, String> {
    text.map(|text| parse_duration(text).ok_or_else(|| refused(key, text, DURATIONS))).transpose()
}

/// Reads the annotation `analysis`. Without waves, it has no effect.
fn read_analysis(text: Option<&str>, has_waves: bool) -> Result<Option<Analysis>, String> {
    let Some(text) = text else { return Ok(None) };
    let key = annotations::ANALYSIS;
    let parsed = Analysis::parse(text).ok_or_else(|| refused(key, text, analysis::ALLOWED))?;
    if !has_waves {
        return Err(format!("annotation {key} has no effect without {}: add it", annotations::WAVES));
    }
    Ok(Some(parsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn analysis_needs_waves_and_a_name() {
        let read = |waves: Option<&'static str>, analysis: &'static str| {
            SpreadPolicy::read(|key| match key {
                annotations::WAVES => waves,
                annotations::ANALYSIS => Some(analysis),
                _ => None,
            })
        };
        let valid = read(Some("1"), "cluster/sound");
        assert_eq!((valid.analysis, valid.invalid), (Analysis::parse("cluster/sound"), None));
        for (waves, analysis, part) in [
            (None, "sound", "confrev.dev/analysis has no effect without confrev.dev/waves"),
            (Some("1"), "A B", "confrev.dev/analysis: \"A B\" is not allowed, use the name"),
            (Some("x"), "sound", "confrev.dev/waves"),
        ] {
            let invalid = read(waves, analysis);
            assert!(invalid.has_waves(), "{invalid:?}");
            assert!(invalid.invalid.is_some_and(|why| why.contains(part)), "{waves:?} {analysis}");
        }
    }

    /// In a group, each setting of one source makes the change stricter, in either order.
    #[test]
    fn strictest_policy_has_each_setting_of_both() {
        let policy = |key: &'static str, value: &'static str| {
            SpreadPolicy::read(move |wanted| match wanted {
                annotations::WAVES => Some("1"),
                _ => (wanted == key).then_some(value),
            })
        };
        let plain = policy("", "");
        assert!(plain.has_settings_of(&plain.clone()));
        for (key, value) in [
            (annotations::ANALYSIS, "sound"),
            (annotations::BAKE, "5m"),
            (annotations::UNHEALTHY_AFTER, "5s"),
            (annotations::UNHEALTHY_AFTER, "soon"),
            (annotations::MAX_IN_FLIGHT, "1"),
            (annotations::ON_FAILURE, "revert"),
            (annotations::ON_FAILURE, "never"),
        ] {
            let strict = policy(key, value);
            assert!(!plain.has_settings_of(&strict) && !strict.has_settings_of(&plain), "{key}");
            for strictest in [strict.strictest(&plain), strict.strictest(&strict)] {
                assert!(strictest.has_settings_of(&strict), "{key}: {strictest:?}");
            }
            // The text of another namespace stays there.
            let told = strict.invalid.as_ref().map(|_| INVALID_ELSEWHERE.into());
            let strict = SpreadPolicy { invalid: told, ..strict };
            assert!(plain.strictest(&strict).has_settings_of(&strict), "{key}");
        }
    }
}
