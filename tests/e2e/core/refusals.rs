//! Rolls that a quota refuses: an Event and `status` say why, and the workload rolls once the cause is removed.

use confrev_controlplane::wait_for;

use crate::commands::Commands as _;
use crate::events::told;
use crate::manifests::Workload;
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, text};

#[test]
fn roll_refused_by_quota_is_reported() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("refusal-quota");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("min-interval", "0");
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_resolved(&web, "demo", "A");
        world.wait_at_rest();
        // Less than exist already, so no further ConfigMap is admitted.
        world.limit_config_maps(1);
        world.set_config("demo", "B");
        let kind = text(&world.live(&web)["kind"]);
        for about in [format!("RollRefused {kind}/web"), "RollRefused ConfigMap/demo".to_owned()] {
            let said = wait_for(&format!("the Event {about}"), LIMIT, || {
                let events = told(&world);
                events.get(&about).cloned().ok_or_else(|| format!("{events:?}"))
            });
            assert!(said[0].contains("exceeded quota: full"), "{said:?}");
        }
        let status = world.confrev(&["status", "web"]).ok();
        assert!(status.contains("refused: demo") && status.contains("exceeded quota: full"), "{status}");
        world.delete("resourcequota", "full");
        world.wait_resolved(&web, "demo", "B");
    });
}
