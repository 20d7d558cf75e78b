//! The memory of the facts that a decision reads.

use confrev::{
    resolve::{Facts, Observed},
    snapshot::{ObjectName, SourceKind},
};
use serde_json::json;

/// A content of 1 MiB may have a hundred thousand keys, which are kept apart from its text.
#[test]
fn many_small_keys_count_with_their_memory() {
    let size = |keys: usize| {
        let data: serde_json::Map<_, _> = (0..keys).map(|key| (format!("{key:05}"), json!(""))).collect();
        let metadata = json!({"name": "demo", "uid": "1", "resourceVersion": "1"});
        let text = json!({"metadata": metadata, "data": data}).to_string();
        let mut facts = Facts::default();
        let name = ObjectName::new(SourceKind::ConfigMap, "demo");
        let observed = Observed::read(SourceKind::ConfigMap, text.into_bytes()).unwrap();
        facts.set_object(name.clone(), Some(observed));
        let (_, bytes) = facts.size();
        facts.set_object(name, None);
        assert_eq!(facts.size().1, 0);
        bytes
    };
    assert!(size(1) < 300, "{}", size(1));
    // In a B-tree, a key takes 24 bytes and its text, which is allocated, at least 24 more.
    assert!(size(10_000) > 10_000 * 60, "{}", size(10_000));
}
