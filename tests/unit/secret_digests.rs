//! Keyed digests of Secrets: other and lost keys, and forged reviews.

use std::sync::Arc;

use confrev::{
    annotations,
    controller::{Action, Config, Outcome, State},
    kinds::Kinds,
    resolve::{Facts, Health, Observed},
    snapshot::{
        CopiedLabel, Digest, DigestKey, Identity, Keying, Made, ObjectName, SourceKind, snapshot_json,
        spare_name,
    },
    world::{DigestKeys, Name, SnapshotRecord, SourceMeta},
};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    controller::{Desk, key, record},
    story::{poke, undo},
    world::{NAMESPACE, World, annotate, deployment, remembered, state_of, template},
};

/// Keying with keys of these bytes, the present key first.
pub(crate) fn keying(bytes: &[u8]) -> Keying {
    let keys: Vec<_> = bytes.iter().map(|byte| DigestKey::new(&[*byte; 32])).collect();
    Keying::new(NAMESPACE, Arc::from(keys))
}

pub(crate) fn secret(name: &str) -> ObjectName {
    ObjectName::new(SourceKind::Secret, name)
}

/// A world with the Secret `demo`, digested under these keys.
fn world(keys: &[u8], password: &str) -> World {
    let mut world = World { keying: keying(keys), ..World::default() };
    set(&mut world, password);
    world
}

pub(crate) fn set(world: &mut World, password: &str) {
    let object = json!({
        "metadata": {"name": "demo", "namespace": NAMESPACE, "uid": "u", "resourceVersion": password},
        "type": "Opaque",
        "data": {"password": password, "user": "c2hvcA=="},
    });
    world.objects.insert(secret("demo"), object);
}

