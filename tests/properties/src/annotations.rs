//! Every label and annotation that users write, and confrev's parsing of its own.

use confrev::{
    annotations,
    kinds::{Kinds, WorkloadKind},
    resolve::{Plan, Policy, Workload, auto_roll_time, parse_duration, parse_keep, parse_max_in_flight},
    snapshot::{Digest, is_object_name, snapshot_name, source_label},
    template::{SourceMap, revision_of},
};
use jiff::Timestamp;
use serde_json::json;

use super::template;

/// The limit of the total size of an object's annotations; source: `TotalAnnotationSizeLimitB` of Kubernetes.
const MOST: usize = 256 * 1024;

/// Checks a value of an annotation.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if text.len() > MOST {
        return;
    }
    if let Some(duration) = parse_duration(text) {
        assert!(duration.as_secs() < 100 * 365 * 86_400, "{text:?}: too long to add to a clock");
    }
    assert!(parse_keep(Some(text)).is_none_or(|keep| keep <= 1000), "{text:?}");
    assert!(parse_max_in_flight(text).is_none_or(|count| count > 0), "{text:?}");
    if let Some(at) = auto_roll_time(text) {
        // The value has milliseconds, so a time survives writing and reading to the millisecond.
        let again = auto_roll_time(&Plan::every(at, true).to_value()).map(Timestamp::as_millisecond);
        assert!(again.is_none_or(|again| (again - at.as_millisecond()).abs() <= 1), "{text:?}");
    }
    if let Some(map) = SourceMap::<String>::parse(text) {
        assert_eq!(SourceMap::parse(&map.to_annotation()), Some(map), "{text:?}");
    }
    if let Some(map) = SourceMap::<Digest>::parse(text) {
        assert_eq!(SourceMap::parse(&map.to_annotation()), Some(map), "{text:?}");
    }
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!(digest.to_string(), text);
    }
    if let Ok(kind) = text.parse::<WorkloadKind>() {
        assert!(
            Kinds::with(std::slice::from_ref(&kind)).by_resource(&kind.group, &kind.plural).is_some(),
            "{text:?}"
        );
    }
    let digest = Digest::of_bytes(text);
    assert_eq!(revision_of(text).len(), 10);
    assert!(source_label(text).len() <= 63, "{text:?}");
    let name = snapshot_name(text, &digest, 64);
    assert!(name.len() <= 253, "{text:?}");
    assert!(!is_object_name(text) || is_object_name(&name), "{text:?}: {name:?}");
    on_a_workload(text);
}

/// Checks the value in each annotation of a workload in turn.
fn on_a_workload(text: &str) {
    let kinds = Kinds::default();
    let kind = kinds.by_resource("apps", "deployments").unwrap();
    for key in annotations::decided() {
        let mut object = template::deployment();
        object["metadata"]["annotations"] = json!({key: text});
        let json = object.to_string();
        let workload = Workload::parse(kind, &json).expect("a valid workload");
        let (policy, errors) = Policy::read(&workload);
        if errors.is_empty() {
            for mounted in policy.mount.iter().flat_map(|mount| &mount.names) {
                assert!(is_object_name(mounted), "{text:?}: {mounted}");
            }
        }
        assert!(errors.iter().all(|error| error.contains(key)), "{text:?}: {errors:?}");
        template::check_object(kind, &object, true);
    }
    let mut object = template::deployment();
    object["spec"]["template"]["metadata"]["annotations"] = json!({annotations::SOURCES: text});
    template::check_object(kind, &object, true);
    object["metadata"]["labels"][annotations::ENABLED] = json!(text);
    template::check_object(kind, &object, true);
}
