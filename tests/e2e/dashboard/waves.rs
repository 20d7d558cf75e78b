//! A change in waves, with the actions of a person.

use crate::manifests::{Kind, Workload};
use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::world::World;

#[test]
fn waves_are_shown_aborted_retried_and_promoted() {
    let _confrev = running();
    let world = World::new("dashboard-waves");
    world.set_config("demo", "A");
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1", "confrev.dev/bake=1h"]).ok();
    let loads: Vec<_> =
        (0..3).map(|i| Workload::new(Kind::Deployment, &format!("web-{i}"), &["demo"])).collect();
    for load in &loads {
        world.apply(&load.manifest()).ok();
        world.wait_reads(load, "demo", &["A"]);
    }
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.press("ConfigMap/demo");
    page.sees("3 of 3 workloads moved");
    world.set_config("demo", "B");
    page.sees("1 of 3 workloads moved");
    page.sees("bakes until");
    let first = loads.iter().find(|load| world.resolves_to(load, "demo", "B").is_ok()).unwrap();
    page.sees(&format!("Moved Deployment/{} Still to move Deployment/web-", first.name));
    page.sees("Next none");
    page.is_accessible();
    page.press("Abort");
    page.sees("no further workload moves");
    page.press("Confirm");
    page.sees("Waits aborted");
    page.press("Retry");
    page.press("Confirm");
    page.sees("bakes until");
    page.press("Promote");
    page.sees("begins now");
    page.press("Confirm");
    page.sees("3 of 3 workloads moved");
    page.sees("Moved Deployment/web-0, Deployment/web-1, Deployment/web-2 Still to move none");
    for load in &loads {
        world.wait_reads(load, "demo", &["B"]);
    }
    page.has_no_errors();
}
