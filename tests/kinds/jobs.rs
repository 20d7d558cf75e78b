//! CronJobs and Jobs: templates are resolved, and confrev starts and ends no Job.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::load::{Load, owners, wait_owner};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, snapshot_of};

#[test]
fn a_cron_job_takes_a_change_up_without_starting_or_ending_a_job_and_stays_suspended() {
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
    // Beyond the time after which unowned snapshots are swept.
    holds_for("one Job, and what it reads", Duration::from_secs(7), || {
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
fn labels_that_a_schedule_gives_its_jobs_later_do_not_take_their_revision() {
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

/// Lets a CronJob's own controller find that it has missed its one time of the year, so that it starts a Job now. Each
/// day of January makes a Job of another name.
fn let_it_start(world: &World, cron: &Load, day: u8) {
    cron.patch(world, &json!({"spec": {"schedule": format!("0 0 {day} 1 *")}}));
    let long_ago = (Timestamp::now() - SignedDuration::from_hours(24 * 400)).to_string();
    let path = format!("/apis/batch/v1/namespaces/{}/cronjobs/{}/status", world.name(), cron.name);
    let change = json!({"status": {"lastScheduleTime": long_ago}});
    let (code, answer) = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
    assert_eq!(code, 200, "{answer}");
}

#[test]
fn the_jobs_of_a_schedule_have_snapshots_of_their_own_and_only_the_schedule_starts_them() {
    let _confrev = running();
    let world = World::new("schedule");
    let mut cron =
        Load::new("cronjobs", "nightly", &["demo"]).spec(json!({"successfulJobsHistoryLimit": 10}));
    // Jobs then have these labels, and not their template's.
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
        // confrev has changed it: that starts nothing.
        holds_for("the Jobs there are", Duration::from_secs(2), || expect(&jobs().len(), &names.len()));
        assert_eq!(cron.live(&world)["spec"]["suspend"], true);
        let_it_start(&world, &cron, day);
        cron.patch(&world, &json!({"spec": {"suspend": false}}));
        let job = wait_for("the schedule's Job", LIMIT, || {
            jobs().into_iter().find(|job| !names.contains(&name_of(job)))
        });
        assert_eq!(owners(&job).into_iter().collect::<Vec<_>>(), ["CronJob/nightly"]);
        let snapshot = world.snapshot_name("demo", wanted);
        assert_eq!(snapshot_of(&job["spec"]["template"], "demo").as_ref(), Some(&snapshot));
        let owner = format!("Job/{}", name_of(&job));
        wait_for("the Job to own its snapshot", LIMIT, || {
            let owners =
                owners(&world.cluster.get("configmap", world.name(), &snapshot).ok_or("it is gone")?);
            if owners.contains(&owner) { Ok(()) } else { Err(format!("{owners:?}")) }
        });
        names.push(name_of(&job));
    }
    // Each is what it was, and reads what it was made with, beyond the time after which unowned snapshots are swept.
    holds_for("both Jobs and what they read", Duration::from_secs(7), || {
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
fn a_job_is_resolved_when_it_is_created_owns_its_snapshot_and_is_never_rolled() {
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
    holds_for("the Job as it was", Duration::from_secs(4), || {
        job.resolves_to(&world, "demo", "A")?;
        expect(&reads(), &["A"])
    });
    job.apply(&world).ok();
    job.resolves_to(&world, "demo", "A").unwrap();
    world.delete("job", "once");
    // The present content is kept for as long as its ConfigMap is there.
    world.wait_snapshot_texts("demo", &["B"]);
}

#[test]
fn in_a_namespace_that_opts_in_a_cron_jobs_jobs_keep_the_content_that_they_were_made_with() {
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
        let live = world.cluster.get("jobs", world.name(), job).expect("it is there");
        let name = snapshot_of(&live["spec"]["template"], "demo").expect("it names a snapshot");
        assert_eq!(name, world.snapshot_name("demo", wanted), "{job}");
        assert_eq!(wait_owner(&world, "demo", wanted, "Job"), job);
    }
    world.delete("job", "first");
    world.wait_snapshot_texts("demo", &["B"]);
}
