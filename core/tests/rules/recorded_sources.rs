//! Snapshots of Secrets that record where their source is.

use std::sync::Arc;

use confrev::{
    annotations,
    resolve::Observed,
    snapshot::{DigestKey, Identity, Keying, Made, SourceKind, snapshot_json, snapshot_name},
};
use jiff::Timestamp;
use serde_json::{Value, json};

fn keying(namespace: &str) -> Keying {
    Keying::new(namespace, Arc::from([DigestKey::new(&[1; 32])]))
}

fn read(namespace: &str, object: &Value) -> Observed {
    Observed::read_keyed(SourceKind::Secret, object.to_string().into_bytes(), keying(namespace)).unwrap()
}

fn secret(name: &str, pin: &str) -> Value {
    json!({"metadata": {"name": name, "uid": "u"}, "type": "Opaque", "data": {"pin": pin}})
}

/// The snapshot of this source, as the API server stores it.
fn snapshot_of(namespace: &str, of: &Observed, source: &str) -> Value {
    let identity = Identity { source: source.to_owned(), digest: of.digest() };
    let name = snapshot_name(source, &of.digest(), 10);
    copy(namespace, of, &identity, &name)
}

fn copy(namespace: &str, of: &Observed, identity: &Identity, name: &str) -> Value {
    let made = Made::at(Timestamp::MAX);
    let json = snapshot_json(SourceKind::Secret, namespace, name, identity, of.json(), &[], made).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Who may create Secrets, and sees the names of snapshots, must not be able to test guesses.
#[test]
fn guess_under_another_name_has_another_digest() {
    let hidden = read("shop", &secret("db", "MTIzNA=="));
    let guess = read("shop", &secret("guess", "MTIzNA=="));
    assert!(
        hidden
            .digests()
            .iter()
            .filter(|digest| digest.key().is_some())
            .all(|digest| !guess.digests().contains(digest))
    );
    assert_ne!(hidden.digest().hex(10), guess.digest().hex(10));
    assert!(hidden.same_content(&guess), "confrev itself can still compare them");
}

/// An object claims to be a snapshot only under the name of one, and with both labels, which the guard keeps from others.
#[test]
fn copied_or_unlabelled_snapshot_is_a_source() {
    let hidden = read("shop", &secret("db", "MTIzNA=="));
    let mut claim = snapshot_of("shop", &hidden, "db");
    assert_eq!(read("shop", &claim).digest(), hidden.digest());
    assert!(read("shop", &claim).is_sound());
    let name = claim["metadata"]["name"].take();
    claim["metadata"]["name"] = json!("guess");
    let copy = read("shop", &claim);
    assert_eq!((copy.identity(), copy.is_sound()), (None, false));
    assert_eq!(copy.digest(), read("shop", &secret("guess", "MTIzNA==")).digest());
    claim["metadata"]["name"] = name;
    for label in [annotations::MANAGED_BY, annotations::SOURCE] {
        let mut other = claim.clone();
        other["metadata"]["labels"].as_object_mut().unwrap().remove(label);
        assert_eq!(
            read("shop", &other).digest(),
            read("shop", &secret(&name_of(&claim), "MTIzNA==")).digest()
        );
    }
}

#[test]
fn snapshot_restored_into_another_namespace_is_sound() {
    let source = read("shop", &secret("db", "MTIzNA=="));
    let stored = snapshot_of("shop", &source, "db");
    assert_eq!(stored["metadata"]["annotations"][annotations::SOURCE_NAMESPACE], "shop");
    for namespace in ["shop", "restored"] {
        let restored = read(namespace, &stored);
        assert!(restored.is_snapshot_of("db", &source.digest()), "in {namespace}");
        let mut forged = stored.clone();
        forged["data"]["pin"] = json!("MTIzNQ==");
        assert!(!read(namespace, &forged).is_sound(), "in {namespace}: with other content");
    }
    // Its source, restored beside it, is another one: its content has a digest of its own.
    let beside = read("restored", &secret("db", "MTIzNA=="));
    assert_ne!(beside.digest(), source.digest());
    assert!(beside.same_content(&read("restored", &stored)));
}

/// A lost snapshot is made again from memory under its name, which follows from the recorded namespace.
#[test]
fn copy_of_restored_snapshot_keeps_its_namespace() {
    let stored = snapshot_of("shop", &read("shop", &secret("db", "MTIzNA==")), "db");
    let restored = read("restored", &stored);
    let name = stored["metadata"]["name"].as_str().unwrap();
    let again = copy("restored", &restored, restored.identity().unwrap(), name);
    assert_eq!(again["metadata"]["annotations"][annotations::SOURCE_NAMESPACE], "shop");
    assert!(read("restored", &again).is_sound());
    // A snapshot of the source beside it records that source.
    let source = read("restored", &secret("db", "MTIzNA=="));
    let identity = Identity { source: "db".to_owned(), digest: source.digest() };
    let own = copy("restored", &restored, &identity, &snapshot_name("db", &source.digest(), 10));
    assert_eq!(own["metadata"]["annotations"][annotations::SOURCE_NAMESPACE], "restored");
    assert!(read("restored", &own).is_sound());
}

/// The size of a Secret must not show the length of a value.
#[test]
fn recorded_size_is_in_whole_kib() {
    for (length, size) in [(0, "1024"), (4, "1024"), (2000, "2048"), (2040, "3072")] {
        let of = read("shop", &secret("db", &"MTIz".repeat(length / 4)));
        assert_eq!(
            snapshot_of("shop", &of, "db")["metadata"]["annotations"][annotations::BYTES],
            size,
            "{length}"
        );
    }
    let of = read("shop", &secret("db", &"MTIz".repeat(253)));
    assert_eq!(snapshot_of("shop", &of, "db")["metadata"]["annotations"][annotations::BYTES], "1024");
    // A ConfigMap's snapshots are the same in every namespace.
    let json = br#"{"metadata": {"name": "demo"}, "data": {"color": "blue"}}"#;
    let of = Observed::read(SourceKind::ConfigMap, &json[..]).unwrap();
    let identity = Identity { source: "demo".to_owned(), digest: of.digest() };
    let made = Made::at(Timestamp::MAX);
    let json =
        snapshot_json(SourceKind::ConfigMap, "shop", "demo-1", &identity, of.json(), &[], made).unwrap();
    let stored: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(stored["metadata"]["annotations"][annotations::BYTES], "1024");
    assert_eq!(stored["metadata"]["annotations"].get(annotations::SOURCE_NAMESPACE), None);
}

/// The newest entry of `managedFields` names the author, but not one in the future.
#[test]
fn snapshot_records_no_change_in_the_future() {
    let entry = |manager: &str, time: &str| json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1": {"f:data": {"f:pin": {}}}});
    let mut source = secret("db", "MTIzNA==");
    source["metadata"]["managedFields"] =
        json!([entry("alice-laptop", "2099-01-01T00:00:00Z"), entry("the-admin", "2026-01-01T00:00:00Z")]);
    let of = read("shop", &source);
    let identity = Identity { source: "db".to_owned(), digest: of.digest() };
    for (at, author) in
        [("2026-01-01T00:00:05Z", "the-admin (Update)"), ("2099-01-01T00:00:05Z", "alice-laptop (Update)")]
    {
        let made = Made::at(at.parse().unwrap());
        let json =
            snapshot_json(SourceKind::Secret, "shop", "db-1", &identity, of.json(), &[], made).unwrap();
        let stored: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(stored["metadata"]["annotations"][annotations::CHANGED_BY], author, "{at}");
    }
}
