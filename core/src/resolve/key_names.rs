//! The names of the keys of a content, as hashes of four bytes.

/// The most keys of a content whose names are known: a content of 1 MiB may have 100,000.
const MAX_KEYS: usize = 32;

/// The names of the keys of a content. A hash may be that of another key: then a missing key is not noticed here, and admission refuses
/// the roll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyNames(Option<Box<[u32]>>);

impl KeyNames {
    /// The names of these keys. Too many are not known.
    pub(super) fn of<'k>(keys: impl ExactSizeIterator<Item = &'k str>) -> Self {
        if keys.len() > MAX_KEYS {
            return Self(None);
        }
        let mut hashes: Vec<_> = keys.map(hash).collect();
        hashes.sort_unstable();
        Self(Some(hashes.into()))
    }

    /// Whether the content is known to lack this key.
    pub(crate) fn lack(&self, key: &str) -> bool {
        self.0.as_ref().is_some_and(|hashes| hashes.binary_search(&hash(key)).is_err())
    }
}

/// FNV-1a of 32 bits (RFC 9923).
fn hash(key: &str) -> u32 {
    key.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_tell_what_is_missing() {
        let names = KeyNames::of(["b", "a", "app.yaml"].into_iter());
        let lacking = ["a", "b", "app.yaml", "c", ""].map(|key| names.lack(key));
        assert_eq!(lacking, [false, false, false, true, true]);
        assert!(!KeyNames::default().lack("a"), "nothing is known");
        let many: Vec<_> = (0..=MAX_KEYS).map(|number| number.to_string()).collect();
        let of = |count: usize| KeyNames::of(many[..count].iter().map(String::as_str));
        assert!(of(MAX_KEYS).lack("a") && !of(MAX_KEYS + 1).lack("a"));
    }

    /// The test vectors of its authors.
    #[test]
    fn hash_is_the_standard_one() {
        assert_eq!(["", "a", "foobar"].map(hash), [0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968]);
    }
}