/// A Deployment with the Secret `demo`, whose Secrets are resolved.
pub(crate) fn web() -> Value {
    let mut object = deployment(&[]);
    object["spec"]["template"]["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "demo"}}]);
    annotate(&mut object, annotations::SECRETS, "true");
    object
}

pub(crate) fn volume(object: &Value) -> &str {
    object["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"].as_str().unwrap()
}

fn seen(object: &Value) -> String {
    let seen = remembered(object, "seen");
    seen["secrets"]["demo"].as_str().unwrap().to_owned()
}

/// `kubectl apply`: the template of Git, the annotations that confrev wrote.
fn apply(world: &mut World, stored: &Value) -> Value {
    let mut new = stored.clone();
    new["spec"]["template"]["spec"] = web()["spec"]["template"]["spec"].clone();
    world.update(&new, stored)
}

const A: &str = "YQ==";
const B: &str = "Yg==";
const C: &str = "Yw==";

/// Every change of keys that an installation may make: to another key with or without the old key.
const MOVES: [(&[u8], &[u8]); 2] = [(&[1], &[2]), (&[1], &[2, 1])];

#[test]
fn names_and_digests_are_keyed() {
    let mut world = world(&[1], A);
    let stored = world.create(&web());
    assert!(seen(&stored).starts_with("hmac-sha256:"), "{}", seen(&stored));
    let snapshot = world.observe(&secret(volume(&stored))).unwrap();
    assert!(snapshot.is_sound());
    assert_eq!(snapshot.annotation(annotations::DIGEST), Some(seen(&stored)));
    let plain = Observed::read(SourceKind::Secret, snapshot.json().to_vec()).unwrap();
    assert!(!stored.to_string().contains(&plain.digest().hex(8)), "the plain digest is in the workload");
}

#[test]
fn keyed_digest_depends_on_namespace() {
    let json = json!({"metadata": {"name": "demo"}, "data": {"k": A}}).to_string();
    let digest = |namespace: &str| {
        let keying = Keying::new(namespace, Arc::from([DigestKey::new(&[1; 32])]));
        Observed::read_keyed(SourceKind::Secret, json.clone().into_bytes(), keying).unwrap().digest()
    };
    assert_ne!(digest("a"), digest("b"));
}

#[test]
fn other_or_lost_key_writes_nothing() {
    for (before, after) in MOVES {
        let mut world = world(before, A);
        let stored = world.create(&web());
        world.keying = keying(after);
        let objects = world.objects.clone();
        assert_eq!(apply(&mut world, &stored), stored, "{before:?} to {after:?}: applied");
        assert_eq!(world.update(&stored, &stored), stored, "{before:?} to {after:?}: admitted again");
        let poked = poke(&mut world, &stored, 1);
        assert_eq!(template(&poked), template(&stored), "{before:?} to {after:?}: poked");
        assert_eq!(world.objects, objects, "{before:?} to {after:?}: creates nothing");
        world.objects.remove(&secret("demo"));
        assert_eq!(apply(&mut world, &stored), stored, "{before:?} to {after:?}: applied without the source");
    }
}

#[test]
fn change_after_other_or_lost_key_rolls() {
    for (before, after) in MOVES {
        let mut world = world(before, A);
        let stored = world.create(&web());
        world.keying = keying(after);
        set(&mut world, B);
        let rolled = poke(&mut world, &stored, 1);
        assert_ne!(volume(&rolled), volume(&stored), "{before:?} to {after:?}");
        let current = world.observe(&secret("demo")).unwrap().digest().to_string();
        assert_eq!(seen(&rolled), current);
        let again = poke(&mut world, &rolled, 2);
        assert_eq!(template(&again), template(&rolled), "once");
    }
}

#[test]
fn undo_survives_other_and_lost_key() {
    for (before, after) in MOVES {
        let mut world = world(before, A);
        let first = world.create(&web());
        set(&mut world, B);
        let second = poke(&mut world, &first, 1);
        let undone = world.update(&undo(&second, &first), &second);
        assert_eq!(volume(&undone), volume(&first));
        world.keying = keying(after);
        let poked = poke(&mut world, &undone, 2);
        assert_eq!(
            volume(&poked),
            volume(&first),
            "{before:?} to {after:?}: the snapshot of B shows the seen content"
        );
        let mut edited = undone.clone();
        edited["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
        assert_eq!(volume(&world.update(&edited, &undone)), volume(&first), "{before:?} to {after:?}");
        set(&mut world, C);
        assert_ne!(volume(&poke(&mut world, &undone, 3)), volume(&first), "another change rolls");
    }
}

#[test]
fn undo_after_lost_key_resolves_to_old_snapshot() {
    let mut world = world(&[1], A);
    let first = world.create(&web());
    set(&mut world, B);
    let second = poke(&mut world, &first, 1);
    world.keying = keying(&[2]);
    let admitted = world.admit(&undo(&second, &first), Some(&second));
    assert_eq!(volume(&admitted.object), volume(&first));
    assert_eq!(admitted.decision.adopt, [secret(volume(&first))], "the snapshot is bound at once");
}

/// If it is unknown whether the content changed, an undo stays: as with `keep: "0"`, which leaves no snapshot of the content that the
/// undo rejects. The digest is replaced, so that the next change ends the undo.
#[test]
fn undo_survives_undecidable_content() {
    for reads_keys in [false, true] {
        let mut world = world(&[1], A);
        let mut object = web();
        if reads_keys {
            object["spec"]["template"]["spec"]["volumes"][0]["secret"]["items"] =
                json!([{"key": "password", "path": "password"}]);
        }
        let first = world.create(&object);
        set(&mut world, B);
        let second = poke(&mut world, &first, 1);
        let undone = world.update(&undo(&second, &first), &second);
        world.objects.remove(&secret(volume(&second)));
        world.keying = keying(&[2]);
        let mut edited = undone.clone();
        edited["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
        assert_eq!(volume(&world.update(&edited, &undone)), volume(&first), "{reads_keys}");
        let poked = poke(&mut world, &undone, 2);
        assert_eq!(template(&poked), template(&undone), "{reads_keys}");
        assert_eq!(seen(&poked), world.observe(&secret("demo")).unwrap().digest().to_string());
        let again = poke(&mut world, &poked, 3);
        assert_eq!(template(&again), template(&undone), "{reads_keys}");
        set(&mut world, C);
        assert_ne!(volume(&poke(&mut world, &again, 4)), volume(&first), "{reads_keys}: another change");
    }
}

/// It keeps its snapshot because the keys that it reads did not change.
#[test]
fn change_of_read_key_rolls_after_lost_key() {
    let mut world = world(&[1], A);
    let mut object = web();
    object["spec"]["template"]["spec"]["volumes"][0]["secret"]["items"] =
        json!([{"key": "password", "path": "password"}]);
    let first = world.create(&object);
    world.objects.get_mut(&secret("demo")).unwrap()["data"]["user"] = json!(C);
    let second = poke(&mut world, &first, 1);
    assert_eq!(template(&second), template(&first));
    world.keying = keying(&[2]);
    assert_eq!(template(&poke(&mut world, &second, 2)), template(&first));
    set(&mut world, B);
    assert_ne!(volume(&poke(&mut world, &second, 2)), volume(&first));
}

/// Its own snapshot states the content that it has seen, under a name with random digits.
#[test]
fn change_after_lost_key_rolls_spare_snapshot() {
    let mut world = world(&[1], A);
    let mut stored = world.create(&web());
    let usual = volume(&stored).to_owned();
    let spare = spare_name("demo", &world.observe(&secret("demo")).unwrap().digest(), "0123456789abcdef0123");
    let mut snapshot = world.objects.remove(&secret(&usual)).unwrap();
    snapshot["metadata"]["name"] = json!(spare);
    world.objects.insert(secret(&spare), snapshot);
    stored = serde_json::from_str(&stored.to_string().replace(&usual, &spare)).unwrap();
    world.keying = keying(&[2]);
    assert_eq!(volume(&poke(&mut world, &stored, 1)), spare);
    set(&mut world, B);
    assert_ne!(volume(&poke(&mut world, &stored, 2)), spare);
}

/// The key of the digest in `seen` is lost, and no snapshot states that digest. The workload's own snapshot has the present
/// content.
#[test]
fn only_the_controller_replaces_unknown_digest() {
    let mut world = world(&[1], A);
    let mut stored = world.create(&web());
    let unknown = format!("hmac-sha256:{}:{}", "f".repeat(8), "0".repeat(64));
    annotate(&mut stored, annotations::STATE, &state_of("seen", &json!({"secrets": {"demo": unknown}})));
    let mut edited = stored.clone();
    edited["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let edited = world.update(&edited, &stored);
    assert_eq!((volume(&edited), seen(&edited)), (volume(&stored), unknown));
    let poked = poke(&mut world, &stored, 1);
    assert_eq!(template(&poked), template(&stored));
    assert_eq!(seen(&poked), world.observe(&secret("demo")).unwrap().digest().to_string());
}

/// The key of the digest in `seen` is lost, and another object has taken the name of the snapshot with that digest.
#[test]
fn object_named_like_seen_snapshot_is_not_trusted() {
    let mut world = world(&[1], A);
    let first = world.create(&web());
    set(&mut world, B);
    let second = poke(&mut world, &first, 1);
    let undone = world.update(&undo(&second, &first), &second);
    let taken = secret(volume(&second));
    world.keying = keying(&[2]);
    set(&mut world, C);
    let content = world.observe(&secret("demo")).unwrap();
    set(&mut world, B);
    let identity = Identity { source: "demo".to_owned(), digest: content.digest() };
    let copy = snapshot_json(
        SourceKind::Secret,
        NAMESPACE,
        &taken.name,
        &identity,
        content.json(),
        &[],
        Made::at(Timestamp::MAX),
    )
    .unwrap();
    let of_user = json!({"metadata": {"name": *taken.name}, "type": "Opaque", "data": {"password": C}});
    for (what, object) in
        [("a snapshot", serde_json::from_slice(&copy).unwrap()), ("a user's object", of_user)]
    {
        world.objects.insert(taken.clone(), object);
        let mut edited = undone.clone();
        edited["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
        assert_eq!(volume(&world.update(&edited, &undone)), volume(&first), "{what} with another content");
    }
}

/// Anyone may send a review. Its response must not show whether the digest in `seen` is a correct guess.
#[test]
fn guessed_digest_in_a_review_changes_no_answer() {
    let mut world = world(&[1], A);
    let stored = world.create(&web());
    set(&mut world, B);
    let guess = |password: &str| {
        let json = json!({"metadata": {"name": "demo"}, "type": "Opaque",
            "data": {"password": password, "user": "c2hvcA=="}});
        Observed::read(SourceKind::Secret, json.to_string().into_bytes()).unwrap().digest()
    };
    for is_poke in [false, true] {
        let answers: Vec<_> = [A, B, C]
            .map(|password| {
                let mut old = stored.clone();
                annotate(
                    &mut old,
                    annotations::STATE,
                    &state_of("seen", &json!({"secrets": {"demo": guess(password)}})),
                );
                let mut new = old.clone();
                new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
                if is_poke {
                    annotate(&mut new, annotations::ROLL, "auto-2026-01-01T00:00:00Z *");
                }
                let answer = world.clone().update(&new, &old);
                (volume(&answer).to_owned(), seen(&answer) == guess(password).to_string())
            })
            .into();
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{is_poke}: {answers:?}");
    }
}

#[test]
fn forged_snapshot_is_not_used() {
    let mut world = world(&[1], A);
    let stored = world.create(&web());
    let name = secret(volume(&stored));
    // The name and the digest are those of the present content, but the content is another one.
    let snapshot = world.objects.get_mut(&name).unwrap();
    snapshot["data"]["password"] = json!(B);
    assert!(!world.observe(&name).unwrap().is_sound());
    let taken = world.create(&web());
    assert_ne!(volume(&taken), &*name.name);
    // A digest under an unknown key counts only if the object's name is made from it.
    let lost = Digest::to_string(&seen(&stored).replace(&seen(&stored)[12..20], "0badc0de").parse().unwrap());
    for (named, is_sound) in [(&*name.name, true), ("demo-0123456789", false)] {
        let mut poses = world.objects[&name].clone();
        poses["metadata"]["name"] = json!(named);
        poses["metadata"]["annotations"][annotations::DIGEST] = json!(lost);
        world.objects.insert(secret(named), poses);
        assert_eq!(world.observe(&secret(named)).unwrap().is_sound(), is_sound, "{named}");
    }
}

/// Anyone can compute a plain digest of a guess.
#[test]
fn snapshot_with_a_plain_digest_is_not_used() {
    let mut world = world(&[1], A);
    let stored = world.create(&web());
    let name = secret(volume(&stored));
    let mut claim = world.objects[&name].clone();
    let plain = Observed::read(SourceKind::Secret, claim.to_string().into_bytes()).unwrap().digest();
    claim["metadata"]["annotations"][annotations::DIGEST] = json!(plain.to_string());
    assert!(world.observe(&name).unwrap().is_sound());
    world.objects.insert(name.clone(), claim);
    assert!(!world.observe(&name).unwrap().is_sound());
}

#[test]
fn copied_labels_do_not_change_the_digest() {
    let identity = confrev::snapshot::Identity { source: "demo".to_owned(), digest: Digest::of_bytes("x") };
    let source = json!({
        "metadata": {"name": "demo", "labels": {
            "velero.io/exclude-from-backup": "true", "app.kubernetes.io/instance": "shop", "team": "a"}},
        "data": {"k": A},
    });
    let copied: Vec<CopiedLabel> =
        ["velero.io/exclude-from-backup", "absent"].iter().map(|key| key.parse().unwrap()).collect();
    let json = snapshot_json(
        SourceKind::Secret,
        NAMESPACE,
        "demo-1",
        &identity,
        source.to_string().as_bytes(),
        &[],
        Made { copied: &copied, at: Timestamp::MAX },
    )
    .unwrap();
    let snapshot: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(
        snapshot["metadata"]["labels"],
        json!({
            "app.kubernetes.io/managed-by": "confrev",
            "confrev.dev/source": "demo",
            "velero.io/exclude-from-backup": "true",
        })
    );
    let digest = |json: &[u8]| Observed::read(SourceKind::Secret, json.to_vec()).unwrap().digest();
    assert_eq!(digest(&json), digest(source.to_string().as_bytes()));
}

/// The controller, and one workload with the Secret `demo`.
struct Keeper {
    desk: Desk,
    world: World,
    stored: Value,
}

fn named(object: &str) -> Name {
    Name::new(NAMESPACE, secret(object))
}

impl Keeper {
    /// Starts the controller with this key.
    fn start(world: World, stored: Value, key_byte: u8, first_snapshots: bool) -> Self {
        let config = Config { rolls_per_second: 100, secrets: true, ..Config::default() };
        let keys = DigestKeys::default();
        keys.set(&[key_byte; 32]);
        let state = State::new(Arc::new(Kinds::default()), config).keyed_by(keys);
        let desk = Desk { state, now: Timestamp::from_second(1_000_000).unwrap() };
        let mut keeper = Self { desk, world, stored };
        keeper.world.keying = keying(&[key_byte]);
        if first_snapshots {
            keeper.list_snapshots();
        }
        let mut stored = keeper.stored.clone();
        stored["metadata"]["uid"] = json!("w");
        stored["metadata"]["resourceVersion"] = json!("1");
        let record = record(&stored, Health::Settled);
        keeper.desk.state.apply_workload(&key("web"), Some(record), keeper.desk.now);
        if !first_snapshots {
            keeper.work();
            keeper.list_snapshots();
        }
        keeper.desk.state.set_synced();
        keeper
    }

    fn list_snapshots(&mut self) {
        let names: Vec<_> = self.world.objects.keys().filter(|name| &*name.name != "demo").cloned().collect();
        for name in names {
            let record = SnapshotRecord {
                uid: name.name.as_ref().into(),
                resource_version: "1".into(),
                source: "demo".into(),
                digest: self.world.observe(&name).unwrap().identity().unwrap().digest,
                created: Timestamp::UNIX_EPOCH,
                late: 0,
                owners: std::iter::empty().collect(),
                verdict: None,
                bytes: 1024,
            };
            self.desk.state.apply_snapshot(&named(&name.name), Some(record), self.desk.now);
        }
    }

    /// Executes the tasks that are due, and returns the writes.
    fn work(&mut self) -> Vec<String> {
        let mut written = Vec::new();
        for (task, action) in self.desk.actions() {
            let read = |name: &Name| self.world.observe(&name.object);
            let outcome = match &action {
                Action::Read(name) => Outcome::Read(read(name).map(Box::new)),
                Action::Compare { source, snapshots } => {
                    let mut observed = read(source).unwrap();
                    for snapshot in snapshots {
                        observed.learn(&read(snapshot).unwrap());
                    }
                    Outcome::Read(Some(Box::new(observed)))
                }
                // Every test begins with writes of owners, which are not counted.
                Action::SetOwners { .. } => Outcome::Done,
                Action::Poke { .. } => {
                    written.push("poke".to_owned());
                    Outcome::Done
                }
                other => {
                    written.push(format!("{other:?}"));
                    Outcome::Done
                }
            };
            self.desk.state.finish(&task, Ok(outcome), self.desk.now);
        }
        written
    }

    /// The writes of half a minute.
    fn writes(&mut self) -> Vec<String> {
        let mut written = Vec::new();
        for _ in 0..30 {
            written.extend(self.work());
            self.desk.pass(1);
        }
        written
    }
}

#[test]
fn controller_writes_nothing_after_lost_key() {
    for first_snapshots in [true, false] {
        for undone in [true, false] {
            let mut world = world(&[1], A);
            let mut stored = world.create(&web());
            if undone {
                let first = stored;
                set(&mut world, B);
                let second = poke(&mut world, &first, 1);
                stored = world.update(&undo(&second, &first), &second);
            }
            let mut keeper = Keeper::start(world, stored, 2, first_snapshots);
            let case = format!("{first_snapshots} {undone}");
            assert_eq!(keeper.writes(), [""; 0], "{case}");
            let counts = keeper.desk.state.counts(true);
            assert_eq!(counts.pinned, usize::from(undone), "{case}");
            assert_eq!(counts.unverifiable, 1 + usize::from(undone), "{case}");

            set(&mut keeper.world, C);
            let changed = SourceMeta { resource_version: C.to_owned(), always: false };
            keeper.desk.state.apply_source(&named("demo"), Some(&changed), keeper.desk.now);
            let written = keeper.writes();
            assert!(written.contains(&"poke".to_owned()), "{case}: {written:?}");
        }
    }
}

#[test]
fn guessed_snapshot_must_have_present_content() {
    let mut world = world(&[1], A);
    let stored = world.create(&web());
    let name = secret(volume(&stored));
    let mut facts = Facts::default();
    facts.set_object(secret("demo"), world.observe(&secret("demo")));
    facts.set_object(name.clone(), world.observe(&name));
    assert!(facts.take_guess(&secret("demo"), &name).is_some());
    set(&mut world, B);
    facts.set_object(secret("demo"), world.observe(&secret("demo")));
    facts.set_object(name.clone(), world.observe(&name));
    assert!(facts.take_guess(&secret("demo"), &name).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// When keys change between writes, a decision is a fixed point, and equal content causes no roll.
    #[test]
    fn changing_keys_never_roll(
        keyings in prop::collection::vec(prop::sample::select(vec![vec![1], vec![2], vec![2, 1], vec![3]]), 1..5),
        by_person in any::<bool>(),
    ) {
        let mut world = world(&[1], A);
        let first = world.create(&web());
        let mut stored = first.clone();
        for (step, keys) in keyings.iter().enumerate() {
            world.keying = keying(keys);
            let mut poked = stored.clone();
            let value = format!("auto-2026-01-01T00:00:{step:02}Z *");
            annotate(&mut poked, annotations::ROLL, if by_person { "x" } else { &value });
            let next = world.update(&poked, &stored);
            prop_assert_eq!(template(&next), template(&first));
            prop_assert_eq!(&world.update(&next, &next), &next);
            prop_assert_eq!(&apply(&mut world, &next), &next);
            stored = next;
        }
    }
}
