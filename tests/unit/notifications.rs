//! Notifications to a receiver that fails, is away, or is slower than the Events.

use std::time::Duration;

use confrev::{
    cluster::{Event, ObjectRef},
    notify::{KeySource, Notices, Notifier, NotifyFormat, NotifyOptions},
    telemetry::{Metrics, metrics::Reason},
};
use confrev_test_support::webhook_receiver::{Receiver, Reply};
use jiff::{SignedDuration, Timestamp};

use super::controller::web_on_blue;

const LIMIT: Duration = Duration::from_mins(1);

pub(crate) fn event(number: usize, reason: Reason, age: SignedDuration) -> Event {
    let regarding = ObjectRef {
        api_version: "apps/v1".to_owned(),
        kind: "Deployment".to_owned(),
        name: format!("web-{number}"),
        uid: number.to_string(),
    };
    let (note, same) = (String::new(), String::new());
    Event {
        namespace: "shop".into(),
        regarding,
        related: None,
        reason,
        note,
        same,
        at: Timestamp::now() - age,
    }
}

pub(crate) fn notifier(url: &str) -> (Notices, Notifier, Metrics) {
    let metrics = Metrics::new();
    let options = NotifyOptions {
        url: url.parse().unwrap(),
        format: NotifyFormat::Cloudevents,
        key: Some(KeySource::Given("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap())),
        ca: None,
        source: "test".to_owned(),
    };
    let (notices, notifier) = Notifier::new(options, metrics.clone()).unwrap();
    (notices, notifier, metrics)
}

pub(crate) fn count(metrics: &Metrics, outcome: &str) -> usize {
    let name = format!("confrev_notifications_total{{outcome=\"{outcome}\"}} ");
    let text = metrics.encode();
    text.lines().find_map(|line| line.strip_prefix(name.as_str())?.parse().ok()).unwrap()
}

pub(crate) async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("waited for {what}"));
}

#[tokio::test]
async fn entrance_never_waits_and_drops_beyond_limit() {
    let (notices, notifier, metrics) = notifier("http://127.0.0.1:9/");
    for number in 0..300 {
        notices.add(&event(number, Reason::Rolled, SignedDuration::ZERO));
    }
    assert_eq!(count(&metrics, "dropped"), 300 - 256);
    for reason in [Reason::SourceMissing, Reason::ObjectUnreadable, Reason::SnapshotsDropped] {
        notices.add(&event(0, reason, SignedDuration::ZERO));
    }
    assert_eq!(count(&metrics, "dropped"), 300 - 256, "not notified");
    drop(notifier);
}

/// After an outage, the backlog that is too old is dropped at once, and the next Event is sent.
#[tokio::test(flavor = "multi_thread")]
async fn receiver_that_returns_gets_recent_events() {
    let receiver = Receiver::start(&[Reply::Status(503), Reply::Closed, Reply::Status(503)]);
    let (notices, notifier, metrics) = notifier(&receiver.url());
    tokio::spawn(notifier.run());
    for number in 0..3 {
        notices.add(&event(number, Reason::RollHeld, SignedDuration::from_mins(20)));
    }
    notices.add(&event(3, Reason::SnapshotLost, SignedDuration::ZERO));
    until("the recent Event", || count(&metrics, "sent") == 1).await;
    assert_eq!((count(&metrics, "dropped"), count(&metrics, "failed")), (3, 3));
    assert_eq!(receiver.posts().last().unwrap().json()["type"], "dev.confrev.SnapshotLost");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_the_controller_are_posted() {
    let receiver = Receiver::start(&[]);
    let (notices, notifier, metrics) = notifier(&receiver.url());
    tokio::spawn(notifier.run());
    let (_, _, mut desk) = web_on_blue();
    desk.state = desk.state.notifying(notices);
    desk.pass(2);
    assert_eq!(desk.lose().len(), 1);
    until("the Event", || count(&metrics, "sent") > 0).await;
    assert_eq!(receiver.posts()[0].json()["type"], "dev.confrev.SnapshotLost");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_is_final_and_redirects_are_not_followed() {
    let receiver = Receiver::start(&[Reply::Status(400), Reply::Status(410), Reply::Status(302)]);
    let (notices, notifier, metrics) = notifier(&receiver.url());
    tokio::spawn(notifier.run());
    for number in 0..4 {
        notices.add(&event(number, Reason::Rolled, SignedDuration::ZERO));
    }
    until("the last Event", || count(&metrics, "sent") == 1).await;
    assert_eq!((count(&metrics, "refused"), receiver.posts().len()), (3, 4));
}
