//! The digest of a ConfigMap's or Secret's content, and the snapshot of that content.

use std::collections::BTreeMap;

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use confrev::{
    resolve::Observed,
    snapshot::{Identity, Made, Object, SourceKind, snapshot_json, snapshot_name},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::world::{self, NAMESPACE};

/// Checks an object that might come from an API server.
pub fn check(json: &[u8]) {
    // Numbers out of range and more than 128 levels cannot be parsed as `Value`.
    let object = serde_json::from_slice::<Value>(json).ok();
    let is_list = json.trim_ascii_start().starts_with(b"[");
    if is_list || object.as_ref().is_some_and(|object| !world::has_form(object)) {
        return;
    }
    for kind in [SourceKind::ConfigMap, SourceKind::Secret] {
        let Ok(observed) = Observed::read(kind, json) else { continue };
        let digest = observed.digest();
        let identity = Identity { source: "demo".to_owned(), digest };
        let name = snapshot_name(&identity.source, &digest, 10);
        let made =
            snapshot_json(kind, NAMESPACE, &name, &identity, json, &[], Made::at(jiff::Timestamp::MAX))
                .expect("a readable object");
        let made = Observed::read(kind, made).expect("a snapshot can be read");
        assert!(made.is_snapshot_of("demo", &digest), "the snapshot holds the content");
        let Some(object) = &object else { continue };
        assert_eq!(digest.to_string(), format!("sha256:{}", by_hand(kind, object)), "{object}");
        // `Value` sorts the keys, and the metadata is of another object.
        let mut other = object.clone();
        other["metadata"] = json!({"name": "other", "uid": "u"});
        let other = other.to_string();
        let other = Object::parse(other.as_bytes()).expect("the same content");
        assert_eq!(other.digest(kind).ok(), Some(digest), "only content counts");
    }
}

/// The digest by the definition in the docs, computed independently.
fn by_hand(kind: SourceKind, object: &Value) -> String {
    let map = |field: &str| object[field].as_object().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Go's decoder ignores line breaks, and bits of the last digit that are part of no byte.
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(&STANDARD, config);
    let decode = |value: &Value| engine.decode(text(value).replace(['\r', '\n'], "")).expect("base64");
    let mut entries: BTreeMap<Vec<u8>, (u8, Vec<u8>)> = BTreeMap::new();
    let mut all = Vec::new();
    match kind {
        SourceKind::ConfigMap => {
            all.extend_from_slice(b"confrev/v1/configmap\n");
            let plain = map("data").into_iter().map(|(key, value)| (key, (b'd', text(&value).into_bytes())));
            let binary = map("binaryData").into_iter().map(|(key, value)| (key, (b'b', decode(&value))));
            entries.extend(plain.chain(binary).map(|(key, value)| (key.into_bytes(), value)));
        }
        SourceKind::Secret => {
            all.extend_from_slice(b"confrev/v1/secret\n");
            let of_type = Some(text(&object["type"])).filter(|text| !text.is_empty());
            let of_type = of_type.unwrap_or_else(|| "Opaque".to_owned());
            all.extend(u32::try_from(of_type.len()).unwrap().to_be_bytes());
            all.extend(of_type.bytes());
            let data = map("data").into_iter().map(|(key, value)| (key.into_bytes(), (b'b', decode(&value))));
            entries.extend(data);
        }
    }
    for (key, (tag, value)) in entries {
        all.push(tag);
        all.extend(u32::try_from(key.len()).unwrap().to_be_bytes());
        all.extend(key);
        all.extend((value.len() as u64).to_be_bytes());
        all.extend(value);
    }
    Sha256::digest(all).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
