//! Every kind of workload: a change, an undo, another change, the deletion.

use super::{
    super::{
        objects::{File, NAMESPACE},
        play::Play,
    },
    Scenario,
};
use crate::store::{Key, Kind};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("deployment", |play| story(play, Kind::Deployment)),
    Scenario::new("rollout", |play| story(play, Kind::Rollout)),
    Scenario::new("stateful-set", |play| story(play, Kind::StatefulSet)),
    Scenario::new("daemon-set", |play| story(play, Kind::DaemonSet)),
    Scenario::new("configured-kind", |play| story(play, Kind::CloneSet)),
    Scenario::new("rollout-with-workload-ref", workload_ref),
    Scenario::new("cron-job", cron_job),
    Scenario::new("job", job),
];

fn story(play: &Play<'_>, kind: Kind) {
    let file = File::workload(kind, "w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 1);
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&file.key, "s", "two");
    play.revisions(&file.key, 2);
    play.undo(&file.key, 1);
    play.rest();
    play.reads(&file.key, "s", "one");
    play.revisions(&file.key, 3);
    play.apply(&File::source("s", "three"));
    play.rest();
    play.reads(&file.key, "s", "three");
    play.revisions(&file.key, 4);
    play.apply_all_again();
    play.delete(&file.key);
}

fn workload_ref(play: &Play<'_>) {
    let (deployment, rollout) = (File::deployment("w", &["s"]), File::rollout_of("r", "w"));
    play.apply(&File::source("s", "one"));
    play.apply(&deployment);
    play.apply(&rollout);
    play.rest();
    play.revisions(&rollout.key, 1);
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&deployment.key, "s", "two");
    play.revisions(&rollout.key, 2);
    play.delete(&rollout.key);
    play.rest();
    play.delete(&deployment.key);
}

fn cron_job(play: &Play<'_>) {
    let file = File::workload(Kind::CronJob, "w", &["s"]);
    let job = |number: u8| Key::new(Kind::Job, NAMESPACE, &format!("w-{number}"));
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.tick("w", 1);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.tick("w", 2);
    play.rest();
    play.reads(&job(1), "s", "one");
    play.reads(&job(2), "s", "two");
    play.delete(&job(1));
    play.rest();
    play.delete(&file.key);
}

fn job(play: &Play<'_>) {
    let file = File::workload(Kind::Job, "w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.reads(&file.key, "s", "one");
    play.apply_all_again();
    play.delete(&file.key);
}
