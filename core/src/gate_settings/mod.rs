//! Settings that are gates: annotations of a workload, of its namespace and of a source that keep the workload where it is for some
//! time.
//!
//! Each is a file of its own, a row of `SETTINGS` and a row of [`annotations::KEYS`]. A record of such an object has its [`Texts`].

mod setting;
mod window;

use std::borrow::Cow;

use jiff::Timestamp;
pub use setting::{Closed, Place};
use setting::{Malformed, Setting, Until, refused};
pub use window::Windows;

use crate::{annotations, resolve::defaults};

/// All settings that are gates, in the order in which they are asked.
const SETTINGS: [Setting; 1] = [window::SETTING];

/// The names of the gates.
pub fn names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(Setting::name)
}

/// The keys of the annotations.
pub fn keys() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.key)
}

/// What these settings of one object say, valid or not. Most objects have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Texts(Option<Box<[Text]>>);

/// A key with its value.
type Text = (&'static str, Box<str>);

impl Texts {
    /// Reads the annotations of an object. What is longer than any valid value is cut.
    pub fn read<'a, T: Into<Cow<'a, str>>>(annotation: impl Fn(&str) -> Option<T>) -> Self {
        let text = |key: &'static str| {
            let text: Cow<'a, str> = annotation(key)?.into();
            Some((key, annotations::bounded(&text).into()))
        };
        let texts: Box<[_]> = keys().filter_map(text).collect();
        Self((!texts.is_empty()).then_some(texts))
    }

    /// The same for a Namespace, with the settings that its objects inherit and that cannot be followed: they keep every workload.
    pub fn of_namespace<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Self {
        let Self(gates) = Self::read(&annotation);
        let malformed = defaults::keys().filter_map(|key| {
            let text = annotations::bounded(annotation(key)?);
            defaults::malformed(key, text).map(|_| (key, text.into()))
        });
        let texts: Box<[_]> = gates.into_iter().flatten().chain(malformed).collect();
        Self((!texts.is_empty()).then_some(texts))
    }

    /// Whether the object has none of these settings.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The annotations with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().flatten().map(|(key, text)| (*key, &**text))
    }

    /// Why settings cannot be followed: a text for each that is malformed.
    pub fn invalid(&self) -> Vec<String> {
        let invalid = |setting: &Setting| {
            let text = self.get(setting.key)?;
            Some(refused(setting.key, text, (setting.check)(text).err()?))
        };
        SETTINGS.iter().filter_map(invalid).chain(self.malformed_defaults().map(|(_, why)| why)).collect()
    }

    /// The keys of the settings of a Namespace that are inherited and cannot be followed, each with the reason.
    fn malformed_defaults(&self) -> impl Iterator<Item = (&'static str, String)> {
        let malformed = |(key, text)| Some((key, refused(key, text, defaults::malformed(key, text)?)));
        self.iter().filter_map(malformed)
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, text)| text)
    }
}

/// Why a workload stays where it is, according to the settings of these objects: all of them must be open. `None` if it may move. A
/// setting that cannot be followed comes first, since a person must correct it, then the one that opens last.
pub fn closed<'t>(texts: impl IntoIterator<Item = (Place, &'t Texts)>, now: Timestamp) -> Option<Closed> {
    let stated: Vec<_> = texts.into_iter().filter(|(_, texts)| !texts.is_empty()).collect();
    // Most objects have none.
    if stated.is_empty() {
        return None;
    }
    let malformed = |(of, texts): &(Place, &Texts)| {
        let (key, why) = texts.malformed_defaults().next()?;
        Some(Closed::Invalid { name: annotations::short(key), of: of.clone(), why })
    };
    stated.iter().find_map(malformed).or_else(|| closed_by(&SETTINGS, &stated, now))
}

