//! Contents that the installation refuses from the start: the ConfigMap `confrev-refused` in confrev's namespace.
//!
//! Equal contents of ConfigMaps have equal digests in every cluster, so a refusal can travel before the content does. The digests of
//! Secrets use a key of the installation: a list that all users may read would test guesses.

use std::collections::BTreeMap;

use crate::{
    annotations,
    snapshot::{Digest, SourceKind},
};

/// The name of the ConfigMap.
pub const REFUSED_CONTENTS: &str = "confrev-refused";

/// The refused contents, each with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedContents(BTreeMap<Digest, Box<str>>);

impl RefusedContents {
    /// Reads the data of the ConfigMap. Each line of a value is a digest as snapshots state it, and optionally a reason; lines that begin
    /// with `#` are comments. Returns the lines that are neither, by their key and number, too. They refuse nothing.
    pub fn read<'d>(data: impl IntoIterator<Item = (&'d str, &'d str)>) -> (Self, Vec<String>) {
        let (mut contents, mut invalid) = (BTreeMap::new(), Vec::new());
        for (key, value) in data {
            for (number, line) in (1..).zip(value.lines()) {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let (digest, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
                match digest.parse::<Digest>().ok().filter(|digest| digest.key().is_none()) {
                    Some(digest) => {
                        contents.entry(digest).or_insert_with(|| annotations::bounded(reason.trim()).into());
                    }
                    None => invalid.push(format!("line {number} of key {key:?}")),
                }
            }
        }
        (Self(contents), invalid)
    }

    /// Why the content of such a source, with these digests, is refused; `None` if it is not.
    pub fn why<'d>(&self, kind: SourceKind, digests: impl IntoIterator<Item = &'d Digest>) -> Option<String> {
        if kind == SourceKind::Secret {
            return None;
        }
        let reason = digests.into_iter().find_map(|digest| self.0.get(digest))?;
        let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        Some(format!("ConfigMap {REFUSED_CONTENTS} lists it{reason}"))
    }

    /// How many contents are refused.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no content is refused.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(digit: &str) -> String {
        format!("sha256:{}", digit.repeat(64))
    }

    fn why(contents: &RefusedContents, digit: &str) -> Option<String> {
        contents.why(SourceKind::ConfigMap, [&digest(digit).parse().unwrap()])
    }

    #[test]
    fn each_line_refuses_a_content() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(digest);
        let first =
            format!("# crashed in the first cluster\n\n{a}\n  {b}   crashed  \r\nsha256:1\n{a} again");
        let keyed = format!("hmac-sha256:01234567:{}", "c".repeat(64));
        let second = format!("{d} it is slow\n{keyed}\nx {c}");
        let (contents, invalid) = RefusedContents::read([("first", &*first), ("second", &*second)]);
        assert_eq!(why(&contents, "a").as_deref(), Some("ConfigMap confrev-refused lists it"));
        assert_eq!(why(&contents, "b").as_deref(), Some("ConfigMap confrev-refused lists it (crashed)"));
        assert_eq!(why(&contents, "c"), None);
        assert_eq!(why(&contents, "d").as_deref(), Some("ConfigMap confrev-refused lists it (it is slow)"));
        assert_eq!(
            invalid,
            ["line 5 of key \"first\"", "line 2 of key \"second\"", "line 3 of key \"second\""]
        );
        assert_eq!(contents.len(), 3);
        assert_eq!(RefusedContents::read([]), (RefusedContents::default(), Vec::new()));
    }
}
