//! Digests and names against vectors that were made without this code.

use confrev::snapshot::{Object, SourceKind, snapshot_name};
use serde_json::Value;

/// The vectors stand in the tests' own folder, so that they are there wherever the repository is.
const VECTORS: &str = include_str!("digest-vectors.json");

#[test]
fn every_vector_has_its_digest_and_its_name() {
    let vectors: Vec<Value> = serde_json::from_str(VECTORS).unwrap();
    assert!(!vectors.is_empty());
    for vector in vectors {
        let kind = if vector["kind"] == "secret" { SourceKind::Secret } else { SourceKind::ConfigMap };
        let text = vector.to_string();
        let digest = Object::parse(text.as_bytes()).unwrap().digest(kind).unwrap();
        assert_eq!(digest.hex(64), vector["sha256"].as_str().unwrap(), "{vector}");
        assert_eq!(snapshot_name("demo", &digest, 10), vector["name"].as_str().unwrap());
    }
}

/// As the API server reads it, and stores it in its own way.
#[test]
fn bits_that_base64_leaves_over_do_not_count() {
    let digest = |text: &str| {
        let object = serde_json::json!({"metadata": {"name": "a"}, "data": {"k": text}}).to_string();
        Object::parse(object.as_bytes()).unwrap().digest(SourceKind::Secret).ok()
    };
    assert!(digest("QQ==").is_some());
    assert_eq!(digest("QR=="), digest("QQ=="));
    assert_ne!(digest("Qg=="), digest("QQ=="));
    assert_eq!(digest("Q==="), None);
}
