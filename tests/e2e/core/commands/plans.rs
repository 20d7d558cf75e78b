//! Moves are plans in the annotation `roll`: no command owns a field of a template.

use serde_json::Value;

use super::{Commands as _, effects::rolled};
use crate::{shared::running, world::each_kind};

/// The manifest is applied on the server before and after each move, with the same field manager.
#[test]
fn server_side_apply_after_moves_has_no_conflict() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        let apply = || {
            let arguments = [
                "apply",
                "--server-side",
                "--field-manager=git",
                "--namespace",
                world.name(),
                "--filename",
                "-",
            ];
            world.cluster.kubectl(&arguments).stdin(web.manifest()).run()
        };
        let forced =
            ["apply", "--server-side", "--force-conflicts", "--field-manager=git", "--filename", "-"];
        let arguments = [&forced[..], &["--namespace", world.name()]].concat();
        world.cluster.kubectl(&arguments).stdin(web.manifest()).run().ok();
        let a = world.snapshot_name("demo", "A");
        for line in [
            &["undo", "web", "--hold"][..],
            &["unpin", "web"],
            &["pin", "web", "demo", &a],
            &["unpin", "web", "--source=demo"],
        ] {
            world.confrev(line).ok();
            apply().ok();
            let live = world.live(&web);
            let managers = live["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
            let ours: Vec<&Value> =
                managers.iter().filter(|manager| manager["manager"] == "kubectl-confrev").collect();
            let owns_template = ours.iter().any(|manager| !manager["fieldsV1"]["f:spec"].is_null());
            assert!(!owns_template, "{line:?}: {ours:?}");
        }
    });
}
