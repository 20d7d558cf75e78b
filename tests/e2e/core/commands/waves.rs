//! `waves`: the progress of a change, and the decisions of a person about it.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::json;

use super::Commands as _;
use crate::manifests::Workload;
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, expect, text};

/// The workloads pause in the middle of their rollouts, so no wave proves healthy by itself.
#[test]
fn person_promotes_aborts_and_retries_waves() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("commands-waves");
        world.set_config("demo", "A");
        let none = world.confrev(&["waves", "demo"]).failed(1);
        assert!(none.contains("has no waves"), "{none}");
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1, 2"]).ok();
        let loads =
            ["one", "two", "three"].map(|name| Workload::new(kind, name, &["demo"]).replicas(2).pausing());
        for load in &loads {
            world.apply(&load.manifest()).ok();
        }
        for load in &loads {
            world.wait_reads(load, "demo", &["A", "A"]);
        }
        world.wait_at_rest();
        world.set_config("demo", "B");
        let on = || loads.iter().filter(|load| world.resolves_to(load, "demo", "B").is_ok()).count();
        wait_for("the first wave", LIMIT, || expect(&on(), &1));
        let b = world.snapshot_name("demo", "B");
        wait_for("the progress of the first wave", LIMIT, || {
            let shown = world.confrev_json(&["waves", "demo"]);
            let fields =
                ["snapshot", "wave", "waves", "limit", "moved", "workloads", "next"].map(|key| &shown[key]);
            expect(&json!(fields), &json!([b, 1, 3, 1, 1, 3, []]))?;
            let reason = text(&shown["reason"]);
            if reason.contains("not healthy yet") { Ok(()) } else { Err(reason) }
        });
        let table = world.confrev(&["waves", "demo"]).ok();
        let moved = loads.iter().find(|load| world.resolves_to(load, "demo", "B").is_ok()).unwrap();
        let named = text(&world.confrev_json(&["waves", "demo"])["movedWorkloads"][0]);
        assert_eq!(named.to_lowercase(), moved.reference());
        let lines =
            format!("\nWAVE       1 of 3\nMOVED      1 of 3, up to 1 in this wave\n           {named}\n");
        assert!(table.contains(&lines), "{table}");
        let listed = world.confrev_json(&["waves"]);
        assert_eq!(
            (&listed[0]["source"], &listed[0]["complete"]),
            (&json!("ConfigMap/demo"), &json!(false)),
            "{listed}"
        );
        assert_eq!(listed[0]["rolling"], json!([named]), "{listed}");
        let waiting = loads.iter().find(|load| world.resolves_to(load, "demo", "B").is_err()).unwrap();
        wait_for("the reason in the status", LIMIT, || {
            let status = world.confrev(&["status", &waiting.name]).ok();
            if status.contains("wave 1 of 3: held by") { Ok(()) } else { Err(status) }
        });

        world.confrev(&["waves", "promote", "demo", "--dry-run"]).ok();
        holds_for("the first wave", Duration::from_secs(2), || expect(&on(), &1));
        let said = world.confrev(&["waves", "promote", "demo"]).ok();
        assert_eq!(said, format!("ConfigMap/demo: wave 2 of 3 of {b} begins now\n"));
        wait_for("the second wave", LIMIT, || expect(&on(), &2));
        world.confrev(&["waves", "abort", "demo"]).ok();
        let again = world.confrev(&["waves", "abort", "demo"]).ok();
        assert!(again.contains("is already aborted"), "{again}");
        let stopped = world.confrev(&["waves", "promote", "demo"]).failed(1);
        assert!(
            stopped.contains(&format!("{b} is aborted, so no workload moves to it"))
                && stopped.contains("run kubectl confrev waves retry configmap/demo first"),
            "{stopped}"
        );
        holds_for("the aborted change", Duration::from_secs(3), || expect(&on(), &2));
        let reason = text(&world.confrev_json(&["waves", "demo"])["reason"]);
        assert!(
            reason.contains("aborted; to continue, run kubectl confrev waves retry configmap/demo"),
            "{reason}"
        );
        // A wait for a change that a person has stopped ends at once.
        let rest = loads
            .iter()
            .find(|load| world.resolves_to(load, "demo", "B").is_err())
            .expect("one has not moved");
        let waited = world.confrev(&["wait", &rest.reference(), "--timeout=30m"]).failed(3);
        assert!(
            waited.contains("pending: aborted; to continue, run kubectl confrev waves retry"),
            "{waited}"
        );
        world.confrev(&["waves", "retry", "demo"]).ok();
        let again = world.confrev(&["waves", "retry", "demo"]).ok();
        assert!(again.contains("is neither aborted nor refused: nothing to retry"), "{again}");
        holds_for("the second wave", Duration::from_secs(2), || expect(&on(), &2));
        world.confrev(&["waves", "promote", "demo"]).ok();
        wait_for("the rest", LIMIT, || expect(&on(), &3));
        let none = world.confrev(&["waves", "promote", "demo"]).failed(1);
        assert!(none.contains("the last wave"), "{none}");

        // A decision ends with the next change.
        world.set_config("demo", "C");
        let on = || loads.iter().filter(|load| world.resolves_to(load, "demo", "C").is_ok()).count();
        wait_for("the first wave of the next change", LIMIT, || expect(&on(), &1));
        holds_for("the first wave of the next change", Duration::from_secs(2), || expect(&on(), &1));
        let events = world.cluster.list("events", world.name(), "");
        let begun =
            events.iter().filter(|event| event["reason"] == "WaveBegun").map(|event| text(&event["message"]));
        let begun: Vec<_> = begun.collect();
        for wave in 1..=3 {
            let note = format!("wave {wave} of 3 begins");
            assert!(begun.iter().any(|text| text.starts_with(&note) && text.contains(&b)), "{begun:?}");
        }
    });
}
