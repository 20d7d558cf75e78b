//! What commands, pages, Events and the log say about a Secret: that it changed, and the names of its snapshots. The reader of a
//! pipeline's log must not find a short password by its length and a hash.

use std::process::Command;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use confrev::resolve::Observed;
use confrev::snapshot::{Digest, SourceKind};
use confrev_controlplane::{ControlPlane, wait_for};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::chart_setup::logs;
use crate::shared::running;
use crate::world::{LIMIT, SNAPSHOTS, World, expect, name_of};

const VALUES: [&str; 2] = ["pin-4711", "pin-94712"];
/// A key that is in no template.
const KEY: &str = "otherkeyofsecret";

fn secret(value: &str) -> Value {
    let data = json!({"password": BASE64_STANDARD.encode(value), KEY: BASE64_STANDARD.encode("x")});
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {"name": "keys"}, "data": data})
}

fn confrev(world: &World, line: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
    command.args(line).env("KUBECONFIG", ControlPlane::shared().kubeconfig());
    let output = command.args(["--namespace", world.name()]).output().expect("the program runs");
    let all = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text")).concat();
    (output.status.code().expect("an exit code"), all)
}

/// What a guess of the value can be compared with.
fn traces() -> Vec<String> {
    let of = |value: &str| {
        let plain = Observed::read(SourceKind::Secret, secret(value).to_string().into_bytes()).unwrap();
        [
            value.to_owned(),
            BASE64_STANDARD.encode(value),
            Digest::of_bytes(value).hex(10),
            plain.digest().hex(10),
            format!("{} bytes", value.len()),
        ]
    };
    let sized = ["\"size\"", "size:", " B,", " B ", "password", KEY].map(str::to_owned);
    VALUES.iter().flat_map(|value| of(value)).chain(sized).collect()
}

#[track_caller]
fn tells_nothing(what: &str, said: &str) {
    for trace in traces() {
        assert!(!said.contains(&trace), "{what} has {trace:?}: {said}");
    }
}

#[test]
fn commands_and_pages_tell_nothing_of_secrets() {
    let _confrev = running();
    let world = World::new("secret-output");
    let mut web = Load::new("deployments", "web", &[]).annotation("secrets", "true");
    web.manifest["spec"]["template"]["spec"] = json!({"containers": [
        {"name": "app", "image": "app:1", "envFrom": [{"secretRef": {"name": "keys"}}]}]});
    let snapshots = || world.cluster.list("secrets", world.name(), SNAPSHOTS);
    world.apply(&secret(VALUES[0])).ok();
    web.apply(&world).ok();
    wait_for("the first snapshot", LIMIT, || expect(&snapshots().len(), &1));
    let old = name_of(&snapshots()[0]);
    world.apply(&secret(VALUES[1])).ok();
    wait_for("the second snapshot", LIMIT, || expect(&snapshots().len(), &2));
    world.wait_at_rest();

    let file = std::env::temp_dir().join(format!("{}.json", world.name()));
    std::fs::write(&file, secret(VALUES[0]).to_string()).unwrap();
    let file = file.display().to_string();
    for line in [
        &["diff", "secret/keys"][..],
        &["diff", "secret/keys", &old],
        &["show", "deployment/web"],
        &["show", "deployment/web@1"],
        &["show", "deployment/web@1", "-o", "json"],
        &["show", "deployment/web@1", "-o", "yaml"],
        &["history", "secret/keys"],
        &["history", "secret/keys", "-o", "json"],
        &["restore", "secret/keys", &old, "--dry-run"],
        &["status", "-o", "json"],
        &["tree", "web", "--all"],
        &["impact", "secret/keys", "-o", "json"],
        &["impact", "-f", &file, "-o", "json"],
        &["prune", "-o", "json"],
        &["waves", "secret/keys"],
        &["revoke", "secret/keys", &old, "--dry-run", "-o", "json"],
    ] {
        let (_, said) = confrev(&world, line);
        tells_nothing(&line.join(" "), &said);
    }
    let changed = format!("--- {old}\n+++ keys\nchanged\n");
    assert_eq!(confrev(&world, &["diff", "secret/keys"]), (1, changed));
    let (_, shown) = confrev(&world, &["show", "deployment/web@1"]);
    assert!(shown.contains("differs from the present source") && shown.contains("--show-values"), "{shown}");
    let (_, shown) = confrev(&world, &["diff", "secret/keys", "--show-values"]);
    assert!(shown.contains(&format!("-{}", VALUES[0])) && shown.contains(VALUES[1]), "{shown}");
    let digest = Command::new(env!("CARGO_BIN_EXE_confrev")).args(["digest", "-f", &file]).output().unwrap();
    tells_nothing("digest", &String::from_utf8(digest.stdout).unwrap());
    std::fs::remove_file(&file).unwrap();

    let folder = std::env::temp_dir().join(format!("confrev-{}", world.name()));
    let (code, said) = confrev(&world, &["dashboard", "--output", &folder.display().to_string()]);
    assert_eq!(code, 0, "{said}");
    for page in ["sources/{}/secret/keys.html", "workloads/{}/deployment/web.html"] {
        let page = std::fs::read_to_string(folder.join(page.replace("{}", world.name()))).unwrap();
        assert!(page.contains("<p>changed</p>"), "{page}");
        tells_nothing("the report", &page);
    }
    std::fs::remove_dir_all(&folder).unwrap();

    let events: Vec<_> = world.cluster.list("events", world.name(), "");
    let notes: Vec<_> = events.iter().map(|event| event["message"].to_string()).collect();
    tells_nothing("an Event", &notes.join("\n"));
    let log = logs();
    let own: Vec<_> = log.lines().filter(|line| line.contains(world.name())).collect();
    tells_nothing("the log", &own.join("\n"));
}
