//! Digests and names against vectors that another implementation produced.

use std::sync::Arc;

use confrev::snapshot::{Digest, DigestKey, Keying, Object, SourceKind, snapshot_name};
use serde_json::Value;

/// The vectors are in the tests' own folder, so that every copy of the repository has them.
const VECTORS: &str = include_str!("digest-vectors.json");

/// Vectors that another implementation of HMAC produced.
const KEYED: &str = include_str!("keyed-digest-vectors.json");

#[test]
fn vectors_match_digests_and_names() {
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

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn keyed_vectors_match_digests() {
    let vectors: Vec<Value> = serde_json::from_str(KEYED).unwrap();
    assert!(vectors.len() > 5);
    let mut seen = std::collections::BTreeSet::new();
    for vector in vectors {
        let text = |field: &str| vector[field].as_str().unwrap();
        let key = DigestKey::new(&bytes(text("key")).try_into().unwrap());
        let keying = Keying::new(text("namespace"), Arc::from([key]));
        let json = vector.to_string();
        let object = Object::parse(json.as_bytes()).unwrap();
        let digests = object.digests(SourceKind::Secret, &keying, None).unwrap();
        assert_eq!(digests.current().to_string(), text("digest"));
        assert_eq!(text("digest").parse::<Digest>(), Ok(digests.current()));
        assert_eq!(snapshot_name(object.name(), &digests.current(), 10), text("name"));
        let plain = object.digest(SourceKind::Secret).unwrap();
        assert!(
            !digests.contains(&plain) && digests.iter().all(|digest| digest.key().is_some()),
            "a plain digest counts"
        );
        assert!(seen.insert(digests.current()), "two vectors have one digest");
    }
}

#[test]
fn refuses_malformed_digests() {
    let hex = "0a".repeat(32);
    for text in [
        "",
        &hex,
        &format!("sha512:{hex}"),
        &format!("hmac-sha256:{hex}"),
        &format!("hmac-sha256:00000000:{hex}"),
        &format!("hmac-sha256:0123456:{hex}"),
        &format!("hmac-sha256:0123456G:{hex}"),
        &format!("hmac-sha256:01234567:{hex}0"),
    ] {
        assert!(text.parse::<Digest>().is_err(), "{text}");
    }
    assert!(format!("hmac-sha256:01234567:{hex}").parse::<Digest>().is_ok());
}

/// The API server accepts such a text, and stores it in its canonical form.
#[test]
fn trailing_base64_bits_do_not_change_digest() {
    let digest = |text: &str| {
        let object = serde_json::json!({"metadata": {"name": "a"}, "data": {"k": text}}).to_string();
        Object::parse(object.as_bytes()).unwrap().digest(SourceKind::Secret).ok()
    };
    assert!(digest("QQ==").is_some());
    assert_eq!(digest("QR=="), digest("QQ=="));
    assert_ne!(digest("Qg=="), digest("QQ=="));
    assert_eq!(digest("Q==="), None);
}
