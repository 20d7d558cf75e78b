//! Who changed the content of an object, and when, by the object's managedFields.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::json::Str;

/// The longest name of a user that is recorded, in characters.
const LONGEST_USER: usize = 256;
/// Separates the field manager from the user.
const BY: &str = " by ";

/// The last change of an object's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorship {
    /// When, as the API server wrote it.
    pub at: String,
    /// The field manager and its operation, such as `kubectl-edit (Update)`, and the user, if known.
    pub by: String,
}

impl Authorship {
    /// The last change of an object's content, from its JSON. `None` if no manager is known to own the content.
    pub fn of(json: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Managed<'a> {
            #[serde(borrow)]
            metadata: ManagedMetadata<'a>,
        }
        #[derive(Deserialize)]
        struct ManagedMetadata<'a> {
            #[serde(borrow, rename = "managedFields")]
            managed_fields: &'a RawValue,
        }
        Self::in_managed_fields(serde_json::from_slice::<Managed<'_>>(json).ok()?.metadata.managed_fields)
    }

    /// The last change of content that these managedFields record.
    pub(super) fn in_managed_fields(fields: &RawValue) -> Option<Self> {
        let entries: Vec<Option<Entry<'_>>> = serde_json::from_str(fields.get()).ok()?;
        let owners = entries.iter().flatten().filter(|entry| entry.fields_v1);
        let timed = owners.filter_map(|entry| Some((entry.time.as_deref()?, entry)));
        // The API server writes every time in UTC with whole seconds, so texts sort like times. The order of several owners
        // with one time is not known: the API server lists them by name.
        let (at, entry) = timed.max_by_key(|(at, _)| *at)?;
        Some(Self { at: at.to_owned(), by: format!("{} ({})", Word(&entry.manager), Word(&entry.operation)) })
    }

    /// The same change, with the name of the user who made it.
    pub fn by_user(&self, user: &str) -> String {
        let user: String = user.chars().filter(|c| !c.is_control()).take(LONGEST_USER).collect();
        format!("{}{BY}{user}", self.by)
    }

    /// Whether `text` names this change's manager and operation, and no user.
    pub fn is_without_user(&self, text: &str) -> bool {
        self.by == text && !text.contains(BY)
    }
}

/// One manager's fields, reduced to whether content is among them.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct Entry<'a> {
    #[serde(default)]
    manager: Str<'a>,
    #[serde(default)]
    operation: Str<'a>,
    #[serde(default)]
    time: Option<Str<'a>>,
    #[serde(default, deserialize_with = "owns_content")]
    fields_v1: bool,
}

/// A name that clients choose themselves. Other characters than those of usual names become `_`, so that it cannot look like an
/// operation or a user.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        let is_usual = |c: char| c.is_ascii_alphanumeric() || "-._/:@+".contains(c);
        self.0.chars().try_for_each(|c| f.write_char(if is_usual(c) { c } else { '_' }))
    }
}

/// Whether a `fieldsV1` set holds content of a ConfigMap or Secret.
fn owns_content<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct Fields;
    impl<'de> Visitor<'de> for Fields {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a set of fields")
        }

        fn visit_unit<E>(self) -> Result<bool, E> {
            Ok(false)
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<bool, M::Error> {
            let mut owns = false;
            while let Some(field) = map.next_key::<Str<'_>>()? {
                if matches!(&*field, "f:data" | "f:binaryData") {
                    owns |= map.next_value::<OwnsValues>()?.0;
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(owns)
        }
    }
    deserializer.deserialize_any(Fields)
}

/// Whether the set below `data` or `binaryData` holds a key. Who created an object keeps the map itself when another manager
/// changes every value of it: an empty set, or `.` beside keys.
struct OwnsValues(bool);

impl<'de> Deserialize<'de> for OwnsValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = OwnsValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a set of fields")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<OwnsValues, M::Error> {
                let mut has_key = false;
                while let Some((key, IgnoredAny)) = map.next_entry::<Str<'_>, IgnoredAny>()? {
                    has_key |= &*key != ".";
                }
                Ok(OwnsValues(has_key))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn change(entries: &Value) -> Option<Authorship> {
        Authorship::of(json!({"metadata": {"managedFields": entries}}).to_string().as_bytes())
    }

    fn entry(manager: &str, time: &str, field: &str) -> Value {
        json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1": {field: {"f:a": {}}}})
    }

    #[test]
    fn newest_manager_of_content_made_the_change() {
        let at = |second: u8| format!("2026-01-02T03:04:{second:02}Z");
        let entries = json!([
            entry("helm", &at(1), "f:data"),
            entry("kubectl-edit", &at(5), "f:binaryData"),
            entry("confrev", &at(9), "f:metadata"),
            entry("argocd", &at(3), "f:data"),
            null,
        ]);
        let found = change(&entries).unwrap();
        assert_eq!((found.at, found.by.as_str()), (at(5), "kubectl-edit (Update)"));
        let same_second = json!([entry("a", &at(5), "f:data"), entry("b", &at(5), "f:data")]);
        assert_eq!(change(&same_second).unwrap().by, "b (Update)");
        for none in [json!([]), json!(null), json!([entry("confrev", &at(1), "f:metadata")])] {
            assert_eq!(change(&none), None, "{none}");
        }
        assert_eq!(Authorship::of(b"{}"), None);
        assert_eq!(Authorship::of(b"[1"), None);
    }

    /// What Kubernetes 1.36 stores when another manager changes values in the second of an object's creation: a set without keys
    /// if it changes all of them, else a set with `.` and the keys that are left.
    #[test]
    fn creator_without_keys_made_no_change() {
        let at = "2026-01-02T03:04:05Z";
        let creator = |set: &Value| json!({"manager": "unknown", "operation": "Update", "time": at, "fieldsV1": {"f:data": set}});
        for map_alone in [json!({}), json!({".": {}})] {
            let change_of = |others: &[Value]| change(&json!([others, &[creator(&map_alone)]].concat()));
            assert_eq!(change_of(&[entry("editor", at, "f:data")]).unwrap().by, "editor (Update)");
            assert_eq!(change_of(&[entry("editor", at, "f:binaryData")]).unwrap().by, "editor (Update)");
            assert_eq!(change_of(&[]), None);
        }
        let with_key = json!([creator(&json!({".": {}, "f:b": {}}))]);
        assert_eq!(change(&with_key).unwrap().by, "unknown (Update)");
    }

    /// A client chooses the name of its field manager.
    #[test]
    fn manager_cannot_pose_as_user() {
        let posing = change(&json!([entry("x (Update) by root", "2026-01-02T03:04:05Z", "f:data")])).unwrap();
        assert_eq!(posing.by, "x__Update__by_root (Update)");
        assert!(posing.is_without_user(&posing.by));
        let known = posing.by_user("alice\n\u{1b}[1m");
        assert_eq!(known, "x__Update__by_root (Update) by alice[1m");
        assert!(!posing.is_without_user(&known));
        assert!(posing.by_user(&"a".repeat(5000)).len() < 300);
    }
}
