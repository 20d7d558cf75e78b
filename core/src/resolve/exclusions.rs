//! References that stay as written, by the name of their source or by a label of it.

use std::{collections::BTreeSet, fmt, sync::Arc};

use super::values::{parse_source, parse_source_if};
use crate::{
    snapshot::{ObjectName, is_object_name},
    wildcards,
};

/// The values that a list of exclusions may have, for messages.
const ALLOWED: &str = "names of ConfigMaps, of Secrets as secret/NAME, both with * and ? as wildcards, or labels as KEY=VALUE, separated by \
                       commas, at most 64 labels and 64 names with wildcards";
/// The most labels and the most names with wildcards of a list. Each reference is compared with all of them.
const MOST: usize = 64;
/// In place of the value of a label: any value.
const ANY: &str = "*";

/// The most labels of a source that are known. Usual objects have ten, and nothing limits them but the size of an object.
const MAX_LABELS: usize = 64;

/// What a list of exclusions names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exclusions {
    /// Names without wildcards.
    names: BTreeSet<ObjectName>,
    patterns: BTreeSet<ObjectName>,
    labels: ExcludedLabels,
}

/// Labels of sources to which references stay as written. Without any, it takes no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExcludedLabels(Option<Arc<Box<[u64]>>>);

/// The labels of a source, as hashes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LabelNames(Box<[u64]>);

impl Exclusions {
    /// Reads lists: of an installation, a namespace, a workload. An error has the values that are allowed.
    pub(super) fn read<'t>(lists: impl IntoIterator<Item = &'t str>) -> Result<Self, &'static str> {
        let (mut read, mut labels) = (Self::default(), BTreeSet::new());
        for list in lists {
            let (mut own_patterns, mut own_labels) = (0, 0);
            for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
                if let Some((key, value)) = item.split_once('=') {
                    own_labels += 1;
                    labels.insert(label(key, value).ok_or(ALLOWED)?);
                } else if item.contains(wildcards::ALL) {
                    own_patterns += 1;
                    read.patterns.insert(pattern(item).ok_or(ALLOWED)?);
                } else {
                    read.names.insert(parse_source(item).ok_or(ALLOWED)?);
                }
                if own_patterns.max(own_labels) > MOST {
                    return Err(ALLOWED);
                }
            }
        }
        let labels = (!labels.is_empty()).then(|| Arc::new(labels.into_iter().collect()));
        Ok(Self { labels: ExcludedLabels(labels), ..read })
    }

    /// Whether a name of the list is that of this source.
    pub fn names(&self, source: &ObjectName) -> bool {
        let is_it = |pattern: &ObjectName| {
            pattern.kind == source.kind && wildcards::match_text(&pattern.name, &source.name)
        };
        self.names.contains(source) || self.patterns.iter().any(is_it)
    }

    /// The names without wildcards.
    pub(super) const fn exact(&self) -> &BTreeSet<ObjectName> {
        &self.names
    }

    /// The labels of the list.
    pub const fn labels(&self) -> &ExcludedLabels {
        &self.labels
    }
}

impl ExcludedLabels {
    /// Whether a source with these labels has one of them.
    pub fn have(&self, labels: &LabelNames) -> bool {
        self.0.as_ref().is_some_and(|known| labels.0.iter().any(|label| known.binary_search(label).is_ok()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |labels| labels.len())
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl LabelNames {
    /// The labels of a source. Those beyond a limit exclude nothing.
    pub(super) fn of<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>) -> Self {
        Self(labels.take(MAX_LABELS).flat_map(|(key, value)| [hash(key, value), hash(key, ANY)]).collect())
    }
}

/// Hashes say nothing to a reader.
impl fmt::Debug for LabelNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LabelNames({})", self.0.len() / 2)
    }
}

