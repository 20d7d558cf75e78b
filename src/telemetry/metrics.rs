//! The program's metrics, all named `confrev_…`; no label ever holds the name of an object.
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Upper bounds in seconds: a review takes a few milliseconds, and the API server gives up after 5 s.
const REVIEW_SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Every metric of the program. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    reviews: Family<ReviewLabels, Counter>,
    review_seconds: Family<PathLabels, Histogram>,
    api_requests: Family<ApiLabels, Counter>,
    rolls: Family<RollLabels, Counter>,
    snapshots_created: Counter,
    snapshots_bound: Counter,
    snapshots_swept: Counter,
    workloads: Gauge,
    pending_workloads: Gauge,
    held_workloads: Gauge,
    leader: Gauge,
    certificate_expiry: Gauge,
    certificate_reload: Family<ReloadLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    path: &'static str,
    outcome: Review,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    path: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiLabels {
    verb: &'static str,
    code: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RollLabels {
    outcome: Roll,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    outcome: Reload,
}

/// How an admission review ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Review {
    /// Let through as it was.
    Allowed,
    /// Let through with a patch.
    Patched,
    /// Refused, by a rule.
    Denied,
    /// Not decided: malformed, too slow, or the API server could not be asked.
    Failed,
}

/// How the attempt to roll a workload forward ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Roll {
    /// The workload was written.
    Rolled,
    /// Somebody else wrote it first; it is tried again on its fresh state.
    Conflict,
    /// The write was refused or not answered.
    Failed,
}

/// What became of a new serving certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reload {
    /// It is in use.
    Loaded,
    /// It is broken; the one before stays in use.
    Refused,
}

impl Review {
    const fn text(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Patched => "patched",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

impl Roll {
    const fn text(self) -> &'static str {
        match self {
            Self::Rolled => "rolled",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
        }
    }
}

impl Reload {
    const fn text(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Refused => "refused",
        }
    }
}

macro_rules! encode_as_text {
    ($($label:ty),*) => {$(
        impl EncodeLabelValue for $label {
            fn encode(
                &self,
                encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
            ) -> std::fmt::Result {
                self.text().encode(encoder)
            }
        }
    )*};
}
encode_as_text!(Review, Roll, Reload);

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Every metric at zero.
    pub fn new() -> Self {
        let mut inner = Inner {
            registry: Registry::with_prefix("confrev"),
            reviews: Family::default(),
            review_seconds: Family::new_with_constructor(|| Histogram::new(REVIEW_SECONDS)),
            api_requests: Family::default(),
            rolls: Family::default(),
            snapshots_created: Counter::default(),
            snapshots_bound: Counter::default(),
            snapshots_swept: Counter::default(),
            workloads: Gauge::default(),
            pending_workloads: Gauge::default(),
            held_workloads: Gauge::default(),
            leader: Gauge::default(),
            certificate_expiry: Gauge::default(),
            certificate_reload: Family::default(),
        };
        inner.register();
        Self(Arc::new(inner))
    }

    /// All metrics as OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &self.0.registry).is_err() {
            // Writing to a String does not fail; an empty page is what a scraper reports as broken.
            text.clear();
        }
        text
    }

    /// An admission review on `path` ended after `took`. `path` must be one of the program's own routes, never what a
    /// client sent.
    pub fn review(&self, path: &'static str, outcome: Review, took: Duration) {
        self.0.reviews.get_or_create(&ReviewLabels { path, outcome }).inc();
        self.0.review_seconds.get_or_create(&PathLabels { path }).observe(took.as_secs_f64());
    }

    /// The API server answered a request with `code` (an HTTP status; 0 where it did not answer).
    pub fn api_request(&self, verb: &'static str, code: u16) {
        self.0.api_requests.get_or_create(&ApiLabels { verb, code: code.into() }).inc();
    }

    /// The controller tried to roll a workload forward.
    pub fn roll(&self, outcome: Roll) {
        self.0.rolls.get_or_create(&RollLabels { outcome }).inc();
    }

    /// A snapshot was made.
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

    /// The number of opted-in workloads known now.
    pub fn set_workloads(&self, count: usize) {
        self.0.workloads.set(count.try_into().unwrap_or(i64::MAX));
    }

    /// The number of workloads that wait to be rolled now.
    pub fn set_pending_workloads(&self, count: usize) {
        self.0.pending_workloads.set(count.try_into().unwrap_or(i64::MAX));
    }

    /// The number of workloads that `max-in-flight` holds now.
    pub fn set_held_workloads(&self, count: usize) {
        self.0.held_workloads.set(count.try_into().unwrap_or(i64::MAX));
    }

    /// Whether this replica leads.
    pub fn set_leader(&self, leads: bool) {
        self.0.leader.set(leads.into());
    }

    /// When the serving certificate in use expires.
    pub fn set_certificate_expiry(&self, at: Timestamp) {
        self.0.certificate_expiry.set(at.as_second());
    }

    /// A new serving certificate was seen.
    pub fn certificate_reload(&self, outcome: Reload) {
        self.0.certificate_reload.get_or_create(&ReloadLabels { outcome }).inc();
    }
}

