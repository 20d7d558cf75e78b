//! The bodies of patches.

use serde_json::{Value, json};

use crate::{annotations, world::Precondition};

/// The patch formats in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchFormat {
    Json,
    Merge,
    StrategicMerge,
}

impl PatchFormat {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::StrategicMerge => "application/strategic-merge-patch+json",
        }
    }
}

/// Writes `roll`, on a condition. In a JSON patch, a test for `null` passes where the field is missing. The API
/// server's library (evanphx/json-patch) does so, and tests check it.
pub(super) fn poke_body(condition: &Precondition, roll: &str) -> (PatchFormat, Value) {
    let pointer = |map: &str, key: &str| format!("/metadata/{map}/{}", annotations::pointer_token(key));
    let absent = |path: String| json!({"op": "test", "path": path, "value": null});
    match condition {
        Precondition::Version(version) => {
            let metadata = json!({"resourceVersion": version, "annotations": {annotations::ROLL: roll}});
            (PatchFormat::Merge, json!({"metadata": metadata}))
        }
        Precondition::Unlabelled { has_labels, has_annotations } => {
            let label = if *has_labels {
                pointer("labels", annotations::ENABLED)
            } else {
                "/metadata/labels".to_owned()
            };
            let mut operations = vec![absent(label)];
            if *has_annotations {
                let path = pointer("annotations", annotations::ROLL);
                operations.push(json!({"op": "add", "path": path, "value": roll}));
            } else {
                operations.push(absent("/metadata/annotations".to_owned()));
                let value = json!({annotations::ROLL: roll});
                operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": value}));
            }
            (PatchFormat::Json, Value::Array(operations))
        }
    }
}
