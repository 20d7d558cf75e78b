//! The uid, which distinguishes two objects of one name.

use std::{fmt, sync::Arc};

use serde::{Serialize, Serializer};
use uuid::Uuid;

/// The uid of an object. Kubernetes assigns UUIDs; thousands are in memory, so each is stored as 16 bytes. Any other text is
/// stored unchanged.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Form);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Uuid(Uuid),
    Other(Arc<str>),
}

/// The UUID, if its text has the form that [`Uid`] prints: every uid is printed exactly as it was read. The parser accepts more
/// forms.
fn parse_uuid(text: &str) -> Option<Uuid> {
    let uuid = Uuid::try_parse(text).ok()?;
    let is_same = uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text;
    is_same.then_some(uuid)
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(parse_uuid(text).map_or_else(|| Form::Other(text.into()), Form::Uuid))
    }
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Uuid(uuid) => uuid.hyphenated().fmt(f),
            Form::Other(text) => f.write_str(text),
        }
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
