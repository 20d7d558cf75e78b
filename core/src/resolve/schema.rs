//! The annotations that name the JSON Schema of a source, and the keys that it applies to.

use std::collections::BTreeMap;

use crate::{
    annotations,
    snapshot::{ObjectName, SourceKind, is_namespace_name, is_object_name},
    wildcards::match_text,
};

/// The extensions of keys to which a schema applies without `schema-keys`.
const EXTENSIONS: [&str; 5] = [".json", ".yaml", ".yml", ".toml", ".properties"];

/// In the annotation `schema-for`: the namespace of the object itself.
const OWN: &str = "own";

/// The schema of a source, as its annotations name it.
///
/// The schema of a Secret is a Secret of the same namespace: a person who may change a schema learns about the contents that
/// it is applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaReference {
    /// The namespace of the object that holds the schema; `None`: that of the source. Always `None` for a Secret.
    namespace: Option<String>,
    /// The object that holds the schema, of the same kind as the source.
    pub object: ObjectName,
    /// Its key.
    pub key: String,
    /// The patterns of the keys to check; `None`: all with a known extension.
    keys: Option<Vec<String>>,
}

impl SchemaReference {
    /// Reads the annotations of a source; `None` without a schema.
    pub fn read<'a>(
        kind: SourceKind,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Option<Result<Self, String>> {
        let keys = annotation(annotations::SCHEMA_KEYS);
        match annotation(annotations::SCHEMA) {
            Some(text) => Some(Self::parse(kind, text, keys)),
            None => keys.map(|_| {
                Err(format!(
                    "annotation {}: has no effect without annotation {}",
                    annotations::SCHEMA_KEYS,
                    annotations::SCHEMA
                ))
            }),
        }
    }

    fn parse(kind: SourceKind, text: &str, keys: Option<&str>) -> Result<Self, String> {
        let invalid = || {
            let forms = match kind {
                SourceKind::ConfigMap => "write CONFIGMAP/KEY or NAMESPACE/CONFIGMAP/KEY",
                SourceKind::Secret => {
                    "write SECRET/KEY: the schema of a Secret is in a Secret of its namespace"
                }
            };
            format!("annotation {}: {text:?} names no schema: {forms}", annotations::SCHEMA)
        };
        let parts: Vec<_> = text.split('/').collect();
        let (namespace, object, key) = match (kind, &parts[..]) {
            (_, [object, key]) => (None, *object, *key),
            (SourceKind::ConfigMap, [namespace, object, key]) => (Some(*namespace), *object, *key),
            _ => return Err(invalid()),
        };
        let is_sound = namespace.is_none_or(is_namespace_name) && is_object_name(object) && is_key(key, "");
        if !is_sound {
            return Err(invalid());
        }
        let keys = keys.map(patterns).transpose().map_err(|pattern| {
            format!(
                "annotation {}: {pattern:?} is not a key: write keys, with * and ? as wildcards, separated by commas",
                annotations::SCHEMA_KEYS
            )
        })?;
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            object: ObjectName::new(kind, object),
            key: key.to_owned(),
            keys,
        })
    }

    /// The entries to check. An error names the key or the annotation.
    pub fn entries(
        &self,
        texts: BTreeMap<String, Option<String>>,
    ) -> Result<BTreeMap<String, String>, String> {
        let is_checked = |key: &str| match &self.keys {
            Some(patterns) => patterns.iter().any(|pattern| match_text(pattern, key)),
            None => EXTENSIONS.iter().any(|extension| key.ends_with(extension)),
        };
        let mut entries = BTreeMap::new();
        for (key, text) in texts.into_iter().filter(|(key, _)| is_checked(key)) {
            let text = text.ok_or_else(|| format!("key {key:?}: not text"))?;
            entries.insert(key, text);
        }
        if entries.is_empty() {
            return Err(match &self.keys {
                Some(keys) => {
                    format!("no key matches {:?} (annotation {})", keys.join(", "), annotations::SCHEMA_KEYS)
                }
                None => format!(
                    "no key ends in {}: name the keys in annotation {}",
                    EXTENSIONS.join(", "),
                    annotations::SCHEMA_KEYS
                ),
            });
        }
        Ok(entries)
    }

    /// The namespace of the object that holds the schema. `own`: the namespace of the source.
    pub fn namespace<'a>(&'a self, own: &'a str) -> &'a str {
        self.namespace.as_deref().unwrap_or(own)
    }

    /// Whether an object with this `schema-for` annotation may give a schema to a source of this namespace. `at`: the namespace
    /// of the object. Without the annotation, no source may use it: a refusal says something about the schema.
    pub fn may_be_used(at: &str, annotation: Option<&str>, namespace: &str) -> bool {
        let listed = annotation.and_then(|text| patterns(text).ok()).unwrap_or_default();
        listed.iter().any(|pattern| match &**pattern {
            OWN => at == namespace,
            pattern => match_text(pattern, namespace),
        })
    }

    /// Why the schema cannot be read. It does not reveal whether the object exists.
    pub fn not_given(&self, own: &str) -> String {
        let at = self.namespace(own);
        let entry = if at == own { OWN } else { own };
        format!(
            "annotation {}: namespace {at:?} has no {} whose annotation {} contains {entry:?}",
            annotations::SCHEMA,
            self.object,
            annotations::SCHEMA_FOR
        )
    }
}

impl std::fmt::Display for SchemaReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{}/{}", self.object.name, self.key)
    }
}

/// What is wrong with the annotations that name a schema; `None` if nothing is.
pub fn invalid_schema<'a>(kind: SourceKind, annotation: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    SchemaReference::read(kind, annotation)?.err()
}

/// What a person can do about such a refusal.
pub fn correct_schema(source: &ObjectName) -> String {
    format!("correct {source}, or its annotation {}", annotations::SCHEMA)
}

/// What is wrong with a `schema-for` annotation; `None` if nothing is.
pub fn invalid_schema_for(text: &str) -> Option<String> {
    let pattern = patterns(text).err()?;
    Some(format!(
        "annotation {}: {pattern:?} is not a namespace: write {OWN:?} or namespaces, with * and ? as wildcards, separated by commas",
        annotations::SCHEMA_FOR
    ))
}

/// The patterns of a list; otherwise the first one that is invalid.
fn patterns(text: &str) -> Result<Vec<String>, String> {
    let all = text.split(',').map(str::trim);
    all.map(|pattern| if is_key(pattern, "*?") { Ok(pattern.to_owned()) } else { Err(pattern.to_owned()) })
        .collect()
}

/// Whether it is a key of a ConfigMap, or a pattern of one.
fn is_key(text: &str, wildcards: &str) -> bool {
    let is_allowed = |character: char| {
        character.is_ascii_alphanumeric() || "-_.".contains(character) || wildcards.contains(character)
    };
    (1..=253).contains(&text.len()) && text.chars().all(is_allowed)
}
