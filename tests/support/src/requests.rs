//! What an API server has measured of its own requests.

use std::fmt;

use confrev_controlplane::ControlPlane;

/// The requests that an API server has answered since it started, without those that last.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    all: u64,
    /// Those that took more than a second.
    late: u64,
}

impl Requests {
    /// The requests until now.
    pub fn of(cluster: &ControlPlane) -> Self {
        let (_, metrics) = cluster.api().get("/metrics");
        let buckets = metrics.as_str().expect("metrics are text");
        let is_bucket = |line: &&str| line.starts_with("apiserver_request_duration_seconds_bucket{");
        let is_short = |line: &&str| !["WATCH", "CONNECT"].iter().any(|verb| line.contains(verb));
        let count = |le: &str| -> u64 {
            let of_bucket = |line: &&str| line.contains(&format!("le=\"{le}\""));
            let lines = buckets.lines().filter(is_bucket).filter(is_short).filter(of_bucket);
            // A large count has an exponent.
            let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            counts.map(|count| count as u64).sum()
        };
        let all = count("+Inf");
        Self { all, late: all.saturating_sub(count("1")) }
    }

    /// Those after the earlier ones.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { all: self.all.saturating_sub(before.all), late: self.late.saturating_sub(before.late) }
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} requests to the API server took more than a second", self.late, self.all)
    }
}
