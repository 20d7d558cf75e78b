//! Workloads of all namespaces.

use crate::manifests::{Kind, Workload};
use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::world::World;

/// A namespace with a workload.
fn world(name: &str) -> World {
    let world = World::new("dashboard-all");
    world.set_config("demo", "A");
    let load = Workload::new(Kind::Deployment, name, &["demo"]);
    world.apply(&load.manifest()).ok();
    world.wait_reads(&load, "demo", &["A"]);
    world
}

#[test]
fn all_namespaces_are_shown_and_filtered() {
    let _confrev = running();
    let worlds = [world("first"), world("second")];
    let dashboard = Dashboard::start(&["-A"]);
    let mut page = Page::open(&dashboard);
    page.sees("all namespaces of");
    page.browser.eval("document.getElementById('words').focus()");
    page.browser.insert("dashboard-all");
    page.sees("2 shown");
    for (world, load) in worlds.iter().zip(["Deployment/first", "Deployment/second"]) {
        page.sees(world.name());
        page.sees(load);
    }
    // A further namespace appears without loading the page again.
    let third = world("third");
    page.sees("3 shown");
    page.choose("Namespace", third.name());
    page.sees("1 shown");
    page.sees_no("Deployment/first");
    page.is_accessible();
    page.press("Deployment/third");
    page.sees("Revision 1");
    page.sees(third.name());
    page.has_no_errors();
}
