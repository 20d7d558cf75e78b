//! The program's metrics, all named `confrev_…`. No label ever holds the name of an object. docs/metrics.md is the
//! reference.
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::labels::{
    ApiLabels, ChangeLabels, EventLabels, ForbiddenLabels, GateLabels, LimitLabels, NotificationLabels,
    PathLabels, ReloadLabels, ReviewLabels, RollLabels, TaskLabels, VerbLabels,
};
pub use super::labels::{
    Done, EventOutcome, Forbidden, Limit, NotificationOutcome, Reason, Reload, ReviewOutcome, Roll, Work,
};

use crate::gates::Gate;

/// Upper bounds in seconds: a review takes a few milliseconds, and the API server stops waiting after 3 or 5 s.
const REVIEW_SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
/// The same for calls, which time out after 10 s.
const CALL_SECONDS: [f64; 10] = [0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0];
/// The same for rolls: a change settles before a roll, and `min-interval` or `max-in-flight` may delay it for hours.
const ROLL_SECONDS: [f64; 12] = [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 14_400.0];

/// The webhooks' paths.
const PATHS: [&str; 5] = [
    "/mutate/workloads",
    "/mutate/marked-workloads",
    "/mutate/configmaps",
    "/mutate/secrets",
    "/validate/workloads",
];

/// The verbs of calls to the API server.
const VERBS: [&str; 4] = ["get", "create", "patch", "delete"];

/// Every metric of the program. Cheap to clone; clones share the counts.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<MetricFamilies>);

type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Debug)]
struct MetricFamilies {
    registry: Registry,
    reviews: Family<ReviewLabels, Counter>,
    review_seconds: Seconds<PathLabels>,
    uncarried_reviews: Counter,
    api_requests: Family<ApiLabels, Counter>,
    api_forbidden: Family<ForbiddenLabels, Counter>,
    api_seconds: Seconds<VerbLabels>,
    tasks: Family<TaskLabels, Counter>,
    rolls: Family<RollLabels, Counter>,
    roll_seconds: Histogram,
    changes: Family<ChangeLabels, Counter>,
    snapshots_created: Counter,
    snapshots_bound: Counter,
    snapshots_swept: Counter,
    snapshots_restored: Counter,
    events: Family<EventLabels, Counter>,
    notifications: Family<NotificationLabels, Counter>,
    state_counts: [Gauge; STATE_COUNTS.len()],
    waiting: Family<GateLabels, Gauge>,
    leader: Gauge,
    runtime_tasks: Gauge,
    certificate_expiry: Gauge,
    certificate_reloads: Family<ReloadLabels, Counter>,
    limits: Family<LimitLabels, Counter>,
}

/// Numbers of objects in the controller's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Opted-in workloads.
    pub workloads: usize,
    /// Sources that they use, or that carry a label of confrev.
    pub sources: usize,
    /// Snapshots.
    pub snapshots: usize,
    /// Workloads with a pending roll.
    pub pending: usize,
    /// Pending workloads that wait until other workloads are healthy, or until a person acts.
    pub blocked: usize,
    /// Workloads that keep another content of a source than its current one, because of an undo or a pin.
    pub pinned: usize,
    /// Workloads that the annotation `hold` keeps on a snapshot.
    pub on_hold: usize,
    /// Workloads whose last write confrev did not answer.
    pub carried: usize,
    /// Workloads that refer to an object that does not exist.
    pub unresolved: usize,
    /// Snapshots that are referenced but missing, and cannot be recreated.
    pub lost: usize,
    /// Workloads and revisions that cannot be read.
    pub unreadable: usize,
    /// Snapshots whose digests use a lost key.
    pub unverifiable: usize,
    /// Namespaces of which something is left out of the world.
    pub partly_known: usize,
    /// The counted bytes of the records of workloads and revisions.
    pub index_bytes: usize,
}

/// Names and help texts of the gauges of a [`StateCounts`], in the order of its fields.
const STATE_COUNTS: [(&str, &str); 14] = [
    ("workloads", "Opted-in workloads"),
    ("sources", "ConfigMaps and Secrets that opted-in workloads use"),
    ("snapshots", "Snapshots in the cluster"),
    ("pending_workloads", "Workloads with a pending roll"),
    ("blocked_workloads", "Workloads that wait until others are healthy, or until a person acts"),
    ("pinned_workloads", "Workloads that an undo or a pin keeps on content other than the present content"),
    (
        "on_hold_workloads",
        "Workloads that the annotation hold keeps on a snapshot, whatever its source holds",
    ),
    ("carried_workloads", "Workloads whose last write was admitted without an answer of confrev"),
    ("unresolved_workloads", "Workloads that refer to a ConfigMap or Secret that does not exist"),
    ("lost_snapshots", "Snapshots that are referenced but missing, and cannot be recreated"),
    ("unreadable_objects", "Workloads and revisions that cannot be read"),
    ("unverifiable_snapshots", "Snapshots of Secrets whose digests use a lost key"),
    ("partly_known_namespaces", "Namespaces with more workloads and revisions than their share of the index"),
    ("index_bytes", "Counted bytes of the records of workloads and revisions"),
];

