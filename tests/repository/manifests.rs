//! People read the manifests.

use std::{fs, path::Path};

/// Comments explain the parts that a reviewer must know, no template comment remains, and lines are short.
#[test]
fn manifests_have_comments_and_no_ca_bundle() {
    for file in ["self-signed.yaml", "cert-manager.yaml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(file);
        let text = fs::read_to_string(path).unwrap();
        for comment in [
            "# confrev with certificates",
            "# No wildcards, and no Secrets",
            "# The guard:",
            "# What confrev itself may write.",
            "# Opted in by ",
        ] {
            assert!(text.lines().any(|line| line.starts_with(comment)), "{file} lacks {comment:?}");
        }
        assert!(!text.contains("caBundle:") && !text.contains("# Source:"), "{file}");
        // A regular expression is one literal: the API server could not estimate the cost of several.
        let is_short = |line: &str| line.len() <= 120 || line.contains(".matches(r'");
        let untidy = text.lines().find(|line| !is_short(line) || line.trim_end() != *line);
        assert_eq!(untidy, None, "{file} is not tidy");
        let first = text.lines().find(|line| line.starts_with("kind: "));
        assert_eq!(first, Some("kind: Namespace"), "{file} begins with the Namespace of the other objects");
    }
}