impl Inner {
    fn register(&mut self) {
        // `_total` and `_info` are added to the names by the encoder.
        let registry = &mut self.registry;
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The program that runs", build);
        registry.register("admission_reviews", "Admission reviews answered", self.reviews.clone());
        let seconds = self.review_seconds.clone();
        registry.register("admission_duration_seconds", "Time to answer an admission review", seconds);
        let requests = self.api_requests.clone();
        registry.register("api_requests", "Requests to the API server; code 0 is no answer", requests);
        registry.register("rolls", "Attempts to roll a workload forward", self.rolls.clone());
        registry.register("snapshots_created", "Snapshots made", self.snapshots_created.clone());
        registry.register("snapshots_bound", "Writes of snapshots' owners", self.snapshots_bound.clone());
        registry.register("snapshots_swept", "Unused snapshots deleted", self.snapshots_swept.clone());
        registry.register("workloads", "Opted-in workloads", self.workloads.clone());
        let pending = self.pending_workloads.clone();
        registry.register("pending_workloads", "Workloads that wait to be rolled", pending);
        let held = self.held_workloads.clone();
        registry.register("held_workloads", "Workloads that max-in-flight holds back", held);
        registry.register("leader", "1 where this replica leads", self.leader.clone());
        let expiry = self.certificate_expiry.clone();
        let help = "When the serving certificate in use expires, in seconds since 1970";
        registry.register("certificate_expiry_timestamp_seconds", help, expiry);
        let reload = self.certificate_reload.clone();
        registry.register("certificate_reload", "New serving certificates seen", reload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_written_under_its_documented_name() {
        let metrics = Metrics::new();
        metrics.review("/mutate/workloads", Review::Patched, Duration::from_millis(2));
        metrics.api_request("get", 404);
        metrics.roll(Roll::Rolled);
        metrics.snapshot_created();
        metrics.snapshot_bound();
        metrics.snapshot_swept();
        metrics.set_workloads(3);
        metrics.set_pending_workloads(2);
        metrics.set_leader(true);
        metrics.set_certificate_expiry(Timestamp::from_second(1_800_000_000).unwrap());
        metrics.certificate_reload(Reload::Refused);
        let text = metrics.encode();
        for line in [
            concat!("confrev_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "confrev_admission_reviews_total{path=\"/mutate/workloads\",outcome=\"patched\"} 1",
            "confrev_admission_duration_seconds_bucket{le=\"0.0025\",path=\"/mutate/workloads\"} 1",
            "confrev_api_requests_total{verb=\"get\",code=\"404\"} 1",
            "confrev_rolls_total{outcome=\"rolled\"} 1",
            "confrev_snapshots_created_total 1",
            "confrev_snapshots_bound_total 1",
            "confrev_snapshots_swept_total 1",
            "confrev_workloads 3",
            "confrev_pending_workloads 2",
            "confrev_leader 1",
            "confrev_certificate_expiry_timestamp_seconds 1800000000",
            "confrev_certificate_reload_total{outcome=\"refused\"} 1",
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
