//! The files that pages load: the style, the script, and the library that updates a page in place. All are in the binary.

/// A file.
#[derive(Debug)]
pub(super) struct Asset {
    /// Its name.
    pub(super) name: &'static str,
    /// Its media type.
    pub(super) kind: &'static str,
    /// Its content.
    pub(super) text: &'static str,
}

/// All files. idiomorph 0.8.0 (npm package `idiomorph`, licence 0BSD, in `assets/idiomorph.LICENSE`) is as its authors published it.
pub(super) const ASSETS: [Asset; 4] = [
    Asset { name: "style.css", kind: "text/css; charset=utf-8", text: include_str!("assets/style.css") },
    Asset { name: "page.js", kind: "text/javascript; charset=utf-8", text: include_str!("assets/page.js") },
    Asset {
        name: "idiomorph.min.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("assets/idiomorph.min.js"),
    },
    Asset { name: "icon.svg", kind: "image/svg+xml", text: include_str!("assets/icon.svg") },
];

/// The file with this name.
pub(super) fn asset(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Digest;

    /// A new version of the library needs a review, and its digest here.
    #[test]
    fn vendored_library_is_the_published_one() {
        let library = asset("idiomorph.min.js").unwrap();
        assert_eq!(
            Digest::of_bytes(library.text.as_bytes()).hex(64),
            "4cbd535caf7663a51eda9bce6595371c384fc430d54b8d414e29a61167f19f96"
        );
        assert!(include_str!("assets/idiomorph.LICENSE").contains("Zero-Clause BSD"));
    }

    /// The policy of the pages forbids both, so they would fail.
    #[test]
    fn files_load_nothing_from_elsewhere() {
        for asset in &ASSETS {
            for part in
                ["eval(", "new Function", "import(", "@import", "url(", "<script", "fetch(\"http", "href="]
            {
                assert!(!asset.text.contains(part), "{}: {part}", asset.name);
            }
        }
    }
}
