//! Values of Secrets: they leave the process only with `--show-values`.

use std::process::Command;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use confrev_controlplane::{ControlPlane, wait_for};
use serde_json::json;

use crate::manifests::{Kind, Workload};
use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::world::{LIMIT, SNAPSHOTS, World, expect};

const VALUES: [&str; 2] = ["hunter-two", "hunter-three"];

/// A workload that has rolled from the first value of a Secret to the second.
fn world() -> World {
    let world = World::new("dashboard-secrets");
    let secret = |value: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"password": value}});
    let variable =
        json!({"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}});
    let mut web = Workload::new(Kind::Deployment, "web", &["demo"]).annotation("secrets", "true").manifest();
    web["spec"]["template"]["spec"]["containers"][0]["env"] = json!([variable]);
    world.set_config("demo", "A");
    world.apply(&secret(VALUES[0])).ok();
    world.apply(&web).ok();
    let snapshots = |count: usize| {
        wait_for("the snapshots of the Secret", LIMIT, || {
            expect(&world.cluster.list("secret", world.name(), SNAPSHOTS).len(), &count)
        });
    };
    snapshots(1);
    world.apply(&secret(VALUES[1])).ok();
    snapshots(2);
    world.wait_at_rest();
    world
}

/// Checks that the text of a page, hidden or not, has no value, no size and no plain hash.
#[track_caller]
fn has_no_value(page: &str) {
    for value in VALUES {
        assert!(!page.contains(value) && !page.contains(&BASE64_STANDARD.encode(value)), "{page}");
    }
    assert!(!page.contains(" bytes") && !page.contains(" sha256 "), "{page}");
}

#[test]
fn values_of_secrets_need_the_option() {
    let _confrev = running();
    let world = world();
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    let source = |page: &mut Page| page.browser.eval("document.documentElement.outerHTML").to_string();
    has_no_value(&source(&mut page));
    page.press("Deployment/web");
    page.sees("changed");
    has_no_value(&source(&mut page));
    page.press("Undo");
    page.sees("Nothing is written yet");
    has_no_value(&source(&mut page));
    page.press("Cancel");
    page.press("Secret/keys");
    page.sees("changed");
    page.is_accessible();
    has_no_value(&source(&mut page));
    page.has_no_errors();

    let folder = std::env::temp_dir().join(format!("confrev-{}", world.name()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
    command.args(["dashboard", "-n", world.name(), "--output"]).arg(&folder);
    let written = command.env("KUBECONFIG", ControlPlane::shared().kubeconfig()).output().unwrap();
    assert!(written.status.success(), "{written:?}");
    for file in ["sources/{}/secret/keys.html", "workloads/{}/deployment/web.html"] {
        let text = std::fs::read_to_string(folder.join(file.replace("{}", world.name()))).unwrap();
        assert!(text.contains("<p>changed</p>"), "{file}");
        has_no_value(&text);
    }
    std::fs::remove_dir_all(&folder).unwrap();

    let dashboard = Dashboard::start(&["-n", world.name(), "--show-values"]);
    let mut page = Page::open(&dashboard);
    page.press("Secret/keys");
    for value in VALUES {
        page.sees(value);
    }
    page.has_no_errors();
}
