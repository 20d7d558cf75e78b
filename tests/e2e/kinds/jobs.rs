//! CronJobs and Jobs: templates are resolved, and confrev starts and ends no Job.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::any_kind::{Load, owners, wait_owner};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, snapshot_of};

/// The CronJob stays suspended.
#[test]
fn config_change_starts_and_ends_no_job() {
    let _confrev = running();
    let world = World::new("cron");
    let cron = Load::new("cronjobs", "nightly", &["demo"]);
    world.set_config("demo", "A");
    cron.apply(&world).ok();
    cron.resolves_to(&world, "demo", "A").expect("resolved when it is created");

    world.kubectl(&["create", "job", "first", "--from=cronjob/nightly"]).ok();
    assert_eq!(wait_owner(&world, "demo", "A", "Job"), "first");
    world.set_config("demo", "B");
    cron.wait_resolved(&world, "demo", "B");
    let jobs = || world.cluster.list("jobs", world.name(), "").iter().map(name_of).collect::<Vec<_>>();
    // Longer than unowned snapshots are kept.
    holds_for("one Job with its snapshot", Duration::from_secs(7), || {
        expect(&jobs(), &["first"])?;
        expect(&cron.live(&world)["spec"]["suspend"], &true)?;
        expect(&world.snapshot_texts("demo"), &["A", "B"])
    });
    let owners =
        owners(&world.cluster.get("configmap", world.name(), &world.snapshot_name("demo", "A")).unwrap());
    assert_eq!(owners.into_iter().collect::<Vec<_>>(), ["Job/first"]);

    let generation = cron.live(&world)["metadata"]["generation"].clone();
    cron.apply(&world).ok();
    assert_eq!(cron.live(&world)["metadata"]["generation"], generation);
    world.delete("job", "first");
    world.wait_snapshot_texts("demo", &["B"]);
    cron.resolves_to(&world, "demo", "B").unwrap();
}

#[test]
fn later_labels_of_job_template_keep_revision() {
    let _confrev = running();
    let world = World::new("cron-labels");
    let cron = Load::new("cronjobs", "nightly", &["demo"]);
    world.set_config("demo", "A");
    cron.apply(&world).ok();
    cron.patch(&world, &json!({"spec": {"jobTemplate": {"metadata": {"labels": {"team": "shop"}}}}}));
    let labels = cron.live(&world)["spec"]["jobTemplate"]["metadata"]["labels"].clone();
    assert!(labels["team"] == "shop" && labels["confrev.dev/revision"].is_string(), "{labels}");
    world.kubectl(&["create", "job", "first", "--from=cronjob/nightly"]).ok();
    assert_eq!(wait_owner(&world, "demo", "A", "Job"), "first");
}

/// Makes the CronJob's own controller start a Job now, since the only time of its yearly schedule was missed. Each day of
/// January gives a Job of another name.
fn let_it_start(world: &World, cron: &Load, day: u8) {
    cron.patch(world, &json!({"spec": {"schedule": format!("0 0 {day} 1 *")}}));
    let long_ago = (Timestamp::now() - SignedDuration::from_hours(24 * 400)).to_string();
    let path = format!("/apis/batch/v1/namespaces/{}/cronjobs/{}/status", world.name(), cron.name);
    let change = json!({"status": {"lastScheduleTime": long_ago}});
    let (code, answer) = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
    assert_eq!(code, 200, "{answer}");
}

