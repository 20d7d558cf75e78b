//! What a watch tells of a workload is what an admission would see of it, though less of it is read.

use confrev::{
    controller::{Action, Lean, Workloads, take},
    names,
};
use kube::runtime::watcher::Event;
use serde_json::json;

use super::{
    controller::{Desk, key},
    world::{World, deployment},
};

#[test]
fn a_workload_whose_label_an_applier_states_is_left_alone_when_its_namespace_opts_out() {
    let owns =
        |label: &str| json!([{"manager": "team", "fieldsV1": {"f:metadata": {"f:labels": {label: {}}}}}]);
    for (managers, pokes) in [(owns("f:confrev.dev/enabled"), 0), (owns("f:app"), 1), (json!(null), 1)] {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue"}));
        world.namespace.enabled = true;
        let mut bare = deployment(&["demo"]);
        bare["metadata"].as_object_mut().unwrap().remove("labels");
        let mut stored = world.create(&bare);
        assert!(stored["metadata"]["annotations"].get(names::ENABLED_BY).is_some(), "the namespace gave it");
        stored["metadata"]["namespace"] = json!("ns");
        stored["metadata"]["managedFields"] = managers.clone();
        let mut desk = Desk::new();
        desk.state.apply_namespace(&"ns".into(), true, desk.now);
        let lean: Lean = serde_json::from_value(stored).unwrap();
        take(&Workloads(key("web").kind), &mut desk.state, Event::Apply(lean), &mut None, desk.now);
        desk.act(&json!({"color": "blue"}), &json!({}), "1");
        desk.state.apply_namespace(&"ns".into(), false, desk.now);
        desk.pass(2);
        let acts = desk.act(&json!({"color": "blue"}), &json!({}), "1");
        let poked = acts.iter().filter(|action| matches!(action, Action::Poke { .. })).count();
        assert_eq!(poked, pokes, "{managers}: {acts:?}");
    }
}