impl StateCounts {
    const fn counts(&self) -> [usize; STATE_COUNTS.len()] {
        let Self {
            workloads,
            sources,
            snapshots,
            pending,
            blocked,
            pinned,
            on_hold,
            carried,
            unresolved,
            lost,
            unreadable,
            unverifiable,
            partly_known,
            index_bytes,
        } = *self;
        [
            workloads,
            sources,
            snapshots,
            pending,
            blocked,
            pinned,
            on_hold,
            carried,
            unresolved,
            lost,
            unreadable,
            unverifiable,
            partly_known,
            index_bytes,
        ]
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Creates every metric, at zero.
    pub fn new() -> Self {
        // The encoder adds `_total` and `_info` to the names.
        let mut registry = Registry::with_prefix("confrev");
        let all = &mut registry;
        all.register(
            "build",
            "Version of the running program",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let review_seconds: Seconds<_> = Family::new_with_constructor(|| Histogram::new(REVIEW_SECONDS));
        let api_seconds: Seconds<_> = Family::new_with_constructor(|| Histogram::new(CALL_SECONDS));
        let inner = MetricFamilies {
            reviews: add(all, "admission_reviews", "Admission reviews answered", Family::default()),
            review_seconds: add(
                all,
                "admission_duration_seconds",
                "Time to answer an admission review",
                review_seconds,
            ),
            uncarried_reviews: add(
                all,
                "uncarried_reviews",
                "Reviews without the mark of confrev-carry at a path where it marks each of them",
                Counter::default(),
            ),
            api_requests: add(
                all,
                "api_requests",
                "Requests to the API server; code 0 means no answer",
                Family::default(),
            ),
            api_forbidden: add(
                all,
                "api_forbidden",
                "Requests that the API server answered with 403",
                Family::default(),
            ),
            api_seconds: add(
                all,
                "api_request_duration_seconds",
                "Time until the API server answered or the request failed",
                api_seconds,
            ),
            tasks: add(all, "tasks", "Tasks that the controller finished", Family::default()),
            rolls: add(all, "rolls", "Attempts to roll a workload", Family::default()),
            roll_seconds: add(
                all,
                "roll_delay_seconds",
                "Time from a change of a source to the roll of a workload that uses it",
                Histogram::new(ROLL_SECONDS),
            ),
            changes: add(all, "changes", "Changes that moved workloads, by strategy", Family::default()),
            snapshots_created: add(all, "snapshots_created", "Snapshots created", Counter::default()),
            snapshots_bound: add(all, "snapshots_bound", "Writes of snapshots' owners", Counter::default()),
            snapshots_swept: add(all, "snapshots_swept", "Unused snapshots deleted", Counter::default()),
            snapshots_restored: add(
                all,
                "snapshots_restored",
                "Referenced snapshots that were missing and were recreated",
                Counter::default(),
            ),
            events: add(
                all,
                "events",
                "Events that confrev wrote, failed to write, or dropped",
                Family::default(),
            ),
            notifications: add(
                all,
                "notifications",
                "Notifications that the receiver accepted or refused, that failed, or that were dropped",
                Family::default(),
            ),
            state_counts: STATE_COUNTS.map(|(name, help)| add(all, name, help, Gauge::default())),
            waiting: add(
                all,
                "waiting_workloads",
                "Workloads that a gate keeps from new content",
                Family::default(),
            ),
            leader: add(all, "leader", "1 if this replica leads", Gauge::default()),
            runtime_tasks: add(all, "runtime_tasks", "Tasks of the async runtime", Gauge::default()),
            certificate_expiry: add(
                all,
                "certificate_expiry_timestamp_seconds",
                "When the serving certificate in use expires, in seconds since 1970",
                Gauge::default(),
            ),
            certificate_reloads: add(
                all,
                "certificate_reloads",
                "New serving certificates, loaded or refused",
                Family::default(),
            ),
            limits: add(all, "limits_reached", "Limits that were reached", Family::default()),
            registry,
        };
        inner.start_at_zero();
        Self(Arc::new(inner))
    }

    /// All metrics as OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &self.0.registry).is_err() {
            // Writing to a String does not fail; a scraper would report an empty page as broken.
            text.clear();
        }
        text
    }

