//! `--notify`: what a receiver gets, whatever it answers.

use std::time::Duration;

use confrev_controlplane::wait_for;
use confrev_test_support::webhook_receiver::{Post, Receiver, Reply};
use serde_json::json;

use crate::manifests::{Kind, Workload};
use crate::shared::exclusive;
use crate::world::{LIMIT, World};

const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Values that occur nowhere else.
const VALUES: [&str; 3] = ["kAhyS7cFw2", "mEbrZ9xQt4", "pVdwX3uNs8"];

/// The posts of that type about the workload.
fn rolled(receiver: &Receiver, world: &World) -> Vec<Post> {
    let subject = format!("{}/Deployment/web", world.name());
    let is_it = |post: &Post| {
        let event = post.json();
        event["type"] == "dev.confrev.Rolled" && event["subject"] == subject
    };
    receiver.posts().into_iter().filter(is_it).collect()
}

/// The receiver fails, breaks connections and delays its answers, and gets every roll in the end.
#[test]
fn rolls_are_posted_signed_and_retried() {
    let failures =
        [Reply::Status(500), Reply::Closed, Reply::Status(429), Reply::After(Duration::from_secs(2))];
    let receiver = Receiver::start(&failures);
    let mut confrev = exclusive();
    confrev.stop();
    confrev.start_with(&["--notify", &receiver.url(), "--notify-key", KEY, "--notify-source=test"]);
    let world = World::new("notifications");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    world.set_config("demo", VALUES[0]);
    world.apply(&web.manifest()).ok();
    world.wait_resolved(&web, "demo", VALUES[0]);
    wait_for("confrev to lead", LIMIT, || confrev.leads().then_some(()));
    for (count, value) in [(1, VALUES[1]), (2, VALUES[2])] {
        world.set_config("demo", value);
        world.wait_resolved(&web, "demo", value);
        let posts = wait_for("the roll to be accepted", LIMIT, || {
            let posts = rolled(&receiver, &world);
            let ids: std::collections::BTreeSet<_> =
                posts.iter().map(|post| post.header("webhook-id").to_owned()).collect();
            (ids.len() == count && confrev.metric("confrev_notifications_total{outcome=\"sent\"}") > 0.0)
                .then_some(posts)
        });
        let event = posts.last().expect("a post").json();
        let snapshot = world.snapshot_name("demo", value);
        assert_eq!((&event["specversion"], &event["source"]), (&json!("1.0"), &json!("test")));
        assert!(event["data"]["message"].as_str().is_some_and(|text| text.contains(&snapshot)), "{event}");
        assert_eq!(event["data"]["regarding"]["name"], "web");
    }
    let posts = receiver.posts();
    assert!(posts.len() > failures.len(), "{} posts", posts.len());
    for post in &posts {
        assert!(post.is_signed_by(KEY) && !post.is_signed_by(&KEY.replace('M', "N")), "{post:?}");
        assert!(post.header("content-type").starts_with("application/cloudevents+json"), "{post:?}");
        assert_eq!(post.header("webhook-id"), post.json()["id"]);
        let body = String::from_utf8_lossy(&post.body);
        assert!(VALUES.iter().all(|value| !body.contains(value)), "{body}");
    }
    assert!(confrev.metric("confrev_notifications_total{outcome=\"failed\"}") >= 3.0);
    assert!(!confrev.log_tail().contains("token=secret"), "the log shows the URL");
}

/// In Slack's form. While the receiver refuses everything, workloads roll as usual.
#[test]
fn refusing_receiver_delays_no_roll() {
    let receiver = Receiver::start(&[]);
    let mut confrev = exclusive();
    confrev.stop();
    confrev.start_with(&["--notify", &receiver.url(), "--notify-format=slack"]);
    let world = World::new("notifications");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    world.set_config("demo", VALUES[0]);
    world.apply(&web.manifest()).ok();
    world.wait_resolved(&web, "demo", VALUES[0]);
    wait_for("confrev to lead", LIMIT, || confrev.leads().then_some(()));
    world.set_config("demo", VALUES[1]);
    let start = format!("*Rolled* {}/Deployment/web: ", world.name());
    wait_for("Slack's text", LIMIT, || {
        let texts: Vec<_> = receiver.posts().iter().map(|post| post.json()["text"].clone()).collect();
        let is_it = |text: &serde_json::Value| text.as_str().is_some_and(|text| text.starts_with(&start));
        texts.iter().any(is_it).then_some(()).ok_or_else(|| format!("{texts:?}"))
    });
    receiver.answers(&[Reply::Status(404); 100]);
    world.set_config("demo", VALUES[2]);
    world.wait_resolved(&web, "demo", VALUES[2]);
    wait_for("a refused notification", LIMIT, || {
        (confrev.metric("confrev_notifications_total{outcome=\"refused\"}") > 0.0).then_some(())
    });
}
