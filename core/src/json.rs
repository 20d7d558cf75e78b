//! Borrowed reading of JSON: strings without copies, and a descent to one field without a tree.

use std::{borrow::Cow, fmt, marker::PhantomData, ops::Deref};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};

/// A string that borrows from the JSON text unless it has escapes. `null` reads as the empty string, as in Go, in which the
/// API server is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Str<'a>(pub Cow<'a, str>);

impl Deref for Str<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Str<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Str<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StrVisitor<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for StrVisitor<'a> {
            type Value = Str<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Str<'a>, E> {
                Ok(Str(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Str<'a>, E> {
                Ok(Str(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Str<'a>, E> {
                Ok(Str(Cow::Owned(text)))
            }

            fn visit_unit<E>(self) -> Result<Str<'a>, E> {
                Ok(Str::default())
            }

            fn visit_none<E>(self) -> Result<Str<'a>, E> {
                Ok(Str::default())
            }
        }

        deserializer.deserialize_any(StrVisitor(PhantomData))
    }
}

/// Reads the value at the end of `path` as a `T`, skipping all else; `None` if the path does not exist.
pub struct At<'p, P, T> {
    path: &'p [P],
    value: PhantomData<T>,
}

impl<'p, P, T> At<'p, P, T> {
    /// A descent along `path`, whose elements are field names.
    pub fn new(path: &'p [P]) -> Self {
        Self { path, value: PhantomData }
    }
}

impl<'de, P: AsRef<str>, T: Deserialize<'de>> DeserializeSeed<'de> for At<'_, P, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        if self.path.is_empty() {
            Option::<T>::deserialize(deserializer)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de, P: AsRef<str>, T: Deserialize<'de>> Visitor<'de> for At<'_, P, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the field {:?}", self.path.first().map_or("", AsRef::as_ref))
    }

    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<T>, A::Error> {
        let Some((first, rest)) = self.path.split_first() else { return Ok(None) };
        let mut found = None;
        while let Some(key) = map.next_key::<Str<'de>>()? {
            if *key == *first.as_ref() {
                found = map.next_value_seed(At::new(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(json: &str, path: &[&str]) -> Result<Option<String>, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(json);
        At::<_, Str<'_>>::new(path).deserialize(&mut reader).map(|text| text.map(|text| text.to_string()))
    }

    #[test]
    fn descent_finds_value_at_any_position() {
        let json = r#"{"x":[{"b":1}],"a":{"y":2e400,"b":"v\n"},"z":null}"#;
        assert_eq!(at(json, &["a", "b"]).unwrap().as_deref(), Some("v\n"));
        assert_eq!(at(json, &["a", "c"]).unwrap(), None);
        assert_eq!(at(json, &["z", "b"]).unwrap(), None);
        assert!(at(json, &["x", "b"]).is_err());
    }

    #[test]
    fn borrows_plain_strings_and_copies_escaped_ones() {
        let plain: Str<'_> = serde_json::from_str(r#""plain""#).unwrap();
        assert!(matches!(plain.0, Cow::Borrowed("plain")));
        let escaped: Str<'_> = serde_json::from_str(r#""a\tb""#).unwrap();
        assert_eq!(&*escaped, "a\tb");
        assert_eq!(&*serde_json::from_str::<Str<'_>>("null").unwrap(), "");
    }
}
