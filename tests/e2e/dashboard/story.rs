//! The canary story, as a person sees it.

use crate::manifests::{Kind, Workload};
use crate::page::Page;
use crate::shared::{Dashboard, running};
use crate::world::World;

/// A canary of four pods, on content A, and a second workload.
pub(crate) fn shop(prefix: &str) -> (World, Workload) {
    let world = World::new(prefix);
    let web = Workload::new(Kind::Rollout, "web", &["demo"]).replicas(4).pausing();
    world.set_config("demo", "color: blue today\n");
    world.set_config("other", "A");
    world.apply(&web.manifest()).ok();
    world.apply(&Workload::new(Kind::Deployment, "api", &["other"]).manifest()).ok();
    world.wait_reads(&web, "demo", &["color: blue today\n"; 4]);
    world.wait_at_rest();
    (world, web)
}

#[test]
fn pages_follow_the_canary_story() {
    let _confrev = running();
    let (world, web) = shop("dashboard");
    let dashboard = Dashboard::start(&["-n", world.name()]);
    let mut page = Page::open(&dashboard);
    assert_eq!(page.browser.eval("location.href"), format!("{}/", dashboard.root()), "without the token");
    page.sees("Rollout/web");
    page.sees("2 in all");
    page.sees("2 current");
    page.sees("live");
    page.is_accessible();

    // A change of the source reaches the page without loading it again.
    page.browser.eval("window.sameDocument = true");
    world.set_config("demo", "color: green today\n");
    page.sees("paused at step 2");
    page.sees("1 present, 3 of");
    assert_eq!(page.browser.eval("window.sameDocument"), true, "the page was not loaded again");

    // The filter acts as a person types, and the address keeps it.
    page.browser.key("/", 191);
    page.browser.insert("deploy");
    page.sees("1 shown");
    page.sees_no("Rollout/web");
    assert_eq!(page.browser.eval("location.search"), "?words=deploy");
    page.browser.eval("document.getElementById('words').select()");
    page.browser.insert("nothing");
    page.sees("0 shown");
    page.sees("No workload matches");
    page.browser.open(&format!("{}/?words=web", dashboard.root()));
    page.sees("1 shown");
    page.choose("State", "held");
    page.sees("0 shown");
    page.choose("State", "current");
    page.sees("1 shown");
    page.browser.open(&format!("{}/", dashboard.root()));
    page.sees("2 shown");
    page.choose("Source", "ConfigMap/other");
    page.sees("1 shown");
    page.sees("Deployment/api");
    page.sees_no("Rollout/web");
    page.choose("Source", "ConfigMap/demo");
    page.sees("Rollout/web");
    page.sees_no("Deployment/api");

    page.press("Rollout/web");
    for shown in
        ["Revision 2 canary", "Revision 1 stable", "3 Ready", "1 Ready", "started", "paused at step 2"]
    {
        page.sees(shown);
    }
    let marks = "[...document.querySelectorAll('.revision mark')].map((one) => one.textContent).join()";
    assert_eq!(page.browser.eval(marks), "blue,green", "the words that differ");
    page.is_accessible();

    // An undo: a preview first, then a confirmation.
    page.press("Undo");
    page.sees("Nothing is written yet");
    page.sees("demo rolls from");
    page.is_accessible();
    page.press("Cancel");
    page.sees("Revision 2 canary");
    page.press("Undo");
    page.sees("Nothing is written yet");
    page.press("Confirm");
    page.sees("pinned: demo");
    world.wait_reads(&web, "demo", &["color: blue today\n"; 4]);
    page.sees("4 Ready");
    page.press("Unpin");
    page.press("Confirm");
    page.sees("current");
    page.sees("canary");
    page.press("Pause");
    page.press("Confirm");
    page.sees("paused (confrev.dev/track=false)");
    page.press("Resume");
    page.press("Confirm");
    page.sees_no("confrev.dev/track=false");
    page.choose("At", &world.snapshot_name("demo", "color: blue today\n"));
    let hold = "[...document.querySelectorAll('form')].find((one) => one.innerText.includes('Pin demo')).querySelector('[type=checkbox]').click()";
    page.browser.eval(hold);
    page.press("Pin demo");
    page.sees("and is held there");
    page.press("Confirm");
    page.sees("held: demo");
    page.press("Unpin");
    page.sees("the hold ends");
    page.press("Confirm");
    page.sees_no("held: demo");

    page.press("ConfigMap/demo");
    for shown in ["present", "by ", "Used by Rollout/web", "Impact of the present content", "ReplicaSet/web-"]
    {
        page.sees(shown);
    }
    page.is_accessible();
    page.choose("The content of", &world.snapshot_name("demo", "color: blue today\n"));
    page.press("Restore");
    page.sees("restored to the content of");
    page.press("Confirm");
    page.sees("Impact of the present content");
    let live = world.cluster.get("configmap", world.name(), "demo").unwrap();
    assert_eq!(live["data"]["text"], "color: blue today\n");
    world.wait_reads(&web, "demo", &["color: blue today\n"; 4]);
    page.has_no_errors();
}
