//! Names of snapshots, and the label that names their source.

use super::{Digest, digest::is_hex};

/// The longest name of a ConfigMap or Secret, in bytes (a DNS subdomain, RFC 1123).
const MAX_OBJECT_NAME: usize = 253;
/// The longest value of a label, in bytes.
const MAX_LABEL: usize = 63;

/// The possible numbers of hex digits in a name: the first one that gives a free name is used. If objects of others have all
/// these names, a [`spare_name`] is used.
pub const DIGITS: [usize; 4] = [10, 16, 32, 64];

/// The number of random hex digits in a [`spare_name`]. Together with those of the digest, a name has a number of digits that
/// [`DIGITS`] lacks.
pub const SPARE_DIGITS: usize = 20;

/// The snapshot's name: the source's name, cut to fit, `-`, and the first `digits` hex digits.
pub fn snapshot_name(source: &str, digest: &Digest, digits: usize) -> String {
    with_digits(source, &digest.hex(digits))
}

/// A snapshot's name that others cannot know in advance, for content whose other names are all used by objects of others: it
/// continues the shortest name with these digits, which should be [`SPARE_DIGITS`] random hex digits.
pub fn spare_name(source: &str, digest: &Digest, spare: &str) -> String {
    with_digits(source, &(digest.hex(DIGITS[0]) + spare))
}

fn with_digits(source: &str, hex: &str) -> String {
    // Names of objects are ASCII; a cut may leave a trailing dot, which the API server refuses before a dash.
    let stem = truncate(source, MAX_OBJECT_NAME - 1 - hex.len()).trim_end_matches('.');
    format!("{stem}-{hex}")
}

/// The last digits of a name that has the form of a [`spare_name`].
fn spare_digits(name: &str) -> Option<&str> {
    let (_, hex) = name.rsplit_once('-')?;
    is_hex(hex, DIGITS[0] + SPARE_DIGITS).then(|| &hex[DIGITS[0]..])
}

/// Whether a name has the form of a [`spare_name`], of whatever source and content.
pub fn is_spare(name: &str) -> bool {
    spare_digits(name).is_some()
}

/// Whether this is one of the names that a snapshot of this content of the source may have. A name proves nothing about the
/// object that has it.
pub fn is_named_after(name: &str, source: &str, digest: &Digest) -> bool {
    DIGITS.iter().any(|digits| snapshot_name(source, digest, *digits) == name)
        || spare_digits(name).is_some_and(|spare| spare_name(source, digest, spare) == name)
}

/// The source of the snapshots whose names have this form, whatever their content; `None` if no snapshot has such a name. A source
/// whose name was cut to fit cannot be derived from the name.
pub fn source_of_name(name: &str) -> Option<&str> {
    let (source, hex) = name.rsplit_once('-')?;
    let has_digits = DIGITS.iter().any(|digits| is_hex(hex, *digits)) || is_spare(name);
    (has_digits && is_object_name(source)).then_some(source)
}

/// Whether the name may also be one that kustomize or `kubectl create --append-hash` generated: their hashes have ten digits or letters,
/// of which these digits are hexadecimal (`encode` in the package `hasher` of kustomize's `api`). Of 100 such hashes, two or
/// three look like those of a snapshot.
pub fn may_be_generated(name: &str) -> bool {
    let hash = name.rsplit_once('-').map_or("", |(_, hash)| hash);
    hash.len() == 10 && hash.chars().all(|digit| "2456789bcdf".contains(digit))
}

/// The value of the `source` label: the source's name, or its start and a hash if it is too long for a label.
pub fn source_label(source: &str) -> String {
    if source.len() <= MAX_LABEL {
        return source.to_owned();
    }
    let hash = Digest::of_bytes(source).hex(10);
    format!("{}-{hash}", truncate(source, MAX_LABEL - 1 - hash.len()))
}

/// Whether this is a valid object name: a DNS subdomain (RFC 1123).
pub fn is_object_name(name: &str) -> bool {
    name.len() <= MAX_OBJECT_NAME && name.split('.').all(is_label)
}

/// Whether this is a valid namespace name: a DNS label (RFC 1123).
pub fn is_namespace_name(name: &str) -> bool {
    name.len() <= MAX_LABEL && is_label(name)
}

/// Lowercase letters, digits and inner hyphens.
fn is_label(label: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = label.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase() || *byte == b'-')
}

/// The longest prefix of `text` of at most `most` bytes that ends between characters.
fn truncate(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_name_fits_for_any_source_name() {
        let digest = Digest::of_bytes("x");
        for digits in DIGITS {
            for length in [1, 63, 188, 242, 243, 253] {
                let source = "a".repeat(length);
                let name = snapshot_name(&source, &digest, digits);
                assert!(name.len() <= MAX_OBJECT_NAME, "{} for {length} and {digits}", name.len());
                assert!(name.ends_with(&format!("-{}", digest.hex(digits))));
                assert!(
                    name.len() == MAX_OBJECT_NAME || name.starts_with(&source),
                    "{name}: no more is cut than needed"
                );
            }
        }
        assert!(!snapshot_name(&format!("{}.{}", "a".repeat(241), "b"), &digest, 10).contains(".-"));
    }

    #[test]
    fn spare_name_is_recognised_by_its_content_only() {
        let [digest, other] = ["x", "y"].map(Digest::of_bytes);
        for length in [1, 188, 222, 223, 253] {
            let source = "a".repeat(length);
            let name = spare_name(&source, &digest, &"0".repeat(SPARE_DIGITS));
            assert!(name.len() <= MAX_OBJECT_NAME && is_object_name(&name), "{name}");
            assert!(is_spare(&name) && is_named_after(&name, &source, &digest), "{name}");
            assert!(!is_named_after(&name, &source, &other), "{name}");
            assert!(!is_named_after(&name, "b", &digest), "{name}");
            for digits in DIGITS {
                let usual = snapshot_name(&source, &digest, digits);
                assert!(!is_spare(&usual) && is_named_after(&usual, &source, &digest), "{usual}");
            }
        }
        for name in ["demo", "demo-0123456789", &format!("demo-{}g", "0".repeat(29)), &"0".repeat(30)] {
            assert!(!is_spare(name), "{name}");
        }
    }

    #[test]
    fn source_label_is_name_or_prefix_with_hash() {
        assert_eq!(source_label(&"a".repeat(63)), "a".repeat(63));
        let long = source_label(&"a".repeat(64));
        assert_eq!(long.len(), MAX_LABEL);
        assert_ne!(long, source_label(&"a".repeat(65)));
    }
}
