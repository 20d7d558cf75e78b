//! States that need a person, and contents side by side.

use serde_json::json;

use crate::manifests::{Kind, Workload, config_map};
use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::world::World;

#[test]
fn missing_and_refused_content_is_shown() {
    let _confrev = running();
    let world = World::new("dashboard-states");
    world.set_config("demo", "A");
    world
        .kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1", "confrev.dev/on-failure=revert"])
        .ok();
    let web = Workload::new(Kind::Rollout, "web", &["demo"]).replicas(2).pausing();
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A", "A"]);
    world.apply(&Workload::new(Kind::Deployment, "lone", &["absent"]).manifest()).ok();
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.sees("1 missing");
    page.sees("missing: absent");
    world.set_config("demo", "B");
    world.wait_reads(&web, "demo", &["A", "B"]);
    world.argo(&["abort", "web"]).ok();
    page.sees("1 refused");
    page.sees("refused: demo");
    page.is_accessible();
    page.choose("State", "missing");
    page.sees("1 shown");
    page.sees_no("Rollout/web");
    page.choose("State", "refused");
    page.sees("1 shown");
    page.press("Rollout/web");
    page.sees("Reason");
    page.press("ConfigMap/demo");
    page.sees("Refused: Rollout/web failed: aborted or degraded");
    page.is_accessible();
    page.press("Retry");
    page.sees("is no longer refused");
    page.press("Confirm");
    page.sees_no("Refused: Rollout/web");
    page.has_no_errors();
}

/// The gates `schema` and `required-keys`. A second source of the workload does not wait.
#[test]
fn reasons_of_refused_contents_are_shown() {
    let _confrev = running();
    let world = World::new("dashboard-gates");
    let schema = |maximum: u32| {
        let mut object = config_map("schemas", "");
        object["metadata"]["annotations"] = json!({"confrev.dev/schema-for": "own"});
        object["data"] = json!({"number": json!({"type": "integer", "maximum": maximum}).to_string()});
        object
    };
    let source = |content: &str| {
        let mut object = config_map("demo", content);
        object["metadata"]["annotations"] =
            json!({"confrev.dev/schema": "schemas/number", "confrev.dev/schema-keys": "te*"});
        object
    };
    world.apply(&schema(9)).ok();
    world.apply(&source("1")).ok();
    world.set_config("flags", "A");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).annotation("track", "false");
    let keyed = Workload::new(Kind::Deployment, "keyed", &["flags"]).annotation("missing", "deny");
    let mut with_key = keyed.manifest();
    with_key["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "TEXT", "valueFrom": {"configMapKeyRef": {"name": "flags", "key": "text"}}}]);
    for manifest in [&web.manifest(), &with_key] {
        world.apply(manifest).ok();
    }
    world.wait_reads(&web, "demo", &["1"]);
    world.wait_reads(&keyed, "flags", &["A"]);
    // The schema becomes stricter after the write, as if the webhook had been down.
    world.apply(&source("6")).ok();
    world.apply(&schema(5)).ok();
    world.patch(&web, &json!({"metadata": {"annotations": {"confrev.dev/track": "true"}}}));
    let change = json!({"data": {"text": null, "other": "B"}}).to_string();
    world.kubectl(&["patch", "configmap", "flags", "--type=merge", "--patch", &change]).ok();
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.sees("2 refused");
    page.sees("refused: demo");
    page.sees("refused: flags");
    page.is_accessible();
    page.press("Deployment/web");
    page.sees("fails the rule \"maximum\"");
    page.press("confrev");
    page.press("Deployment/keyed");
    page.sees("ConfigMap \"flags\" has no key \"text\": new pods would not start");
    page.is_accessible();
    page.press("ConfigMap/flags");
    page.sees("has no key \"text\"");
    page.has_no_errors();
}

#[test]
fn any_two_snapshots_are_compared() {
    let _confrev = running();
    let world = World::new("dashboard-compare");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    world.set_config("demo", "size: one\n");
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["size: one\n"]);
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.press("ConfigMap/demo");
    page.sees("Impact of the present content");
    // The lists of the open page get the new snapshots.
    for text in ["size: two\n", "size: three\n"] {
        world.set_config("demo", text);
        world.wait_reads(&web, "demo", &[text]);
    }
    let name = |text: &str| world.snapshot_name("demo", text);
    page.choose("From", &name("size: one\n"));
    page.choose("To", &name("size: two\n"));
    page.press("Compare");
    let marks = "[...document.querySelectorAll('.compare mark')].map((one) => one.textContent).join()";
    page.sees(&format!("{} → {}", name("size: one\n"), name("size: two\n")));
    assert_eq!(page.browser.eval(marks), "one,two");
    // The address is a permalink.
    let address = page.browser.eval("location.href");
    page.choose("From", &name("size: two\n"));
    page.choose("To", "present");
    page.press("Compare");
    page.sees(&format!("{} → present", name("size: two\n")));
    assert_eq!(page.browser.eval(marks), "two,three");
    page.browser.open(address.as_str().unwrap());
    page.sees(&format!("{} → {}", name("size: one\n"), name("size: two\n")));
    assert_eq!(page.browser.eval(marks), "one,two");
    // Each pod links to what it reads.
    page.press("Deployment/web");
    page.sees("reads");
    let link = "[...document.querySelectorAll('ul.pods a')].map((one) => one.textContent).join()";
    assert_eq!(page.browser.eval(link), name("size: three\n"));
    page.browser.eval("setTimeout(() => document.querySelector('ul.pods a').click()); 0");
    page.sees("The contents are equal");
    page.has_no_errors();
}

#[test]
fn change_after_preview_needs_new_confirmation() {
    let _confrev = running();
    let world = World::new("dashboard-preview");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    world.set_config("demo", "A");
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A"]);
    world.set_config("demo", "B");
    world.wait_reads(&web, "demo", &["B"]);
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.press("Deployment/web");
    page.press("Undo");
    page.sees("Nothing is written yet");
    page.sees(&world.snapshot_name("demo", "A"));
    world.set_config("demo", "C");
    world.wait_reads(&web, "demo", &["C"]);
    page.press("Confirm");
    page.sees("Something changed since the last preview, and nothing was written");
    page.is_accessible();
    world.reads_for(2, &web, "demo", &["C"]);
    page.press("Confirm");
    page.sees("pinned: demo");
    world.wait_reads(&web, "demo", &["B"]);
    page.has_no_errors();
}
