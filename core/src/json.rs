//! Borrowed reading of JSON: strings without copies, and a descent to one field without a tree.

use std::{borrow::Cow, fmt, marker::PhantomData, ops::Deref};

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
        value::MapAccessDeserializer,
    },
};
use serde_json::Value;

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

            fn visit_unit<E>(self) -> Result<Str<'a>, E> {
                Ok(Str::default())
            }
        }

        deserializer.deserialize_any(StrVisitor(PhantomData))
    }
}

/// Reads the value at the end of `path` as a `T`, skipping everything else; `None` if the path does not exist.
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

/// Reads a field that holds an object, or null. An error of serde's quotes a text in place of the object, however long that is; this
/// one does not.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    struct ObjectVisitor<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }

        fn visit_unit<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_str<E: de::Error>(self, _: &str) -> Result<Option<T>, E> {
            Err(E::invalid_type(Unexpected::Other("a string"), &self))
        }
    }

    deserializer.deserialize_any(ObjectVisitor(PhantomData))
}

/// Reads a field that is true, false or null, as [`object`] reads an object.
pub fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    struct FlagVisitor;

    impl Visitor<'_> for FlagVisitor {
        type Value = Option<bool>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true or false")
        }

        fn visit_bool<E>(self, flag: bool) -> Result<Option<bool>, E> {
            Ok(Some(flag))
        }

        fn visit_unit<E>(self) -> Result<Option<bool>, E> {
            Ok(None)
        }

        fn visit_str<E: de::Error>(self, _: &str) -> Result<Option<bool>, E> {
            Err(E::invalid_type(Unexpected::Other("a string"), &self))
        }
    }

    deserializer.deserialize_any(FlagVisitor)
}

/// Reads a text that is an object, or null, as [`object`] reads a field.
pub fn read_object<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<Option<T>, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let found = object(&mut reader)?;
    reader.end()?;
    Ok(found)
}

/// The longest list that [`shallow`] keeps, and how deep it reads.
const MAX_ELEMENTS: usize = 32;
const MAX_LEVELS: usize = 5;

/// Reads a value, but of maps only these fields, and of lists only the first `MAX_ELEMENTS`: whatever the text holds, the
/// result is small. Values deeper than `MAX_LEVELS` read as null.
pub fn shallow<'de, D: Deserializer<'de>>(fields: &[&str], deserializer: D) -> Result<Value, D::Error> {
    Shallow { fields, levels: MAX_LEVELS }.deserialize(deserializer)
}

#[derive(Clone, Copy)]
struct Shallow<'f> {
    fields: &'f [&'f str],
    levels: usize,
}

impl<'de> DeserializeSeed<'de> for Shallow<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.levels == 0 {
            IgnoredAny::deserialize(deserializer)?;
            return Ok(Value::Null);
        }
        deserializer.deserialize_any(Shallow { levels: self.levels - 1, ..self })
    }
}

impl<'de> Visitor<'de> for Shallow<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < MAX_ELEMENTS {
            let Some(value) = list.next_element_seed(self)? else { return Ok(kept.into()) };
            kept.push(value);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(kept.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = serde_json::Map::new();
        while let Some(key) = map.next_key::<Str<'de>>()? {
            if self.fields.contains(&&*key) {
                kept.insert(key.to_string(), map.next_value_seed(self)?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(kept.into())
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
    fn shallow_value_has_known_fields_and_short_lists() {
        let read = |text: &str| {
            let mut reader = serde_json::Deserializer::from_str(text);
            shallow(&["a", "b"], &mut reader).unwrap()
        };
        assert_eq!(
            read(r#"{"a":{"b":[1,-2,1.5,true,null,"t"],"c":[{}]},"c":1}"#),
            serde_json::json!({"a": {"b": [1, -2, 1.5, true, null, "t"]}})
        );
        assert_eq!(read(&format!("[{}0]", "0,".repeat(1000))).as_array().unwrap().len(), MAX_ELEMENTS);
        assert_eq!(read(r#"[[[[["deep"]]]]]"#), serde_json::json!([[[[[null]]]]]));
        assert_eq!(read(r#"{"a":1,"a":2}"#), serde_json::json!({"a": 2}));
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
