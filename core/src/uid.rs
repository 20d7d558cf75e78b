//! The uid, which distinguishes two objects of one name.

use std::{fmt, sync::Arc};

use serde::{Serialize, Serializer};

/// The uid of an object. Kubernetes assigns UUIDs; thousands are in memory, so each is stored as 16 bytes. Any other text is
/// stored unchanged.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Form);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Uuid([u8; 16]),
    Other(Arc<str>),
}

/// The digits of a UUID that have a dash before them.
const DASHES: [usize; 4] = [8, 12, 16, 20];

/// The bytes of a UUID in the form that [`Uid`] prints, so that every uid is printed exactly as it was read.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut digits = 0;
    for (i, &character) in text.as_bytes().iter().enumerate() {
        let value = match character {
            b'-' if DASHES.iter().enumerate().any(|(n, at)| at + n == i) => continue,
            b'0'..=b'9' => character - b'0',
            b'a'..=b'f' => character - b'a' + 10,
            _ => return None,
        };
        *bytes.get_mut(digits / 2)? |= if digits % 2 == 0 { value << 4 } else { value };
        digits += 1;
    }
    // At most 32 digits fit, and there are at most four dashes: a text of this length has all of them.
    (text.len() == 32 + DASHES.len()).then_some(bytes)
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(uuid(text).map_or_else(|| Form::Other(text.into()), Form::Uuid))
    }
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match &self.0 {
            Form::Uuid(bytes) => bytes,
            Form::Other(text) => return f.write_str(text),
        };
        for (i, byte) in bytes.iter().enumerate() {
            if DASHES.contains(&(2 * i)) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl Serialize for Uid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UUID is stored as 16 bytes, any other uid as text.
    #[test]
    fn uids_keep_their_text() {
        let uuids = [
            "0f8fad5b-d9cb-469f-a165-70867728950e",
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-fffffffffff0",
        ];
        let others = [
            "",
            "u",
            "0F8FAD5B-d9cb-469f-a165-70867728950e",
            "0f8fad5bd9cb-469f-a165-70867728950e",
            "0f8fad5bd9cb469fa16570867728950e",
            "0f8fad5b-d9cb-469f-a165-70867728950e0",
            "0f8fad5b-d9cb-469f-a165-70867728950",
            "0f8fad5b--d9cb469f-a165-70867728950e",
            "0f8fad5bd9cb469fa16570867728950e1234",
            "0f8fad5b-d9cb-469f-a165-70867728950g",
        ];
        let all: Vec<_> = uuids.into_iter().chain(others).collect();
        for (i, text) in all.iter().enumerate() {
            let uid = Uid::from(*text);
            assert_eq!(matches!(uid.0, Form::Uuid(_)), i < uuids.len(), "{text}");
            assert_eq!(uid.to_string(), *text);
            assert_eq!(all.iter().filter(|other| Uid::from(**other) == uid).count(), 1, "{text}");
        }
    }
}
