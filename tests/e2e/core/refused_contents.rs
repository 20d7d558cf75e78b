//! Contents that the installation refuses: the ConfigMap `confrev-refused` in confrev's namespace.

use std::time::Duration;

use confrev_controlplane::{ControlPlane, holds_for, wait_for};
use serde_json::{Value, json};

use crate::commands::Commands as _;
use crate::events::told;
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, expect, text};

/// The digest that a snapshot of this content states, in a namespace whose workload has taken the content: another cluster, for the others.
fn digest_of(content: &str) -> String {
    let first = World::new("refused-first");
    first.set_config("demo", content);
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    first.apply(&web.manifest()).ok();
    first.wait_resolved(&web, "demo", content);
    let [snapshot] = &first.snapshots()[..] else { panic!("one snapshot") };
    text(&snapshot["metadata"]["annotations"]["confrev.dev/digest"])
}

/// Sets what this key of the list says; null removes the key.
fn list(key: &str, lines: &Value) {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "confrev-refused", "namespace": "confrev"},
                        "data": {key: lines}});
    let cluster = ControlPlane::shared();
    let manager = format!("--field-manager=test-{key}");
    cluster.kubectl(&["apply", "--server-side", &manager, "-f", "-"]).stdin(&object).run().ok();
}

#[test]
fn listed_content_is_refused_from_the_start() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("refused");
        let bad = format!("bad {}", world.name());
        let line = format!("# the first cluster\n{} it crashed there", digest_of(&bad));
        world.set_config("demo", "A");
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/report=true"]).ok();
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        world.apply(&web.manifest()).ok();
        world.wait_resolved(&web, "demo", "A");
        list(world.name(), &json!(line));
        let why = "ConfigMap confrev-refused lists it (it crashed there)";
        // The writer learns it, as soon as confrev knows the list.
        wait_for("the warning of a dry run", LIMIT, || {
            let tried = world.with_file(&["apply", "--dry-run=server"], &config_map("demo", &bad));
            if tried.stderr.contains(why) { Ok(()) } else { Err(tried.stderr) }
        });
        world.set_config("demo", &bad);
        let kind = text(&world.live(&web)["kind"]);
        for about in [format!("RollRefused {kind}/web"), "RollRefused ConfigMap/demo".to_owned()] {
            wait_for(&format!("the Event {about}"), LIMIT, || {
                let events = told(&world);
                let said = events.get(&about).into_iter().flatten().any(|note| note.contains(why));
                if said { Ok(()) } else { Err(format!("{events:?}")) }
            });
        }
        let of_demo = &world.confrev_json(&["status", &web.reference()])[0]["sources"][0];
        let shown = ["state", "gate"].map(|field| text(&of_demo[field]));
        assert_eq!(shown, ["refused", "refused"], "{of_demo}");
        assert!(text(&of_demo["reason"]).contains(why), "{of_demo}");
        let impact = world.confrev_json(&["impact", "configmap/demo"]);
        assert!(impact[0]["rolls"] == false && text(&impact[0]["why"]).contains(why), "{impact}");
        let waits = world.confrev(&["wait", &web.reference(), "--timeout", "1s"]);
        assert!(waits.code != 0 && waits.stderr.contains(why), "{waits:?}");
        wait_for("the state of the change", LIMIT, || {
            let source = world.cluster.get("configmap", world.name(), "demo").ok_or("it does not exist")?;
            let change = text(&source["metadata"]["annotations"]["confrev.dev/change"]);
            let change: Value = serde_json::from_str(&change).map_err(|error| error.to_string())?;
            expect(&[text(&change["phase"]), text(&change["gate"])], &["refused", "refused"])
        });
        // Neither a deployment nor a restart of confrev moves the workload, and a new one does not start with the content.
        world.set_image(&web, "registry.example/other:1").ok();
        holds_for("the workload", Duration::from_secs(2), || world.resolves_to(&web, "demo", "A"));
        let new = Workload::new(Kind::Deployment, "new", &["demo"]);
        let second = World::new("refused-new");
        second.set_config("demo", &bad);
        let refused = second.apply(&new.manifest()).refused();
        assert!(
            refused.contains(why) && refused.contains("the workload has no earlier snapshot"),
            "{refused}"
        );
        // Another line is malformed: it refuses nothing, and the others count.
        list(world.name(), &json!(format!("{line}\nno digest")));
        holds_for("the workload", Duration::from_secs(2), || world.resolves_to(&web, "demo", "A"));
        list(world.name(), &json!(""));
        world.wait_resolved(&web, "demo", &bad);
    });
}
