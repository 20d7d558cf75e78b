//! Settings that workloads and sources inherit: from their namespace, or else from the installation.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::{
    exclusions::Exclusions,
    values::{DURATIONS, parse_duration, parse_max_in_flight, parse_missing, parse_on_undo, text_of},
};
use crate::annotations::{self, LONGEST};

/// The most bytes of a value of a Namespace, for messages.
const LONG: &str = "at most 1024 bytes";

/// Whether a value can be followed. An error has the values that are allowed.
type Check = fn(&str) -> Result<(), &'static str>;

/// The annotations that are inherited.
const INHERITED: [(&str, Check); 5] = [
    (annotations::EXCLUDE, |text| Exclusions::read([text]).map(drop)),
    (annotations::MISSING, |text| parse_missing(text).map(drop)),
    (annotations::MIN_INTERVAL, |text| parse_duration(text).map(drop).ok_or(DURATIONS)),
    (annotations::ON_UNDO, |text| parse_on_undo(text).map(drop)),
    (annotations::MAX_IN_FLIGHT, |text| parse_max_in_flight(text).map(drop).ok_or("a count of at least 1")),
];

/// An annotation and its value.
type Setting = (&'static str, Box<str>);

/// What workloads and sources inherit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults(Option<Arc<[Setting]>>);

impl Defaults {
    /// Reads those of the installation: a JSON object. Its keys are those of the annotations, without the prefix.
    ///
    /// # Errors
    /// A key that is not inherited, or a value that cannot be followed. The text names it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let named: BTreeMap<Box<str>, Value> =
            serde_json::from_str(text).map_err(|error| format!("not an object of settings: {error}"))?;
        let mut settings = Vec::new();
        for (name, value) in named {
            let Some((key, check)) = INHERITED.into_iter().find(|(key, _)| *annotations::short(key) == *name)
            else {
                let names = INHERITED.map(|(key, _)| annotations::short(key));
                return Err(format!("{name:?} is not inherited, use {}", names.join(", ")));
            };
            let text = text_of(&name, &value)?;
            check(&text).map_err(|allowed| format!("{name}: {text:?} is not allowed, use {allowed}"))?;
            settings.push((key, text));
        }
        Ok(Self::of(settings))
    }

    /// Reads the annotations of a Namespace. One that cannot be followed is left out: it holds all changes, as a setting that is a
    /// gate.
    pub fn of_namespace<'n>(annotation: impl Fn(&str) -> Option<&'n str>) -> Self {
        let valid = |key| {
            let text = annotation(key).filter(|text| malformed(key, text).is_none())?;
            Some((key, text.into()))
        };
        Self::of(keys().filter_map(valid).collect())
    }

    fn of(settings: Vec<Setting>) -> Self {
        Self((!settings.is_empty()).then(|| settings.into()))
    }

    /// These of a namespace, with those of the installation that it does not have. What one of them excludes is excluded.
    #[must_use]
    pub fn under(&self, installation: &Self) -> Self {
        let both = |key: &'static str| {
            let text = match (self.get(key), installation.get(key)) {
                (Some(own), Some(other)) if key == annotations::EXCLUDE => format!("{other},{own}"),
                (own, other) => own.or(other)?.to_owned(),
            };
            Some((key, text.into()))
        };
        match (&self.0, &installation.0) {
            (None, _) => installation.clone(),
            (_, None) => self.clone(),
            _ => Self::of(keys().filter_map(both).collect()),
        }
    }

    /// Those that workloads have.
    #[must_use]
    pub fn of_workloads(&self) -> Self {
        Self::of(self.iter().filter(|(key, _)| *key != annotations::MAX_IN_FLIGHT).cloned().collect())
    }

    /// The value of an annotation; `None` if it is not inherited.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, text)| &**text)
    }

    fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.0.iter().flat_map(|settings| settings.iter())
    }
}

/// What is allowed in place of this value of a Namespace, if the annotation is inherited and its value cannot be followed.
pub(crate) fn malformed(key: &str, text: &str) -> Option<&'static str> {
    let (_, check) = INHERITED.iter().find(|(known, _)| *known == key)?;
    if text.len() > LONGEST { Some(LONG) } else { check(text).err() }
}

/// The keys of the annotations that are inherited.
pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    INHERITED.into_iter().map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_comes_before_the_installation() {
        let installation =
            Defaults::parse(r#"{"min-interval": "30s", "exclude": "ca-*", "max-in-flight": 3}"#).unwrap();
        let namespace = Defaults::of_namespace(|key| match key {
            annotations::MIN_INTERVAL => Some("5m"),
            annotations::EXCLUDE => Some("*-rules"),
            annotations::ON_UNDO => Some("never"),
            _ => None,
        });
        let both = namespace.under(&installation);
        let values = [
            annotations::MIN_INTERVAL,
            annotations::EXCLUDE,
            annotations::MAX_IN_FLIGHT,
            annotations::ON_UNDO,
            annotations::MISSING,
        ]
        .map(|key| both.get(key));
        assert_eq!(values, [Some("5m"), Some("ca-*,*-rules"), Some("3"), None, None]);
        assert_eq!(Defaults::default().under(&installation), installation);
        assert_eq!(namespace.under(&Defaults::default()), namespace);
    }

    #[test]
    fn invalid_defaults_are_named() {
        for (text, part) in [
            ("[]", "not an object"),
            (
                r#"{"waves": "1"}"#,
                "\"waves\" is not inherited, use exclude, missing, min-interval, on-undo, max-in-flight",
            ),
            (r#"{"min-interval": "soon"}"#, "min-interval: \"soon\" is not allowed, use a duration"),
            (r#"{"missing": "dney"}"#, "missing: \"dney\""),
            (r#"{"on-undo": true}"#, "on-undo: true is neither"),
            (r#"{"max-in-flight": 0}"#, "max-in-flight: \"0\""),
            (r#"{"exclude": "A B"}"#, "exclude: \"A B\""),
        ] {
            let error = Defaults::parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
