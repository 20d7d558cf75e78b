//! Sets: sources that belong together. A workload that uses several sources of a set moves when all of them have the same
//! version.

use std::fmt;

use super::Facts;
use crate::{
    annotations,
    snapshot::{ObjectName, SourceKind},
    tie::Remembered,
};

/// The longest annotation `set`.
const LONGEST: usize = 253;
/// The values that the annotation may have, for messages.
const ALLOWED: &str = "NAME/VERSION, such as \"shop/1.2\"";

/// The set of a source, and the version that the source has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetVersion<'t> {
    /// The name of the set.
    pub name: &'t str,
    /// The version.
    pub version: &'t str,
}

impl<'t> SetVersion<'t> {
    /// Reads the annotation `set`; `None` if it is malformed.
    pub fn parse(text: &'t str) -> Option<Self> {
        let (name, version) = text.split_once('/')?;
        let is_word = |word: &str| {
            !word.is_empty() && !word.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
        };
        let is_valid = text.len() <= LONGEST && is_word(name) && is_word(version);
        is_valid.then_some(Self { name, version })
    }
}

/// What is known of the set of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership<'t> {
    /// The text of its annotation.
    Stated(&'t str),
    /// The set of a source that does not exist now.
    Missing(&'t str),
}

/// Why the annotation `set` of a source cannot be followed; `None` if it can.
pub fn invalid_set(text: &str) -> Option<String> {
    let refused = || format!("annotation {}: {text:?} is not allowed, use {ALLOWED}", annotations::SET);
    SetVersion::parse(text).is_none().then(refused)
}

/// Why a workload may not move to the content of a source yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetWait {
    /// The annotation of the source is malformed, so nothing moves.
    Invalid {
        /// The source.
        source: ObjectName,
        /// What is wrong.
        why: String,
    },
    /// Another source of the set has another version, or does not exist now.
    Differs {
        /// The set.
        set: String,
        /// The versions of the sources.
        versions: String,
    },
}

impl fmt::Display for SetWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { source, why } => write!(f, "held by the settings of {source}: {why}"),
            Self::Differs { set, versions } => write!(f, "waits for set {set}: {versions}"),
        }
    }
}

impl SetWait {
    /// Why a workload may not move to the present content of `source` yet; `None` if it may. `used` are the sources that the
    /// workload uses and that belong to sets.
    pub fn of<'t>(
        source: &ObjectName,
        used: impl IntoIterator<Item = (&'t ObjectName, Membership<'t>)> + Clone,
    ) -> Option<Self> {
        let (_, Membership::Stated(own)) = used.clone().into_iter().find(|(name, _)| *name == source)? else {
            return None;
        };
        if let Some(why) = invalid_set(own) {
            return Some(Self::Invalid { source: source.clone(), why });
        }
        let SetVersion { name, version } = SetVersion::parse(own)?;
        let others = used.into_iter().filter_map(|(other, membership)| match membership {
            Membership::Stated(text) => {
                let set = SetVersion::parse(text).filter(|set| set.name == name && set.version != version)?;
                Some(format!("{} has {}", short(other), set.version))
            }
            Membership::Missing(set) => (set == name).then(|| format!("{} does not exist", short(other))),
        });
        let others: Vec<_> = others.collect();
        (!others.is_empty()).then(|| Self::Differs {
            set: name.to_owned(),
            versions: format!("{} has {version}, {}", short(source), others.join(", ")),
        })
    }
}

/// What to remember of the set of a source, for the time in which it does not exist.
pub(super) fn set_of(facts: &Facts, source: &ObjectName, before: Option<&Remembered>) -> Option<String> {
    match facts.object(source) {
        Some(Some(present)) => present
            .annotation(annotations::SET)
            .and_then(|text| Some(SetVersion::parse(&text)?.name.to_owned())),
        Some(None) | None => before.and_then(|before| before.set.clone()),
    }
}

/// The name of a source beside others of its set.
fn short(source: &ObjectName) -> String {
    match source.kind {
        SourceKind::ConfigMap => source.name.to_string(),
        SourceKind::Secret => format!("secret/{}", source.name),
    }
}