fn closed_by(settings: &[Setting], stated: &[(Place, &Texts)], now: Timestamp) -> Option<Closed> {
    let mut last = None::<(Timestamp, Closed)>;
    for setting in settings {
        let name = setting.name();
        let texts = stated.iter().filter_map(|(of, texts)| Some((of.clone(), texts.get(setting.key)?)));
        let texts: Vec<_> = texts.collect();
        match (setting.closed)(&texts, now) {
            Err(Malformed { of, text, allowed }) => {
                return Some(Closed::Invalid { name, of, why: refused(setting.key, &text, allowed) });
            }
            Ok(None) => {}
            Ok(Some(Until { opens, reason })) => {
                let at = opens.unwrap_or(Timestamp::MAX);
                if last.as_ref().is_none_or(|(other, _)| *other < at) {
                    last = Some((at, Closed::Until { name, opens, reason }));
                }
            }
        }
    }
    last.map(|(_, closed)| closed)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::{setting::Found, *};
    use crate::annotations::{KEYS, On};

    /// A setting of seconds until it opens: `0` is open, and `never` has no known end.
    const fn waiting(key: &'static str) -> Setting {
        fn closed(texts: &[(Place, &str)], now: Timestamp) -> Found {
            let mut left = Vec::new();
            for (of, text) in texts {
                let malformed = || Malformed { of: of.clone(), text: (*text).to_owned(), allowed: "seconds" };
                left.push(if *text == "never" { i64::MAX } else { text.parse().map_err(|_| malformed())? });
            }
            let longest = left.into_iter().max().filter(|left| *left > 0);
            let until = |left| Until {
                opens: (left < i64::MAX).then(|| now + SignedDuration::from_secs(left)),
                reason: format!("{left} s"),
            };
            Ok(longest.map(until))
        }
        Setting { key, check: |_| Ok(()), closed }
    }

    #[test]
    fn malformed_settings_come_before_the_last_to_open() {
        let settings = [waiting("confrev.dev/a"), waiting("confrev.dev/b")];
        let texts = |a: &str, b: &str| {
            let text = |key, text: &str| (!text.is_empty()).then(|| (key, Box::from(text)));
            Texts(Some([text("confrev.dev/a", a), text("confrev.dev/b", b)].into_iter().flatten().collect()))
        };
        for (workload, namespace, expected) in [
            (("0", "0"), ("", ""), None),
            (("5", "0"), ("", ""), Some(("a", Some(5)))),
            (("5", "7"), ("", ""), Some(("b", Some(7)))),
            (("5", ""), ("7", "6"), Some(("a", Some(7)))),
            (("never", "7"), ("", ""), Some(("a", None))),
            (("never", "soon"), ("", ""), Some(("b", Some(-1)))),
            (("never", ""), ("", "soon"), Some(("b", Some(-1)))),
        ] {
            let (own, of_namespace) = (texts(workload.0, workload.1), texts(namespace.0, namespace.1));
            let stated = [(Place::Workload, &own), (Place::Namespace, &of_namespace)];
            let found = closed_by(&settings, &stated, Timestamp::UNIX_EPOCH).map(|closed| match closed {
                Closed::Invalid { name, .. } => (name, Some(-1)),
                Closed::Until { name, opens, .. } => (name, opens.map(Timestamp::as_second)),
            });
            assert_eq!(found, expected, "{workload:?}, namespace {namespace:?}");
        }
    }

    /// Every record reads all of them, whatever the object.
    #[test]
    fn every_setting_is_allowed_on_each_object() {
        for key in keys() {
            let rows = KEYS.iter().filter(|row| row.name == key);
            let on: Vec<_> = rows.flat_map(|row| row.on).collect();
            assert!(
                [On::Workload, On::Source, On::Namespace].iter().all(|object| on.contains(&object)),
                "{key}"
            );
        }
    }

    /// What is too long is cut, and must not become valid.
    #[test]
    fn every_setting_refuses_long_values() {
        for setting in SETTINGS {
            let long = " ".repeat(annotations::LONGEST + 1);
            let allowed = (setting.check)(&long).expect_err(setting.key);
            assert!(allowed.contains("bytes"), "{}: {allowed}", setting.key);
        }
    }
}
