//! Sets: sources that belong together. A workload that uses several sources of a set moves when all of them have the same
//! version.

use std::{collections::BTreeMap, fmt};

use super::decide::{Resolver, Stop};
use crate::{
    annotations,
    snapshot::{ObjectName, SourceKind},
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
    /// Another source of the set has another version.
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
    /// workload uses and that have the annotation, each with its text.
    pub fn of<'t>(
        source: &ObjectName,
        used: impl IntoIterator<Item = (&'t ObjectName, &'t str)> + Clone,
    ) -> Option<Self> {
        let own = used.clone().into_iter().find(|(name, _)| *name == source).map(|(_, text)| text)?;
        if let Some(why) = invalid_set(own) {
            return Some(Self::Invalid { source: source.clone(), why });
        }
        let SetVersion { name, version } = SetVersion::parse(own)?;
        let others = used.into_iter().filter_map(|(other, text)| {
            let set = SetVersion::parse(text).filter(|set| set.name == name && set.version != version)?;
            Some(format!("{} has {}", short(other), set.version))
        });
        let others: Vec<_> = others.collect();
        (!others.is_empty()).then(|| Self::Differs {
            set: name.to_owned(),
            versions: format!("{} has {version}, {}", short(source), others.join(", ")),
        })
    }
}

impl Resolver<'_> {
    /// Why the workload may not move to the present content of a source yet, as far as its set decides that.
    pub(super) fn set_wait(&mut self, source: &ObjectName) -> Result<Option<SetWait>, Stop> {
        let has_set =
            self.live(source)?.is_some_and(|present| present.annotation(annotations::SET).is_some());
        let Some(template) = self.request.new.template.as_ref().filter(|_| has_set) else { return Ok(None) };
        let mut sets = BTreeMap::new();
        for reference in self.references(template) {
            let object = ObjectName::new(reference.kind, reference.name);
            let used = self.source_of(&object)?.unwrap_or(object);
            if sets.contains_key(&used) || (self.stays_as_written(&used)? && !self.is_live_mode(&used)?) {
                continue;
            }
            let set = self.live(&used)?.and_then(|present| present.annotation(annotations::SET));
            sets.insert(used, set);
        }
        let sets = sets.iter().filter_map(|(used, set)| Some((used, set.as_deref()?)));
        Ok(SetWait::of(source, sets))
    }

    /// Warns of a workload that begins between the writes of the sources of a set: nothing else is there to run with.
    pub(super) fn warn_mixed_set(&mut self, source: &ObjectName) -> Result<(), Stop> {
        if let Some(SetWait::Differs { set, versions }) = self.set_wait(source)? {
            self.warnings.push(format!(
                "annotation {}: {} begins with different versions of the set {set}: {versions}",
                annotations::SET,
                self.request.new.display()
            ));
        }
        Ok(())
    }
}

/// The name of a source beside others of its set.
fn short(source: &ObjectName) -> String {
    match source.kind {
        SourceKind::ConfigMap => source.name.to_string(),
        SourceKind::Secret => format!("secret/{}", source.name),
    }
}