/// Reads the name of a source, with wildcards.
fn pattern(item: &str) -> Option<ObjectName> {
    // What is left of a name next to a wildcard may begin and end as no name does.
    let is_pattern =
        |name: &str| name.len() <= 253 && is_object_name(&format!("a{}a", name.replace(wildcards::ALL, "a")));
    parse_source_if(
        item,
        |name| if name.contains(wildcards::ALL) { is_pattern(name) } else { is_object_name(name) },
    )
}

/// Reads a label; any value is `*`.
fn label(key: &str, value: &str) -> Option<u64> {
    let (key, value) = (key.trim(), value.trim());
    let is_word =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    let is_key =
        !name.is_empty() && name.len() <= 63 && is_word(name) && prefix.len() <= 253 && is_word(prefix);
    let is_value = value == ANY || (value.len() <= 63 && is_word(value));
    (is_key && is_value).then(|| hash(key, value))
}

/// The hash of a label, over the key, `=` and the value.
fn hash(key: &str, value: &str) -> u64 {
    fnv(key.bytes().chain(*b"=").chain(value.bytes()))
}

/// FNV-1a of 64 bits (RFC 9923).
fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_names_sources_by_name_and_label() {
        let list = Exclusions::read([
            " a, secret/b.c ,configmap/d,,",
            "*-rules,grafana_dashboard=1, example.com/kind=*",
        ])
        .unwrap();
        for (name, is_named) in [
            ("a", true),
            ("d", true),
            ("secret/b.c", true),
            ("b.c", false),
            ("secret/a", false),
            ("x-rules", true),
            ("secret/x-rules", false),
        ] {
            assert_eq!(list.names(&parse_source(name).unwrap()), is_named, "{name}");
        }
        let exact: Vec<_> = list.exact().iter().map(ToString::to_string).collect();
        assert_eq!(exact, ["ConfigMap \"a\"", "ConfigMap \"d\"", "Secret \"b.c\""]);
        for (labels, has) in [
            (&[("grafana_dashboard", "1")][..], true),
            (&[("grafana_dashboard", "2"), ("app", "1")], false),
            (&[("app", "x"), ("example.com/kind", "")], true),
            (&[("example.com/kin", "d")], false),
            (&[], false),
        ] {
            assert_eq!(list.labels().have(&LabelNames::of(labels.iter().copied())), has, "{labels:?}");
        }
        assert!(Exclusions::read(["a", ""]).unwrap().labels().is_empty());
    }

    #[test]
    fn malformed_items_are_refused() {
        for text in [
            "A",
            "a b",
            "pod/a",
            "secret/",
            "a/b/c",
            "-a",
            "a.",
            "a*B",
            "secret/*/b",
            "=1",
            "a=b c",
            "a/b/c=d",
            "/=1",
            "a==b",
        ] {
            assert!(Exclusions::read([text]).is_err(), "{text}");
        }
        for text in ["*", "a*", "*-a", "?", "secret/*", "a=", "a=*", "x.y/a=b"] {
            assert!(Exclusions::read([text]).is_ok(), "{text}");
        }
    }

    /// A workload may have an annotation of 256 KiB, and is compared with each source that it uses.
    #[test]
    fn long_lists_of_patterns_are_refused() {
        let many = |item: &str, count: usize| vec![item; count].join(",");
        for item in ["a*", "a=b"] {
            assert!(Exclusions::read([&*many(item, MOST), &many(item, MOST)]).is_ok(), "{item}");
            assert!(Exclusions::read([&*many(item, MOST + 1)]).is_err(), "{item}");
        }
        assert_eq!(Exclusions::read([&*many("a=b", MOST)]).unwrap().labels().len(), 1);
        assert!(Exclusions::read([&*many("a", 1000)]).is_ok());
    }

    /// The test vectors of its authors.
    #[test]
    fn hash_is_the_standard_one() {
        let expected = [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8];
        assert_eq!(["", "a", "foobar"].map(|text| fnv(text.bytes())), expected);
        assert_eq!(hash("foo", "bar"), fnv("foo=bar".bytes()));
    }
}