    /// An admission review on `path` ended after `took`. `path` must be one of the program's own routes, never text
    /// that a client sent.
    pub fn review(&self, path: &'static str, outcome: ReviewOutcome, took: Duration) {
        self.0.reviews.get_or_create(&ReviewLabels { path, outcome }).inc();
        self.0.review_seconds.get_or_create(&PathLabels { path }).observe(took.as_secs_f64());
    }

    /// A review had no mark where the policy `confrev-carry` marks each one.
    pub fn uncarried_review(&self) {
        self.0.uncarried_reviews.inc();
    }

    /// The API server answered a request with `code` (an HTTP status; 0 if there was no answer) after `took`.
    pub fn api_request(&self, verb: &'static str, code: u16, took: Duration) {
        self.0.api_requests.get_or_create(&ApiLabels { verb, code: code.into() }).inc();
        self.0.api_seconds.get_or_create(&VerbLabels { verb }).observe(took.as_secs_f64());
    }

    /// The controller ended a task.
    pub fn task(&self, task: Work, outcome: Done) {
        self.0.tasks.get_or_create(&TaskLabels { task, outcome }).inc();
    }

    /// The API server forbade a call.
    pub fn api_forbidden(&self, verb: &'static str, cause: Forbidden) {
        self.0.api_forbidden.get_or_create(&ForbiddenLabels { verb, cause }).inc();
    }

    /// The controller tried to roll a workload forward.
    pub fn roll(&self, outcome: Roll) {
        self.0.rolls.get_or_create(&RollLabels { outcome }).inc();
    }

    /// A change of a source moved its first workload. `strategy` is empty for a change outside any.
    pub fn change(&self, strategy: &str) {
        self.0.changes.get_or_create(&ChangeLabels { strategy: strategy.to_owned() }).inc();
    }

    /// A workload rolled this long after the change.
    pub fn roll_delay(&self, delay: Duration) {
        self.0.roll_seconds.observe(delay.as_secs_f64());
    }

    /// A snapshot was created.
    pub fn snapshot_created(&self) {
        self.0.snapshots_created.inc();
    }

    /// A snapshot's ownerReferences were written.
    pub fn snapshot_bound(&self) {
        self.0.snapshots_bound.inc();
    }

    /// A snapshot that nothing referenced was deleted.
    pub fn snapshot_swept(&self) {
        self.0.snapshots_swept.inc();
    }

    /// A snapshot that was missing while referenced was recreated.
    pub fn snapshot_restored(&self) {
        self.0.snapshots_restored.inc();
    }

    /// The result of writing an Event, or of an attempt.
    pub fn event(&self, reason: Reason, outcome: EventOutcome) {
        self.0.events.get_or_create(&EventLabels { reason, outcome }).inc();
    }

    /// The result of posting a notification, or of an attempt.
    pub fn notification(&self, outcome: NotificationOutcome) {
        self.0.notifications.get_or_create(&NotificationLabels { outcome }).inc();
    }

    /// Sets the gauges to the current numbers.
    pub fn set_state_counts(&self, known: &StateCounts) {
        for (gauge, count) in self.0.state_counts.iter().zip(known.counts()) {
            gauge.set(count.try_into().unwrap_or(i64::MAX));
        }
    }

    /// Sets how many pending workloads each gate keeps from new content.
    pub fn set_waiting(&self, waiting: &[(Gate, usize)]) {
        self.0.set_waiting(waiting);
    }

    /// Whether this replica leads.
    pub fn set_leader(&self, leads: bool) {
        self.0.leader.set(leads.into());
    }

    /// How many tasks the program's runtime has.
    pub fn set_runtime_tasks(&self, count: usize) {
        self.0.runtime_tasks.set(count.try_into().unwrap_or(i64::MAX));
    }

    /// A limit was reached `times` times.
    pub fn limit_reached(&self, limit: Limit, times: u64) {
        self.0.limits.get_or_create(&LimitLabels { limit }).inc_by(times);
    }

    /// When the serving certificate in use expires.
    pub fn set_certificate_expiry(&self, at: Timestamp) {
        self.0.certificate_expiry.set(at.as_second());
    }

    /// A new serving certificate was seen.
    pub fn certificate_reload(&self, outcome: Reload) {
        self.0.certificate_reloads.get_or_create(&ReloadLabels { outcome }).inc();
    }
}

