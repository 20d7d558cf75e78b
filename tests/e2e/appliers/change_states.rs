//! The state of a change on its source, as fleet tools read it, with the commands of `docs/fleets.md`.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::page::Page;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// The annotation `change` of ConfigMap `demo`, if it has one.
pub(crate) fn state(world: &World) -> Option<Value> {
    let source = world.cluster.get("configmap", world.name(), "demo").expect("the source exists");
    let change = source["metadata"]["annotations"]["confrev.dev/change"].as_str()?;
    Some(serde_json::from_str(change).expect("the state is JSON"))
}

/// Waits until the state is `PHASE MOVED/OF GATE`.
#[track_caller]
fn wait_state(world: &World, expected: &str) -> Value {
    wait_for(&format!("the state {expected:?}"), LIMIT, || {
        let state = state(world).ok_or("it has none")?;
        let gate = state["gate"].as_str().map(|gate| format!(" {gate}")).unwrap_or_default();
        let said = format!("{} {}/{}{gate}", text(&state["phase"]), state["moved"], state["of"]);
        expect(&said, expected).map(|()| state)
    })
}

fn annotate(world: &World, setting: &str) {
    world.kubectl(&["annotate", "--overwrite", "configmap/demo", setting]).ok();
}

#[test]
fn state_of_change_is_kept_on_its_source() {
    let _confrev = running();
    let mut page = Page::of(World::new("fleets"));
    page.world.set_config("demo", "A");
    let loads = ["one", "two"].map(|name| Load::new("deployments", name, &["demo"]));
    let loads = loads.map(|load| load.spec(json!({"replicas": 1})));
    for load in &loads {
        load.apply(&page.world).ok();
        load.wait_reads(&page.world, "demo", &["A"]);
    }
    page.world.wait_at_rest();
    assert_eq!(state(&page.world), None, "no user has asked for it");

    page.reader.open("docs/fleets.md", "Ask for it");
    page.types("kubectl annotate configmap demo");
    let complete = wait_state(&page.world, "complete 2/2");
    let shown: Value = serde_json::from_str(&page.types("kubectl get configmap demo")).expect("it is JSON");
    assert_eq!(shown, complete);
    // It is no news to confrev, which does not write it again.
    let versions = || page.world.versions();
    let before = versions();
    holds_for("all objects", Duration::from_secs(7), || expect(&versions(), &before));

    // The second workload waits for the bake time.
    annotate(&page.world, "confrev.dev/waves=1");
    annotate(&page.world, "confrev.dev/bake=1h");
    page.world.set_config("demo", "B");
    let waits = wait_state(&page.world, "waiting 1/2 wave");
    assert_ne!(waits["digest"], complete["digest"]);

    annotate(&page.world, "confrev.dev/bake-");
    page.reader.open("docs/fleets.md", "Wait for a cluster");
    page.types("kubectl confrev wait");
    assert_eq!(wait_state(&page.world, "complete 2/2")["digest"], waits["digest"]);

    annotate(&page.world, "confrev.dev/report=false");
    wait_for("the state to be removed", LIMIT, || {
        state(&page.world).map_or(Ok(()), |state| Err(state.to_string()))
    });
}
