//! Strategies: named settings for the changes of sources, which the installation defines.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::{
    SpreadPolicy,
    strategy::{Settings, Strategy, value},
    values::text_of,
};
use crate::annotations;

/// The annotations of a source that a strategy may set.
const SETTINGS: [&str; 6] = [
    annotations::MAX_IN_FLIGHT,
    annotations::WAVES,
    annotations::BAKE,
    annotations::UNHEALTHY_AFTER,
    annotations::ANALYSIS,
    annotations::ON_FAILURE,
];

/// The strategies that the installation defines, and its own choice among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strategies {
    defined: BTreeMap<Box<str>, Arc<Settings>>,
    default: Option<Box<str>>,
}

impl Strategies {
    /// Reads strategies: a JSON object of names, each with an object of settings. Their keys are those of the annotations, without the
    /// prefix. `default`: the strategy of sources for which neither they nor their namespaces choose one.
    ///
    /// # Errors
    /// A setting that cannot be followed, or a `default` that is not defined. The text names it.
    pub fn parse(text: &str, default: Option<&str>) -> Result<Self, String> {
        let named: BTreeMap<Box<str>, BTreeMap<Box<str>, Value>> =
            serde_json::from_str(text).map_err(|error| format!("not an object of strategies: {error}"))?;
        let mut defined = BTreeMap::new();
        for (name, settings) in named {
            let in_strategy = |problem: String| format!("strategy {name:?}: {problem}");
            let settings = settings
                .iter()
                .map(|(key, value)| setting(key, value))
                .collect::<Result<Settings, _>>()
                .map_err(in_strategy)?;
            let of_annotation = |key: &str| value(&settings, key);
            let policy = SpreadPolicy::read(of_annotation);
            if let Some(invalid) = policy.invalid {
                return Err(in_strategy(invalid.into()));
            }
            if of_annotation(annotations::MAX_IN_FLIGHT).is_some() && policy.max_in_flight.is_none() {
                return Err(in_strategy("max-in-flight is no count of at least 1".to_owned()));
            }
            defined.insert(name, Arc::new(settings));
        }
        let default = default.filter(|default| !default.is_empty()).map(Box::from);
        match default {
            Some(default) if !defined.contains_key(&default) => {
                Err(format!("strategy {default:?} is the default, and is not defined"))
            }
            default => Ok(Self { defined, default }),
        }
    }

    /// The strategy of a source: its own choice, or that of its namespace, or the default.
    pub fn of(&self, source: Option<&str>, namespace: Option<&str>) -> Option<Strategy> {
        let name: Box<str> =
            source.or(namespace).map(annotations::bounded).or(self.default.as_deref())?.into();
        let settings = self.defined.get(&name).map(Arc::clone);
        Some(Strategy { name, settings })
    }
}

/// A setting of a strategy.
fn setting(key: &str, value: &Value) -> Result<(&'static str, Box<str>), String> {
    let known = SETTINGS.into_iter().find(|known| annotations::short(known) == key);
    let known = known.ok_or_else(|| {
        let names = SETTINGS.map(annotations::short);
        format!("{key:?} is no setting of strategies, use {}", names.join(", "))
    })?;
    Ok((known, text_of(key, value)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::Defaults;

    fn strategies(default: Option<&str>) -> Strategies {
        let text = r#"{
            "careful": {"waves": "1, 50%", "bake": "5m", "on-failure": "revert", "max-in-flight": 3},
            "immediate": {}
        }"#;
        Strategies::parse(text, default).unwrap()
    }

    #[test]
    fn own_choice_comes_before_namespace_and_default() {
        for (default, namespace, source, expected) in [
            (None, None, None, None),
            (Some("careful"), None, None, Some("careful")),
            (Some("careful"), Some("immediate"), None, Some("immediate")),
            (Some("immediate"), Some("immediate"), Some("careful"), Some("careful")),
            (None, Some("careful"), Some("unknown"), Some("unknown")),
        ] {
            let found = strategies(default).of(source, namespace);
            assert_eq!(found.as_ref().map(|found| &*found.name), expected);
            let is_invalid = found.is_some_and(|found| found.invalid().is_some());
            assert_eq!(is_invalid, expected == Some("unknown"));
        }
    }

    /// What a source has for waves that its strategy sets has no effect without them, and is no error: its namespace may choose another.
    #[test]
    fn settings_of_source_come_before_strategy() {
        let none = |_: &str| None;
        let own =
            |key: &'static str, value: &'static str| move |wanted: &str| (wanted == key).then_some(value);
        let policy = |name: &str, own: &dyn Fn(&str) -> Option<&'static str>| {
            let all = strategies(None);
            let strategy = all.of(Some(name), None);
            SpreadPolicy::under(strategy.as_ref(), &Defaults::default(), |key| own(key))
        };
        let careful = policy("careful", &none);
        assert!(careful.reverts && careful.waves.is_some() && careful.max_in_flight == Some(3));
        assert_eq!(careful.strategy.as_deref(), Some("careful"));
        assert!(!policy("careful", &own(annotations::ON_FAILURE, "hold")).reverts);
        assert_eq!(policy("careful", &own(annotations::MAX_IN_FLIGHT, "5")).max_in_flight, Some(5));
        assert_eq!(policy("careful", &own(annotations::MAX_IN_FLIGHT, "none")).max_in_flight, Some(3));
        assert_eq!(policy("careful", &own(annotations::BAKE, "1h")).bake, std::time::Duration::from_hours(1));
        assert_eq!(policy("immediate", &own(annotations::BAKE, "1h")).invalid, None);
        let unknown = policy("unknown", &none);
        assert!(unknown.invalid.is_some() && unknown.has_waves() && unknown.strategy.is_none());
    }

    #[test]
    fn errors_name_strategy_and_setting() {
        for (text, default, parts) in [
            ("[]", None, &["not an object of strategies"][..]),
            (r#"{"a": {"waves": "x"}}"#, None, &["strategy \"a\"", "confrev.dev/waves", "\"x\""]),
            (r#"{"a": {"bake": "5m"}}"#, None, &["strategy \"a\"", "no effect without"]),
            (r#"{"a": {"keep": "1"}}"#, None, &["strategy \"a\"", "\"keep\" is no setting", "on-failure"]),
            (r#"{"a": {"waves": true}}"#, None, &["strategy \"a\"", "waves: true"]),
            (r#"{"a": {"max-in-flight": 0}}"#, None, &["strategy \"a\"", "max-in-flight"]),
            (r#"{"a": {}}"#, Some("b"), &["\"b\" is the default"]),
        ] {
            let error = Strategies::parse(text, default).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
        assert_eq!(Strategies::parse("{}", Some("")), Ok(Strategies::default()));
    }
}
