//! The pages of 2,000 workloads, measured. No time is asserted: this machine may be busy.

use std::time::{Duration, Instant};

use confrev_controlplane::wait_for;
use serde_json::json;

use crate::manifests::{Kind, Workload, config_map, list};
use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::world::{LIMIT, World};

const WORKLOADS: usize = 2000;
const SOURCES: usize = 100;
/// How many objects one `kubectl apply` writes.
const BATCH: usize = 100;

/// A figure of the process in MiB.
fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
#[ignore = "it measures for minutes: make dashboard-figures"]
fn measures_pages_of_many_workloads() {
    let _confrev = running();
    let world = World::new("dashboard-many");
    let sources: Vec<_> = (0..SOURCES).map(|i| config_map(&format!("demo-{i}"), "A")).collect();
    world.apply(&list(&sources)).ok();
    let loads: Vec<_> = (0..WORKLOADS)
        .map(|i| {
            let mut load =
                Workload::new(Kind::Deployment, &format!("web-{i}"), &[&format!("demo-{}", i % SOURCES)]);
            load = load.replicas(0);
            load.manifest()
        })
        .collect();
    for batch in loads.chunks(BATCH) {
        world.with_file(&["create"], &list(batch)).ok();
    }
    let begun = Instant::now();
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    page.sees(&format!("{WORKLOADS} shown"));
    println!("first page, with the lists of the cluster and the start of a browser: {:?}", begun.elapsed());
    let paint = "performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint').startTime";
    let size = "performance.getEntriesByType('navigation')[0].decodedBodySize";
    for _ in 0..3 {
        page.browser.open(&format!("{}/", dashboard.root()));
        page.sees(&format!("{WORKLOADS} shown"));
        let paint = wait_for("the first paint", LIMIT, || {
            let found = page
                .browser
                .eval(&format!("(() => {{ try {{ return {paint} }} catch {{ return null }} }})()"));
            found.as_f64()
        });
        println!("first paint: {paint:.0} ms, {} bytes", page.browser.eval(size));
    }
    // The time from the write of a source to the page, and the longest that the page did not answer meanwhile.
    page.browser.eval(
        "window.longest = 0; new PerformanceObserver((list) => { for (const one of list.getEntries())
           window.longest = Math.max(window.longest, one.duration); }).observe({type: 'longtask', buffered: false})",
    );
    for text in ["B", "C", "D"] {
        let before = page.browser.eval("document.getElementById('namespaces').innerText.length");
        let begun = Instant::now();
        page.browser.eval(
            "window.changed = new Promise((done) => new MutationObserver((_, one) => { one.disconnect(); done(true); })
               .observe(document.getElementById('namespaces'), {subtree: true, childList: true, characterData: true})); 0",
        );
        world.set_config("demo-7", text);
        page.browser.eval("window.changed");
        println!("update: {:?} after the write ({before} characters)", begun.elapsed());
        std::thread::sleep(Duration::from_secs(5));
    }
    let filter = "(() => { const begun = performance.now(); const input = document.getElementById('words');
        input.value = 'web-19'; input.dispatchEvent(new Event('input', {bubbles: true}));
        return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begun)))); })()";
    println!("filter of all rows: {:.0} ms", page.browser.eval(filter).as_f64().unwrap());
    println!("longest task of the page: {} ms", page.browser.eval("window.longest"));
    let pid = dashboard.pid();
    println!(
        "memory of the command: {} MiB resident, of them {} MiB anonymous; at most {} MiB",
        memory(pid, "VmRSS:"),
        memory(pid, "RssAnon:"),
        memory(pid, "VmHWM:")
    );
    world.patch(&Workload::new(Kind::Deployment, "web-1", &[]), &json!({"metadata": {"labels": {"a": "b"}}}));
    page.has_no_errors();
}