/// Only the CronJob's schedule starts Jobs; confrev starts none.
#[test]
fn jobs_of_cron_job_own_their_snapshots() {
    let _confrev = running();
    let world = World::new("schedule");
    let mut cron =
        Load::new("cronjobs", "nightly", &["demo"]).spec(json!({"successfulJobsHistoryLimit": 10}));
    // Jobs then have these labels, and not those of their template.
    cron.manifest["spec"]["jobTemplate"]["metadata"] = json!({"labels": {"team": "shop"}});
    let jobs = || world.cluster.list("jobs", world.name(), "");
    world.set_config("demo", "A");
    cron.apply(&world).ok();
    let_it_start(&world, &cron, 1);
    holds_for("no Job while it is suspended", Duration::from_secs(3), || expect(&jobs().len(), &0));

    let mut names = Vec::new();
    for (day, wanted) in [(1, "A"), (2, "B")] {
        cron.patch(&world, &json!({"spec": {"suspend": true}}));
        world.set_config("demo", wanted);
        cron.wait_resolved(&world, "demo", wanted);
        // confrev's change of the CronJob starts no Job.
        holds_for("the number of Jobs", Duration::from_secs(2), || expect(&jobs().len(), &names.len()));
        assert_eq!(cron.live(&world)["spec"]["suspend"], true);
        let_it_start(&world, &cron, day);
        cron.patch(&world, &json!({"spec": {"suspend": false}}));
        let job = wait_for("the CronJob's Job", LIMIT, || {
            jobs().into_iter().find(|job| !names.contains(&name_of(job)))
        });
        assert_eq!(owners(&job).into_iter().collect::<Vec<_>>(), ["CronJob/nightly"]);
        let snapshot = world.snapshot_name("demo", wanted);
        assert_eq!(snapshot_of(&job["spec"]["template"], "demo").as_ref(), Some(&snapshot));
        let owner = format!("Job/{}", name_of(&job));
        wait_for("the Job to own its snapshot", LIMIT, || {
            let owners =
                owners(&world.cluster.get("configmap", world.name(), &snapshot).ok_or("it does not exist")?);
            if owners.contains(&owner) { Ok(()) } else { Err(format!("{owners:?}")) }
        });
        names.push(name_of(&job));
    }
    // Both Jobs and their snapshots stay for longer than unowned snapshots are kept.
    holds_for("both Jobs with their snapshots", Duration::from_secs(7), || {
        expect(&jobs().len(), &2)?;
        expect(&world.snapshot_texts("demo"), &["A", "B"])
    });
    for verb in ["create", "delete"] {
        let answer =
            world.kubectl(&["auth", "can-i", verb, "jobs", "--as=system:serviceaccount:confrev:confrev"]);
        assert_eq!(answer.stdout.trim(), "no", "confrev may {verb} Jobs");
    }
}

#[test]
fn job_owns_its_snapshot_and_never_rolls() {
    let _confrev = running();
    let world = World::new("job");
    let job = Load::new("jobs", "once", &["demo"]);
    world.set_config("demo", "A");
    job.apply(&world).ok();
    job.resolves_to(&world, "demo", "A").expect("resolved when it is created");
    assert_eq!(wait_owner(&world, "demo", "A", "Job"), "once");
    let reads = || {
        let pods = world.cluster.list("pods", world.name(), "app=once");
        pods.iter().map(|pod| world.pod_reads(pod, "demo")).collect::<Vec<_>>()
    };
    wait_for("the Job's pod", LIMIT, || expect(&reads(), &["A"]));

    world.set_config("demo", "B");
    holds_for("the unchanged Job", Duration::from_secs(4), || {
        job.resolves_to(&world, "demo", "A")?;
        expect(&reads(), &["A"])
    });
    job.apply(&world).ok();
    job.resolves_to(&world, "demo", "A").unwrap();
    world.delete("job", "once");
    // The present snapshot is kept for as long as its ConfigMap exists.
    world.wait_snapshot_texts("demo", &["B"]);
}

/// The Jobs are those of a CronJob that the namespace opts in.
#[test]
fn namespace_opt_in_keeps_content_of_existing_jobs() {
    let _confrev = running();
    let world = World::labelled("cron-all", &[("confrev.dev/enabled", "true")]);
    let cron = Load::new("cronjobs", "nightly", &["demo"]).unlabelled();
    world.set_config("demo", "A");
    cron.apply(&world).ok();
    cron.resolves_to(&world, "demo", "A").expect("resolved when it is created");
    world.kubectl(&["create", "job", "first", "--from=cronjob/nightly"]).ok();
    world.set_config("demo", "B");
    cron.wait_resolved(&world, "demo", "B");
    world.kubectl(&["create", "job", "second", "--from=cronjob/nightly"]).ok();

    for (job, wanted) in [("first", "A"), ("second", "B")] {
        let live = world.cluster.get("jobs", world.name(), job).expect("the object exists");
        let name = snapshot_of(&live["spec"]["template"], "demo").expect("the template names a snapshot");
        assert_eq!(name, world.snapshot_name("demo", wanted), "{job}");
        assert_eq!(wait_owner(&world, "demo", wanted, "Job"), job);
    }
    world.delete("job", "first");
    world.wait_snapshot_texts("demo", &["B"]);
}
