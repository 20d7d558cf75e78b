//! Watches read only parts of a workload, and give the same facts as admission.

use confrev::{
    annotations,
    controller::{Action, RawObject, WorkloadsSubject, take},
    resolve::NamespaceOptIn,
};
use kube::runtime::watcher::Event;
use serde_json::json;

use super::{
    controller::{Desk, key},
    world::{World, deployment},
};

/// The label is the workload's own if an applier sets it, according to `managedFields`.
#[test]
fn own_label_survives_opt_out_of_namespace() {
    let owns =
        |label: &str| json!([{"manager": "team", "fieldsV1": {"f:metadata": {"f:labels": {label: {}}}}}]);
    for (managers, pokes) in [(owns("f:confrev.dev/enabled"), 0), (owns("f:app"), 1), (json!(null), 1)] {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue"}));
        world.namespace.opt_in = NamespaceOptIn::Now;
        let mut bare = deployment(&["demo"]);
        bare["metadata"].as_object_mut().unwrap().remove("labels");
        let mut stored = world.create(&bare);
        assert!(
            stored["metadata"]["annotations"].get(annotations::ENABLED_BY).is_some(),
            "the namespace set it"
        );
        stored["metadata"]["namespace"] = json!("ns");
        stored["metadata"]["managedFields"] = managers.clone();
        let mut desk = Desk::new();
        desk.state.apply_namespace(&"ns".into(), NamespaceOptIn::Now, desk.now);
        let partial: RawObject = serde_json::from_value(stored).unwrap();
        take(&WorkloadsSubject(key("web").kind), &mut desk.state, Event::Apply(partial), &mut None, desk.now);
        desk.act(&json!({"color": "blue"}), &json!({}), "1");
        desk.state.apply_namespace(&"ns".into(), NamespaceOptIn::Out, desk.now);
        desk.pass(2);
        let acts = desk.act(&json!({"color": "blue"}), &json!({}), "1");
        let poked = acts.iter().filter(|action| matches!(action, Action::Poke { .. })).count();
        assert_eq!(poked, pokes, "{managers}: {acts:?}");
    }
}
