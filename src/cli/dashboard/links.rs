//! The addresses of pages: on the server, or relative in a report on disk.

use std::fmt::Write as _;

use crate::snapshot::ObjectName;

/// The first part of all paths of one run of the server, which no other program knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RunPath([u8; 32]);

impl std::fmt::Debug for RunPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunPath")
    }
}

impl RunPath {
    /// The path with these characters, which are 32 digits.
    pub(super) fn new(digits: &str) -> Self {
        let mut path = [b'0'; 32];
        path.iter_mut().zip(digits.bytes()).for_each(|(to, from)| *to = from);
        Self(path)
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The form of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// Pages of the server, below this path.
    Server(RunPath),
    /// Files of a report. A page in a folder goes up this many folders to the report's own folder.
    Files(usize),
}

impl Links {
    /// Whether the page belongs to a report, which has no actions and no updates.
    pub(super) const fn is_report(self) -> bool {
        matches!(self, Self::Files(_))
    }

    fn root(self) -> String {
        match self {
            Self::Server(path) => format!("/{}/", path.text()),
            Self::Files(up) => "../".repeat(up),
        }
    }

    fn page(self, parts: &[&str]) -> String {
        let path: Vec<_> = parts.iter().map(|part| segment(part)).collect();
        let end = if self.is_report() { ".html" } else { "" };
        format!("{}{}{end}", self.root(), path.join("/"))
    }

    /// The overview.
    pub(super) fn overview(self) -> String {
        if self.is_report() { self.root() + "index.html" } else { self.root() }
    }

    /// An asset.
    pub(super) fn asset(self, name: &str) -> String {
        format!("{}assets/{name}", self.root())
    }

    /// The path of an action, or of another part of the server.
    pub(super) fn at(self, path: &str) -> String {
        self.root() + path
    }

    /// The page of a workload, given as `Kind/name`.
    pub(super) fn workload(self, namespace: &str, reference: &str) -> String {
        let (kind, name) = reference.split_once('/').unwrap_or(("", reference));
        self.page(&["workloads", namespace, &kind.to_lowercase(), name])
    }

    /// The page of a source.
    pub(super) fn source(self, namespace: &str, source: &ObjectName) -> String {
        self.page(&["sources", namespace, &source.kind.as_str().to_lowercase(), &source.name])
    }

    /// The comparison of two contents of a source. A report has the page of the source only.
    pub(super) fn compare(self, namespace: &str, source: &ObjectName, from: &str, to: &str) -> String {
        let page = self.source(namespace, source);
        if self.is_report() {
            page
        } else {
            format!("{page}?from={}&to={}#compare", segment(from), segment(to))
        }
    }
}

/// A part of a path, or a value of a query. Everything but plain characters is encoded, so a name cannot leave its place.
pub(super) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    // A segment of dots would be a folder.
    let is_dots = text.bytes().all(|byte| byte == b'.');
    for byte in text.bytes() {
        if is_plain(byte) && !is_dots {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::SourceKind;

    #[test]
    fn names_stay_in_their_segment() {
        let source = ObjectName::new(SourceKind::ConfigMap, "../a?b=c#d\"'<é");
        let server = Links::Server(RunPath::new(&"7".repeat(32)));
        assert_eq!(
            server.source("..", &source),
            "/77777777777777777777777777777777/sources/%2E%2E/configmap/..%2Fa%3Fb%3Dc%23d%22%27%3C%C3%A9"
        );
        assert_eq!(
            Links::Files(3).workload("shop", "Deployment/web"),
            "../../../workloads/shop/deployment/web.html"
        );
        assert_eq!(server.overview(), format!("/{}/", "7".repeat(32)));
    }
}