/// Registers a metric, and returns a handle on it.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl MetricFamilies {
    /// A rate over a counter that begins with its first event misses that event, so every metric whose labels are known
    /// starts at zero. The API server's status codes are not known in advance.
    fn set_waiting(&self, waiting: &[(Gate, usize)]) {
        for (gate, count) in waiting {
            let labels = GateLabels { gate: gate.name() };
            self.waiting.get_or_create(&labels).set((*count).try_into().unwrap_or(i64::MAX));
        }
    }

    fn start_at_zero(&self) {
        for path in PATHS {
            drop(self.review_seconds.get_or_create(&PathLabels { path }));
            for &outcome in ReviewOutcome::ALL {
                drop(self.reviews.get_or_create(&ReviewLabels { path, outcome }));
            }
        }
        for verb in VERBS {
            for &cause in Forbidden::ALL {
                drop(self.api_forbidden.get_or_create(&ForbiddenLabels { verb, cause }));
            }
        }
        for &task in Work::ALL {
            for &outcome in Done::ALL {
                drop(self.tasks.get_or_create(&TaskLabels { task, outcome }));
            }
        }
        for &outcome in Roll::ALL {
            drop(self.rolls.get_or_create(&RollLabels { outcome }));
        }
        drop(self.changes.get_or_create(&ChangeLabels { strategy: String::new() }));
        self.set_waiting(&Gate::all().map(|gate| (gate, 0)).collect::<Vec<_>>());
        for &reason in Reason::ALL {
            for &outcome in EventOutcome::ALL {
                drop(self.events.get_or_create(&EventLabels { reason, outcome }));
            }
        }
        for &outcome in NotificationOutcome::ALL {
            drop(self.notifications.get_or_create(&NotificationLabels { outcome }));
        }
        for &limit in Limit::ALL {
            drop(self.limits.get_or_create(&LimitLabels { limit }));
        }
        for &outcome in Reload::ALL {
            drop(self.certificate_reloads.get_or_create(&ReloadLabels { outcome }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_written_under_its_documented_name() {
        let metrics = Metrics::new();
        metrics.review("/mutate/workloads", ReviewOutcome::Patched, Duration::from_millis(2));
        metrics.api_request("get", 404, Duration::from_millis(2));
        metrics.task(Work::OptIn, Done::Conflict);
        metrics.roll(Roll::Rolled);
        metrics.roll_delay(Duration::from_secs(2));
        metrics.uncarried_review();
        metrics.snapshot_created();
        metrics.snapshot_bound();
        metrics.snapshot_swept();
        metrics.snapshot_restored();
        metrics.event(Reason::Rolled, EventOutcome::Written);
        metrics.notification(NotificationOutcome::Dropped);
        metrics.set_state_counts(&StateCounts {
            workloads: 3,
            pending: 2,
            lost: 1,
            ..StateCounts::default()
        });
        metrics.set_leader(true);
        metrics.set_certificate_expiry(Timestamp::from_second(1_800_000_000).unwrap());
        metrics.certificate_reload(Reload::Refused);
        metrics.limit_reached(Limit::Body, 2);
        let text = metrics.encode();
        for line in [
            concat!("confrev_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "confrev_admission_reviews_total{path=\"/mutate/workloads\",outcome=\"patched\"} 1",
            "confrev_admission_duration_seconds_bucket{le=\"0.0025\",path=\"/mutate/workloads\"} 1",
            "confrev_api_requests_total{verb=\"get\",code=\"404\"} 1",
            "confrev_api_request_duration_seconds_bucket{le=\"0.0025\",verb=\"get\"} 1",
            "confrev_tasks_total{task=\"opt-in\",outcome=\"conflict\"} 1",
            "confrev_rolls_total{outcome=\"rolled\"} 1",
            "confrev_roll_delay_seconds_bucket{le=\"2.0\"} 1",
            "confrev_snapshots_created_total 1",
            "confrev_snapshots_bound_total 1",
            "confrev_snapshots_swept_total 1",
            "confrev_snapshots_restored_total 1",
            "confrev_events_total{reason=\"Rolled\",outcome=\"written\"} 1",
            "confrev_notifications_total{outcome=\"dropped\"} 1",
            "confrev_workloads 3",
            "confrev_pending_workloads 2",
            "confrev_pinned_workloads 0",
            "confrev_on_hold_workloads 0",
            "confrev_carried_workloads 0",
            "confrev_uncarried_reviews_total 1",
            "confrev_lost_snapshots 1",
            "confrev_leader 1",
            "confrev_certificate_expiry_timestamp_seconds 1800000000",
            "confrev_certificate_reloads_total{outcome=\"refused\"} 1",
            "confrev_limits_reached_total{limit=\"max-body\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn clones_count_together() {
        let metrics = Metrics::new();
        metrics.clone().snapshot_created();
        metrics.snapshot_created();
        assert!(metrics.encode().contains("confrev_snapshots_created_total 2\n"));
    }
}
