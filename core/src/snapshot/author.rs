//! Who changed the content of an object, and when, by the object's managedFields.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::json::Str;

/// The longest name of a user that is recorded, in characters.
const LONGEST_USER: usize = 256;
/// How far the API server's clock may be ahead of confrev's. A change later than that is in the future, and does not count.
pub const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_mins(1);
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
    /// The last change of an object's content before `now`, from its JSON. `None` if no manager is known to own the content.
    ///
    /// A manager is a claim: who writes an object may write its managedFields too, with any name and time. A time in the
    /// future would claim all later changes by others.
    pub fn of(json: &[u8], now: Timestamp) -> Option<Self> {
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
        Self::in_managed_fields(
            serde_json::from_slice::<Managed<'_>>(json).ok()?.metadata.managed_fields,
            now,
        )
    }

    /// The last change of content before `now` that these managedFields record.
    pub(super) fn in_managed_fields(fields: &RawValue, now: Timestamp) -> Option<Self> {
        let entries: Vec<Option<Entry<'_>>> = serde_json::from_str(fields.get()).ok()?;
        let owners = entries.iter().flatten().filter(|entry| entry.fields_v1);
        let is_past = |at: &Timestamp| at.duration_since(now) <= CLOCK_TOLERANCE;
        let time = |at: &str| at.parse::<Timestamp>().ok().filter(is_past);
        let timed = owners.filter_map(|entry| {
            let at = entry.time.as_deref()?;
            Some((time(at)?, at, entry))
        });
        // The order of several owners with one time is not known: the API server lists them by name.
        let (_, at, entry) = timed.max_by_key(|(time, ..)| *time)?;
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
        let now = "2026-01-02T03:05:00Z".parse().unwrap();
        Authorship::of(json!({"metadata": {"managedFields": entries}}).to_string().as_bytes(), now)
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
        assert_eq!(Authorship::of(b"{}", Timestamp::MAX), None);
        assert_eq!(Authorship::of(b"[1", Timestamp::MAX), None);
    }

    /// A person who may write the object may write such an entry, and would be the author of all later changes by others.
    #[test]
    fn change_in_the_future_does_not_count() {
        for (time, counts) in [
            ("2026-01-02T03:05:00Z", true),
            ("2026-01-02T03:06:00Z", true),
            ("2026-01-02T03:06:01Z", false),
            ("2099-01-01T00:00:00Z", false),
            ("+9999-12-31T00:00:00Z", false),
            ("z", false),
        ] {
            let entries =
                json!([entry("admin", "2026-01-02T03:04:05Z", "f:data"), entry("alice", time, "f:data")]);
            let author = if counts { "alice (Update)" } else { "admin (Update)" };
            assert_eq!(change(&entries).unwrap().by, author, "{time}");
            assert_eq!(change(&json!([entry("alice", time, "f:data")])).is_some(), counts, "{time}");
        }
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
