//! Settings that no webhook has seen, because confrev did not run when they were written: nothing moves, and an Event says why.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};

use crate::manifests::{Kind, Workload};
use crate::shared::{exclusive, running};
use crate::world::{LIMIT, World, text};

/// The setting of the source without its prefix, that of the Namespace, the reason of the Event, and a part of its note.
const SETTINGS: [(&[&str], &[&str], &str, &str); 10] = [
    (&["waves=half"], &[], "SettingInvalid", "\"half\" is not allowed, use ascending counts and percentages"),
    (&["waves=10%,5%"], &[], "SettingInvalid", "is not allowed"),
    (&["bake=5m"], &[], "SettingInvalid", "has no effect without confrev.dev/waves"),
    (&["analysis=sound"], &[], "SettingInvalid", "has no effect without confrev.dev/waves"),
    (&["window=09:00-17:00 Mars/Base"], &[], "SettingInvalid", "use a time zone of the IANA database"),
    (&["window=09:00-09:00"], &[], "SettingInvalid", "never open"),
    (&["set=shop"], &[], "SettingInvalid", "use NAME/VERSION"),
    (&["waves=1", "analysis=none"], &[], "AnalysisHeld", "AnalysisTemplate \"none\" does not exist"),
    (&["waves=1", "analysis=cluster/none"], &[], "AnalysisHeld", "does the chart set analysis.enabled?"),
    (&["waves=1"], &["order=first"], "SettingInvalid", "confrev.dev/order: \"first\" is not allowed"),
];

fn annotate(world: &World, object: &[&str], settings: impl Iterator<Item = String>) {
    let settings: Vec<_> = settings.collect();
    let settings = settings.iter().map(String::as_str);
    world
        .kubectl(&["annotate"].into_iter().chain(object.iter().copied()).chain(settings).collect::<Vec<_>>())
        .ok();
}

#[test]
fn settings_that_no_webhook_saw_move_nothing() {
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    let worlds = SETTINGS.map(|_| World::new("unseen"));
    {
        let _confrev = running();
        for world in &worlds {
            world.set_config("demo", "A");
            world.apply(&web.manifest()).ok();
            world.resolves_to(&web, "demo", "A").expect("resolved at admission");
            // As the chart allows it with `analysis.enabled`.
            let role = ["create", "role", "analyses", "--verb=get,list,create,patch,delete"];
            let resources = "--resource=analysisruns.argoproj.io,analysistemplates.argoproj.io";
            world.kubectl(&[&role[..], &[resources]].concat()).ok();
            let account = "--serviceaccount=confrev:confrev";
            world.kubectl(&["create", "rolebinding", "analyses", "--role=analyses", account]).ok();
        }
    }
    let mut confrev = exclusive();
    confrev.kill();
    let set = |setting: &&str| format!("confrev.dev/{setting}");
    for (world, (source, namespace, ..)) in worlds.iter().zip(SETTINGS) {
        annotate(world, &["configmap/demo"], source.iter().map(set));
        if !namespace.is_empty() {
            annotate(world, &["namespace", world.name()], namespace.iter().map(set));
        }
        world.set_config("demo", "B");
    }
    confrev.start();
    let _confrev = confrev.downgrade();
    for (world, (source, _, reason, says)) in worlds.iter().zip(SETTINGS) {
        wait_for(&format!("the Event about {source:?}"), LIMIT, || {
            let events = world.cluster.list("events", world.name(), "");
            let seen: Vec<_> = events
                .iter()
                .map(|event| format!("{}: {}", text(&event["reason"]), text(&event["message"])))
                .collect();
            let is_it = |seen: &&String| seen.starts_with(reason) && seen.contains(says);
            if seen.iter().any(|seen| is_it(&seen)) { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
    holds_for("the previous content", Duration::from_secs(4), || {
        worlds.iter().try_for_each(|world| world.resolves_to(&web, "demo", "A"))
    });
    let remove = |setting: &&str| format!("confrev.dev/{}-", setting.split('=').next().unwrap_or_default());
    for (world, (source, namespace, ..)) in worlds.iter().zip(SETTINGS) {
        if namespace.is_empty() {
            annotate(world, &["configmap/demo"], source.iter().map(remove));
        } else {
            annotate(world, &["namespace", world.name()], namespace.iter().map(remove));
        }
    }
    for (world, (source, ..)) in worlds.iter().zip(SETTINGS) {
        wait_for(&format!("the change without {source:?}"), LIMIT, || world.resolves_to(&web, "demo", "B"));
    }
}
